"""Chunked work: a change of many rows that is done in several transactions.

The decision itself is committed at once, in its own table. A row here records how far it has been applied, so that any
server can continue after a crash, and no transaction grows with the size of a graph.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

WHOLE = 1000
"""Rows that a caller's transaction changes at most. What is more becomes chunked work."""
CHUNK = 200
"""Rows that one transaction of chunked work changes. On SQLite everybody else waits for it, so it is short."""
STAGED = 100
"""Tasks of a large graph that one transaction stores: each is several new rows, and takes twice as long as a change."""

FEED = "feed"
START = "start"
CANCEL = "cancel"
CHILDREN = "children"
RESET = "reset"
CASCADE = "cascade"
DELETE_JOB = "delete_job"
DELETE_GROUP = "delete_group"
CAPACITY = "capacity"
TAGGED = "tagged"
RERANK = "rerank"
HOLD = "hold"
RELEASE = "release"
PRIORITY = "priority"


class ChunkedWork(Struct):
    """One unfinished piece of work; ``position`` is the last id that was processed."""

    id: int
    kind: str
    subject: int
    job_id: int | None
    position: int
    args: str
    created_at: Micros


_COLUMNS = ", ".join(ChunkedWork.__struct_fields__)
_ROWS = Insert("chunked_work", _COLUMNS)


def insert(tx: Tx, drains: Sequence[ChunkedWork]) -> None:
    tx.insert(_ROWS, [structs.astuple(drain) for drain in drains])


PENDING = f"SELECT {_COLUMNS} FROM chunked_work WHERE id > :after ORDER BY id LIMIT :n"
LOCK = f"SELECT {_COLUMNS} FROM chunked_work WHERE id = :id {{for_update}}"
ADVANCE = "UPDATE chunked_work SET position = :position, args = :args WHERE id = :id"
FINISH = "DELETE FROM chunked_work WHERE id {in:ids}"
LOCK_OF_JOB = f"""
    SELECT {_COLUMNS} FROM chunked_work WHERE job_id = :job AND kind = :kind ORDER BY id LIMIT :n {{for_update}}
"""
OF_KIND = "SELECT COUNT(*) FROM chunked_work WHERE kind = :kind AND subject = :subject"


def pending(tx: Tx, *, after: int = 0, n: int = 100) -> list[ChunkedWork]:
    """The next n unfinished pieces of work, oldest first."""
    return [ChunkedWork(*row) for row in tx.all(PENDING, after=after, n=n)]


def lock(tx: Tx, drain_id: int) -> ChunkedWork | None:
    """Lock unfinished work; None when another server has finished it. Lock its job first."""
    row = tx.one(LOCK, id=drain_id)
    return ChunkedWork(*row) if row else None


def lock_of_job(tx: Tx, kind: str, job_id: int, n: int) -> list[ChunkedWork]:
    """Lock the first n unfinished pieces of work of a kind for a job, which is locked."""
    return [ChunkedWork(*row) for row in tx.all(LOCK_OF_JOB, kind=kind, job=job_id, n=n)]


def advance(tx: Tx, drain: ChunkedWork) -> None:
    tx.run(ADVANCE, id=drain.id, position=drain.position, args=drain.args)


def finish(tx: Tx, drains: Sequence[ChunkedWork]) -> None:
    tx.run(FINISH, ids=[drain.id for drain in drains])


def exists(tx: Tx, kind: str, subject: int) -> bool:
    row = tx.one(OF_KIND, kind=kind, subject=subject)
    return bool(row and row[0])


FIRST_OF_JOB = "SELECT MIN(id) FROM chunked_work WHERE job_id = :job AND kind = :kind"


def first_of_job(tx: Tx, kind: str, job_id: int) -> int | None:
    """The oldest unfinished work of this kind for a job."""
    row = tx.one(FIRST_OF_JOB, job=job_id, kind=kind)
    return row[0] if row else None
