"""The thread that runs functions: gives runs to processes, and ends what must end.

One loop for all slots, without a thread per run: a short function costs the bot a message in each direction and a line
in the journal. Answers that come together are recorded and reported together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from myrmidon.bot.run.run_queue import MAX_TASKS, RunQueue
from myrmidon.bot.slots import records
from myrmidon.bot.slots.answer_reader import AnswerReader
from myrmidon.bot.slots.environments import Environments
from myrmidon.bot.slots.executor_process import ExecutorProcess
from myrmidon.bot.slots.function_run import FunctionRun, StatsTable
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.run_files import RunFiles, Transfers
from myrmidon.bot.slots.run_frames import run_frame
from myrmidon.bot.slots.run_watch import RunWatch
from myrmidon.bot.slots.slot_pool import IDLE_S, Slot, SlotPool
from myrmidon.bot.slots.value_cache import name_of
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, filesystem, processes

TICK_S = 0.1
_ENDING_TICK_S = 0.005
_IDLE_TICK_S = 5.0
_UNKILLABLE_AFTER_S = 60.0
_CLOSE_S = 5.0
_MAX_ATTEMPTS = 3

log = logging.getLogger("myrmidon.bot")


class SlotLoop(threading.Thread):
    """``fetching``: runs whose files are fetched. ``ready``: runs that wait for a slot. ``storing``: runs whose results
    are stored. ``done``: runs that have ended, with their records, to be delivered.

    ``stats``: what is known of each function. ``usd_per_s``: the price of this machine. ``server_unreachable``: the
    server takes no output now. ``on_results``: called when the server must be told something; ``on_output``: when a
    function that takes long has written something. ``on_success``: called
    when a function has ended without an error. ``has_news``: the session thread must look at the functions now, even
    if it waits at the server. ``orphans``: processes that were killed and are to be reaped.
    """

    def __init__(
        self,
        run_queue: RunQueue,
        launcher: Launcher,
        transfers: Transfers,
        environments: Environments,
        *,
        journal: ResultJournal,
        spool: LogSpool,
        server: str,
        bot_id: str,
        report_error: Callable[[str], None],
    ) -> None:
        super().__init__(name="functions", daemon=True)
        self.run_queue = run_queue
        self.lane = run_queue.lane
        self.launcher = launcher
        self.journal = journal
        self.spool = spool
        self.server = server
        self.bot_id = bot_id
        self.report_error = report_error
        self.files = RunFiles(launcher.shared, transfers, environments, self.wake)
        self.files.used_code = self._used_code
        self.pool = SlotPool(self.lane.slots)
        self.watch = RunWatch(self)
        self.answers = AnswerReader(self)
        self.ready: deque[FunctionRun] = deque()
        self.fetching: dict[str, FunctionRun] = {}
        self.storing: dict[str, FunctionRun] = {}
        self.done: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        self.stats = StatsTable()
        self.orphans: set[int] = set()
        self.count = 0
        self.next_tick = 0.0
        self.oom_kills = 0
        self.closing = False
        self.has_news = False
        self.usd_per_s: Callable[[], float] = lambda: 0.0
        self.server_unreachable: Callable[[], bool] = lambda: False
        self.on_results: Callable[[], None] = lambda: None
        self.on_output: Callable[[], None] = lambda: None
        self.on_success: Callable[[], None] = lambda: None
        self.wake_reader, self.wake_writer = os.pipe()
        os.set_blocking(self.wake_reader, False)
        os.set_blocking(self.wake_writer, False)
        self.poll = select.poll()
        self.poll.register(self.wake_reader, select.POLLIN)
        self.lane.wake = self.wake

    def wake(self) -> None:
        """Make the loop look for new runs and orders. Called by other threads."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_writer, b".")

    # ---------------------------------------------------------------- the loop

    def run(self) -> None:
        self.oom_kills = records.oom_kills()
        while not self.closing:
            try:
                self._step()
            except Exception as error:
                log.exception("the functions of this bot failed")
                self.report_error(f"the functions of this bot failed: {error!r}")
                self._end_all(f"the bot failed: {error!r}")

    def close(self) -> None:
        """End the thread and all its processes."""
        self.closing = True
        self.wake()
        if self.is_alive():
            self.join(_CLOSE_S)
        for _, executor in self.pool.executors():
            processes.kill_tree(executor.pid)

    def _step(self) -> None:
        self._take()
        self._take_fetched()
        self._dispatch()
        for reader, _ in self.poll.poll(self._timeout_s() * 1000):
            if reader == self.wake_reader:
                self._drain_wakeups()
            else:
                self.answers.receive(reader)
        now = clock.boottime()
        if now >= self.next_tick:
            self.next_tick = now + TICK_S
            self.watch.check(now)
        self._take_stored()
        self._bury(now)
        self._deliver()

    def _timeout_s(self) -> float:
        if self.done:
            return 0.0
        executors = [executor for _, executor in self.pool.executors()]
        if any(executor.ending for executor in executors):
            return _ENDING_TICK_S
        environments = self.files.environments
        if self.ready or self.fetching or self.storing or self.lane.busy or environments.builds:
            return TICK_S
        return _IDLE_TICK_S if executors or environments.held else 3600.0

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_reader, 4096)
        self.watch.carry_out(*self.lane.take_orders(), clock.boottime())

    # ---------------------------------------------------------------- runs on their way to a process

    def _take(self) -> None:
        if not self.lane.queue:
            return
        tasks, expired = self.lane.take(MAX_TASKS)
        if expired:
            self.run_queue.return_tasks(expired)
        for task in tasks:
            try:
                self._take_one(task)
            except Exception as error:
                log.exception("run %s could not be taken", task["run"])
                report = records.fault_report(task, "bot_error", f"the bot failed to prepare the function: {error!r}")
                self.done.append((task, {"report": report, "logs": []}))

    def _take_one(self, task: dict[str, Any]) -> None:
        self.count += 1
        run = FunctionRun(self.count, task, self.stats.of(task["function"]))
        if task.get("problem"):
            self.end(run, records.fault(run, "client_error", task["problem"]))
        elif self.files.prepare(run):
            self.ready.append(run)
        else:
            run.begun = clock.boottime()
            self.fetching[run.run] = run

    def _take_fetched(self) -> None:
        """Go on with the runs whose files have come, and whose environments are built."""
        if self.files.environments.move_output(self.fetching.values(), self.spool):
            self.on_output()
        while self.files.fetched:
            run, problem = self.files.fetched.popleft()
            if self.fetching.pop(run.run, None) is None:
                self.files.release(run)  # it was returned meanwhile
            elif problem is None:
                self.ready.append(run)
            else:
                self.end(run, records.problem(run, 0.0, problem))

    def _used_code(self) -> set[str]:
        return {executor.key.code for _, executor in self.pool.executors()} | {run.key.code for run in self.ready}

    def keep_environments(self) -> None:
        """Let go of environments that neither a process nor a run needs."""
        runs = (*self.ready, *self.fetching.values())
        used = {executor.key for _, executor in self.pool.executors()} | {run.key for run in runs}
        self.files.environments.keep(used)

    def _dispatch(self) -> None:
        """Give runs to slots as long as there are both."""
        ready, pool = self.ready, self.pool
        if not ready:
            slot = pool.overfull()
            if slot is None:
                return
            ready.extend(pool.take_back(slot, clock.boottime()))
        while ready:
            slot = pool.choose(ready[0])
            if slot is None or not self._give(ready[0], slot):
                break
            ready.popleft()
        self.lane.busy = pool.busy()

    def _give(self, run: FunctionRun, slot: Slot) -> bool:
        """Give a run to a slot; False if it must wait. A run for which no process can be started ends here."""
        try:
            executor = self._executor_for(run, slot)
            frame = run_frame(
                run,
                executor,
                lambda digest: self.files.values.path(name_of(run.key.group, digest)),
                server=self.server,
                bot_id=self.bot_id,
                give=self.launcher.give,
            )
        except Exception as error:
            log.exception("run %s could not be given to a process", run.run)
            kind = "disk_full" if filesystem.disk_is_full(error) else "bot_error"
            self.end(run, records.fault(run, kind, f"the bot could not run the function: {error}"))
            return True
        now = clock.boottime()
        if not executor.give(run, frame, now):
            if not executor.pending:
                run.attempts += 1
                executor.kill("deaf", now)
            if run.attempts >= _MAX_ATTEMPTS:
                self.end(run, records.fault(run, "bot_error", "the process for the function does not read its pipe"))
                return True
            return False
        slot.active = executor
        return True

    def _executor_for(self, run: FunctionRun, slot: Slot) -> ExecutorProcess:
        """The process of a slot for this run, started if need be. Raises OSError."""
        executor = slot.use(run.key)
        if executor is not None and executor.pending:
            return executor
        now = clock.boottime()
        if executor is not None:
            if not (executor.ending or self.launcher.is_outdated(executor) or self.watch.is_bloated(executor, run)):
                return executor
            self.pool.retire(slot, executor, now)
        for unused in slot.unused():
            self.pool.retire(slot, unused, now)
        runtime = self.files.environments.runtime(run.key)
        code, values = self.files.codes.path(run.key.code), self.files.values.make_folder(run.key.group)
        executor = self.launcher.start(run.key, code, values, runtime)
        slot.executors[run.key] = executor
        self.answers.register(slot, executor)
        return executor

    # ---------------------------------------------------------------- the end of runs and of processes

    def _take_stored(self) -> None:
        """Report the runs whose results are stored."""
        while self.files.stored:
            run, record, problem = self.files.stored.popleft()
            if self.storing.pop(run.run, None) is not None:
                duration = record["report"]["duration"]
                self.end(run, record if problem is None else records.problem(run, duration, problem))

    def end(self, run: FunctionRun, record: dict[str, Any] | None) -> None:
        """Note that a run has ended; None if it is no longer this bot's."""
        self.files.release(run)
        if record is None:
            self.spool.remove(run.run)
        elif record["report"]["type"] == "finish":
            price = self.usd_per_s()
            if price:
                record["report"]["cost_usd"] = record["report"]["duration"] * price / self.lane.slots
        self.done.append((run.task, record))

    def _deliver(self) -> None:
        self.lane.busy, self.lane.storing = self.pool.busy(), len(self.storing)
        spent = self.answers.take_spent()
        if spent:
            self.lane.note_durations(len(spent), sum(spent))
        done, self.done = self.done, []
        if done:
            self.journal.add_all([record for _, record in done if record is not None])
            self.run_queue.finish_functions(done)
        if done or self.has_news:
            self.has_news = False
            self.on_results()

    def _bury(self, now: float) -> None:
        """Remove processes that have ended, and give the runs that waited behind the last one to others."""
        for slot, executor in self.pool.executors():
            if not executor.ending:
                continue
            status = executor.exit_status()
            if status is not None:
                self.answers.receive(executor.channel.reader)
                self._remove(slot, executor, status, now)
            elif executor.ending == "closed" and now - executor.ending_at > TICK_S:
                executor.kill("closed", now)
            elif now - executor.ending_at > _UNKILLABLE_AFTER_S:
                self.report_error(f"process {executor.pid} with functions cannot be killed")
                self._remove(slot, executor, None, now)
        self.orphans = {pid for pid in self.orphans if not processes.has_ended(pid)}

    def _remove(self, slot: Slot, executor: ExecutorProcess, status: int | None, now: float) -> None:
        self.pool.remove(slot, executor)
        self.answers.unregister(executor)
        runs = list(executor.pending)
        executor.pending.clear()
        if runs and self._has_died_of(executor, runs[0]):
            first = runs.pop(0)
            self.watch.store_last_output(executor, first)
            self.end(first, self.watch.record_of_death(executor, first, status, now))
        self.ready.extendleft(reversed(runs))
        if status is not None:
            self.orphans |= self.launcher.clean_up(executor)

    def _has_died_of(self, executor: ExecutorProcess, run: FunctionRun) -> bool:
        """Whether the end of a process is the end of its first run. One that has not begun gets another process."""
        if executor.current is run or run.end_reason or not executor.is_ready:
            return True
        run.attempts += 1
        return run.attempts >= _MAX_ATTEMPTS

    def end_idle(self, now: float) -> None:
        """End processes that were not used for long."""
        for _, executor in self.pool.executors():
            if not executor.pending and not executor.ending and now - executor.used_at > IDLE_S and executor.used_at:
                executor.kill("unused", now)

    def _end_all(self, message: str) -> None:
        """End all runs and processes after an error of the bot itself. Runs whose results are being stored go on."""
        now = clock.boottime()
        runs = [*self.ready, *self.fetching.values()]
        self.ready.clear()
        self.fetching.clear()
        for slot, executor in self.pool.executors():
            runs += executor.pending
            executor.pending.clear()
            executor.current = None
            slot.active = None
            executor.kill("failed", now)
        for run in runs:
            self.files.release(run)
        kept = {task["run"] for task, _ in self.done} | set(self.storing)
        for task in [task for run, task in self.lane.taken.items() if run not in kept]:
            self.spool.remove(task["run"])
            report = records.fault_report(task, "bot_error", message)
            self.done.append((task, {"report": report, "logs": []}))
