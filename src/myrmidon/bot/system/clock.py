"""The clocks of the bot: one for intervals and deadlines, and the time of the server.

The wall clock of the machine may be wrong, so nothing is decided by it.
"""

from __future__ import annotations

import time

from myrmidon.bot.system.platforms import NAME


def boottime() -> float:
    """Seconds of a monotonic clock that also runs while the machine is suspended."""
    return _read_clock(_CLOCK)


def set_server_time(micros: int | None) -> None:
    """Record the time of the server in microseconds since 1970, from a response that has just arrived."""
    global _server_offset
    if micros is not None:
        _server_offset = micros / 1e6 - boottime()


def server_time() -> float | None:
    """Seconds since 1970 by the clock of the server; None before the first handshake."""
    return None if _server_offset is None else boottime() + _server_offset


_server_offset: float | None = None


def _choose_clock() -> int:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.CLOCK_BOOTTIME
    return getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)


_CLOCK = _choose_clock() if NAME != "windows" else 0
_read_clock = time.clock_gettime if NAME != "windows" else lambda _: time.monotonic()
