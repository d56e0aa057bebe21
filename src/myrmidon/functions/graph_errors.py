"""Errors while a graph is built: each names the line of the caller's program."""

from __future__ import annotations

import os
import sys
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SKIPPED = tuple(os.path.join(_PACKAGE, folder) + os.sep for folder in ("functions", "sdk", "executor"))


class GraphError(Exception):
    """A graph cannot be built as it is written; nothing was submitted."""


class HandleMisuse(GraphError, TypeError):
    """The result of a call was used as a value before the job has run."""


class WiringError(GraphError, TypeError):
    """An argument does not have the type of its parameter."""


def caller_line() -> str | None:
    """``file.py:12`` of the innermost frame outside of this library, or None if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe reads source files
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_SKIPPED) and not name.startswith("<frozen"):
            return f"{_short(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def at_caller(message: str) -> str:
    """The message with the caller's line in front."""
    line = caller_line()
    return f"{line}: {message}" if line else message


def _short(path: str) -> str:
    """Relative to the current folder where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return relative if len(relative) < len(path) else path
