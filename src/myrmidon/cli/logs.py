"""Printing the logs of tasks: followed while they grow, or as far as they are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext
from myrmidon.sdk.errors import CallFailed

LAST_LINES: Final = 5


@contextlib.contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Exit with BROKEN_PIPE when stdout is closed before the task has ended: its result is then unknown."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(exit_codes.BROKEN_PIPE) from None


class LogPrinter:
    """Prints the log of one task: its stdout to stdout, its stderr to stderr.

    With --json, stdout is reserved for JSON. When a further run of the task begins, a note on stderr says so: the
    output of both would otherwise look like that of one.
    """

    def __init__(self, cli: CliContext) -> None:
        self._writers = (output.LogWriter(err=cli.as_json), output.LogWriter(err=True))
        self._run: str | None = None

    def write(self, run: str, stream: int, data: bytes) -> None:
        """Print bytes of a run; ``stream`` is 0 for stdout, 1 for stderr."""
        if self._run not in (None, run):
            self.end_line()
            output.note(f"--- run {_number(run)}; the output above is from run {_number(self._run or run)} ---")
        self._run = run
        self._writers[stream].write(data)

    def end_line(self) -> None:
        for writer in self._writers:
            writer.end_line()

    def finish(self) -> None:
        for writer in self._writers:
            writer.finish()


def _number(run_id: str) -> int:
    """The number of a run: the last byte of its id."""
    return int(run_id[-2:], 16)


@exit_on_broken_pipe()
def follow_log(cli: CliContext, task_id: str, *, run: int | None = None, stream: str = "both") -> None:
    """Print the log until the task has ended."""
    from myrmidon.wire.logs import LogBytes  # late, for startup time

    printer = LogPrinter(cli)
    try:
        for chunk in cli.client.follow(task_id, run=run, stream=stream):
            if isinstance(chunk, LogBytes):
                printer.write(chunk.run, chunk.stream, chunk.data)
    finally:
        printer.finish()


def print_log(cli: CliContext, task_id: str, *, run: int | None = None, stream: str = "both") -> None:
    """Print the log so far."""
    printer = LogPrinter(cli)
    for number, name in enumerate(("stdout", "stderr")):
        if stream in ("both", name):
            for data in cli.client.log(task_id, run=run, stream=name):
                printer.write(task_id, number, data)
    printer.finish()


def log_tail_lines(cli: CliContext, task_id: str) -> list[str]:
    """The last lines of a task's log, each after ``|``; none if it cannot be read."""
    try:
        tail = cli.client.log_tail(task_id)
    except CallFailed:
        return []
    return [f"| {line}" for line in tail.decode(errors="replace").splitlines()[-LAST_LINES:]]
