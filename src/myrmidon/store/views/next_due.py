"""The earliest due time in each table that has timed work, with one statement.

Each of these tables has an index of its due times, so each minimum costs one index lookup. Nothing is locked: the
caller checks again under locks.
"""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx


class NextDue(Struct, frozen=True):
    """The earliest due time of each kind; None when there is none. Chunked work (``drains``) is due at once: 0."""

    runs: Micros | None
    bots: Micros | None
    slices: Micros | None
    tasks: Micros | None
    jobs: Micros | None
    drains: Micros | None
    oldest_bot_event: Micros | None
    oldest_queue: Micros | None


# MIN, not EXISTS: databases may plan EXISTS as a scan of the whole table after many rows have been due.
_FIRST = """
    SELECT (SELECT MIN(due_at) FROM task_runs), (SELECT MIN(due_at) FROM bots),
           (SELECT MIN(expires_at) FROM task_to_run), (SELECT MIN(due_at) FROM task_results{tasks}),
           (SELECT MIN(due_at) FROM jobs{jobs}), (SELECT MIN(id) * 0 FROM chunked_work),
           (SELECT MIN(at) FROM bot_events), (SELECT MIN(used_at) FROM task_dimensions)
"""
FIRST = _FIRST.format(tasks="", jobs="")
# Without rows that only wait for their deletion; used while nothing old may be deleted.
FIRST_WITHOUT_OLD = _FIRST.format(
    tasks=" WHERE state IN ('WAITING', 'READY', 'RUNNING')",
    jobs=" WHERE state IN ('RUNNING', 'PENDING_RETRY')",
)


def first(tx: Tx) -> NextDue:
    """Read the earliest due times."""
    return NextDue(*tx.all(FIRST)[0])


def first_without_old(tx: Tx) -> NextDue:
    """Read the earliest due times, leaving out tasks and jobs that only wait for their deletion."""
    return NextDue(*tx.all(FIRST_WITHOUT_OLD)[0])
