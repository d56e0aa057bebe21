"""GET /api/v1/events: events of tasks and jobs, read from the outbox and streamed as server-sent events.

An event's position in the outbox is its id in the stream: a client that reconnects sends the last one as
``Last-Event-ID`` and misses nothing. A caller whose token is bound to a resource group gets that group's events only.
Filters restrict a stream to a job, to tasks, or to kinds of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from msgspec import Struct

from myrmidon.model.validation import MAX_INT64
from myrmidon.relays import messages
from myrmidon.server.calls import READERS, Answer, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.server.waiting.event_feed import StreamedEvent
from myrmidon.wire.events import EventsQuery

ROUTES = Routes()

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"


class Filter(Struct, frozen=True):
    """Which events a stream sends; a field that is None or empty restricts nothing."""

    group: int | None
    job: int | None
    tasks: frozenset[int]
    kinds: frozenset[str]

    def accepts(self, item: StreamedEvent) -> bool:
        return (
            self.group in (None, item.group)
            and (not self.tasks or item.event.subject in self.tasks)
            and (not self.kinds or item.event.kind in self.kinds or item.message_kind in self.kinds)
            and self.job in (None, item.job)
        )


@ROUTES.add(
    "GET",
    "/api/v1/events",
    READERS,
    "Stream events of tasks and jobs",
    query=EventsQuery,
    media="text/event-stream",
    waits=True,
    streams_events=True,
)
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
    position = min(position, await context.events.newest())
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
    with_kinds = bool(wanted.kinds & set(messages.KINDS))
    hub.num_event_streams += 1
    try:
        yield KEEP_ALIVE
        keep_alive_at = clock() + KEEP_ALIVE_S
        while not hub.stopping:
            with hub.watch_updates(["events"]) as watch:
                batch = await context.events.after(position, with_kinds=with_kinds)
                if not batch:
                    await watch.wait(keep_alive_at - clock())
            if batch:
                position = batch[-1].event.position
            visible = [item.shown for item in batch if wanted.accepts(item)]
            if visible or clock() >= keep_alive_at:
                yield b"".join(visible) or KEEP_ALIVE
                keep_alive_at = clock() + KEEP_ALIVE_S
    finally:
        hub.num_event_streams -= 1
