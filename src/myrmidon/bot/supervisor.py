"""The supervisor: a small parent process that starts the worker and restarts it when it ends.

When a worker dies, even by SIGKILL, the processes it has started become children of the supervisor and are killed: no
command outlives its bot. When the worker of a new zip does not start, the supervisor returns to the last known good
zip. The supervisor holds the lock of the folder. It uses no network and runs no commands, so that little can fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import deque

from myrmidon.bot.install import exit_codes, updater
from myrmidon.bot.system import filesystem, processes

_FINAL = (exit_codes.OK, exit_codes.SUPERSEDED)
STARTUP_S = 60.0
RESTART_WINDOW_S = 30.0
MAX_RESTARTS = 5
"""More restarts of one zip within RESTART_WINDOW_S count as a crash loop."""
START_RETRY_S = 1.0
END_S = 2.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_DEBUG_SIGNALS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
LOCK_TIMEOUT_S = 15.0


class Supervisor:
    """Runs one worker at a time in a folder, and chooses the zip for each.

    ``is_up``: the present worker has reported that its loop runs. ``crash_count``: consecutive crashes that are not
    blamed on a new zip. ``hung``: the last worker did not come up in time, and was killed for that.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.is_up = False
        self.crash_count = 0
        self.hung = False
        self.restarts: deque[float] = deque(maxlen=MAX_RESTARTS)

    def run(self) -> int:
        """Run workers until one ends with a final exit code or the bot is told to stop; the exit code."""
        if not self._lock():
            sys.stderr.write(f"myrmidon bot: {self.folder} is in use by another bot\n")
            return exit_codes.FOLDER_IN_USE
        processes.become_reaper()
        processes.kill_by_marker(processes.environment_marker(self.folder))
        processes.unblock_signals()
        for number in (*_STOP_SIGNALS, *_DEBUG_SIGNALS):
            signal.signal(number, self._forward_signal)
        try:
            zip_path = self._install_zip()
        except OSError as error:
            sys.stderr.write(f"myrmidon bot: the zip cannot be stored in {self.folder}: {error}\n")
            return exit_codes.STARTUP_ERROR
        while True:
            code, came_up = self._run_worker(zip_path)
            if code in _FINAL or self.stopping:
                return code if code in _FINAL else 0
            zip_path = self._choose_next(zip_path, code, came_up=came_up)

    def _lock(self) -> bool:
        """Lock the folder. Waits, because the worker of a supervisor that was just killed still holds it."""
        until = time.monotonic() + LOCK_TIMEOUT_S
        while filesystem.lock(os.path.join(self.folder, "lock")) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _install_zip(self) -> str | None:
        """Store the running zip as the known good one of this folder; its path. None for a source tree."""
        own = updater.own_zip()
        if own is None:
            return None
        good = os.path.join(self.folder, updater.GOOD_ZIP)
        if os.path.realpath(own) != os.path.realpath(good):
            with open(own, "rb") as file:
                filesystem.write_private(good, file.read())
        return good

    def _choose_next(self, current: str | None, code: int, *, came_up: bool) -> str | None:
        """The zip to start after ``current`` ended with this exit code.

        A requested restart starts the installed update, or the same zip. A crash of a new zip returns to the good one.
        A crash of the good zip, or a restart loop, is followed by an exponential delay. A death by SIGKILL is caused by
        a task, a person or a lack of memory: no zip is blamed for it, and one that had come up is started again.
        """
        if code == exit_codes.RESTART:
            following = updater.take_next(self.folder)
            if following or not self._is_restart_loop():
                self.crash_count = 0
                return following or current
            why = f"it has restarted more than {MAX_RESTARTS} times within {RESTART_WINDOW_S:.0f} s"
            came_up = False
        else:
            why = f"it ended with code {code}" + ("" if came_up else " before it came up")
        good = os.path.join(self.folder, updater.GOOD_ZIP)
        was_killed = code == -signal.SIGKILL and not self.hung
        is_new = current is not None and current != good and not _same_content(current, good)
        if current is not None and is_new and not (was_killed and came_up):
            updater.record_failure(self.folder, current, why, blamed=not was_killed)
            return good if os.path.exists(good) else None
        self.crash_count = 0 if came_up and not self._is_restart_loop() else self.crash_count + 1
        self._sleep(random.random() * min(30.0, 0.5 * 2.0 ** min(self.crash_count, 8)) if self.crash_count else 0.1)  # noqa: S311
        return current

    def _is_restart_loop(self) -> bool:
        now = time.monotonic()
        is_loop = len(self.restarts) == MAX_RESTARTS and now - self.restarts[0] < RESTART_WINDOW_S
        self.restarts.append(now)
        return is_loop

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < until:
            time.sleep(0.05)

    def _run_worker(self, zip_path: str | None) -> tuple[int, bool]:
        """Start one worker and wait until it ends; its exit code, and whether it came up."""
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        self.child = self._start(zip_path, writer)
        os.close(writer)
        if self.child is None:
            os.close(reader)
            return 0, False
        with contextlib.suppress(OSError):  # a full disk; the file is only for people and `shell`
            filesystem.write_file(os.path.join(self.folder, "bot.pid"), b"%d\n" % self.child.pid)
        if self.stopping:
            self.child.terminate()
        self.is_up = came_up = self._wait_until_up(reader)
        os.close(reader)
        self.hung = not came_up and not _ends_soon(self.child)
        if self.hung:
            self.child.kill()
        code = self.child.wait()
        self.child, self.is_up = None, False
        processes.kill_all_children()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, "bot.pid"))
        return code, came_up

    def _start(self, zip_path: str | None, writer: int) -> subprocess.Popen[bytes] | None:
        """Start a worker process. Retries until it succeeds, because a lack of memory is not a fault of the zip.

        None when the supervisor is told to stop meanwhile.
        """
        program = [sys.executable, "-I", zip_path] if zip_path else [sys.executable, "-m", "myrmidon.bot"]
        command = [*program, "worker", "--dir", self.folder, "--ready", str(writer), "--supervisor", str(os.getpid())]
        while not self.stopping:
            try:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(writer,), start_new_session=True)
            except OSError as error:
                sys.stderr.write(f"myrmidon bot: cannot start a process: {error}\n")
                self._sleep(START_RETRY_S)
        return None

    def _wait_until_up(self, reader: int) -> bool:
        """Whether the worker reports within STARTUP_S that it runs. One that hangs at its start counts as crashed."""
        until = time.monotonic() + STARTUP_S
        while time.monotonic() < until:
            if select.select([reader], [], [], 1.0)[0]:
                return os.read(reader, 1) == b"1"
        return False

    def _forward_signal(self, number: int, _: object) -> None:
        """Forward a signal to the worker. Debug signals only once it is up: before, they would kill it."""
        self.stopping = self.stopping or number in _STOP_SIGNALS
        if self.child is not None and (self.is_up or number in _STOP_SIGNALS):
            with contextlib.suppress(ProcessLookupError):
                self.child.send_signal(number)


def _ends_soon(child: subprocess.Popen[bytes]) -> bool:
    """Whether a worker that has closed its pipe ends by itself: the pipe of a dying one closes a moment before."""
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _same_content(path: str, other: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()
    return False
