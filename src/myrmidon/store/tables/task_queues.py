"""Queues, and which bots serve them.

A queue is all tasks to run of one resource group that want exactly the same
dimensions. It is matched to bots when either side is new, so no task waits to be
discovered: both sides lock the pool first, hence one of them sees the other.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers


class Queue(Struct, frozen=True):
    """One queue with the full set that its tasks want."""

    id: int
    hash: str
    probe: int
    resource_group_id: int
    pool: str
    dimensions: str
    used_at: Micros
    shared: int = 0


_COLUMNS = "id, hash, probe, resource_group_id, pool, dimensions, used_at, shared"
_QUEUES = Insert("task_dimensions", "id, hash, probe, resource_group_id, pool, dimensions, shared, created_at, used_at")
BY_HASH = f"""
    SELECT {_COLUMNS} FROM task_dimensions
     WHERE resource_group_id = :resource_group AND hash {{in_text:hashes}} ORDER BY hash, probe
"""


def find(tx: Tx, resource_group_id: int, hashes: Sequence[str]) -> list[Queue]:
    """Queues with these hashes; the caller compares the full sets."""
    return [Queue(*row) for row in tx.all(BY_HASH, resource_group=resource_group_id, hashes=hashes)]


def insert(tx: Tx, queue: Queue) -> bool:
    """A new queue; False when another server has just made it."""
    q = queue
    row = (q.id, q.hash, q.probe, q.resource_group_id, q.pool, q.dimensions, 0, q.used_at, q.used_at)
    return tx.insert_new(_QUEUES, [row]) == 1


READ = f"SELECT {_COLUMNS} FROM task_dimensions WHERE id {{in:ids}}"


def read(tx: Tx, ids: Sequence[int]) -> dict[int, Queue]:
    return {row[0]: Queue(*row) for row in tx.all(READ, ids=ids)}


TOUCH = "UPDATE task_dimensions SET used_at = :now WHERE id {in:ids}"


def touch(tx: Tx, ids: Sequence[int], now: Micros) -> int:
    """Note that queues are in use; fewer than asked when one was just forgotten."""
    return tx.run(TOUCH, ids=ids, now=now)


MARK_SHARED = "UPDATE task_dimensions SET shared = 1 WHERE id = :id"


def mark_shared(tx: Tx, queue_id: int) -> None:
    """Note that tasks which read shared values come through this queue: a claim then looks where they lie."""
    tx.run(MARK_SHARED, id=queue_id)


IDLE = """
    SELECT d.id FROM task_dimensions d
     WHERE d.used_at < :before AND NOT EXISTS (SELECT 1 FROM task_to_run r WHERE r.queue = d.id)
     ORDER BY d.used_at LIMIT :n
"""
FORGET = "DELETE FROM task_dimensions WHERE id = :id AND used_at < :before"
FORGET_MATCHES = "DELETE FROM bot_task_dimensions WHERE queue = :queue"


def forget_idle(tx: Tx, *, before: Micros, n: int) -> int:
    """Drop queues nobody has used for long.

    A submit touches a queue that was last used over an hour ago, and ``before``
    lies weeks back, so none is dropped under a task on its way in.
    """
    gone = 0
    for (queue,) in tx.all(IDLE, before=before, n=n):
        if tx.run(FORGET, id=queue, before=before):
            tx.run(FORGET_MATCHES, queue=queue)
            gone += 1
    return gone


OF_GROUP = "SELECT id FROM task_dimensions WHERE resource_group_id = :resource_group"
FORGET_ONE = "DELETE FROM task_dimensions WHERE id = :id"


def forget_group(tx: Tx, resource_group_id: int) -> None:
    """Drop the queues of a group that is deleted; it has no tasks left."""
    for (queue,) in tx.all(OF_GROUP, resource_group=resource_group_id):
        tx.run(FORGET_MATCHES, queue=queue)
        tx.run(FORGET_ONE, id=queue)


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
OF_POOLS = f"SELECT {_COLUMNS} FROM task_dimensions WHERE pool {{in_text:pools}}"


def match_queue(tx: Tx, queue: Queue) -> int:
    """Find the living bots that serve a new queue; how many there are."""
    wanted = dimensions.narrowest_values(queue.dimensions)
    found = {
        bot_id
        for dimension in wanted
        for bot_id, has in tx.all(CANDIDATES, dimension=dimension)
        if dimensions.serves(queue.dimensions, has)
    }
    tx.insert_new(_MATCHES, [(bot_id, queue.id) for bot_id in sorted(found)])
    return len(found)


def match_bot(tx: Tx, bot_id: str, has: str, pools: Sequence[str]) -> None:
    """Find the queues that a new or changed bot serves; those that it no longer serves go."""
    serves = {row[0] for row in tx.all(OF_POOLS, pools=pools) if dimensions.serves(row[5], has)}
    serves.update(own_queues(tx, bot_id))
    served = {row[0] for row in tx.all(MATCHED, bot=bot_id)}
    if served - serves:
        tx.run(UNMATCH, bot=bot_id, queues=sorted(served - serves))
    tx.insert_new(_MATCHES, [(bot_id, queue) for queue in sorted(serves - served)])


def unmatch_bot(tx: Tx, bot_id: str) -> list[int]:
    """Take a bot out of all its queues; which they were."""
    queues = [row[0] for row in tx.all(MATCHED, bot=bot_id)]
    if queues:
        tx.run(UNMATCH_ALL, bot=bot_id)
    return sorted(queues)


OWN = "SELECT id FROM task_dimensions WHERE hash = :hash AND pool = ''"


def own_queues(tx: Tx, bot_id: str) -> list[int]:
    """Queues that want this bot and nothing else: through them it is told to end, whatever its pools."""
    return [row[0] for row in tx.all(OWN, hash=dimensions.digest(only_bot(bot_id)))]


def only_bot(bot_id: str) -> str:
    """The canonical text of dimensions that only this bot has."""
    return dimensions.canonical({"id": [bot_id]})


def queues_of_bot(tx: Tx, bot_id: str) -> list[int]:
    return sorted(row[0] for row in tx.all(MATCHED, bot=bot_id))


# Counts only bots that live and would take a task; one is enough, so the search stops there.
SERVED = """
    SELECT each.value FROM {each:queues}
     WHERE EXISTS (SELECT 1 FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
                    WHERE m.queue = each.value AND b.serving = 1 AND b.id <> :but)
"""


def served(tx: Tx, queues: Iterable[int], *, but: str = "") -> set[int]:
    """Those of the queues that some live, healthy bot serves, other than ``but``."""
    wanted = sorted(set(queues))
    if not wanted:
        return set()
    return {row[0] for row in tx.all(SERVED, queues=wanted, but=but)}


SERVING = """
    SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
     WHERE m.queue = :queue AND b.serving = 1 LIMIT :n
"""


def serving_bots(tx: Tx, queue: int, n: int) -> list[str]:
    return [row[0] for row in tx.all(SERVING, queue=queue, n=n)]


LEFT = """
    SELECT each.value,
           (SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
             WHERE m.queue = each.value AND b.serving = 1 LIMIT 1),
           (SELECT b.id FROM bot_task_dimensions m JOIN bots b ON b.id = m.bot_id
             WHERE m.queue = each.value AND b.serving = 1 LIMIT 1 OFFSET 1)
      FROM {each:queues}
"""


def left_serving(tx: Tx, queues: Sequence[int]) -> dict[int, int]:
    """How many bots still take tasks from each of these queues: none, one, or 2 for more than one."""
    found = tx.all(LEFT, queues=queues) if queues else ()
    return {queue: (first is not None) + (second is not None) for queue, first, second in found}


OF_QUEUE = "SELECT bot_id FROM bot_task_dimensions WHERE queue = :queue"


def bots_of_queue(tx: Tx, queue: int) -> list[str]:
    """All bots that serve a queue, whether or not they would take a task now."""
    return [row[0] for row in tx.all(OF_QUEUE, queue=queue)]


AGGREGATE = "SELECT dimension, COUNT(*) FROM bot_dimensions GROUP BY dimension ORDER BY dimension"
AGGREGATE_POOL = """
    SELECT d.dimension, COUNT(*) FROM bot_dimensions p JOIN bot_dimensions d ON d.bot_id = p.bot_id
     WHERE p.dimension = :pool GROUP BY d.dimension ORDER BY d.dimension
"""
AGGREGATED = "SELECT dimension, value, num_bots FROM dimension_aggregation ORDER BY dimension, value"
CLEAR_AGGREGATION = "DELETE FROM dimension_aggregation"
_AGGREGATION = Insert("dimension_aggregation", "dimension, value, num_bots")
_AGGREGATING = "aggregating"


def counted(tx: Tx, pool: str | None = None) -> list[tuple[str, str, int]]:
    """Key, value and number of the dimensions that bots have, of one pool or of all; ``id`` is every bot's own."""
    rows = tx.all(AGGREGATE) if pool is None else tx.all(AGGREGATE_POOL, pool=f"pool:{pool}")
    pairs = [(*row[0].split(":", 1), row[1]) for row in rows]
    return sorted((key, value, count) for key, value, count in pairs if key != "id")


def aggregated(tx: Tx) -> list[tuple[str, str, int]]:
    """The same of all bots, as it was last written down."""
    return sorted((row[0], row[1], row[2]) for row in tx.all(AGGREGATED))


def aggregate(tx: Tx) -> int:
    """Count anew which dimensions the fleet has, one server at a time."""
    shared_numbers.lock(tx, _AGGREGATING)
    rows = counted(tx)
    tx.run(CLEAR_AGGREGATION)
    tx.insert(_AGGREGATION, rows)
    return len(rows)
