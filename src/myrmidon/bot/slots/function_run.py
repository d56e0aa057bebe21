"""The state of one run of a function: its task, what is known of functions like it, and the request to end it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from myrmidon.bot.run.run_log import RunLog

SHORT_S = 0.1  # a function that takes longer is never queued behind another one
PIPE_S = 0.01  # how much work is queued in the pipe of a process
MAX_DEPTH = 64
_LEAST_S = 1e-5
_MAX_STATS = 4096


class ProcessKey(NamedTuple):
    """Runs with the same key can share a process, one after another.

    Runs of different resource groups never do: what one group's function leaves in memory is not for another. Neither
    do runs of different languages: a native function may damage the memory of its process.
    """

    code: str
    group: str
    language: str = "PYTHON"
    environment: str = ""
    python: str = ""
    """What the task requires of the interpreter: values of the dimension `python`."""


class FunctionStats:
    """What is known of one function. ``depth``: how many of its runs may be in the pipe of a process."""

    __slots__ = ("depth", "mean_s")

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.depth = 1

    def add(self, seconds: float) -> None:
        self.mean_s = 0.8 * self.mean_s + 0.2 * seconds if self.mean_s else max(seconds, _LEAST_S)
        if self.mean_s > SHORT_S:
            self.depth = 1
        else:
            self.depth = min(MAX_DEPTH, max(2, int(PIPE_S / max(self.mean_s, _LEAST_S))))


class StatsTable:
    """What is known of each function of this bot."""

    def __init__(self) -> None:
        self.by_function: dict[tuple[str, str, str], FunctionStats] = {}

    def of(self, function: dict[str, Any]) -> FunctionStats:
        key = (function.get("code") or "", function["package_name"], function["func_name"])
        stats = self.by_function.get(key)
        if stats is None:
            if len(self.by_function) >= _MAX_STATS:
                self.by_function.clear()
            stats = self.by_function[key] = FunctionStats()
        return stats


class FunctionRun(RunLog):
    """One run. ``id`` is its number in the frames to and from a process.

    ``begun``: when its process has begun it, 0 before. ``end_reason``: why it is being ended, empty while it is not;
    ``kill_at``: when its process is killed then. ``is_long``: the session thread knows that it has begun. ``attempts``:
    how many processes could not be given this run. ``digests``: large inputs that are kept on this machine for it.
    """

    __slots__ = (
        "attempts", "begun", "deadline", "digests", "end_reason", "grace_s", "id", "is_long", "key", "kill_at",
        "memory_bytes", "stats", "task",
    )  # fmt: skip

    def __init__(self, number: int, task: dict[str, Any], stats: FunctionStats) -> None:
        function = task["function"]
        super().__init__(task)
        self.id = number
        self.task = task
        required = (task.get("dimensions") or {}).get("python") or ()
        self.key = ProcessKey(
            function.get("code") or "",
            task.get("resource_group") or "",
            function.get("language") or "PYTHON",
            function.get("environment") or "",
            " ".join(sorted(required)),
        )
        self.stats = stats
        self.attempts = 0
        self.digests: Collection[str] = ()
        self.begun = 0.0
        self.deadline = 0.0
        self.grace_s: float = task["grace_period_s"]
        self.memory_bytes = int(function.get("memory_mb") or 0) << 20
        self.end_reason = ""
        self.kill_at = 0.0
        self.is_long = False

    def must_end(self) -> bool:
        return bool(self.end_reason)

    def begin(self, now: float) -> None:
        """The process has begun this run, as far as is known."""
        self.begun = now
        self.deadline = now + self.task["execution_timeout_s"]

    def request_end(self, reason: str, grace_s: float | None, now: float) -> None:
        """Set the reason and the time of the kill. "lost" always wins, else the first reason; the earliest time."""
        granted_s = self.grace_s if grace_s is None else min(grace_s, self.grace_s)
        kill_at = now + granted_s
        self.kill_at = min(self.kill_at, kill_at) if self.end_reason else kill_at
        self.end_reason = "lost" if reason == "lost" else self.end_reason or reason
