"""The time of a server: an anchor plus a clock that cannot be set.

The wall clock of a machine may be set to a wrong time at any moment, by a person or by a time service. So it is read
once, at start; from then on time is counted by CLOCK_BOOTTIME, which goes on while the machine is suspended.
A step of the wall clock is therefore not seen. It is followed only after it has proved right: docs/decisions/0030.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND

SETTLE_WITH_DATABASE: Micros = 300 * SECOND
"""The time for which a step must last that the database's clock confirms. It may be the clock of the same machine."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_time() -> Micros:
    """The wall clock in microseconds since 1970. Code that has a ServerContext uses its ``now``."""
    return time.time_ns() // 1000


boot_time_ns: Callable[[], int] = partial(time.clock_gettime_ns, _BOOT_CLOCK)
"""Nanoseconds of a clock that cannot be set, and that goes on while the machine is suspended."""


class Clock:
    """The clock of one server. Calling it returns the time in microseconds since 1970."""

    def __init__(
        self,
        *,
        max_skew: Micros,
        settle: Micros,
        wall: Callable[[], Micros] = wall_time,
        boot_ns: Callable[[], int] = boot_time_ns,
    ) -> None:
        self._max_skew = max_skew
        self._settle = settle
        """The time for which a step must last before this clock follows it."""
        self._wall = wall
        self._boot_ns = boot_ns
        self._offset = wall() - self.boot()
        self._step: Micros | None = None
        """The offset of a wall clock that was set to another time; None while it agrees with this clock."""
        self._step_since: Micros = 0
        """When the step was first seen, by the boot clock."""

    def __call__(self) -> Micros:
        return self._boot_ns() // 1000 + self._offset

    def boot(self) -> Micros:
        """The boot clock."""
        return self._boot_ns() // 1000

    def offset_of(self, time_read: Micros, began: Micros) -> Micros:
        """How far another clock is ahead of the boot clock; it was read between ``began`` (boot clock) and now."""
        return time_read - (began + self.boot()) // 2

    def compare(self, database_offset: Micros | None = None) -> Micros:
        """Compare with the wall clock and the database's; returns the time by the reference.

        The reference is the database's clock; on SQLite, which has none, it is the wall clock. Small differences are
        corrected at once, so that this clock follows a time service. A step is followed when it has lasted for
        ``settle``, and only if the wall clock and the database's agree on it.
        """
        boot = self.boot()
        wall_offset = self._wall() - boot
        reference = wall_offset if database_offset is None else database_offset
        if abs(wall_offset - reference) > self._max_skew:
            self._step = None  # which of the two is right cannot be known here
        elif abs(self._offset - wall_offset) <= self._max_skew:
            self._step, self._offset = None, wall_offset
        else:
            self._follow_step(wall_offset, boot)
        return boot + reference

    def _follow_step(self, wall_offset: Micros, boot: Micros) -> None:
        if self._step is None or abs(self._step - wall_offset) > self._max_skew:
            self._step_since = boot
        self._step = wall_offset  # the latest value, because a time service may adjust the clock meanwhile
        if boot - self._step_since >= self._settle:
            self._step, self._offset = None, wall_offset

    @property
    def follows_in(self) -> Micros | None:
        """The remaining time until a step of the wall clock is followed; None if there is none to follow."""
        if self._step is None:
            return None
        return max(0, self._step_since + self._settle - self.boot())
