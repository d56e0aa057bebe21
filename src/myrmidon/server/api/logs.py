"""Logs of runs: by byte range, and followed as a stream of server-sent events.

stdout and stderr are stored separately, each with its own offsets. Bytes can be missing (see usecases/logs.py): a range
then contains a line that says how many, a stream an event ``cut``. The task's secret is shown as ``*``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import json

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import next_run_number, show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.server.calls import (
    READERS,
    Answer,
    Call,
    Routes,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.logs import LogReader, RunLog, is_cut, read_range, run_log
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.tables import log_times, task_result, task_run
from myrmidon.store.tables.log import STDERR, STDOUT, LogPart
from myrmidon.wire.logs import Ended, FollowQuery, LogBytes, LogGap, LogQuery, LogTimes, LogTimesQuery, Stream

ROUTES = Routes()

PIECE = 256 << 10
TIMES_PAGE = 500
"""Pieces of output whose times are on one page."""
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
RECHECK_S = 5.0
"""The time between two reads of a followed log without a notification."""
RECHECK_SHARED_S = 0.5
"""The same where other servers may write to the log: their writes do not notify this server."""
_encode = json.Encoder().encode
_STREAMS = {Stream.STDOUT: (STDOUT,), Stream.STDERR: (STDERR,), Stream.BOTH: (STDOUT, STDERR)}


# ---------------------------------------------------------------- ranges


@ROUTES.add(
    "GET",
    "/api/v1/tasks/{id}/log",
    READERS,
    "Get a range of a run's log",
    query=LogQuery,
    media="application/octet-stream",
)
async def get_log(context: ServerContext, call: Call) -> Answer:
    """A range of a run's log, as bytes. ``X-Log-Next`` is the offset of the next range.

    ``X-Log-Length`` is how much can be read now: while a task with a secret runs, output that may be the beginning of
    the secret is not counted yet.
    """
    query: LogQuery = call.query
    task, run = await _run_of(context, call, query.run)
    streams = _STREAMS[query.stream]
    log = await _log_of(context, task, run)
    log_range = await context.logs.read(
        lambda tx: read_range(tx, log, streams=streams, offset=query.offset, limit=query.limit)
    )
    headers = {
        "content-type": "application/octet-stream",
        "x-log-length": str(log_range.length),
        "x-log-next": str(log_range.next_offset),
        "x-log-run": show_run(task.id, run),
    }
    if log_range.cut:
        headers["x-log-cut"] = ", ".join(f"{low}-{high}" for low, high in log_range.cut)
    return Answer(headers=headers, body=log_range.content)


async def _task_of(context: ServerContext, call: Call) -> tuple[TaskResult, int]:
    """The task in the path, and the run number or 0. NotFound for tasks of other resource groups."""
    task_id, run = parse_path_id(call.params["id"])
    group = await context.groups.scope_of(call)
    return await context.db.read(lambda tx: get_visible_task(tx, task_id, group)), run


async def _run_of(context: ServerContext, call: Call, in_query: int | None) -> tuple[TaskResult, int]:
    """The task, and the run to read: the one in the query or the path, else the deciding or last one; 0 for none."""
    task, in_path = await _task_of(context, call)
    run = in_query or in_path or task.instance_id or task.run_number
    if not run or run > task.run_number:
        if in_query or in_path:
            raise NotFound("run", show_run(task.id, run))
        return task, 0
    return task, run


async def _log_of(context: ServerContext, task: TaskResult, run: int) -> RunLog:
    if task.skips_request_lookup:  # no secret, so nothing depends on whether the run has ended
        return RunLog(task.id, run)

    def read(tx: Tx) -> RunLog:
        runs = task_run.read(tx, [task.id])
        return run_log(tx, task.id, run, growing=any(one.run == run and one.live for one in runs))

    return await context.db.read(read)


# ---------------------------------------------------------------- times


@ROUTES.add("GET", "/api/v1/tasks/{id}/log/times", READERS, "Get the times of a run's output", query=LogTimesQuery)
async def get_log_times(context: ServerContext, call: Call) -> LogTimes:
    """When the output of a run was written. Output that was sent with the result, or by older bots, has no times."""
    query: LogTimesQuery = call.query
    task, run = await _run_of(context, call, query.run)
    if not run:
        return LogTimes(run=None, marks=[], next=None)
    marks, more = await context.logs.read(lambda tx: log_times.page(tx, task.id, run, after=query.after, n=TIMES_PAGE))
    return LogTimes(
        run=show_run(task.id, run), marks=[(mark.at, stream, mark.offset) for stream, mark in marks], next=more
    )


# ---------------------------------------------------------------- following


@ROUTES.add(
    "GET",
    "/api/v1/tasks/{id}/log/follow",
    READERS,
    "Follow a log as a stream",
    query=FollowQuery,
    media="text/event-stream",
    waits=True,
)
async def follow(context: ServerContext, call: Call) -> Answer:
    """Stream a log while it grows. Send an event's id as ``Last-Event-ID`` to continue after it."""
    query: FollowQuery = call.query
    task, in_path = await _task_of(context, call)
    only_run = query.run or in_path
    if only_run > task.run_number:
        raise NotFound("run", show_run(task.id, only_run))
    forms = (await _log_of(context, task, 0)).forms
    follower = LogFollower(context, task, only_run, streams=_STREAMS[query.stream], forms=forms)
    follower.resume(call.headers.get("last-event-id", ""))
    return Answer(headers={"content-type": "text/event-stream"}, body=follower.stream())


class LogFollower:
    """One client that follows the log of one task, or of one run if ``only_run`` is not 0."""

    def __init__(
        self,
        context: ServerContext,
        task: TaskResult,
        only_run: int,
        *,
        streams: Sequence[int],
        forms: SecretForms | None,
    ) -> None:
        self._context = context
        self._task_id = task.id
        self._only_run = only_run
        self._run = only_run or task.run_number
        self._streams = streams
        self._forms = forms
        self._offsets = [0, 0]

    def resume(self, last_event_id: str) -> None:
        """Continue after an earlier event, whose id is ``run:offset of stdout:offset of stderr``."""
        parts = last_event_id.split(":")
        if len(parts) == 3 and all(part.isdecimal() and len(part) < 19 for part in parts):
            run, *offsets = (int(part) for part in parts)
            if not self._only_run or run == self._only_run:
                self._run, self._offsets = run, offsets

    async def stream(self) -> AsyncIterator[bytes]:
        """The log as it grows, and a keep-alive whenever nothing was sent for KEEP_ALIVE_S."""
        hub, clock = self._context.hub, asyncio.get_running_loop().time
        recheck_s = RECHECK_S if self._context.db.engine.dialect is Dialect.SQLITE else RECHECK_SHARED_S
        yield b": follows\n\n"
        keep_alive_at = clock() + KEEP_ALIVE_S
        while not hub.stopping:
            run = self._run
            with hub.watch_updates([(self._task_id, run), ("task", self._task_id)]) as watch:
                events, continues = await self._step()
                if not events and continues and self._run == run:  # else the watch is on an earlier run
                    await watch.wait(min(recheck_s, keep_alive_at - clock()))
            if events or (continues and clock() >= keep_alive_at):
                yield events or KEEP_ALIVE
                keep_alive_at = clock() + KEEP_ALIVE_S
            if not continues:
                return

    async def _step(self) -> tuple[bytes, bool]:
        """The next events, if there are any, and whether the stream continues after them."""
        while True:
            task, run = await self._context.db.read(self._read_states)
            if task is None:
                return b"", False
            events = await self._new_events(ended=run is None or not run.live)
            if events:
                return b"".join(events), True
            if run is not None and not run.live and self._run < task.run_number and not self._only_run:
                self._run, self._offsets = self._next_run(task), [0, 0]
                continue
            if self._is_over(task, run):
                return self._end(task, run), False
            return b"", True

    def _read_states(self, tx: Tx) -> tuple[TaskResult | None, TaskRun | None]:
        task = task_result.read(tx, [self._task_id]).get(self._task_id)
        if task is None:
            return None, None
        if not self._run:
            self._run = task.run_number
        runs = task_run.read(tx, [self._task_id])
        return task, next((run for run in runs if run.run == self._run), None)

    def _next_run(self, task: TaskResult) -> int:
        return min(next_run_number(self._run) or task.run_number, task.run_number)

    def _is_over(self, task: TaskResult, run: TaskRun | None) -> bool:
        if self._only_run:
            return run is None or not run.live
        return task.final

    async def _new_events(self, *, ended: bool) -> list[bytes]:
        if not self._run:
            return []
        log = RunLog(self._task_id, self._run, not ended, self._forms)
        streams = await self._context.logs.read(lambda tx: self._read_parts(tx, log))
        return [event for stream, parts in streams for event in self._events(stream, parts)]

    def _read_parts(self, tx: Tx, log: RunLog) -> list[tuple[int, list[LogPart]]]:
        """The next parts of each stream. They stop at a gap that a late upload may still fill, until the run ended."""
        found = []
        for stream in self._streams:
            reader = LogReader(tx, log, stream)
            start = self._offsets[stream]
            if is_cut(reader.info, start):
                start = reader.info.cut_to or start
            if start < reader.info.length:
                found.append((stream, reader.read(start, PIECE, until_gap=log.growing)))
        return found

    def _events(self, stream: int, parts: Sequence[LogPart]) -> list[bytes]:
        run, events = show_run(self._task_id, self._run), []
        for part in parts:
            missing = part.start - self._offsets[stream]
            if missing > 0:
                gap = LogGap(run=run, stream=stream, offset=self._offsets[stream], missing=missing)
                events.append(self._event("cut", gap))
            self._offsets[stream] = part.end
            events.append(self._event("log", LogBytes(run=run, stream=stream, offset=part.start, data=part.content)))
        return events

    def _event(self, name: str, data: LogBytes | LogGap | Ended) -> bytes:
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self._event_id(), name.encode(), _encode(data))

    def _event_id(self) -> bytes:
        return b"%d:%d:%d" % (self._run, *self._offsets)

    def _end(self, task: TaskResult, run: TaskRun | None) -> bytes:
        ended = Ended(
            task_id=show_task(task.id),
            run=show_run(task.id, run.run) if run else None,
            state=str(run.state if self._only_run and run else task.state),
            reason=run.reason if self._only_run and run else task.reason,
            exit_code=run.exit_code if run else None,
        )
        return self._event("end", ended)
