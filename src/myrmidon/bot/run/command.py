"""A command while it runs: its output, its time limits, and how it is made to end.

Each run has a pair of pipes of its own, which is closed at its end: whatever a command leaves behind that goes on
writing can never be heard in the log of a later run.

The thread that started the command just waits for its end. `Watch` is a second thread that looks after commands
that take longer than a moment: it moves output to the spool, and it asks, and then forces, a command to end.
"""

from __future__ import annotations

import os
import select
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from myrmidon.bot.storage.log_spool import Spool
from myrmidon.bot.system import clock, filesystem, processes

QUICK_S = 0.02
TICK_S = 0.2
INLINE = 65536
_READ = 1 << 18
_BACKLOG = 4 << 20
_LAST_DITCH_S = 60.0


class OutputPipes:
    """The pipes for stdout and stderr of one run: made when its command starts, closed when it has ended."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.writers: list[int] = []

    def open(self) -> None:
        for _ in (0, 1):
            reader, writer = processes.make_pipe()
            self.readers.append(reader)
            self.writers.append(writer)

    def close_writers(self) -> None:
        """The command has its own copies. With the last of them closed, the reader finds the end of the stream."""
        while self.writers:
            os.close(self.writers.pop())

    def close(self) -> None:
        """Whoever still writes into them gets an error from now on. Idempotent."""
        self.close_writers()
        while self.readers:
            os.close(self.readers.pop())


class Command:
    """One run. ``why`` says why the bot ended it; empty when it ended by itself."""

    __slots__ = (
        "begun", "ended", "grace", "hard_at", "heard_at", "inline", "io_s", "kill_at", "kills", "output", "pid", "run",
        "sizes", "spooled", "task", "token", "unwanted", "wanted", "why",
    )  # fmt: skip

    def __init__(self, task: dict[str, Any], now: float) -> None:
        self.task = task
        self.run: str = task["run"]
        self.token: str = task["token"]
        self.begun = now
        self.heard_at = now
        self.hard_at = now + task["execution_timeout_s"]
        self.io_s: float | None = task.get("io_timeout_s")
        self.grace: float = task["grace_period_s"]
        self.pid = 0
        self.output = OutputPipes()
        self.ended = False
        self.why = ""
        self.wanted: tuple[str, float] | None = None
        self.kill_at = 0.0
        self.kills = 0
        self.sizes = [0, 0]
        self.inline: list[list[bytes]] = [[], []]
        self.spooled = False
        self.unwanted = False

    def begin_now(self, now: float) -> None:
        """What came before, like a slow hook or making room for a cache, is not the command's time."""
        self.begun = self.heard_at = now
        self.hard_at = now + self.task["execution_timeout_s"]

    def end(self, why: str, grace: float | None = None) -> None:
        """Ask for an end of this command; the watch sees to it. The first reason counts, and the shortest grace."""
        patience = self.grace if grace is None else min(grace, self.grace)
        if self.wanted is None:
            self.wanted = (why, patience)
        else:
            first, before = self.wanted
            self.wanted = ("lost" if why == "lost" else first, min(patience, before))

    def keep(self, stream: int, data: bytes, spool: Spool, *, at_once: bool) -> None:
        """Keep output: in memory as long as it is little and the command is quick, else in the spool."""
        small = self.sizes[0] + self.sizes[1] + len(data) <= INLINE
        if not self.unwanted and (at_once or self.spooled or not small):
            self._to_spool(spool)
            spool.append(self.run, self.token, stream, data, self.sizes[stream])
        elif not self.unwanted:
            self.inline[stream].append(data)
        self.sizes[stream] += len(data)

    def _to_spool(self, spool: Spool) -> None:
        self.spooled = True
        for stream in (0, 1):
            if self.inline[stream]:
                spool.append(self.run, self.token, stream, b"".join(self.inline[stream]), 0)
                self.inline[stream] = []

    def pieces(self) -> list[list[Any]]:
        """The whole log of a command that was quick and said little: [stream, offset, base64]."""
        return [[stream, 0, b64encode(b"".join(parts)).decode()] for stream, parts in enumerate(self.inline) if parts]


class Watch(threading.Thread):
    """Looks after the current command, if there is one that takes longer."""

    def __init__(self, spool: Spool, hung: Callable[[Command], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self.spool = spool
        self.hung = hung
        self.lock = threading.Lock()
        self.busy = threading.Event()
        self.current: Command | None = None
        self.server_away = False
        self.on_output: Callable[[], None] = lambda: None

    # -- called by the thread that runs the command

    def begin(self, command: Command) -> None:
        self.current = command
        if not self.busy.is_set():
            self.busy.set()

    def finish(self, command: Command) -> None:
        """The command has ended: collect the rest of its output. Raises OSError when that could not be kept.

        That is what is in its pipes now. A process that could not be killed may go on to fill them for ever.
        """
        for stream, reader in enumerate(command.output.readers):
            unread = processes.unread_bytes(reader)
            while unread > 0 and (data := processes.read_pipe(reader, min(unread, _READ))):
                command.keep(stream, data, self.spool, at_once=False)
                unread -= len(data)

    def release(self, command: Command) -> None:
        """Nothing more is read of this command, and its pipes are closed. Idempotent."""
        with self.lock:
            command.ended = True
            command.output.close()
        self.current = None

    # -- the watching thread

    def run(self) -> None:
        while True:
            self.busy.wait()
            command = self.current
            if command is None:
                self.busy.clear()
                if self.current is not None:
                    self.busy.set()
                continue
            early = QUICK_S - (clock.boottime() - command.begun)
            if early > 0:
                time.sleep(early)
            elif command.ended:
                time.sleep(QUICK_S)
            else:
                self._attend(command)

    def _attend(self, command: Command) -> None:
        with self.lock:
            if command.ended:
                return
            processes.prefer_for_oom_kill(command.pid)
            streams = {reader: stream for stream, reader in enumerate(command.output.readers)}
        poll = select.poll()
        for reader in streams:
            poll.register(reader, select.POLLIN)
        while not command.ended:
            now = clock.boottime()
            self._check_time(command, now)
            if not self.server_away and command.spooled and self.spool.waiting(command.run) > _BACKLOG:
                time.sleep(QUICK_S)  # the command waits on its full pipe until the server has caught up
                command.heard_at = now
                continue
            # Without open streams the command is mostly about to end: a long wait here would keep the next one waiting.
            for reader, _ in poll.poll((TICK_S if streams else QUICK_S) * 1000):
                if not self._collect(command, streams[reader], reader):
                    poll.unregister(reader)  # or it would be reported at once, again and again
                    del streams[reader]

    def _collect(self, command: Command, stream: int, reader: int) -> bool:
        """Move what is in a pipe to the spool; False at the end of the stream."""
        with self.lock:
            if command.ended:
                return False
            try:
                data = processes.read_pipe(reader, _READ)
                if not data:
                    return data is None
                command.heard_at = clock.boottime()
                command.keep(stream, data, self.spool, at_once=True)
            except OSError as error:
                command.unwanted = True
                command.end("disk_full" if filesystem.disk_is_full(error) else "bot_error", 0.0)
        self.on_output()
        return True

    def _check_time(self, command: Command, now: float) -> None:
        if command.why and command.wanted is not None:
            command.why, grace = command.wanted
            command.kill_at = min(command.kill_at, now + grace)
            if now >= command.kill_at:
                self._kill(command)
            if now >= command.kill_at + _LAST_DITCH_S:
                self.hung(command)
            return
        if command.wanted is None:
            if now >= command.hard_at:
                command.end("hard_timeout")
            elif command.io_s and now >= command.heard_at + command.io_s:
                command.end("io_timeout")
        if command.wanted is not None:
            command.why, grace = command.wanted
            command.kill_at = now + grace
            if grace > 0:
                self._ask(command)

    def _ask(self, command: Command) -> None:
        with self.lock:
            if not command.ended:
                processes.terminate_group(command.pid)

    def _kill(self, command: Command) -> None:
        """Everything at once; what the dead leave behind is killed by the thread that waits for the command."""
        with self.lock:
            if not command.ended:
                processes.kill_group(command.pid)
                processes.kill_descendants()
