"""The clock of all intervals and deadlines of the bot."""

from __future__ import annotations

import time

from myrmidon.bot.system.platforms import NAME


def boottime() -> float:
    """Seconds of a monotonic clock that also runs while the machine is suspended."""
    return _read_clock(_CLOCK)


def _choose_clock() -> int:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.CLOCK_BOOTTIME
    return getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)


_CLOCK = _choose_clock() if NAME != "windows" else 0
_read_clock = time.clock_gettime if NAME != "windows" else lambda _: time.monotonic()
