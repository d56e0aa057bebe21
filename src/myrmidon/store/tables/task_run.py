"""Runs of tasks: which bot ran a task, when, and how it ended."""

from collections.abc import Sequence

from msgspec import structs

from myrmidon.model.errors import BrokenPromise
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import PerformanceStats, TaskRun
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.records import columns_of, insert_of, update_of
from myrmidon.store.engine.sql import Insert, RowUpdate

_COLUMNS = columns_of(TaskRun)
_REPORT_COLUMNS = _COLUMNS.partition(", instance")[0]
_ROWS = insert_of("task_runs", TaskRun, "bot_version", "bot_dimensions", "idle_since")


def insert(
    tx: Tx, runs: Sequence[TaskRun], *, bot_version: str, bot_dimensions: str, idle_since: Micros | None
) -> None:
    """Add runs, with the version, dimensions and idle time of the bot at the claim."""
    tx.insert(_ROWS, [(*structs.astuple(run), bot_version, bot_dimensions, idle_since) for run in runs])


READ = f"SELECT {_COLUMNS} FROM task_runs WHERE task_id {{in:task_ids}} ORDER BY task_id, run"


def read(tx: Tx, task_ids: Sequence[int]) -> list[TaskRun]:
    """Every run of these tasks, oldest first."""
    return [TaskRun(*row) for row in tx.all(READ, task_ids=task_ids)]


READ_FOR_REPORT = f"SELECT {_REPORT_COLUMNS} FROM task_runs WHERE task_id {{in:task_ids}} ORDER BY task_id, run"


def read_for_report(tx: Tx, task_ids: Sequence[int]) -> list[TaskRun]:
    """As `read`, with only the columns that a report needs; the other fields have their defaults."""
    return [TaskRun(*row) for row in tx.all(READ_FOR_REPORT, task_ids=task_ids)]


# Not filtered by bot_id in SQL: a database might then read all runs that the bot ever had.
LIVE_TOKENS = """
    SELECT r.task_id, r.run, r.token_hash, r.bot_id FROM task_runs r JOIN task_results t ON t.id = r.task_id
     WHERE r.task_id {in:task_ids} AND r.ended_at IS NULL AND t.killing = 0
"""


def live_tokens(tx: Tx, task_ids: Sequence[int], bot_id: str) -> dict[tuple[int, int], str]:
    """The token hash of each live run of these tasks on a bot, except for tasks that are being killed."""
    found = tx.all(LIVE_TOKENS, task_ids=task_ids)
    return {(task_id, run): hashed for task_id, run, hashed, bot in found if bot == bot_id}


LIVE_OF_BOT = f"SELECT {_COLUMNS} FROM task_runs WHERE bot_id = :bot AND due_at IS NOT NULL ORDER BY task_id, run"


def live_of_bot(tx: Tx, bot_id: str) -> list[TaskRun]:
    """The live runs of a bot."""
    return [TaskRun(*row) for row in tx.all(LIVE_OF_BOT, bot=bot_id)]


DUE = "SELECT task_id, run FROM task_runs WHERE due_at <= :now ORDER BY due_at LIMIT :n"


def due(tx: Tx, now: Micros, n: int) -> list[tuple[int, int]]:
    """Runs whose start timeout, soft timeout or lease is due for a check."""
    return [(row[0], row[1]) for row in tx.all(DUE, now=now, n=n)]


_SAVE, _saved_row = update_of(
    "task_runs",
    TaskRun,
    key="task_id, run",
    sets="""state, reason, evidence, started_at, modified_at, ended_at, soft_at, due_at, exit_code, duration,
        cost_usd, stdout_size, stderr_size, outputs_ref, session, error""",
    where="ended_at IS NULL",
)


def save(tx: Tx, runs: Sequence[TaskRun], now: Micros) -> None:
    """Write changed live runs; an ended run never changes again."""
    rows = []
    for run in runs:
        run.modified_at = now
        if run.ended_at is not None:
            run.due_at = None
        rows.append(_saved_row(run))
    if rows and tx.update_rows(_SAVE, rows) != len(rows):
        raise BrokenPromise(f"a run that has ended was to be changed: {[row[:2] for row in rows][:10]}")


_PROGRESS = RowUpdate(
    "task_runs",
    key="task_id, run",
    sets="progress, modified_at",
    where="ended_at IS NULL",
    types="bigint, int, double, bigint",
)


def set_progress(tx: Tx, rows: Sequence[tuple[int, int, float]], *, now: Micros) -> None:
    """Set how far live runs have come (task, run, 0 to 1); runs that have ended keep what they had."""
    tx.update_rows(_PROGRESS, [(*row, now) for row in rows])


COUNT_BY_GROUP = """
    SELECT resource_group_id, COUNT(*) FROM task_runs WHERE due_at IS NOT NULL GROUP BY resource_group_id
"""


def count_by_group(tx: Tx) -> dict[int, int]:
    """The number of live runs of each resource group."""
    return dict(tx.all(COUNT_BY_GROUP))


LIVE_OF_GROUP = "SELECT task_id FROM task_runs WHERE due_at IS NOT NULL AND resource_group_id = :owner LIMIT 1"


def any_live_of_group(tx: Tx, resource_group_id: int) -> bool:
    """Whether a run of the group has not ended."""
    return tx.one(LIVE_OF_GROUP, owner=resource_group_id) is not None


_STATS = Insert(
    "performance_stats",
    """task_id, run, bot_overhead, cache_trim, package_installation, named_caches_install, named_caches_uninstall,
    cleanup, isolated_download, isolated_upload""",
)


def insert_stats(tx: Tx, stats: Sequence[tuple[int, int, PerformanceStats]]) -> None:
    """Store performance statistics (task, run, statistics); only the first ones of a run are kept."""
    tx.insert_new(_STATS, [(task_id, run, *structs.astuple(given)) for task_id, run, given in stats])
