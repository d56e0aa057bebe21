"""Events as a stream: the outbox, read by its numbers and pushed to whoever listens.

The number of an event is its id in the stream, so that a listener whose connection was cut says which one it
saw last and misses nothing. Whoever is bound to a resource group hears of that group only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from msgspec import Meta, Raw, Struct, json

from myrmidon.model.ids import Micros, show_task
from myrmidon.model.validation import LARGEST
from myrmidon.server.calls import (
    READERS,
    Answer,
    Call,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import outbox, task_result
from myrmidon.store.tables.outbox import Event

BATCH = 500
STILL_HERE_S = 15.0
STILL_HERE = b": still here\n\n"
_encode = json.Encoder().encode


class EventsQuery(Struct, frozen=True, kw_only=True):
    """``after``: the number of the last event that was seen; 0 for all there are, nothing for those to come."""

    after: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


class Told(Struct, frozen=True):
    """One event on the wire; ``about`` is what it says besides the state."""

    position: int
    kind: str
    id: str
    seq: int
    state: str
    at: Micros
    about: Raw


async def events(context: ServerContext, call: Call) -> Answer:
    """Everything that happens to tasks and jobs, as it happens."""
    query: EventsQuery = call.query
    group = await context.groups.scope_of(call)
    last = call.headers.get("last-event-id", "")
    if last.isdecimal() and len(last) < 20 and int(last) <= LARGEST:
        position = int(last)
    elif query.after is not None:
        position = query.after
    else:
        position = LARGEST
    # A number that no event has yet is from before an older copy of the data was restored: what comes now is new.
    position = min(position, await context.db.read(outbox.newest))
    return Answer(headers={"content-type": "text/event-stream"}, body=_stream(context, position, group))


async def _stream(context: ServerContext, position: int, group: int | None) -> AsyncIterator[bytes]:
    hub = context.hub
    hub.num_streams += 1
    try:
        yield STILL_HERE
        while not hub.stopping:
            with hub.watch_growth(["events"]) as watch:
                found, heard = await context.db.read(partial(_next, after=position, group=group))
                came = bool(found) or await watch.wait(STILL_HERE_S)
            if heard:
                yield b"".join(show(event) for event in heard)
            if found:
                position = found[-1].position
            elif not came:
                yield STILL_HERE
    finally:
        hub.num_streams -= 1


def _next(tx: Tx, after: int, group: int | None) -> tuple[list[Event], list[Event]]:
    """The next events, and those of them that the listener may hear of."""
    found = outbox.after(tx, after, BATCH)
    if group is None:
        return found, found
    tasks = [event.subject for event in found if event.kind == outbox.TASK]
    others = [event.subject for event in found if event.kind != outbox.TASK]
    groups = {**task_result.groups_of(tx, tasks), **jobs.groups_of(tx, others)}
    return found, [event for event in found if groups.get(event.subject) == group]


def show(event: Event) -> bytes:
    """An event as lines of the stream."""
    told = Told(
        position=event.position,
        kind=event.kind,
        id=show_task(event.subject),
        seq=event.seq,
        state=event.state,
        at=event.at,
        about=Raw(event.body.encode()),
    )
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.kind.encode(), _encode(told))


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/events",
        call=events,
        who=READERS,
        summary="Everything that happens to tasks and jobs, as a stream",
        query=EventsQuery,
        media="text/event-stream",
        waits=True,
    ),
)
