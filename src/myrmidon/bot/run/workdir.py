"""The folders of commands: fresh for each, and nothing of it stays.

    work/run      where the command starts; caches are mapped into it
    work/tmp      its TMPDIR

Most commands leave no trace, and then the folders serve the next one. Whatever else is found in `work` after a command
is removed, and so is what was put in its place; what a link points to, or what was mounted, is never touched.
"""

from __future__ import annotations

import errno
import os

from myrmidon.bot.system import clock, filesystem

_TICK_S = 0.1
_FOLDERS = 3
_WHICH = 3


class Workplace:
    """``run`` and ``tmp`` are those of the command that was begun last. ``stuck`` is what could not be removed."""

    def __init__(self, folder: str) -> None:
        self.root = os.path.join(folder, "work")
        self.run = self.tmp = ""
        self.count = 0
        self.begun = 0.0
        self.traces: dict[str, Trace] = {}
        self.stuck: set[str] = set()
        self._renew()

    def begin(self, now: float) -> None:
        """The folders are there, unless the disk has failed after the last command: then it may be well by now."""
        self.begun = now
        if len(self.traces) < _FOLDERS:
            self._renew()

    def clean(self) -> str:
        """Nothing of the command stays; what could not be removed is told."""
        untouched = self._is_untouched(self.run) and self._is_untouched(self.tmp) and self._is_untouched(self.root)
        return "" if untouched else self._renew()

    def _is_untouched(self, folder: str) -> bool:
        return folder in self.traces and self.traces[folder].holds(folder, self.begun)

    def _renew(self) -> str:
        """Remove all that is not as it was made, and make what a command needs."""
        known = self.traces.pop(self.root, None)
        if known is None or not known.is_of(self.root):
            self._replace(is_foreign=known is not None)
        self.traces = {path: trace for path, trace in self.traces.items() if self._is_untouched(path)}
        found = {os.path.join(self.root, name) for name in os.listdir(self.root)}
        stuck = {path for path in found - self.stuck - set(self.traces) if not filesystem.remove_tree(path)}
        self.stuck = (self.stuck & found) | stuck
        if self.run not in self.traces:
            self.run = self._fresh("run")
        if self.tmp not in self.traces:
            self.tmp = self._fresh("tmp")
        self.traces[self.root] = Trace(self.root)
        return f"{os.fsencode(min(stuck)).decode(errors='replace')} could not be removed" if stuck else ""

    def _replace(self, *, is_foreign: bool) -> None:
        """An earlier bot has left it, or a command has put something else in its place: not to be entered."""
        self.traces = {}
        if is_foreign or os.path.islink(self.root) or not os.path.isdir(self.root):
            filesystem.remove_tree(self.root)
        if os.path.islink(self.root) or (is_foreign and os.path.ismount(self.root)):
            raise PermissionError(errno.EPERM, "what is in place of the bot's folder cannot be removed", self.root)
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        os.chmod(self.root, 0o700)

    def _fresh(self, name: str) -> str:
        """A new empty folder. It bears its plain name unless something of that name would not go away."""
        path = os.path.join(self.root, name)
        while True:
            try:
                os.makedirs(path, mode=0o700)
                break
            except FileExistsError:
                self.count += 1
                path = os.path.join(self.root, f"{name}.{self.count}")
        self.traces[path] = Trace(path)
        return path


class Trace:
    """How a folder was when it was made.

    Any change shows in the folder's times, unless it came within the same tick of the file system's clock.
    """

    def __init__(self, folder: str) -> None:
        self.at = clock.boottime()
        self.facts = _facts(folder)
        self.names = sorted(os.listdir(folder))

    def holds(self, folder: str, begun: float) -> bool:
        """Whether the folder is still so after a command that was begun at that time."""
        try:
            is_same = _facts(folder) == self.facts
            return is_same and (begun - self.at > _TICK_S or sorted(os.listdir(folder)) == self.names)
        except OSError:
            return False

    def is_of(self, folder: str) -> bool:
        """Whether it is the same folder for the same people, whatever is in it now."""
        try:
            return _facts(folder)[:_WHICH] == self.facts[:_WHICH]
        except OSError:
            return False


def _facts(folder: str) -> tuple[int, ...]:
    found = os.lstat(folder)
    return (found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns)
