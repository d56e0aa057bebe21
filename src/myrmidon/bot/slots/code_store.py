"""The code of functions, unpacked by its digest: each zip is fetched, checked and unpacked once.

functions/shared/code/<digest>/   the modules; processes may read them
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection

from myrmidon.bot.slots.value_cache import digest_of
from myrmidon.bot.system import filesystem
from myrmidon.executor.code_archive import BadCode, open_code, unpack

MAX_TOTAL_BYTES = 2 << 30
"""Of all code of this bot; the least recently used one that no process uses is removed."""


class CodeStore:
    """Thread-safe. ``sizes``: of all unpacked code, the least recently used one first."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.sizes: dict[str, int] = {}

    def path(self, digest: str) -> str:
        """The folder of a code; empty for code that is installed on the bot."""
        return os.path.join(self.folder, digest) if digest else ""

    def has(self, digest: str) -> bool:
        """Whether this code is here; it becomes the most recently used one."""
        if not digest:
            return True
        with self.lock:
            size = self.sizes.pop(digest, None)
            if size is not None:
                self.sizes[digest] = size
            return size is not None

    def add(self, digest: str, zipped: bytes, used: Collection[str] = ()) -> None:
        """Check and unpack a zip. ``used``: code that processes use. Raises BadCode or OSError."""
        if digest_of(zipped) != digest:
            raise BadCode("its digest is wrong")
        with self.lock:
            if digest in self.sizes:
                return
            self.sizes[digest] = self._unpack(digest, zipped)
            self._remove_old(used, digest)

    def _unpack(self, digest: str, zipped: bytes) -> int:
        target, part = self.path(digest), f"{self.path(digest)}.part"
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        filesystem.remove_tree(part)
        try:
            with open_code(zipped) as archive:
                unpack(archive, part)
                size = sum(entry.file_size for entry in archive.infolist())
        except BaseException:
            filesystem.remove_tree(part)
            raise
        os.replace(part, target)
        return size

    def _remove_old(self, used: Collection[str], newest: str) -> None:
        total = sum(self.sizes.values())
        for digest in [digest for digest in self.sizes if digest not in used and digest != newest]:
            if total <= MAX_TOTAL_BYTES:
                return
            total -= self.sizes.pop(digest)
            filesystem.remove_tree(self.path(digest))
