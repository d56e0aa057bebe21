"""Watches functions that take long: output, time limits, memory, and orders to end them; the records of their end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from myrmidon.bot.slots import records
from myrmidon.bot.slots.executor_process import ExecutorProcess
from myrmidon.bot.slots.function_run import FunctionRun
from myrmidon.bot.system import clock, filesystem
from myrmidon.executor.process_end import death_message

if TYPE_CHECKING:
    from myrmidon.bot.slots.slot_loop import SlotLoop

LONG_S = 0.2  # a function that runs longer is reported as started
ALONE_S = 0.1  # runs behind a function that runs longer are given to other slots
BLOCKED_S = 0.5  # when functions run longer in all slots, those that wait go to other bots
MEMORY_S = 1.0  # between two measurements of a function's child processes
MEMORY_MARGIN_BYTES = 64 << 20
"""How much more memory than its limit a function may have before it is killed: Python itself needs some."""
MAX_BACKLOG_BYTES = 4 << 20  # of output that is not uploaded yet; then the function has to wait
MAX_FILE_BYTES = 16 << 20  # of an output file of a function that runs
_ALL = 1 << 60


class RunWatch:
    """Used by the loop's thread. ``measured_at``: when the memory of child processes was measured."""

    def __init__(self, loop: SlotLoop) -> None:
        self.loop = loop
        self.measured_at = 0.0

    # ---------------------------------------------------------------- periodically

    def check(self, now: float) -> None:
        """Look at all runs that a process works on."""
        loop = self.loop
        lane, ready = loop.lane, loop.ready
        measure = now - self.measured_at > MEMORY_S
        blocked = 0
        for slot, executor, run in list(loop.pool.heads()):
            ran_s = now - run.begun
            if ran_s < ALONE_S:
                continue
            if len(executor.pending) > 1:
                ready.extendleft(reversed(loop.pool.take_back(slot, now)))
                if slot.active is None:
                    continue
            self._report_long(run, now)
            blocked += ran_s > BLOCKED_S
            self._move_output(executor, run)
            self._check_memory(executor, run, measure=measure, now=now)
            self._check_time(executor, run, now)
        for run in (*loop.fetching.values(), *loop.storing.values()):
            self._report_long(run, now)
        if measure:
            self.measured_at = now
            loop.end_idle(now)
            loop.keep_environments()
        wanted = lane.wanted()
        lane.building = loop.files.environments.num_building(loop.fetching.values())
        lane.blocked = blocked == lane.slots
        # A poll that waits at the server must accept commands only from now on, or functions again.
        accepts_others = bool(wanted) != bool(lane.wanted())
        if accepts_others or (lane.blocked and lane.waiting()) or lane.progress_due(now):
            loop.has_news = True

    def _report_long(self, run: FunctionRun, now: float) -> None:
        """Let the session thread report the start of a run that takes long, or whose files do."""
        if now - run.begun >= LONG_S and not run.is_long:
            run.is_long = True
            self.loop.lane.add_long(run.task, run.begun)
            self.loop.has_news = True

    def _move_output(self, executor: ExecutorProcess, run: FunctionRun) -> None:
        """Move what a function prints to the spool; stop the function while that is too much to upload."""
        loop = self.loop
        run.discard_output = run.discard_output or "discard_output" in run.task
        pending = loop.spool.pending_bytes(run.run) if run.spooled else 0
        room = _ALL if loop.server_unreachable() else MAX_BACKLOG_BYTES - pending
        if room <= 0:
            if not executor.is_stopped:
                executor.stop()
            return
        before = run.sizes[0] + run.sizes[1]
        is_complete = self.store_output(executor, run, None, room)
        if run.sizes[0] + run.sizes[1] > before:
            loop.on_output()
        if executor.ends[0] > MAX_FILE_BYTES or executor.ends[1] > MAX_FILE_BYTES:
            executor.stop()
            is_complete = self.store_output(executor, run, None, room)
            executor.cut_files(MAX_FILE_BYTES)
        if is_complete:
            executor.resume()
        elif not executor.is_stopped:
            executor.stop()

    def store_output(
        self, executor: ExecutorProcess, run: FunctionRun, until: tuple[int, int] | None, limit: int = _ALL
    ) -> bool:
        """Add output to the log of a run; whether it is complete. A full disk ends the run."""
        try:
            return executor.read_output(run, self.loop.spool, until, limit)
        except OSError as error:
            self._end_without_output(run, error)
            return True

    def store_last_output(self, executor: ExecutorProcess, run: FunctionRun) -> None:
        """Add the rest of the output of a process that has ended to the log of its run, and the stack that it left."""
        try:
            executor.read_output(run, self.loop.spool, None, _ALL)
            executor.read_stacks(run, self.loop.spool)
        except OSError as error:
            self._end_without_output(run, error)

    def _end_without_output(self, run: FunctionRun, error: OSError) -> None:
        run.discard_output = True
        run.request_end("disk_full" if filesystem.disk_is_full(error) else "bot_error", 0.0, clock.boottime())

    def _check_time(self, executor: ExecutorProcess, run: FunctionRun, now: float) -> None:
        if not run.end_reason and now >= run.deadline:
            self._request_end(executor, run, "hard_timeout", None, now)
        elif run.end_reason and now >= run.kill_at and not executor.ending:
            executor.kill("told to end", now)

    # ---------------------------------------------------------------- memory

    def is_bloated(self, executor: ExecutorProcess, run: FunctionRun) -> bool:
        """Whether earlier functions have left so much memory in a process that this one would not have its share."""
        return bool(run.memory_bytes) and executor.rss() > run.memory_bytes // 2 + MEMORY_MARGIN_BYTES // 2

    def _check_memory(self, executor: ExecutorProcess, run: FunctionRun, *, measure: bool, now: float) -> None:
        if not run.memory_bytes or executor.ending:
            return
        used = executor.rss_with_children() if measure else executor.rss()
        if used > run.memory_bytes + MEMORY_MARGIN_BYTES:
            executor.kill("memory", now)

    # ---------------------------------------------------------------- orders

    def carry_out(self, requests: dict[str, tuple[str, float | None]], recall: bool, now: float) -> None:
        """End runs, and return those that have not begun."""
        if recall or requests:
            for slot in self.loop.pool.slots:
                self.loop.ready.extendleft(reversed(self.loop.pool.take_back(slot, now)))
        waiting = [*self.loop.ready, *self.loop.fetching.values()]
        if recall:
            self._return([run for run in waiting if not run.is_long])
        if not requests:
            return
        for run in waiting:
            if run.run in requests and run.run in self.loop.lane.taken:
                self._end_waiting(run, requests[run.run][0], now)
        for run in [run for run in self.loop.storing.values() if run.run in requests]:
            del self.loop.storing[run.run]
            run.request_end(requests[run.run][0], 0.0, now)
            self.loop.end(run, self.record_of_end(run, now, exit_code=1))
        begun = [(executor, run) for _, executor, _ in self.loop.pool.heads() for run in executor.pending]
        for executor, run in begun:
            if run.run in requests:
                reason, grace_s = requests[run.run]
                self._request_end(executor, run, reason, grace_s, now)

    def _return(self, runs: list[FunctionRun]) -> None:
        if runs:
            for run in runs:
                self._forget(run)
            self.loop.run_queue.return_functions([run.task for run in runs])

    def _forget(self, run: FunctionRun) -> None:
        """Remove a run that has not begun."""
        if self.loop.fetching.pop(run.run, None) is None:
            self.loop.ready.remove(run)
            self.loop.files.release(run)

    def _end_waiting(self, run: FunctionRun, reason: str, now: float) -> None:
        """End a run that has not begun: it is returned, unless the server has been told that it has."""
        if not run.is_long:
            self._return([run])
            return
        self._forget(run)
        run.request_end(reason, 0.0, now)
        self.loop.end(run, self.record_of_end(run, now, exit_code=1))

    def _request_end(
        self, executor: ExecutorProcess, run: FunctionRun, reason: str, grace_s: float | None, now: float
    ) -> None:
        """Send SIGTERM to the process of a run, and SIGKILL after the grace period.

        The process is stopped before: it may have answered meanwhile and work on another run, which must not suffer.
        """
        executor.stop()
        self.loop.answers.receive(executor.channel.reader)
        if not executor.pending or executor.pending[0] is not run:
            executor.resume()
            return
        was_told = bool(run.end_reason)
        run.request_end(reason, grace_s, now)
        if run.kill_at <= now:
            executor.kill("told to end", now)
        elif not was_told:
            executor.terminate()
        executor.resume()

    # ---------------------------------------------------------------- records

    def record_of_end(self, run: FunctionRun, now: float, exit_code: int) -> dict[str, Any] | None:
        """The record of a run that was told to end, and has."""
        if run.end_reason == "lost":
            return None
        if run.end_reason in ("shutdown", "disk_full", "bot_error"):
            return records.fault(run, run.end_reason, f"the bot ended the function: {run.end_reason}")
        record = records.finish(run, now - run.begun, exit_code)
        if run.end_reason == "hard_timeout":
            where = records.native_name(run)
            limit = run.task["execution_timeout_s"]
            record["report"]["message"] = f"timed out after {limit} s{f', in {where}' if where else ''}"
        return record

    def record_of_death(
        self, executor: ExecutorProcess, run: FunctionRun, status: int | None, now: float
    ) -> dict[str, Any] | None:
        """The record of a run whose process has ended; ``status`` is None if it could not be killed."""
        duration = now - run.begun
        if status is None:
            return records.fault(run, "bot_error", "the process of the function could not be killed")
        if run.end_reason:
            return self.record_of_end(run, now, status)
        if executor.ending == "memory":
            message, error = records.memory_message(run.memory_bytes), records.memory_error(run.memory_bytes)
            return records.failure(run, duration, message, error)
        if executor.ending == "protocol" or (executor.ending == "closed" and executor.was_killed):
            return records.failure(run, duration, "the function has damaged the pipe between its process and the bot")
        if not executor.is_ready:
            return records.fault(run, "bot_error", f"no process for functions starts: {executor.last_words()}")
        if status == -signal.SIGTERM and self.loop.run_queue.signals:
            return records.fault(run, "shutdown", "the machine was shut down: the function received SIGTERM")
        kills = records.oom_kills()
        by_kernel, self.loop.oom_kills = kills > self.loop.oom_kills, kills
        message = death_message(status, by_kernel=by_kernel, native=records.native_name(run))
        record = records.failure(run, duration, message)
        record["report"]["exit_code"] = status or 1
        return record
