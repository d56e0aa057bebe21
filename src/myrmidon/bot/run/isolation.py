"""How commands are kept away from the bot: by Landlock, by running as another user, by both or not at all.

    landlock   commands cannot open the files of bots, inspect processes outside or, from ABI 6 on, signal them
    user       commands run as the user of `--task-user`, who can neither read the bot's files nor signal it
    none       commands can do everything that the bot can

The bot reports this as the dimension `isolation`, so that tasks, pools and resource groups can require it.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Sequence
from functools import partial

from myrmidon.bot.run.sandbox import Sandbox
from myrmidon.bot.system import landlock, processes
from myrmidon.bot.system.users import TaskUser

LANDLOCK, USER, NONE = "landlock", "user", "none"

log = logging.getLogger("myrmidon.bot")


class Isolation:
    """Starts commands. ``user`` is None if they run as the bot's user; ``sandbox`` is None without Landlock."""

    def __init__(self, user: TaskUser | None = None) -> None:
        self.user = user
        self.sandbox: Sandbox | None = None
        self.user_arguments = user.popen_arguments() if user is not None else {}

    def use_landlock(self, folder: str, *, writable: str, readable: Sequence[str], hidden: Sequence[str] = ()) -> None:
        """Keep commands out of the folders of bots, if this kernel can do that."""
        if landlock.abi() < landlock.MINIMUM_ABI:
            return
        try:
            self.sandbox = Sandbox(folder, writable=writable, readable=readable, hidden=hidden)
        except OSError as error:
            log.warning("commands are not restricted by Landlock: %s", error)

    def close(self) -> None:
        """Free what was needed to start commands."""
        if self.sandbox is not None:
            self.sandbox.close()

    def refresh(self) -> None:
        """Bring the rules up to date. If that fails, the next command will report it."""
        if self.sandbox is not None:
            with contextlib.suppress(OSError):
                self.sandbox.refresh()

    def generation(self) -> int:
        """A number that grows when new rules let commands open files that those before could not."""
        if self.sandbox is None:
            return 0
        with contextlib.suppress(OSError):
            return self.sandbox.current_generation()
        return self.sandbox.generation

    def methods(self) -> list[str]:
        """The values of the dimension `isolation`."""
        found = [LANDLOCK] if self.sandbox is not None else []
        return [*found, USER] if self.user is not None else found or [NONE]

    def start(
        self,
        argv: list[str],
        env: dict[bytes, bytes],
        cwd: str,
        streams: tuple[int, int, int],
        further_files: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a command. Raises NotStarted, ValueError or IndexError for the command, OSError for the bot."""
        start = partial(processes.start_command, argv, env, cwd, streams, self.user_arguments, further_files)
        process: subprocess.Popen[bytes] = start() if self.sandbox is None else self.sandbox.call(start)
        return process

    def give(self, path: str) -> None:
        """Let commands own a file or folder that the bot has created for them."""
        if self.user is not None:
            self.user.give(path)
