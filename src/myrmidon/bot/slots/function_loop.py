"""The thread that runs functions: gives runs to processes, reads their answers, and ends what must end.

One loop for all slots, without a thread per run: a short function costs the bot a message in each direction and a line
in the journal. Answers that come together are recorded and reported together. Calls go from here to the pool, the
processes, the files and the launcher, and none comes back; other threads leave what they have done, and wake the loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Callable

from myrmidon.bot.protocol import FinishReport, Output, Payload, Record
from myrmidon.bot.run import reports
from myrmidon.bot.run.run import ENDED, FETCHING, LONG_S, STORING, WAITING, Run
from myrmidon.bot.run.run_queue import Ended, RunQueue
from myrmidon.bot.run.watch import NO_LIMIT, NOTHING, TERMINATE, UNKILLABLE_AFTER_S, Watch
from myrmidon.bot.slots import endings
from myrmidon.bot.slots.executor_process import BrokenProtocol, ExecutorProcess
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.run_files import RunFiles
from myrmidon.bot.slots.run_frames import run_frame
from myrmidon.bot.slots.slot_pool import Slot, SlotPool
from myrmidon.bot.slots.value_cache import name_of
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, processes

TICK_S = 0.1
ALONE_S = 0.1  # runs behind a function that runs longer are given to other slots
BLOCKED_S = 0.5  # when functions run longer in all slots, those that wait go to other bots
MEMORY_S = 1.0  # between two measurements of a function's child processes
_KEEP_OUTPUT_BYTES = 1 << 20
_ENDING_TICK_S = 0.005
_IDLE_TICK_S = 5.0
_CLOSE_S = 5.0
_MAX_ATTEMPTS = 3

log = logging.getLogger("myrmidon.bot")


class FunctionLoop(threading.Thread):
    """``ready``: runs that wait for a slot. ``apart``: runs whose files are fetched or whose results are stored, by id.
    ``ended``: runs that have ended, to be delivered; ``spent``: how long their functions took.

    ``has_news``: the session thread must look at the functions now, even if it waits at the server.

    Set before the start: ``usd_per_s``: the price of this machine; ``on_results``: called when the server must be told
    something; ``on_success``: when a function has ended without an error.
    """

    def __init__(
        self,
        run_queue: RunQueue,
        launcher: Launcher,
        files: RunFiles,
        watch: Watch,
        journal: ResultJournal,
        *,
        server: str,
        bot_id: str,
        report_error: Callable[[str], None],
    ) -> None:
        super().__init__(name="functions", daemon=True)
        self.run_queue = run_queue
        self.work = run_queue.functions
        self.launcher = launcher
        self.files = files
        self.watch = watch
        self.journal = journal
        self.server = server
        self.bot_id = bot_id
        self.report_error = report_error
        self.pool = SlotPool(self.work.seats, launcher, files)
        self.ready: deque[Run] = deque()
        self.apart: dict[str, Run] = {}
        self.ended: list[Ended] = []
        self.spent: list[float] = []
        self.count = 0
        self.next_tick = self.measured_at = 0.0
        self.oom_kills = 0
        self.closing = self.has_news = False
        self.usd_per_s: Callable[[], float] = lambda: 0.0
        self.on_results: Callable[[], None] = lambda: None
        self.on_success: Callable[[], None] = lambda: None
        self.wake_reader, self.wake_writer = os.pipe()
        os.set_blocking(self.wake_reader, False)
        os.set_blocking(self.wake_writer, False)
        self.pool.poll.register(self.wake_reader, select.POLLIN)
        self.work.wake = self.files.wake = self.wake

    def wake(self) -> None:
        """Make the loop look for new runs and orders. Called by other threads."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_writer, b".")

    # ---------------------------------------------------------------- the loop

    def run(self) -> None:
        self.oom_kills = endings.oom_kills()
        while not self.closing:
            try:
                self._step()
            except Exception as error:
                log.exception("the functions of this bot failed")
                self.report_error(f"the functions of this bot failed: {error!r}")
                self._end_all(error)

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
        self._take_done()
        self._dispatch()
        for reader, _ in self.pool.poll.poll(self._timeout_s() * 1000):
            if reader == self.wake_reader:
                self._carry_out_orders()
            else:
                self._receive(reader)
        now = clock.boottime()
        if now >= self.next_tick:
            self.next_tick = now + TICK_S
            self._check(now)
        self._bury(now)
        self._deliver()

    def _timeout_s(self) -> float:
        if self.ended:
            return 0.0
        executors = [executor for _, executor in self.pool.executors()]
        if any(executor.ending for executor in executors):
            return _ENDING_TICK_S
        environments = self.files.environments
        if self.ready or self.apart or self.work.busy or environments.builds:
            return TICK_S
        return _IDLE_TICK_S if executors or environments.held else 3600.0

    # ---------------------------------------------------------------- runs on their way to a process

    def _take(self) -> None:
        taken = self.run_queue.take_functions()
        if not taken:
            return
        used_code = {executor.key.code for _, executor in self.pool.executors()} | {run.key.code for run in self.ready}
        for run in taken:
            try:
                run.usd_per_s = self.usd_per_s() / self.work.seats
                self.count += 1
                run.number = self.count
                if self.files.prepare(run, used_code):
                    self.ready.append(run)
                else:
                    self._set_apart(run, FETCHING)
            except Exception as error:
                log.exception("run %s could not be taken", run.id)
                self._end(run, reports.of_error(run, error, "the bot failed to prepare the function"))

    def _set_apart(self, run: Run, state: str) -> None:
        run.state = state
        run.begun = run.begun or clock.boottime()
        self.apart[run.id] = run

    def _take_done(self) -> None:
        """Go on with the runs whose files have come, and report those whose results are stored."""
        if self.files.environments.move_output(self.apart.values(), self.watch):
            self.watch.on_output()
        while self.files.done:
            run, problem, record = self.files.done.popleft()
            if self.apart.get(run.id) is not run:
                continue  # it was returned, or told to end, meanwhile
            del self.apart[run.id]
            if problem is not None:
                duration = (
                    record.report.duration if record is not None and isinstance(record.report, FinishReport) else 0.0
                )
                self._end(run, reports.of_problem(run, duration, problem))
            elif record is not None:
                self._end(run, record)
            else:
                run.state = WAITING
                self.ready.append(run)

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
        self.work.busy = pool.busy()

    def _give(self, run: Run, slot: Slot) -> bool:
        """Give a run to a slot; False if it must wait. A run for which no process can be started ends here."""
        try:
            executor = self.pool.executor_for(run, slot, clock.boottime())
            values, group = self.files.values, run.key.group
            frame = run_frame(
                run,
                executor,
                lambda digest: values.path(name_of(group, digest)),
                server=self.server,
                bot_id=self.bot_id,
                give=self.launcher.give,
            )
        except Exception as error:
            log.exception("run %s could not be given to a process", run.id)
            self._end(run, reports.of_error(run, error, "the bot could not run the function"))
            return True
        now = clock.boottime()
        if not executor.give(run, frame, now):
            if not executor.pending:
                run.attempts += 1
                executor.kill("deaf", now)
            if run.attempts >= _MAX_ATTEMPTS:
                self._end(run, reports.fault(run, "bot_error", "the process for the function does not read its pipe"))
                return True
            return False
        slot.active = executor
        return True

    # ---------------------------------------------------------------- answers

    def _receive(self, reader: int) -> None:
        """Apply the answers that a process has written so far; ``reader`` is the file descriptor of its pipe."""
        if reader not in self.pool.readers:
            return
        slot, executor = self.pool.readers[reader]
        try:
            messages, is_open = executor.receive()
            now = clock.boottime()
            for message in messages:
                self._apply(slot, executor, message, now)
        except (BrokenProtocol, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            log.warning("process %d has sent something else than an answer: %r", executor.pid, error)
            executor.kill("protocol", clock.boottime())
            self.pool.stop_reading(executor)
            return
        if not is_open:
            self.pool.stop_reading(executor)
            if not executor.ending:
                executor.ending, executor.ending_at = "closed", now

    def _apply(self, slot: Slot, executor: ExecutorProcess, message: dict[str, Any], now: float) -> None:
        operation, run = message["op"], executor.current
        if operation in ("done", "error"):
            if run is None or run.number != message["id"]:
                raise BrokenProtocol(f"an answer for {message['id']}")
            record = self._record_of(executor, run, message, now)
            executor.end_current(now)
            if not executor.pending and slot.active is executor:
                slot.active = None
                executor.cut_files(_KEEP_OUTPUT_BYTES)
            if run.end_reason:
                executor.kill("told to end", now)
            if run.state != STORING:
                self._end(run, record)
        elif operation == "begin":
            executor.begin(message["id"], now)
        elif operation == "progress" and run is not None and run.number == message["id"]:
            self.run_queue.note_progress(run, float(message["value"]))
        elif operation == "ready":
            executor.is_ready = True

    def _record_of(self, executor: ExecutorProcess, run: Run, answer: dict[str, Any], now: float) -> Record | None:
        """The record of an answered run. Raises KeyError, TypeError or ValueError if the answer is invalid."""
        end = (int(answer["out"]), int(answer["err"]))
        if end[0] != executor.ends[0] or end[1] != executor.ends[1]:
            executor.read_output(run, self.watch, end, NO_LIMIT)
        seconds = max(0.0, float(answer.get("seconds", now - run.begun)))
        self.spent.append(seconds)
        self.pool.stats.add(run, seconds)
        if run.end_reason:
            return endings.of_end(run, now, exit_code=int(answer["op"] == "error"))
        if answer["op"] == "error":
            return endings.of_error(run, seconds, answer, executor.folder)
        outputs = self.files.open_outputs(answer, run, os.path.join(executor.folder, "out"))
        small = [Output(kind, Payload(data)) for kind, data, _ in outputs if data is not None]
        record = reports.finish(run, seconds, 0, outputs=small, delegated=bool(answer.get("delegated")))
        if len(small) < len(outputs):
            self._set_apart(run, STORING)
            self.files.store(run, record, outputs)
        self.on_success()
        return record

    # ---------------------------------------------------------------- the end of runs and of processes

    def _end(self, run: Run, record: Record | None) -> None:
        """Note that a run has ended; None if it is no longer this bot's."""
        self.files.release(run)
        run.state = ENDED
        if record is None:
            self.watch.spool.remove(run.id)
        self.ended.append((run, record))

    def _deliver(self) -> None:
        self.work.busy = self.pool.busy()
        self.work.storing = sum(run.state == STORING for run in self.apart.values())
        if self.spent:
            self.work.note_durations(len(self.spent), sum(self.spent))
            self.spent = []
        ended, self.ended = self.ended, []
        if ended:
            self.journal.add_all([record for _, record in ended if record is not None])
            self.run_queue.finish(ended)
        if ended or self.has_news:
            self.has_news = False
            self.on_results()

    def _bury(self, now: float) -> None:
        """Remove processes that have ended, and give the runs that waited behind the last one to others."""
        for slot, executor in self.pool.executors():
            if not executor.ending:
                continue
            status = executor.exit_status()
            if status is not None:
                self._receive(executor.channel.reader)
                self._remove(slot, executor, status, now)
            elif executor.ending == "closed" and now - executor.ending_at > TICK_S:
                executor.kill("closed", now)
            elif now - executor.ending_at > UNKILLABLE_AFTER_S:
                self.report_error(f"process {executor.pid} with functions cannot be killed")
                self._remove(slot, executor, None, now)
        self.pool.reap()

    def _remove(self, slot: Slot, executor: ExecutorProcess, status: int | None, now: float) -> None:
        runs = self.pool.remove(slot, executor)
        if runs and self._has_died_of(executor, runs[0]):
            first = runs.pop(0)
            executor.read_last_output(first, self.watch)
            kills = endings.oom_kills()
            by_kernel, self.oom_kills = kills > self.oom_kills, kills
            stopping = self.run_queue.signals > 0
            record = endings.of_death(executor, first, status, now, by_kernel=by_kernel, stopping=stopping)
            self._end(first, record)
        self._put_back(runs)
        if status is not None:
            self.pool.orphans |= self.launcher.clean_up(executor)

    def _has_died_of(self, executor: ExecutorProcess, run: Run) -> bool:
        """Whether the end of a process is the end of its first run. One that has not begun gets another process."""
        if executor.current is run or run.end_reason or not executor.is_ready:
            return True
        run.attempts += 1
        return run.attempts >= _MAX_ATTEMPTS

    def _put_back(self, runs: Iterable[Run]) -> None:
        """Put runs that were given to a process and have not begun before those that wait."""
        for run in reversed(list(runs)):
            run.state = WAITING
            self.ready.appendleft(run)

    def _end_all(self, error: Exception) -> None:
        """End all runs and processes after an error of the bot itself. Runs whose results are being stored go on."""
        now = clock.boottime()
        self.ready.clear()
        for slot, executor in self.pool.executors():
            executor.pending.clear()
            executor.current = None
            slot.active = None
            executor.kill("failed", now)
        for run in list(self.work.live.values()):
            if run.state not in (STORING, ENDED):
                self.apart.pop(run.id, None)
                self.watch.spool.remove(run.id)
                self._end(run, reports.of_error(run, error, "the bot failed"))

    # ---------------------------------------------------------------- runs that take long, and orders

    def _check(self, now: float) -> None:
        """Look at all runs that a process works on."""
        work = self.work
        measure = now - self.measured_at > MEMORY_S
        blocked = 0
        for slot, executor, run in list(self.pool.heads()):
            ran_s = now - run.begun
            if ran_s >= ALONE_S:
                if len(executor.pending) > 1:
                    self._put_back(self.pool.take_back(slot, now))
                    if slot.active is None:
                        continue
                self._note_long(run, now)
                blocked += ran_s > BLOCKED_S
                if executor.move_output(run, self.watch, now):
                    self.watch.on_output()
                if executor.has_too_much_memory(run, measure=measure):
                    executor.kill("memory", now)
            self.watch.check_limits(run, now)
            self._end_if_told(executor, run, now)
        for run in self.apart.values():
            self._note_long(run, now)
        if measure:
            self.measured_at = now
            self._let_go(now)
        wanted = work.wanted()
        work.building = self.files.environments.num_building(self.apart.values())
        work.blocked = blocked == work.seats
        # A poll that waits at the server must accept commands only from now on, or functions again.
        accepts_others = bool(wanted) != bool(work.wanted())
        if accepts_others or (work.blocked and work.waiting()) or self.run_queue.progress_due(now):
            self.has_news = True

    def _note_long(self, run: Run, now: float) -> None:
        """Let the session thread report the start of a run that takes long, or whose files do."""
        if now - run.begun >= LONG_S and not run.is_long:
            run.is_long = self.has_news = True

    def _let_go(self, now: float) -> None:
        """End processes that were not used for long, and let go of environments that nothing needs."""
        self.pool.end_unused(now)
        used = {executor.key for _, executor in self.pool.executors()}
        self.files.environments.keep(used | {run.key for run in (*self.ready, *self.apart.values())})

    def _end_if_told(self, executor: ExecutorProcess, run: Run, now: float) -> None:
        """Send SIGTERM to the process of a run that is to end, and SIGKILL after the grace period.

        The process is stopped before: it may have answered meanwhile and work on another run, which must not suffer.
        """
        if run.end_request is None:
            return
        is_new = not run.end_reason
        if is_new:
            executor.stop()
            self._receive(executor.channel.reader)
        if executor.pending and executor.pending[0] is run:
            step = self.watch.next_step(run, now)
            if step == TERMINATE:
                executor.terminate()
            elif step != NOTHING and not executor.ending:
                executor.kill("told to end", now)
        if is_new:
            executor.resume()

    def _carry_out_orders(self) -> None:
        """End runs, and return those that have not begun."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_reader, 4096)
        must_end, recall = self.run_queue.take_orders(self.work)
        if not (must_end or recall):
            return
        now = clock.boottime()
        for slot in self.pool.slots:
            self._put_back(self.pool.take_back(slot, now))
        for run in [*self.ready, *self.apart.values()]:
            if run.state != STORING and not run.is_long and (recall or run.end_request is not None):
                self._forget(run)
                self.run_queue.return_runs([run])
            elif run.end_request is not None:
                self._forget(run)
                run.accept_end(now)
                self._end(run, endings.of_end(run, now))
        for _, executor, run in list(self.pool.heads()):
            self._end_if_told(executor, run, now)

    def _forget(self, run: Run) -> None:
        """Remove a run that no process works on."""
        if self.apart.pop(run.id, None) is None:
            self.ready.remove(run)
        self.files.release(run)
        run.state = ENDED
