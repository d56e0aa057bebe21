"""Queues, and which bots serve them.

A queue holds the ready tasks of one resource group that require exactly the same dimensions; functions and commands
have queues of their own, because a bot often can take only one of both kinds. Bots and queues are matched when either
side is new or has changed, not when a bot looks for work. Both sides lock the pool first (pool_order.lock_pools), so
that of a new bot and a new queue at least one sees the other.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.ids import Micros
from myrmidon.model.task_to_run import OF_FUNCTIONS, Order
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, Row
from myrmidon.store.tables import shared_numbers


class Queue(Struct, frozen=True):
    """One queue, with the dimensions that its tasks require as canonical text. ``shared``: bits of ``Head.shared``.

    ``order``: how its pool orders tasks.
    """

    id: int
    hash: str
    probe: int
    resource_group_id: int
    pool: str
    dimensions: str
    used_at: Micros
    shared: int = 0
    order: Order = Order()

    @property
    def of_functions(self) -> bool:
        return bool(self.shared & OF_FUNCTIONS)


_COLUMNS = """d.id, d.hash, d.probe, d.resource_group_id, d.pool, d.dimensions, d.used_at, d.shared,
    p.task_order, p.ageing"""
_WITH_POOL = "task_dimensions d LEFT JOIN pools p ON p.name = d.pool"
_QUEUES = Insert(
    "task_dimensions",
    "id, hash, probe, resource_group_id, pool, only_bot, dimensions, shared, created_at, used_at",
)
_DEFAULT_ORDER = Order()
BY_HASH = f"""
    SELECT {_COLUMNS} FROM {_WITH_POOL}
     WHERE d.resource_group_id = :resource_group AND d.hash {{in_text:hashes}} ORDER BY d.hash, d.probe
"""


def find(tx: Tx, resource_group_id: int, hashes: Sequence[str]) -> list[Queue]:
    """Queues with these hashes; the caller compares the full sets."""
    return list(map(_queue, tx.all(BY_HASH, resource_group=resource_group_id, hashes=hashes)))


def _queue(row: Row) -> Queue:
    return Queue(*(*row[:8], Order(row[8], row[9]) if row[8] is not None else _DEFAULT_ORDER))


def insert(tx: Tx, queue: Queue) -> bool:
    """Add a queue; False when another server has just added it."""
    q = queue
    only = dimensions.only_bot(q.dimensions)
    row = (q.id, q.hash, q.probe, q.resource_group_id, q.pool, only, q.dimensions, q.shared, q.used_at, q.used_at)
    return tx.insert_new(_QUEUES, [row]) == 1


READ = f"SELECT {_COLUMNS} FROM {_WITH_POOL} WHERE d.id {{in:ids}}"


def read(tx: Tx, ids: Sequence[int]) -> dict[int, Queue]:
    return {row[0]: _queue(row) for row in tx.all(READ, ids=ids)}


CREATED_AFTER = "SELECT id FROM task_dimensions WHERE id > :queue ORDER BY id LIMIT :n"


def created_after(tx: Tx, queue: int, n: int) -> list[int]:
    """The next n queues by id after this one; ids sort by time of creation."""
    return [row[0] for row in tx.all(CREATED_AFTER, queue=queue, n=n)]


TOUCH = "UPDATE task_dimensions SET used_at = :now WHERE id {in:ids}"


def touch(tx: Tx, ids: Sequence[int], now: Micros) -> int:
    """Set the time of last use; how many queues were found: one that was just deleted is missing."""
    return tx.run(TOUCH, ids=ids, now=now)


MARK_SHARED = "UPDATE task_dimensions SET shared = shared | :bits WHERE id = :id"


def mark_shared(tx: Tx, queue_id: int, bits: int) -> None:
    """Record what kinds of tasks use this queue (bits of ``TaskToRun.shared``)."""
    tx.run(MARK_SHARED, id=queue_id, bits=bits)


IDLE = """
    SELECT d.id FROM task_dimensions d
     WHERE d.used_at < :before AND NOT EXISTS (SELECT 1 FROM task_to_run r WHERE r.queue = d.id)
     ORDER BY d.used_at LIMIT :n
"""
DELETE_IDLE = "DELETE FROM task_dimensions WHERE id = :id AND used_at < :before"
DELETE_MATCHES = "DELETE FROM bot_task_dimensions WHERE queue = :queue"


def delete_idle(tx: Tx, *, before: Micros, n: int) -> int:
    """Delete up to n empty queues that were last used before a time; how many were deleted.

    A submit touches a queue that was last used over an hour ago, and ``before`` is weeks ago, so no queue is deleted
    while a submit adds a task to it.
    """
    deleted = 0
    for (queue,) in tx.all(IDLE, before=before, n=n):
        if tx.run(DELETE_IDLE, id=queue, before=before):
            tx.run(DELETE_MATCHES, queue=queue)
            deleted += 1
    return deleted


OF_GROUP = "SELECT id FROM task_dimensions WHERE resource_group_id = :resource_group"
DELETE = "DELETE FROM task_dimensions WHERE id = :id"


def delete_of_group(tx: Tx, resource_group_id: int) -> None:
    """Delete the queues of a group that is being deleted and has no tasks left."""
    for (queue,) in tx.all(OF_GROUP, resource_group=resource_group_id):
        tx.run(DELETE_MATCHES, queue=queue)
        tx.run(DELETE, id=queue)


# ---------------------------------------------------------------- pools


# ---------------------------------------------------------------- matching

_MATCHES = Insert("bot_task_dimensions", "bot_id, queue")
CANDIDATES = """
    SELECT d.bot_id, b.dimensions FROM bot_dimensions d JOIN bots b ON b.id = d.bot_id
     WHERE d.dimension = :dimension AND b.alive = 1
"""
MATCHED = "SELECT queue FROM bot_task_dimensions WHERE bot_id = :bot"
UNMATCH = "DELETE FROM bot_task_dimensions WHERE bot_id = :bot AND queue {in:queues}"
UNMATCH_ALL = "DELETE FROM bot_task_dimensions WHERE bot_id = :bot"
OF_POOLS = """
    SELECT id, dimensions FROM task_dimensions WHERE pool {in_text:pools} AND only_bot {in_text:bots}
"""


def match_queue(tx: Tx, queue: Queue) -> int:
    """Match a new queue with the bots that are alive; how many serve it."""
    bot_ids = {
        bot_id
        for dimension in dimensions.narrowest_values(queue.dimensions)
        for bot_id, has in tx.all(CANDIDATES, dimension=dimension)
        if dimensions.serves(queue.dimensions, has)
    }
    tx.insert_new(_MATCHES, [(bot_id, queue.id) for bot_id in sorted(bot_ids)])
    return len(bot_ids)


def match_bot(tx: Tx, bot_id: str, has: str, pools: Sequence[str]) -> None:
    """Match a new or changed bot with the queues of its pools, and drop matches that no longer hold."""
    found = tx.all(OF_POOLS, pools=pools, bots=["", bot_id])
    matching = {queue for queue, wanted in found if dimensions.serves(wanted, has)}
    matching.update(own_queues(tx, bot_id))
    matched = {row[0] for row in tx.all(MATCHED, bot=bot_id)}
    if matched - matching:
        tx.run(UNMATCH, bot=bot_id, queues=sorted(matched - matching))
    tx.insert_new(_MATCHES, [(bot_id, queue) for queue in sorted(matching - matched)])


def unmatch_bot(tx: Tx, bot_id: str) -> list[int]:
    """Remove a bot from all its queues; which they were."""
    queues = [row[0] for row in tx.all(MATCHED, bot=bot_id)]
    if queues:
        tx.run(UNMATCH_ALL, bot=bot_id)
    return sorted(queues)


OWN_QUEUES = "SELECT id FROM task_dimensions WHERE hash = :hash AND pool = ''"


def own_queues(tx: Tx, bot_id: str) -> list[int]:
    """Queues that require only this bot's id; terminate tasks use them, whatever the bot's pools are."""
    return [row[0] for row in tx.all(OWN_QUEUES, hash=dimensions.digest(only_bot(bot_id)))]


def only_bot(bot_id: str) -> str:
    """The canonical text of the dimensions that require only this bot's id."""
    return dimensions.canonical({"id": [bot_id]})


def queues_of_bot(tx: Tx, bot_id: str) -> list[int]:
    return sorted(row[0] for row in tx.all(MATCHED, bot=bot_id))


KINDS = """
    SELECT d.id, d.shared FROM bot_task_dimensions m JOIN task_dimensions d ON d.id = m.queue WHERE m.bot_id = :bot
"""


def kinds_of_queues(tx: Tx, bot_id: str) -> dict[int, bool]:
    """The queues that a bot serves, and whether each holds functions."""
    return {queue: bool(shared & OF_FUNCTIONS) for queue, shared in tx.all(KINDS, bot=bot_id)}


# EXISTS stops at the first bot that is alive and accepts tasks.
SERVED = """
    SELECT each.value FROM {each:queues}
     WHERE EXISTS (SELECT 1 FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
                    WHERE m.queue = each.value AND b.serving = 1 AND b.id <> :excluding)
"""


def served(tx: Tx, queues: Iterable[int], *, excluding: str = "") -> set[int]:
    """Those of the queues that some bot other than ``excluding`` serves now."""
    ids = sorted(set(queues))
    if not ids:
        return set()
    return {row[0] for row in tx.all(SERVED, queues=ids, excluding=excluding)}


SERVING = """
    SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
     WHERE m.queue = :queue AND b.serving = 1 LIMIT :n
"""


def serving_bots(tx: Tx, queue: int, n: int) -> list[str]:
    """Up to n bots that are alive and accept tasks of this queue."""
    return [row[0] for row in tx.all(SERVING, queue=queue, n=n)]


COUNT_SERVING = """
    SELECT each.value,
           (SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
             WHERE m.queue = each.value AND b.serving = 1 LIMIT 1),
           (SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
             WHERE m.queue = each.value AND b.serving = 1 LIMIT 1 OFFSET 1)
      FROM {each:queues}
"""


def count_serving(tx: Tx, queues: Sequence[int]) -> dict[int, int]:
    """How many bots accept tasks of each of these queues; 2 stands for two or more."""
    found = tx.all(COUNT_SERVING, queues=queues) if queues else ()
    return {queue: (first is not None) + (second is not None) for queue, first, second in found}


OF_QUEUE = "SELECT bot_id FROM bot_task_dimensions WHERE queue = :queue"


def bots_of_queue(tx: Tx, queue: int) -> list[str]:
    """All bots that match a queue, whether or not they accept tasks now."""
    return [row[0] for row in tx.all(OF_QUEUE, queue=queue)]


AGGREGATE = "SELECT dimension, COUNT(*) FROM bot_dimensions GROUP BY dimension ORDER BY dimension"
AGGREGATE_POOL = """
    SELECT d.dimension, COUNT(*) FROM bot_dimensions p JOIN bot_dimensions d ON d.bot_id = p.bot_id
     WHERE p.dimension = :pool GROUP BY d.dimension ORDER BY d.dimension
"""
READ_AGGREGATION = "SELECT dimension, value, num_bots FROM dimension_aggregation ORDER BY dimension, value"
CLEAR_AGGREGATION = "DELETE FROM dimension_aggregation"
_AGGREGATION = Insert("dimension_aggregation", "dimension, value, num_bots")
_AGGREGATION_LOCK = "aggregating"


def count_dimensions(tx: Tx, pool: str | None = None) -> list[tuple[str, str, int]]:
    """Count the bots by dimension: key, value, number of bots; of one pool or of all. ``id`` is left out."""
    rows = tx.all(AGGREGATE) if pool is None else tx.all(AGGREGATE_POOL, pool=f"pool:{pool}")
    pairs = [(*row[0].split(":", 1), row[1]) for row in rows]
    return sorted((key, value, count) for key, value, count in pairs if key != "id")


def read_aggregation(tx: Tx) -> list[tuple[str, str, int]]:
    """The counts of all bots as `refresh_aggregation` last stored them."""
    return sorted((row[0], row[1], row[2]) for row in tx.all(READ_AGGREGATION))


def refresh_aggregation(tx: Tx) -> int:
    """Count the dimensions of all bots and store the result; one server at a time."""
    shared_numbers.lock(tx, _AGGREGATION_LOCK)
    rows = count_dimensions(tx)
    tx.run(CLEAR_AGGREGATION)
    tx.insert(_AGGREGATION, rows)
    return len(rows)
