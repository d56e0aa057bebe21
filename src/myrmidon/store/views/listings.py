"""Paginated lists of tasks and bots with filters.

Statements are built at run time from the closed set of conditions below; everything variable is a parameter. A page
starts at a key, not at an offset, so new rows do not shift it. A page scans a bounded number of tasks and returns a
cursor to continue from, even if it found few: no list can occupy a reader for long.
"""

from collections.abc import Sequence
from operator import itemgetter

from msgspec import Struct

from myrmidon.model.ids import RUN_CAP, Micros, parse_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables.task_request import has_rows, text_of_tag
from myrmidon.store.views.pool_filter import PoolFilter, pool_condition
from myrmidon.store.views.selection import GROUP_NAME, Selection
from myrmidon.wire.bots import BotRun, BotTask
from myrmidon.wire.tasks import TaskSummary

SCAN_LIMIT = 20_000
"""Tasks that one page scans, at most."""
MAX_ID = (1 << 63) - 1


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks to list; None and empty lists restrict nothing. The ids are bounds of the creation time."""

    group_id: int | None = None
    states: list[str] = []
    tags: list[str] = []
    name: str | None = None
    bot_id: str | None = None
    user: str | None = None
    submitter: str | None = None
    """The name of the token or network that has submitted the task."""
    from_id: int = 0
    until_id: int = MAX_ID


TASK = Selection(
    TaskSummary,
    "t",
    task_id="t.id",
    group=GROUP_NAME.format("t"),
    name="r.name",
    user="r.user_name",
    priority="r.priority",
    tags="r.tags",
    created_at="r.created_at",
    run=("t.id", "NULLIF(t.run_number, 0)"),
)
_CONDITIONS = {
    "group_id": "t.resource_group_id = :group_id",
    "states": "t.state {in_text:states}",
    "name": "r.name = :name",
    "bot_id": "t.bot_id = :bot_id",
    "user": "r.user_name = :user",
    "submitter": "r.authenticated = :submitter",
}
# Where a scan ends: the id of the task that is SCAN_LIMIT tasks after its start.
FLOOR_OF_TASKS = "SELECT id FROM task_results WHERE id < :before ORDER BY id DESC LIMIT 1 OFFSET :limit"
CEILING_OF_TASKS = "SELECT id FROM task_results WHERE id > :after ORDER BY id LIMIT 1 OFFSET :limit"
FLOOR_OF_TAG = """
    SELECT task_id FROM task_tags WHERE tag = :tag AND task_id < :before ORDER BY task_id DESC LIMIT 1 OFFSET :limit
"""
CEILING_OF_TAG = """
    SELECT task_id FROM task_tags WHERE tag = :tag AND task_id > :after ORDER BY task_id LIMIT 1 OFFSET :limit
"""


def tasks(
    tx: Tx, filters: TaskFilter, *, n: int, cursor: int | None, oldest_first: bool
) -> tuple[list[TaskSummary], int]:
    """A page of tasks by creation time, and the id to continue from; 0 at the end."""
    low, high = max(filters.from_id - 1, -1), filters.until_id
    if cursor is not None:
        low, high = (max(low, cursor), high) if oldest_first else (low, min(high, cursor))
    scan_end = _scan_end(tx, filters, low, high, oldest_first=oldest_first)
    if scan_end is not None:
        low, high = (low, min(high, scan_end)) if oldest_first else (max(low, scan_end - 1), high)
    found = _task_lines(tx, filters, low, high, n=n, oldest_first=oldest_first)
    if len(found) == n:
        return found, parse_id(found[-1].task_id)[0]
    if scan_end is None or not low < scan_end < high + oldest_first:
        return found, 0
    return found, scan_end if not oldest_first else high - 1


def _scan_end(tx: Tx, filters: TaskFilter, low: int, high: int, *, oldest_first: bool) -> int | None:
    """The id at which this page stops; None when it may scan all remaining tasks."""
    tag = _first_with_rows(filters)
    if tag is not None:
        sql = CEILING_OF_TAG if oldest_first else FLOOR_OF_TAG
        row = tx.one(sql, tag=tag, **({"after": low} if oldest_first else {"before": high}), limit=SCAN_LIMIT)
    else:
        sql = CEILING_OF_TASKS if oldest_first else FLOOR_OF_TASKS
        row = tx.one(sql, **({"after": low} if oldest_first else {"before": high}), limit=SCAN_LIMIT)
    return row[0] if row else None


def _first_with_rows(filters: TaskFilter) -> str | None:
    """The tag from whose rows a list starts; None for one that looks at all tasks."""
    return next(filter(has_rows, filters.tags), None)


def _task_lines(tx: Tx, filters: TaskFilter, low: int, high: int, *, n: int, oldest_first: bool) -> list[TaskSummary]:
    source, key, conditions, given = _task_source(filters)
    order = f"{key} ASC" if oldest_first else f"{key} DESC"
    sql = f"SELECT {TASK.columns} FROM {source} WHERE {conditions} ORDER BY {order} LIMIT :n"
    return TASK.read(tx, sql, low=low, high=high, n=n, **given)


def _task_source(filters: TaskFilter) -> tuple[str, str, str, dict[str, object]]:
    """The tables, the column of the id, the conditions for low < id < high, and their parameters."""
    where = [text for field, text in _CONDITIONS.items() if getattr(filters, field) not in (None, [])]
    given = {field: getattr(filters, field) for field in _CONDITIONS if getattr(filters, field) not in (None, [])}
    source, key = "task_results t JOIN task_requests r ON r.id = t.id", "t.id"
    first = _first_with_rows(filters)
    if first is not None:
        # CROSS JOIN makes SQLite start from the rows of the tag, which are in the order of the list.
        source, key = "task_tags g CROSS JOIN task_results t CROSS JOIN task_requests r", "g.task_id"
        where += ["t.id = g.task_id", "r.id = t.id", "g.tag = :first_tag"]
        given["first_tag"] = first
    for number, tag in enumerate(filters.tags):
        if tag != first:
            where.append(f"{{instr}}(r.tags, :tag{number}) > 0")
            given[f"tag{number}"] = text_of_tag(tag)
    # PostgreSQL does not infer the bounds of one column from those of an equal one, and would read the whole table.
    bounds = [f"{column} > :low AND {column} < :high" for column in dict.fromkeys((key, "t.id", "r.id"))]
    return source, key, " AND ".join(["t.seq > 0", *bounds, *where]), given


def count_tasks(tx: Tx, filters: TaskFilter) -> tuple[dict[str, int], bool]:
    """The numbers of tasks by state, and whether all tasks were looked at: otherwise the newest SCAN_LIMIT were."""
    low, high = max(filters.from_id - 1, -1), filters.until_id
    scan_end = _scan_end(tx, filters, low, high, oldest_first=False)
    floor = low if scan_end is None else max(low, scan_end - 1)
    source, _, conditions, given = _task_source(filters)
    rows = tx.all(
        f"SELECT t.state, COUNT(*) FROM {source} WHERE {conditions} GROUP BY t.state", low=floor, high=high, **given
    )
    return {state: int(num) for state, num in rows}, floor == low


# ---------------------------------------------------------------- bots


class BotFilter(Struct, frozen=True, kw_only=True):
    """Which bots to list: with all these dimensions (``key:value``), in one state of ``BOT_STATES``, in these pools."""

    dimensions: list[str] = []
    state: str | None = None
    pools: PoolFilter | None = None
    silent_before: Micros = 0
    """A bot whose last heartbeat is older is silent."""


BOT_STATES = {
    "alive": "b.alive = 1",
    "dead": "b.alive = 0",
    "silent": "b.alive = 1 AND b.heartbeat < :silent_before",
    "quarantined": "b.quarantined IS NOT NULL",
    "maintenance": "b.maintenance IS NOT NULL",
    "draining": "b.draining = 1",
    "busy": "EXISTS (SELECT 1 FROM task_runs r WHERE r.bot_id = b.id AND r.due_at IS NOT NULL)",
    "idle": "b.serving = 1 AND NOT EXISTS (SELECT 1 FROM task_runs r WHERE r.bot_id = b.id AND r.due_at IS NOT NULL)",
}


def bots(tx: Tx, filters: BotFilter, *, after: str, n: int) -> list[str]:
    """The ids of a page of bots, sorted."""
    if filters.pools is not None and any(map(filters.pools.hides, filters.dimensions)):
        return []
    where, given = pool_condition(filters.pools)
    where.append("b.id > :after")
    if filters.state is not None:
        where.append(BOT_STATES[filters.state])
    if filters.state == "silent":
        given["silent_before"] = filters.silent_before
    for number, dimension in enumerate(filters.dimensions):
        where.append(
            f"EXISTS (SELECT 1 FROM bot_dimensions d WHERE d.dimension = :dimension{number} AND d.bot_id = b.id)"
        )
        given[f"dimension{number}"] = dimension
    sql = f"SELECT b.id FROM bots b WHERE {' AND '.join(where)} ORDER BY b.id LIMIT :n"
    return [row[0] for row in tx.all(sql, after=after, n=n, **given)]


def visible_bots(tx: Tx, bot_ids: Sequence[str], pools: PoolFilter | None) -> list[str]:
    """Return the ids of these bots that exist and are in these pools, sorted."""
    where, given = pool_condition(pools)
    sql = f"SELECT b.id FROM bots b WHERE {' AND '.join([*where, 'b.id {in_text:ids}'])} ORDER BY b.id"
    return [row[0] for row in tx.all(sql, ids=list(bot_ids), **given)]


class BotSearch(Struct, frozen=True, kw_only=True):
    """Which bots to find: those in the pools with at least one dimension of every term; a flag that is not None must
    be so."""

    pools: PoolFilter | None = None
    terms: Sequence[Sequence[str]] = ()
    dead: bool | None = None
    quarantined: bool | None = None
    maintenance: bool | None = None
    busy: bool | None = None


_BUSY = "EXISTS (SELECT 1 FROM task_runs u WHERE u.bot_id = b.id AND u.due_at IS NOT NULL)"
_BOT_CONDITIONS = {
    "dead": ("b.alive = 0", "b.alive = 1"),
    "quarantined": ("b.quarantined IS NOT NULL", "b.quarantined IS NULL"),
    "maintenance": ("b.maintenance IS NOT NULL", "b.maintenance IS NULL"),
    "busy": (_BUSY, f"NOT {_BUSY}"),
}


def _bot_conditions(search: BotSearch) -> tuple[list[str], dict[str, object]]:
    where, given = pool_condition(search.pools)
    where.append("1 = 1")
    for name, (true, false) in _BOT_CONDITIONS.items():
        asked = getattr(search, name)
        if asked is not None:
            where.append(true if asked else false)
    for number, term in enumerate(search.terms):
        where.append(
            f"EXISTS (SELECT 1 FROM bot_dimensions d{number} WHERE d{number}.bot_id = b.id"
            f" AND d{number}.dimension {{in_text:term{number}}})"
        )
        given[f"term{number}"] = [one for one in term if search.pools is None or not search.pools.hides(one)]
    return where, given


def search_bots(tx: Tx, search: BotSearch, *, after: str, n: int) -> list[str]:
    """The ids of a page of bots, sorted."""
    where, given = _bot_conditions(search)
    sql = f"SELECT b.id FROM bots b WHERE b.id > :after AND {' AND '.join(where)} ORDER BY b.id LIMIT :n"
    return [row[0] for row in tx.all(sql, after=after, n=n, **given)]


class BotCounts(Struct, frozen=True):
    """How many bots a search finds, in all and by condition."""

    count: int
    dead: int
    quarantined: int
    maintenance: int
    busy: int


def count_bots(tx: Tx, search: BotSearch) -> BotCounts:
    """Count the bots that a search finds, and those of them that are dead, quarantined, in maintenance or busy."""
    where, given = _bot_conditions(search)
    sums = ", ".join(f"SUM(CASE WHEN {true} THEN 1 ELSE 0 END)" for true, _ in _BOT_CONDITIONS.values())
    found = tx.all(f"SELECT COUNT(*), {sums} FROM bots b WHERE {' AND '.join(where)}", **given)
    return BotCounts(*(int(value or 0) for value in found[0]))


LIVE_RUN = Selection(BotTask, "u", run=("u.task_id", "u.run"), name="r.name")
LIVE_RUNS_OF_BOTS = f"""
    SELECT {LIVE_RUN.columns}, u.resource_group_id, u.bot_id
      FROM task_runs u JOIN task_requests r ON r.id = u.task_id
     WHERE u.due_at IS NOT NULL AND u.bot_id {{in_text:bots}}
     ORDER BY u.bot_id, u.task_id, u.run
"""


def live_runs(tx: Tx, bot_ids: Sequence[str], group_id: int | None) -> dict[str, list[BotTask]]:
    """The live runs of a group on each of these bots that has live runs."""
    found: dict[str, list[BotTask]] = {}
    for row in tx.all(LIVE_RUNS_OF_BOTS, bots=bot_ids) if bot_ids else ():
        *_, group, bot_id = row
        found.setdefault(bot_id, []).extend([LIVE_RUN(row)] if group_id in (None, group) else ())
    return found


RUN = Selection(BotRun, "u", run=("u.task_id", "u.run"), name="r.name")
# Two statements: the index of a bot's runs has ended runs in the order of their tasks; live runs are few.
_RUNS = f"SELECT {RUN.columns}, u.resource_group_id FROM task_runs u JOIN task_requests r ON r.id = u.task_id"
_ORDER = "u.task_id < :before ORDER BY u.task_id DESC, u.run DESC LIMIT :n"
ENDED_RUNS = f"{_RUNS} WHERE u.bot_id = :bot AND u.due_at IS NULL AND {_ORDER}"
LIVE_RUNS = f"{_RUNS} WHERE u.bot_id = :bot AND u.due_at IS NOT NULL AND {_ORDER}"


def runs_of_bot(tx: Tx, bot_id: str, *, group_id: int | None, before: int, n: int) -> tuple[list[BotRun], int | None]:
    """The runs of a bot, newest task first, and the task to continue before; None at the end.

    A page ends between two tasks: it may have up to 255 more than n runs.
    """
    given = {"bot": bot_id, "before": before, "n": n + RUN_CAP}
    rows = [row for text in (LIVE_RUNS, ENDED_RUNS) for row in tx.all(text, **given)]
    rows.sort(key=itemgetter(0, 1), reverse=True)
    last = rows[n - 1][0] if len(rows) > n else None
    page = [row for row in rows if last is None or row[0] >= last]
    return [RUN(row) for row in page if group_id in (None, row[-1])], last
