"""How commands are kept away from the bot: by Landlock, by running as another user, by both or not at all.

    landlock   commands cannot open the files of bots, inspect processes outside or, from ABI 6 on, signal them
    user       commands run as the user of `--task-user`, who can neither read the bot's files nor signal it
    none       commands can do everything that the bot can

The bot reports this as the dimension `isolation`, so that tasks, pools and resource groups can require it.

The variables of the service manager or shell that started the bot are not passed on either: a task must not depend on
who started its bot, and these variables may contain secrets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import partial

from myrmidon.bot.run.sandbox import Sandbox
from myrmidon.bot.system import landlock, processes
from myrmidon.bot.system.users import TaskUser

LANDLOCK, USER, NONE = "landlock", "user", "none"
PASSED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
     "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY",
     "NO_PROXY"}
)  # fmt: skip
"""Variables of the bot that commands get, like those that begin with LC_ and proxies in lower case; see docs/bot.md."""

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


def base_environment(passed: Iterable[str], added: dict[str, str]) -> dict[bytes, bytes]:
    """The variables of the bot that commands get, with ``passed`` as further names, and those that the bot adds."""
    further = frozenset(passed)
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items() if _is_passed(name, further)}
    env.update({os.fsencode(name): os.fsencode(value) for name, value in added.items()})
    return env


def _is_passed(name: str, further: frozenset[str]) -> bool:
    is_proxy = name.islower() and name.endswith("_proxy") and name.upper() in PASSED
    return name in PASSED or name in further or name.startswith("LC_") or is_proxy
