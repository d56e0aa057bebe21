"""Named caches: folders that outlive the runs that use them.

    c/<two letters>   the content of one cache
    c/named/<name>    a link to it, for people
    c/state.json      of each cache: its folder, its size, when it was used last

A run that asks for a cache gets its folder by a rename, and it is renamed back at the end: no byte is copied, and
two runs never share one. A cache that cannot be put back is lost, which costs time but no task. The least recently
used go when there are too many, too much, too old, or too little is free; never those that a run asks for. A state
that cannot be read could give one cache the content of another: then all of them go, and that is told.
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
from myrmidon.bot.system import host

_NAME = re.compile(r"[a-z0-9_]{1,128}")
_FOLDER = re.compile(r"[a-z0-9]{2}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class Caches:
    """The caches of one bot. Used by one thread at a time: the one that runs, or the one that talks while none runs.

    ``kept`` tells of each cache its folder, size and last use; ``changes`` grows whenever one comes or goes;
    ``problem`` is something to be told, once.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.links = os.path.join(folder, "named")
        self.state = os.path.join(folder, "state.json")
        self.rules: dict[str, float] = settings.DEFAULTS["caches"]["named"]
        self.room: dict[str, float] = settings.DEFAULTS["free_partition"]["bot"]
        self.problem = ""
        self.unsaved = False
        self.changes = 0
        os.makedirs(self.links, mode=0o700, exist_ok=True)
        self.kept = self._load()

    def names(self) -> list[str]:
        return sorted(self.kept)

    def recent(self, most: int) -> list[str]:
        """The names of those that were used last."""
        return sorted(self.kept, key=lambda name: -self.kept[name]["used"])[:most]

    def sizes(self) -> dict[str, int]:
        return {name: one["size"] for name, one in self.kept.items()}

    # ---------------------------------------------------------------- the state

    def _load(self) -> dict[str, dict[str, Any]]:
        """What is really there of what the state tells. A folder that it does not know was being put back."""
        folders = {name for name in os.listdir(self.folder) if _FOLDER.fullmatch(name)}
        try:
            with open(self.state, "rb") as file:
                told = _parse(file.read())
        except FileNotFoundError:
            told = {}
        except (OSError, ValueError) as error:
            told = {}
            self.problem = f"the state of the named caches cannot be read, so all of them were removed: {error}"
        kept = {name: one for name, one in told.items() if one["dir"] in folders and self._is_folder(one["dir"])}
        for name in folders - {one["dir"] for one in kept.values()}:
            if self._is_folder(name):
                host.remove_tree(os.path.join(self.folder, name))
        for name in os.listdir(self.links):
            self._unlink(name)
        for name, one in kept.items():
            self._link(name, one["dir"])
        return kept

    def _is_folder(self, name: str) -> bool:
        return stat.S_ISDIR(os.lstat(os.path.join(self.folder, name)).st_mode)

    def _save(self) -> None:
        """Without forcing it to the disk: after a crash of the machine a cache may be lost, and nothing else."""
        self.unsaved = False
        part = self.state + ".part"
        with contextlib.suppress(OSError):  # times of use are worth no failure
            host.write_file(part, json.dumps({"version": 1, "caches": self.kept}).encode())
            os.replace(part, self.state)

    def _link(self, name: str, folder: str) -> None:
        with contextlib.suppress(OSError):  # a help for people; the bot never follows it
            os.symlink(os.path.join("..", folder), os.path.join(self.links, name))

    def _unlink(self, name: str) -> None:
        """Only a link: whatever else is in that folder, the bot has not put it there."""
        path = os.path.join(self.links, name)
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                os.unlink(path)

    def adopt(self, folder: str) -> None:
        """Take over the caches of an older bot in this folder, which kept them under their names."""
        old = os.path.join(folder, "named")
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(old)):
                path = os.path.join(old, name)
                if _NAME.fullmatch(name) and name not in self.kept:
                    self.put_back(name, path, os.lstat(path).st_mtime)
            self._save()
            os.unlink(os.path.join(folder, "state.json"))
        for empty in (old, folder):
            with contextlib.suppress(OSError):
                os.rmdir(empty)

    # ---------------------------------------------------------------- in and out

    def install(self, name: str, path: str) -> None:
        """Put a cache, or a new and empty folder, at a path where nothing is yet. Raises ValueError or OSError."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a cache")
        one = self.kept.pop(name, None)
        self.unsaved = True
        self.changes += 1
        if one is not None:
            self._unlink(name)
            try:
                os.rename(os.path.join(self.folder, one["dir"]), path)
            except FileNotFoundError:
                pass
            else:
                return
        os.mkdir(path, 0o700)

    def put_back(self, name: str, path: str, now: float | None = None) -> int | None:
        """Take the folder back; its size. None when it is gone, empty or no folder: then there is no such cache."""
        folder = self._free_name()
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode) or not os.listdir(path):
                return None
            size = tree_size(path)
            os.chmod(path, 0o700)
            os.rename(path, os.path.join(self.folder, folder))
        except OSError:
            return None
        self.kept[name] = {"dir": folder, "size": size, "used": time.time() if now is None else now}
        self._link(name, folder)
        self.unsaved = True
        self.changes += 1
        return size

    def _free_name(self) -> str:
        taken = {one["dir"] for one in self.kept.values()}
        while True:
            name = random.choice(_LETTERS) + random.choice(_LETTERS)  # noqa: S311 - a name, no secret
            if name not in taken and not os.path.lexists(os.path.join(self.folder, name)):
                return name

    # ---------------------------------------------------------------- trimming

    def trim(
        self,
        now: float | None = None,
        *,
        wanted: Collection[str] = (),
        more: int = 0,
    ) -> list[str]:
        """Remove what is too old, too many or too much, and then the oldest until enough is free; what was removed.

        ``wanted`` are never removed. ``more`` bytes should be free besides what must always be.
        """
        now = time.time() if now is None else now
        line = [name for name in sorted(self.kept, key=lambda name: self.kept[name]["used"]) if name not in wanted]
        gone = []
        while line and (self._too_much(line[0], now) or self._too_full(more)):
            gone.append(line.pop(0))
            self.changes += 1
            one = self.kept.pop(gone[-1])
            self._unlink(gone[-1])
            host.remove_tree(os.path.join(self.folder, one["dir"]))
        if gone or self.unsaved:
            self._save()
        return gone

    def _too_much(self, oldest: str, now: float) -> bool:
        rules = self.rules
        return (
            now - self.kept[oldest]["used"] > rules["age_s"]
            or len(self.kept) > rules["items"]
            or sum(one["size"] for one in self.kept.values()) > rules["size"]
        )

    def _too_full(self, more: int) -> bool:
        """A little more than must be free is kept free, so that a bot does not fall ill from every few files."""
        free, total = host.free_disk(self.folder)
        required = settings.required_free(total, self.room)
        return free < required + min(required, self.room["wiggle"]) + more

    def make_room(self, wanted: Collection[str], hints: Mapping[str, Any], now: float | None = None) -> list[str]:
        """Before a run: the caches that it asks for and that are not here will need what the server says, about."""
        missing = [hints.get(name) for name in wanted if name not in self.kept]
        more = sum(int(size) for size in missing if isinstance(size, (int, float)) and size > 0)
        return self.trim(now, wanted=wanted, more=more)


def tree_size(path: str) -> int:
    """The bytes of all files below a path; what cannot be looked at counts nothing."""
    size, unseen = 0, [path]
    while unseen:
        with contextlib.suppress(OSError), os.scandir(unseen.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        unseen.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size


def _parse(raw: bytes) -> dict[str, dict[str, Any]]:
    """The caches in a state file. Raises ValueError for anything that this file would not have written."""
    try:
        told = json.loads(raw)["caches"]
        kept: dict[str, dict[str, Any]] = {
            str(name): {"dir": str(one["dir"]), "size": int(one["size"]), "used": float(one["used"])}
            for name, one in told.items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks something: {error!r}") from error
    folders = [one["dir"] for one in kept.values()]
    if not all(_NAME.fullmatch(name) for name in kept) or not all(_FOLDER.fullmatch(name) for name in folders):
        raise ValueError("it holds names that are none")
    if len(set(folders)) != len(folders):
        raise ValueError("two caches have the same folder")
    return kept
