"""Makes the records of runs that have ended: the report for the server, and the output that goes with it.

A *finish* says how a run has ended, with or without success. A *fault* says that the bot could not carry it out; the
server decides by its kind what follows. A run that is lost is not reported.
"""

from __future__ import annotations

from typing import Any

from myrmidon.bot.protocol import Chunk, FaultReport, FinishReport, Record, Task, Unreadable
from myrmidon.bot.run.run import Run
from myrmidon.bot.system import filesystem

FAULTS = ("shutdown", "disk_full", "bot_error")
"""Reasons to end a run that are not those of its task."""


class TransferFailed(Exception):
    """A file of a run could not be fetched or stored. ``is_permanent``: it cannot be elsewhere either."""

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent


class Problem(Exception):
    """Why a run cannot go on. ``kind``: that of the fault; empty if the run itself is to blame."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def problem_of(error: BaseException, what: str) -> Problem:
    """The problem of a bot that has failed, or whose disk is full or cannot be used."""
    is_full = filesystem.disk_is_full(error)
    shown = str(error) if isinstance(error, OSError) else repr(error)
    return Problem("disk_full" if is_full else "bot_error", f"{what}: {shown}")


def finish(run: Run, duration: float, exit_code: int, **more: Any) -> Record:
    """The record of a run that was carried out. ``more``: further fields of the report."""
    reason = run.end_reason
    report = FinishReport(
        run.id,
        run.token,
        exit_code,
        round(duration, 6),
        run.sizes[0],
        run.sizes[1],
        hard_timeout=reason == "hard_timeout",
        io_timeout=reason == "io_timeout",
        killed=reason == "killed",
        cost_usd=duration * run.usd_per_s,
        **more,
    )
    return Record(report, run.log_chunks() if run.sizes != [0, 0] else ())


def with_fields(record: Record, **fields: Any) -> Record:
    """The record with other fields of its report."""
    return record._replace(report=record.report._replace(**fields))


def start_failure(run: Run, duration: float, exit_code: int, message: str) -> Record:
    """The record of a command that could not run because of its task; its stderr is the message."""
    text = f"myrmidon: {message}\n".encode(errors="replace")
    stream = 0 if run.task.merge_output else 1
    run.sizes[stream] = len(text)
    return finish(run, duration, exit_code, message=message, start_failed=True)._replace(logs=[Chunk(stream, 0, text)])


def fault(run: Run, kind: str, message: str) -> Record:
    """The record of a run that the bot could not carry out."""
    return Record(FaultReport(run.id, run.token, kind, message), run.log_chunks())


def refusal(task: Task | Unreadable) -> Record:
    """The record of a task that cannot be run here: the server, or the bot when it read it, has found a problem."""
    kind = "client_error" if isinstance(task, Task) else "bot_error"
    return Record(FaultReport(task.run, task.token, kind, task.problem))


def of_problem(run: Run, duration: float, problem: Problem) -> Record:
    """The record of a run that cannot go on."""
    if problem.kind:
        return fault(run, problem.kind, str(problem))
    return finish(run, duration, 1, message=str(problem))


def of_error(run: Run, error: BaseException, what: str) -> Record:
    """The record of a run that has ended by an error of the bot."""
    return of_problem(run, 0.0, problem_of(error, what))


def of_end(run: Run, duration: float, exit_code: int, message: str = "") -> Record | None:
    """The record of a run that was told to end, and has; None if it is lost."""
    if run.end_reason == "lost":
        return None
    if run.end_reason in FAULTS:
        what = "command" if run.task.function is None else "function"
        return fault(run, run.end_reason, f"the bot ended the {what}: {run.end_reason}")
    return finish(run, duration, exit_code, message=message if run.end_reason == "hard_timeout" else "")
