"""The events of the outbox for streams: those that are at the same position share one read.

A commit wakes every stream, and each would read, decode and encode the same events. Streams that are far behind read
one after the other, so that they never take all readers of the database from other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

from msgspec import json

from myrmidon.model.ids import show_run, show_task
from myrmidon.relays import messages
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import outbox, task_result
from myrmidon.store.tables.outbox import Event
from myrmidon.wire.events import EventData

T = TypeVar("T")

BATCH = 500
_encode = json.Encoder().encode
_decode_body = json.Decoder(dict[str, Any]).decode


class StreamedEvent:
    """An event, and what streams need to know about it. What they send of it is made once."""

    def __init__(self, event: Event, group: int | None, message_kind: str | None) -> None:
        self.event = event
        self.group = group
        """The resource group of its task or job; None if that was deleted."""
        self.message_kind = message_kind

    @cached_property
    def _body(self) -> dict[str, Any]:
        return _decode_body(self.event.body)

    @property
    def is_of_task(self) -> bool:
        return self.event.kind == outbox.TASK

    @property
    def job(self) -> int | None:
        """The job that it is about, or that its task belongs to."""
        return self._body.get("job") if self.is_of_task else self.event.subject

    @property
    def bot(self) -> str | None:
        return self._body.get("bot") if self.is_of_task else None

    @cached_property
    def about(self) -> dict[str, Any]:
        """The details. Ids, which the outbox stores as numbers, have the form of the other calls."""
        details = dict(self._body)
        for key in ("job", "blocked_by"):
            if details.get(key) is not None:
                details[key] = show_task(details[key])
        if details.get("run"):
            details["run"] = show_run(self.event.subject, details["run"])
        return details

    @cached_property
    def shown(self) -> bytes:
        """The event in the format of server-sent events."""
        event = self.event
        data = EventData(
            position=event.position,
            kind=event.kind,
            id=show_task(event.subject),
            seq=event.seq,
            state=event.state,
            at=event.at,
            about=self.about,
        )
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.kind.encode(), _encode(data))


class ReadTransaction(Protocol):
    """Runs a function in a read transaction and returns its result."""

    def __call__(self, fn: Callable[[Tx], T], /) -> Awaitable[T]: ...


class EventFeed:
    """The events of one server's streams."""

    def __init__(self, read: ReadTransaction) -> None:
        self._read = read
        self._reads: dict[tuple[int, bool], asyncio.Task[list[StreamedEvent]]] = {}
        self._newest = 0
        self._one_at_a_time = asyncio.Lock()

    async def newest(self) -> int:
        """The position of the newest event."""
        self._newest = await self._read(outbox.newest)
        return self._newest

    def forget_reads(self) -> None:
        """Note that there are new events: later calls must not get what an earlier read finds."""
        self._reads.clear()

    async def after(self, position: int, *, with_kinds: bool = False) -> list[StreamedEvent]:
        """The next events after a position, at most BATCH; with the kinds of their messages only if asked for."""
        key = position, with_kinds
        read = self._reads.get(key)
        if read is None:
            read = self._reads[key] = asyncio.create_task(self._next(position, with_kinds=with_kinds))
            read.add_done_callback(partial(self._on_read, key))
        return await asyncio.shield(read)

    def _on_read(self, key: tuple[int, bool], read: asyncio.Task[list[StreamedEvent]]) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]
        if not read.cancelled():
            read.exception()  # marks it as retrieved: all streams that waited for it may have ended

    async def _next(self, position: int, *, with_kinds: bool) -> list[StreamedEvent]:
        read = partial(_read_events, position=position, with_kinds=with_kinds)
        if position + BATCH < self._newest:
            async with self._one_at_a_time:
                return await self._read(read)
        found = await self._read(read)
        if found:
            self._newest = max(self._newest, found[-1].event.position)
        return found


def _read_events(tx: Tx, position: int, *, with_kinds: bool) -> list[StreamedEvent]:
    events = outbox.after(tx, position, BATCH)
    before = outbox.predecessors(tx, events) if with_kinds else {}
    groups = task_result.groups_of(tx, [event.subject for event in events if event.kind == outbox.TASK])
    groups |= jobs.groups_of(tx, [event.subject for event in events if event.kind != outbox.TASK])
    return [
        StreamedEvent(
            event,
            groups.get(event.subject),
            messages.kind_of(event, before.get((event.subject, event.seq))) if with_kinds else None,
        )
        for event in events
    ]
