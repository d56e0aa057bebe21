"""How busy bots are, and how long tasks wait in each pool."""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import in_group

MAX_RUNS = 5_000
"""Runs of a bot that a chart reads: the newest ones."""
SAMPLE = 5_000
"""Tasks whose waiting times are looked at: the newest ones."""


class RunTimes(Struct, frozen=True):
    """When a run was claimed and when it ended; None for a live one."""

    claimed_at: Micros
    ended_at: Micros | None
    state: str


ENDED_RUNS = """
    SELECT claimed_at, ended_at, state FROM task_runs WHERE bot_id = :bot AND due_at IS NULL
     ORDER BY task_id DESC, run DESC LIMIT :n
"""
LIVE_RUNS = "SELECT claimed_at, ended_at, state FROM task_runs WHERE bot_id = :bot AND due_at IS NOT NULL"


def runs_of_bot(tx: Tx, bot_id: str) -> tuple[list[RunTimes], bool]:
    """The newest runs of a bot, and whether these are all."""
    ended = [RunTimes(*row) for row in tx.all(ENDED_RUNS, bot=bot_id, n=MAX_RUNS)]
    live = [RunTimes(*row) for row in tx.all(LIVE_RUNS, bot=bot_id)]
    return live + ended, len(ended) < MAX_RUNS


class Wait(Struct, frozen=True):
    """How long a task waited for a bot."""

    pool: str
    wait: Micros


FLOOR = "SELECT id FROM task_results ORDER BY id DESC LIMIT 1 OFFSET :n"
WAITS = """
    SELECT (SELECT d.pool FROM task_dimensions d WHERE d.id = COALESCE(s.queue, r.queue)), t.started_at - t.ready_at
      FROM task_results t JOIN task_requests r ON r.id = t.id
      LEFT JOIN further_slices s ON s.task_id = t.id AND s.slice = t.current_task_slice
     WHERE t.id >= :floor AND t.started_at IS NOT NULL AND t.ready_at IS NOT NULL
       AND (:any_group = 1 OR t.resource_group_id = :resource_group)
"""


def waits(tx: Tx, group_id: int | None) -> list[Wait]:
    """The waiting times of the newest tasks that have started."""
    row = tx.one(FLOOR, n=SAMPLE)
    given = {"floor": row[0] if row else 0, **in_group(group_id)}
    return [Wait(*found) for found in tx.all(WAITS, **given)]


class PoolReady(Struct, frozen=True):
    """Waiting tasks of a pool; ``oldest`` is the id of the oldest one."""

    pool: str
    num_ready: int
    oldest: int


READY = """
    SELECT d.pool, COUNT(*), MIN(r.task_id) FROM task_to_run r JOIN task_dimensions d ON d.id = r.queue
     WHERE :any_group = 1 OR d.resource_group_id = :resource_group GROUP BY d.pool
"""


def ready_by_pool(tx: Tx, group_id: int | None) -> list[PoolReady]:
    rows = tx.all(READY, **in_group(group_id))
    return [PoolReady(*row) for row in rows]


BOTS = """
    SELECT d.dimension, SUM(b.serving),
           SUM(CASE WHEN EXISTS (SELECT 1 FROM task_runs u WHERE u.bot_id = b.id AND u.due_at IS NOT NULL)
               THEN 1 ELSE 0 END)
      FROM bot_dimensions d JOIN bots b ON b.id = d.bot_id
     WHERE d.dimension >= 'pool:' AND d.dimension < 'pool;' AND b.alive = 1 GROUP BY d.dimension
"""


def bots_by_pool(tx: Tx) -> dict[str, tuple[int, int]]:
    """Count the bots that take tasks, and the bots that run one, by pool."""
    return {dimension.partition(":")[2]: (int(num), int(busy)) for dimension, num, busy in tx.all(BOTS)}
