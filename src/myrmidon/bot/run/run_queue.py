"""The ledger of this bot: all its runs, by id, and the results that the server has not acknowledged.

Commands and functions are two classes of work, each with runs that wait, runs that a thread has taken, and seats. One
lock protects all of it, and is never held during I/O. This module uses no network, disk or process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Optional, Tuple

from myrmidon.bot.protocol import Held, Record, StartReport, Welcome
from myrmidon.bot.run.run import ENDED, LONG_S, QUEUED, WAITING, Run
from myrmidon.bot.system import clock

AHEAD_S = 0.1  # how much work the bot claims ahead, per seat
MAX_TASKS = 256
INITIAL_COMMANDS = 8  # to claim before the duration of commands is known
INITIAL_PER_SLOT = 4  # to claim before the duration of functions is known
BUILDING_PER_SLOT = 4  # how many runs may wait for environments before the bot claims no others
PROGRESS_S = 1.0  # between two reports of the progress of a run
ONE_SIGNAL_S = 1.0

Ended = Tuple[Run, Optional[Record]]
"""A run that has ended, and its record; None if it is no longer this bot's."""


class WorkClass:
    """Commands or functions. ``seats``: how many run at a time.

    ``queue``: not taken by the thread that runs them. ``live``: from then on until they have ended, by id.
    ``mean_run_s``: moving average of their duration. ``wake``: makes the thread look for runs and orders. ``recall``:
    live runs that have not begun must be returned; ``has_orders``: some must end.
    """

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self.queue: deque[Run] = deque()
        self.live: dict[str, Run] = {}
        self.mean_run_s = 0.0
        self.recall = self.has_orders = False
        self.wake: Callable[[], None] = lambda: None

    def is_empty(self) -> bool:
        return not (self.queue or self.live)

    def note_durations(self, count: int, seconds: float) -> None:
        """Update the mean by runs that took so many seconds together."""
        weight = 0.7**count
        mean_s = seconds / count
        self.mean_run_s = weight * self.mean_run_s + (1.0 - weight) * mean_s if self.mean_run_s else mean_s

    def needs_more(self) -> bool:
        """Whether the session thread should look, because few or no runs are left."""
        raise NotImplementedError


class Commands(WorkClass):
    """They run one at a time; the others wait in the queue."""

    def claim_size(self) -> int:
        """How many to claim: about ``AHEAD_S`` of work."""
        return max(1, min(MAX_TASKS, int(AHEAD_S / self.mean_run_s))) if self.mean_run_s else INITIAL_COMMANDS

    def refill_threshold(self) -> int:
        """With this many left, claim more; 0 when they take so long that none is claimed ahead."""
        return (self.claim_size() + 1) // 2 if self.mean_run_s < AHEAD_S / 4 else 0

    def needs_more(self) -> bool:
        return not self.queue or len(self.queue) == self.refill_threshold()


class Functions(WorkClass):
    """They run beside commands, as many at a time as there are slots, and wait in the pipes of processes, too.

    Written by the thread that runs them, and read without the lock; a stale value is harmless: ``busy``: the number of
    slots that run something. ``blocked``: all slots are busy with long runs, so what waits here should go to other
    bots. ``storing``: how many wait only for their results to be stored. ``building``: how many wait for their
    environment, while the slots are free for others.
    """

    def __init__(self, seats: int) -> None:
        super().__init__(seats)
        self.blocked = False
        self.busy = self.storing = self.building = 0

    def waiting(self) -> int:
        """How many runs have not begun."""
        return max(0, len(self.queue) + len(self.live) - self.busy - self.storing - self.building)

    def ahead(self) -> int:
        """How many runs are to wait here while all slots are busy: about ``AHEAD_S`` of work."""
        if not self.mean_run_s:
            return INITIAL_PER_SLOT * self.seats
        return min(MAX_TASKS, int(self.seats * AHEAD_S / self.mean_run_s))

    def wanted(self) -> int:
        """How many functions to claim now; 0 while enough of them wait."""
        if not self.seats or (self.blocked and self.busy >= self.seats):
            return 0
        if self.building >= BUILDING_PER_SLOT * self.seats:
            return 0  # the queue has more of these, which other bots may be able to run now
        free, waiting = max(0, self.seats - self.busy), self.waiting()
        target = min(MAX_TASKS, max(free, self.ahead()))
        if waiting >= free and (waiting > target // 2 or not target):
            return 0
        return max(1, target)

    def needs_more(self) -> bool:
        return self.is_empty() or self.wanted() > 0


class RunQueue:
    """Runs on their way from the server to the threads that run them, and their results on the way back.

    ``runs``: all that have not ended, by id, in the order of their claims. ``finished``: records to deliver.
    ``returned``: runs to give back to the server unstarted. ``stopped``: no run is started any more, and the worker
    ends with ``exit_code``. ``functions_last``: the last tasks that came were functions, so the next ones probably are.
    ``late_starts``: runs whose result waits until their log is delivered, and of which the server knows no start.
    ``command_added`` wakes the threads that run commands, ``change`` the session thread.
    """

    def __init__(self, recovered: Iterable[Record] = (), slots: int = 1, max_runs: int = 1) -> None:
        self.lock = threading.Lock()
        self.command_added = threading.Condition(self.lock)
        self.change = threading.Condition(self.lock)
        self.runs: dict[str, Run] = {}
        self.commands = Commands(max_runs)
        self.functions = Functions(slots)
        self.functions_last = False
        self.late_starts: list[StartReport] = []
        self.finished: deque[Record] = deque(recovered)
        self.returned: deque[Run] = deque()
        self.stopped = False
        self.exit_code = 0
        # Written by one thread and read by the other without the lock; a stale value is harmless.
        self.finished_at = 0.0
        self.start_within_s = Welcome._field_defaults["start_within_s"]
        self.signals = 0
        self.signal_at = 0.0
        self.rebooting = False

    def _class_of(self, run: Run) -> WorkClass:
        return self.commands if run.task.function is None else self.functions

    # ---------------------------------------------------------------- the threads that run something

    def next_command(self) -> Run | None:
        """Wait for a command and take it; None when the worker must end."""
        with self.lock:
            while True:
                taken = self._take(self.commands, 1)
                if taken:
                    return taken[0]
                if self.stopped:
                    return None
                self.command_added.wait()

    def take_functions(self) -> list[Run]:
        if not self.functions.queue:
            return []
        with self.lock:
            return self._take(self.functions, MAX_TASKS)

    def _take(self, work: WorkClass, limit: int) -> list[Run]:
        """Runs to start. Those that have waited too long, as when this process was suspended, are returned."""
        taken: list[Run] = []
        now = clock.boottime()
        while work.queue and len(taken) < limit:
            run = work.queue.popleft()
            if now - run.claimed_at > self.start_within_s:
                self._return([run])
                self.change.notify_all()
                continue
            run.state, run.taken_at = WAITING, now
            work.live[run.id] = run
            taken.append(run)
        return taken

    def take_orders(self, work: WorkClass) -> tuple[bool, bool]:
        """(whether live runs must end, whether all that have not begun must be returned)."""
        with self.lock:
            orders = work.has_orders, work.recall
            work.has_orders = work.recall = False
            return orders

    def finish(self, ended: Sequence[Ended]) -> None:
        """Note the end of live runs of one class. Wakes the session thread only when few or none are left."""
        work = self._class_of(ended[0][0])
        with self.lock:
            if not self.finished:
                self.finished_at = clock.boottime()
            for run, record in ended:
                run.state = ENDED
                del work.live[run.id], self.runs[run.id]
                if record is not None:
                    self.finished.append(record)
                    if run.spooled and not run.start_reported:
                        self.late_starts.append(StartReport(run.id, run.token))
            if work.needs_more():
                self.change.notify_all()

    def note_progress(self, run: Run, value: float) -> None:
        with self.lock:
            run.progress = value

    # ---------------------------------------------------------------- what the session thread reads

    def next_claim(self) -> int:
        """How many tasks to claim, for the kind of task that came last."""
        return max(1, self.functions.wanted()) if self.functions_last else self.commands.claim_size()

    def held(self) -> list[Held]:
        """All runs that this bot has, and their tokens."""
        with self.lock:
            return [(run.id, run.token) for run in self.runs.values()]

    def is_idle(self) -> bool:
        """Whether nothing runs or is queued."""
        return not self.runs

    def first_command(self) -> Run | None:
        """The command that runs for the longest time."""
        with self.lock:
            return next(iter(self.commands.live.values()), None)

    def long_runs(self) -> list[Run]:
        """The runs that take long."""
        latest = clock.boottime() - LONG_S
        with self.lock:
            for run in self.commands.live.values():
                run.is_long = run.is_long or run.taken_at < latest
            return [run for run in self.runs.values() if run.is_long]

    def take_starts(self) -> list[StartReport]:
        """The runs to report as started, because they or the delivery of their logs take long."""
        runs = [run for run in self.long_runs() if not run.start_reported]
        for run in runs:
            run.start_reported = True
        with self.lock:
            late, self.late_starts = self.late_starts, []
        return [StartReport(run.id, run.token) for run in runs] + late

    def _progress_due(self, now: float) -> list[Run]:
        runs = self.functions.live.values()
        return [run for run in runs if run.progress is not None and now - run.progress_at >= PROGRESS_S]

    def progress_due(self, now: float) -> bool:
        with self.lock:
            return bool(self._progress_due(now))

    def take_progress(self, now: float) -> dict[str, float]:
        """The progress to report, of each run at most once in ``PROGRESS_S``."""
        with self.lock:
            found = {}
            for run in self._progress_due(now):
                found[run.id], run.progress, run.progress_at = run.progress or 0.0, None, now
            return found

    # ---------------------------------------------------------------- what the session thread changes

    def add(self, runs: Sequence[Run]) -> None:
        with self.lock:
            for run in runs:
                self.runs[run.id] = run
                self._class_of(run).queue.append(run)
            self.functions_last = runs[-1].task.function is not None
            if self.commands.queue:
                self.command_added.notify_all()
        if self.functions.queue:
            self.functions.wake()

    def add_result(self, record: Record) -> None:
        """Add the result of a task that needed no run."""
        with self.lock:
            self.finished.append(record)

    def remove_reported(self, count: int) -> None:
        """Remove the oldest results, which the server has acknowledged."""
        with self.lock:
            for _ in range(count):
                self.finished.popleft()
            self.finished_at = clock.boottime()

    def _return(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.runs.pop(run.id, None)
            self.returned.append(run)

    def return_runs(self, runs: Sequence[Run]) -> None:
        """Return runs that were never queued, or were taken and have not begun."""
        with self.lock:
            self._return(runs)
            for run in runs:
                self.functions.live.pop(run.id, None)
            self.change.notify_all()

    def return_queued(self, *works: WorkClass) -> None:
        """Return everything that has not begun, of both classes or of one.

        Functions that their thread has taken already are returned a moment later.
        """
        works = works or (self.commands, self.functions)
        with self.lock:
            for work in works:
                self._return(work.queue)
                work.queue.clear()
            recall = self.functions in works and self.functions.waiting() > 0
            self.functions.recall = self.functions.recall or recall
        if recall:
            self.functions.wake()

    def drop_output(self, run_ids: Collection[str]) -> None:
        """Report these results without their output, which is in the spool now."""
        with self.lock:
            dropped = (one._replace(logs=()) if one.report.run in run_ids else one for one in self.finished)
            self.finished = deque(dropped)

    def take_returned(self) -> list[Run]:
        with self.lock:
            returned, self.returned = list(self.returned), deque()
            return returned

    def request_end(self, run_id: str, reason: str, grace_s: float | None = None) -> Run | None:
        """Request the end of a live run, or return one that is queued; the live run."""
        with self.lock:
            run = self.runs.get(run_id)
            if run is None:
                return None
            work = self._class_of(run)
            if run.state == QUEUED:
                work.queue.remove(run)
                self._return([run])
                return None
            self._request_end(work, run, reason, grace_s)
        work.wake()
        return run

    def _request_end(self, work: WorkClass, run: Run, reason: str, grace_s: float | None) -> None:
        run.request_end(reason, grace_s)
        work.has_orders = True

    def end_all(self, reason: str) -> None:
        """Request the end of all live runs without a grace period."""
        with self.lock:
            for work in (self.commands, self.functions):
                for run in work.live.values():
                    self._request_end(work, run, reason, 0.0)
        self.functions.wake()

    def keep_only(self, keep: set[str]) -> None:
        """Drop queued runs that the server has reassigned, and kill those that have begun."""
        with self.lock:
            for run in [run for run in self.runs.values() if run.id not in keep]:
                work = self._class_of(run)
                if run.state == QUEUED:
                    work.queue.remove(run)
                    del self.runs[run.id]
                else:
                    self._request_end(work, run, "lost", 0.0)
        self.functions.wake()

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most so long; returns at once if nothing runs or is queued."""
        with self.lock:
            if self.runs and not self.stopped:
                self.change.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep after a failure; a signal or `end` interrupts it."""
        until = clock.boottime() + seconds
        signals = self.signals
        with self.lock:
            while not self.stopped and clock.boottime() < until and self.signals == signals:
                self.change.wait(min(0.2, max(until - clock.boottime(), 0.01)))

    # ---------------------------------------------------------------- shutdown

    def end(self, code: int) -> None:
        with self.lock:
            self.exit_code = code
            self.stopped = True
            self.command_added.notify_all()
            self.change.notify_all()

    def count_signal(self) -> int:
        """Count a stop signal; the number so far. 1: finish what runs, 2: kill it.

        Signals within ONE_SIGNAL_S count as one, because a service manager may signal supervisor and worker, and the
        supervisor forwards its signal too. Takes no lock, because signal handlers call it.
        """
        if not self.signals or clock.boottime() - self.signal_at >= ONE_SIGNAL_S:
            self.signals += 1
            self.signal_at = clock.boottime()
        return self.signals
