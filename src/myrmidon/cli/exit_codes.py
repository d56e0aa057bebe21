"""Exit codes: what a script can tell from how `myrmidon` ended.

The table is the whole truth: `myrmidon help exit-codes` prints it, docs/exit-codes.md repeats it, and a test compares
them. The codes 64..78 mean what sysexits.h says; 124 is that of timeout(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from myrmidon.sdk import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INVALID: Final = 65
NOT_FOUND: Final = 66
UNREACHABLE: Final = 69
BROKEN: Final = 70
BUSY: Final = 75
NOT_ALLOWED: Final = 77
CONFLICT: Final = 78
EXPIRED: Final = 121
NO_RESOURCE: Final = 122
BOT_DIED: Final = 123
TIMED_OUT: Final = 124
CANCELED: Final = 125
INTERRUPTED: Final = 130
UNREAD: Final = 141

MEANINGS: Final[Mapping[int, str]] = {
    OK: "Done. For `run` and `collect`: every task succeeded.",
    FAILED: "A check failed, or a task failed without an exit code of its own.",
    USAGE: "The command line is wrong: an unknown option, a missing argument.",
    INVALID: "The server refused the request as invalid and lists all its problems; nothing was stored.",
    NOT_FOUND: "There is no such task, bot or other thing, or it is not yours to see.",
    UNREACHABLE: "No server answers at that address.",
    BROKEN: "The server failed inside; its log tells more.",
    BUSY: "The server or its database is busy or away for too long; or `collect --timeout` is over.",
    NOT_ALLOWED: "The token is missing or wrong, or may not do this.",
    CONFLICT: "The thing is in the wrong state for this, or its key was used for something else.",
    EXPIRED: "The task found no bot in time (EXPIRED).",
    NO_RESOURCE: "No live bot could ever run the task (NO_RESOURCE).",
    BOT_DIED: "The machine was lost or could not prepare the task (BOT_DIED, CLIENT_ERROR).",
    TIMED_OUT: "The task ran too long (TIMED_OUT).",
    CANCELED: "The task was cancelled (CANCELED, KILLED).",
    INTERRUPTED: "Ctrl-C.",
    UNREAD: "Nobody read what `run`, `collect` or `task log -f` wrote to its end; the task goes on.",
}

RULE: Final = (
    "`run` and `collect` exit with the exit code of the task's command where there is one, with 128 + n where a signal "
    "n ended it, and, of several tasks, with that of the first that did not succeed. A command may use any code of "
    "this table for itself; `--json` and `myrmidon task show` tell which it was."
)

_BY_STATE: Final = {
    "SUCCEEDED": OK,
    "FAILED": FAILED,
    "EXPIRED": EXPIRED,
    "NO_RESOURCE": NO_RESOURCE,
    "BOT_DIED": BOT_DIED,
    "CLIENT_ERROR": BOT_DIED,
    "TIMED_OUT": TIMED_OUT,
    "CANCELED": CANCELED,
    "KILLED": CANCELED,
}

_BY_ERROR: Final[tuple[tuple[type[errors.CallFailed], int], ...]] = (
    (errors.NotAllowed, NOT_ALLOWED),
    (errors.Missing, NOT_FOUND),
    (errors.Contradiction, CONFLICT),
    (errors.Refused, INVALID),
    (errors.Unreachable, UNREACHABLE),
    (errors.Overloaded, BUSY),
    (errors.ServerBroken, BROKEN),
)


def of_task(state: str, exit_code: int | None) -> int:
    """How a command that waited for this task ends."""
    if state == "FAILED" and exit_code:
        return 128 - exit_code if exit_code < 0 else exit_code & 0xFF or FAILED
    return _BY_STATE.get(state, FAILED)


def of_results(results: Sequence[Mapping[str, Any]]) -> int:
    """That of the first that did not succeed."""
    codes = [of_task(one["state"], one["exit_code"]) for one in results]
    return next((code for code in codes if code), OK)


def of_error(error: errors.CallFailed) -> int:
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)
