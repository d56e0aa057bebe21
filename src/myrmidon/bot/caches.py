"""Named caches: folders that outlive the runs that use them.

A run that asks for a cache gets its folder by a rename, and it is renamed back at the end: no byte is copied, and
two runs never share one. A cache that cannot be put back is lost, which costs time but no task. The folder of a
cache bears its name, so that the state file only has to say when each was used last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time

from myrmidon.bot import system

MOST = 50
OLDEST_S = 21 * 86400.0
_NAME = re.compile(r"[a-z0-9_]{1,128}")


class Caches:
    """The caches of one bot; used by one thread."""

    def __init__(self, folder: str, *, most: int = MOST) -> None:
        self.folder = os.path.join(folder, "named")
        self.state = os.path.join(folder, "state.json")
        self.most = most
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.used = self._load()

    def _load(self) -> dict[str, float]:
        """When each cache was used last. A broken state file loses only that: the oldest go first by their folders."""
        used = {name: os.lstat(os.path.join(self.folder, name)).st_mtime for name in os.listdir(self.folder)}
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            with open(self.state, "rb") as file:
                saved = json.loads(file.read())
            used.update({name: float(at) for name, at in saved.items() if name in used})
        return {name: at for name, at in used.items() if _NAME.fullmatch(name)}

    def names(self) -> list[str]:
        return sorted(self.used)

    def install(self, name: str, path: str) -> None:
        """Put a cache, or a new and empty folder, at a path where nothing is yet. Raises ValueError or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a cache")
        mine = os.path.join(self.folder, name)
        try:
            os.rename(mine, path)
        except FileNotFoundError:
            os.mkdir(path, 0o700)
        self.used.pop(name, None)

    def put_back(self, name: str, path: str, now: float | None = None) -> bool:
        """Take the folder back. False when it is gone, empty or no folder any more: then there is no such cache."""
        mine = os.path.join(self.folder, name)
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode) or not os.listdir(path):
                return False
            system.remove_tree(mine)
            os.rename(path, mine)
        except OSError:
            return False
        self.used[name] = time.time() if now is None else now
        self._save()
        return True

    def trim(self, now: float | None = None, *, short_of_disk: bool = False) -> list[str]:
        """Remove what is too old or too many, and one more, the oldest, when the disk is short; what was removed."""
        now = time.time() if now is None else now
        oldest_first = sorted(self.used, key=lambda name: self.used[name])
        going = [name for name in oldest_first if now - self.used[name] > OLDEST_S]
        going += [name for name in oldest_first[: max(0, len(oldest_first) - self.most)] if name not in going]
        if short_of_disk and not going:
            going = oldest_first[:1]
        for name in going:
            system.remove_tree(os.path.join(self.folder, name))
            del self.used[name]
        if going:
            self._save()
        return going

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # times of use are worth no failure
            system.write_private(self.state, json.dumps(self.used).encode())
