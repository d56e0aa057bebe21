"""Large values on this machine, by their digest: inputs that were fetched, and outputs of functions that ran here.

    functions/shared/values/<group>/<digest>

Each resource group has its own folder, and a process may read only the folder of its group. A value that a function on
this bot has produced need not be fetched for the next one. The least recently used values are removed when there are
too many; those that a run needs stay.
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
    """Thread-safe. Values have names, made by ``name``.

    ``sizes``: of all values, the least recently used one first. ``pins``: how many runs need each.
    """

    def __init__(self, folder: str, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.sizes: dict[str, int] = {}
        self.pins: Counter[str] = Counter()
        self.total = 0

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def make_folder(self, group: str) -> str:
        """The folder of a resource group. Raises OSError."""
        path = self.path(_folder_name(group))
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o711)  # noqa: S103 - functions may run as another user
        return path

    def pin(self, names: Iterable[str]) -> None:
        """Keep these values, present or still to be added, until they are released."""
        with self.lock:
            self.pins.update(names)

    def release(self, names: Iterable[str]) -> None:
        with self.lock:
            for name in names:
                self.pins[name] -= 1
                if self.pins[name] <= 0:
                    del self.pins[name]

    def missing(self, names: Iterable[str]) -> list[str]:
        """The values that are not here; the others become the most recently used ones."""
        with self.lock:
            found = []
            for name in names:
                size = self.sizes.pop(name, None)
                if size is None:
                    found.append(name)
                else:
                    self.sizes[name] = size
            return found

    def add(self, group: str, digest: str, data: bytes) -> None:
        """Store a value whose digest was verified, and remove old ones. Raises OSError."""
        name = name_of(group, digest)
        with self.lock:
            if name in self.sizes:
                return
            self.make_folder(group)
            self._make_room(len(data))
            part = f"{self.path(name)}.part"
            filesystem.remove_file(part)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o644)  # functions may run as another user, and only read it
            os.replace(part, self.path(name))
            self.sizes[name] = len(data)
            self.total += len(data)

    def _make_room(self, size: int) -> None:
        free, _ = filesystem.free_disk(self.folder)
        limit = min(self.max_bytes, (free + self.total) // _SHARE_OF_DISK)
        for name in [name for name in self.sizes if name not in self.pins]:
            if self.total + size <= limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(self.path(name))
            self.total -= self.sizes.pop(name)


def name_of(group: str, digest: str) -> str:
    """The name of a value of a resource group."""
    return f"{_folder_name(group)}/{digest}"


def _folder_name(group: str) -> str:
    return digest_of(group.encode())[:32]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
