"""When output was written, and in which order stdout and stderr were: marks that bots send with their output.

Kept apart from the output itself, so that reading them reads no output. A log without marks is one of an older bot, or
so short that it was sent with the result.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Mark(Struct, frozen=True, array_like=True):
    """Bytes of a stream from ``offset`` on were written at this time, or shortly before."""

    at: Micros
    offset: int


_TIMES = Insert("log_times", "task_id, run, first_at, stream, marks")
PAGE = """
    SELECT first_at, stream, marks FROM log_times
     WHERE task_id = :task_id AND run = :run AND first_at > :after ORDER BY first_at, stream LIMIT :n
"""
_decode = json.Decoder(list[Mark]).decode


def add(tx: Tx, task_id: int, run: int, *, stream: int, marks: Sequence[Mark]) -> None:
    """Store the marks of a piece of output. Idempotent: a piece that comes again changes nothing."""
    if marks:
        tx.insert_new(_TIMES, [(task_id, run, marks[0].at, stream, json.encode(marks).decode())])


def page(tx: Tx, task_id: int, run: int, *, after: Micros, n: int) -> tuple[list[tuple[int, Mark]], Micros | None]:
    """The marks, with their streams, of the next n pieces; and what to continue after, or None at the end.

    Pieces of the two streams overlap in time: sorted are the marks of one page, and pages have to be merged.
    """
    rows = tx.all(PAGE, task_id=task_id, run=run, after=after, n=n)
    marks = [(row[1], mark) for row in rows for mark in _decode(row[2])]
    marks.sort(key=lambda pair: pair[1].at)
    return marks, rows[-1][0] if len(rows) == n else None
