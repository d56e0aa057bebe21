"""Logs: the stdout and stderr of runs, by offset.

On SQLite these tables are in a second file with its own writer, so that a lot of output does not slow scheduling. Bytes
are accepted in any order and repeatedly. A log over the limit keeps its head and its tail; the range that was cut is
recorded.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

STDOUT = 0
STDERR = 1


def log_url(url: str) -> str:
    """The URL of the logs of a database: a file beside it on SQLite, the database itself elsewhere."""
    beside = url.startswith("sqlite:") and not url.endswith(":memory:")
    return f"{url}-logs" if beside else url


class LogInfo(Struct, frozen=True):
    """The present length of a log, and the range of bytes that was cut."""

    length: int = 0
    cut_from: int | None = None
    cut_to: int | None = None


class LogPart(Struct, frozen=True):
    """A part of a log. ``missing`` bytes before it were cut or have not arrived."""

    start: int
    content: bytes
    missing: int

    @property
    def end(self) -> int:
        return self.start + len(self.content)


_LOGS = Insert("task_logs", "task_id, run, stream, length, cut_from, cut_to")
_CHUNKS = Insert("log_chunks", "task_id, run, stream, start_at, content")
INFO = "SELECT length, cut_from, cut_to FROM task_logs WHERE task_id = :task_id AND run = :run AND stream = :stream"
LOCK_INFO = INFO + " {for_update}"
OVERLAPPING = """
    SELECT start_at, content FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at >= :low AND start_at < :high
     ORDER BY start_at
"""
BEFORE = """
    SELECT start_at, content FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at < :low
     ORDER BY start_at DESC LIMIT 1
"""
NEXT = """
    SELECT start_at FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at >= :low
     ORDER BY start_at LIMIT 1
"""
SIZES_FROM = """
    SELECT start_at, length(content) FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at >= :low AND start_at < :high
     ORDER BY start_at
"""
SIZE_BEFORE = """
    SELECT start_at, length(content) FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at < :low
     ORDER BY start_at DESC LIMIT 1
"""
SAVE_INFO = """
    UPDATE task_logs SET length = :length, cut_from = :cut_from, cut_to = :cut_to
     WHERE task_id = :task_id AND run = :run AND stream = :stream
"""
DROP_CHUNKS = """
    DELETE FROM log_chunks
     WHERE task_id = :task_id AND run = :run AND stream = :stream AND start_at >= :low AND start_at < :high
"""


def info(tx: Tx, task_id: int, run: int, stream: int) -> LogInfo:
    row = tx.one(INFO, task_id=task_id, run=run, stream=stream)
    return LogInfo(*row) if row else LogInfo()


def _lock_info(tx: Tx, task_id: int, run: int, stream: int) -> LogInfo:
    row = tx.one(LOCK_INFO, task_id=task_id, run=run, stream=stream)
    if row is None:
        tx.insert_new(_LOGS, [(task_id, run, stream, 0, None, None)])
        row = tx.one(LOCK_INFO, task_id=task_id, run=run, stream=stream)
    return LogInfo(*row) if row else LogInfo()


def append(
    tx: Tx, task_id: int, run: int, *, stream: int, offset: int, content: bytes, limits: tuple[int, int]
) -> LogInfo:
    """Store bytes at their offset. Idempotent.

    Stored bytes are not overwritten: a repeat after a lost reply has the same bytes.
    """
    known = _lock_info(tx, task_id, run, stream)
    where = {"task_id": task_id, "run": run, "stream": stream}
    for start, piece in _missing(tx, where, offset, content):
        kept = _outside_cut(known, start, piece)
        tx.insert(_CHUNKS, [(task_id, run, stream, at, part) for at, part in kept if part])
    length = max(known.length, offset + len(content))
    changed = _cut(tx, where, LogInfo(length, known.cut_from, known.cut_to), limits)
    if changed != known:
        tx.run(SAVE_INFO, **where, length=changed.length, cut_from=changed.cut_from, cut_to=changed.cut_to)
    return changed


def _outside_cut(known: LogInfo, start: int, piece: bytes) -> list[tuple[int, bytes]]:
    """The bytes that belong to the head or the tail; those in the range that was cut are dropped."""
    if known.cut_from is None or known.cut_to is None:
        return [(start, piece)]
    low, high = max(known.cut_from - start, 0), max(known.cut_to - start, 0)
    return [(start, piece[:low]), (start + high, piece[high:])]


def _missing(tx: Tx, where: dict[str, int], offset: int, content: bytes) -> list[tuple[int, bytes]]:
    """The parts of these bytes that are not stored yet. Reads only offsets and sizes of the stored ones."""
    end = offset + len(content)
    stored = tx.all(SIZE_BEFORE, **where, low=offset) + tx.all(SIZES_FROM, **where, low=offset, high=end)
    pieces = []
    at = offset
    for start, size in stored:
        if start > at:
            pieces.append((at, content[at - offset : start - offset]))
        at = max(at, start + size)
    if at < end:
        pieces.append((at, content[at - offset :]))
    return pieces


def _cut(tx: Tx, where: dict[str, int], known: LogInfo, limits: tuple[int, int]) -> LogInfo:
    """Delete whole chunks between head and tail once the log is over its limit."""
    head, tail = limits
    if known.length <= head + tail:
        return known
    low = known.cut_from if known.cut_from is not None else _end_of_head(tx, where, head)
    high = known.length - tail
    kept = tx.one(SIZE_BEFORE, **where, low=high + 1)
    high = min(high, kept[0]) if kept else high
    if high <= low:
        return known
    tx.run(DROP_CHUNKS, **where, low=low, high=high)
    return LogInfo(known.length, low, max(high, known.cut_to or 0))


def _end_of_head(tx: Tx, where: dict[str, int], head: int) -> int:
    """The end of the last chunk that starts inside the head, or the limit of the head when that is greater."""
    last = tx.one(SIZE_BEFORE, **where, low=head)
    return max(head, last[0] + last[1]) if last else head


def read(tx: Tx, task_id: int, run: int, *, stream: int, start: int, length: int) -> list[LogPart]:
    """The stored bytes of a range, in order, each part with the number of missing bytes before it.

    When nothing in the range is stored, the next stored bytes after it, so that a reader gets past a gap of any length.
    """
    where = {"task_id": task_id, "run": run, "stream": stream}
    parts = _between(tx, where, start, start + length, at=start)
    if parts:
        return parts
    later = tx.one(NEXT, **where, low=start + length)
    return _between(tx, where, later[0], later[0] + length, at=start) if later else []


def stored(tx: Tx, task_id: int, run: int, *, stream: int, low: int, high: int) -> list[LogPart]:
    """The stored bytes between two offsets, in order."""
    if low >= high:
        return []
    return _between(tx, {"task_id": task_id, "run": run, "stream": stream}, low, high, at=low)


def _between(tx: Tx, where: dict[str, int], low: int, end: int, *, at: int) -> list[LogPart]:
    parts = []
    for begin, stored in tx.all(BEFORE, **where, low=low) + tx.all(OVERLAPPING, **where, low=low, high=end):
        first, last = max(begin, at), min(begin + len(stored), end)
        if last > first:
            parts.append(LogPart(first, bytes(stored[first - begin : last - begin]), first - at))
            at = last
    return parts


TASKS_AFTER = "SELECT DISTINCT task_id FROM task_logs WHERE task_id > :after ORDER BY task_id LIMIT :n"


def tasks_after(tx: Tx, after: int, n: int) -> list[int]:
    """The next tasks that have a log."""
    return [row[0] for row in tx.all(TASKS_AFTER, after=after, n=n)]


DELETES = (
    "DELETE FROM log_chunks WHERE task_id {in:ids}",
    "DELETE FROM log_times WHERE task_id {in:ids}",
    "DELETE FROM task_logs WHERE task_id {in:ids}",
)


def delete(tx: Tx, task_ids: Sequence[int]) -> None:
    """Delete the logs of these tasks."""
    for text in DELETES:
        tx.run(text, ids=task_ids)
