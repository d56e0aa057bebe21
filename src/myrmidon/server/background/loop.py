"""What a server does by itself: sweep, keep its slot, follow the events of other servers, write down who is alive.

Each part runs again and again, and one that fails says so in the log and goes on: a database that is away comes
back. Only a lost slot ends the service, and the server with it: ids made without one could be another server's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from myrmidon.model.errors import MyrmidonError, StoreError
from myrmidon.model.ids import Micros
from myrmidon.scheduler import chunked_work, servers, sweep, tag_counts
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.sweep import SweepResult
from myrmidon.server.botapi.bot_snapshot import heartbeat_write_interval
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import cache_hints, rollout
from myrmidon.server.fleet.config_sync import ConfigFolderWatcher
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, outbox, task_queues, task_to_run
from myrmidon.store.tables.outbox import Event

log = structlog.get_logger("service")

EVENTS_S = 0.25
CHUNKED_WORK_S = 0.5
BOT_CHANGES_S = 1.0
SLOT_S = 10.0
SKEW_S = 60.0
RELEASE_S = 2.0
CONFIG_S = 2.0
CACHE_SIZES_S = 600.0
DIMENSIONS_S = 300.0
TAG_COUNTS_S = 5.0
BATCH = 1000
HEARTBEAT_BATCH = 500
_OVERLAP: Micros = 5 * SECOND
"""Clocks of servers differ: changes of bots are looked for a little further back than the last look."""
_FINAL_WRITE_S = 2.0


async def run(context: ServerContext) -> None:
    """Everything, until the slot is lost or the task is cancelled."""
    service = BackgroundWork(context)
    await service.start()
    try:
        await service.run_jobs()
    finally:
        with suppress(MyrmidonError, TimeoutError):
            async with asyncio.timeout(_FINAL_WRITE_S):
                await service.write_heartbeats(everyone=True)


class BackgroundWork:
    """The parts, and what they remember from one time to the next."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._folder = ConfigFolderWatcher(context)
        self._position = 0
        self._changes_since: Micros = context.now()
        self._known_changes: set[tuple[str, Micros]] = set()
        self._learning: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tallies_are_true = False

    async def start(self) -> None:
        """What must be known before the first bot comes. A database that is away is waited for."""
        self._context.hub.on_new_queue = self.on_new_queue
        while True:
            try:
                self._position = await self._context.db.read(outbox.newest)
                await self._folder.start()
                await rollout.offer_zip(self._context)
                await cache_hints.load(self._context)
            except StoreError as error:
                log.warning("the database is away", code=error.code)
                await asyncio.sleep(1.0)
            else:
                self._context.state.ready = True
                return

    async def run_jobs(self) -> None:
        context = self._context
        parts: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
            "sweep": (context.settings.sweep_s, self.sweep),
            "carry": (CHUNKED_WORK_S, self.run_chunked_work),
            "beats": (heartbeat_write_interval(context) / SECOND / 4, self.write_heartbeats),
            "tail": (EVENTS_S, self.follow_events),
            "changes": (BOT_CHANGES_S, self.recheck_changed_bots),
            "skew": (SKEW_S, self.check_skew),
            "release": (RELEASE_S, partial(rollout.refresh, context)),
            "folder": (CONFIG_S, self._folder.poll),
            "hints": (CACHE_SIZES_S, partial(cache_hints.update, context)),
            "aggregate": (DIMENSIONS_S, self.count_dimensions),
            "tallies": (TAG_COUNTS_S, self.check_tag_counts),
        }
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_repeat(name, *part), name=name) for name, part in parts.items()]
            await self._keep_slot()
            for task in running:
                task.cancel()

    # -- time

    async def sweep(self) -> SweepResult | None:
        """What time has brought about; then a look at the queues for which bots wait, in case a wake was lost."""
        context, now = self._context, self._context.now()
        done = await context.db.run_in_thread(
            lambda: sweep.sweep(
                context.db.engine, now=now, ids=context.ids, rules=context.rules, log_db=context.logs.engine
            )
        )
        if done is not None:
            self._count(done)
        if done is None:
            log.error(
                "this machine's clock differs from the database's: nothing is swept",
                skew_s=context.state.clock_skew / SECOND,
            )
        elif done.slices or done.runs or done.bots or done.tasks or done.jobs or done.chunks:
            for queue in done.woken:
                context.hub.notify_work(queue, BATCH)
            context.hub.recheck_all()
        await self.wake_waiting()
        return done

    def _count(self, done: SweepResult) -> None:
        metrics = self._context.metrics
        for end, late in done.late:
            metrics.wait_expired(end, late / SECOND)
        for why, silent in done.lost:
            metrics.run_lost(why, silent / SECOND)
        if done.no_resource:
            metrics.no_resource(done.no_resource)

    async def wake_waiting(self) -> None:
        """Wake the bots that wait though there is work for them."""
        hub = self._context.hub
        queues = hub.queues_waited_for()
        if queues:
            for queue in await self._context.db.read(lambda tx: task_to_run.not_empty(tx, queues)):
                hub.wake(queue, hub.num_waiting_for(queue))

    async def run_chunked_work(self) -> None:
        """The consequences of decisions that were too wide for one transaction."""
        context = self._context
        if not await context.db.read(partial(chunked_work.pending, n=1)):
            return
        gone: list[int] = []
        noted = sweep.PassEffects()
        woken = noted.queues
        now = context.now()
        await context.db.run_in_thread(
            lambda: sweep.run_chunked_work(
                context.db.engine, now=now, ids=context.ids, rules=context.rules, deleted=gone, woken=woken, effects=noted
            )
        )
        if noted.no_resource:
            context.metrics.no_resource(noted.no_resource)
        if gone:
            await context.db.run_in_thread(lambda: sweep.drop_logs(context.db.engine, context.logs.engine, gone))
        for queue in woken:
            context.hub.notify_work(queue, BATCH)
        context.hub.recheck_all()

    async def count_dimensions(self) -> None:
        """Count which dimensions the fleet has, for those who look for bots."""
        context = self._context
        if await context.db.read(task_queues.count_dimensions) != await context.db.read(task_queues.read_aggregation):
            await context.db.write(task_queues.refresh_aggregation)

    async def check_tag_counts(self) -> None:
        """A server of before does not say when it changes what was tallied: it may be at work, or was just now."""
        context, now = self._context, self._context.now()
        alone = await context.db.read(partial(servers.all_servers_current, now=now, rules=context.rules))
        if not (alone and self._tallies_are_true):
            opened = await context.db.run_in_thread(partial(tag_counts.check_tag_counts, context.db.engine, now=now))
            if opened:
                log.info("an older server has changed tasks that were counted; they are counted anew", spans=opened)
        self._tallies_are_true = alone

    # -- the server among the others

    async def _keep_slot(self) -> None:
        """Returns when the slot is lost."""
        context = self._context
        while True:
            try:
                kept = await context.db.write(lambda tx: servers.renew(tx, context.server, now=context.now()))
            except StoreError as error:
                log.warning("cannot keep the slot", code=error.code)
            else:
                if not kept:
                    context.state.enrolled = False
                    log.error("the slot of this server was given to another one; it ends", slot=context.server.slot)
                    return
            await asyncio.sleep(SLOT_S)

    async def check_skew(self) -> None:
        skew = await self._context.measure_skew()
        if abs(skew) > self._context.rules.max_skew:
            log.error("this machine's clock differs from the database's", skew_s=skew / SECOND)

    async def follow_events(self) -> int:
        """Number new events and tell those who wait of what other servers have written.

        On SQLite there is no other server, and events have numbers already: only an open stream wants to hear of them.
        """
        context = self._context
        alone = context.db.engine.dialect is Dialect.SQLITE
        if alone and not context.hub.num_event_streams:
            return 0
        if not await context.db.read(outbox.all_have_positions):
            await context.db.write(lambda tx: outbox.assign_positions(tx, BATCH))
        found = await context.db.read(partial(outbox.after, position=self._position, n=BATCH))
        if not found:
            return 0
        self._position = found[-1].position
        if not alone:
            await self._tell_of_others(found)
        context.hub.notify("events")
        return len(found)

    async def _tell_of_others(self, found: list[Event]) -> None:
        """Our own events are among them; tasks that a bot has taken meanwhile wake nobody."""
        context = self._context
        ready = [event.subject for event in found if event.kind == outbox.TASK and event.state == "READY"]
        enqueued = await context.db.read(lambda tx: task_to_run.queues_of(tx, ready)) if ready else {}
        events = [(e.subject, e.seq, e.at, e.kind, e.state, e.body) for e in found]
        context.hub.notify_commit(CommitEffects(enqueued, events))

    async def recheck_changed_bots(self) -> None:
        """Bots that were put aside, let go on or told to end, here or through another server."""
        context, since = self._context, self._changes_since - _OVERLAP
        now = context.now()
        found = set(await context.db.read(partial(bot_event.changed, since=since, n=BATCH)))
        for bot_id, _ in found - self._known_changes:
            context.hub.recheck(bot_id)
        self._known_changes = found
        self._changes_since = now

    # -- bots

    async def write_heartbeats(self, *, everyone: bool = False) -> int:
        """Write down, together, the bots that wait here; forget those that were not seen for long.

        Only a bot whose poll is held is known to be alive now. A time that has passed is never written: the bot
        may have been heard by another server since.
        """
        context, now = self._context, self._context.now()
        old = now - (0 if everyone else heartbeat_write_interval(context))
        due = [
            bot
            for bot in context.hub.bots.values()
            if bot.future is not None and not bot.future.done() and bot.flushed_at <= old
        ]
        for start in range(0, len(due), HEARTBEAT_BATCH):
            some = due[start : start + HEARTBEAT_BATCH]
            beats = [(bot.bot_id, bot.session, now) for bot in some]
            await context.db.write(partial(_beat, beats=beats))
            for bot in some:
                bot.flushed_at = now
        self._forget_silent(now)
        return len(due)

    def _forget_silent(self, now: Micros) -> None:
        hub, silent = self._context.hub, now - 2 * self._context.rules.dead_after
        gone = [bot.bot_id for bot in hub.bots.values() if bot.future is None and bot.seen_at < silent]
        for bot_id in gone:
            hub.forget(bot_id)

    def on_new_queue(self, queue: int, n: int) -> None:
        """A queue has work for the first time: who of those that wait here serves it?"""
        known = self._learning.get(queue)
        self._learning[queue] = (known or 0) + n
        if known is None:
            task = asyncio.get_running_loop().create_task(self._learn(queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _learn(self, queue: int) -> None:
        context = self._context
        try:
            serving = await context.db.read(lambda tx: task_queues.bots_of_queue(tx, queue))
        except StoreError as error:
            log.warning("cannot see who serves a queue", code=error.code)
            self._learning.pop(queue)
            return
        context.hub.add_queue(queue, serving)
        context.hub.wake(queue, self._learning.pop(queue))


def _beat(tx: Tx, beats: list[tuple[str, int, Micros]]) -> None:
    bots.heartbeat_many(tx, beats)


async def _repeat(name: str, seconds: float, step: Callable[[], Awaitable[object]]) -> None:
    """Run a part for ever; not all servers at the same moment."""
    await asyncio.sleep(random.uniform(0, seconds))  # noqa: S311 - nothing secret about it
    while True:
        try:
            await step()
        except MyrmidonError as error:
            log.warning("part of the service failed", part=name, code=error.code, error=error.message)
        except Exception:  # the others must go on, and so must this one
            log.exception("part of the service failed", part=name)
        await asyncio.sleep(seconds)
