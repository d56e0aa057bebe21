"""A Python prompt inside a running bot, for a person on its machine: SIGUSR2 opens it, `bot.zip shell` talks to it.

The prompt is a socket in the bot's folder, which only the bot's user may enter. It is there from the signal until one
visitor has come, or nobody has for a minute. It has a thread of its own, so that it answers when the others hang. What
is typed there runs in the bot, and may break it.
"""

from __future__ import annotations

import code
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
from typing import Any

from myrmidon.bot.system import host

NAME = "console"
OPEN_S = 60.0
FIND_S = 10.0

log = logging.getLogger("myrmidon.bot")


class Console:
    """``names`` are what a visitor finds."""

    def __init__(self, folder: str, names: dict[str, Any]) -> None:
        self.path = os.path.join(folder, NAME)
        self.names = names
        self.open_now: threading.Thread | None = None

    def open(self) -> None:
        """Let one visitor in, unless one is expected or there already. Returns at once."""
        if self.open_now is None or not self.open_now.is_alive():
            self.open_now = threading.Thread(target=self._try, name="console", daemon=True)
            self.open_now.start()

    def _try(self) -> None:
        host.hear_signals()  # the bell's thread, which has started this one, hears none
        try:
            self._receive()
        except Exception:
            log.exception("the console failed")

    def _receive(self) -> None:
        """One visitor, if one comes."""
        self._make_way()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(self.path)
            try:
                os.chmod(self.path, 0o600)
                door.listen(1)
                door.settimeout(OPEN_S)
                line, _ = door.accept()
            except socket.timeout:
                return
            finally:
                os.unlink(self.path)
        log.info("somebody is at the console")
        with line, contextlib.suppress(OSError):
            line.settimeout(None)
            _Prompt(self.names, line).talk()
        log.info("the console is closed")

    def _make_way(self) -> None:
        """What a bot that was killed has left goes; whatever else has that name is none of the bot's."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(f"{self.path} is in the way")
            os.unlink(self.path)


class _Prompt(code.InteractiveConsole):
    """Reads from a line and answers on it."""

    def __init__(self, names: dict[str, Any], line: socket.socket) -> None:
        super().__init__({**names, "exit": _leave, "quit": _leave})
        self.said = line.makefile("r", errors="replace")
        self.answers = line.makefile("w")

    def talk(self) -> None:
        """Until the visitor leaves. The line is open as long as these two are."""
        with contextlib.suppress(SystemExit), self.said, self.answers:
            self.interact(f"Python {sys.version.split()[0]} inside the bot: {', '.join(sorted(self.locals))}", "")

    def raw_input(self, prompt: str = "") -> str:
        self.write(prompt)
        text = self.said.readline()
        if not text:
            raise EOFError
        return text.rstrip("\n")

    def write(self, data: str) -> None:
        self.answers.write(data)
        self.answers.flush()

    def runcode(self, code: Any) -> None:
        with contextlib.redirect_stdout(self.answers):
            super().runcode(code)
        self.answers.flush()


def _leave() -> None:
    """Python's own exit() would close the bot's standard input as well."""
    raise SystemExit


# ---------------------------------------------------------------- the visitor


def visit(folder: str) -> int:
    """Talk to the bot that runs in a folder: standard input goes to its prompt, its answers to standard output."""
    line = _enter(folder)
    if line is None:
        sys.stderr.write(f"myrmidon bot: no bot runs in {folder}, or it does not answer\n")
        return 1
    with line:
        listening = threading.Thread(target=_repeat, args=(line,), daemon=True)
        listening.start()
        with contextlib.suppress(OSError):
            for text in sys.stdin:
                line.sendall(text.encode())
            line.shutdown(socket.SHUT_WR)
        listening.join()
    return 0


def _enter(folder: str) -> socket.socket | None:
    try:
        with open(os.path.join(folder, "bot.pid")) as file:
            os.kill(int(file.read()), signal.SIGUSR2)
    except (OSError, ValueError):
        return None
    until = time.monotonic() + FIND_S
    while time.monotonic() < until:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(os.path.join(folder, NAME))
        except OSError:
            line.close()
            time.sleep(0.05)
        else:
            return line
    return None


def _repeat(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            said = line.recv(4096)
            if not said:
                return
            sys.stdout.write(said.decode(errors="replace"))
            sys.stdout.flush()
