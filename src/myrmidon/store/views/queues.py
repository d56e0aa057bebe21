"""Lists of queues and pools."""

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import CREATED_AT, GROUP_NAME, Selection
from myrmidon.wire.queues import PoolInfo, QueueInfo

QUEUE = Selection(
    QueueInfo,
    "d",
    group=GROUP_NAME.format("d"),
    num_ready="(SELECT COUNT(*) FROM task_to_run r WHERE r.queue = d.id)",
    oldest_at=CREATED_AT.format("(SELECT MIN(r.task_id) FROM task_to_run r WHERE r.queue = d.id)"),
    num_bots="""(SELECT COUNT(*) FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
        WHERE m.queue = d.id AND b.serving = 1)""",
)
_QUEUES = f"SELECT {QUEUE.columns} FROM task_dimensions d WHERE d.id > :after"
QUEUES = f"{_QUEUES} ORDER BY d.id LIMIT :n"
QUEUES_OF_GROUP = f"{_QUEUES} AND d.resource_group_id = :resource_group ORDER BY d.id LIMIT :n"


def queues(tx: Tx, *, group_id: int | None, after: int, n: int) -> list[QueueInfo]:
    if group_id is None:
        return QUEUE.read(tx, QUEUES, after=after, n=n)
    return QUEUE.read(tx, QUEUES_OF_GROUP, after=after, resource_group=group_id, n=n)


DIMENSIONS = "SELECT id, dimensions, used_at FROM task_dimensions WHERE id > :after ORDER BY id LIMIT :n"
DIMENSIONS_OF_GROUP = """
    SELECT id, dimensions, used_at FROM task_dimensions
     WHERE id > :after AND resource_group_id = :resource_group ORDER BY id LIMIT :n
"""


def queue_dimensions(tx: Tx, *, group_id: int | None, after: int, n: int) -> list[tuple[int, str, Micros]]:
    """Id, dimensions and time of last use of the next n queues, by id. Cheaper than `queues`: counts nothing."""
    given = {"after": after, "n": n}
    rows = (
        tx.all(DIMENSIONS, **given)
        if group_id is None
        else tx.all(DIMENSIONS_OF_GROUP, resource_group=group_id, **given)
    )
    return [(row[0], row[1], row[2]) for row in rows]


# The pool without a name is that of terminate tasks and is not listed.
POOLS = "SELECT name, task_order, ageing FROM pools WHERE name > :after ORDER BY name LIMIT :n"
BOTS_IN_POOL = """
    SELECT COUNT(*) FROM bot_dimensions d JOIN bots b ON b.id = d.bot_id WHERE d.dimension = :dimension AND b.alive = 1
"""


def pools(tx: Tx, *, after: str, n: int) -> list[PoolInfo]:
    rows = tx.all(POOLS, after=after, n=n)
    return [PoolInfo(name, order, ageing, bots_in_pool(tx, name)) for name, order, ageing in rows]


def bots_in_pool(tx: Tx, pool: str) -> int:
    """The number of live bots of a pool."""
    row = tx.one(BOTS_IN_POOL, dimension=f"pool:{pool}")
    return row[0] if row else 0
