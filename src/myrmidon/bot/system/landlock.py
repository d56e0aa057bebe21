"""Landlock: restricts the access of a thread, and of every process that it starts, to files (Linux 5.13 and newer).

Rules only grant: a thread that is restricted may do nothing with files, except below the folders that a rule names. It
cannot be undone. Listing folders stays allowed everywhere, because a right on a folder holds for all folders below:
without it on `/`, no program could list `/`. So a restricted process sees names, and opens no file that is not granted.

A restricted process cannot trace or inspect (ptrace, /proc/PID/environ, mem, fd) a process outside, even as root; nor
mount anything; nor, from ABI 6 on, send it a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

from myrmidon.bot.system.platforms import NAME

MINIMUM_ABI = 2
"""ABI 1 rejects every rename and link to another folder, which breaks ordinary programs."""
_SIGNALS_ABI = 6
_TRUNCATE_ABI = 3
_NETWORK_ABI = 4

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_SCOPE_SIGNAL = 1 << 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE = 1 << 0, 1 << 1, 1 << 2  # 1 << 3 is for listing folders: not restricted
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
READ = _EXECUTE | _READ_FILE


def abi() -> int:
    """The version of Landlock in this kernel; 0 if it has none or it is disabled."""
    if NAME != "linux":
        return 0
    with contextlib.suppress(OSError, AttributeError):
        return _system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return 0


def scopes_signals() -> bool:
    """Whether restricted processes cannot send signals to others."""
    return abi() >= _SIGNALS_ABI


class Ruleset:
    """Rules for `restrict_thread`. All methods raise OSError."""

    def __init__(self) -> None:
        version = abi()
        self.all_rights = _EXECUTE | _WRITE_FILE | _READ_FILE | _REMOVE_AND_MAKE | _REFER
        if version >= _TRUNCATE_ABI:
            self.all_rights |= _TRUNCATE
        self.file_rights = self.all_rights & (_EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE)
        attributes = struct.pack("=Q", self.all_rights)
        if version >= _NETWORK_ABI:
            attributes += struct.pack("=Q", 0)  # no rule for the network
        if version >= _SIGNALS_ABI:
            attributes += struct.pack("=Q", _SCOPE_SIGNAL)
        self.handle = _system_call(_CREATE_RULESET, attributes, len(attributes), 0)

    def close(self) -> None:
        """Free the rules; threads that they were applied to stay restricted."""
        os.close(self.handle)

    def grant(self, path: str, rights: int | None = None) -> None:
        """Allow everything, or these rights, for a file or for a folder and all below it. A link is not followed."""
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            allowed = self.all_rights if rights is None else rights
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                allowed &= self.file_rights
            _system_call(_ADD_RULE, self.handle, _PATH_BENEATH, struct.pack("=Qi", allowed, handle), 0)
        finally:
            os.close(handle)

    def grant_existing(self, paths: Iterable[str]) -> None:
        """Allow everything for these paths, without those that have disappeared or cannot be reached anyway."""
        for path in paths:
            with contextlib.suppress(OSError):
                self.grant(path)

    def restrict_thread(self) -> None:
        """Apply the rules to the calling thread. This cannot be undone.

        Without the capability SYS_ADMIN, the kernel requires `no_new_privs`, which disables programs like sudo.
        """
        try:
            _system_call(_RESTRICT_SELF, self.handle, 0)
        except PermissionError:
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
                raise
            _system_call(_RESTRICT_SELF, self.handle, 0)


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    """A system call that libc has no function for. Raises OSError."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    converted = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    result = int(function(ctypes.c_long(number), *converted))
    if result < 0:
        code = ctypes.get_errno() or errno.ENOSYS
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
