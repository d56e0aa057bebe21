"""The earliest due time in each table that has maintenance, with one statement.

Each of these tables has an index of its due times, so each minimum costs one index lookup. Nothing is locked: the
caller checks again under locks.
"""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx


class NextDue(Struct, frozen=True):
    """The earliest due time of each kind; None when there is none.

    ``events`` is the time of an event without a position, ``chunks`` the id of the oldest chunked work.
    """

    runs: Micros | None
    bots: Micros | None
    slices: Micros | None
    tasks: Micros | None
    jobs: Micros | None
    events: Micros | None
    chunks: int | None
    oldest_bot_event: Micros | None
    oldest_queue: Micros | None


# MIN, not EXISTS: databases may plan EXISTS as a scan of the whole table after many rows have been due.
FIRST = """
    SELECT (SELECT MIN(due_at) FROM task_runs WHERE due_at IS NOT NULL), (SELECT MIN(due_at) FROM bots),
           (SELECT MIN(expires_at) FROM task_to_run),
           (SELECT MIN(due_at) FROM task_results WHERE due_at IS NOT NULL),
           (SELECT MIN(due_at) FROM jobs WHERE due_at IS NOT NULL),
           (SELECT at FROM outbox WHERE position IS NULL ORDER BY subject, seq LIMIT 1),
           (SELECT MIN(id) FROM chunked_work),
           (SELECT MIN(at) FROM bot_events), (SELECT MIN(used_at) FROM task_dimensions)
"""


def first(tx: Tx) -> NextDue:
    """Read the earliest due times."""
    return NextDue(*tx.all(FIRST)[0])


OLDEST_UNFINISHED = """
    SELECT MIN(due_at) FROM task_results WHERE due_at <= :now AND state IN ('WAITING', 'READY', 'RUNNING')
"""


def oldest_deadline(tx: Tx, now: Micros) -> Micros | None:
    """The earliest deadline that has passed of a task that has not ended; ended tasks wait for their deletion only."""
    row = tx.one(OLDEST_UNFINISHED, now=now)
    return row[0] if row else None
