"""A command while it runs: its output, its time limits, and how it is made to end.

Two pipes serve all commands of a bot, one after the other: the bot keeps their other ends open, so nothing has to
be made or closed per command. Whoever reads them holds the lock and has made sure that the command has not ended:
that keeps the bytes of two commands apart.

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
from myrmidon.bot.system import host

QUICK_S = 0.02
TICK_S = 0.2
INLINE = 65536
_READ = 1 << 18
_LAST_READS = 16
_BACKLOG = 4 << 20
_LAST_DITCH_S = 60.0


class Command:
    """One run. ``why`` says why the bot ended it; empty when it ended by itself."""

    __slots__ = (
        "begun", "ended", "grace", "hard_at", "heard_at", "inline", "io_s", "kill_at", "kills", "pid", "run", "sizes",
        "spooled", "task", "token", "unwanted", "wanted", "why",
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
        self.readers = (-1, -1)
        self.writers = (-1, -1)
        self.new_pipes()

    def new_pipes(self) -> None:
        """Also called when something would not die, which may then write where nobody reads."""
        pipes = (host.make_pipe(), host.make_pipe())
        with self.lock:
            for old in self.readers + self.writers:
                if old >= 0:
                    os.close(old)
            self.readers = (pipes[0][0], pipes[1][0])
            self.writers = (pipes[0][1], pipes[1][1])
            self.poll, self.rest = _poll_of(self.readers), _poll_of(self.readers)  # one for each thread
            self.shapes = self._shapes()

    def _shapes(self) -> list[tuple[int, int]]:
        return [host.pipe_shape(writer) for writer in self.writers]

    # -- called by the thread that runs the command

    def begin(self, command: Command) -> None:
        self.current = command
        if not self.busy.is_set():
            self.busy.set()

    def finish(self, command: Command, *, all_dead: bool = True) -> None:
        """The command has ended: collect the rest of its output. Raises OSError when that could not be kept.

        It is read all the same, or the next command would seem to have said it. The next one also needs other pipes if
        something still lives that can write into these, or if the command has changed how they work.
        """
        failed = None
        reads = 0
        while (ready := self.rest.poll(0)) and (all_dead or reads < _LAST_READS):
            reads += 1
            for reader, _ in ready:
                data = os.read(reader, _READ)
                try:
                    command.keep(self.readers.index(reader), data, self.spool, at_once=False)
                except OSError as error:
                    command.unwanted = True
                    failed = error
        self.current = None
        if not all_dead or self._shapes() != self.shapes:
            self.new_pipes()
        if failed is not None:
            raise failed

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
            early = QUICK_S - (host.awake() - command.begun)
            if early > 0:
                time.sleep(early)
            elif command.ended:
                time.sleep(QUICK_S)
            else:
                self._attend(command)

    def _attend(self, command: Command) -> None:
        host.let_it_die_first(command.pid)
        while not command.ended:
            now = host.awake()
            self._check_time(command, now)
            if not self.server_away and command.spooled and self.spool.waiting(command.run) > _BACKLOG:
                time.sleep(QUICK_S)  # the command waits on its full pipe until the server has caught up
                command.heard_at = now
                continue
            for reader, _ in self.poll.poll(TICK_S * 1000):
                self._collect(command, reader)

    def _collect(self, command: Command, reader: int) -> None:
        with self.lock:
            if command.ended or reader not in self.readers:
                return
            try:
                data = os.read(reader, _READ)
                command.heard_at = host.awake()
                command.keep(self.readers.index(reader), data, self.spool, at_once=True)
            except BlockingIOError:
                return
            except OSError as error:
                command.unwanted = True
                command.end("disk_full" if host.disk_is_full(error) else "bot_error", 0.0)
        self.on_output()

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
                host.ask_to_end(command.pid)

    def _kill(self, command: Command) -> None:
        """Everything at once; what the dead leave behind is killed by the thread that waits for the command."""
        with self.lock:
            if not command.ended:
                host.kill_group(command.pid)
                host.kill_descendants()


def _poll_of(readers: tuple[int, int]) -> select.poll:
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    return poll
