"""Named caches: folders that are kept between runs.

    c/<two letters>   the content of one cache
    c/named/<name>    a link to it, for people
    c/state.json      folder, size and last use of each cache

A run gets the folder of a cache by a rename, and it is renamed back at the end: nothing is copied, and two runs never
share a cache. A cache that cannot be put back is lost, which costs time but no task. The least recently used caches are
removed when there are too many, they are too large or too old, or the disk is short of space; never those that the next
run needs. If state.json is damaged, all caches are removed and that is reported: else a cache could get the content of
another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import stat
import time
from collections.abc import Collection, Mapping
from typing import Any

from myrmidon.bot.machine import settings
from myrmidon.bot.system import clock, filesystem

_NAME = re.compile(r"[a-z0-9_]{1,128}")
_FOLDER = re.compile(r"[a-z0-9]{2}")
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789"


class NamedCaches:
    """The caches of one bot. Not thread-safe: used by the thread that runs commands, or while none runs by the session.

    ``entries``: folder, size and last use of each cache. ``changes`` is increased whenever a cache is added or removed.
    ``problem``: an error found at the start, to be reported.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.links_folder = os.path.join(folder, "named")
        self.state_path = os.path.join(folder, "state.json")
        self.rules: dict[str, float] = settings.DEFAULTS["caches"]["named"]
        self.free_space_rule: dict[str, float] = settings.DEFAULTS["free_partition"]["bot"]
        self.problem = ""
        self.unsaved = False
        self.changes = 0
        os.makedirs(self.links_folder, mode=0o700, exist_ok=True)
        self.entries = self._load()

    def names(self) -> list[str]:
        return sorted(self.entries)

    def recent(self, limit: int) -> list[str]:
        """The names of the most recently used caches."""
        return sorted(self.entries, key=lambda name: -self.entries[name]["used"])[:limit]

    def sizes(self) -> dict[str, int]:
        return {name: entry["size"] for name, entry in self.entries.items()}

    # ---------------------------------------------------------------- state

    def _load(self) -> dict[str, dict[str, Any]]:
        """The stored entries whose folders exist. Removes unknown folders: the bot died before it had saved them."""
        folders = {name for name in os.listdir(self.folder) if _FOLDER.fullmatch(name)}
        try:
            with open(self.state_path, "rb") as file:
                stored = _parse(file.read())
        except FileNotFoundError:
            stored = {}
        except (OSError, ValueError) as error:
            stored = {}
            self.problem = f"the state of the named caches cannot be read, so all of them were removed: {error}"
        entries = {
            name: entry for name, entry in stored.items() if entry["dir"] in folders and self._is_folder(entry["dir"])
        }
        for name in folders - {entry["dir"] for entry in entries.values()}:
            if self._is_folder(name):
                filesystem.remove_tree(os.path.join(self.folder, name))
        for name in os.listdir(self.links_folder):
            self._unlink(name)
        for name, entry in entries.items():
            self._link(name, entry["dir"])
        return entries

    def _is_folder(self, name: str) -> bool:
        return stat.S_ISDIR(os.lstat(os.path.join(self.folder, name)).st_mode)

    def _save(self) -> None:
        """Write state.json without a sync: a crash of the machine may cost a cache and nothing else."""
        self.unsaved = False
        part = self.state_path + ".part"
        with contextlib.suppress(OSError):  # losing times of use must not fail a run
            filesystem.write_file(part, json.dumps({"version": 1, "caches": self.entries}).encode())
            os.replace(part, self.state_path)

    def _link(self, name: str, folder: str) -> None:
        with contextlib.suppress(OSError):  # for people only; the bot never follows it
            os.symlink(os.path.join("..", folder), os.path.join(self.links_folder, name))

    def _unlink(self, name: str) -> None:
        """Remove a link. Other files in that folder are not the bot's and stay."""
        path = os.path.join(self.links_folder, name)
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                os.unlink(path)

    def adopt(self, folder: str) -> None:
        """Import the caches of an older bot version, which kept them in another folder under their names."""
        old = os.path.join(folder, "named")
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(old)):
                path = os.path.join(old, name)
                if _NAME.fullmatch(name) and name not in self.entries:
                    self.put_back(name, path, os.lstat(path).st_mtime)
            self._save()
            os.unlink(os.path.join(folder, "state.json"))
        for empty in (old, folder):
            with contextlib.suppress(OSError):
                os.rmdir(empty)

    # ---------------------------------------------------------------- use by runs

    def install(self, name: str, path: str) -> None:
        """Move a cache, or create an empty folder, to a path that does not exist yet. Raises ValueError or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of a cache")
        entry = self.entries.pop(name, None)
        self.unsaved = True
        self.changes += 1
        if entry is not None:
            self._unlink(name)
            try:
                os.rename(os.path.join(self.folder, entry["dir"]), path)
            except FileNotFoundError:
                pass
            else:
                return
        os.mkdir(path, 0o700)

    def put_back(self, name: str, path: str, now: float | None = None) -> int | None:
        """Move a folder back into the cache; its size. None if it is missing, empty or not a folder: it is dropped."""
        folder = self._free_name()
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode) or not os.listdir(path):
                return None
            size = tree_size(path)
            os.chmod(path, 0o700)
            os.rename(path, os.path.join(self.folder, folder))
        except OSError:
            return None
        self.entries[name] = {"dir": folder, "size": size, "used": self._now() if now is None else now}
        self._link(name, folder)
        self.unsaved = True
        self.changes += 1
        return size

    def _free_name(self) -> str:
        taken = {entry["dir"] for entry in self.entries.values()}
        while True:
            name = random.choice(_NAME_CHARS) + random.choice(_NAME_CHARS)  # noqa: S311 - not a secret
            if name not in taken and not os.path.lexists(os.path.join(self.folder, name)):
                return name

    # ---------------------------------------------------------------- trimming

    def trim(
        self,
        now: float | None = None,
        *,
        needed: Collection[str] = (),
        extra_bytes: int = 0,
    ) -> list[str]:
        """Remove the least recently used caches until all limits hold and enough space is free; their names.

        Those in ``needed`` are never removed. ``extra_bytes`` must be free in addition to the configured space.
        """
        now = clock.server_time() if now is None else now
        candidates = [
            name for name in sorted(self.entries, key=lambda name: self.entries[name]["used"]) if name not in needed
        ]
        removed = []
        while candidates and (self._over_limits(candidates[0], now) or self._short_of_space(extra_bytes)):
            removed.append(candidates.pop(0))
            self.changes += 1
            entry = self.entries.pop(removed[-1])
            self._unlink(removed[-1])
            filesystem.remove_tree(os.path.join(self.folder, entry["dir"]))
        if removed or self.unsaved:
            self._save()
        return removed

    @staticmethod
    def _now() -> float:
        return clock.server_time() or time.time()

    def _over_limits(self, oldest: str, now: float | None) -> bool:
        """Whether the least recently used cache must go. Without the server's time no age is known to be right."""
        rules = self.rules
        return (
            (now is not None and now - self.entries[oldest]["used"] > rules["age_s"])
            or len(self.entries) > rules["items"]
            or sum(entry["size"] for entry in self.entries.values()) > rules["size"]
        )

    def _short_of_space(self, extra_bytes: int) -> bool:
        """Whether less than the required space plus "wiggle" is free. The margin avoids quarantine by a few files."""
        free, total = filesystem.free_disk(self.folder)
        required = settings.required_free(total, self.free_space_rule)
        return free < required + min(required, self.free_space_rule["wiggle"]) + extra_bytes

    def make_room(self, needed: Collection[str], hints: Mapping[str, Any], now: float | None = None) -> list[str]:
        """Free space before a run, for its caches that do not exist here yet. ``hints``: sizes seen on other bots."""
        missing = [hints.get(name) for name in needed if name not in self.entries]
        extra_bytes = sum(int(size) for size in missing if isinstance(size, (int, float)) and size > 0)
        return self.trim(now, needed=needed, extra_bytes=extra_bytes)


def tree_size(path: str) -> int:
    """The total size of all files below a path, without those that cannot be read."""
    size, pending = 0, [path]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size


def _parse(raw: bytes) -> dict[str, dict[str, Any]]:
    """The entries in a state file. Raises ValueError if it is not exactly what `_save` writes."""
    try:
        stored = json.loads(raw)["caches"]
        entries: dict[str, dict[str, Any]] = {
            str(name): {"dir": str(entry["dir"]), "size": int(entry["size"]), "used": float(entry["used"])}
            for name, entry in stored.items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"missing or invalid field: {error!r}") from error
    folders = [entry["dir"] for entry in entries.values()]
    if not all(_NAME.fullmatch(name) for name in entries) or not all(_FOLDER.fullmatch(name) for name in folders):
        raise ValueError("invalid name of a cache or folder")
    if len(set(folders)) != len(folders):
        raise ValueError("two caches have the same folder")
    return entries
