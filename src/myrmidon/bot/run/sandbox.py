"""Keeps commands out of the folders of bots by Landlock.

Landlock has rules that grant access and none that deny it. To deny a folder, every other entry of each folder above it
is granted. So in the folders above it, commands can use what exists but create nothing. In the bot's own folder they
are granted the folders that are meant for them.

Rules cannot be removed from a thread, and hold for all that it starts. So one thread does nothing but start commands,
and a new one replaces it when the rules change: because something was created in a folder above, a file system was
mounted, or a bot was started in another folder. That is checked with `stat` before each command; and from time to time
while the bot is idle, because rules keep the disk space of a file that was granted and is then deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from myrmidon.bot.install.startup_config import CONFIG_FILE
from myrmidon.bot.system import host, landlock
from myrmidon.bot.system.filesystem import read_file

_TIMESTAMP_GRANULARITY_S = 0.1


class Sandbox:
    """Starts commands that can open neither the files of this bot nor those of its neighbours. Raises OSError.

    ``writable`` and ``readable``: folders of commands in the bot's folder. ``hidden``: further folders to keep
    commands out of. ``neighbours``: folders of other bots, and the ``hidden`` of those; once seen they stay closed,
    also when that bot has ended.
    ``granted``: path and inode of everything that the present rules grant. ``generation``: grows when they grant
    something new, which processes that run on with older rules cannot open. ``watched``: the folders whose changes make
    rules outdated; ``lasting``: those of them in which something new is granted, without temporary folders.
    """

    def __init__(self, folder: str, *, writable: str, readable: Sequence[str], hidden: Sequence[str] = ()) -> None:
        self.folder = folder
        self.writable = writable
        self.readable = readable
        self.hidden = [path for path in map(os.path.realpath, hidden) if path != "/"]
        self.neighbours: set[str] = set()
        self.lock = threading.Lock()
        self.mounts = MountWatch()
        self.watched: list[str] = []
        self.lasting: list[str] = []
        self.own_inodes: list[int] = []
        self.stamps: dict[str, tuple[int, int]] = {}
        self.stamps_read_at = 0.0
        self.granted: list[tuple[str, int]] = []
        self.generation = 0
        try:
            self.thread = self._renew()
        except BaseException:
            self.mounts.close()
            raise

    def close(self) -> None:
        """Free the thread and the handles. Nothing can be started afterwards."""
        with self.lock:
            self.thread.end()
            self.mounts.close()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in the restricted thread; its result or exception."""
        with self.lock:
            self._refresh()
            return self.thread.call(function)

    def refresh(self) -> None:
        """Drop rules that are outdated. Called while no command runs."""
        with self.lock:
            self._refresh()

    def current_generation(self) -> int:
        """The generation that the rules of a new command would have. Called for every function on an idle process.

        Temporary folders are not looked at: they change all the time, and nothing in them is news.
        """
        with self.lock:
            if not self._is_current(self.lasting):
                self.thread = self._renew(self.thread)
            return self.generation

    def _refresh(self) -> None:
        if not self._is_current(self.watched):
            self.thread = self._renew(self.thread)

    def _is_current(self, watched: Sequence[str]) -> bool:
        """Whether nothing has changed in these folders since the rules were made. Called for every command."""
        if self.mounts.has_changed():
            self.granted = []  # the paths may be the same, but lead to other files
            return False
        return self.own_inodes == self._read_own_inodes() and all(map(self._is_unchanged, watched))

    def _is_unchanged(self, folder: str) -> bool:
        """A change within the granularity of the file system's clock does not show in a timestamp: look again then."""
        inode, changed_at = self.stamps[folder]
        is_settled = self.stamps_read_at - changed_at / 1e9 > _TIMESTAMP_GRANULARITY_S
        return is_settled and _stamp(folder) == (inode, changed_at)

    def _read_own_inodes(self) -> list[int]:
        return [os.stat(self.writable).st_ino, *(inode for _, inode in _existing(self.readable))]

    def _renew(self, thread: RestrictedThread | None = None) -> RestrictedThread:
        """The thread for the rules that are needed now: the present one, unless they grant something else."""
        self.neighbours.update(self._find_neighbours())
        closed = _outermost([self.folder, *self.hidden, *sorted(self.neighbours)])
        parents = _parents(closed)
        self.watched = [*parents, *host.registry_folders()]
        self.lasting = [folder for folder in parents if not _is_temporary(folder)]
        self.own_inodes = self._read_own_inodes()
        self.stamps_read_at, self.stamps = time.time(), {folder: _stamp(folder) for folder in self.watched}
        siblings = [entry for entry in _entries(parents) if entry[0] not in closed and entry[0] not in parents]
        own = [(self.writable, os.stat(self.writable).st_ino), *_existing(self.readable)]
        granted = siblings + own
        if thread is not None and granted == self.granted:
            return thread
        replacement = self._start_thread([path for path, _ in siblings])
        if any(not _is_temporary(os.path.dirname(path)) for path, _ in set(granted).difference(self.granted)):
            self.generation += 1
        self.granted = granted
        if thread is not None:
            thread.end()
        return replacement

    def _start_thread(self, siblings: Sequence[str]) -> RestrictedThread:
        with contextlib.closing(landlock.Ruleset()) as rules:
            rules.grant_existing(siblings)
            rules.grant(self.writable)
            for path, _ in _existing(self.readable):
                rules.grant(path, landlock.READ)
            thread = RestrictedThread(rules.restrict_thread)
            try:
                thread.call(_do_nothing)  # waits for the restriction; raises its error
            except BaseException:
                thread.end()
                raise
        return thread

    def _find_neighbours(self) -> Iterator[str]:
        """The folders of other bots: of those that run on this machine, and of those beside this one."""
        parent = os.path.dirname(self.folder)
        beside = []
        with contextlib.suppress(OSError):
            beside = [os.path.join(parent, name) for name in os.listdir(parent)]
        for folder in map(os.path.realpath, (*host.other_bots(self.folder), *beside)):
            is_own = _is_within(folder, (self.folder,)) or _is_within(self.folder, (folder,))
            if not is_own and is_bot_folder(folder):
                yield folder
                yield from hidden_by(folder)


def is_bot_folder(folder: str) -> bool:
    """Whether a bot has used this folder.

    It must belong to the owner of bot.json: else a user could have the tasks of others kept out of a shared folder.
    """
    with contextlib.suppress(OSError):
        config = os.lstat(os.path.join(folder, CONFIG_FILE))
        return stat.S_ISREG(config.st_mode) and config.st_uid == os.stat(folder).st_uid
    return False


def hidden_by(folder: str) -> list[str]:
    """What the bot in this folder keeps its commands out of: that must be closed to those of other bots as well.

    Only for bots of this user or root: else any user could take folders away from the tasks of others.
    """
    path = os.path.join(folder, CONFIG_FILE)
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        if os.lstat(path).st_uid in (0, os.geteuid()):
            config = json.loads(read_file(path))
            closed = [*config.get("hidden", []), *filter(None, [config.get("environments")])]
            return [hidden for hidden in map(os.path.realpath, closed) if hidden != "/"]
    return []


def _stamp(folder: str) -> tuple[int, int]:
    """The identity of a folder, and when something in it was created or deleted; zeros if there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _is_temporary(folder: str) -> bool:
    """Whether everybody can write to a folder, as to /tmp: new files in it come and go, and are no news."""
    with contextlib.suppress(OSError):
        return os.stat(folder).st_mode & (stat.S_ISVTX | stat.S_IWOTH) == stat.S_ISVTX | stat.S_IWOTH
    return True


def _outermost(folders: Collection[str]) -> list[str]:
    """These folders without those that are inside another one."""
    return [folder for folder in folders if not _is_within(os.path.dirname(folder), folders)]


def _is_within(path: str, folders: Collection[str]) -> bool:
    """Whether a path is one of these folders, or below one."""
    while path not in folders:
        if path == os.path.dirname(path):
            return False
        path = os.path.dirname(path)
    return True


def _parents(folders: Sequence[str]) -> list[str]:
    """All folders above these, without duplicates."""
    found: dict[str, None] = {}
    for folder in folders:
        while folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
            found[folder] = None
    return list(found)


def _entries(folders: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Path and inode of everything in these folders, without links: what matters is their target."""
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            yield from sorted((entry.path, entry.inode()) for entry in found if not entry.is_symlink())


def _existing(paths: Sequence[str]) -> list[tuple[str, int]]:
    """Path and inode of those of the folders that exist."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.append((path, os.stat(path).st_ino))
    return found


class RestrictedThread(threading.Thread):
    """A thread that restricts itself, and then calls functions for another thread, one at a time."""

    def __init__(self, restrict: Callable[[], None]) -> None:
        super().__init__(name="starter", daemon=True)
        self.restrict = restrict
        self.function: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        # Two locks as semaphores: every command needs them, and a condition or a queue costs more.
        self.requested, self.done = threading.Lock(), threading.Lock()
        self.requested.acquire()
        self.done.acquire()
        self.start()

    def call(self, function: Callable[[], Any]) -> Any:
        self.function = function
        self.requested.release()
        self.done.acquire()
        if self.error is not None:
            raise self.error
        return self.result

    def end(self) -> None:
        """Let the thread end. Must not be called while `call` runs."""
        self.function = None
        self.requested.release()

    def run(self) -> None:
        failure = _error_of(self.restrict)
        while True:
            self.requested.acquire()
            function = self.function
            if function is None:
                return
            self.result, self.error = None, failure
            if failure is None:
                try:
                    self.result = function()
                except BaseException as error:  # noqa: BLE001 - raised again in the thread that has called
                    self.error = error
            self.done.release()


def _error_of(function: Callable[[], None]) -> BaseException | None:
    try:
        function()
    except OSError as error:
        return error
    return None


def _do_nothing() -> None:
    """For a call that only waits for the thread."""


class MountWatch:
    """Notices that a file system was mounted or unmounted: what was granted may be hidden under another one."""

    def __init__(self) -> None:
        self.handle = os.open("/proc/self/mounts", os.O_RDONLY)
        self.poll = select.poll()
        self.poll.register(self.handle, select.POLLPRI)

    def close(self) -> None:
        os.close(self.handle)

    def has_changed(self) -> bool:
        """Whether something has changed since the last call."""
        return bool(self.poll.poll(0))
