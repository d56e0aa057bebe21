"""Ids: 63-bit integers that sort by time of creation.

    62                                   20 19      14 13         4 3     0
    +--------------------------------------+----------+------------+-------+
    | milliseconds since 2010-01-01        | slot     | counter    | 1     |
    +--------------------------------------+----------+------------+-------+
      43 bits, good until 2288               6 bits     10 bits      version

A slot is leased by one server, so two servers never make the same id. The text form is hex with one more
*byte*: 00 for the task, 01..ff for its runs. Run numbers divisible by 16 are skipped, so only task ids end in 0.
No id is from the first minute of 2010, so the text form has 12 to 18 digits: `123` is not an id.
Nothing here reads a clock: the time is a parameter.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import TypeAlias

from myrmidon.model.errors import BrokenPromise, InvalidRequest, Problem

Micros: TypeAlias = int
"""Microseconds UTC since 1970."""

EPOCH_MS = 1_262_304_000_000
SLOTS = 64
RUN_CAP = 255
VERSION = 1

_COUNTER_BITS = 10
_FIRST_TICK = 1 << (16 + _COUNTER_BITS)
"""A clock that is before this yields ids from here on, so that all ids have 12 digits or more."""
_LAST_TICK = (1 << (43 + _COUNTER_BITS)) - 1
_SHOWN = re.compile(r"[1-9a-f][0-9a-f]{8,14}1[0-9a-f]{2}")


class IdSource:
    """Makes ids for one slot, strictly increasing, from any thread.

    When the clock steps back, or a burst exceeds 1,024 ids in a millisecond, ids continue from the last
    one: ``next = max(last + 1, now)``. After a restart, pass the last id that was made for the slot.
    """

    def __init__(self, slot: int, last: int = 0) -> None:
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot} is not in 0..{SLOTS - 1}")
        self.slot = slot
        self._low = slot << 14 | VERSION
        self._tick = max(_tick_of(last), _FIRST_TICK - 1)
        self._lock = Lock()

    def next(self, now: Micros) -> int:
        """One new id, greater than every earlier id of this source."""
        with self._lock:
            tick = (now // 1000 - EPOCH_MS) << _COUNTER_BITS
            if tick <= self._tick:
                tick = self._tick + 1
            if tick > _LAST_TICK:
                raise BrokenPromise("Ids end in the year 2288.")
            self._tick = tick
        return (tick >> _COUNTER_BITS) << 20 | (tick & 0x3FF) << 4 | self._low

    def block(self, n: int, now: Micros) -> list[int]:
        """n new ids in ascending order."""
        low = self._low
        with self._lock:
            first = max(self._tick + 1, (now // 1000 - EPOCH_MS) << _COUNTER_BITS)
            last = first + n - 1
            if last > _LAST_TICK:
                raise BrokenPromise("Ids end in the year 2288.")
            self._tick = max(self._tick, last)
        return [(t >> _COUNTER_BITS) << 20 | (t & 0x3FF) << 4 | low for t in range(first, first + n)]


def _tick_of(task_id: int) -> int:
    return (task_id >> 20) << _COUNTER_BITS | (task_id >> 4) & 0x3FF


def show_task(task_id: int) -> str:
    """The text form of a task id."""
    return f"{task_id:x}00"


def show_run(task_id: int, number: int) -> str:
    """The text form of a run id; number 0 is the task itself."""
    return f"{task_id:x}{number:02x}"


def parse_id(text: str, path: str = "id") -> tuple[int, int]:
    """(task id, run number) of an id in text form; the run number is 0 for a task. Raises InvalidRequest."""
    parsed = try_parse_id(text)
    if parsed is None:
        allowed = "an id as the server shows it, e.g. 7c07a39dc80000100"
        raise InvalidRequest([Problem(path, repr(text)[:100], allowed)])
    return parsed


def try_parse_id(text: object) -> tuple[int, int] | None:
    """Like parse_id, but returns None for anything that is not an id."""
    if not isinstance(text, str) or not _SHOWN.fullmatch(text):
        return None
    task_id, number = int(text[:-2], 16), int(text[-2:], 16)
    if task_id >> 63 or (number and number % 16 == 0):
        return None
    return task_id, number


def next_run_number(n: int) -> int | None:
    """The run number after n (0 before the first run); None at the cap of 255."""
    following = n + 1 if (n + 1) % 16 else n + 2
    return following if following <= RUN_CAP else None


def created_ms(task_id: int) -> int:
    """Unix milliseconds at which the id was made. After a burst or a clock step it may be late by that much."""
    return (task_id >> 20) + EPOCH_MS


def first_id_at(now: Micros) -> int:
    """The lower bound of all ids made in this millisecond or later, for comparing ``created >= now``."""
    return max(0, now // 1000 - EPOCH_MS) << 20 | VERSION
