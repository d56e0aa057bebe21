"""The states of tasks, runs and jobs, and the table of legal transitions.

                 hold, re-wait                 retry, rerun, given back
               +---------------+             +-------------------------+
               v               |             v                         |
    WAITING ---+------------> READY ------------------> RUNNING -------+--> SUCCEEDED FAILED TIMED_OUT
       |                       |                                            BOT_DIED CANCELLED KILLED
       |                       |                                            CLIENT_ERROR
       |                       +--> EXPIRED CANCELLED NO_RESOURCE BOT_DIED (a retry that expires)
       +--> SUCCEEDED (deduped) NO_RESOURCE CANCELLED EXPIRED

A final state is left only by a rerun or a job retry, and those start a new *generation*. A running task goes back to
WAITING only if a parent runs again with its descendants: its new generation begins at once, and the runs of the last
one end without a verdict. ``held`` and ``killing`` are flags, not states. Which operation makes which transition is in
scheduler/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from myrmidon.model.errors import IllegalMove


class TaskState(StrEnum):
    """The state of a task. WAITING waits for parents, READY waits for a bot."""

    WAITING = "WAITING"
    READY = "READY"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    BOT_DIED = "BOT_DIED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    KILLED = "KILLED"
    NO_RESOURCE = "NO_RESOURCE"
    CLIENT_ERROR = "CLIENT_ERROR"


class RunState(StrEnum):
    """The state of one run: RUNNING, or one of the final states of a task."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    BOT_DIED = "BOT_DIED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    KILLED = "KILLED"
    NO_RESOURCE = "NO_RESOURCE"
    CLIENT_ERROR = "CLIENT_ERROR"


class JobState(StrEnum):
    """The state of a job. PENDING_RETRY: tasks are to be reset, for a retry of the job or a large cascade."""

    RUNNING = "RUNNING"
    PENDING_RETRY = "PENDING_RETRY"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_T = TaskState
_AGAIN = frozenset({_T.READY, _T.WAITING})

# Module constants for the hot paths: until Python 3.11 looking up an enum member costs as much as a call.
WAITING: Final = _T.WAITING
READY: Final = _T.READY
RUNNING: Final = _T.RUNNING
SUCCEEDED: Final = _T.SUCCEEDED

FINAL: Final = frozenset(set(_T) - {_T.WAITING, _T.READY, _T.RUNNING})
JOB_FINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

MOVES: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    _T.WAITING: frozenset({_T.READY, _T.SUCCEEDED, _T.NO_RESOURCE, _T.CANCELLED, _T.EXPIRED}),
    _T.READY: frozenset({_T.READY, _T.RUNNING, _T.WAITING, _T.EXPIRED, _T.CANCELLED, _T.NO_RESOURCE, _T.BOT_DIED}),
    _T.RUNNING: frozenset(
        {_T.RUNNING, _T.READY, _T.WAITING, _T.SUCCEEDED, _T.FAILED, _T.TIMED_OUT, _T.BOT_DIED, _T.CANCELLED, _T.KILLED}
        | {_T.CLIENT_ERROR}
    ),
    **dict.fromkeys(sorted(FINAL), _AGAIN),
}

JOB_MOVES: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.RUNNING: frozenset(JobState),
    JobState.PENDING_RETRY: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING}),
    JobState.CANCELLED: frozenset(),
}


def check_move(old: TaskState, new: TaskState, *, new_generation: bool, history: Callable[[], str]) -> None:
    """Raise IllegalMove, with the task's history, unless the table allows old -> new.

    ``history`` is a function because reading the history is needed only for the error.
    """
    if new in MOVES[old] and (new_generation or old not in FINAL):
        return
    why = "only a new generation leaves a final state" if new in MOVES[old] else "not in the table of moves"
    raise IllegalMove(f"A task cannot go from {old} to {new}: {why}. {history()}")


def check_job_move(old: JobState, new: JobState, *, history: Callable[[], str]) -> None:
    """Raise IllegalMove, with the job's history, unless the table allows old -> new."""
    if new not in JOB_MOVES[old]:
        raise IllegalMove(f"A job cannot go from {old} to {new}: not in the table of moves. {history()}")
