"""Processes: starting commands, waiting for them, and killing everything they have started.

On Linux the worker is the subreaper of its commands: every process that a command leaves behind becomes a child of the
worker, even a daemon. So if `waitpid` finds no child, nothing is left; that costs one system call per command.

The processes that run functions outlive commands. They are in ``kept`` and are spared, with all they have started: each
of them is the subreaper of its own descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from myrmidon.bot.system.filesystem import read_file, write_file
from myrmidon.bot.system.platforms import NAME

if sys.platform != "win32":
    import fcntl
    import termios

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_TASK_OOM_SCORE = b"500"
_LAST_STREAM = 2


# ---------------------------------------------------------------- this process

_is_reaper = False


def become_reaper() -> bool:
    """Make orphaned descendants of this process its own children. False where the kernel does not support that."""
    global _is_reaper
    _is_reaper = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _is_reaper


def hide() -> bool:
    """Close the /proc files of this process (environment, memory, open files) to other processes of its user.

    `exec` undoes it, so each process calls this first thing. Root can open them nevertheless.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def signal_when_parent_dies(number: int) -> bool:
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> bool:
    if NAME != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    return False


def open_standard_streams() -> None:
    """Open those of the first three file descriptors that are closed: else a socket could become stderr."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(handle)


def unblock_signals() -> None:
    """Unblock all signals in this thread and in the processes that it starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def raise_in_thread(ident: int, error: type) -> None:
    """Raise an exception in another thread of this process, at its next Python bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


# ---------------------------------------------------------------- start and end of a command


class NotStarted(OSError):
    """A command could not be started."""


def start_command(
    argv: list[str],
    env: dict[bytes, bytes],
    cwd: str,
    streams: tuple[int, int, int],
    user_arguments: Mapping[str, Any] = MappingProxyType({}),
    further_files: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, with these files as stdin, stdout and stderr. Raises NotStarted.

    It gets no session of its own: that costs a twentieth of the time of a small command, and a session leader acquires
    a controlling terminal by opening a serial line. The worker's session has no terminal.

    No other file is inherited: Python opens files as non-inheritable (PEP 446), and the worker is started without
    foreign ones. Closing them in the child as well (close_fds) would cost a fifth of the time of a small command; that
    is done only if the child gets ``further_files``.
    """
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            close_fds=bool(further_files),
            pass_fds=tuple(further_files),
            **_GROUP_ARGUMENTS,
            **user_arguments,
        )
    except OSError as error:
        raise NotStarted(error.errno, error.strerror) from error


def _group_arguments() -> dict[str, Any]:
    """The arguments of Popen that make the child the leader of a process group.

    Before Python 3.11 that needs code that runs in the child. It is a single system call, so it cannot deadlock on a
    lock that another thread held at the fork.
    """
    if NAME == "windows":
        return {}
    return {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


_GROUP_ARGUMENTS = _group_arguments()


def wait_until_ended(pid: int) -> None:
    """Wait until a child has ended, without reaping it: so its pid is not reused before the caller is done with it."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


kept: set[int] = set()
"""The processes that run functions."""
kept_lock = threading.RLock()
"""Held while one of those is started, so that it is in ``kept`` before anything looks for processes to kill.

Reentrant, because the signal handler that ends the worker kills processes too.
"""


def reap_children() -> bool:
    """Reap all children that have ended, except those in ``kept``; whether no other one is left."""
    with kept_lock:
        if kept:
            return _reap_each(_children() - kept)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False


def _reap_each(children: set[int]) -> bool:
    alive = [pid for pid in children if not has_ended(pid)]
    return not alive


def has_ended(pid: int) -> bool:
    """Reap a child if it has ended; whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _children() -> set[int]:
    """The children of this process. Without the process table, which takes a hundred times as long, if possible."""
    found: set[int] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            found.update(map(int, read_file(f"/proc/self/task/{thread}/children").split()))
    except OSError:
        own = os.getpid()
        return {pid for pid, parent in process_table().items() if parent == own}
    return found


# ---------------------------------------------------------------- killing

_unkillable: set[int] = set()


def terminate_group(pid: int) -> None:
    """Send SIGTERM to the process group of a command."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)


def kill_group(pid: int) -> None:
    """Send SIGKILL to the process group of a command."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_all_children(timeout_s: float = 10.0) -> bool:
    """Kill and reap all descendants of this process, daemons too; False if some are alive after ``timeout_s``.

    All are stopped before any is killed, repeatedly, so that a fork bomb cannot grow faster than it is found. Processes
    that have survived an earlier call are not waited for again.
    """
    until = time.monotonic() + timeout_s
    pause = 0.001
    while not reap_children():
        with kept_lock:
            found = descendants(process_table(), os.getpid(), without=kept)
            _unkillable.intersection_update(found)
            if found and found == _unkillable:
                return False
            _kill_each(found)
        if time.monotonic() > until:
            _unkillable.update(found)
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _kill_each(pids: set[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process, to its group and to all its descendants."""
    _kill_each(descendants(process_table(), pid))
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Send SIGKILL once to all descendants of this process, except those in ``kept``, without reaping them."""
    with kept_lock:
        for pid in descendants(process_table(), os.getpid(), without=kept):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_leftovers(pid: int) -> bool:
    """Kill and reap the processes that an ended command has left behind; False if some are still alive."""
    if _is_reaper:
        return reap_children() or kill_all_children()
    kill_group(pid)
    reap_children()
    return True


def environment_marker(folder: str) -> bytes:
    """The line in the environment of every command of the bot in this folder."""
    return b"MYRMIDON_BOT_FOLDER=" + os.fsencode(folder)


def kill_by_marker(marker: bytes) -> set[int]:
    """Kill processes with this marker in their environment, and their descendants; their pids.

    They are left when worker and supervisor, or a process that runs functions, were killed.
    """
    if NAME != "linux":
        return set()
    parents = process_table()
    marked = set()
    for pid in parents:
        with contextlib.suppress(OSError):
            if marker in read_file(f"/proc/{pid}/environ").split(b"\0"):
                marked.add(pid)
    found = marked.union(*(descendants(parents, pid) for pid in marked)) - {os.getpid()}
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found


def prefer_for_oom_kill(pid: int) -> None:
    """Make the kernel kill the command, and not the bot, when memory runs out."""
    if NAME == "linux":
        with contextlib.suppress(OSError):
            write_file(f"/proc/{pid}/oom_score_adj", _TASK_OOM_SCORE)


# ---------------------------------------------------------------- process table


def descendants(parents: dict[int, int], root: int, without: Collection[int] = ()) -> set[int]:
    """All descendants of ``root``, given the parent of each process; not those in ``without``, nor theirs."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            if pid not in found and pid != root and pid not in without:
                found.add(pid)
                pending.append(pid)
    return found


def process_table() -> dict[int, int]:
    """The parent of every process."""
    if NAME == "linux":
        return _proc_table()
    if NAME == "macos":
        return parse_ps(subprocess.check_output(["/bin/ps", "-axo", "pid=,ppid="], timeout=30).decode())
    return {}


def _proc_table() -> dict[int, int]:
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                table[int(name)] = parse_stat(read_file(f"/proc/{name}/stat"))
    return table


def parse_stat(line: bytes) -> int:
    """The parent pid in /proc/<pid>/stat. The process name in it may contain anything, also parentheses."""
    return int(line[line.rindex(b")") + 1 :].split()[1])


def parse_ps(text: str) -> dict[int, int]:
    """The process table in `ps -axo pid=,ppid=` of macOS."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 2}


# ---------------------------------------------------------------- pipes


def make_pipe() -> tuple[int, int]:
    """A pipe with a non-blocking reader, large so that short commands never wait for it."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    if NAME == "linux":
        with contextlib.suppress(OSError):  # the user's limit for pipes is reached: a small one works as well
            fcntl.fcntl(writer, _F_SETPIPE_SZ, _PIPE_BYTES)
    return reader, writer


def read_pipe(reader: int, limit: int) -> bytes | None:
    """Bytes from a pipe; None when it is empty now, and b"" at its end."""
    try:
        return os.read(reader, limit)
    except BlockingIOError:
        return None


def unread_bytes(reader: int) -> int:
    """The number of bytes in a pipe now."""
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)
