"""The user that commands run as, if it is not the bot's: `--task-user`, for bots that run as root."""

from __future__ import annotations

import os
import sys
from typing import Any

if sys.platform != "win32":
    import pwd


class UnusableUser(Exception):
    """Commands cannot run as this user; the message says why."""


class TaskUser:
    """A user of this machine, with all groups that it is in."""

    def __init__(self, name: str) -> None:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UnusableUser(f"there is no user {name}") from None
        self.name = name
        self.uid = entry.pw_uid
        self.gid = entry.pw_gid
        self.groups = os.getgrouplist(name, entry.pw_gid)
        self.environment = {"HOME": entry.pw_dir, "USER": name, "LOGNAME": name, "SHELL": entry.pw_shell or "/bin/sh"}

    def popen_arguments(self) -> dict[str, Any]:
        """The arguments of Popen that start a command as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups}

    def give(self, path: str) -> None:
        """Make this user the owner of a file or folder. A link is not followed."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_enter(self, folder: str) -> bool:
        """Whether this user may open files below a folder whose names it knows."""
        found = os.stat(folder)
        if found.st_uid == self.uid:
            return bool(found.st_mode & 0o100)
        return bool(found.st_mode & (0o010 if found.st_gid in self.groups else 0o001))


def find(name: str, folder: str) -> TaskUser:
    """The user of this name, if commands in this bot's folder can run as it. Raises UnusableUser."""
    if os.geteuid() != 0:
        raise UnusableUser("only a bot that runs as root can start commands as another user")
    if sys.version_info < (3, 9):
        raise UnusableUser("Python 3.9 or later is required to start commands as another user")
    user = TaskUser(name)
    if user.uid == 0:
        raise UnusableUser(f"{name} is root: choose a user without privileges")
    parent = folder
    while parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
        if not user.can_enter(parent):
            raise UnusableUser(f"{name} cannot enter {parent}: choose another folder with --dir")
    return user
