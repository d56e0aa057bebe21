"""The log spool: output on disk, from the time it is read until it is delivered to the server.

    spool/<run>/token             the run's token, needed to deliver the log after a restart
    spool/<run>/<stream>.<start>  bytes from this offset on; a new file every 4 MiB

Bytes are delivered in order, and a file is removed when all of it is delivered. A stream that exceeds its limit while
the server is unreachable loses its oldest files after the first; the gap in the offsets shows what is missing. The
spool does not send anything itself.
"""

from __future__ import annotations

import contextlib
import os
import threading

from myrmidon.bot.storage.log_marks import LogMarks
from myrmidon.bot.system import clock, filesystem

PART_BYTES = 4 << 20
MAX_STREAM_BYTES = 100 << 20


class StreamTail:
    """The undelivered part of one stream of a run: ``parts`` are (offset, size) of its files.

    ``delivered`` is the offset up to which it is delivered, ``end`` the offset after the last byte.
    """

    __slots__ = ("delivered", "end", "file", "parts")

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []
        self.delivered = 0
        self.end = 0
        self.file: int | None = None

    @property
    def pending_bytes(self) -> int:
        return sum(size for start, size in self.parts) - max(self.delivered - self.parts[0][0], 0) if self.parts else 0


class LogSpool:
    """The undelivered logs of all runs. Thread-safe."""

    def __init__(self, folder: str, *, limit: int = MAX_STREAM_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self.lock = threading.Lock()
        self.tokens: dict[str, str] = {}
        self.tails: dict[tuple[str, int], StreamTail] = {}
        self.run_marks: dict[str, LogMarks] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._load()

    def _load(self) -> None:
        """Load what an earlier process of this bot has left; remove folders without a token or with other files."""
        for run in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, run)
            try:
                with open(os.path.join(path, "token")) as file:
                    token = file.read()
                names = [name.split(".") for name in os.listdir(path) if name != "token"]
                parts = sorted((int(stream), int(start, 16)) for stream, start in names)
            except (OSError, ValueError):
                filesystem.remove_tree(path)
                continue
            self.tokens[run] = token
            for stream, start in parts:
                tail = self.tails.setdefault((run, stream), StreamTail())
                size = os.path.getsize(self._path(run, stream, start))
                tail.parts.append((start, size))
                tail.end = start + size
            for tail in (self.tails[key] for key in self.tails if key[0] == run):
                tail.delivered = tail.parts[0][0]

    def runs(self) -> list[str]:
        """The runs with undelivered logs."""
        with self.lock:
            return list(self.tokens)

    def append(self, run: str, token: str, stream: int, data: bytes, start: int) -> None:
        """Append bytes to a stream; ``start`` is their offset if the stream is new here. Raises OSError."""
        with self.lock:
            if run not in self.tokens:
                os.makedirs(os.path.join(self.folder, run), mode=0o700, exist_ok=True)
                filesystem.write_private(os.path.join(self.folder, run, "token"), token.encode())
                self.tokens[run] = token
            tail = self.tails.get((run, stream))
            if tail is None:
                tail = self.tails[run, stream] = StreamTail()
                tail.delivered = tail.end = start
            offset = tail.end
            self._write(run, stream, tail, data)
            if (now := clock.server_time()) is not None:
                self.run_marks.setdefault(run, LogMarks()).add(stream, offset, int(now * 1e6))

    def _write(self, run: str, stream: int, tail: StreamTail, data: bytes) -> None:
        if tail.file is None or tail.parts[-1][1] >= PART_BYTES:
            self._close(tail)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            tail.file = os.open(self._path(run, stream, tail.end), flags, 0o600)
            tail.parts.append((tail.end, 0))
            self._drop_excess(run, stream, tail)
        written = 0
        view = memoryview(data)
        while written < len(data):
            written += os.write(tail.file, view[written:])
        begin, size = tail.parts[-1]
        tail.parts[-1] = (begin, size + len(data))
        tail.end += len(data)

    def _drop_excess(self, run: str, stream: int, tail: StreamTail) -> None:
        while len(tail.parts) > 3 and tail.pending_bytes > self.limit:
            start, _ = tail.parts.pop(1)
            with contextlib.suppress(OSError):
                os.unlink(self._path(run, stream, start))

    def read(self, run: str, stream: int, limit: int) -> tuple[int, bytes]:
        """(offset, bytes) of the next bytes to deliver; no bytes when all are delivered."""
        with self.lock:
            tail = self.tails.get((run, stream))
            if tail is None:
                return 0, b""
            for start, size in tail.parts:
                position = max(start, tail.delivered)
                if position < start + size:
                    return position, self._read(
                        self._path(run, stream, start), position - start, min(limit, start + size - position)
                    )
            return tail.delivered, b""

    def marks(self, run: str, stream: int, end: int) -> list[tuple[int, int]]:
        """When bytes before this offset that are not delivered were written: (time in microseconds, offset)."""
        with self.lock:
            marks = self.run_marks.get(run)
            return marks.before(stream, end) if marks is not None else []

    def _read(self, path: str, position: int, limit: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read(limit)

    def remove_delivered(self, run: str, stream: int, end: int) -> None:
        """Note that the server has everything before this offset, and remove files that are complete."""
        with self.lock:
            tail = self.tails.get((run, stream))
            if tail is not None:
                self._move_on(run, stream, tail, end)

    def _move_on(self, run: str, stream: int, tail: StreamTail, end: int) -> None:
        tail.delivered = max(tail.delivered, end)
        if run in self.run_marks:
            self.run_marks[run].remove(stream, end)
        while len(tail.parts) > 1 and sum(tail.parts[0]) <= tail.delivered:
            start, _ = tail.parts.pop(0)
            with contextlib.suppress(OSError):
                os.unlink(self._path(run, stream, start))

    def drop_refused(self, run: str, stream: int, start: int, end: int, line: bytes) -> bool:
        """Give up bytes that `read` has returned and the server refuses; whether ``line`` replaces the last of them.

        A line that is longer than the bytes, or cannot be written, is left out: the gap in the offsets remains.
        """
        with self.lock:
            tail = self.tails.get((run, stream))
            if tail is None:
                return False
            fits = len(line) < end - start and self._overwrite(run, stream, tail, end - len(line), line)
            self._move_on(run, stream, tail, end - len(line) if fits else end)
            return fits

    def _overwrite(self, run: str, stream: int, tail: StreamTail, offset: int, content: bytes) -> bool:
        part = next((start for start, size in tail.parts if start <= offset < start + size), None)
        if part is None:
            return False
        try:
            with open(self._path(run, stream, part), "r+b") as file:
                file.seek(offset - part)
                file.write(content)
        except OSError:
            return False
        return True

    def pending_bytes(self, run: str) -> int:
        """The number of undelivered bytes of a run."""
        with self.lock:
            return sum(self.tails[key].pending_bytes for key in self._keys(run))

    def remove(self, run: str) -> None:
        """Remove the log of a run, because it is delivered or not wanted."""
        with self.lock:
            self.run_marks.pop(run, None)
            if self.tokens.pop(run, None) is None:
                return
            for key in self._keys(run):
                self._close(self.tails.pop(key))
            filesystem.remove_tree(os.path.join(self.folder, run))

    def _keys(self, run: str) -> list[tuple[str, int]]:
        return [key for key in ((run, 0), (run, 1)) if key in self.tails]

    def _close(self, tail: StreamTail) -> None:
        if tail.file is not None:
            os.close(tail.file)
            tail.file = None

    def _path(self, run: str, stream: int, start: int) -> str:
        return os.path.join(self.folder, run, f"{stream}.{start:016x}")
