"""One process that runs functions: its pipes, its output files, and the runs that it was given.

The bot sends one frame per message of a SOCK_SEQPACKET socket and keeps a copy of the process's end. So it can take
back runs that the process has not read, for example because the run before them takes long: every message is received
by exactly one of the two. Answers come through a plain pipe, and so do announcements of the runs that the process
begins: a run that it was given and has not announced has not begun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import deque
from typing import Any

from myrmidon.bot.run.run import WAITING, ProcessKey, Run
from myrmidon.bot.run.watch import NO_LIMIT, Watch
from myrmidon.bot.system import processes
from myrmidon.bot.system.filesystem import read_file
from myrmidon.executor.stacks import take_stacks
from myrmidon.functions import msgpack

MAX_MESSAGE_BYTES = 128 << 10
MAX_FILE_BYTES = 16 << 20  # of an output file of a function that runs
MEMORY_MARGIN_BYTES = 64 << 20
"""How much more memory than its limit a function may have before it is killed: Python itself needs some."""
_READ_BYTES = 1 << 16
_MAX_FRAME_BYTES = 16 << 20
_LENGTH_BYTES = 4
_PIECE_BYTES = 1 << 20
_STOP_S = 0.1
_LAST_WORDS_BYTES = 500
_SOCKET_TYPE = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)


class BrokenProtocol(Exception):
    """The process has sent something that is no frame: the function has written to the pipe of its process."""


class Channel:
    """The files between the bot and a process. ``theirs``: the process's end, from which the bot takes messages too."""

    def __init__(self) -> None:
        try:
            self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, _SOCKET_TYPE)
        except OSError:  # macOS has no SOCK_SEQPACKET
            self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.ours.setblocking(False)
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        self.ours.close()
        self.theirs.close()
        os.close(self.reader)


class ExecutorProcess:
    """A process that was started.

    ``pending``: runs that it was given and has not answered. ``current``: the first of them, if it has announced it.
    ``files``: its stdout and stderr. ``stacks``: the file in which it leaves its stack if it crashes or is ended.
    ``ends``: up to where its output belongs to answered runs. ``is_ready``: it has come up. ``ending``: why it is to
    end, empty while it is not; ``ending_at``: since when. ``generation``: of the rules of its isolation.
    """

    def __init__(
        self, number: int, key: ProcessKey, folder: str, channel: Channel, files: tuple[int, int], stacks: int
    ) -> None:
        self.number = number
        self.key = key
        self.folder = folder
        self.channel = channel
        self.files = files
        self.stacks = stacks
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.pending: deque[Run] = deque()
        self.current: Run | None = None
        self.ends = [0, 0]
        self.buffer = b""
        self.is_ready = False
        self.ending = ""
        self.ending_at = 0.0
        self.used_at = 0.0
        self.generation = 0
        self.is_stopped = False
        self.was_killed = False

    # ---------------------------------------------------------------- frames

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """(messages of the process, whether more can come). Raises BrokenProtocol."""
        chunks = [self.buffer]
        is_open = True
        while True:
            data = processes.read_pipe(self.channel.reader, _READ_BYTES)
            if data:
                chunks.append(data)
            if not data or len(data) < _READ_BYTES:
                is_open = data != b""
                break
        messages, self.buffer = _parse(b"".join(chunks))
        return messages, is_open

    def give(self, run: Run, frame: bytes, now: float) -> bool:
        """Send a run to the process; False if there is no room now, or nobody to read it."""
        try:
            self.channel.ours.send(frame)
        except OSError:  # no room, ENOBUFS of macOS, or the process is gone, which its pipe will show
            return False
        run.begun = 0.0
        self.pending.append(run)
        self._watch_first(now)
        return True

    def begin(self, number: int, now: float) -> None:
        """The process has announced a run. Raises BrokenProtocol if it is not the next one."""
        if self.current is not None or not self.pending or self.pending[0].number != number:
            raise BrokenProtocol(f"the beginning of {number}")
        self.current = self.pending[0]
        self.current.begin(now)

    def end_current(self, now: float) -> None:
        """The process has answered the run that it had begun."""
        self.pending.popleft()
        self.current = None
        self.used_at = now
        self._watch_first(now)

    def _watch_first(self, now: float) -> None:
        """Start the clock of the first run: it never begins if the process hangs. Its announcement starts it again."""
        if self.pending and not self.pending[0].begun:
            self.pending[0].begin(now)

    def take_back(self, now: float) -> list[Run]:
        """Take back all runs that the process has not received, in their order."""
        taken: set[int] = set()
        while True:
            try:
                message = self.channel.theirs.recv(MAX_MESSAGE_BYTES + _LENGTH_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                break
            if not message:
                break
            taken.add(msgpack.unpack(message[_LENGTH_BYTES:])["id"])
        found = [run for run in self.pending if run.number in taken]
        self.pending = deque(run for run in self.pending if run.number not in taken)
        for run in found:
            run.state = WAITING
        self._watch_first(now)
        return found

    # ---------------------------------------------------------------- output

    def read_output(self, run: Run, watch: Watch, until: tuple[int, int] | None, limit: int) -> bool:
        """Add output to a run's log, up to these sizes of the files or all that there is; whether it is complete."""
        try:
            return self._read_output(run, watch, until, limit)
        except OSError as error:
            watch.end_without_output(run, error)
            return True

    def _read_output(self, run: Run, watch: Watch, until: tuple[int, int] | None, limit: int) -> bool:
        for stream in (0, 1):
            end = until[stream] if until is not None else os.fstat(self.files[stream]).st_size
            while self.ends[stream] < end:
                if limit <= 0:
                    return False
                size = min(end - self.ends[stream], _PIECE_BYTES, limit)
                data = os.pread(self.files[stream], size, self.ends[stream])
                if not data:
                    break  # the function has truncated its output
                self.ends[stream] += len(data)
                limit -= len(data)
                watch.store_output(run, stream, data, to_spool=until is None)
        return True

    def move_output(self, run: Run, watch: Watch, now: float) -> bool:
        """Move what a function prints to the log; whether there was any.

        The process is stopped while that is too much to upload.
        """
        room, before = watch.room(run, now), sum(run.sizes)
        is_complete = room > 0 and self.read_output(run, watch, None, room)
        if room > 0 and max(self.ends) > MAX_FILE_BYTES:
            self.stop()
            is_complete = self.read_output(run, watch, None, room)
            self.cut_files(MAX_FILE_BYTES)
        if is_complete:
            self.resume()
        elif not self.is_stopped:
            self.stop()
        return sum(run.sizes) > before

    def read_last_output(self, run: Run, watch: Watch) -> None:
        """Add the rest of the output of a process that has ended to the log of its run, and the stack that it left."""
        self.read_output(run, watch, None, NO_LIMIT)
        try:
            stacks = take_stacks(self.stacks)
        except OSError as error:
            watch.end_without_output(run, error)
            return
        if stacks:
            watch.store_output(run, 1, stacks, to_spool=True)

    def last_words(self) -> str:
        """The end of what the process has written to stderr."""
        start = max(0, os.fstat(self.files[1]).st_size - _LAST_WORDS_BYTES)
        text = os.pread(self.files[1], _LAST_WORDS_BYTES, start).decode(errors="replace").strip()
        return text or "it has written nothing to stderr"

    def cut_files(self, least_bytes: int) -> None:
        """Empty output files that have grown large and are read completely. The process must be idle or stopped."""
        for stream in (0, 1):
            if self.ends[stream] >= least_bytes and os.fstat(self.files[stream]).st_size == self.ends[stream]:
                os.ftruncate(self.files[stream], 0)
                self.ends[stream] = 0

    # ---------------------------------------------------------------- the process

    def rss(self) -> int:
        """The memory of the process in bytes; 0 if unknown."""
        return _rss_of(self.pid)

    def rss_with_children(self) -> int:
        """The memory of the process and of all that it has started."""
        found = processes.descendants(processes.process_table(), self.pid)
        return sum(map(_rss_of, found), self.rss())

    def is_bloated(self, run: Run) -> bool:
        """Whether earlier functions have left so much memory in the process that this one would not have its share."""
        return bool(run.memory_bytes) and self.rss() > run.memory_bytes // 2 + MEMORY_MARGIN_BYTES // 2

    def has_too_much_memory(self, run: Run, *, measure: bool) -> bool:
        """``measure``: with all that the process has started."""
        if not run.memory_bytes or self.ending:
            return False
        used = self.rss_with_children() if measure else self.rss()
        return used > run.memory_bytes + MEMORY_MARGIN_BYTES

    def stop(self) -> None:
        """Stop the process, and wait until it stands still, so that what it has done so far is known."""
        self.is_stopped = True
        _signal_group(self.pid, signal.SIGSTOP)
        until = time.monotonic() + _STOP_S
        while _state_of(self.pid) not in "TtZX" and time.monotonic() < until:
            time.sleep(0.0005)

    def resume(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            _signal_group(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        processes.terminate_group(self.pid)
        self.resume()

    def kill(self, reason: str, now: float) -> None:
        """Kill the process with all that it has started. It is gone when `exit_status` says so."""
        if not self.ending:
            self.ending, self.ending_at = reason, now
        self.was_killed = True
        processes.kill_tree(self.pid)

    def exit_status(self) -> int | None:
        """The exit code, or minus the number of the signal; None while the process exists."""
        return self.process.poll() if self.process is not None else 0

    def close(self) -> None:
        self.channel.close()
        for file in (*self.files, self.stacks):
            os.close(file)


def _parse(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """(complete messages, rest)"""
    messages = []
    start, size = 0, len(data)
    while size - start >= _LENGTH_BYTES:
        length = int.from_bytes(data[start : start + _LENGTH_BYTES], "little")
        if length > _MAX_FRAME_BYTES:
            raise BrokenProtocol(f"a frame of {length} bytes")
        end = start + _LENGTH_BYTES + length
        if end > size:
            break
        try:
            message = msgpack.unpack(data[start + _LENGTH_BYTES : end])
        except msgpack.MsgpackError as error:
            raise BrokenProtocol(str(error)) from error
        if not isinstance(message, dict):
            raise BrokenProtocol("a frame that is not a map")
        messages.append(message)
        start = end
    return messages, data[start:] if start else data


def frame_of(message: dict[str, Any]) -> bytes:
    content = msgpack.pack(message)
    return len(content).to_bytes(_LENGTH_BYTES, "little") + content


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _state_of(pid: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        line = read_file(f"/proc/{pid}/stat")
        return chr(line[line.rindex(b")") + 2])
    return "X"


def _rss_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(read_file(f"/proc/{pid}/statm").split()[1]) * _PAGE_BYTES
    return 0


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
