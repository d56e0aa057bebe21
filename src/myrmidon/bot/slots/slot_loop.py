"""The thread that runs functions: gives runs to processes, reads their answers, and ends what must end.

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
from myrmidon.bot.slots.executor_process import BrokenProtocol, ExecutorProcess
from myrmidon.bot.slots.function_run import FunctionRun, StatsTable
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.run_files import RunFiles, Transfers, inline_output
from myrmidon.bot.slots.run_frames import run_frame
from myrmidon.bot.slots.run_watch import RunWatch
from myrmidon.bot.slots.slot_pool import IDLE_S, Slot, SlotPool
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, filesystem, processes

TICK_S = 0.1
_ENDING_TICK_S = 0.005
_IDLE_TICK_S = 5.0
_UNKILLABLE_AFTER_S = 60.0
_CLOSE_S = 5.0
_KEEP_OUTPUT_BYTES = 1 << 20
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
        self.files = RunFiles(launcher.shared, transfers, self.wake)
        self.files.used_code = self._used_code
        self.pool = SlotPool(self.lane.slots)
        self.watch = RunWatch(self)
        self.ready: deque[FunctionRun] = deque()
        self.fetching: dict[str, FunctionRun] = {}
        self.storing: dict[str, FunctionRun] = {}
        self.done: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        self.spent: list[float] = []
        self.stats = StatsTable()
        self.orphans: set[int] = set()
        self.readers: dict[int, tuple[Slot, ExecutorProcess]] = {}
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
                self._give_up(f"the bot failed: {error!r}")

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
            elif reader in self.readers:
                self._receive(*self.readers[reader])
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
        if self.ready or self.fetching or self.lane.busy:
            return TICK_S
        return _IDLE_TICK_S if executors else 3600.0

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
        """Go on with the runs whose files have come."""
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

    def _dispatch(self) -> None:
        """Give runs to slots as long as there are both."""
        ready, pool = self.ready, self.pool
        if not ready:
            slot = pool.overfull()
            if slot is None:
                return
            ready.extend(pool.take_back(slot))
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
                self.files.values.path,
                server=self.server,
                bot_id=self.bot_id,
                give=self.launcher.isolation.give,
            )
        except (OSError, ValueError) as error:
            kind = "disk_full" if filesystem.disk_is_full(error) else "bot_error"
            self.end(run, records.fault(run, kind, f"the bot could not run the function: {error}"))
            return True
        if not executor.send(frame):
            if not executor.pending:
                run.attempts += 1
                executor.kill("deaf", clock.boottime())
            if run.attempts >= _MAX_ATTEMPTS:
                self.end(run, records.fault(run, "bot_error", "the process for the function does not read its pipe"))
                return True
            return False
        if not executor.pending:
            run.begin(clock.boottime())
        executor.pending.append(run)
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
        executor = self.launcher.start(run.key, self.files.codes.path(run.key.code))
        slot.executors[run.key] = executor
        self.readers[executor.channel.reader] = (slot, executor)
        self.poll.register(executor.channel.reader, select.POLLIN)
        return executor

    # ---------------------------------------------------------------- answers

    def _receive(self, slot: Slot, executor: ExecutorProcess) -> None:
        try:
            messages, is_open = executor.receive()
            now = clock.boottime()
            for message in messages:
                self._apply(slot, executor, message, now)
        except (BrokenProtocol, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            log.warning("process %d has sent something else than an answer: %r", executor.pid, error)
            executor.kill("protocol", clock.boottime())
            self._unregister(executor)
            return
        if not is_open:
            self._unregister(executor)
            if not executor.ending:
                executor.ending, executor.ending_at = "closed", now

    def receive_from(self, executor: ExecutorProcess) -> None:
        """Read the answers that a process has written so far."""
        if executor.channel.reader in self.readers:
            self._receive(*self.readers[executor.channel.reader])

    def _unregister(self, executor: ExecutorProcess) -> None:
        if self.readers.pop(executor.channel.reader, None) is not None:
            self.poll.unregister(executor.channel.reader)

    def _apply(self, slot: Slot, executor: ExecutorProcess, message: dict[str, Any], now: float) -> None:
        operation = message["op"]
        if operation in ("done", "error"):
            run = executor.pending[0] if executor.pending else None
            if run is None or run.id != message["id"]:
                raise BrokenProtocol(f"an answer for {message['id']}")
            record = self._record_of(executor, run, message, now)
            executor.pending.popleft()
            executor.used_at = now
            if executor.pending:
                executor.pending[0].begin(now)
            elif slot.active is executor:
                slot.active = None
                executor.cut_files(_KEEP_OUTPUT_BYTES)
            if run.end_reason:
                executor.kill("told to end", now)
            if run.run not in self.storing:
                self.end(run, record)
        elif operation == "progress" and executor.pending and executor.pending[0].id == message["id"]:
            self.lane.note_progress(executor.pending[0].run, float(message["value"]))
        elif operation == "ready":
            executor.is_ready = True

    def _record_of(
        self, executor: ExecutorProcess, run: FunctionRun, answer: dict[str, Any], now: float
    ) -> dict[str, Any] | None:
        """The record of an answered run. Raises KeyError, TypeError or ValueError if the answer is invalid."""
        end = (int(answer["out"]), int(answer["err"]))
        if end[0] != executor.ends[0] or end[1] != executor.ends[1]:
            self.watch.store_output(executor, run, end)
        seconds = max(0.0, float(answer.get("seconds", now - run.begun)))
        self.spent.append(seconds)
        run.stats.add(seconds)
        if run.end_reason:
            return self.watch.record_of_end(run, now, exit_code=int(answer["op"] == "error"))
        if answer["op"] == "error":
            return records.failure(run, seconds, records.error_message(answer), dict(answer["error"]))
        record = records.finish(run, seconds, 0)
        report = record["report"]
        if answer.get("delegated"):
            report["delegated"] = True
        outputs = self.files.open_outputs(answer, run, os.path.join(executor.folder, "out"))
        if all(data is not None for _, data, _ in outputs):
            report["outputs"] = [inline_output(kind, data) for kind, data, _ in outputs if data is not None]
        else:
            self.storing[run.run] = run
            self.files.store(run, record, outputs)
        self.on_success()
        return record

    def _take_stored(self) -> None:
        """Report the runs whose results are stored."""
        while self.files.stored:
            run, record, problem = self.files.stored.popleft()
            del self.storing[run.run]
            if run.end_reason == "lost":
                self.end(run, None)
            else:
                duration = record["report"]["duration"]
                self.end(run, record if problem is None else records.problem(run, duration, problem))

    # ---------------------------------------------------------------- the end of runs and of processes

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
        if self.spent:
            self.lane.note_durations(len(self.spent), sum(self.spent))
            self.spent = []
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
                self.receive_from(executor)
                self._remove(slot, executor, status, now)
            elif executor.ending == "closed" and now - executor.ending_at > TICK_S:
                executor.kill("closed", now)
            elif now - executor.ending_at > _UNKILLABLE_AFTER_S:
                self.report_error(f"process {executor.pid} with functions cannot be killed")
                self._remove(slot, executor, None, now)
        self.orphans = {pid for pid in self.orphans if not processes.has_ended(pid)}

    def _remove(self, slot: Slot, executor: ExecutorProcess, status: int | None, now: float) -> None:
        self.pool.remove(slot, executor)
        self._unregister(executor)
        runs = list(executor.pending)
        executor.pending.clear()
        if runs:
            self.watch.store_output(executor, runs[0], None)
            self.end(runs[0], self.watch.record_of_death(executor, runs[0], status, now))
            self.ready.extendleft(reversed(runs[1:]))
        if status is not None:
            self.orphans |= self.launcher.clean_up(executor)

    def end_idle(self, now: float) -> None:
        """End processes that were not used for long."""
        for _, executor in self.pool.executors():
            if not executor.pending and not executor.ending and now - executor.used_at > IDLE_S and executor.used_at:
                executor.kill("unused", now)

    def _give_up(self, message: str) -> None:
        """Fail everything after an error of the bot itself, and begin anew."""
        now = clock.boottime()
        runs = [*self.ready, *self.fetching.values()]
        self.ready.clear()
        self.fetching.clear()
        for slot, executor in self.pool.executors():
            runs += executor.pending
            executor.pending.clear()
            slot.active = None
            executor.kill("failed", now)
        for run in runs:
            self.end(run, records.fault(run, "bot_error", message))
