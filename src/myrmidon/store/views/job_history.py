"""Jobs over time: the runs of each name, labels that fail now and then, and the times of the tasks of one job."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import GROUP_NAME, Selection, in_group
from myrmidon.wire.job_history import BotRuns, JobRunInfo, TimelineRow

SCAN_LIMIT = 5_000
"""Jobs that a list of names reads."""
MAX_PATH = 2_000
"""Tasks of a critical path."""


JOB = Selection(JobRunInfo, "j", job_id="j.id", created_at="j.creation_time")
_NEWEST = f"""
    SELECT {JOB.columns}, j.name, {GROUP_NAME.format("j")} FROM jobs j
     WHERE j.staged = 0 AND (:any_group = 1 OR j.resource_group_id = :resource_group)"""
NEWEST = f"{_NEWEST} ORDER BY j.id DESC LIMIT :n"
NEWEST_OF_NAME = f"{_NEWEST} AND j.name = :name AND j.id < :before ORDER BY j.id DESC LIMIT :n"


def newest(tx: Tx, *, group_id: int | None, n: int = SCAN_LIMIT) -> dict[tuple[str, str], list[JobRunInfo]]:
    """The newest jobs, by name and resource group."""
    found: dict[tuple[str, str], list[JobRunInfo]] = {}
    for row in tx.all(NEWEST, **in_group(group_id), n=n):
        found.setdefault((row[-2], row[-1]), []).append(JOB(row))
    return found


def newest_of_name(tx: Tx, name: str, *, group_id: int | None, before: int, n: int) -> dict[int, JobRunInfo]:
    """The newest jobs of a name with smaller ids than ``before``, by id."""
    return {row[0]: JOB(row) for row in tx.all(NEWEST_OF_NAME, name=name, before=before, n=n, **in_group(group_id))}


# ---------------------------------------------------------------- labels that fail now and then


RUNS_BY_LABEL = """
    SELECT u.bot_id, COUNT(*),
           SUM(CASE WHEN u.state IN ('FAILED', 'TIMED_OUT', 'BOT_DIED', 'CLIENT_ERROR') THEN 1 ELSE 0 END), l.label
      FROM task_results t JOIN task_labels l ON l.task_id = t.id JOIN task_runs u ON u.task_id = t.id
     WHERE t.job_id {in:jobs} AND u.due_at IS NULL
     GROUP BY l.label, u.bot_id
"""


def runs_by_label(tx: Tx, job_ids: Sequence[int]) -> dict[str, list[BotRuns]]:
    """The numbers of ended runs of these jobs, by label and bot."""
    found: dict[str, list[BotRuns]] = {}
    for bot_id, num, failed, label in tx.all(RUNS_BY_LABEL, jobs=list(job_ids)) if job_ids else ():
        found.setdefault(label, []).append(BotRuns(bot_id, int(num), int(failed)))
    return found


# ---------------------------------------------------------------- times


TIME = Selection(TimelineRow, "t", left_out=["critical"], label="l.label", task_id="t.id")
_TASKS = "task_results t JOIN task_labels l ON l.task_id = t.id"
TIMES = f"SELECT {TIME.columns} FROM {_TASKS} WHERE t.job_id = :job AND t.id > :after ORDER BY t.id LIMIT :n"
# The task that the job's end depends on: the one that runs longest, or the last one that has ended.
LAST = """
    SELECT id FROM task_results WHERE job_id = :job AND started_at IS NOT NULL
     ORDER BY CASE WHEN completed_at IS NULL THEN 0 ELSE 1 END, completed_at DESC, started_at LIMIT 1
"""
PARENTS = """
    SELECT t.id, t.completed_at FROM task_edges e JOIN task_results t ON t.id = e.parent
     WHERE e.child = :child AND t.completed_at IS NOT NULL ORDER BY t.completed_at DESC, t.id LIMIT 1
"""


def times(tx: Tx, job_id: int, *, after: int, n: int, path: Collection[int]) -> tuple[list[TimelineRow], int]:
    """The times of the next n tasks of a job by id, and the last id; ``path`` is the critical one."""
    rows = tx.all(TIMES, job=job_id, after=after, n=n)
    return [TIME(row, row[1] in path) for row in rows], rows[-1][1] if rows else 0


def critical_path(tx: Tx, job_id: int) -> list[int]:
    """The tasks that decide when the job ends, first to last: each began when the one before it had ended.

    Found backwards: of a task's parents, the one that ended last.
    """
    path: list[int] = []
    row = tx.one(LAST, job=job_id)
    while row is not None and len(path) < MAX_PATH:
        path.append(row[0])
        row = tx.one(PARENTS, child=row[0])
    return path[::-1]


# ---------------------------------------------------------------- failures


class FailedTask(Struct, frozen=True):
    """A task that has failed, with its last run."""

    id: int
    label: str
    state: str
    reason: str
    bot_id: str | None
    run: int
    exit_code: int | None
    evidence: str | None
    error: str | None
    completed_at: Micros | None


FAILED = """
    SELECT t.id, l.label, t.state, t.reason, t.bot_id, COALESCE(t.instance_id, t.run_number), u.exit_code, u.evidence,
           u.error, t.completed_at
      FROM task_results t JOIN task_labels l ON l.task_id = t.id
      LEFT JOIN task_runs u ON u.task_id = t.id AND u.run = COALESCE(t.instance_id, t.run_number)
     WHERE t.job_id = :job
       AND t.state IN ('FAILED', 'TIMED_OUT', 'BOT_DIED', 'EXPIRED', 'NO_RESOURCE', 'CLIENT_ERROR')
     ORDER BY t.id LIMIT :n
"""


def failed_tasks(tx: Tx, job_id: int, n: int) -> list[FailedTask]:
    """The tasks of a job that have failed by themselves, by id."""
    return [FailedTask(*row) for row in tx.all(FAILED, job=job_id, n=n)]
