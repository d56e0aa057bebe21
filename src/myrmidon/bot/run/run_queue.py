"""The state that the main thread and the session thread share: queued tasks, the running one, results, shutdown.

All of it is protected by one lock, which is never held during I/O. This module uses no network, disk or process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from myrmidon.bot.system import clock

AHEAD_S = 0.1  # how much work the bot claims ahead
MAX_TASKS = 256
INITIAL_TASKS = 8  # to claim before the duration of tasks is known
START_WITHIN_S = 20.0  # after the claim; later, the server may have given the task to another bot
ONE_SIGNAL_S = 1.0


class RunQueue:
    """``queue``: claimed tasks that have not started; ``running``: the task that runs. ``finished``: records to deliver,
    each a report and its log chunks. ``returned``: tasks to give back to the server unstarted. ``stopped``: no task is
    started any more, and the worker ends with ``exit_code``. ``mean_run_s``: moving average of the duration of tasks.
    """

    def __init__(self, recovered: list[dict[str, Any]]) -> None:
        self.lock = threading.Lock()
        self.change = threading.Condition(self.lock)
        self.queue: deque[dict[str, Any]] = deque()
        self.finished: deque[dict[str, Any]] = deque(recovered)
        self.returned: deque[dict[str, Any]] = deque()
        self.running: dict[str, Any] | None = None
        self.stopped = False
        self.exit_code = 0
        # Written by one thread and read by the other without the lock; a stale value is harmless.
        self.mean_run_s = 0.0
        self.finished_at = 0.0
        self.signals = 0
        self.signal_at = 0.0
        self.rebooting = False

    # ---------------------------------------------------------------- main thread

    def next_task(self) -> dict[str, Any] | None:
        """Wait for a task and mark it as running; None when the worker must end.

        A task that has waited too long, for example because this process was suspended, is returned: the server may
        have given it to another bot.
        """
        with self.lock:
            while True:
                while not self.queue:
                    if self.stopped:
                        return None
                    self.change.wait()
                task = self.queue.popleft()
                now = clock.boottime()
                if now - task["claimed_at"] <= START_WITHIN_S:
                    task["begun"] = now
                    self.running = task
                    return task
                self.returned.append(task)
                self.change.notify_all()

    def finish_task(self, task: dict[str, Any], record: dict[str, Any] | None) -> None:
        """Record the end of the running task. Wakes the session thread only when the queue is short or empty."""
        now = clock.boottime()
        duration_s = now - task["begun"]
        with self.lock:
            self.mean_run_s = 0.7 * self.mean_run_s + 0.3 * duration_s if self.mean_run_s else duration_s
            if record is not None:
                if not self.finished:
                    self.finished_at = now
                self.finished.append(record)
            self.running = None
            if not self.queue or len(self.queue) == self.refill_threshold():
                self.change.notify_all()

    # ---------------------------------------------------------------- session thread

    def claim_size(self) -> int:
        """How many tasks to claim: about ``AHEAD_S`` of work."""
        return max(1, min(MAX_TASKS, int(AHEAD_S / self.mean_run_s))) if self.mean_run_s else INITIAL_TASKS

    def refill_threshold(self) -> int:
        """With this many tasks left, claim more; 0 when tasks take so long that none is claimed ahead."""
        return (self.claim_size() + 1) // 2 if self.mean_run_s < AHEAD_S / 4 else 0

    def held(self) -> list[dict[str, Any]]:
        """The running and the queued tasks."""
        with self.lock:
            return ([self.running] if self.running is not None else []) + list(self.queue)

    def snapshot(self) -> tuple[dict[str, Any] | None, int]:
        """(running task, number of queued tasks), read together under the lock."""
        with self.lock:
            return self.running, len(self.queue)

    def add(self, tasks: list[dict[str, Any]]) -> None:
        with self.lock:
            self.queue.extend(tasks)
            self.change.notify_all()

    def return_tasks(self, tasks: list[dict[str, Any]]) -> None:
        """Return tasks that were never queued."""
        with self.lock:
            self.returned.extend(tasks)

    def add_result(self, record: dict[str, Any]) -> None:
        """Add the result of a task that needed no run."""
        with self.lock:
            self.finished.append(record)

    def return_queued(self) -> None:
        """Return all queued tasks."""
        with self.lock:
            self.returned.extend(self.queue)
            self.queue.clear()

    def withdraw(self, run: str) -> bool:
        """Return a run if it is queued; whether it is the running one."""
        with self.lock:
            for task in [task for task in self.queue if task["run"] == run]:
                self.queue.remove(task)
                self.returned.append(task)
            return self.running is not None and self.running["run"] == run

    def keep_only(self, keep: set[str]) -> bool:
        """Drop queued runs that the server has reassigned; whether the running one is reassigned too."""
        with self.lock:
            self.queue = deque(task for task in self.queue if task["run"] in keep)
            return self.running is not None and self.running["run"] not in keep

    def remove_reported(self, count: int) -> None:
        """Remove the oldest results, which the server has acknowledged."""
        with self.lock:
            for _ in range(count):
                self.finished.popleft()
            self.finished_at = clock.boottime()

    def take_returned(self) -> list[dict[str, Any]]:
        with self.lock:
            returned, self.returned = list(self.returned), deque()
            return returned

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most so long; returns at once if nothing runs or is queued."""
        with self.lock:
            if (self.running is not None or self.queue) and not self.stopped:
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
            self.change.notify_all()

    def count_signal(self) -> int:
        """Count a stop signal; the number so far. 1: finish the running task, 2: kill it.

        Signals within ONE_SIGNAL_S count as one, because a terminal sends them to supervisor and worker, and the
        supervisor forwards its own. Takes no lock, because signal handlers call it.
        """
        if not self.signals or self.since_signal() >= ONE_SIGNAL_S:
            self.signals += 1
            self.signal_at = clock.boottime()
        return self.signals

    def since_signal(self) -> float:
        return clock.boottime() - self.signal_at
