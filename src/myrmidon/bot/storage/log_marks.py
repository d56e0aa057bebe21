"""When the output of a run was read, and in which order its two streams were: marks that are sent with the output.

Marks are in memory only: a bot that is restarted sends the output that it has on disk without them.
"""

from __future__ import annotations

MIN_INTERVAL = 100_000
"""Microseconds between two marks of the same stream, unless the other stream was written in between."""
MAX_PENDING = 400
"""Marks of one stream that wait to be sent; the server takes so many with a piece of output."""


class LogMarks:
    """The marks of one run that were not sent yet: (time, offset) by stream.

    The time is that of the server in microseconds. No two marks of a run have the same, so the times are the order.
    """

    __slots__ = ("last_at", "last_stream", "pending")

    def __init__(self) -> None:
        self.pending: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self.last_at = 0
        self.last_stream = -1

    def add(self, stream: int, offset: int, now: int) -> None:
        """Mark the bytes from this offset on, unless the mark before says enough."""
        if stream == self.last_stream and now - self.last_at < MIN_INTERVAL:
            return
        if len(self.pending[stream]) < MAX_PENDING:
            self.last_at = max(now, self.last_at + 1)
            self.last_stream = stream
            self.pending[stream].append((self.last_at, offset))

    def before(self, stream: int, end: int) -> list[tuple[int, int]]:
        """The marks of a stream before an offset."""
        return [mark for mark in self.pending[stream] if mark[1] < end]

    def remove(self, stream: int, end: int) -> None:
        """Remove the marks before an offset, because they are delivered."""
        self.pending[stream][:] = [mark for mark in self.pending[stream] if mark[1] >= end]


def header(marks: list[tuple[int, int]]) -> str:
    """The value of the header X-Log-Marks: each number but the first ones is the difference to the one before."""
    pairs = []
    at = offset = 0
    for mark_at, mark_offset in marks:
        pairs.append(f"{mark_at - at}.{mark_offset - offset}")
        at, offset = mark_at, mark_offset
    return ",".join(pairs)
