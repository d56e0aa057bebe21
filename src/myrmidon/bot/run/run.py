"""One run of a task on this bot, a command or a function, from its claim to its end.

    queued      claimed, and not taken by the thread that runs it
    fetching    its files or its environment are not here yet
    waiting     it has all that it needs, and no process has begun it
    running     its process has begun it
    storing     its process has ended it, and its results are being stored
    ended       its report is made

Queued runs are returned to the server if they are not needed here. From then on a run ends with a report, or is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import NamedTuple

from myrmidon.bot.protocol import Chunk, Task
from myrmidon.bot.storage.log_spool import LogSpool

QUEUED, FETCHING, WAITING, RUNNING, STORING, ENDED = "queued", "fetching", "waiting", "running", "storing", "ended"
LONG_S = 0.2
"""The server is told that a run has begun if it takes longer."""
MAX_INLINE_BYTES = 65536
"""More output than this is written to the spool; less is kept in memory and sent with the result."""
_end_lock = threading.RLock()
"""A signal handler may request an end while its thread does so, too."""


class ProcessKey(NamedTuple):
    """Runs of functions with the same key can share a process, one after another.

    Runs of different resource groups never do: what one group's function leaves in memory is not for another. Neither
    do runs of different languages: a native function may damage the memory of its process.
    """

    code: str
    group: str
    language: str = "PYTHON"
    environment: str = ""
    python: str = ""
    """What the task requires of the interpreter: values of the dimension `python`."""


class Run:
    """``taken_at``: when a thread took it; ``begun``: when its files were requested, or its process began, 0 before.

    ``end_request`` is (reason, grace in seconds), which any thread may set. ``end_reason`` and ``kill_at`` are set by
    the thread that acts on it; the reason stays empty if the run ends by itself.
    ``sizes``: bytes of both streams so far. ``inline`` holds them until they are ``spooled``. ``discard_output``: it
    cannot be stored, or the server rejects it. ``is_long``: it is no short run, so the server is told of its start;
    ``start_reported``: it was. ``is_stopping``: the server has told it to end. ``progress``: not reported yet.
    ``usd_per_s``: what it costs.
    Of functions: ``number`` names the run in the frames to and from a process. ``attempts``: how many processes could
    not be given this run. ``digests``: large inputs that are kept on this machine for it.
    """

    __slots__ = (
        "attempts", "begun", "claimed_at", "deadline", "digests", "discard_output", "end_reason", "end_request", "id",
        "inline", "is_long", "is_stopping", "key", "kill_at", "last_output_at", "memory_bytes", "number", "progress",
        "progress_at", "sizes", "spooled", "start_reported", "state", "taken_at", "task", "token", "usd_per_s",
    )  # fmt: skip

    def __init__(self, task: Task, claimed_at: float = 0.0) -> None:
        self.task = task
        self.id = task.run
        self.token = task.token
        self.claimed_at = claimed_at
        self.state = QUEUED
        self.taken_at = self.begun = self.last_output_at = 0.0
        self.deadline = 0.0
        self.end_request: tuple[str, float] | None = None
        self.end_reason = ""
        self.kill_at = 0.0
        self.sizes = [0, 0]
        self.inline: list[list[bytes]] = [[], []]
        self.spooled = self.discard_output = False
        self.is_long = self.start_reported = self.is_stopping = False
        self.progress: float | None = None
        self.progress_at = self.usd_per_s = 0.0
        self.number = self.attempts = self.memory_bytes = 0
        self.digests: Collection[str] = ()
        function = task.function
        if function is not None:
            python = " ".join(sorted(task.dimensions.get("python") or ()))
            group = task.resource_group or ""
            self.key = ProcessKey(function.code, group, function.language, function.environment, python)
            self.memory_bytes = (function.memory_mb or 0) << 20

    # ---------------------------------------------------------------- time limits and the end

    def begin(self, now: float) -> None:
        """Start the time limits now."""
        self.state = RUNNING
        self.begun = self.last_output_at = now
        self.deadline = now + self.task.execution_timeout_s

    def request_end(self, reason: str, grace_s: float | None = None) -> None:
        """Request the end of this run; the thread that watches it acts on that.

        Of several requests the first reason counts, except that "lost" always wins, and the shortest grace period.
        """
        granted_s = self.task.grace_period_s if grace_s is None else min(grace_s, self.task.grace_period_s)
        with _end_lock:
            if self.end_request is not None:
                first_reason, previous_s = self.end_request
                reason, granted_s = "lost" if reason == "lost" else first_reason, min(granted_s, previous_s)
            self.end_request = (reason, granted_s)

    def accept_end(self, now: float) -> bool:
        """Act on the request to end: set the reason and the earliest time of the kill; whether it is the first time."""
        if self.end_request is None:
            return False
        is_first = not self.end_reason
        self.end_reason, grace_s = self.end_request
        self.kill_at = now + grace_s if is_first else min(self.kill_at, now + grace_s)
        return is_first

    # ---------------------------------------------------------------- output

    def store_output(self, stream: int, data: bytes, spool: LogSpool, *, to_spool: bool) -> None:
        """Keep output in memory while it is small, unless ``to_spool``; else in the spool. Raises OSError."""
        is_small = self.sizes[0] + self.sizes[1] + len(data) <= MAX_INLINE_BYTES
        if not self.discard_output and (to_spool or self.spooled or not is_small):
            self._move_to_spool(spool)
            spool.append(self.id, self.token, stream, data, self.sizes[stream])
        elif not self.discard_output:
            self.inline[stream].append(data)
        self.sizes[stream] += len(data)

    def _move_to_spool(self, spool: LogSpool) -> None:
        self.spooled = True
        for stream in (0, 1):
            if self.inline[stream]:
                spool.append(self.id, self.token, stream, b"".join(self.inline[stream]), 0)
                self.inline[stream] = []

    def log_chunks(self) -> list[Chunk]:
        """The output that is in memory; empty if it is in the spool."""
        return [Chunk(stream, 0, b"".join(parts)) for stream, parts in enumerate(self.inline) if parts]
