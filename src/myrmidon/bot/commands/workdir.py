"""The working directories of commands: empty at the start of each, cleaned afterwards.

    work/run      the working directory of the command, with its caches
    work/tmp      its TMPDIR

If a command has left them unchanged, which is cheap to detect, they are used for the next one. Otherwise everything in
`work` is removed. Targets of links and mounted file systems are never touched. If commands run as another user, that
user owns what is in `work`, and may only pass through `work` itself.
"""

from __future__ import annotations

import errno
import os

from myrmidon.bot.system import clock, filesystem
from myrmidon.bot.system.users import TaskUser

_TIMESTAMP_GRANULARITY_S = 0.1
_FOLDER_COUNT = 3
_IDENTITY_FIELDS = 3


class Workdir:
    """``run`` and ``tmp`` are the present directories. ``undeletable``: paths that could not be removed."""

    def __init__(self, root: str, user: TaskUser | None = None) -> None:
        self.root = root
        self.user = user
        self.run = self.tmp = ""
        self.count = 0
        self.started_at = 0.0
        self.fingerprints: dict[str, Fingerprint] = {}
        self.undeletable: set[str] = set()
        self._recreate()

    def begin(self, now: float) -> None:
        """Prepare for a command. Usually nothing is to do; retries if the last cleaning has failed."""
        self.started_at = now
        if len(self.fingerprints) < _FOLDER_COUNT:
            self._recreate()

    def clean(self) -> str:
        """Remove everything that a command has left; what could not be removed, as a message, or empty."""
        untouched = self._is_unchanged(self.run) and self._is_unchanged(self.tmp) and self._is_unchanged(self.root)
        return "" if untouched else self._recreate()

    def _is_unchanged(self, folder: str) -> bool:
        return folder in self.fingerprints and self.fingerprints[folder].matches(folder, self.started_at)

    def _recreate(self) -> str:
        """Remove everything that is not as it was created, and create the directories that are missing."""
        fingerprint = self.fingerprints.pop(self.root, None)
        if fingerprint is None or not fingerprint.is_same_folder(self.root):
            self._recreate_root(was_replaced=fingerprint is not None)
        self.fingerprints = {path: known for path, known in self.fingerprints.items() if self._is_unchanged(path)}
        entries = {os.path.join(self.root, name) for name in os.listdir(self.root)}
        removable = entries - self.undeletable - set(self.fingerprints)
        undeletable = {path for path in removable if not filesystem.remove_tree(path)}
        self.undeletable = (self.undeletable & entries) | undeletable
        if self.run not in self.fingerprints:
            self.run = self._create("run")
        if self.tmp not in self.fingerprints:
            self.tmp = self._create("tmp")
        self.fingerprints[self.root] = Fingerprint(self.root)
        return f"{os.fsencode(min(undeletable)).decode(errors='replace')} could not be removed" if undeletable else ""

    def _recreate_root(self, *, was_replaced: bool) -> None:
        """Create `work`. Something that a command has put in its place is removed without following it."""
        self.fingerprints = {}
        if was_replaced or os.path.islink(self.root) or not os.path.isdir(self.root):
            filesystem.remove_tree(self.root)
        if os.path.islink(self.root) or (was_replaced and os.path.ismount(self.root)):
            raise PermissionError(errno.EPERM, "the working directory was replaced and cannot be removed", self.root)
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        os.chmod(self.root, 0o700 if self.user is None else 0o711)

    def _create(self, name: str) -> str:
        """Create an empty directory; with a number in its name if the old one could not be removed."""
        path = os.path.join(self.root, name)
        while True:
            try:
                os.makedirs(path, mode=0o700)
                break
            except FileExistsError:
                self.count += 1
                path = os.path.join(self.root, f"{name}.{self.count}")
        if self.user is not None:
            self.user.give(path)
        self.fingerprints[path] = Fingerprint(path)
        return path


class Fingerprint:
    """The attributes and entries of a folder after its creation, to detect changes.

    Any change shows in the timestamps of the folder, unless it happens within the granularity of the file system's
    clock; then the entries are compared too.
    """

    def __init__(self, folder: str) -> None:
        self.taken_at = clock.boottime()
        self.attributes = _attributes(folder)
        self.names = sorted(os.listdir(folder))

    def matches(self, folder: str, started_at: float) -> bool:
        """Whether a command that was started at that time has left the folder unchanged."""
        try:
            if _attributes(folder) != self.attributes:
                return False
            is_reliable = started_at - self.taken_at > _TIMESTAMP_GRANULARITY_S
            return is_reliable or sorted(os.listdir(folder)) == self.names
        except OSError:
            return False

    def is_same_folder(self, folder: str) -> bool:
        """Whether it is the same folder with the same mode and owner, whatever it contains now."""
        try:
            return _attributes(folder)[:_IDENTITY_FIELDS] == self.attributes[:_IDENTITY_FIELDS]
        except OSError:
            return False


def _attributes(folder: str) -> tuple[int, ...]:
    found = os.lstat(folder)
    return (found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns)
