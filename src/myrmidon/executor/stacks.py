"""Stacks that `faulthandler` writes when a process with functions is ended or crashes: only the user's part is shown.

They are written to a file of their own, by C code that cannot leave frames out, and added to the log afterwards: by
the bot if the process has died of it, by the process itself if it was only one that the function had forked.
"""

from __future__ import annotations

import os
import re

MAX_BYTES = 256 << 10
_FRAME = re.compile(r'  File "(.*)", line ')
_HEADING_END = "(most recent call first):"
_NOT_THE_USERS = re.compile(
    r"(?:.*/)?(?:[^/]+\.zip/__main__\.py|myrmidon/(?:bot|executor|functions)/\S+\.py"
    r"|runpy\.py|asyncio/[^/]+\.py|importlib/[^/]+\.py)|<frozen (?:runpy|importlib\S*)>"
)


def take_stacks(file: int) -> bytes:
    """What is in the file of stacks, as it is shown in a log; the file is emptied. Raises OSError."""
    if not os.fstat(file).st_size:
        return b""
    text = os.pread(file, MAX_BYTES, 0).decode(errors="replace")
    os.ftruncate(file, 0)
    return users_stacks(text).encode()


def users_stacks(text: str) -> str:
    """The stacks without the frames of the executor, and of asyncio and importlib, below the user's function."""
    shown: list[str] = []
    for line in reversed(text.splitlines(keepends=True)):
        following = shown[-1] if shown else ""
        frame = _FRAME.match(line)
        if frame and not _FRAME.match(following) and _NOT_THE_USERS.fullmatch(frame[1]):
            continue
        if line.rstrip().endswith(_HEADING_END) and not following.startswith("  "):
            continue  # nothing of this stack is the user's
        shown.append(line)
    return "".join(reversed(shown))
