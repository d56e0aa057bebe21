"""Everything that differs between operating systems, and nothing else: starting and killing, locks, clocks, disks.

The other files of the bot know no operating system. Linux has all of it; macOS lacks the kernel's help with
orphans, so that there a process that leaves its group *and* its parent is found by the process table only. On Windows
the pure parts work; `check_fit` refuses to start, because starting and killing commands there is not written yet.

A bot is the reaper of its commands: whatever a command leaves behind becomes the bot's own child, however it was
detached. So "no child is left" proves that nothing is left, and costs one system call after each command.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

if sys.platform != "win32":
    import fcntl
    import termios

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_TASK_OOM_SCORE = b"500"
_LAST_STREAM = 2


def name_of(platform: str) -> str:
    """One of linux, macos, windows; anything else is treated like Linux without its extras."""
    if platform.startswith("win"):
        return "windows"
    return "macos" if platform == "darwin" else "linux"


NAME = name_of(sys.platform)


class Unfit(Exception):
    """A bot cannot run on this system; the message says why."""


def check_fit(name: str = NAME) -> None:
    """Raise Unfit where a bot cannot run."""
    if name == "windows":
        raise Unfit("Bots do not run on Windows yet: starting and killing commands there is missing.")


# ---------------------------------------------------------------- clocks


def awake() -> float:
    """Seconds of a clock that never steps and that counts while the machine sleeps."""
    return _read_clock(_CLOCK)


def _same_clock() -> int:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.CLOCK_BOOTTIME
    return getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)


_CLOCK = _same_clock() if NAME != "windows" else 0
_read_clock = time.clock_gettime if NAME != "windows" else lambda _: time.monotonic()


def boot_id() -> str:
    """Another text after every start of the machine; empty where none can be had."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if NAME == "linux":
            return _read("/proc/sys/kernel/random/boot_id").decode().strip()
        if NAME == "macos":
            ask = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.check_output(ask, timeout=10).decode().strip()
    return ""


# ---------------------------------------------------------------- being a parent


_is_reaper = False


def become_reaper() -> bool:
    """Orphans of this process's descendants become its own children. False where the kernel cannot."""
    global _is_reaper
    _is_reaper = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _is_reaper


def signal_when_parent_dies(number: int) -> bool:
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> bool:
    if NAME != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    return False


def have_streams() -> None:
    """Open what was closed of the first three files: else a connection becomes the place where Python complains."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(handle)


def hear_signals() -> None:
    """Block no signal in this thread and in what it starts, whatever it has inherited."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def interrupt_thread(ident: int, error: type) -> None:
    """Raise an error in another thread of this process, at the next step of its Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


# ---------------------------------------------------------------- the machine


def reboot() -> None:
    """Ask the machine to restart. Raises OSError or SubprocessError when that cannot even be asked for."""
    given = os.environ.get("MYRMIDON_BOT_REBOOT")
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    words = shlex.split(given) if given else reboot_command(NAME, is_root=is_root)
    subprocess.run(words, stdin=subprocess.DEVNULL, timeout=60, check=True)


def reboot_command(name: str, *, is_root: bool) -> list[str]:
    if name == "windows":
        return ["shutdown", "/r", "/f", "/t", "1"]
    words = ["/sbin/shutdown", "-r", "now"]
    return words if is_root else ["sudo", "-n", *words]


def config_folder() -> str:
    """Where an administrator may leave files for all bots of this machine."""
    return os.environ.get("MYRMIDON_BOT_CONFIG_DIR") or (r"C:\myrmidon" if NAME == "windows" else "/etc/myrmidon")


def _host_folders() -> list[str]:
    """Where all bots of this machine, whoever runs them, can see each other; a bot uses the first that it can."""
    given = os.environ.get("MYRMIDON_BOT_HOST_DIR")
    return [given] if given else [f"{place}/myrmidon-bots" for place in ("/run/lock", "/tmp")]  # noqa: S108


def announce(folder: str) -> int | None:
    """Show the other bots of this machine that one lives here, until this process ends; None if impossible."""
    for place in _host_folders() if sys.platform != "win32" else []:
        with contextlib.suppress(OSError):
            if not os.path.isdir(place):
                os.mkdir(place)
                os.chmod(place, 0o1777)  # noqa: S103 - like /tmp: for all, and each may remove only its own
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            handle = os.open(os.path.join(place, _sign(folder)), flags, 0o644)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.write(handle, os.fsencode(folder))
            return handle
    return None


def take_leave(folder: str) -> None:
    """Remove what `announce` has left. What a bot that was killed has left means nothing: nobody holds its lock."""
    for place in _host_folders():
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(place, _sign(folder)))


def neighbours(folder: str) -> list[str]:
    """The folders of the other bots that live on this machine now."""
    found = []
    for place in _host_folders() if sys.platform != "win32" else []:
        with contextlib.suppress(OSError):
            names = os.listdir(place)
            found += [_who_lives(os.path.join(place, name)) for name in names if name != _sign(folder)]
    return sorted({one for one in found if one})


def _who_lives(path: str) -> str:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(handle, 4096).decode(errors="replace") or path
        finally:
            os.close(handle)
    return ""


def _sign(folder: str) -> str:
    """Of a folder and of no other on this machine: in containers, the folders of many bots have the same name."""
    which = b""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        which = b"\0%d %d" % (found.st_dev, found.st_ino)
    return hashlib.sha256(os.fsencode(folder) + which).hexdigest()[:24]


# ---------------------------------------------------------------- starting a command


class NotStarted(OSError):
    """A command could not be started."""


def start(argv: list[str], env: dict[bytes, bytes], cwd: str, streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, with these files as stdin, stdout and stderr. Raises NotStarted.

    A session of its own would cost the kernel a twentieth of a small command, and a leader of a session gets hold of a
    serial line by opening it. The soldier's session is without a terminal, and so is the command.

    No other file is inherited: Python opens all of them so (PEP 446), and the soldier is started with none but its
    own. Closing them in the child as well (close_fds) would cost a fifth of a small command.
    """
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, close_fds=False, **_OWN_GROUP
        )
    except OSError as error:
        raise NotStarted(error.errno, error.strerror) from error


def _own_group() -> dict[str, Any]:
    """The arguments of Popen that make the child the leader of a process group.

    Before Python 3.11 only code that runs in the child can do that. Here this is one system call, which takes no lock
    that another thread may have held at the fork.
    """
    if NAME == "windows":
        return {}
    return {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


_OWN_GROUP = _own_group()


# ---------------------------------------------------------------- waiting for it


def wait_end(pid: int) -> None:
    """Return when the child has ended. It stays a zombie, so that nobody else can get its pid before it is reaped."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def childless() -> bool:
    """Whether nothing is left, living or dead; buries what is dead."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


# ---------------------------------------------------------------- killing

_undying: set[int] = set()


def ask_to_end(pid: int) -> None:
    """SIGTERM to the command and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)


def kill_group(pid: int) -> None:
    """SIGKILL to the group that the command was started in."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_all_children(patience: float = 10.0) -> bool:
    """Kill everything below this process, also what has detached itself; False if something will not die.

    Stopped first and killed then, again and again: what forks faster than it is found runs out of living parents.
    What was killed in vain before is not waited for again.
    """
    until = time.monotonic() + patience
    pause = 0.001
    while not childless():
        found = descendants(process_table(), os.getpid())
        _undying.intersection_update(found)
        if found and found == _undying:
            return False
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        if time.monotonic() > until:
            _undying.update(found)
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def kill_descendants() -> None:
    """SIGKILL to everything below this process, once, burying nobody."""
    for pid in descendants(process_table(), os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def nothing_left(pid: int) -> bool:
    """Kill whatever a command has left behind when it ended; False if something will not die."""
    if _is_reaper:
        return childless() or kill_all_children()
    kill_group(pid)
    childless()
    return True


def mark_of(folder: str) -> bytes:
    """What every command of the bot in this folder has in its environment."""
    return b"MYRMIDON_BOT_FOLDER=" + os.fsencode(folder)


def kill_marked(mark: bytes) -> None:
    """Kill what a bot left behind that was killed together with its keeper: what bears the mark, and all below it."""
    if NAME != "linux":
        return
    parents = process_table()
    marked = set()
    for pid in parents:
        with contextlib.suppress(OSError):
            if mark in _read(f"/proc/{pid}/environ").split(b"\0"):
                marked.add(pid)
    for pid in marked.union(*(descendants(parents, pid) for pid in marked)) - {os.getpid()}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def descendants(parents: dict[int, int], root: int) -> set[int]:
    """All processes below root, given each process's parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    unseen = [root]
    while unseen:
        for pid in children.get(unseen.pop(), ()):
            if pid not in found and pid != root:
                found.add(pid)
                unseen.append(pid)
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
                table[int(name)] = parse_stat(_read(f"/proc/{name}/stat"))
    return table


def parse_stat(line: bytes) -> int:
    """The parent in a line of /proc/<pid>/stat; the name in it may hold anything, also parentheses."""
    return int(line[line.rindex(b")") + 1 :].split()[1])


def parse_ps(text: str) -> dict[int, int]:
    """`ps -axo pid=,ppid=` of macOS."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 2}


def parse_tasks(text: str) -> dict[int, int]:
    """`Get-CimInstance Win32_Process | ConvertTo-Csv` of Windows, with ProcessId and ParentProcessId."""
    lines = [[cell.strip('"') for cell in line.split(",")] for line in text.splitlines() if '"' in line]
    if not lines:
        return {}
    pid, parent = lines[0].index("ProcessId"), lines[0].index("ParentProcessId")
    return {int(row[pid]): int(row[parent]) for row in lines[1:]}


def let_it_die_first(pid: int) -> None:
    """When memory runs out, the kernel should take the command and leave the bot."""
    if NAME == "linux":
        with contextlib.suppress(OSError):
            write_file(f"/proc/{pid}/oom_score_adj", _TASK_OOM_SCORE)


# ---------------------------------------------------------------- pipes


def make_pipe() -> tuple[int, int]:
    """A pipe that is read without waiting, and large, so that short commands never wait for their reader."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    if NAME == "linux":
        with contextlib.suppress(OSError):  # the user has many pipes already: a small one works as well
            fcntl.fcntl(writer, _F_SETPIPE_SZ, _PIPE_BYTES)
    return reader, writer


def read_pipe(reader: int, most: int) -> bytes | None:
    """What is in a pipe; None when there is nothing yet, and no bytes when nobody can write into it any more."""
    try:
        return os.read(reader, most)
    except BlockingIOError:
        return None


def unread_bytes(reader: int) -> int:
    """How many bytes are in a pipe now."""
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


# ---------------------------------------------------------------- files


def lock(path: str) -> int | None:
    """Take a lock that lasts until this process ends, however it ends; None if another process has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def free_disk(path: str) -> tuple[int, int]:
    """(free, total) bytes of the disk on which a path lies."""
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


def required_disk(total: int) -> int:
    """How much of a disk must be free before a bot takes work: 5 %, at most 1 GiB."""
    return min(total // 20, 1 << 30)


def disk_is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def write_private(path: str, content: bytes) -> None:
    """Replace a file as a whole, readable by this user only; a reader sees the old or the new content."""
    part = f"{path}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def remove_file(path: str) -> None:
    """Remove a file or a link, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> bool:
    """Remove what the bot made, whatever a command has put into it; False if something of it stays.

    Nothing outside is touched: no link is followed, and what a command has mounted is unmounted or left alone.
    """
    with contextlib.suppress(OSError):
        if not _unmount_below(path):
            return False
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)
    return not os.path.lexists(path)


def _empty(path: str) -> None:
    """As deep as it may be: one folder is open at a time, and the way back is `..`, if that is still the way back."""
    here = _enter(path)
    try:
        device = os.fstat(here).st_dev
        above: list[tuple[int, str, list[str]]] = []
        inner = _unlink_all(here)
        while inner or above:
            if inner:
                name = inner.pop()
                below = _enter_if_on(device, name, here)
                if below is None:
                    continue
                above.append((os.fstat(here).st_ino, name, inner))
                here = _instead_of(here, below)
                inner = _unlink_all(here)
            else:
                inode, name, inner = above.pop()
                here = _instead_of(here, os.open("..", os.O_RDONLY, dir_fd=here))
                if os.fstat(here).st_ino != inode:
                    return  # somebody has moved the folder meanwhile
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)


def _instead_of(old: int, new: int) -> int:
    os.close(old)
    return new


def _enter(path: str, parent: int | None = None) -> int:
    """Open a folder, also one without permissions."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        handle = os.open(path, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(path, 0o700, dir_fd=parent)
        handle = os.open(path, flags, dir_fd=parent)
    with contextlib.suppress(OSError):
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o700 != 0o700:
            os.fchmod(handle, 0o700)
    return handle


def _enter_if_on(device: int, name: str, parent: int) -> int | None:
    """None for a folder that cannot be opened, or that is another file system's."""
    try:
        handle = _enter(name, parent)
    except OSError:
        return None
    if os.fstat(handle).st_dev == device:
        return handle
    os.close(handle)
    return None


def _unlink_all(folder: int) -> list[str]:
    """Remove all that is in an open folder but the folders in it; their names."""
    inner = []
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            inner.append(entry.name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
    return inner


def _unmount_below(path: str) -> bool:
    """Whether nothing is mounted there. A folder that is bound there is on the same disk, and looks like any other."""
    if NAME != "linux":
        return True
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for mounted in reversed(mounts_below(_read("/proc/self/mountinfo"), os.fsencode(real))):
        if ctypes.CDLL(None, use_errno=True).umount2(mounted, _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            return False
    return True


def mounts_below(table: bytes, folder: bytes) -> list[bytes]:
    """Where something is mounted at or below a folder, by /proc/self/mountinfo; what came later is later."""
    places = [line.split(b" ")[4] for line in table.splitlines()]
    plain = [re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), place) for place in places]
    return [place for place in plain if place == folder or place.startswith(folder + b"/")]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
