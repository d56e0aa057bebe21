"""Relays events from the outbox to one sink: lease, read, deliver, advance the cursor.

Every server runs a relay for every sink, and the lease lets one of them work. A sink that is unavailable delays its own
messages only: its relay gives the lease back, so that a server with a better connection can try, and tries again after
a pause. The events wait in the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog
from msgspec import Struct

from myrmidon.model.errors import MyrmidonError
from myrmidon.model.ids import Micros
from myrmidon.relays import messages
from myrmidon.relays.messages import Message
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import outbox, sink

log = structlog.get_logger("relay")
T = TypeVar("T")

BATCH = 500
IDLE_S = 0.25
INACTIVE_S = 1.0
LEASE_S = 15.0
RENEW_S = 5.0
"""The lease is renewed this often, also while a delivery waits for its confirmation."""
DELIVER_S = 60.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 15.0
_STOP_S = 2.0
_MICROS = 1_000_000


class SinkUnavailable(Exception):
    """A sink did not confirm messages; they are delivered again later."""


class Sink(Protocol):
    """A receiver of messages."""

    name: str

    async def active(self) -> bool:
        """Whether anybody wants messages; if not, the cursor stays where it is."""

    async def deliver(self, batch: Sequence[Message]) -> None:
        """Deliver messages in order; returns when all are confirmed. Raises SinkUnavailable."""

    async def close(self) -> None:
        """Close the connection to the sink, if there is one."""


class Transactions(Protocol):
    """The database, as a server uses it."""

    async def read(self, fn: Callable[[Tx], T]) -> T: ...
    def write(self, fn: Callable[[Tx], T]) -> Awaitable[T]: ...


class RelayObserver(Protocol):
    """Is told of deliveries and failures, for the metrics."""

    def relayed(self, sink: str, count: int) -> None: ...
    def relay_failed(self, sink: str) -> None: ...


class _Batch(Struct, frozen=True):
    """Messages, and the position of the last event that was read for them."""

    messages: list[Message]
    last: int | None


def _next_batch(tx: Tx, position: int) -> _Batch:
    events = outbox.after(tx, position, BATCH)
    return _Batch(messages.build(tx, events), events[-1].position if events else None)


class Relay:
    """Delivers the events of the outbox to one sink while this server holds the sink's lease."""

    def __init__(
        self, sink_: Sink, database: Transactions, *, holder: int, now: Callable[[], Micros], observer: RelayObserver
    ) -> None:
        self._sink = sink_
        self._database = database
        self._holder = holder
        self._now = now
        self._observer = observer
        self._cursor: int | None = None
        """The position up to which the sink has confirmed; None without the lease."""
        self._renew_at: Micros = 0
        self._num_failures = 0

    async def run(self) -> None:
        """Relay until cancelled. No failure ends it: sink and database come back."""
        try:
            while True:
                pause_s = await self._step()
                await asyncio.sleep(pause_s)
        finally:
            with suppress(Exception):
                async with asyncio.timeout(_STOP_S):
                    await self._release()
                    await self._sink.close()

    async def _step(self) -> float:
        """Relay one batch; returns after how many seconds the next one is to be tried."""
        try:
            return await self._relay_batch()
        except (SinkUnavailable, TimeoutError) as error:
            return await self._failed(str(error) or f"no confirmation within {DELIVER_S:.0f} s")
        except MyrmidonError as error:
            log.warning("relay waits for the database", sink=self._sink.name, code=error.code)
        except Exception:  # a bug must not end the relay: the next release continues where this one stopped
            log.exception("relay failed", sink=self._sink.name)
        self._cursor = None
        return LONGEST_PAUSE_S

    async def _relay_batch(self) -> float:
        if not await self._sink.active():
            await self._release()
            return INACTIVE_S
        if not await self._hold_lease() or self._cursor is None:
            return RENEW_S / 2
        batch = await self._database.read(partial(_next_batch, position=self._cursor))
        if batch.last is None:
            return IDLE_S
        if batch.messages:
            await self._deliver(batch.messages)
        if self._cursor is None or not await self._write(sink.advance, position=batch.last):
            # Another server has taken the lease meanwhile, and delivers these messages a second time.
            self._cursor = None
            return RENEW_S
        self._cursor = batch.last
        return 0.0

    async def _deliver(self, batch: Sequence[Message]) -> None:
        """Deliver messages, and renew the lease as long as that takes."""
        delivery = asyncio.ensure_future(self._sink.deliver(batch))
        try:
            async with asyncio.timeout(DELIVER_S):
                while not (await asyncio.wait({delivery}, timeout=RENEW_S))[0]:
                    if not await self._hold_lease():
                        raise SinkUnavailable("another server has taken the lease during the delivery")
        finally:
            if not delivery.done():
                delivery.cancel()
                await asyncio.wait({delivery})
        delivery.result()
        self._delivered(len(batch))

    async def _hold_lease(self) -> bool:
        """Take the lease, or renew it where that is due; whether this server has it."""
        now = self._now()
        if self._cursor is None or not self._renew_at - RENEW_S * _MICROS <= now < self._renew_at:
            self._cursor = await self._write(sink.lease, now=now, until=now + round(LEASE_S * _MICROS))
            self._renew_at = now + round(RENEW_S * _MICROS)
        return self._cursor is not None

    async def _release(self) -> None:
        if self._cursor is not None:
            self._cursor = None
            await self._write(sink.release)

    def _delivered(self, count: int) -> None:
        if self._num_failures:
            log.info("sink is available again", sink=self._sink.name, failures=self._num_failures)
        self._num_failures = 0
        self._observer.relayed(self._sink.name, count)

    async def _failed(self, error: str) -> float:
        self._num_failures += 1
        self._observer.relay_failed(self._sink.name)
        if self._num_failures == 1:
            log.warning("sink is unavailable; its messages wait", sink=self._sink.name, error=error)
        with suppress(MyrmidonError):
            await self._release()
        self._cursor = None
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * (1 << min(self._num_failures - 1, 10)))

    def _write(self, fn: Callable[..., T], **params: Any) -> Awaitable[T]:
        return self._database.write(partial(fn, name=self._sink.name, holder=self._holder, **params))
