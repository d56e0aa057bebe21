"""Watches running commands from a thread of its own: moves output to the spool, and ends what must end.

The thread that has started a command waits for its end. Commands that end within QUICK_S are never watched.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from myrmidon.bot.run.run import Run
from myrmidon.bot.run.watch import NOTHING, TERMINATE, UNKILLABLE, Watch
from myrmidon.bot.system import clock, processes

QUICK_S = 0.02
TICK_S = 0.2  # how late a time limit or a request to end may be noticed
_READ_BYTES = 1 << 18

log = logging.getLogger("myrmidon.bot")


class CommandProcess:
    """The process of one running command. Each run has its own pipes, which are closed at its end: processes that a
    command leaves behind cannot write into the log of a later run.

    ``readers``: the bot's ends of the pipes, by stream; one for both if they are merged. ``streams``: the stream of
    each reader that is open. ``has_ended``: its pid and its pipes must not be used any more.
    """

    __slots__ = ("has_ended", "is_known", "pid", "readers", "run", "streams", "writers")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pid = 0
        self.readers: list[int] = []
        self.writers: list[int] = []
        self.streams: dict[int, int] = {}
        self.is_known = False
        self.has_ended = False

    def open_pipes(self) -> None:
        for stream in range(1 if self.run.task.merge_output else 2):
            reader, writer = processes.make_pipe()
            self.readers.append(reader)
            self.writers.append(writer)
            self.streams[reader] = stream

    def close_writers(self) -> None:
        """Close the bot's writers once the command has its own: then the readers see the end of the streams."""
        while self.writers:
            os.close(self.writers.pop())

    def close(self) -> None:
        """Close both pipes; processes that still write into them get SIGPIPE or EPIPE. Idempotent."""
        self.has_ended = True
        self.close_writers()
        self.streams.clear()
        while self.readers:
            os.close(self.readers.pop())


class CommandWatcher(threading.Thread):
    """``running``: the commands that have a process, by run.

    ``lock`` is held while output is read or a process is signalled, so that neither happens after the command has
    ended: then its pid and file descriptors may have been reused.
    """

    def __init__(self, watch: Watch, on_unkillable: Callable[[Run], None]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.watch = watch
        self.on_unkillable = on_unkillable
        self.lock = threading.Lock()
        self.busy = threading.Event()
        self.running: dict[str, CommandProcess] = {}

    # ---------------------------------------------------------------- called by the threads that run commands

    def begin(self, process: CommandProcess) -> None:
        self.running[process.run.id] = process
        if not self.busy.is_set():
            self.busy.set()

    def read_rest(self, process: CommandProcess) -> None:
        """Read the rest of the output of a command that has ended.

        Reads only what is in the pipes now: a process that could not be killed may go on writing forever.
        """
        for stream, reader in enumerate(process.readers):
            unread = processes.unread_bytes(reader)
            while unread > 0 and (data := processes.read_pipe(reader, min(unread, _READ_BYTES))):
                self.watch.store_output(process.run, stream, data, to_spool=False)
                unread -= len(data)

    def release(self, process: CommandProcess) -> None:
        """Stop watching a command and close its pipes. Idempotent."""
        with self.lock:
            process.close()
        self.running.pop(process.run.id, None)

    # ---------------------------------------------------------------- the watcher's thread

    def run(self) -> None:
        while True:
            self.busy.wait()
            running = list(self.running.values())
            if not running:
                self.busy.clear()
                if self.running:
                    self.busy.set()
                continue
            now = clock.boottime()
            watched = [one for one in running if now - one.run.begun >= QUICK_S and not one.has_ended]
            if watched:
                self._look_at(watched, now)
            else:
                time.sleep(QUICK_S)

    def _look_at(self, watched: list[CommandProcess], now: float) -> None:
        """Look at commands once, and wait for output. One that cannot be watched is killed: nothing would end it."""
        poll = select.poll()
        readers: dict[int, CommandProcess] = {}
        wait_s = TICK_S
        for process in watched:
            try:
                streams = list(process.streams) if self._check(process, now) else []
                readers.update(dict.fromkeys(streams, process))
                if not streams:
                    wait_s = QUICK_S  # it waits for room, or has closed its output and is usually about to end
            except Exception:
                log.exception("run %s could not be watched", process.run.id)
                process.run.request_end("bot_error", 0.0)
                process.run.accept_end(now)
                self._signal(process, kill=True)
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for reader, _ in poll.poll(wait_s * 1000):
            self._read_output(readers[reader], reader)

    def _check(self, process: CommandProcess, now: float) -> bool:
        """Enforce limits and requests to end; whether output may be read: a command blocks on its full pipe."""
        run = process.run
        if not process.is_known:
            process.is_known = True
            processes.prefer_for_oom_kill(process.pid)
        self.watch.check_limits(run, now)
        step = self.watch.next_step(run, now)
        if step != NOTHING:
            self._signal(process, kill=step != TERMINATE)
        if step == UNKILLABLE and not process.has_ended:
            self.on_unkillable(run)
        return self.watch.room(run, now) > 0

    def _read_output(self, process: CommandProcess, reader: int) -> None:
        """Move the content of a pipe to the spool."""
        with self.lock:
            if process.has_ended:
                return
            try:
                data = processes.read_pipe(reader, _READ_BYTES)
            except OSError as error:
                self.watch.end_without_output(process.run, error)
                data = b""
            if data == b"":
                del process.streams[reader]  # else poll would return at once from now on
            if not data:
                return
            self.watch.store_output(process.run, process.readers.index(reader), data, to_spool=True)
        self.watch.on_output()

    def _signal(self, process: CommandProcess, *, kill: bool) -> None:
        """Send SIGTERM, or SIGKILL to all processes; those that appear meanwhile are killed when it has ended."""
        with self.lock:
            if process.has_ended:
                return
            if kill:
                processes.kill_group(process.pid)
                processes.kill_descendants()
            else:
                processes.terminate_group(process.pid)
