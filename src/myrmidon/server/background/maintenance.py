"""Runs the maintenance of scheduler/maintenance.py in rounds, and tells those who wait what it has changed.

A round ends when nothing is due or after ROUND_S; then the next one begins at once. The heartbeat of the service is
written beside the rounds, because leases are only worth something while it is.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog

from myrmidon.model.ids import Micros
from myrmidon.scheduler.maintenance import Maintenance, Step
from myrmidon.scheduler.outages import record_alive, retention_waits_until
from myrmidon.scheduler.policy import SECOND, may_sweep
from myrmidon.server.background.queue_lookup import QueueLookup
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_to_run

log = structlog.get_logger("background")

ROUND_S = 1.0
"""How long a round goes on at most, apart from its last step."""


class MaintenanceRunner:
    """The rounds of one server, and what is kept between them."""

    def __init__(self, context: ServerContext, queues: QueueLookup) -> None:
        self._context = context
        self._queues = queues
        self._maintenance = Maintenance(
            context.db.background,
            lambda: context.now(),  # noqa: PLW0108 - tests replace it
            context.ids,
            context.rules,
            context.logs.background,
        )
        self._next_timed = 0.0
        """When the next round looks for what time has made due, by the monotonic clock."""
        self._clocks_agree = True

    async def record_alive(self) -> None:
        """Write the heartbeat of the service, unless the clocks disagree; note whether old rows may be deleted."""
        waits_until = await self._context.db.run_in_thread(self._record_alive)
        state = self._context.state
        if waits_until is not None and waits_until != state.retention_waits_until:
            wait_s = (waits_until - self._context.now()) / SECOND
            log.warning("time has jumped or the service was away; nothing old is deleted for a while", wait_s=wait_s)
        elif waits_until is None and state.retention_waits_until is not None:
            log.info("deletion by retention continues")
        state.retention_waits_until = waits_until

    def _record_alive(self) -> Micros | None:
        context, db = self._context, self._context.db.background
        if not may_sweep(context.now(), db.clock(), context.rules):
            return context.state.retention_waits_until

        def write(tx: Tx) -> Micros | None:
            now = context.now()
            record_alive(tx, now, context.rules)
            return retention_waits_until(tx, now, context.rules)

        return db.write(write, patient=False)

    async def run(self, *, timed: bool | None = None) -> bool:
        """One round; True if something is left. What time has made due is looked for every ``sweep_s``, or if told."""
        context = self._context
        if timed is None:
            timed = time.monotonic() >= self._next_timed
        loop = asyncio.get_running_loop()
        more = await context.db.run_in_thread(partial(self._run, loop, timed=timed))
        if timed:
            if not more:
                self._next_timed = time.monotonic() + context.settings.sweep_s
            await self._report_clocks()
            await self._queues.add_missed()
            await self._wake_waiting()
        return more

    def _run(self, loop: asyncio.AbstractEventLoop, *, timed: bool) -> bool:
        """Do steps until nothing is due or time is up; runs on a thread."""
        began = ended = time.perf_counter()
        for step in self._maintenance.steps(timed=timed):
            before, ended = ended, time.perf_counter()
            loop.call_soon_threadsafe(self._publish, step, ended - before)
            if ended - began > ROUND_S:
                return True
        return False

    def _publish(self, step: Step, seconds: float) -> None:
        """Record a committed step, and tell those who wait for tasks and jobs."""
        context = self._context
        context.metrics.maintained(step, seconds)
        if step.n:
            context.state.maintained_at[step.kind] = context.now()
        if step.error is not None:
            log.error("maintenance step failed", kind=step.kind, exc_info=step.error)
        context.db.publish(step.effects)

    async def _report_clocks(self) -> None:
        """Log when the clocks begin to disagree, and when they agree again."""
        agree = self._maintenance.clocks_agree
        if agree and not self._clocks_agree:
            log.info("clocks agree again; sweeping")
        elif self._clocks_agree and not agree:
            skew = await self._context.measure_skew()
            log.error("clocks disagree; nothing expires until they agree", skew_s=skew / SECOND)
        self._clocks_agree = agree

    async def _wake_waiting(self) -> None:
        """Wake bots whose queues are not empty, in case their notification was lost."""
        hub = self._context.hub
        queues = hub.queues_waited_for()
        if queues:
            for queue in await self._context.db.read(lambda tx: task_to_run.not_empty(tx, queues)):
                hub.wake(queue, hub.num_waiting_for(queue))
