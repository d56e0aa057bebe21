"""Files and disks: locks, free space, atomic writes, and safe removal of what commands leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import sys

from myrmidon.bot.system.platforms import NAME

if sys.platform != "win32":
    import fcntl

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def lock(path: str) -> int | None:
    """Take an exclusive lock that is held until this process ends; its handle. None if another process holds it."""
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
    """(free, total) bytes of the file system of a path."""
    usage = shutil.disk_usage(path)
    return usage.free, usage.total


def required_disk(total: int) -> int:
    """Bytes below which the failure of a run is blamed on a full disk: 5 % of the disk, at most 1 GiB."""
    return min(total // 20, 1 << 30)


def is_nearly_full(path: str) -> bool:
    """Whether the file system of a path has so little space that a failure may be due to that."""
    free, total = free_disk(path)
    return free < required_disk(total)


def disk_is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write_file(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def write_private(path: str, content: bytes) -> None:
    """Replace a file atomically and durably; the new file is readable by this user only."""
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


def is_own_folder(path: str) -> bool:
    """Whether a path is a folder (not a link) that belongs to this user and that only this user can write to."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        is_own = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
        return stat.S_ISDIR(found.st_mode) and is_own and not found.st_mode & 0o022
    return False


# ---------------------------------------------------------------- removing trees


def remove_tree(path: str) -> bool:
    """Remove a file or a tree that a command has written to; False if something is left.

    Safe against hostile content: no link is followed, and mounts are unmounted or left alone, never emptied.
    """
    with contextlib.suppress(OSError):
        if not _unmount_below(path):
            return False
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _empty_folder(path)
            os.rmdir(path)
        else:
            os.unlink(path)
    return not os.path.lexists(path)


def _empty_folder(path: str) -> None:
    """Remove everything below a folder, of any depth, with one open folder at a time.

    Goes back through `..`, and stops if that is not the folder it came from.
    """
    handle = _open_folder(path)
    try:
        device = os.fstat(handle).st_dev
        parents: list[tuple[int, str, list[str]]] = []
        subfolders = _unlink_files(handle)
        while subfolders or parents:
            if subfolders:
                name = subfolders.pop()
                child = _open_on_device(device, name, handle)
                if child is None:
                    continue
                parents.append((os.fstat(handle).st_ino, name, subfolders))
                handle = _replace_handle(handle, child)
                subfolders = _unlink_files(handle)
            else:
                inode, name, subfolders = parents.pop()
                handle = _replace_handle(handle, os.open("..", os.O_RDONLY, dir_fd=handle))
                if os.fstat(handle).st_ino != inode:
                    return  # the folder was moved meanwhile
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)


def _replace_handle(old: int, new: int) -> int:
    os.close(old)
    return new


def _open_folder(path: str, parent: int | None = None) -> int:
    """Open a folder, granting permissions to its owner if they are missing. Follows no link."""
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


def _open_on_device(device: int, name: str, parent: int) -> int | None:
    """Open a folder below another one; None if it cannot be opened or is on another file system."""
    try:
        handle = _open_folder(name, parent)
    except OSError:
        return None
    if os.fstat(handle).st_dev == device:
        return handle
    os.close(handle)
    return None


def _unlink_files(folder: int) -> list[str]:
    """Remove everything in an open folder except its subfolders; their names."""
    subfolders = []
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            subfolders.append(entry.name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.name, dir_fd=folder)
    return subfolders


def _unmount_below(path: str) -> bool:
    """Unmount everything at or below a path; False if that fails.

    Checking devices is not sufficient: a bind mount of a folder has the same device.
    """
    if NAME != "linux":
        return True
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for mounted in reversed(mounts_below(read_file("/proc/self/mountinfo"), os.fsencode(real))):
        if ctypes.CDLL(None, use_errno=True).umount2(mounted, _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            return False
    return True


def mounts_below(table: bytes, folder: bytes) -> list[bytes]:
    """The mount points at or below a folder in /proc/self/mountinfo, in the order of mounting."""
    escaped = [line.split(b" ")[4] for line in table.splitlines()]
    mount_points = [re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path) for path in escaped]
    return [path for path in mount_points if path == folder or path.startswith(folder + b"/")]
