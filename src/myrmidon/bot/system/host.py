"""The machine as a whole: boot id, reboot, and which bots run on it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys

from myrmidon.bot.system.filesystem import read_file
from myrmidon.bot.system.platforms import NAME

if sys.platform != "win32":
    import fcntl


def boot_id() -> str:
    """A string that changes with every boot of the machine; empty where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if NAME == "linux":
            return read_file("/proc/sys/kernel/random/boot_id").decode().strip()
        if NAME == "macos":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.check_output(command, timeout=10).decode().strip()
    return ""


def config_folder() -> str:
    """The folder in which an administrator can store files for all bots of this machine."""
    return os.environ.get("MYRMIDON_BOT_CONFIG_DIR") or (r"C:\myrmidon" if NAME == "windows" else "/etc/myrmidon")


def reboot() -> None:
    """Request a reboot of the machine. Raises OSError or SubprocessError if the command fails."""
    configured = os.environ.get("MYRMIDON_BOT_REBOOT")
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    command = shlex.split(configured) if configured else reboot_command(NAME, is_root=is_root)
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=True)


def reboot_command(name: str, *, is_root: bool) -> list[str]:
    if name == "windows":
        return ["shutdown", "/r", "/f", "/t", "1"]
    command = ["/sbin/shutdown", "-r", "now"]
    return command if is_root else ["sudo", "-n", *command]


# ---------------------------------------------------------------- bots of this machine


def registry_folders() -> list[str]:
    """Folders in which bots of all users register; a bot uses the first one that it can write to."""
    configured = os.environ.get("MYRMIDON_BOT_HOST_DIR")
    return [configured] if configured else [f"{parent}/myrmidon-bots" for parent in ("/run/lock", "/tmp")]  # noqa: S108


def register_bot(folder: str) -> int | None:
    """Show other bots of this machine that a bot runs in this folder, by a lock that is held until this process ends.

    The handle of the lock; None if no folder for it can be used.
    """
    for registry in registry_folders() if sys.platform != "win32" else []:
        with contextlib.suppress(OSError):
            if not os.path.isdir(registry):
                os.mkdir(registry)
                os.chmod(registry, 0o1777)  # noqa: S103 - like /tmp: sticky and writable for all users
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            handle = os.open(os.path.join(registry, _registration_name(folder)), flags, 0o644)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.write(handle, os.fsencode(folder))
            return handle
    return None


def unregister_bot(folder: str) -> None:
    """Remove the file of `register_bot`. The file of a bot that was killed is harmless: its lock is free."""
    for registry in registry_folders():
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(registry, _registration_name(folder)))


def other_bots(folder: str) -> list[str]:
    """The folders of the other bots that run on this machine now."""
    own_name = _registration_name(folder)
    found = []
    for registry in registry_folders() if sys.platform != "win32" else []:
        with contextlib.suppress(OSError):
            names = os.listdir(registry)
            found += [_registered_folder(os.path.join(registry, name)) for name in names if name != own_name]
    return sorted({bot_folder for bot_folder in found if bot_folder})


def _registered_folder(path: str) -> str:
    """The folder of the bot that holds the lock of this file; empty if none does."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(handle, 4096).decode(errors="replace") or path
        finally:
            os.close(handle)
    return ""


def _registration_name(folder: str) -> str:
    """A name unique to a folder. It includes the inode: in containers, the folders of many bots have the same path."""
    identity = b""
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        identity = b"\0%d %d" % (found.st_dev, found.st_ino)
    return hashlib.sha256(os.fsencode(folder) + identity).hexdigest()[:24]
