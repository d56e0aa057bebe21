"""The progress of a job or a map: a line in a terminal, a bar in a terminal or notebook."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from myrmidon.wire.jobs import JobInfo

_BAR = 24


class ProgressLine:
    """Writes to the terminal of standard error; does nothing if that is none."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        self.is_shown = self._stream.isatty()
        self._written = False

    def update(self, info: JobInfo) -> None:
        if not self.is_shown:
            return
        line = progress_text(self._name, info)[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._written = True

    def end(self) -> None:
        """Remove the line, so that what the program prints begins at the left."""
        if self._written:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._written = False


def progress_text(name: str, info: JobInfo) -> str:
    """``word count  [########----------------]  12 of 36  2 running  1 failed``"""
    done = info.num_succeeded + info.num_failed
    filled = _BAR * done // max(1, info.num_tasks)
    parts = [name or info.job_id, f"[{'#' * filled}{'-' * (_BAR - filled)}]", f"{done} of {info.num_tasks}"]
    if running := info.counts.get("RUNNING", 0):
        parts.append(f"{running} running")
    if info.num_failed:
        parts.append(f"{info.num_failed} failed")
    return "  ".join(parts)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on standard error or in a notebook while the block runs; call what it gives for each that is done.

    Nothing is shown if there is neither a terminal nor a notebook.
    """
    from rich.console import Console  # late, for startup time
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
