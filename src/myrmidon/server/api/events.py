"""GET /api/v1/events: events of tasks and jobs, read from the outbox and streamed as server-sent events.

An event's position in the outbox is its id in the stream: a client that reconnects sends the last one as
``Last-Event-ID`` and misses nothing. A caller whose token is bound to a resource group gets that group's events only.
Filters restrict a stream to a job, to tasks, or to kinds of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from msgspec import Struct, json

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.validation import MAX_INT64
from myrmidon.relays import messages
from myrmidon.server.calls import (
    READERS,
    Answer,
    Call,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import outbox, task_result
from myrmidon.store.tables.outbox import Event
from myrmidon.wire.events import EventData, EventsQuery

BATCH = 500
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
_encode = json.Encoder().encode
decode_body = json.Decoder(dict[str, Any]).decode


class Filter(Struct, frozen=True):
    """Which events a stream sends; a field that is None or empty restricts nothing."""

    group: int | None
    job: int | None
    tasks: frozenset[int]
    kinds: frozenset[str]


async def events(context: ServerContext, call: Call) -> Answer:
    """Stream events of tasks and jobs."""
    query: EventsQuery = call.query
    wanted = await _filter(context, call, query)
    last_id = call.headers.get("last-event-id", "")
    if last_id.isdecimal() and len(last_id) < 20 and int(last_id) <= MAX_INT64:
        position = int(last_id)
    elif query.after is not None:
        position = query.after
    else:
        position = MAX_INT64
    # A position beyond the newest event is from before the database was restored from a backup: without this, the
    # client would miss all events until the outbox has grown to that position.
    position = min(position, await context.db.read(outbox.newest))
    return Answer(headers={"content-type": "text/event-stream"}, body=_stream(context, position, wanted))


async def _filter(context: ServerContext, call: Call, query: EventsQuery) -> Filter:
    """The filter of a stream; NotFound for a job or task that the caller may not see."""
    scope = await context.groups.scope_of(call)
    job = (await get_job(context, call, query.job)).id if query.job is not None else None
    tasks = frozenset(parse_path_id(text)[0] for text in query.task)
    for task_id in tasks:
        await context.db.read(partial(get_visible_task, task_id=task_id, scope=scope))
    return Filter(scope, job, tasks, frozenset(query.kind))


async def _stream(context: ServerContext, position: int, wanted: Filter) -> AsyncIterator[bytes]:
    """Events, and a keep-alive whenever nothing was sent for KEEP_ALIVE_S, also while events are left out."""
    hub, clock = context.hub, asyncio.get_running_loop().time
    hub.num_event_streams += 1
    try:
        yield KEEP_ALIVE
        keep_alive_at = clock() + KEEP_ALIVE_S
        while not hub.stopping:
            with hub.watch_updates(["events"]) as watch:
                batch, visible = await context.db.read(partial(_next, after=position, wanted=wanted))
                if not batch:
                    await watch.wait(keep_alive_at - clock())
            if batch:
                position = batch[-1].position
            if visible or clock() >= keep_alive_at:
                yield b"".join(show(event) for event in visible) or KEEP_ALIVE
                keep_alive_at = clock() + KEEP_ALIVE_S
    finally:
        hub.num_event_streams -= 1


def _next(tx: Tx, after: int, wanted: Filter) -> tuple[list[Event], list[Event]]:
    """The next events, and those of them that pass the filter."""
    batch = outbox.after(tx, after, BATCH)
    passed = batch
    if wanted.tasks:
        passed = [event for event in passed if event.subject in wanted.tasks]
    if wanted.job is not None:
        passed = [event for event in passed if _job_of(event) == wanted.job]
    if wanted.kinds:
        passed = _of_kinds(tx, passed, wanted.kinds)
    return batch, of_group(tx, passed, wanted.group)


def _job_of(event: Event) -> int | None:
    """The job that an event is about, or that its task belongs to."""
    if event.kind != outbox.TASK:
        return event.subject
    job: int | None = decode_body(event.body).get("job")
    return job


def _of_kinds(tx: Tx, events: list[Event], kinds: frozenset[str]) -> list[Event]:
    before = outbox.predecessors(tx, events) if kinds & set(messages.KINDS) else {}
    return [
        event
        for event in events
        if event.kind in kinds or messages.kind_of(event, before.get((event.subject, event.seq))) in kinds
    ]


def of_group(tx: Tx, events: list[Event], group: int | None) -> list[Event]:
    """Those of the events that are about tasks and jobs of the resource group; all if it is None."""
    if group is None:
        return events
    task_ids = [event.subject for event in events if event.kind == outbox.TASK]
    job_ids = [event.subject for event in events if event.kind != outbox.TASK]
    groups = {**task_result.groups_of(tx, task_ids), **jobs.groups_of(tx, job_ids)}
    return [event for event in events if groups.get(event.subject) == group]


def show(event: Event) -> bytes:
    """An event in the format of server-sent events."""
    data = EventData(
        position=event.position,
        kind=event.kind,
        id=show_task(event.subject),
        seq=event.seq,
        state=event.state,
        at=event.at,
        about=about(event),
    )
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.kind.encode(), _encode(data))


def about(event: Event) -> dict[str, Any]:
    """The details of an event. Ids, which the outbox stores as numbers, have the form of the other calls."""
    details = decode_body(event.body)
    for key in ("job", "blocked_by"):
        if details.get(key) is not None:
            details[key] = show_task(details[key])
    if details.get("run"):
        details["run"] = show_run(event.subject, details["run"])
    return details


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/events",
        call=events,
        who=READERS,
        summary="Stream events of tasks and jobs",
        query=EventsQuery,
        media="text/event-stream",
        waits=True,
    ),
)
