"""What the two threads of a bot share: tasks to run, the one that runs, results to report, and the wish to end.

One thread runs and the other one talks. Here they meet, under one lock that nobody holds while waiting for anything
else. Nothing in this file touches the network, the disk or a process.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from myrmidon.bot.system import clock

AHEAD_S = 0.1
MOST_TASKS = 256
FIRST_TASKS = 8
START_WITHIN_S = 20.0
ONE_SIGNAL_S = 1.0


class Duty:
    """``finished`` are records (a report and its log pieces); ``refused`` are tasks that go back unstarted."""

    def __init__(self, earlier: list[dict[str, Any]]) -> None:
        self.lock = threading.Lock()
        self.change = threading.Condition(self.lock)
        self.queue: deque[dict[str, Any]] = deque()
        self.finished: deque[dict[str, Any]] = deque(earlier)
        self.refused: deque[dict[str, Any]] = deque()
        self.running: dict[str, Any] | None = None
        self.over = False
        self.exit_code = 0
        # Written by one thread and read by the other; an old value costs a moment only.
        self.pace = 0.0
        self.finished_at = 0.0
        self.signals = 0
        self.signal_at = 0.0
        self.rebooting = False

    # -- the thread that runs

    def next_task(self) -> dict[str, Any] | None:
        """Wait for a task; None when there will be none any more.

        A task that has waited too long, perhaps because this process was stopped, is not begun: the server may
        have given it to another bot by now.
        """
        with self.lock:
            while True:
                while not self.queue:
                    if self.over:
                        return None
                    self.change.wait()
                task = self.queue.popleft()
                now = clock.boottime()
                if now - task["claimed_at"] <= START_WITHIN_S:
                    task["begun"] = now
                    self.running = task
                    return task
                self.refused.append(task)
                self.change.notify_all()

    def ran(self, task: dict[str, Any], record: dict[str, Any] | None) -> None:
        """The task has ended. The talk is woken when it has reason to act, not for every task of many."""
        now = clock.boottime()
        took = now - task["begun"]
        with self.lock:
            self.pace = 0.7 * self.pace + 0.3 * took if self.pace else took
            if record is not None:
                if not self.finished:
                    self.finished_at = now
                self.finished.append(record)
            self.running = None
            if not self.queue or len(self.queue) == self.low():
                self.change.notify_all()

    # -- the thread that talks

    def want(self) -> int:
        """How many tasks make about ``AHEAD_S`` of work."""
        return max(1, min(MOST_TASKS, int(AHEAD_S / self.pace))) if self.pace else FIRST_TASKS

    def low(self) -> int:
        """With so few tasks left it is time to ask for more; 0 when tasks take so long that none is held ahead."""
        return (self.want() + 1) // 2 if self.pace < AHEAD_S / 4 else 0

    def held(self) -> list[dict[str, Any]]:
        """Every task that this bot has claimed and not reported."""
        with self.lock:
            return ([self.running] if self.running is not None else []) + list(self.queue)

    def at_hand(self) -> tuple[dict[str, Any] | None, int]:
        """The task that runs, and how many wait, at one moment: between two, one may go from here to there."""
        with self.lock:
            return self.running, len(self.queue)

    def add(self, tasks: list[dict[str, Any]]) -> None:
        with self.lock:
            self.queue.extend(tasks)
            self.change.notify_all()

    def refuse(self, tasks: list[dict[str, Any]]) -> None:
        """These go back without ever having waited."""
        with self.lock:
            self.refused.extend(tasks)

    def ended(self, record: dict[str, Any]) -> None:
        """A result of something that never ran."""
        with self.lock:
            self.finished.append(record)

    def give_back(self) -> None:
        """Everything that has not begun."""
        with self.lock:
            self.refused.extend(self.queue)
            self.queue.clear()

    def withdraw(self, run: str) -> bool:
        """Give back one run if it has not begun; whether it is the one that runs."""
        with self.lock:
            for task in [task for task in self.queue if task["run"] == run]:
                self.queue.remove(task)
                self.refused.append(task)
            return self.running is not None and self.running["run"] == run

    def forget_all_but(self, keep: set[str]) -> bool:
        """Drop the waiting runs that are no longer this bot's; whether the one that runs is lost too."""
        with self.lock:
            self.queue = deque(task for task in self.queue if task["run"] in keep)
            return self.running is not None and self.running["run"] not in keep

    def reported(self, count: int) -> None:
        """The server has answered for so many of the oldest results."""
        with self.lock:
            for _ in range(count):
                self.finished.popleft()
            self.finished_at = clock.boottime()

    def take_refused(self) -> list[dict[str, Any]]:
        with self.lock:
            refused, self.refused = list(self.refused), deque()
            return refused

    def wait(self, seconds: float) -> None:
        """Until something changes, while something runs."""
        with self.lock:
            if (self.running is not None or self.queue) and not self.over:
                self.change.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Wait after a failure; a signal or the end cuts it short."""
        until = clock.boottime() + seconds
        signals = self.signals
        with self.lock:
            while not self.over and clock.boottime() < until and self.signals == signals:
                self.change.wait(min(0.2, max(until - clock.boottime(), 0.01)))

    # -- the end

    def end(self, code: int) -> None:
        with self.lock:
            self.exit_code = code
            self.over = True
            self.change.notify_all()

    def signalled(self) -> int:
        """Count a signal: the first means "finish", the next "now". Takes no lock: it may come at any point.

        Two at once are one: a terminal and a supervisor often send the same wish.
        """
        if not self.signals or self.since_signal() >= ONE_SIGNAL_S:
            self.signals += 1
            self.signal_at = clock.boottime()
        return self.signals

    def since_signal(self) -> float:
        return clock.boottime() - self.signal_at
