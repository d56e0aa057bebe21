"""Log bytes on disk, from the moment they are read until the server has them.

    spool/<run>/token             whose log this is: enough to deliver it after a restart
    spool/<run>/<stream>.<start>  bytes from that offset on; a new file every 4 MiB

Bytes are delivered in order, and a file is removed when all of it has arrived. While the server is away a flood
would fill the disk: beyond a limit the oldest files after the first are dropped, and the gap in the offsets shows
what is missing. The spool sends nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import threading

from myrmidon.bot.system import filesystem

PART = 4 << 20
MOST = 100 << 20


class Tail:
    """What is still to be delivered of one stream of one run."""

    __slots__ = ("end", "file", "parts", "sent")

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []
        self.sent = 0
        self.end = 0
        self.file: int | None = None

    @property
    def waiting(self) -> int:
        return sum(size for start, size in self.parts) - max(self.sent - self.parts[0][0], 0) if self.parts else 0


class Spool:
    """The logs of all runs that are not delivered yet. Safe to use from several threads."""

    def __init__(self, folder: str, *, most: int = MOST) -> None:
        self.folder = folder
        self.most = most
        self.lock = threading.Lock()
        self.tokens: dict[str, str] = {}
        self.tails: dict[tuple[str, int], Tail] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._find_old()

    def _find_old(self) -> None:
        """What an earlier process of this bot has left; a folder without a token can never be delivered."""
        for run in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, run)
            try:
                with open(os.path.join(path, "token")) as file:
                    token = file.read()
                names = [name.split(".") for name in os.listdir(path) if name != "token"]
                found = sorted((int(stream), int(start, 16)) for stream, start in names)
            except (OSError, ValueError):
                filesystem.remove_tree(path)
                continue
            self.tokens[run] = token
            for stream, start in found:
                tail = self.tails.setdefault((run, stream), Tail())
                size = os.path.getsize(self._path(run, stream, start))
                tail.parts.append((start, size))
                tail.end = start + size
            for tail in (self.tails[key] for key in self.tails if key[0] == run):
                tail.sent = tail.parts[0][0]

    def left(self) -> list[str]:
        """The runs of which something is here."""
        with self.lock:
            return list(self.tokens)

    def append(self, run: str, token: str, stream: int, data: bytes, start: int) -> None:
        """Keep bytes of a stream, the first of which has the offset ``start`` if nothing came before."""
        with self.lock:
            if run not in self.tokens:
                os.makedirs(os.path.join(self.folder, run), mode=0o700, exist_ok=True)
                filesystem.write_private(os.path.join(self.folder, run, "token"), token.encode())
                self.tokens[run] = token
            tail = self.tails.get((run, stream))
            if tail is None:
                tail = self.tails[run, stream] = Tail()
                tail.sent = tail.end = start
            self._write(run, stream, tail, data)

    def _write(self, run: str, stream: int, tail: Tail, data: bytes) -> None:
        if tail.file is None or tail.parts[-1][1] >= PART:
            self._close(tail)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            tail.file = os.open(self._path(run, stream, tail.end), flags, 0o600)
            tail.parts.append((tail.end, 0))
            self._drop_middle(run, stream, tail)
        written = 0
        view = memoryview(data)
        while written < len(data):
            written += os.write(tail.file, view[written:])
        begin, size = tail.parts[-1]
        tail.parts[-1] = (begin, size + len(data))
        tail.end += len(data)

    def _drop_middle(self, run: str, stream: int, tail: Tail) -> None:
        while len(tail.parts) > 3 and tail.waiting > self.most:
            start, _ = tail.parts.pop(1)
            with contextlib.suppress(OSError):
                os.unlink(self._path(run, stream, start))

    def read(self, run: str, stream: int, most: int) -> tuple[int, bytes]:
        """(offset, bytes) of the next bytes to deliver; no bytes when all have been."""
        with self.lock:
            tail = self.tails.get((run, stream))
            if tail is None:
                return 0, b""
            for start, size in tail.parts:
                at = max(start, tail.sent)
                if at < start + size:
                    return at, self._read(self._path(run, stream, start), at - start, min(most, start + size - at))
            return tail.sent, b""

    def _read(self, path: str, at: int, most: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(most)

    def delivered(self, run: str, stream: int, upto: int) -> None:
        """The server has everything before this offset."""
        with self.lock:
            tail = self.tails.get((run, stream))
            if tail is None:
                return
            tail.sent = max(tail.sent, upto)
            while len(tail.parts) > 1 and sum(tail.parts[0]) <= tail.sent:
                start, _ = tail.parts.pop(0)
                with contextlib.suppress(OSError):
                    os.unlink(self._path(run, stream, start))

    def waiting(self, run: str) -> int:
        """How many bytes of a run are still to be delivered."""
        with self.lock:
            return sum(self.tails[key].waiting for key in self._keys(run))

    def remove(self, run: str) -> None:
        """The log has arrived, or nobody wants it."""
        with self.lock:
            if self.tokens.pop(run, None) is None:
                return
            for key in self._keys(run):
                self._close(self.tails.pop(key))
            filesystem.remove_tree(os.path.join(self.folder, run))

    def _keys(self, run: str) -> list[tuple[str, int]]:
        return [key for key in ((run, 0), (run, 1)) if key in self.tails]

    def _close(self, tail: Tail) -> None:
        if tail.file is not None:
            os.close(tail.file)
            tail.file = None

    def _path(self, run: str, stream: int, start: int) -> str:
        return os.path.join(self.folder, run, f"{stream}.{start:016x}")
