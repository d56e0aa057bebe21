"""GET /api/v1/stream: what has changed, for pages that are kept open; one stream for all that a browser shows.

A client names topics and gets at most two frames a second. A frame says which tasks, jobs and bots have changed, and
how long logs are now; of several changes of one task it has the last one. The id of a frame is the position of its last
event in the outbox: a client that connects again with it, also with other topics, misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

from msgspec import Struct, field, json

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.model.shown_input import show_value
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.events import KEEP_ALIVE, KEEP_ALIVE_S
from myrmidon.server.calls import READERS, Answer, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.server.waiting.event_feed import BATCH, StreamedEvent
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.tables import bot_event, log
from myrmidon.store.views import listings
from myrmidon.store.views.pool_filter import PoolFilter
from myrmidon.wire.live import Change, Frame, LiveQuery, LogLength

ROUTES = Routes()

FRAME_S = 0.5
"""The time between two frames."""
MAX_BATCHES = 16
"""Of one frame."""
MAX_BEHIND = 20_000
"""A client that is further behind is told to read everything again."""
MAX_ITEMS = 500
"""Tasks, jobs or bots of one frame."""
LOGS_S = 0.5
BOTS_S = 1.0
"""The time between two reads of logs and bots without a notification: other servers do not notify this one of them."""
_encode = json.Encoder().encode
_ALL = ("tasks", "jobs", "bots")


class Topics(Struct):
    """What a stream is about. Topics that do not exist, or that the caller may not see, are in ``unknown``."""

    all: set[str] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    bots: set[str] = field(default_factory=set)
    logs: set[tuple[int, int]] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    @property
    def wants_bots(self) -> bool:
        return "bots" in self.all or bool(self.bots)


@ROUTES.add(
    "GET",
    "/api/v1/stream",
    READERS,
    "Stream what has changed, by topics",
    query=LiveQuery,
    media="text/event-stream",
    waits=True,
    streams_events=True,
)
async def stream(context: ServerContext, call: Call) -> Answer:
    """Stream frames: server-sent events ``frame``; ``reset`` if the client has missed too much."""
    query: LiveQuery = call.query
    topics = await _read_topics(context, call, query.topic)
    last_id = call.headers.get("last-event-id", "")
    newest = await context.events.newest()
    position = int(last_id) if last_id.isdecimal() and len(last_id) < 19 else query.after
    live = LiveStream(context, topics, await context.groups.scope_of(call), visible_pools(context, call.who))
    live.begin(newest if position is None else position, newest)
    return Answer(headers={"content-type": "text/event-stream"}, body=live.frames())


async def _read_topics(context: ServerContext, call: Call, names: Iterable[str]) -> Topics:
    topics = Topics()
    for name in dict.fromkeys(names):
        kind, colon, which = name.partition(":")
        if name in _ALL:
            topics.all.add(name)
        elif not colon or kind not in ("task", "job", "bot", "log"):
            allowed = "tasks, jobs, bots, task:ID, job:ID, bot:ID or log:RUN"
            raise InvalidRequest([Problem("topic", show_value(name), allowed, "choice")])
        else:
            try:
                await _add_topic(context, call, topics, kind, which)
            except NotFound:
                topics.unknown.append(name)
    return topics


async def _add_topic(context: ServerContext, call: Call, topics: Topics, kind: str, which: str) -> None:
    """Add one topic; NotFound if the caller cannot see its subject. Bots are compared by each frame."""
    if kind == "bot":
        topics.bots.add(which)
        return
    if kind == "job":
        topics.jobs.add((await get_job(context, call, which)).id)
        return
    task_id, run = parse_path_id(which)
    scope = await context.groups.scope_of(call)
    task = await context.db.read(partial(get_visible_task, task_id=task_id, scope=scope))
    if kind == "log":
        topics.logs.add((task_id, run or task.instance_id or task.run_number))
    else:
        topics.tasks.add(task_id)


class LiveStream:
    """The frames of one client."""

    def __init__(self, context: ServerContext, topics: Topics, scope: int | None, pools: PoolFilter | None) -> None:
        self._context = context
        self._topics = topics
        self._scope = scope
        self._pools = pools
        self._position = 0
        self._reset = False
        self._lengths: dict[tuple[int, int], tuple[int, int]] = {}
        self._bots_since: Micros = context.now()
        self._told_bots: set[tuple[str, Micros]] = set()
        self._changed_bots: set[str] = set()
        self._bots_read_at = 0.0

    def begin(self, position: int, newest: int) -> None:
        """Continue after a position. One beyond the newest event is from before the database was restored."""
        self._reset = position > newest or newest - position > MAX_BEHIND
        self._position = newest if self._reset else position

    async def frames(self) -> AsyncIterator[bytes]:
        """Frames as something changes, and a keep-alive whenever nothing was sent for KEEP_ALIVE_S."""
        hub, clock = self._context.hub, asyncio.get_running_loop().time
        hub.num_event_streams += 1
        try:
            yield b"id: %d\nevent: reset\ndata: {}\n\n" % self._position if self._reset else KEEP_ALIVE
            keep_alive_at = clock() + KEEP_ALIVE_S
            unknown = list(self._topics.unknown)
            while not hub.stopping:
                with hub.watch_updates(["events", *self._topics.logs]) as watch:
                    frame = await self._read_frame()
                    frame.unknown, unknown = unknown, []
                    if frame.is_empty:
                        await watch.wait(min(self._recheck_s(), keep_alive_at - clock()))
                if not frame.is_empty or clock() >= keep_alive_at:
                    yield KEEP_ALIVE if frame.is_empty else self._show(frame)
                    keep_alive_at = clock() + KEEP_ALIVE_S
                    await asyncio.sleep(FRAME_S)  # what happens meanwhile is in the next frame
        finally:
            hub.num_event_streams -= 1

    def _recheck_s(self) -> float:
        is_shared = self._context.db.engine.dialect is not Dialect.SQLITE
        if self._topics.logs and is_shared:
            return LOGS_S
        return BOTS_S if self._topics.wants_bots else KEEP_ALIVE_S

    def _show(self, frame: Frame) -> bytes:
        return b"id: %d\nevent: frame\ndata: %s\n\n" % (self._position, _encode(frame))

    async def _read_frame(self) -> Frame:
        frame = Frame(at=self._context.now())
        latest = await self._read_events(frame)
        for item in latest[:MAX_ITEMS]:
            (frame.tasks if item.is_of_task else frame.jobs).append(_show_change(item))
        frame.more |= len(latest) > MAX_ITEMS
        if self._topics.wants_bots:
            frame.bots = await self._read_bots(frame.at)
        if self._topics.logs:
            frame.logs = await self._context.logs.read(self._read_lengths)
        return frame

    async def _read_events(self, frame: Frame) -> list[StreamedEvent]:
        """The last new event of each task and job. If there are too many, the rest is skipped and the frame says so."""
        latest: dict[int, StreamedEvent] = {}
        for _ in range(MAX_BATCHES):
            batch = await self._context.events.after(self._position)
            if batch:
                self._position = batch[-1].event.position
            if self._topics.wants_bots:
                self._changed_bots.update(item.bot for item in batch if item.bot)
            latest |= {item.event.subject: item for item in batch if self._is_wanted(item)}
            if len(batch) < BATCH:
                return list(latest.values())
        self._position = await self._context.events.newest()
        frame.more = True
        return list(latest.values())

    def _is_wanted(self, item: StreamedEvent) -> bool:
        """Whether an event is about a topic, and the caller may see it."""
        topics, subject = self._topics, item.event.subject
        if self._scope not in (None, item.group):
            return False
        if not item.is_of_task:
            return "jobs" in topics.all or subject in topics.jobs
        return "tasks" in topics.all or subject in topics.tasks or item.job in topics.jobs

    async def _read_bots(self, now: Micros) -> list[str]:
        """The bots of the topics that have changed and that the caller may see."""
        clock = asyncio.get_running_loop().time()
        if clock - self._bots_read_at >= BOTS_S:
            self._bots_read_at = clock
            told = await self._context.db.read(partial(bot_event.since, at=self._bots_since - SECOND, n=MAX_ITEMS))
            self._changed_bots.update(bot_id for bot_id, at in told if (bot_id, at) not in self._told_bots)
            self._told_bots, self._bots_since = set(told), now
        changed, self._changed_bots = self._changed_bots, set()
        if "bots" not in self._topics.all:
            changed &= self._topics.bots
        return await self._context.db.read(partial(_visible_bots, changed=sorted(changed), pools=self._pools))

    def _read_lengths(self, tx: Tx) -> list[LogLength]:
        """The lengths of the logs that have grown."""
        grown = []
        for task_id, run in sorted(self._topics.logs):
            lengths = (log.info(tx, task_id, run, log.STDOUT).length, log.info(tx, task_id, run, log.STDERR).length)
            if self._lengths.get((task_id, run)) != lengths:
                self._lengths[task_id, run] = lengths
                grown.append(LogLength(run=show_run(task_id, run), stdout=lengths[0], stderr=lengths[1]))
        return grown


def _visible_bots(tx: Tx, changed: Sequence[str], pools: PoolFilter | None) -> list[str]:
    return listings.visible_bots(tx, changed[:MAX_ITEMS], pools) if changed else []


def _show_change(item: StreamedEvent) -> Change:
    event = item.event
    return Change(id=show_task(event.subject), seq=event.seq, state=event.state, at=event.at, about=item.about)
