"""Which operating system this is, and whether a bot can run on it.

Only the packages `system` and `signals` differ between operating systems. Linux is fully supported. macOS has no
subreaper, so a process that leaves its group and its parent is found only through the process table. On Windows only
pure functions work.
"""

from __future__ import annotations

import sys


def name_of(platform: str) -> str:
    """linux, macos or windows, from a value of sys.platform. Other systems are treated like Linux."""
    if platform.startswith("win"):
        return "windows"
    return "macos" if platform == "darwin" else "linux"


NAME = name_of(sys.platform)


class UnsupportedPlatform(Exception):
    """Bots cannot run on this operating system."""


def check_supported(name: str = NAME) -> None:
    """Raise UnsupportedPlatform where bots cannot run."""
    if name == "windows":
        raise UnsupportedPlatform("Bots do not run on Windows yet: starting and killing commands is not implemented.")
