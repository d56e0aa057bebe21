"""Ready tasks: one row per run that may be started, in the order of their queue.

Every submit, claim and retry writes this table. The functions here only insert, lock and delete its rows; they decide
nothing and change no task.
"""

from collections.abc import Sequence

from msgspec import structs

from myrmidon.model.ids import Micros
from myrmidon.model.task_to_run import Head, TaskToRun
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.records import columns_of, insert_of
from myrmidon.store.engine.sql import RowUpdate

_COLUMNS = columns_of(TaskToRun)
_ROWS = insert_of("task_to_run", TaskToRun)


def insert(tx: Tx, rows: Sequence[TaskToRun]) -> None:
    """Add rows, and count them by queue in ``tx.effects``."""
    tx.insert(_ROWS, list(map(structs.astuple, rows)))
    count(tx, rows)


def insert_counted(tx: Tx, rows: Sequence[TaskToRun]) -> None:
    """Add rows that are counted already."""
    tx.insert(_ROWS, list(map(structs.astuple, rows)))


def count(tx: Tx, rows: Sequence[TaskToRun]) -> None:
    """Count rows by queue in ``tx.effects``: bots are to be woken for them."""
    effects = tx.effects
    for row in rows:
        effects.enqueued[row.queue] = effects.enqueued.get(row.queue, 0) + 1
        effects.enqueued_tasks.add(row.task_id)


# The subquery reads the first index entry of a queue, however deep the queue is. With a join instead, MariaDB
# sometimes reads the whole table, depending on its statistics.
HEADS = """
    SELECT b.queue, d.resource_group_id, d.dimensions, d.shared,
           (SELECT t.task_rank FROM task_to_run t WHERE t.queue = b.queue ORDER BY t.task_rank, t.task_id LIMIT 1),
           COALESCE(p.ageing, 0)
      FROM bot_task_dimensions b JOIN task_dimensions d ON d.id = b.queue LEFT JOIN pools p ON p.name = d.pool
     WHERE b.bot_id = :bot
"""


def heads(tx: Tx, bot_id: str) -> list[Head]:
    """The first row of each non-empty queue that the bot serves. Reads without locks: the rows may be gone already."""
    return [Head(*row) for row in tx.all(HEADS, bot=bot_id) if row[4] is not None]


FIRST = f"""
    SELECT {_COLUMNS} FROM task_to_run
     WHERE queue = :queue AND expires_at > :now AND (avoid_bot IS NULL OR avoid_bot <> :bot)
     ORDER BY task_rank, task_id LIMIT :n
"""


def first(tx: Tx, queue: int, n: int, *, bot_id: str, now: Micros) -> list[TaskToRun]:
    """The first n rows of one queue that this bot may take. Reads without locks: they may be gone already."""
    return [TaskToRun(*row) for row in tx.all(FIRST, queue=queue, n=n, bot=bot_id, now=now)]


def _several(size: int) -> str:
    """FIRST for ``size`` queues in one statement. Only a few sizes are used, so that few statements are prepared."""
    one = f"""
        SELECT * FROM (SELECT {_COLUMNS} FROM task_to_run
                        WHERE queue = :queue_N AND expires_at > :now AND (avoid_bot IS NULL OR avoid_bot <> :bot)
                        ORDER BY task_rank, task_id LIMIT :n) first_N
    """
    return " UNION ALL ".join(one.replace("_N", str(number)) for number in range(size))


SEVERAL = {size: _several(size) for size in (2, 4, 8, 16, 32)}
_NO_QUEUE = 0


def first_of_several(tx: Tx, queues: Sequence[int], n: int, *, bot_id: str, now: Micros) -> dict[int, list[TaskToRun]]:
    """As `first`, for up to 32 queues with one statement."""
    size = next(size for size in SEVERAL if size >= len(queues))
    padded = [*queues, *([_NO_QUEUE] * (size - len(queues)))]
    params = {f"queue{number}": queue for number, queue in enumerate(padded)}
    found: dict[int, list[TaskToRun]] = {queue: [] for queue in queues}
    for row in tx.all(SEVERAL[size], n=n, bot=bot_id, now=now, **params):
        found[row[2]].append(TaskToRun(*row))
    return found


TAKE = f"""
    SELECT {_COLUMNS} FROM task_to_run
     WHERE queue = :queue AND expires_at > :now AND (avoid_bot IS NULL OR avoid_bot <> :bot)
     ORDER BY task_rank, task_id LIMIT :n {{skip_locked}}
"""


def take(tx: Tx, queue: int, n: int, *, bot_id: str, now: Micros) -> list[TaskToRun]:
    """Lock the first n rows of one queue that this bot may take; rows that others have locked are skipped.

    One queue per call: with ``queue IN (...)`` InnoDB locks every row that it sorts, and other bots would see an empty
    queue until the commit.
    """
    return [TaskToRun(*row) for row in tx.all(TAKE, queue=queue, n=n, bot=bot_id, now=now)]


# No ORDER BY: a sort would make InnoDB lock more rows than it returns.
TAKE_THESE = f"""
    SELECT {_COLUMNS} FROM task_to_run
     WHERE task_id {{in:task_ids}} AND expires_at > :now AND (avoid_bot IS NULL OR avoid_bot <> :bot)
     {{skip_locked}}
"""


def take_these(tx: Tx, task_ids: Sequence[int], *, bot_id: str, now: Micros) -> list[TaskToRun]:
    """Lock the rows of these tasks that are still free; in the order of ``task_ids``."""
    rows = [TaskToRun(*row) for row in tx.all(TAKE_THESE, task_ids=task_ids, bot=bot_id, now=now)]
    order = {task_id: number for number, task_id in enumerate(task_ids)}
    return sorted(rows, key=lambda row: (order[row.task_id], row.instance))


OF_TASKS = f"SELECT {_COLUMNS} FROM task_to_run WHERE task_id {{in:task_ids}} ORDER BY task_id, instance"


def of_tasks(tx: Tx, task_ids: Sequence[int]) -> list[TaskToRun]:
    return [TaskToRun(*row) for row in tx.all(OF_TASKS, task_ids=task_ids)]


REMOVE = "DELETE FROM task_to_run WHERE task_id {in:task_ids}"
REMOVE_INSTANCE = "DELETE FROM task_to_run WHERE task_id {in:task_ids} AND instance = :instance"


def remove(tx: Tx, task_ids: Sequence[int]) -> int:
    """Delete all rows of these tasks; how many there were. The caller has locked the tasks."""
    return tx.run(REMOVE, task_ids=task_ids) if task_ids else 0


def remove_taken(tx: Tx, taken: Sequence[TaskToRun]) -> int:
    """Delete rows that `take` or `take_these` has locked."""
    by_instance: dict[int, list[int]] = {}
    for row in taken:
        by_instance.setdefault(row.instance, []).append(row.task_id)
    uncount(tx, taken)
    removed = 0
    for instance, ids in sorted(by_instance.items()):
        removed += tx.run(REMOVE_INSTANCE, task_ids=ids, instance=instance)
    return removed


def uncount(tx: Tx, taken: Sequence[TaskToRun]) -> None:
    """Wake no bot for rows of this transaction that it has claimed itself."""
    effects = tx.effects
    for row in taken:
        if row.task_id in effects.enqueued_tasks:
            effects.enqueued_tasks.remove(row.task_id)
            effects.enqueued[row.queue] -= 1


EXPIRED = """
    SELECT task_id FROM task_to_run WHERE expires_at <= :now ORDER BY expires_at LIMIT :n
"""


def expired(tx: Tx, now: Micros, n: int) -> list[int]:
    """Up to n tasks whose present slice has expired."""
    return [row[0] for row in tx.all(EXPIRED, now=now, n=n)]


UNSERVED = """
    SELECT task_id FROM task_to_run
     WHERE queue = :queue AND wait_for_capacity = 0 AND task_id > :after ORDER BY task_id LIMIT :n
"""


def unserved(tx: Tx, queue: int, *, after: int, n: int) -> list[int]:
    """The next n tasks of a queue that must not wait when no bot serves it."""
    return [row[0] for row in tx.all(UNSERVED, queue=queue, after=after, n=n)]


CLEAR_AVOID_BOT = """
    UPDATE task_to_run SET avoid_bot = NULL WHERE queue = :queue AND avoid_bot IS NOT NULL AND instance = 0
"""


def clear_avoid_bot(tx: Tx, queue: int) -> None:
    """Allow every bot to retry tasks of this queue, because no other bot serves it.

    A further instance still avoids its bot: that bot runs the task already.
    """
    tx.run(CLEAR_AVOID_BOT, queue=queue)


# A subquery for the reason given at HEADS; with EXISTS MariaDB reads the whole index.
NOT_EMPTY = """
    SELECT each.value,
           (SELECT t.task_id FROM task_to_run t WHERE t.queue = each.value ORDER BY t.task_rank, t.task_id LIMIT 1)
      FROM {each:queues}
"""


def not_empty(tx: Tx, queues: Sequence[int]) -> list[int]:
    """Those of the queues that have ready tasks."""
    return [row[0] for row in tx.all(NOT_EMPTY, queues=queues) if row[1] is not None] if queues else []


QUEUES_OF = "SELECT task_id, queue, shared FROM task_to_run WHERE task_id {in:task_ids}"


def queues_of(tx: Tx, task_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Task, queue and the bits of ``shared`` of each row of these tasks."""
    return [(row[0], row[1], row[2]) for row in tx.all(QUEUES_OF, task_ids=task_ids)] if task_ids else []


DEPTH = """
    SELECT COUNT(*) FROM (SELECT task_id FROM task_to_run WHERE queue = :queue
                           ORDER BY task_rank, task_id LIMIT :limit) waiting
"""


def depth(tx: Tx, queue: int, limit: int) -> int:
    """The number of ready tasks in a queue, counted up to ``limit``."""
    row = tx.one(DEPTH, queue=queue, limit=limit)
    return row[0] if row else 0


POSITION = """
    SELECT COUNT(*) FROM task_to_run
     WHERE queue = :queue AND (task_rank < :task_rank OR (task_rank = :task_rank AND task_id < :task_id))
"""


def position(tx: Tx, row: TaskToRun) -> int:
    """The number of rows of its queue before this one."""
    found = tx.one(POSITION, queue=row.queue, task_rank=row.task_rank, task_id=row.task_id)
    return found[0] if found else 0


OF_POOL = """
    SELECT t.task_id, t.instance, t.task_rank, r.priority, r.created_at
      FROM task_to_run t JOIN task_dimensions d ON d.id = t.queue JOIN task_requests r ON r.id = t.task_id
     WHERE d.pool = :pool AND t.task_id > :after ORDER BY t.task_id LIMIT :n
"""
_SET_RANKS = RowUpdate("task_to_run", key="task_id, instance", sets="task_rank", types="bigint, int, bigint")


def of_pool(tx: Tx, pool: str, *, after: int, n: int) -> list[tuple[int, int, int, int, Micros]]:
    """The next n rows of a pool by task: task, instance, rank, and the priority and creation that a rank is made of.

    A task has at most one row. Rows are read without locks and may be deleted meanwhile.
    """
    return [(row[0], row[1], row[2], row[3], row[4]) for row in tx.all(OF_POOL, pool=pool, after=after, n=n)]


def set_ranks(tx: Tx, rows: Sequence[tuple[int, int, int]]) -> None:
    """Change the rank of rows (task, instance, rank); those that are gone are skipped."""
    tx.update_rows(_SET_RANKS, rows)
