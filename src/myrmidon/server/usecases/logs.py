"""Reading stored logs by byte range.

Each stream has its own offsets. Bytes can be missing: the middle of a log over its size limit is cut out, and what a
bot could not upload leaves a gap. A range contains a line in place of missing bytes, which says how many they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import log as logs
from myrmidon.store.tables.log import LogInfo


class LogRange(Struct):
    """Bytes of one or more streams, concatenated; offsets count from the start of the first stream."""

    content: bytes = b""
    length: int = 0
    """The length of all streams."""
    next_offset: int = 0
    """Where the next range begins."""
    cut: list[tuple[int, int]] = []
    """Offsets between which bytes were cut out because a log was over its limit."""


def read_range(tx: Tx, task_id: int, run: int, *, streams: Sequence[int], offset: int, limit: int) -> LogRange:
    """Up to ``limit`` stored bytes of a run's streams, from ``offset`` on."""
    pieces: list[bytes] = []
    result = LogRange(next_offset=offset)
    remaining = limit
    for stream in streams:
        info = logs.info(tx, task_id, run, stream)
        start = max(0, result.next_offset - result.length)
        if remaining > 0 and start < info.length:
            parts, start, remaining = _read_stream(tx, task_id, run, stream, info, start, remaining)
            pieces += parts
            result.next_offset = result.length + start
        if info.cut_from is not None and info.cut_to is not None:
            result.cut.append((result.length + info.cut_from, result.length + info.cut_to))
        result.length += info.length
    result.content = b"".join(pieces)
    return result


def _read_stream(
    tx: Tx, task_id: int, run: int, stream: int, info: LogInfo, start: int, remaining: int
) -> tuple[list[bytes], int, int]:
    """Stored bytes from an offset on, with a line in place of missing ones; the next offset; the rest of the limit."""
    pieces: list[bytes] = []
    while remaining > 0 and start < info.length:
        low = start if not is_cut(info, start) else info.cut_to or start
        if low > start:
            pieces.append(missing_line(low - start))
            start = low
        parts = logs.read(tx, task_id, run, stream=stream, start=start, length=min(remaining, info.length - start))
        if not parts:
            break
        for part in parts:
            if part.missing:
                pieces.append(missing_line(part.missing))
            pieces.append(part.content)
            remaining -= len(part.content)
            start = part.start + len(part.content)
    return pieces, start, remaining


def is_cut(info: LogInfo, offset: int) -> bool:
    """Whether the byte at this offset was cut out."""
    return info.cut_from is not None and info.cut_to is not None and info.cut_from <= offset < info.cut_to


def missing_line(n: int) -> bytes:
    """The line in place of n missing bytes."""
    return b"\n[myrmidon: %d bytes are missing here]\n" % n
