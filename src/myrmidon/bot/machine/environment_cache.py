"""Virtual environments on disk, shared by the bots of one host.

    <key>.lock        held by every user of the environment (shared), or to build or remove it (exclusive)
    <key>.json        says that it is complete: its folder, size, and how it was built
    <key>/<random>/   the environment; without the file above, something that a build has left behind

A key is the digest of the requirements with the version and the path of the interpreter. An environment is built where
it stays, because it contains its own path, and becomes usable when its file appears. Locks of the file system end with
their process, so whatever is killed, nothing is used half and nothing stays locked. The least recently used
environments are removed when there are too many, they are too large or too old, or the disk is short of space; never
one that is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import time
from typing import Any, NamedTuple

from myrmidon.bot.machine import settings
from myrmidon.bot.machine.named_caches import tree_size
from myrmidon.bot.system import clock, filesystem
from myrmidon.bot.system.interpreters import Interpreters
from myrmidon.functions.requirements import BUILT

if sys.platform != "win32":
    import fcntl

_KEY = re.compile(r"[0-9a-f]{64}-[0-9.]+-[0-9a-f]{8}")
_LOCK, _DONE = ".lock", ".json"


class Entry(NamedTuple):
    """A complete environment. ``used``: when it was last used."""

    key: str
    folder: str
    size: int
    used: float


class HeldLock:
    """A lock of one environment."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self.handle = handle

    def touch(self, now: float) -> None:
        """Note that the environment is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.path, (now, now))

    def release(self) -> None:
        os.close(self.handle)


class EnvironmentCache:
    """Safe for several threads and several bots."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rules: dict[str, float] = settings.DEFAULTS["caches"]["environments"]
        self.free_space_rule: dict[str, float] = settings.DEFAULTS["free_partition"]["bot"]

    def create(self) -> None:
        """Create the folder, which belongs to the bot's user alone. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o711)
            os.chmod(self.folder, 0o711)  # noqa: S103 - functions may run as another user
        if not filesystem.is_own_folder(self.folder):
            raise PermissionError(f"{self.folder} is not a folder of this user")

    def path(self, key: str, suffix: str = "") -> str:
        return os.path.join(self.folder, key + suffix)

    # ---------------------------------------------------------------- locks

    def lock(self, key: str, *, exclusive: bool) -> HeldLock | None:
        """Lock an environment; None if others hold it. Raises OSError."""
        path = self.path(key, _LOCK)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(path).st_ino == os.fstat(handle).st_ino:
                        return HeldLock(path, handle)
            except BlockingIOError:
                os.close(handle)
                return None
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # removed since it was opened: a lock of this file has no effect

    # ---------------------------------------------------------------- content

    def find(self, key: str) -> str | None:
        """The folder of a complete environment; None if there is none. The caller holds a lock."""
        done = self._read(key)
        if done is None:
            return None
        folder = os.path.join(self.path(key), done["folder"])
        return folder if os.path.exists(os.path.join(folder, done["python"])) else None

    def new_folder(self, key: str) -> str:
        """An empty folder for a build, after removing what is there. The caller holds an exclusive lock.

        Raises OSError.
        """
        self._remove_content(key)
        os.makedirs(self.path(key), mode=0o755, exist_ok=True)
        os.chmod(self.path(key), 0o755)  # noqa: S103 - see create
        folder = os.path.join(self.path(key), f"{random.getrandbits(32):08x}")
        os.mkdir(folder, 0o700)
        return folder

    def publish(self, key: str, folder: str, python: str, **facts: Any) -> None:
        """Make an environment usable. ``python``: the interpreter in its folder. Raises OSError."""
        if hasattr(os, "sync"):
            os.sync()  # after a crash of the machine, a file that says that all is there must be right
        content = {"folder": os.path.basename(folder), "python": python, "size": tree_size(folder), **facts}
        filesystem.write_private(self.path(key, _DONE), json.dumps(content).encode())

    def _read(self, key: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = dict(json.loads(filesystem.read_file(self.path(key, _DONE))))
            if isinstance(found["size"], int) and isinstance(found["folder"], str) and isinstance(found["python"], str):
                return found
        return None

    def discard(self, key: str) -> None:
        """Remove what a failed build has left. The caller holds an exclusive lock."""
        self._remove_content(key)

    def _remove_content(self, key: str) -> None:
        """Remove an environment: first what says that it is complete. The caller holds an exclusive lock."""
        filesystem.remove_file(self.path(key, _DONE))
        filesystem.remove_tree(self.path(key))

    # ---------------------------------------------------------------- trimming

    def entries(self) -> list[Entry]:
        """The complete environments, the least recently used first."""
        found = []
        for key in self._keys(_DONE):
            done = self._read(key)
            with contextlib.suppress(OSError):
                if done is not None:
                    found.append(Entry(key, done["folder"], done["size"], os.stat(self.path(key, _LOCK)).st_mtime))
        return sorted(found, key=lambda entry: entry.used)

    def sizes(self) -> dict[str, int]:
        """The size of each environment, by a short name."""
        return {short_name(entry.key): entry.size for entry in self.entries()}

    def _keys(self, suffix: str) -> list[str]:
        with contextlib.suppress(OSError):
            names = [name[: len(name) - len(suffix)] for name in os.listdir(self.folder) if name.endswith(suffix)]
            return [name for name in names if _KEY.fullmatch(name)]
        return []

    def trim(self, now: float | None = None) -> list[str]:
        """Remove the least recently used environments until all limits hold, and what builds have left; their keys."""
        now = clock.server_time() if now is None else now
        entries = self.entries()
        self._remove_leftovers({entry.key for entry in entries})
        removed = []
        for entry in list(entries):
            if not (self._over_limits(entry, entries, now) or self._short_of_space()):
                break
            if self.remove(entry.key):
                removed.append(entry.key)
                entries.remove(entry)
        return removed

    def remove(self, key: str, *, leftover: bool = False) -> bool:
        """Remove an environment; False if it is used. ``leftover``: only if it is not complete."""
        with contextlib.suppress(OSError):
            lock = self.lock(key, exclusive=True)
            if lock is not None:
                try:
                    if leftover and self._read(key) is not None:
                        return False  # it was completed only now
                    self._remove_content(key)
                    filesystem.remove_file(lock.path)
                finally:
                    lock.release()
                return True
        return False

    def _remove_leftovers(self, complete: set[str]) -> None:
        """Remove what builds have left that were killed. Those that run hold their lock."""
        for key in {*self._keys(""), *self._keys(_LOCK)} - complete:
            self.remove(key, leftover=True)

    def _over_limits(self, oldest: Entry, entries: list[Entry], now: float | None) -> bool:
        """Whether an environment must go. Without the server's time no age is known to be right."""
        return (
            (now is not None and now - oldest.used > self.rules["age_s"])
            or len(entries) > self.rules["items"]
            or sum(entry.size for entry in entries) > self.rules["size"]
        )

    def _short_of_space(self) -> bool:
        free, total = filesystem.free_disk(self.folder)
        required = settings.required_free(total, self.free_space_rule)
        return free < required + min(required, self.free_space_rule["wiggle"])

    @staticmethod
    def now() -> float:
        return clock.server_time() or time.time()


def short_name(key: str) -> str:
    """A key for people: the beginning of the digest, and the version of the interpreter."""
    digest, version, _ = key.split("-")
    return f"{digest[:12]}-{version}"


class EnvironmentOffer:
    """What this bot offers functions: interpreters, environments by name, and those that it builds or has built.

    Configured by the session thread. ``build_s``: the time limit of a build; 0 if this bot builds nothing."""

    def __init__(self, cache: EnvironmentCache, interpreters: Interpreters) -> None:
        self.cache = cache
        self.interpreters = interpreters
        self.build_s: float = settings.DEFAULTS["environment_build_s"]

    def configure(self, values: dict[str, Any]) -> list[str]:
        """Use the settings of the bot; what cannot be used of them."""
        self.build_s = values["environment_build_s"]
        self.cache.rules = values["caches"]["environments"]
        self.cache.free_space_rule = values["free_partition"]["bot"]
        return self.interpreters.configure(values["pythons"], values["environments"])

    def dimensions(self, limit: int) -> dict[str, list[str]]:
        """The dimensions `python` and `environment`, each with at most ``limit`` values."""
        names = [*([BUILT] if self.build_s else []), *sorted(self.interpreters.named)][:limit]
        return {"python": self.interpreters.dimension(limit), **({"environment": names} if names else {})}
