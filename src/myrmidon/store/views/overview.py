"""What the first page shows: bots by status, the deepest queues, and what does not move."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.pool_filter import PoolFilter, pool_condition
from myrmidon.store.views.selection import CREATED_AT, GROUP_NAME, Selection, in_group
from myrmidon.wire.queues import QueueInfo

STATUSES = ("dead", "silent", "quarantined", "maintenance", "draining", "busy", "idle")
"""In the order in which they apply."""
_STATUS = """CASE WHEN b.alive = 0 THEN 'dead' WHEN b.heartbeat < :silent_before THEN 'silent'
    WHEN b.quarantined IS NOT NULL THEN 'quarantined' WHEN b.maintenance IS NOT NULL THEN 'maintenance'
    WHEN b.draining = 1 THEN 'draining'
    WHEN EXISTS (SELECT 1 FROM task_runs u WHERE u.bot_id = b.id AND u.due_at IS NOT NULL) THEN 'busy'
    ELSE 'idle' END"""


def bots_by_status(tx: Tx, pools: PoolFilter | None, silent_before: Micros) -> dict[str, int]:
    """The number of bots in these pools by status; every status is there."""
    where, given = pool_condition(pools)
    condition = " AND ".join([*where, "1 = 1"])
    sql = (
        f"SELECT s.status, COUNT(*) FROM (SELECT {_STATUS} AS status FROM bots b WHERE {condition}) s GROUP BY s.status"
    )
    found = {status: int(num) for status, num in tx.all(sql, silent_before=silent_before, **given)}
    return {status: found.get(status, 0) for status in STATUSES}


def bots_by_version(tx: Tx, pools: PoolFilter | None) -> dict[str, int]:
    """The number of live bots in these pools by the digest of their release."""
    where, given = pool_condition(pools)
    condition = " AND ".join([*where, "b.alive = 1"])
    rows = tx.all(f"SELECT b.version, COUNT(*) FROM bots b WHERE {condition} GROUP BY b.version", **given)
    return {version: int(num) for version, num in rows}


QUEUE = Selection(
    QueueInfo,
    "d",
    group=GROUP_NAME.format("d"),
    num_ready="q.num_ready",
    oldest_at=CREATED_AT.format("q.oldest"),
    num_bots="""(SELECT COUNT(*) FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
        WHERE m.queue = q.queue AND b.serving = 1)""",
    used_at=CREATED_AT.format("q.oldest"),
)
_DEEPEST = f"""
    SELECT {QUEUE.columns}
      FROM (SELECT queue, COUNT(*) AS num_ready, MIN(task_id) AS oldest FROM task_to_run GROUP BY queue) q
      JOIN task_dimensions d ON d.id = q.queue
"""
DEEPEST = f"{_DEEPEST} ORDER BY q.num_ready DESC, q.queue LIMIT :n"
DEEPEST_OF_GROUP = f"{_DEEPEST} WHERE d.resource_group_id = :resource_group ORDER BY q.num_ready DESC, q.queue LIMIT :n"


def deepest_queues(tx: Tx, *, group_id: int | None, n: int) -> list[QueueInfo]:
    """The queues with the most waiting tasks; each was used when its oldest task was submitted, or later."""
    if group_id is None:
        return QUEUE.read(tx, DEEPEST, n=n)
    return QUEUE.read(tx, DEEPEST_OF_GROUP, resource_group=group_id, n=n)


_RUNNING = "SELECT COUNT(*) FROM task_runs WHERE due_at IS NOT NULL"
RUNNING_OF_GROUP = f"{_RUNNING} AND resource_group_id = :resource_group"


def num_running(tx: Tx, group_id: int | None) -> int:
    """The number of live runs."""
    row = tx.one(_RUNNING) if group_id is None else tx.one(RUNNING_OF_GROUP, resource_group=group_id)
    return row[0] if row else 0


# ---------------------------------------------------------------- what does not move


class StuckRun(Struct, frozen=True):
    """A live run, and since when nothing has happened to it."""

    task_id: int
    run: int
    name: str
    bot_id: str
    since: Micros


_STUCK = "u.task_id, u.run, r.name, u.bot_id"
_LIVE = "task_runs u JOIN task_requests r ON r.id = u.task_id"
_SCOPE = "u.due_at IS NOT NULL AND (:any_group = 1 OR u.resource_group_id = :resource_group)"
SILENT_RUNS = f"""
    SELECT {_STUCK}, b.heartbeat FROM {_LIVE} JOIN bots b ON b.id = u.bot_id
     WHERE {_SCOPE} AND b.heartbeat < :before ORDER BY b.heartbeat LIMIT :n
"""
KILLED_RUNS = f"""
    SELECT {_STUCK}, t.modified_at FROM {_LIVE} JOIN task_results t ON t.id = u.task_id
     WHERE {_SCOPE} AND t.killing = 1 AND t.modified_at < :before ORDER BY t.modified_at LIMIT :n
"""


def silent_runs(tx: Tx, *, group_id: int | None, before: Micros, n: int) -> list[StuckRun]:
    """Live runs whose bots have sent nothing since this time."""
    return _stuck_runs(tx, SILENT_RUNS, group_id, before, n)


def unkilled_runs(tx: Tx, *, group_id: int | None, before: Micros, n: int) -> list[StuckRun]:
    """Live runs that were told to stop before this time."""
    return _stuck_runs(tx, KILLED_RUNS, group_id, before, n)


def _stuck_runs(tx: Tx, sql: str, group_id: int | None, before: Micros, n: int) -> list[StuckRun]:
    rows = tx.all(sql, **in_group(group_id), before=before, n=n)
    return [StuckRun(*row) for row in rows]


FAILING_WEBHOOKS = """
    SELECT id, url, num_failures, num_pending, next_at FROM webhooks
     WHERE num_failures >= :failures AND (:any_group = 1 OR resource_group_id = :resource_group)
     ORDER BY id LIMIT :n
"""


def failing_webhooks(tx: Tx, *, group_id: int | None, failures: int, n: int) -> Sequence[tuple[int, str, int, int]]:
    """Webhooks whose last deliveries have failed: id, URL, number of failures in a row, messages that wait."""
    rows = tx.all(FAILING_WEBHOOKS, **in_group(group_id), failures=failures, n=n)
    return [(row[0], row[1], row[2], row[3]) for row in rows]
