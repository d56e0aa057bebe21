"""The keeper: a small parent process that starts the soldier, buries it, and starts it again.

When a soldier dies, by a crash or by kill -9, everything it has started becomes the keeper's child and is killed:
no command outlives its bot. A new zip whose soldier does not come up is left for the last known good one. The
keeper holds the folder's lock. It talks to nobody and runs no commands, so it has little that could break.
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

from myrmidon.bot.install import updater
from myrmidon.bot.system import host

AGAIN = 75
IN_USE = 3
OUTDATED = 4
UNUSABLE = 2
_FINAL = (0, OUTDATED)
COME_UP_S = 60.0
LOOP_S = 30.0
MOST_RESTARTS = 5
"""More ends of the same zip within that time are a loop, whatever the zip thinks of it."""
START_AGAIN_S = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT)
_LOOKING = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
_LOCK_S = 15.0


class Keeper:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.is_up = False
        self.crashes = 0
        self.killed: str | None = None
        self.restarts: deque[float] = deque(maxlen=MOST_RESTARTS)

    def keep(self) -> int:
        """Start soldiers until one ends for good; its exit code."""
        if not self._lock():
            sys.stderr.write(f"myrmidon bot: {self.folder} is in use by another bot\n")
            return IN_USE
        host.become_reaper()
        host.kill_marked(host.mark_of(self.folder))
        host.hear_signals()
        for number in (*_ENDING, *_LOOKING):
            signal.signal(number, self._pass_on)
        try:
            chosen = self._settle_in()
        except OSError as error:
            sys.stderr.write(f"myrmidon bot: the zip cannot be kept in {self.folder}: {error}\n")
            return UNUSABLE
        while True:
            code, came_up = self._watch_one(chosen)
            if code in _FINAL or self.stopping:
                return code if code in _FINAL else 0
            chosen = self._choose_next(chosen, code, came_up=came_up)

    def _lock(self) -> bool:
        """A keeper that was just killed may still have a dying soldier: wait a little for the folder."""
        until = time.monotonic() + _LOCK_S
        while host.lock(os.path.join(self.folder, "lock")) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _settle_in(self) -> str | None:
        """The zip that a person has started becomes the good one of this folder; None for a source tree."""
        mine = updater.own_zip()
        if mine is None:
            return None
        good = os.path.join(self.folder, updater.GOOD)
        if os.path.realpath(mine) != os.path.realpath(good):
            with open(mine, "rb") as file:
                host.write_private(good, file.read())
        return good

    def _choose_next(self, last: str | None, code: int, *, came_up: bool) -> str | None:
        """An ordered restart starts the chosen zip; a crash of a new one goes back; a crash of the good one waits.

        A zip that restarts itself again and again is no better than one that crashes.
        """
        if code == AGAIN:
            following = updater.take_next(self.folder)
            if following or not self._loops():
                self.crashes, self.killed = 0, None
                return following or last
            why = f"it has restarted more than {MOST_RESTARTS} times within {LOOP_S:.0f} s"
            came_up = False
        else:
            why = f"it ended with code {code}" + ("" if came_up else " before it came up")
        good = os.path.join(self.folder, updater.GOOD)
        if last is not None and last != good and not _same(last, good):
            if code == -signal.SIGKILL and came_up and self.killed != last:
                self.killed = last  # by a task, a person or a lack of memory: once is no fault of a zip
                return last
            updater.note_failure(self.folder, last, why)
            return good if os.path.exists(good) else None
        self.crashes = 0 if came_up and not self._loops() else self.crashes + 1
        self._rest(random.random() * min(30.0, 0.5 * 2.0 ** min(self.crashes, 8)) if self.crashes else 0.1)  # noqa: S311
        return last

    def _loops(self) -> bool:
        now = time.monotonic()
        full = len(self.restarts) == MOST_RESTARTS and now - self.restarts[0] < LOOP_S
        self.restarts.append(now)
        return full

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < until:
            time.sleep(0.05)

    def _watch_one(self, chosen: str | None) -> tuple[int, bool]:
        """Start one soldier and wait for its end; its exit code, and whether it ever came up."""
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        self.child = self._start(chosen, writer)
        os.close(writer)
        if self.child is None:
            os.close(reader)
            return 0, False
        with contextlib.suppress(OSError):  # a full disk: people will not find the pid there
            host.write_file(os.path.join(self.folder, "bot.pid"), b"%d\n" % self.child.pid)
        if self.stopping:
            self.child.terminate()
        self.is_up = came_up = self._comes_up(reader)
        os.close(reader)
        if not came_up:
            self.child.kill()
        code = self.child.wait()
        self.child, self.is_up = None, False
        host.kill_all_children()
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, "bot.pid"))
        return code, came_up

    def _start(self, chosen: str | None, writer: int) -> subprocess.Popen[bytes] | None:
        """A soldier's process; tried until there is one: a machine short of memory is no fault of a zip.

        None when the keeper is told to end meanwhile.
        """
        program = [sys.executable, "-I", chosen] if chosen else [sys.executable, "-m", "myrmidon.bot"]
        words = [*program, "soldier", "--dir", self.folder, "--ready", str(writer), "--keeper", str(os.getpid())]
        while not self.stopping:
            try:
                return subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=(writer,), start_new_session=True)
            except OSError as error:
                sys.stderr.write(f"myrmidon bot: no process can be started: {error}\n")
                self._rest(START_AGAIN_S)
        return None

    def _comes_up(self, reader: int) -> bool:
        """Its loop has begun within a minute: a zip that hangs at its start is no better than one that crashes."""
        until = time.monotonic() + COME_UP_S
        while time.monotonic() < until:
            if select.select([reader], [], [], 1.0)[0]:
                return os.read(reader, 1) == b"1"
        return False

    def _pass_on(self, number: int, _: object) -> None:
        """The wish to look closer would kill a soldier that does not know it yet."""
        self.stopping = self.stopping or number in _ENDING
        if self.child is not None and (self.is_up or number in _ENDING):
            with contextlib.suppress(ProcessLookupError):
                self.child.send_signal(number)


def _same(one: str, other: str) -> bool:
    with contextlib.suppress(OSError), open(one, "rb") as first, open(other, "rb") as second:
        return first.read() == second.read()
    return False
