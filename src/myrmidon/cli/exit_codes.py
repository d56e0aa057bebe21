"""Exit codes of `myrmidon`.

`myrmidon help exit-codes` prints this table; docs/exit-codes.md repeats it, and a test compares the two. The codes
64..78 have the meaning of sysexits.h; 124 is the one of timeout(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from myrmidon.sdk import errors
from myrmidon.sdk.exit_code import as_in_a_shell

if TYPE_CHECKING:
    from myrmidon.wire.jobs import JobInfo
    from myrmidon.wire.tasks import ResultInfo

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INVALID: Final = 65
NOT_FOUND: Final = 66
UNREACHABLE: Final = 69
SERVER_ERROR: Final = 70
BUSY: Final = 75
NOT_ALLOWED: Final = 77
CONFLICT: Final = 78
EXPIRED: Final = 121
NO_RESOURCE: Final = 122
BOT_DIED: Final = 123
TIMED_OUT: Final = 124
CANCELLED: Final = 125
NOT_EXECUTABLE: Final = 126
PROGRAM_NOT_FOUND: Final = 127
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

MEANINGS: Final[Mapping[int, str]] = {
    OK: "Success. For `run` and `collect`: every task succeeded; for a job: it succeeded.",
    FAILED: "A check failed, a task failed without an exit code of its own, or a job failed.",
    USAGE: "The command line is wrong: an unknown option, a missing argument.",
    INVALID: "The request is invalid; the server lists every problem and stored nothing.",
    NOT_FOUND: "The task, bot or other object does not exist, or the token may not see it.",
    UNREACHABLE: "No server answers at the address.",
    SERVER_ERROR: "Internal error of the server; see its log.",
    BUSY: "The server or its database is overloaded or unavailable; or `collect --timeout` was reached.",
    NOT_ALLOWED: "The token is missing or invalid, or its role does not permit this.",
    CONFLICT: "The object is in the wrong state, or the request key was used for another request.",
    EXPIRED: "No bot took the task in time (EXPIRED).",
    NO_RESOURCE: "No live bot could ever run the task (NO_RESOURCE).",
    BOT_DIED: "The bot was lost or could not prepare the task (BOT_DIED, CLIENT_ERROR).",
    TIMED_OUT: "The task exceeded a time limit (TIMED_OUT), or the job its deadline.",
    CANCELLED: "The task (CANCELLED, KILLED) or the job (CANCELLED) was cancelled.",
    NOT_EXECUTABLE: "The program of the task could not be started, for example because it is not executable.",
    PROGRAM_NOT_FOUND: "The program of the task was not found on the bot.",
    INTERRUPTED: "Interrupted with Ctrl-C.",
    BROKEN_PIPE: "The output of `run`, `collect` or `task log -f` was closed before the task ended; it continues.",
}

RULE: Final = (
    "`run` and `collect` exit with the exit code of the task's command if there is one, or with 128 + n if signal n "
    "ended it. A program that cannot be started counts as exit code 126 or 127, as in a shell. With several tasks, the "
    "first one that did not succeed determines the code. The command itself may exit with any code of this table; "
    "`--json` and `myrmidon task show` show the task's state. `job watch`, `job submit --watch`, `job result`, "
    "`job log -f` and `collect` of a job exit with 0 if the job succeeded, 1 if it failed, 125 if it was cancelled, "
    "and 124 if its deadline ended it."
)

_BY_STATE: Final = {
    "SUCCEEDED": OK,
    "FAILED": FAILED,
    "EXPIRED": EXPIRED,
    "NO_RESOURCE": NO_RESOURCE,
    "BOT_DIED": BOT_DIED,
    "CLIENT_ERROR": BOT_DIED,
    "TIMED_OUT": TIMED_OUT,
    "CANCELLED": CANCELLED,
    "KILLED": CANCELLED,
}

_BY_ERROR: Final[tuple[tuple[type[errors.CallFailed], int], ...]] = (
    (errors.NotAllowed, NOT_ALLOWED),
    (errors.NotFound, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.Refused, INVALID),
    (errors.Unreachable, UNREACHABLE),
    (errors.Overloaded, BUSY),
    (errors.ServerError, SERVER_ERROR),
)


def of_task(state: str, exit_code: int | None) -> int:
    """The exit code of a command that waited for this task."""
    if state == "FAILED" and exit_code:
        return as_in_a_shell(exit_code) & 0xFF or FAILED
    return _BY_STATE.get(state, FAILED)


def of_start_failure(error: OSError) -> int:
    """The exit code for a program that could not be started."""
    return PROGRAM_NOT_FOUND if isinstance(error, FileNotFoundError | NotADirectoryError) else NOT_EXECUTABLE


def of_results(results: Sequence[ResultInfo]) -> int:
    """The exit code of the first task that did not succeed, or OK."""
    codes = [of_task(result.state, result.exit_code) for result in results]
    return next((code for code in codes if code), OK)


def of_job(job: JobInfo) -> int:
    """The exit code of a command that waited for this job; a job that reached its deadline ends with its last tasks."""
    if job.state == "SUCCEEDED":
        return OK
    if job.state == "CANCELLED":
        return CANCELLED
    late = job.ended_at is not None and job.ended_at >= job.deadline_at
    return TIMED_OUT if late else FAILED


def of_error(error: errors.CallFailed) -> int:
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)
