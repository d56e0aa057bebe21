"""Output gives way to work: while many runs begin and end, those who flood their log are asked to pause.

A run's first megabytes are always taken as they come. What comes after them shares a modest rate as long as the server
has better things to do; the bot reads no faster than it may send, so a flooding command waits on its own full pipe.
Nothing of the log is lost by it, and nobody else is slowed down. No pause is longer than ``LONGEST_S``, and a piece is
up to a megabyte: who writes less than half of one a second never waits, however many others flood.
"""

from __future__ import annotations

from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND

FREE = 2 << 20
BUSY = 10
"""So many runs that began or ended within this second and the last one make a server busy."""
RATE = 4_000_000
"""Bytes a second of all floods together, on a busy server."""
LONGEST_S = 2.0


class Floods:
    """What a server remembers of the last two seconds."""

    def __init__(self) -> None:
        self._second = 0
        self._now = 0
        self._before = 0
        self._free_at: Micros = 0

    def worked(self, runs: int, now: Micros) -> None:
        """So many runs have begun or ended."""
        self._turn(now)
        self._now += runs

    def pause(self, offset: int, size: int, now: Micros) -> float:
        """How long a bot shall wait with the rest of a log, of which it has just sent ``size`` bytes at ``offset``."""
        self._turn(now)
        if offset < FREE or self._now + self._before < BUSY:
            return 0.0
        self._free_at = max(self._free_at, now) + size * SECOND // RATE
        return min(LONGEST_S, (self._free_at - now) / SECOND)

    def _turn(self, now: Micros) -> None:
        second = now // SECOND
        if second != self._second:
            self._before = self._now if second == self._second + 1 else 0
            self._second, self._now = second, 0
