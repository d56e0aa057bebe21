"""Durations as people write them: ``90``, ``"90s"``, ``"10m"``, ``"1h30m"``, ``"7d"``, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

Duration = Union[int, float, str, timedelta]

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")


def seconds(duration: Duration, name: str = "the duration") -> float:
    """The number of seconds; an int where it is whole. Raises ValueError if it is not a positive duration."""
    if isinstance(duration, timedelta):
        found = duration.total_seconds()
    elif isinstance(duration, str) and _WHOLE.fullmatch(duration):
        found = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        found = duration
    else:
        raise ValueError(f"{name} is {duration!r}; write seconds as a number, or a text such as '90s', '10m' or '7d'")
    if not 0 < found < float("inf"):
        raise ValueError(f"{name} is {duration!r}; it must be more than 0")
    return int(found) if found == int(found) else found
