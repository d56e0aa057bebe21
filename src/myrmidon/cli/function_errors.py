"""The exception that has ended a function, as lines for people: first the line of their own code, then the traceback.

The commands that show how a task has ended print it: `task show`, `task log`, `task why`, `job why`, `job log`,
`job watch` and `collect --log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myrmidon.cli import output

if TYPE_CHECKING:
    from myrmidon.wire.functions import FunctionError
    from myrmidon.wire.tasks import RunInfo, TaskInfo

_SHORT: Final = 12
"""Lines of an exception where several failures are shown below each other."""


def error_lines(error: FunctionError | None, *, short: bool = False) -> list[str]:
    """The lines of an exception; ``short`` leaves out the frames of libraries below the user's code, and long parts."""
    if error is None:
        return []
    lines = error.traceback.rstrip().splitlines()
    lines = lines or f"{error.type}: {error.message}".removesuffix(": ").splitlines()
    if short:
        lines = _shortened(_without_libraries(lines, error.place))
    return [output.style(f"raised at {error.place}", bold=True), *lines] if error.place else lines


def _without_libraries(lines: list[str], place: str) -> list[str]:
    """A traceback without the frames after the last one of the user's code."""
    number, _, function = place.rpartition(":")[2].partition(" in ")
    users = [i for i, line in enumerate(lines) if line.endswith(f", line {number}, in {function}")]
    if not users:
        return lines
    frames = [i for i, line in enumerate(lines) if i > users[-1] and line.startswith("  File ")]
    end = next((i for i, line in enumerate(lines) if i > users[-1] and not line.startswith(" ")), len(lines))
    inside = [i for i in frames if i < end]
    return [*lines[: inside[0]], f"  ... in libraries: {len(inside)} more", *lines[end:]] if inside else lines


def _shortened(lines: list[str]) -> list[str]:
    half = _SHORT // 2
    if len(lines) <= _SHORT:
        return lines
    return [*lines[:half], f"  ... {len(lines) - 2 * half} more lines; `task show` prints all", *lines[-half:]]


def deciding_run(task: TaskInfo) -> RunInfo | None:
    """The run that has decided the result of a task; None before that, and for a task that had none."""
    return next((run for run in task.runs if run.run == task.result.run and run.ended_at is not None), None)


def print_error(task: TaskInfo, number: int | None = None) -> None:
    """Print the exception of the deciding run, or of the run with this number, to stderr below its log."""
    run = deciding_run(task) if number is None else next((one for one in task.runs if one.number == number), None)
    for line in error_lines(run.error if run else None):
        output.echo(line, err=True)
