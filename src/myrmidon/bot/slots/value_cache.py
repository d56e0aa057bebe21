"""Large values on this machine, by their digest: inputs that were fetched, and outputs of functions that ran here.

    functions/shared/values/<digest>

A value that a function on this bot has produced need not be fetched for the next one. The least recently used values
are removed when there are too many; those that a run needs stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable

from myrmidon.bot.system import filesystem

MAX_BYTES = 2 << 30
_SHARE_OF_DISK = 10
"""The cache takes at most this part of the disk space that is free."""


class ValueCache:
    """Thread-safe. ``sizes``: of all values, the least recently used one first. ``pins``: how many runs need each."""

    def __init__(self, folder: str, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.sizes: dict[str, int] = {}
        self.pins: Counter[str] = Counter()
        self.total = 0

    def path(self, digest: str) -> str:
        return os.path.join(self.folder, digest)

    def pin(self, digests: Iterable[str]) -> None:
        """Keep these values, present or still to be added, until they are released."""
        with self.lock:
            self.pins.update(digests)

    def release(self, digests: Iterable[str]) -> None:
        with self.lock:
            for digest in digests:
                self.pins[digest] -= 1
                if self.pins[digest] <= 0:
                    del self.pins[digest]

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of these values that are not here; the others become the most recently used ones."""
        with self.lock:
            found = []
            for digest in digests:
                size = self.sizes.pop(digest, None)
                if size is None:
                    found.append(digest)
                else:
                    self.sizes[digest] = size
            return found

    def add(self, digest: str, data: bytes) -> None:
        """Store a value whose digest was verified, and remove old ones. Raises OSError."""
        with self.lock:
            if digest in self.sizes:
                return
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            self._make_room(len(data))
            part = f"{self.path(digest)}.part"
            filesystem.remove_file(part)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o644)  # functions may run as another user, and only read it
            os.replace(part, self.path(digest))
            self.sizes[digest] = len(data)
            self.total += len(data)

    def _make_room(self, size: int) -> None:
        free, _ = filesystem.free_disk(self.folder)
        limit = min(self.max_bytes, (free + self.total) // _SHARE_OF_DISK)
        for digest in [digest for digest in self.sizes if digest not in self.pins]:
            if self.total + size <= limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(self.path(digest))
            self.total -= self.sizes.pop(digest)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
