"""Webhooks: messages are queued for each webhook that wants them, and sent from there.

Queueing is a sink like any other, and quick. Each webhook has its own queue, so one that is slow or down delays its own
messages only. The messages of a webhook are sent one after the other in the order of their events; a failed one is
repeated, with growing pauses, for up to a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_network

import structlog
from msgspec import Struct, json, structs

from myrmidon.model.errors import MyrmidonError
from myrmidon.model.ids import Micros
from myrmidon.relays import webhook_http
from myrmidon.relays.messages import Message
from myrmidon.relays.relay import SinkUnavailable, Transactions
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import webhook
from myrmidon.store.tables.webhook import Delivery, Webhook

log = structlog.get_logger("webhooks")

SECOND: Micros = 1_000_000
DAY: Micros = 86_400 * SECOND
POLL_S = 0.5
CLEAN_S = 600.0
CONCURRENT = 16
"""Webhooks that one server sends to at the same time."""
BATCH = 50
LEASE: Micros = 60 * SECOND
GIVE_UP_AFTER = DAY
KEEP_LOG = 3 * DAY
FIRST_PAUSE: Micros = 2 * SECOND
LONGEST_PAUSE: Micros = 3600 * SECOND
_kinds = json.Decoder(list[str]).decode


class WebhookRules(Struct, frozen=True):
    """``allowed_networks``: networks that are not public and may be called. ``max_backlog``: per webhook.

    ``ca_file``: a PEM file with authorities that are trusted besides those of this machine.
    """

    allowed_networks: tuple[str, ...] = ()
    max_backlog: int = 10_000
    ca_file: str = ""

    @property
    def networks(self) -> list[webhook_http.Network]:
        return [ip_network(text) for text in self.allowed_networks]


class WebhookQueue:
    """The sink that queues messages for webhooks."""

    name = webhook.SINK

    def __init__(self, database: Transactions, rules: WebhookRules, now: Callable[[], Micros]) -> None:
        self._database = database
        self._rules = rules
        self._now = now

    async def active(self) -> bool:
        """Whether there are webhooks; without any, nothing is read or written."""
        return await self._database.read(webhook.any_stored)

    async def deliver(self, batch: Sequence[Message]) -> None:
        try:
            dropped = await self._database.write(
                partial(_enqueue, batch=batch, most=self._rules.max_backlog, now=self._now())
            )
        except MyrmidonError as error:
            raise SinkUnavailable(error.code) from error
        for webhook_id, count in dropped.items():
            log.error("webhook backlog is full; messages dropped", webhook=f"{webhook_id:x}", dropped=count)

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


def _enqueue(tx: Tx, batch: Sequence[Message], most: int, now: Micros) -> dict[int, int]:
    """Queue messages for the webhooks that want them; how many were dropped, by webhook."""
    dropped = {}
    for hook in webhook.all_stored(tx):
        wanted = [_delivery(hook, message, now) for message in batch if wants(hook, message)]
        if wanted and (count := webhook.enqueue(tx, hook.id, wanted, most=most, now=now)):
            dropped[hook.id] = count
    return dropped


def wants(hook: Webhook, message: Message) -> bool:
    """Whether a webhook gets a message."""
    kinds = _kinds(hook.kinds)
    return (
        hook.resource_group_id == message.resource_group_id
        and message.position > hook.after_position
        and (not kinds or message.kind in kinds)
    )


def _delivery(hook: Webhook, message: Message, now: Micros) -> Delivery:
    body = message.body.decode()
    return Delivery(hook.id, message.position, message.message_id, message.kind, body, webhook.PENDING, now)


class WebhookSender:
    """Sends what is queued, each webhook by one server at a time."""

    def __init__(
        self,
        database: Transactions,
        rules: WebhookRules,
        *,
        holder: int,
        now: Callable[[], Micros],
        secret_of: Callable[[int], bytes],
    ) -> None:
        self._database = database
        self._networks, self._ca_file = rules.networks, rules.ca_file
        self._holder = holder
        self._now = now
        self._secret_of = secret_of
        self._busy: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send until cancelled. The database may go away and come back."""
        cleaned_at = 0
        try:
            while True:
                with suppress(MyrmidonError):
                    await self._start_due()
                    if self._now() - cleaned_at > CLEAN_S * SECOND:
                        cleaned_at = self._now()
                        await self._clean()
                await asyncio.sleep(POLL_S)
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _start_due(self) -> None:
        now = self._now()
        for webhook_id in await self._database.read(partial(webhook.due, now=now, n=10 * CONCURRENT)):
            if webhook_id not in self._busy and len(self._busy) < CONCURRENT:
                task = asyncio.get_running_loop().create_task(self._serve(webhook_id))
                self._busy[webhook_id] = task
                task.add_done_callback(partial(self._ended, webhook_id))

    def _ended(self, webhook_id: int, task: asyncio.Task[None]) -> None:
        self._busy.pop(webhook_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook deliveries failed", webhook=f"{webhook_id:x}", exc_info=error)

    async def _serve(self, webhook_id: int) -> None:
        """Send the queue of one webhook until it is empty, an attempt fails, or another server has the lease."""
        now = self._now()
        with suppress(MyrmidonError):  # the lease ends by itself
            hook = await self._database.write(
                partial(webhook.lease, webhook_id=webhook_id, holder=self._holder, now=now, until=now + LEASE)
            )
            if hook is None:
                return
            while hook is not None and (batch := await self._pending(webhook_id)):
                for delivery in batch:
                    hook = hook and await self._send(hook, delivery)
            await self._database.write(partial(webhook.release, webhook_id=webhook_id, holder=self._holder))

    async def _pending(self, webhook_id: int) -> list[Delivery]:
        return await self._database.read(partial(webhook.pending, webhook_id=webhook_id, n=BATCH))

    async def _send(self, hook: Webhook, delivery: Delivery) -> Webhook | None:
        """Send one message; the webhook as it is afterwards, or None if no further one may follow now."""
        body, timestamp = delivery.body.encode(), self._now() // SECOND
        headers = {
            "Content-Type": "application/json",
            "X-Myrmidon-Kind": delivery.kind,
            "X-Myrmidon-Message-Id": delivery.message_id,
            "X-Myrmidon-Timestamp": str(timestamp),
            "X-Myrmidon-Signature": webhook_http.signature(self._secret_of(hook.id), timestamp, body),
        }
        outcome = await webhook_http.post(hook.url, headers, body, allowed=self._networks, ca_file=self._ca_file)
        now = self._now()
        if outcome.ok:
            kept = await self._database.write(
                partial(
                    webhook.delivered,
                    delivery=delivery,
                    holder=self._holder,
                    status=outcome.status,
                    now=now,
                    until=now + LEASE,
                )
            )
            return structs.replace(hook, num_failures=0) if kept else None
        await self._database.write(
            partial(
                webhook.attempt_failed,
                webhook=hook,
                delivery=delivery,
                holder=self._holder,
                status=outcome.status,
                error=outcome.error or "",
                now=now,
                next_at=now + pause_after(hook.num_failures),
                expire_before=now - GIVE_UP_AFTER,
            )
        )
        return None

    async def _clean(self) -> None:
        """Delete the old part of the log of deliveries."""
        before = self._now() - KEEP_LOG
        for hook in await self._database.read(webhook.all_stored):
            while await self._database.write(partial(webhook.delete_old, webhook_id=hook.id, before=before, n=1000)):
                pass


def pause_after(num_failures: int) -> Micros:
    """Return the seconds to wait after a failed attempt, by the number of attempts that had failed before it."""
    return min(LONGEST_PAUSE, FIRST_PAUSE << min(num_failures, 20))
