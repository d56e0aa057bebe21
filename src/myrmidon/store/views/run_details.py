"""Details of runs that only lists and clients show: their bots, performance statistics, the runs of a bot."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import RUN_CAP, Micros
from myrmidon.model.task_result import TaskRun
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import Selection
from myrmidon.wire.tasks import RunStats, TaskEnd


class BotAtRun(Struct, frozen=True, gc=False):
    """The bot of a run as it was at the claim. ``idle_since`` is None for runs that older code has stored."""

    version: str = ""
    dimensions: str = "{}"
    idle_since: Micros | None = None


BOTS_OF_RUNS = """
    SELECT task_id, run, bot_version, bot_dimensions, idle_since FROM task_runs WHERE task_id {in:ids}
"""


def bots_of_runs(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], BotAtRun]:
    """The bot of each run of these tasks, by task and run."""
    found = tx.all(BOTS_OF_RUNS, ids=task_ids) if task_ids else ()
    return {(task_id, run): BotAtRun(*given) for task_id, run, *given in found}


class RunningRun(Struct, frozen=True, gc=False):
    """A run that has not ended, with what the token of a run depends on."""

    run: int
    nonce: int
    job_id: int | None
    resource_group_id: int
    group: str
    authenticated: str


RUNNING = """
    SELECT u.run, u.nonce, q.job_id, q.resource_group_id, g.external_id, q.authenticated
      FROM task_runs u JOIN task_requests q ON q.id = u.task_id JOIN resource_groups g ON g.id = q.resource_group_id
     WHERE u.task_id = :id AND u.run = :run AND u.ended_at IS NULL AND u.state = 'RUNNING' AND g.deleting = 0
"""


def running(tx: Tx, task_id: int, run: int) -> RunningRun | None:
    """The run, if it has not ended."""
    row = tx.one(RUNNING, id=task_id, run=run)
    return RunningRun(*row) if row else None


STATS_OF_RUN = Selection(RunStats, "p")
STATS = f"SELECT {STATS_OF_RUN.columns}, p.task_id, p.run FROM performance_stats p WHERE p.task_id {{in:ids}}"


def stats(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], RunStats]:
    return {row[-2:]: STATS_OF_RUN(row) for row in tx.all(STATS, ids=task_ids)} if task_ids else {}


ANY_OUTPUT = "SELECT 1 FROM task_runs WHERE stdout_size > 0 OR stderr_size > 0 LIMIT 1"


def any_output(tx: Tx) -> bool:
    """Whether some ended run has written output, so that there must be logs."""
    return tx.one(ANY_OUTPUT) is not None


class BotRun(Struct, frozen=True):
    """A run of a bot, with the name and creation time of its task."""

    run: TaskRun
    name: str
    created_at: Micros


_RUN = ", ".join(f"u.{name}" for name in TaskRun.__struct_fields__)
# Two statements: the index of a bot's runs has ended runs in the order of their tasks; live runs are few.
ENDED = f"""
    SELECT r.name, r.created_at, {_RUN} FROM task_runs u JOIN task_requests r ON r.id = u.task_id
     WHERE u.bot_id = :bot AND u.due_at IS NULL AND u.task_id >= :low AND u.task_id < :high
     ORDER BY u.task_id DESC, u.run DESC LIMIT :n
"""
LIVE = f"""
    SELECT r.name, r.created_at, {_RUN} FROM task_runs u JOIN task_requests r ON r.id = u.task_id
     WHERE u.bot_id = :bot AND u.due_at IS NOT NULL AND u.task_id >= :low AND u.task_id < :high
"""


def runs_of_bot(tx: Tx, bot_id: str, *, low: int, high: int, n: int) -> tuple[list[BotRun], int | None]:
    """The runs of a bot of tasks with low <= id < high, newest first, and the task to continue before; None at the end.

    A page ends between two tasks: it may have up to 255 more than n runs.
    """
    limit = n + RUN_CAP
    given = {"bot": bot_id, "low": low, "high": high}
    rows = [*tx.all(LIVE, **given), *tx.all(ENDED, n=limit, **given)]
    found = [BotRun(TaskRun(*row), name, at) for name, at, *row in rows]
    found.sort(key=lambda item: (item.run.task_id, item.run.run), reverse=True)
    if len(found) <= n:
        return found, None
    last = found[n - 1].run.task_id
    return [item for item in found if item.run.task_id >= last], last


END = Selection(
    TaskEnd,
    "t",
    task_id="t.id",
    final="t.state NOT IN ('WAITING', 'READY', 'RUNNING')",
    run=("t.id", "u.run"),
    exit_code="u.exit_code",
)
ENDS = f"""
    SELECT {END.columns}
      FROM task_results t
      LEFT JOIN task_runs u ON u.task_id = t.id AND u.run = COALESCE(t.instance_id, t.run_number)
                           AND u.generation = t.generation AND t.state NOT IN ('WAITING', 'READY', 'RUNNING')
     WHERE t.id {{in:ids}}
"""


def ends(tx: Tx, task_ids: Sequence[int]) -> dict[int, TaskEnd]:
    """Read the states of many tasks, and their decisive runs if they have ended, for clients that wait for them."""
    return {row[0]: END(row) for row in tx.all(ENDS, ids=task_ids)}


CHILDREN = "SELECT parent_task_id, id FROM task_requests WHERE parent_task_id {in:ids} ORDER BY parent_task_id, id"


def children(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[int]]:
    """The tasks that each of these tasks has started. Reads all of them: only for tasks with few."""
    found: dict[int, list[int]] = {}
    for parent, child in tx.all(CHILDREN, ids=task_ids) if task_ids else ():
        found.setdefault(parent, []).append(child)
    return found


ID_OF_NTH_NEWEST = "SELECT id FROM task_requests ORDER BY id DESC LIMIT 1 OFFSET :n"
NEWEST_TAGS = "SELECT resource_group_id, tags FROM task_requests WHERE id >= :low"


def newest_tags(tx: Tx, *, group_id: int | None, n: int) -> list[str]:
    """The tags, as stored JSON lists, of those of the n newest tasks that belong to a group; None for all groups."""
    oldest = tx.one(ID_OF_NTH_NEWEST, n=n)
    found = tx.all(NEWEST_TAGS, low=oldest[0] if oldest else 0)
    return [tags for group, tags in found if group_id in (None, group)]
