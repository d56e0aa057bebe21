"""The state that the threads share: queued tasks, the running ones, results, shutdown.

Commands are run by the main thread, one at a time. Functions run beside them, in the ``lane``. All of it is protected
by one lock, which is never held during I/O. This module uses no network, disk or process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from myrmidon.bot.run.function_lane import FunctionLane
from myrmidon.bot.system import clock

AHEAD_S = 0.1  # how much work the bot claims ahead
MAX_TASKS = 256
INITIAL_TASKS = 8  # to claim before the duration of tasks is known
START_WITHIN_S = 20.0  # after the claim; later, the server may have given the task to another bot
ONE_SIGNAL_S = 1.0


class RunQueue:
    """Claimed tasks on their way from the server to the threads that run them, and their results on the way back.

    ``queue``: commands that have not started; ``running``: the command that runs. ``lane``: the functions.
    ``finished``: records to deliver, each a report and its log chunks. ``returned``: tasks to give back to the server
    unstarted. ``stopped``: no task is started any more, and the worker ends with ``exit_code``. ``mean_run_s``: moving
    average of the duration of commands. ``functions_last``: the last tasks that came were functions, so the next ones
    probably are. ``command_added`` wakes the main thread, ``change`` the session thread: functions come and end without
    the main thread.
    """

    def __init__(self, recovered: list[dict[str, Any]], slots: int = 1) -> None:
        self.lock = threading.Lock()
        self.command_added = threading.Condition(self.lock)
        self.change = threading.Condition(self.lock)
        self.lane = FunctionLane(self.lock, slots)
        self.functions_last = False
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
                    self.command_added.wait()
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

    # ---------------------------------------------------------------- the thread that runs functions

    def finish_functions(self, done: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
        """Record the end of function runs. Wakes the session thread only when few or none are left."""
        now = clock.boottime()
        with self.lock:
            if not self.finished:
                self.finished_at = now
            self.finished.extend(record for _, record in done if record is not None)
            self.lane.forget(task["run"] for task, _ in done)
            if self.lane.is_empty() or self.lane.wanted():
                self.change.notify_all()

    def return_functions(self, tasks: list[dict[str, Any]]) -> None:
        """Return function runs that were taken and have not begun."""
        with self.lock:
            self.returned.extend(tasks)
            self.lane.forget(task["run"] for task in tasks)
            self.change.notify_all()

    # ---------------------------------------------------------------- session thread

    def next_claim(self) -> int:
        """How many tasks to claim, for the kind of task that came last."""
        return max(1, self.lane.wanted()) if self.functions_last else self.claim_size()

    def claim_size(self) -> int:
        """How many commands to claim: about ``AHEAD_S`` of work."""
        return max(1, min(MAX_TASKS, int(AHEAD_S / self.mean_run_s))) if self.mean_run_s else INITIAL_TASKS

    def refill_threshold(self) -> int:
        """With this many tasks left, claim more; 0 when tasks take so long that none is claimed ahead."""
        return (self.claim_size() + 1) // 2 if self.mean_run_s < AHEAD_S / 4 else 0

    def held(self) -> list[dict[str, Any]]:
        """The running and the queued tasks."""
        with self.lock:
            commands = ([self.running] if self.running is not None else []) + list(self.queue)
            return commands + list(self.lane.taken.values()) + list(self.lane.queue)

    def is_idle(self) -> bool:
        """Whether nothing runs or is queued."""
        return self.running is None and not self.queue and self.lane.is_empty()

    def snapshot(self) -> tuple[dict[str, Any] | None, int]:
        """(running command, number of queued commands), read together under the lock."""
        with self.lock:
            return self.running, len(self.queue)

    def add(self, tasks: list[dict[str, Any]]) -> None:
        with self.lock:
            for task in tasks:
                (self.lane.queue if task.get("function") else self.queue).append(task)
            self.functions_last = bool(tasks and tasks[-1].get("function"))
            if self.queue:
                self.command_added.notify()
        if self.lane.queue:
            self.lane.wake()

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
        self.return_commands()
        self.return_waiting_functions()

    def return_commands(self) -> None:
        """Return all queued commands."""
        with self.lock:
            self.returned.extend(self.queue)
            self.queue.clear()

    def return_waiting_functions(self) -> None:
        """Return all functions that have not begun; those that the thread has taken already, a moment later."""
        with self.lock:
            self.returned.extend(self.lane.queue)
            self.lane.queue.clear()
        self.lane.recall_waiting()

    def withdraw(self, run: str) -> bool:
        """Return a run if it is queued; whether it is the running command."""
        with self.lock:
            for queue in (self.queue, self.lane.queue):
                for task in [task for task in queue if task["run"] == run]:
                    queue.remove(task)
                    self.returned.append(task)
            return self.running is not None and self.running["run"] == run

    def keep_only(self, keep: set[str]) -> bool:
        """Drop runs that the server has reassigned, except the running command; whether that is reassigned too."""
        with self.lock:
            self.queue = deque(task for task in self.queue if task["run"] in keep)
            self.lane.queue = deque(task for task in self.lane.queue if task["run"] in keep)
            lost = [run for run in self.lane.taken if run not in keep]
            is_lost = self.running is not None and self.running["run"] not in keep
        for run in lost:
            self.lane.request_end(run, "lost", 0.0)
        return is_lost

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
            if not self.is_idle() and not self.stopped:
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
            self.command_added.notify()
            self.change.notify_all()

    def count_signal(self) -> int:
        """Count a stop signal; the number so far. 1: finish the running task, 2: kill it.

        Signals within ONE_SIGNAL_S count as one, because a service manager may signal supervisor and worker, and the
        supervisor forwards its signal too. Takes no lock, because signal handlers call it.
        """
        if not self.signals or self.since_signal() >= ONE_SIGNAL_S:
            self.signals += 1
            self.signal_at = clock.boottime()
        return self.signals

    def since_signal(self) -> float:
        return clock.boottime() - self.signal_at
