"""Limits log uploads while the server is busy, so that output does not slow down the start and end of runs.

The first megabytes of a run's log are never limited. Beyond them, on a busy server, all logs share one rate: the reply
to an upload asks the bot to pause. A bot reads no faster than it may send, so a command that writes too much blocks on
its full pipe; nothing of the log is lost, and other runs are not slowed down. No pause is longer than ``MAX_PAUSE_S``
and an upload has up to a megabyte, so a command that writes less than half a megabyte a second never waits.
"""

from __future__ import annotations

from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND

FREE_BYTES = 2 << 20
BUSY_RUNS = 10
"""A server is busy if this many runs began or ended in the current second and the one before it."""
BYTES_PER_S = 4_000_000
"""The rate that all limited logs share."""
MAX_PAUSE_S = 2.0


class LogThrottle:
    """Counts the runs of the last two seconds and schedules the log uploads beyond ``FREE_BYTES``."""

    def __init__(self) -> None:
        self._second = 0
        self._runs_this_second = 0
        self._runs_last_second = 0
        self._free_at: Micros = 0
        """When the shared rate has room for the next upload."""

    def record_runs(self, runs: int, now: Micros) -> None:
        """Count runs that began or ended."""
        self._advance(now)
        self._runs_this_second += runs

    def pause(self, offset: int, size: int, now: Micros) -> float:
        """Seconds that a bot is to wait with the rest of a log after an upload of ``size`` bytes at ``offset``."""
        self._advance(now)
        if offset < FREE_BYTES or self._runs_this_second + self._runs_last_second < BUSY_RUNS:
            return 0.0
        self._free_at = max(self._free_at, now) + size * SECOND // BYTES_PER_S
        return min(MAX_PAUSE_S, (self._free_at - now) / SECOND)

    def _advance(self, now: Micros) -> None:
        second = now // SECOND
        if second != self._second:
            self._runs_last_second = self._runs_this_second if second == self._second + 1 else 0
            self._second, self._runs_this_second = second, 0
