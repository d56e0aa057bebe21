"""Runs the periodic jobs of a server: maintenance, heartbeats, its slot, events of others, releases, configuration.

Relays, which deliver events to sinks outside, run beside them. Each job runs at its own interval, or again at once if
it returns true: then more is to be done. A job that fails is logged and runs again, because an unavailable database
comes back. Only the loss of the server's slot ends all jobs, and
the server with them: without the slot, ids that it creates could collide with those of another server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from myrmidon.model.errors import MyrmidonError, StoreError
from myrmidon.model.ids import Micros
from myrmidon.model.task_to_run import READS_SHARED
from myrmidon.scheduler import servers
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.background import activity, relays
from myrmidon.server.background.file_collection import FileCollection
from myrmidon.server.background.maintenance import MaintenanceRunner
from myrmidon.server.background.queue_lookup import QueueLookup
from myrmidon.server.botapi.bot_snapshot import heartbeat_write_interval
from myrmidon.server.context import ServerContext
from myrmidon.server.database import Purpose, purpose
from myrmidon.server.fleet import cache_hints, rollout
from myrmidon.server.fleet.config_sync import ConfigFolderWatcher
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, outbox, task_queues, task_to_run
from myrmidon.store.tables.outbox import Event
from myrmidon.store.tables.shared_value import localities_of_tasks

log = structlog.get_logger("background")

EVENTS_S = 0.25
AWAITED_EVENTS_S = 0.04
"""The same while clients wait for results here: bots may report to other servers."""
ALIVE_S = 5.0
"""A small part of the gap that counts as an outage."""
MAINTENANCE_S = 0.5
"""Between two looks for chunked work. What time has made due is looked for every ``sweep_s``."""
BOT_CHANGES_S = 1.0
SLOT_S = 10.0
SKEW_S = 60.0
RELEASE_S = 2.0
CONFIG_S = 2.0
CACHE_SIZES_S = 600.0
DIMENSIONS_S = 300.0
UNUSED_FILES_S = 300.0
BATCH = 1000
HEARTBEAT_BATCH = 500
_OVERLAP: Micros = 5 * SECOND
"""Each query for changed bots begins this long before the previous one, because the clocks of servers differ."""
_MAY_BE_QUEUED = frozenset({"READY", "RUNNING"})
"""The states of tasks that may have a row in task_to_run; a task that runs may have one for a further instance."""
_FINAL_WRITE_S = 2.0


async def run(context: ServerContext) -> None:
    """Run all jobs until the slot is lost or the task is cancelled; then write the heartbeats a last time."""
    purpose.set(Purpose.BACKGROUND)
    work = BackgroundWork(context)
    await work.start()
    try:
        await work.run_jobs()
    finally:
        with suppress(MyrmidonError, TimeoutError):
            async with asyncio.timeout(_FINAL_WRITE_S):
                await work.write_heartbeats(everyone=True)


class BackgroundWork:
    """The periodic jobs of one server, and their state between runs."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._folder = ConfigFolderWatcher(context)
        self._position = 0
        """The position of the last event that was published here."""
        self._events_due_at = 0.0
        """When events are looked for if no client waits for results, by the monotonic clock."""
        self._changes_since: Micros = context.now()
        self._known_changes: set[tuple[str, Micros]] = set()
        self._queues = QueueLookup(context)
        self.maintenance = MaintenanceRunner(context, self._queues)

    async def start(self) -> None:
        """Load what must be known before the first bot connects; retries until the database is available."""
        self._context.hub.on_new_queue = self._queues.on_new_queue
        while True:
            try:
                self._position = await self._context.db.read(outbox.newest)
                await self._folder.start()
                await rollout.offer_zip(self._context)
                await cache_hints.load(self._context)
                await self.maintenance.record_alive()  # a gap before the start must be known to the first round
            except StoreError as error:
                log.warning("database unavailable at start; retrying", code=error.code, error=error.message)
                await asyncio.sleep(1.0)
            else:
                self._context.state.ready = True
                return

    async def run_jobs(self) -> None:
        """Run the jobs, each at its interval; returns when the slot is lost."""
        context = self._context
        jobs: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
            "alive": (ALIVE_S, self.maintenance.record_alive),
            "maintenance": (min(MAINTENANCE_S, context.settings.sweep_s), self.maintenance.run),
            "heartbeats": (heartbeat_write_interval(context) / SECOND / 4, self.write_heartbeats),
            "events": (AWAITED_EVENTS_S, self.look_for_events),
            "bot_changes": (BOT_CHANGES_S, self.recheck_changed_bots),
            "clock_skew": (SKEW_S, self.check_skew),
            "releases": (RELEASE_S, partial(rollout.refresh, context)),
            "config": (CONFIG_S, self._folder.poll),
            "cache_sizes": (CACHE_SIZES_S, partial(cache_hints.update, context)),
            "dimensions": (DIMENSIONS_S, self.count_dimensions),
            "unused_files": (UNUSED_FILES_S, FileCollection(context).run),
            "activity": (activity.INTERVAL_S, partial(activity.count_activity, context)),
        }
        async with asyncio.TaskGroup() as group:
            wakes = {"maintenance": context.more_chunked_work}
            running = [
                group.create_task(_repeat(name, *job, wake=wakes.get(name)), name=name) for name, job in jobs.items()
            ]
            running += [group.create_task(relay, name="relay") for relay in relays.start(context)]
            await self._keep_slot()
            for task in running:
                task.cancel()

    async def count_dimensions(self) -> None:
        """Update the stored counts of bots by dimension, if they have changed."""
        context = self._context
        if await context.db.read(task_queues.count_dimensions) != await context.db.read(task_queues.read_aggregation):
            await context.db.write(task_queues.refresh_aggregation)

    # -- other servers

    async def _keep_slot(self) -> None:
        """Renew the slot of this server; returns when another server has taken it."""
        context = self._context
        while True:
            try:
                kept = await context.db.write(lambda tx: servers.renew(tx, context.server, now=context.now()))
            except StoreError as error:
                log.warning("server slot renewal failed; retrying", code=error.code, error=error.message)
            else:
                if not kept:
                    context.state.enrolled = False
                    log.error("server slot taken by another server; stopping", slot=context.server.slot)
                    return
            await asyncio.sleep(SLOT_S)

    async def check_skew(self) -> None:
        """Compare the clocks, so that this server's time follows them; log an error if they differ too much."""
        skew = await self._context.measure_skew()
        if abs(skew) > self._context.rules.max_skew:
            log.error("clocks disagree", skew_s=skew / SECOND)

    async def look_for_events(self) -> bool:
        """Follow events, every EVENTS_S or as often as this is called while clients wait for results."""
        now = time.monotonic()
        if now < self._events_due_at and not any(stream.tasks for stream in self._context.hub.result_streams.values()):
            return False
        more = await self.follow_events()
        self._events_due_at = now + (0.0 if more else EVENTS_S)
        return more

    async def follow_events(self) -> bool:
        """Assign positions to new events, and publish events of other servers to waiting bots and callers here.

        True if there are more.

        SQLite has no other servers, and its events get positions at once: there only open event streams are notified.
        """
        context = self._context
        is_only_server = context.db.engine.dialect is Dialect.SQLITE
        if is_only_server and not context.hub.num_event_streams:
            return False
        num_assigned = 0
        if not await context.db.read(outbox.all_have_positions):
            num_assigned = await context.db.write(lambda tx: outbox.assign_positions(tx, BATCH))
        events = await context.db.read(partial(outbox.after, position=self._position, n=BATCH))
        if not events:
            return False
        if not is_only_server:
            await self._publish(events)
        self._position = events[-1].position
        context.hub.notify("events")
        return BATCH in (num_assigned, len(events))

    async def _publish(self, events: list[Event]) -> None:
        """Publish events as if they were committed here. This server's own events are among them."""
        context = self._context
        queued = {event.subject for event in events if event.kind == outbox.TASK and event.state in _MAY_BE_QUEUED}
        found = await context.db.read(partial(_read_queued, task_ids=sorted(queued))) if queued else ({}, {})
        enqueued, localities = found
        rows = [(e.subject, e.seq, e.at, e.kind, e.state, e.body) for e in events]
        context.hub.notify_commit(CommitEffects(enqueued, rows, localities))

    async def recheck_changed_bots(self) -> None:
        """Recheck bots that were quarantined, drained, released or told to terminate, also through other servers."""
        context, since = self._context, self._changes_since - _OVERLAP
        now = context.now()
        changes = set(await context.db.read(partial(bot_event.changed, since=since, n=BATCH)))
        for bot_id, _ in changes - self._known_changes:
            context.hub.recheck(bot_id)
        self._known_changes = changes
        self._changes_since = now

    # -- bots

    async def write_heartbeats(self, *, everyone: bool = False) -> int:
        """Write the heartbeats of the bots whose polls are held here, and drop bots that were silent for long.

        Only a bot whose poll is held is known to be alive now. An earlier time is never written: another server may
        have written a later one since.
        """
        context, now = self._context, self._context.now()
        written_before = now - (0 if everyone else heartbeat_write_interval(context))
        due = [
            bot
            for bot in context.hub.bots.values()
            if bot.future is not None and not bot.future.done() and bot.flushed_at <= written_before
        ]
        for start in range(0, len(due), HEARTBEAT_BATCH):
            batch = due[start : start + HEARTBEAT_BATCH]
            heartbeats = [(bot.bot_id, bot.session, now) for bot in batch]
            ended = await context.db.write(partial(bots.heartbeat_many, beats=heartbeats), size=len(batch))
            for bot_id in ended:  # another server took it for dead, for example while this one was frozen
                context.hub.recheck(bot_id)
            for bot in batch:
                bot.flushed_at = now
        self._forget_silent(now)
        return len(due)

    def _forget_silent(self, now: Micros) -> None:
        hub, silent_since = self._context.hub, now - 2 * self._context.rules.dead_after
        silent = [bot.bot_id for bot in hub.bots.values() if bot.future is None and bot.seen_at < silent_since]
        for bot_id in silent:
            hub.forget(bot_id)


def _read_queued(tx: Tx, task_ids: list[int]) -> tuple[dict[int, int], dict[int, tuple[int, frozenset[str]]]]:
    """The fields ``enqueued`` and ``localities`` of the effects of tasks that may be queued.

    Tasks that were claimed meanwhile are in no queue any more and wake no bot.
    """
    rows = task_to_run.queues_of(tx, task_ids)
    readers = {task_id: queue for task_id, queue, shared in rows if shared & READS_SHARED}
    return Counter(queue for _, queue, _ in rows), localities_of_tasks(tx, readers) if readers else {}


async def _repeat(
    name: str, interval_s: float, job: Callable[[], Awaitable[object]], *, wake: asyncio.Event | None = None
) -> None:
    """Run a job for ever. The random first delay keeps servers from running it at the same moment.

    ``wake`` ends the pause between two runs.
    """
    await asyncio.sleep(random.uniform(0, interval_s))  # noqa: S311 - not a secret
    while True:
        more = None
        try:
            more = await job()
        except MyrmidonError as error:
            log.warning("background job failed", job=name, code=error.code, error=error.message)
        except Exception:  # a bug in one job must stop neither this job nor the others
            log.exception("background job failed", job=name)
        if more is True:
            continue
        if wake is None:
            await asyncio.sleep(interval_s)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wake.wait()
        wake.clear()
