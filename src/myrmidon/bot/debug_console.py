"""A Python prompt inside a running bot, for debugging on its machine: SIGUSR2 opens it, `bot.zip shell` connects to it.

The prompt listens on a Unix socket in the bot's folder. After the signal it accepts one connection within a minute. The
client must know the content of `console.key`, which is new each time and which tasks cannot open, although they can
connect and, before ABI 6 of Landlock, send the signal. The prompt runs in its own
thread, so that it works while the other threads hang. Code typed there runs inside the bot and can break it.
"""

from __future__ import annotations

import code
import contextlib
import hmac
import logging
import os
import secrets
import signal
import socket
import stat
import sys
import threading
import time
from typing import Any

from myrmidon.bot.system import filesystem, processes

SOCKET_NAME = "console"
KEY_NAME = "console.key"
OPEN_S = 60.0
KEY_S = 1.0
"""How long a client may take to send the key; no other client can connect meanwhile."""
CONNECT_S = 10.0

log = logging.getLogger("myrmidon.bot")


class DebugConsole:
    """Opens a prompt on request. ``namespace`` holds the variables that the prompt offers."""

    def __init__(self, folder: str, namespace: dict[str, Any]) -> None:
        self.path = os.path.join(folder, SOCKET_NAME)
        self.key_path = os.path.join(folder, KEY_NAME)
        self.namespace = namespace
        self.thread: threading.Thread | None = None

    def open(self) -> None:
        """Accept one connection in the background, unless the console is open already."""
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self._serve, name="console", daemon=True)
            self.thread.start()

    def _serve(self) -> None:
        processes.unblock_signals()  # the signal thread, which starts this one, blocks all of them
        try:
            self._serve_one_client()
        except Exception:
            log.exception("debug console failed")

    def _serve_one_client(self) -> None:
        """Listen until a client with the key connects or OPEN_S is over, and run its session."""
        self._remove_stale_socket()
        key = secrets.token_hex().encode()
        filesystem.write_private(self.key_path, key)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            try:
                os.chmod(self.path, 0o600)
                listener.listen(1)
                connection = _accept(listener, key)
            finally:
                os.unlink(self.path)
                os.unlink(self.key_path)
        if connection is None:
            return
        log.info("debug console: client connected")
        with connection, contextlib.suppress(OSError):
            connection.settimeout(None)
            _Session(self.namespace, connection).run()
        log.info("debug console: client disconnected")

    def _remove_stale_socket(self) -> None:
        """Remove the socket of a bot that was killed. Raises OSError for any other file of that name."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(f"{self.path} exists and is not a socket")
            os.unlink(self.path)


def _accept(listener: socket.socket, key: bytes) -> socket.socket | None:
    """The first connection that sends the key within OPEN_S; others are closed. None if there is none."""
    until = time.monotonic() + OPEN_S
    while time.monotonic() < until:
        listener.settimeout(max(until - time.monotonic(), 0.01))
        try:
            connection, _ = listener.accept()
        except socket.timeout:
            return None
        with contextlib.suppress(OSError):
            connection.settimeout(KEY_S)
            if hmac.compare_digest(connection.recv(len(key), socket.MSG_WAITALL), key):
                return connection
        connection.close()
        log.warning("debug console: rejected a client without the key")
    return None


class _Session(code.InteractiveConsole):
    """An interactive interpreter that reads from a connection and writes to it."""

    def __init__(self, namespace: dict[str, Any], connection: socket.socket) -> None:
        super().__init__({**namespace, "exit": _exit_session, "quit": _exit_session})
        self.reader = connection.makefile("r", errors="replace")
        self.writer = connection.makefile("w")

    def run(self) -> None:
        """Run until the client disconnects or calls exit()."""
        with contextlib.suppress(SystemExit), self.reader, self.writer:
            self.interact(f"Python {sys.version.split()[0]} inside the bot: {', '.join(sorted(self.locals))}", "")

    def raw_input(self, prompt: str = "") -> str:
        self.write(prompt)
        text = self.reader.readline()
        if not text:
            raise EOFError
        return text.rstrip("\n")

    def write(self, data: str) -> None:
        self.writer.write(data)
        self.writer.flush()

    def runcode(self, code: Any) -> None:
        with contextlib.redirect_stdout(self.writer):
            super().runcode(code)
        self.writer.flush()


def _exit_session() -> None:
    """Replaces the builtin exit(), which would close the bot's standard input too."""
    raise SystemExit


# ---------------------------------------------------------------- client


def attach(folder: str) -> int:
    """Connect standard input and output to the prompt of the bot that runs in a folder; the exit code."""
    connection = _connect(folder)
    if connection is None:
        sys.stderr.write(f"myrmidon bot: no bot runs in {folder}, or it does not respond\n")
        return 1
    with connection:
        output_thread = threading.Thread(target=_copy_output, args=(connection,), daemon=True)
        output_thread.start()
        with contextlib.suppress(OSError):
            for text in sys.stdin:
                connection.sendall(text.encode())
            connection.shutdown(socket.SHUT_WR)
        output_thread.join()
    return 0


def _connect(folder: str) -> socket.socket | None:
    """Send SIGUSR2 to the bot and connect to its prompt; None when there is no bot or no prompt within CONNECT_S."""
    try:
        with open(os.path.join(folder, "bot.pid")) as file:
            os.kill(int(file.read()), signal.SIGUSR2)
    except (OSError, ValueError):
        return None
    until = time.monotonic() + CONNECT_S
    while time.monotonic() < until:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(os.path.join(folder, SOCKET_NAME))
            connection.sendall(filesystem.read_file(os.path.join(folder, KEY_NAME)))
        except OSError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection
    return None


def _copy_output(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = connection.recv(4096)
            if not data:
                return
            sys.stdout.write(data.decode(errors="replace"))
            sys.stdout.flush()
