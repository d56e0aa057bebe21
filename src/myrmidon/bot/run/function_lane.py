"""The part of the run queue for functions: they run beside commands, as many at a time as the bot has slots.

Shared by the session thread and the thread that runs functions, and protected by the lock of the run queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from myrmidon.bot.system import clock

AHEAD_S = 0.1  # how much work the bot claims ahead, per slot
MAX_TASKS = 256
INITIAL_PER_SLOT = 4  # to claim before the duration of functions is known
BUILDING_PER_SLOT = 4  # how many runs may wait for environments before the bot claims no others
START_WITHIN_S = 20.0  # after the claim; later, the server may have given the task to another bot
PROGRESS_S = 1.0  # between two reports of the progress of a run


class FunctionLane:
    """Function runs of this bot.

    ``queue``: not taken by the thread that runs functions. ``taken``: from then on until they have ended, by run.
    ``long``: those of them that have been running for a while, so that the server must be told of their start.
    ``blocked``: all slots are busy with long runs, so what waits here should go to other bots. ``busy``: the number of
    slots that run something. ``storing``: how many have run and wait only for their results to be stored. ``building``:
    how many wait for their environment to be built, while the slots are free for others.
    ``end_requests``: (reason, grace in seconds) by run. ``progress``: not reported yet. ``recall``: runs that have not
    begun must be returned. ``mean_run_s``: moving average of the duration of functions.
    """

    def __init__(self, lock: threading.Lock, slots: int) -> None:
        self.lock = lock
        self.slots = slots
        self.queue: deque[dict[str, Any]] = deque()
        self.taken: dict[str, dict[str, Any]] = {}
        self.long: dict[str, dict[str, Any]] = {}
        self.end_requests: dict[str, tuple[str, float | None]] = {}
        self.progress: dict[str, float] = {}
        self.progress_at: dict[str, float] = {}
        self.recall = False
        # Written by one thread and read by the other without the lock; a stale value is harmless.
        self.blocked = False
        self.busy = 0
        self.storing = 0
        self.building = 0
        self.mean_run_s = 0.0
        self.wake: Callable[[], None] = lambda: None

    # ---------------------------------------------------------------- the thread that runs functions

    def take(self, limit: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(runs to start, runs that have waited too long and must be returned)."""
        taken: list[dict[str, Any]] = []
        expired: list[dict[str, Any]] = []
        with self.lock:
            oldest = clock.boottime() - START_WITHIN_S
            while self.queue and len(taken) < limit:
                task = self.queue.popleft()
                if task["claimed_at"] < oldest:
                    expired.append(task)
                    continue
                taken.append(task)
                self.taken[task["run"]] = task
        return taken, expired

    def take_orders(self) -> tuple[dict[str, tuple[str, float | None]], bool]:
        """(requests to end runs, whether all that have not begun must be returned)."""
        with self.lock:
            requests, self.end_requests = self.end_requests, {}
            recall, self.recall = self.recall, False
            return requests, recall

    def add_long(self, task: dict[str, Any], begun: float) -> None:
        with self.lock:
            task["begun"] = begun
            self.long[task["run"]] = task

    def note_progress(self, run: str, value: float) -> None:
        with self.lock:
            if run in self.taken:
                self.progress[run] = value

    def note_durations(self, count: int, seconds: float) -> None:
        """Update the mean by runs that took so many seconds together."""
        weight = 0.7**count
        mean_s = seconds / count
        self.mean_run_s = weight * self.mean_run_s + (1.0 - weight) * mean_s if self.mean_run_s else mean_s

    def forget(self, runs: Iterable[str]) -> None:
        """Remove runs that have ended or are returned. The caller holds the lock."""
        for run in runs:
            del self.taken[run]
            if run in self.long:
                del self.long[run]
                self.progress.pop(run, None)
                self.progress_at.pop(run, None)

    # ---------------------------------------------------------------- the session thread

    def is_empty(self) -> bool:
        return not (self.queue or self.taken)

    def waiting(self) -> int:
        """How many runs have not begun."""
        return max(0, len(self.queue) + len(self.taken) - self.busy - self.storing - self.building)

    def ahead(self) -> int:
        """How many runs are to wait here while all slots are busy: about ``AHEAD_S`` of work."""
        if not self.mean_run_s:
            return INITIAL_PER_SLOT * self.slots
        return min(MAX_TASKS, int(self.slots * AHEAD_S / self.mean_run_s))

    def wanted(self) -> int:
        """How many functions to claim now; 0 while enough of them wait."""
        if not self.slots or (self.blocked and self.busy >= self.slots):
            return 0
        if self.building >= BUILDING_PER_SLOT * self.slots:
            return 0  # the queue has more of these, which other bots may be able to run now
        free, waiting = max(0, self.slots - self.busy), self.waiting()
        target = min(MAX_TASKS, max(free, self.ahead()))
        if waiting >= free and (waiting > target // 2 or not target):
            return 0
        return max(1, target)

    def unreported(self) -> list[dict[str, Any]]:
        """The long runs whose start the server does not know."""
        if not self.long:
            return []
        with self.lock:
            return [task for task in self.long.values() if "start_reported" not in task]

    def long_runs(self) -> list[dict[str, Any]]:
        if not self.long:
            return []
        with self.lock:
            return list(self.long.values())

    def has_short(self) -> bool:
        """Whether something waits, or has begun only now."""
        return len(self.queue) + len(self.taken) > len(self.long)

    def stopping(self) -> list[str]:
        """The runs that the server has told to end."""
        if not self.long:
            return []
        with self.lock:
            return [run for run, task in self.long.items() if "stopping" in task]

    def progress_due(self, now: float) -> bool:
        if not self.progress:
            return False
        with self.lock:
            return any(now - self.progress_at.get(run, 0.0) >= PROGRESS_S for run in self.progress)

    def take_progress(self, now: float) -> dict[str, float]:
        """The progress to report, of each run at most once in ``PROGRESS_S``."""
        if not self.progress:
            return {}
        with self.lock:
            due = {
                run: value for run, value in self.progress.items() if now - self.progress_at.get(run, 0.0) >= PROGRESS_S
            }
            for run in due:
                del self.progress[run]
                self.progress_at[run] = now
            return due

    def request_end(self, run: str, reason: str, grace_s: float | None) -> bool:
        """Request the end of a run; False if it is not here."""
        with self.lock:
            if run not in self.taken:
                return False
            self.taken[run]["stopping"] = True
            self.end_requests[run] = (reason, grace_s)
        self.wake()
        return True

    def end_all(self, reason: str) -> None:
        """Request the end of all runs without a grace period."""
        with self.lock:
            for run in self.taken:
                self.end_requests[run] = (reason, 0.0)
        self.wake()

    def recall_waiting(self) -> None:
        """Have everything returned that the thread has taken and not begun."""
        if self.waiting():
            self.recall = True
            self.wake()
