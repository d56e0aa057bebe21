"""Logs by byte range and as they grow.

stdout and stderr are kept apart, each with offsets of its own. A log over its limit has lost its middle, and what a
bot could not send leaves a hole; where bytes are missing, a range has a line that says how many, and a stream an event
of its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, json

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import RUN_CAP, show_run, show_task
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.model.validation import LARGEST
from myrmidon.server.calls import (
    READERS,
    Answer,
    Call,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.logs import is_cut, read_range
from myrmidon.server.usecases.tasks import parse_path_id
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import task_result
from myrmidon.store.tables.log import STDERR, STDOUT, LogInfo, LogPart

MOST_BYTES = 8 << 20
PIECE = 256 << 10
STILL_HERE_S = 15.0
OTHER_SERVERS_S = 0.5
"""How often a followed log is looked at where other servers may write to it."""
LOOK_AGAIN_S = 5.0
_encode = json.Encoder().encode

Offset = Annotated[int, Meta(ge=0, le=LARGEST)]
RunNumber = Annotated[int, Meta(ge=1, le=RUN_CAP)]


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    BOTH = "both"


_STREAMS = {Stream.STDOUT: (STDOUT,), Stream.STDERR: (STDERR,), Stream.BOTH: (STDOUT, STDERR)}


# ---------------------------------------------------------------- a range


class LogQuery(Struct, frozen=True, kw_only=True):
    """Which bytes. Without a run, the last one of the task; with both streams, stderr stands behind stdout."""

    run: RunNumber | None = None
    stream: Stream = Stream.BOTH
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = 1 << 20


async def log_range(context: ServerContext, call: Call) -> Answer:
    """A stretch of a run's log. ``X-Log-Next`` is the offset to go on from."""
    query: LogQuery = call.query
    task, run = await _run_of(context, call, query.run)
    streams = _STREAMS[query.stream]
    found = await context.logs.read(
        lambda tx: read_range(tx, task.id, run, streams=streams, offset=query.offset, limit=query.limit)
    )
    headers = {
        "content-type": "application/octet-stream",
        "x-log-length": str(found.length),
        "x-log-next": str(found.next_offset),
        "x-log-run": show_run(task.id, run),
    }
    if found.cut:
        headers["x-log-cut"] = ", ".join(f"{low}-{high}" for low, high in found.cut)
    return Answer(headers=headers, body=found.content)


async def _task_of(context: ServerContext, call: Call) -> tuple[TaskResult, int]:
    """The task that a path names, and the run if it names one; a task of another group does not exist."""
    shown = call.params["id"]
    task_id, run = parse_path_id(shown)
    group = await context.groups.scope_of(call)
    found = (await context.db.read(lambda tx: task_result.read(tx, [task_id]))).get(task_id)
    if found is None or (group is not None and found.resource_group_id != group):
        raise NotFound("task", shown)
    return found, run


async def _run_of(context: ServerContext, call: Call, asked: int | None) -> tuple[TaskResult, int]:
    task, named = await _task_of(context, call)
    run = asked or named or task.instance_id or task.run_number
    if not run or run > task.run_number:
        if asked or named:
            raise NotFound("run", show_run(task.id, run))
        return task, 0
    return task, run


# ---------------------------------------------------------------- as it grows


class FollowQuery(Struct, frozen=True, kw_only=True):
    """Which run; without one, the task's current one and those that follow it, until the task has ended."""

    run: RunNumber | None = None
    stream: Stream = Stream.BOTH


class Ended(Struct, frozen=True):
    """How a task, or the run that was followed, has ended."""

    task_id: str
    run: str | None
    state: str
    reason: str
    exit_code: int | None


async def follow(context: ServerContext, call: Call) -> Answer:
    """A log as it grows. The id of each event says how far it went, for ``Last-Event-ID``."""
    query: FollowQuery = call.query
    task, named = await _task_of(context, call)
    wanted = query.run or named
    if wanted > task.run_number:
        raise NotFound("run", show_run(task.id, wanted))
    follower = Follower(context, task, wanted, _STREAMS[query.stream])
    follower.resume(call.headers.get("last-event-id", ""))
    return Answer(headers={"content-type": "text/event-stream"}, body=follower.stream())


class Follower:
    """One reader of one task's log."""

    def __init__(self, context: ServerContext, task: TaskResult, only_run: int, streams: Sequence[int]) -> None:
        self._context = context
        self._task_id = task.id
        self._only_run = only_run
        self._run = only_run or task.run_number
        self._streams = streams
        self._offsets = [0, 0]

    def resume(self, last: str) -> None:
        """Go on behind an earlier event: ``run:offset of stdout:offset of stderr``."""
        parts = last.split(":")
        if len(parts) == 3 and all(part.isdecimal() and len(part) < 19 for part in parts):
            run, *offsets = (int(part) for part in parts)
            if not self._only_run or run == self._only_run:
                self._run, self._offsets = run, offsets

    async def stream(self) -> AsyncIterator[bytes]:
        hub = self._context.hub
        pause = LOOK_AGAIN_S if self._context.db.engine.dialect is Dialect.SQLITE else OTHER_SERVERS_S
        quiet_s = 0.0
        yield b": follows\n\n"
        while not hub.stopping:
            run = self._run
            with hub.watch_growth([(self._task_id, run), ("task", self._task_id)]) as watch:
                shown, goes_on = await self._step()
                if not shown and goes_on and self._run == run:  # a run that has just begun is not watched yet
                    came = await watch.wait(pause)
                    quiet_s = 0.0 if came else quiet_s + pause
            if shown:
                yield shown
            if not goes_on:
                return
            if quiet_s >= STILL_HERE_S:
                quiet_s = 0.0
                yield b": still here\n\n"

    async def _step(self) -> tuple[bytes, bool]:
        """What there is to show now, and whether there will be more. Nothing and more: it is time to wait."""
        while True:
            task, run = await self._context.db.read(self._look)
            if task is None:
                return b"", False
            pieces = await self._more(ended=run is None or not run.live)
            if pieces:
                return b"".join(pieces), True
            if run is not None and not run.live and self._run < task.run_number and not self._only_run:
                self._run, self._offsets = self._next_run(task), [0, 0]
                continue
            if self._is_over(task, run):
                return self._end(task, run), False
            return b"", True

    def _look(self, tx: Tx) -> tuple[TaskResult | None, TaskRun | None]:
        task = task_result.read(tx, [self._task_id]).get(self._task_id)
        if task is None:
            return None, None
        if not self._run:
            self._run = task.run_number
        runs = task_result.runs_of(tx, [self._task_id])
        return task, next((run for run in runs if run.run == self._run), None)

    def _next_run(self, task: TaskResult) -> int:
        return min(self._run + (2 if (self._run + 1) % 16 == 0 else 1), task.run_number)

    def _is_over(self, task: TaskResult, run: TaskRun | None) -> bool:
        if self._only_run:
            return run is None or not run.live
        return task.final

    async def _more(self, *, ended: bool) -> list[bytes]:
        if not self._run:
            return []
        found = await self._context.logs.read(self._read)
        return [piece for stream, parts, info in found for piece in self._shown(stream, parts, info, ended=ended)]

    def _read(self, tx: Tx) -> list[tuple[int, list[LogPart], LogInfo]]:
        read = []
        for stream in self._streams:
            info = logs.info(tx, self._task_id, self._run, stream)
            start = self._offsets[stream]
            if is_cut(info, start):
                start = info.cut_to or start
            if start < info.length:
                parts = logs.read(tx, self._task_id, self._run, stream=stream, start=start, length=PIECE)
                read.append((stream, parts, info))
        return read

    def _shown(self, stream: int, parts: Sequence[LogPart], info: LogInfo, *, ended: bool) -> list[bytes]:
        """Events for stored bytes. Until the run has ended, a gap that was not cut may be filled: the stream waits."""
        shown = []
        for part in parts:
            missing = part.start - self._offsets[stream]
            if missing > 0:
                if not ended and not is_cut(info, self._offsets[stream]):
                    break
                shown.append(self._event("cut", stream, {"offset": self._offsets[stream], "missing": missing}))
            data = {"offset": part.start, "data": b64encode(part.content).decode()}
            self._offsets[stream] = part.start + len(part.content)
            shown.append(self._event("log", stream, data))
        return shown

    def _event(self, name: str, stream: int, data: dict[str, Any]) -> bytes:
        told = {"run": show_run(self._task_id, self._run), "stream": stream, **data}
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self._place(), name.encode(), _encode(told))

    def _place(self) -> bytes:
        return b"%d:%d:%d" % (self._run, *self._offsets)

    def _end(self, task: TaskResult, run: TaskRun | None) -> bytes:
        ended = Ended(
            task_id=show_task(task.id),
            run=show_run(task.id, run.run) if run else None,
            state=str(run.state if self._only_run and run else task.state),
            reason=run.reason if self._only_run and run else task.reason,
            exit_code=run.exit_code if run else None,
        )
        return b"id: %s\nevent: end\ndata: %s\n\n" % (self._place(), _encode(ended))


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/tasks/{id}/log",
        call=log_range,
        who=READERS,
        summary="A stretch of a run's log, as bytes",
        query=LogQuery,
        media="application/octet-stream",
    ),
    Route(
        method="GET",
        path="/api/v1/tasks/{id}/log/follow",
        call=follow,
        who=READERS,
        summary="A log as it grows, as a stream",
        query=FollowQuery,
        media="text/event-stream",
        waits=True,
    ),
)
