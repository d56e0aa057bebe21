"""The state of one running command: its process, output pipes, time limits and the request to end it.

Each run has its own pipes, which are closed at its end: processes that a command leaves behind cannot write
into the log of a later run.
"""

from __future__ import annotations

import os
from base64 import b64encode
from typing import Any

from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import processes

MAX_INLINE_BYTES = 65536
"""More output than this is written to the spool; less is kept in memory and sent with the result."""


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


class Command:
    """One run. ``end_request`` is (reason, grace in seconds) of the request to end it, which any thread may make.

    ``end_reason`` is set when the watcher acts on that; it stays empty if the command ends by itself. ``inline`` holds
    the output of both streams until it is ``spooled``. ``discard_output``: it cannot be stored, or the server rejects
    it.
    """

    __slots__ = (
        "begun", "deadline", "discard_output", "end_reason", "end_request", "ended", "grace_s", "inline",
        "io_timeout_s", "kill_at", "last_output_at", "output", "pid", "run", "sizes", "spooled", "task", "token",
    )  # fmt: skip

    def __init__(self, task: dict[str, Any], now: float) -> None:
        self.task = task
        self.run: str = task["run"]
        self.token: str = task["token"]
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
        self.sizes = [0, 0]
        self.inline: list[list[bytes]] = [[], []]
        self.spooled = False
        self.discard_output = False

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

    def store_output(self, stream: int, data: bytes, spool: LogSpool, *, to_spool: bool) -> None:
        """Keep output in memory while it is small, unless ``to_spool``; else in the spool. Raises OSError."""
        is_small = self.sizes[0] + self.sizes[1] + len(data) <= MAX_INLINE_BYTES
        if not self.discard_output and (to_spool or self.spooled or not is_small):
            self._move_to_spool(spool)
            spool.append(self.run, self.token, stream, data, self.sizes[stream])
        elif not self.discard_output:
            self.inline[stream].append(data)
        self.sizes[stream] += len(data)

    def _move_to_spool(self, spool: LogSpool) -> None:
        self.spooled = True
        for stream in (0, 1):
            if self.inline[stream]:
                spool.append(self.run, self.token, stream, b"".join(self.inline[stream]), 0)
                self.inline[stream] = []

    def log_chunks(self) -> list[list[Any]]:
        """The output that is in memory, as [stream, offset, base64]; empty if it is in the spool."""
        return [[stream, 0, b64encode(b"".join(parts)).decode()] for stream, parts in enumerate(self.inline) if parts]
