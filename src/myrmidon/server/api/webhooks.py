"""Webhooks: create, list, delete; their deliveries, and sending one again."""

from __future__ import annotations

import asyncio
import hmac
from functools import partial

from msgspec import json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem
from myrmidon.model.shown_input import show_value
from myrmidon.relays import webhook_http
from myrmidon.relays.webhook_http import Refused
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import webhook
from myrmidon.store.tables.webhook import Delivery, Webhook
from myrmidon.wire import webhooks as wire
from myrmidon.wire.fields import Done, PageQuery

ROUTES = Routes()

RESOLVE_S = 5.0


@ROUTES.add("POST", "/api/v1/webhooks", WRITERS, "Create a webhook", body=wire.NewWebhook, mutates=True)
async def create_webhook(context: ServerContext, call: Call) -> wire.WebhookInfo:
    """Send the messages of a resource group to a URL from now on. Only this response contains the signing secret."""
    body: wire.NewWebhook = call.body
    await _check_url(context, body.url)
    name, now = context.groups.name_for(call, body.group), context.now()
    group_id = await context.groups.id_for(call, body.group)
    kinds = json.encode(sorted(set(body.kinds))).decode()
    row = Webhook(_new_id(context, call), group_id, body.url, kinds, now, after_position=0)
    stored = await context.db.write(partial(webhook.insert, webhook=row))
    if (stored.resource_group_id, stored.url, stored.kinds) != (group_id, body.url, kinds):
        raise Conflict("The request key was used for another webhook; use a new key for a new webhook.")
    return _info(stored, name, context.keys.webhook_secret(stored.id).decode())


async def _check_url(context: ServerContext, url: str) -> None:
    """InvalidRequest for a URL that would never be called. It is checked again before every delivery."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            await webhook_http.checked_addresses(webhook_http.parse_url(url), context.settings.webhook_rules.networks)
    except Refused as error:
        raise InvalidRequest([Problem("url", show_value(url), f"a public URL: {error}", "address")]) from None
    except TimeoutError:
        allowed = "a URL whose host can be resolved; the name server does not answer"
        raise InvalidRequest([Problem("url", show_value(url), allowed, "address")]) from None


def _new_id(context: ServerContext, call: Call) -> int:
    """A new id; for a call with a request key the same id every time, so that repeating it creates nothing."""
    if call.request_key is None:
        return context.ids.next(context.now())
    seed = hmac.digest(context.keys.secret, f"webhook\n{call.who.key}\n{call.request_key}".encode(), "sha256")
    return int.from_bytes(seed[:8], "big") >> 1 or 1


@ROUTES.add("GET", "/api/v1/webhooks", WRITERS, "List webhooks")
async def list_webhooks(context: ServerContext, call: Call) -> wire.WebhookList:
    """Webhooks of the caller's resource group; all for an administrator. Without their secrets."""
    scope = await context.groups.scope_of(call)
    rows = await context.db.read(webhook.all_stored if scope is None else partial(webhook.of_group, group_id=scope))
    names = await context.groups.names_of(row.resource_group_id for row in rows)
    return wire.WebhookList([_info(row, names.get(row.resource_group_id, "")) for row in rows])


@ROUTES.add("DELETE", "/api/v1/webhooks/{id}", WRITERS, "Delete a webhook", mutates=True)
async def delete_webhook(context: ServerContext, call: Call) -> Done:
    """Delete a webhook with its deliveries; messages that wait are not sent."""
    now, scope = context.now(), await context.groups.scope_of(call)

    def delete(tx: Tx) -> None:
        if claim_call_key(tx, call, "delete_webhook", call.params["id"], now=now):
            webhook.delete(tx, _find(tx, call.params["id"], scope).id)

    await context.db.write(delete)
    return Done()


@ROUTES.add("GET", "/api/v1/webhooks/{id}/deliveries", WRITERS, "List the deliveries of a webhook", query=PageQuery)
async def list_deliveries(context: ServerContext, call: Call) -> wire.DeliveryList:
    """Messages for a webhook, newest first: those that wait, and those of the last three days."""
    query: PageQuery = call.query
    before = int(read_cursor(context.keys.cursor, "deliveries", query.cursor)) if query.cursor else LAST_ID
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> list[Delivery]:
        return webhook.log(tx, _find(tx, call.params["id"], scope).id, before=before, n=query.limit)

    rows = await context.db.read(read)
    full = len(rows) == query.limit
    cursor = show_cursor(context.keys.cursor, "deliveries", str(rows[-1].position)) if full else None
    return wire.DeliveryList([_delivery_info(row) for row in rows], cursor)


@ROUTES.add("POST", "/api/v1/webhooks/{id}/deliveries/{delivery}/replay", WRITERS, "Send a message again", mutates=True)
async def replay_delivery(context: ServerContext, call: Call) -> Done:
    """Send a message again, with the same message id and a new signature. One that waits is left as it is."""
    now, scope = context.now(), await context.groups.scope_of(call)
    text = call.params["delivery"]
    position = int(text) if text.isascii() and text.isdecimal() and len(text) < len(str(LAST_ID)) else 0

    def replay(tx: Tx) -> None:
        hook = _find(tx, call.params["id"], scope)
        if webhook.read_delivery(tx, hook.id, position) is None:
            raise NotFound("delivery", text[:40])
        if claim_call_key(tx, call, "replay_delivery", f"{hook.id:x}/{position}", now=now):
            webhook.replay(tx, hook.id, position, now)

    await context.db.write(replay)
    return Done()


def _find(tx: Tx, text: str, scope: int | None) -> Webhook:
    """The webhook with this id; NotFound if the caller may not see it."""
    try:
        webhook_id = int(text, 16) if len(text) <= len(f"{LAST_ID:x}") else 0
    except ValueError:
        webhook_id = 0
    found = webhook.read(tx, webhook_id) if 0 < webhook_id <= LAST_ID else None
    if found is None or (scope is not None and found.resource_group_id != scope):
        raise NotFound("webhook", text[:40])
    return found


def _info(row: Webhook, group: str, secret: str | None = None) -> wire.WebhookInfo:
    return wire.WebhookInfo(
        id=f"{row.id:x}",
        url=row.url,
        kinds=json.decode(row.kinds, type=list[str]),
        group=group,
        created_at=row.created_at,
        num_pending=row.num_pending,
        num_failures=row.num_failures,
        num_dropped=row.num_dropped,
        next_attempt_at=row.next_at,
        secret=secret,
    )


def _delivery_info(row: Delivery) -> wire.DeliveryInfo:
    return wire.DeliveryInfo(
        id=str(row.position),
        message_id=row.message_id,
        kind=row.kind,
        state=row.state,  # type: ignore[arg-type]
        queued_at=row.queued_at,
        num_attempts=row.num_attempts,
        attempted_at=row.attempted_at,
        status=row.status,
        error=row.error,
    )
