"""The state of one running command: its process, output pipes, time limits and the request to end it.

Each run has its own pipes, which are closed at its end: processes that a command leaves behind cannot write
into the log of a later run.
"""

from __future__ import annotations

import os
from typing import Any

from myrmidon.bot.run.run_log import RunLog
from myrmidon.bot.system import processes


class OutputPipes:
    """The pipes of one run, from the start of its command to its end: for stdout and stderr, or one for both."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.writers: list[int] = []

    def open(self, *, merged: bool = False) -> None:
        for _ in range(1 if merged else 2):
            reader, writer = processes.make_pipe()
            self.readers.append(reader)
            self.writers.append(writer)

    def close_writers(self) -> None:
        """Close the bot's writers once the command has its own: then the readers see the end of the streams."""
        while self.writers:
            os.close(self.writers.pop())

    def close(self) -> None:
        """Close both pipes; processes that still write into them get SIGPIPE or EPIPE. Idempotent."""
        self.close_writers()
        while self.readers:
            os.close(self.readers.pop())


class Command(RunLog):
    """One run. ``end_request`` is (reason, grace in seconds) of the request to end it, which any thread may make.

    ``end_reason`` is set when the watcher acts on that; it stays empty if the command ends by itself.
    """

    __slots__ = (
        "begun", "deadline", "end_reason", "end_request", "ended", "grace_s", "io_timeout_s", "kill_at",
        "last_output_at", "output", "pid", "task",
    )  # fmt: skip

    def __init__(self, task: dict[str, Any], now: float) -> None:
        super().__init__(task)
        self.task = task
        self.begun = now
        self.last_output_at = now
        self.deadline = now + task["execution_timeout_s"]
        self.io_timeout_s: float | None = task.get("io_timeout_s")
        self.grace_s: float = task["grace_period_s"]
        self.pid = 0
        self.output = OutputPipes()
        self.ended = False
        self.end_reason = ""
        self.end_request: tuple[str, float] | None = None
        self.kill_at = 0.0

    def must_end(self) -> bool:
        return self.end_request is not None

    def restart_clock(self, now: float) -> None:
        """Start the time limits now: hooks and the preparation of caches do not count as time of the command."""
        self.begun = self.last_output_at = now
        self.deadline = now + self.task["execution_timeout_s"]

    def request_end(self, reason: str, grace_s: float | None = None) -> None:
        """Request the end of this command; the watcher executes it.

        Of several requests the first reason counts, except that "lost" always wins, and the shortest grace period.
        """
        requested_s = self.grace_s if grace_s is None else min(grace_s, self.grace_s)
        if self.end_request is None:
            self.end_request = (reason, requested_s)
        else:
            first_reason, previous_s = self.end_request
            self.end_request = ("lost" if reason == "lost" else first_reason, min(requested_s, previous_s))
