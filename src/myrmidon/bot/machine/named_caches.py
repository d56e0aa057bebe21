"""Named caches: folders that are kept between runs.

    c/<two letters>             the content of one cache
    c/named/<owner>--<name>     a link to it, for people
    c/state.json                owner, name, folder, size and last use of each cache

The owner of a cache is the resource group of the tasks that use it: a cache of the same name is another one for another
group, because a task could read or falsify what others rely on. If commands run as another user, the user is part of
the owner.

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
from typing import Any, Tuple
from urllib.parse import quote

from myrmidon.bot.machine import settings
from myrmidon.bot.system import clock, filesystem

_NAME = re.compile(r"[a-z0-9_]{1,128}")
_FOLDER = re.compile(r"[a-z0-9]{2}")
_NAME_CHARS = "abcdefghijklmnopqrstuvwxyz0123456789"
_STATE_VERSION = 2
"""Version 1 had no owners: its caches are removed."""

CacheKey = Tuple[str, str]
"""(owner, name)"""


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
        os.chmod(folder, 0o700)  # the user of commands owns all caches and may open only those it is given
        self.entries = self._load()

    def names(self) -> list[str]:
        return sorted({name for _, name in self.entries})

    def recent(self, limit: int) -> list[str]:
        """The names of the most recently used caches."""
        by_use = sorted(self.entries, key=lambda key: -self.entries[key]["used"])
        return list(dict.fromkeys(name for _, name in by_use))[:limit]

    def sizes(self) -> dict[str, int]:
        """The size of each cache; of those with the same name, the largest."""
        sizes: dict[str, int] = {}
        for (_, name), entry in self.entries.items():
            sizes[name] = max(entry["size"], sizes.get(name, 0))
        return sizes

    # ---------------------------------------------------------------- state

    def _load(self) -> dict[CacheKey, dict[str, Any]]:
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
            key: entry for key, entry in stored.items() if entry["dir"] in folders and self._is_folder(entry["dir"])
        }
        for name in folders - {entry["dir"] for entry in entries.values()}:
            if self._is_folder(name):
                filesystem.remove_tree(os.path.join(self.folder, name))
        for name in os.listdir(self.links_folder):
            self._unlink(name)
        for key, entry in entries.items():
            self._link(key, entry["dir"])
        return entries

    def _is_folder(self, name: str) -> bool:
        return stat.S_ISDIR(os.lstat(os.path.join(self.folder, name)).st_mode)

    def _save(self) -> None:
        """Write state.json without a sync: a crash of the machine may cost a cache and nothing else."""
        self.unsaved = False
        part = self.state_path + ".part"
        caches = [{"owner": owner, "name": name, **entry} for (owner, name), entry in self.entries.items()]
        with contextlib.suppress(OSError):  # losing times of use must not fail a run
            filesystem.write_file(part, json.dumps({"version": _STATE_VERSION, "caches": caches}).encode())
            os.replace(part, self.state_path)

    def _link(self, key: CacheKey, folder: str) -> None:
        with contextlib.suppress(OSError):  # for people only; the bot never follows it
            os.symlink(os.path.join("..", folder), os.path.join(self.links_folder, _link_name(key)))

    def _unlink(self, name: str) -> None:
        """Remove a link. Other files in that folder are not the bot's and stay."""
        path = os.path.join(self.links_folder, name)
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                os.unlink(path)

    # ---------------------------------------------------------------- use by runs

    def install(self, owner: str, name: str, path: str) -> None:
        """Move a cache, or create an empty folder, to a path that does not exist yet. Raises ValueError or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of a cache")
        entry = self.entries.pop((owner, name), None)
        self.unsaved = True
        self.changes += 1
        if entry is not None:
            self._unlink(_link_name((owner, name)))
            try:
                os.rename(os.path.join(self.folder, entry["dir"]), path)
            except FileNotFoundError:
                pass
            else:
                return
        os.mkdir(path, 0o700)

    def put_back(self, owner: str, name: str, path: str, now: float | None = None) -> int | None:
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
        self.entries[owner, name] = {"dir": folder, "size": size, "used": self._now() if now is None else now}
        self._link((owner, name), folder)
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
        needed: Collection[CacheKey] = (),
        extra_bytes: int = 0,
    ) -> list[CacheKey]:
        """Remove the least recently used caches until all limits hold and enough space is free; their keys.

        Those in ``needed`` are never removed. ``extra_bytes`` must be free in addition to the configured space.
        """
        now = clock.server_time() if now is None else now
        candidates = [
            key for key in sorted(self.entries, key=lambda key: self.entries[key]["used"]) if key not in needed
        ]
        removed = []
        while candidates and (self._over_limits(candidates[0], now) or self._short_of_space(extra_bytes)):
            removed.append(candidates.pop(0))
            self.changes += 1
            entry = self.entries.pop(removed[-1])
            self._unlink(_link_name(removed[-1]))
            filesystem.remove_tree(os.path.join(self.folder, entry["dir"]))
        if removed or self.unsaved:
            self._save()
        return removed

    @staticmethod
    def _now() -> float:
        return clock.server_time() or time.time()

    def _over_limits(self, oldest: CacheKey, now: float | None) -> bool:
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

    def make_room(
        self, owner: str, names: Collection[str], hints: Mapping[str, Any], now: float | None = None
    ) -> list[CacheKey]:
        """Free space before a run, for its caches that do not exist here yet. ``hints``: sizes seen on other bots."""
        needed = [(owner, name) for name in names]
        missing = [hints.get(key[1]) for key in needed if key not in self.entries]
        extra_bytes = sum(int(size) for size in missing if isinstance(size, (int, float)) and size > 0)
        return self.trim(now, needed=needed, extra_bytes=extra_bytes)


def _link_name(key: CacheKey) -> str:
    """The name of the link to a cache. The name of a resource group may contain anything."""
    return f"{quote(key[0], safe='')}--{key[1]}"


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


def _parse(raw: bytes) -> dict[CacheKey, dict[str, Any]]:
    """The entries in a state file. Raises ValueError if it is not exactly what `_save` writes."""
    try:
        state = json.loads(raw)
        if state["version"] < _STATE_VERSION:
            return {}
        entries: dict[CacheKey, dict[str, Any]] = {
            (str(entry["owner"]), str(entry["name"])): {
                "dir": str(entry["dir"]),
                "size": int(entry["size"]),
                "used": float(entry["used"]),
            }
            for entry in state["caches"]
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"missing or invalid field: {error!r}") from error
    folders = [entry["dir"] for entry in entries.values()]
    if not all(_NAME.fullmatch(name) for _, name in entries) or not all(_FOLDER.fullmatch(name) for name in folders):
        raise ValueError("invalid name of a cache or folder")
    if len(set(folders)) != len(folders):
        raise ValueError("two caches have the same folder")
    return entries
