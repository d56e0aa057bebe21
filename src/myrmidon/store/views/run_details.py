"""What only people ask of runs: where they ran, how their time was spent, what a bot has run. No decision needs it."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import RUN_CAP, Micros
from myrmidon.model.task_result import PerformanceStats, TaskRun
from myrmidon.store.engine.db import Tx


class BotThen(Struct, frozen=True, gc=False):
    """What the bot of a run was like when it got it. Code of before did not write down since when it was idle."""

    version: str = ""
    dimensions: str = "{}"
    idle_since: Micros | None = None


BOTS_OF_RUNS = """
    SELECT task_id, run, bot_version, bot_dimensions, idle_since FROM task_runs WHERE task_id {in:ids}
"""


def bots_of_runs(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], BotThen]:
    """The bot of each run of these tasks."""
    found = tx.all(BOTS_OF_RUNS, ids=task_ids) if task_ids else ()
    return {(task_id, run): BotThen(*given) for task_id, run, *given in found}


STATS = """
    SELECT task_id, run, bot_overhead, cache_trim, package_installation, named_caches_install,
           named_caches_uninstall, cleanup, isolated_download, isolated_upload
      FROM performance_stats WHERE task_id {in:ids}
"""
_STATS_FIELDS = PerformanceStats.__struct_fields__


def stats(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], PerformanceStats]:
    found = tx.all(STATS, ids=task_ids) if task_ids else ()
    return {
        (task_id, run): PerformanceStats(**dict(zip(_STATS_FIELDS, given, strict=True)))
        for task_id, run, *given in found
    }


ANY_OUTPUT = "SELECT 1 FROM task_runs WHERE stdout_size > 0 OR stderr_size > 0 LIMIT 1"


def any_output(tx: Tx) -> bool:
    """Whether any run has ended that wrote something, so that there must be logs."""
    return tx.one(ANY_OUTPUT) is not None


class BotRun(Struct, frozen=True):
    """A run of a bot, and the name of its task."""

    run: TaskRun
    name: str
    created_at: Micros


_RUN = ", ".join(f"u.{name}" for name in TaskRun.__struct_fields__)
# Two texts: ended runs lie in the order of their tasks in the index of a bot's runs; live ones do not, but are few.
ENDED = f"""
    SELECT r.name, r.created_at, {_RUN} FROM task_runs u JOIN task_requests r ON r.id = u.task_id
     WHERE u.bot_id = :bot AND u.alarm_at IS NULL AND u.task_id >= :low AND u.task_id < :high
     ORDER BY u.task_id DESC, u.run DESC LIMIT :n
"""
LIVE = f"""
    SELECT r.name, r.created_at, {_RUN} FROM task_runs u JOIN task_requests r ON r.id = u.task_id
     WHERE u.bot_id = :bot AND u.alarm_at IS NOT NULL AND u.task_id >= :low AND u.task_id < :high
"""


def runs_of_bot(tx: Tx, bot_id: str, *, low: int, high: int, n: int) -> tuple[list[BotRun], int | None]:
    """What a bot has run of the tasks in a range, newest first, and the task to go on before; None at the end.

    A page ends between two tasks: it may hold up to 255 runs more than were asked for.
    """
    most = n + RUN_CAP
    given = {"bot": bot_id, "low": low, "high": high}
    rows = [*tx.all(LIVE, **given), *tx.all(ENDED, n=most, **given)]
    found = [BotRun(TaskRun(*row), name, at) for name, at, *row in rows]
    found.sort(key=lambda one: (one.run.task_id, one.run.run), reverse=True)
    if len(found) <= n:
        return found, None
    last = found[n - 1].run.task_id
    return [one for one in found if one.run.task_id >= last], last


class End(Struct, frozen=True, gc=False):
    """Where a task stands, and the run that counts, of its present life."""

    task_id: int
    state: str
    reason: str
    run: int | None
    exit_code: int | None


ENDS = """
    SELECT t.id, t.state, t.reason, r.run, r.exit_code
      FROM task_results t
      LEFT JOIN task_runs r ON r.task_id = t.id AND r.run = COALESCE(t.instance_id, t.run_number)
                           AND r.generation = t.generation
     WHERE t.id {in:ids}
"""


def ends(tx: Tx, task_ids: Sequence[int]) -> dict[int, End]:
    """Of many tasks at once: a client that waits for a thousand is told in no time."""
    return {row[0]: End(*row) for row in tx.all(ENDS, ids=task_ids)}


CHILDREN = "SELECT parent_task_id, id FROM task_requests WHERE parent_task_id {in:ids} ORDER BY parent_task_id, id"


def children(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[int]]:
    """Tasks that these have triggered; for those that are known to have few."""
    found: dict[int, list[int]] = {}
    for parent, child in tx.all(CHILDREN, ids=task_ids) if task_ids else ():
        found.setdefault(parent, []).append(child)
    return found


EDGE_OF_NEWEST = "SELECT id FROM task_requests ORDER BY id DESC LIMIT 1 OFFSET :n"
NEWEST_TAGS = "SELECT resource_group_id, tags FROM task_requests WHERE id >= :low"


def newest_tags(tx: Tx, *, group_id: int | None, n: int) -> list[str]:
    """The tags, as stored JSON lists, of those of the n newest tasks that are a group's; None for all."""
    edge = tx.one(EDGE_OF_NEWEST, n=n)
    found = tx.all(NEWEST_TAGS, low=edge[0] if edge else 0)
    return [tags for group, tags in found if group_id in (None, group)]
