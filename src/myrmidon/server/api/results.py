"""The results of many tasks: asked for once, by a long poll, or by a stream to which tasks can be added.

A stream sends each result when it is there. Its tasks are in memory of one server, which is enough: a client whose
stream has broken, or whose call to add tasks has reached another server, opens a new one with all that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from secrets import token_hex

from msgspec import Struct, json

from myrmidon.model.errors import NotFound, Overloaded
from myrmidon.model.ids import parse_id, show_task
from myrmidon.server.calls import READERS, Answer, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.results import NOTHING, find_stream, read_results, room_for_results
from myrmidon.wire import values as wire

ROUTES = Routes()

RECHECK_S = 5.0
"""The time between two reads of states without a notification: another server may have written them."""
RECHECKED = 200
"""The number of tasks of a stream that are read then, so that results meanwhile are not late."""
MAX_WAIT_S = 120.0
IDLE_S = 60.0
"""A stream without tasks ends after this time."""
PAUSE_PER_TASK_S = 20e-6
LONGEST_PAUSE_S = 0.02
_encode = json.Encoder().encode


@ROUTES.add(
    "POST", "/api/v1/results", READERS, "Get the results of tasks as they end", body=wire.ResultsRequest, waits=True
)
async def get_results(context: ServerContext, call: Call) -> wire.Results:
    """The results of the tasks that have ended; waits for the first one."""
    body: wire.ResultsRequest = call.body
    ids = sorted(set(_parse(body.task_ids)))
    read = partial(read_results, ids=ids, scope=await context.groups.scope_of(call))
    clock = asyncio.get_running_loop().time
    deadline = clock() + min(body.wait_s, MAX_WAIT_S)
    watched: set[object] = set(ids)
    while True:
        with context.hub.watch_ends(watched) as watch:
            found = (await context.db.read(read)).require_all()
            remaining_s = deadline - clock()
            if found.results or remaining_s <= 0 or context.hub.stopping:
                return wire.Results(found.results)
            further = {key for keys in found.awaited.values() for key in keys}
            if further <= watched:
                await watch.wait(min(remaining_s, RECHECK_S))
        watched |= further


def _parse(shown: Sequence[str]) -> list[int]:
    return [parse_id(text, f"task_ids[{number}]")[0] for number, text in enumerate(shown)]


# ---------------------------------------------------------------- streams


@ROUTES.add(
    "POST",
    "/api/v1/results/streams",
    READERS,
    "Stream the results of tasks as they end",
    body=wire.FollowResults,
    media="text/event-stream",
    waits=True,
)
async def stream_results(context: ServerContext, call: Call) -> Answer:
    """Stream the results of tasks. The first event has the id of the stream, for calls that add tasks to it."""
    ids = set(_parse(call.body.task_ids))
    if len(ids) > room_for_results(context, call):
        raise _too_many()
    scope = await context.groups.scope_of(call)
    return Answer(headers={"content-type": "text/event-stream"}, body=_stream(context, call.who.key, ids, scope))


@ROUTES.add(
    "POST", "/api/v1/results/streams/{id}", READERS, "Add tasks to a stream of results", body=wire.FollowResults
)
async def follow_results(context: ServerContext, call: Call) -> wire.Followed:
    """Add tasks to an open stream of results on this server."""
    ids = set(_parse(call.body.task_ids))
    stream = find_stream(context, call, call.params["id"])
    if stream is None:
        raise NotFound("stream of results", call.params["id"][:100])
    if len(ids) > room_for_results(context, call):
        raise _too_many()
    stream.add(ids)
    return wire.Followed(len(stream.tasks))


def _too_many() -> Overloaded:
    return Overloaded("This caller waits for too many results already. Wait for some of them first.", advice="")


async def _stream(context: ServerContext, caller: str, ids: set[int], scope: int | None) -> AsyncIterator[bytes]:
    """Results in the order in which they are found, and an event ``idle`` whenever there was none for RECHECK_S."""
    hub, clock = context.hub, asyncio.get_running_loop().time
    with hub.open_result_stream(token_hex(16), caller) as stream:
        stream.add(ids)
        yield _event("open", wire.StreamOpened(stream.id))
        used_at = sent_at = rechecked_at = clock()
        while not hub.stopping:
            chunk = await stream.next(wire.MAX_RESULTS, RECHECK_S)
            found = await context.db.read(partial(read_results, ids=chunk, scope=scope)) if chunk else NOTHING
            stream.note(chunk, [*found.ended, *found.missing], found.awaited)
            now = clock()
            if found.results or found.missing:
                missing = [show_task(task_id) for task_id in found.missing]
                yield _event("results", wire.StreamedResults(found.results, missing))
                sent_at = now
                # Each event should have many results; the fewer tasks are left, the shorter the pause.
                await asyncio.sleep(min(LONGEST_PAUSE_S, len(stream.tasks) * PAUSE_PER_TASK_S))
            elif now - sent_at >= RECHECK_S:
                yield _event("idle", None)
                sent_at = now
            if now - rechecked_at >= RECHECK_S:
                stream.recheck(RECHECKED)
                rechecked_at = now
            if stream.tasks:
                used_at = now
            elif now - used_at > IDLE_S:
                return


def _event(name: str, data: Struct | None) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))
