"""Watches the running command from a second thread: moves its output to the spool, and ends it when it must end.

The thread that has started a command waits for its end. Commands that end within QUICK_S are never watched.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable

from myrmidon.bot.run.command import Command
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock, filesystem, processes

QUICK_S = 0.02
TICK_S = 0.2  # how late a time limit or a request to end may be noticed
_READ_BYTES = 1 << 18
_MAX_BACKLOG_BYTES = 4 << 20  # of output that is not uploaded yet; then the command has to wait
_UNKILLABLE_AFTER_S = 60.0  # after the first SIGKILL

log = logging.getLogger("myrmidon.bot")


class CommandWatcher(threading.Thread):
    """Watches ``current``, the running command.

    ``lock`` is held while output is read or the process is signalled, so that neither happens after the command has
    ended: then its pid and file descriptors may have been reused.
    """

    def __init__(self, spool: LogSpool, on_unkillable: Callable[[Command], None]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.spool = spool
        self.on_unkillable = on_unkillable
        self.lock = threading.Lock()
        self.busy = threading.Event()
        self.current: Command | None = None
        self.server_unreachable = False
        self.on_output: Callable[[], None] = lambda: None

    # ---------------------------------------------------------------- called by the thread that runs commands

    def begin(self, command: Command) -> None:
        self.current = command
        if not self.busy.is_set():
            self.busy.set()

    def finish(self, command: Command) -> None:
        """Read the rest of the output of a command that has ended. Raises OSError when it cannot be stored.

        Reads only what is in the pipes now: a process that could not be killed may go on writing forever.
        """
        for stream, reader in enumerate(command.output.readers):
            unread = processes.unread_bytes(reader)
            while unread > 0 and (data := processes.read_pipe(reader, min(unread, _READ_BYTES))):
                command.store_output(stream, data, self.spool, to_spool=False)
                unread -= len(data)

    def release(self, command: Command) -> None:
        """Stop watching a command and close its pipes. Idempotent."""
        with self.lock:
            command.ended = True
            command.output.close()
        self.current = None

    # ---------------------------------------------------------------- the watcher's thread

    def run(self) -> None:
        while True:
            self.busy.wait()
            command = self.current
            if command is None:
                self.busy.clear()
                if self.current is not None:
                    self.busy.set()
                continue
            remaining_s = QUICK_S - (clock.boottime() - command.begun)
            if remaining_s > 0:
                time.sleep(remaining_s)
            elif command.ended:
                time.sleep(QUICK_S)
            else:
                self._watch_or_end(command)

    def _watch_or_end(self, command: Command) -> None:
        """Watch a command until it has ended. One that cannot be watched is killed: nothing would end it in time."""
        try:
            self._watch(command)
        except Exception:
            log.exception("run %s could not be watched", command.run)
            command.request_end("bot_error", 0.0)
            command.end_reason = "bot_error"
            self._kill(command)
            time.sleep(TICK_S)

    def _watch(self, command: Command) -> None:
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
            if (
                not self.server_unreachable
                and command.spooled
                and self.spool.pending_bytes(command.run) > _MAX_BACKLOG_BYTES
            ):
                time.sleep(QUICK_S)  # the command blocks on its full pipe until the log is uploaded
                command.last_output_at = now
                continue
            # A command without open streams is usually about to end; a long wait would delay watching the next one.
            for reader, _ in poll.poll((TICK_S if streams else QUICK_S) * 1000):
                if not self._read_output(command, streams[reader], reader):
                    poll.unregister(reader)  # else poll would return at once from now on
                    del streams[reader]

    def _read_output(self, command: Command, stream: int, reader: int) -> bool:
        """Move the content of a pipe to the spool; False at the end of the stream."""
        with self.lock:
            if command.ended:
                return False
            try:
                data = processes.read_pipe(reader, _READ_BYTES)
                if not data:
                    return data is None
                command.last_output_at = clock.boottime()
                command.store_output(stream, data, self.spool, to_spool=True)
            except OSError as error:
                command.discard_output = True
                command.request_end("disk_full" if filesystem.disk_is_full(error) else "bot_error", 0.0)
        self.on_output()
        return True

    def _check_time(self, command: Command, now: float) -> None:
        """Request the end of a command that exceeds its limits; send SIGTERM, and SIGKILL after the grace period."""
        if command.end_reason and command.end_request is not None:
            command.end_reason, grace_s = command.end_request
            command.kill_at = min(command.kill_at, now + grace_s)
            if now >= command.kill_at:
                self._kill(command)
            if now >= command.kill_at + _UNKILLABLE_AFTER_S:
                self.on_unkillable(command)
            return
        if command.end_request is None:
            if now >= command.deadline:
                command.request_end("hard_timeout")
            elif command.io_timeout_s and now >= command.last_output_at + command.io_timeout_s:
                command.request_end("io_timeout")
        if command.end_request is not None:
            command.end_reason, grace_s = command.end_request
            command.kill_at = now + grace_s
            if grace_s > 0:
                self._terminate(command)

    def _terminate(self, command: Command) -> None:
        with self.lock:
            if not command.ended:
                processes.terminate_group(command.pid)

    def _kill(self, command: Command) -> None:
        """Send SIGKILL to all processes of the command; those that appear meanwhile are killed when it has ended."""
        with self.lock:
            if not command.ended:
                processes.kill_group(command.pid)
                processes.kill_descendants()
