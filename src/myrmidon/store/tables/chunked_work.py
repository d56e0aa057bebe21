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
STOPPED_BY_CANCEL = (START, RESET, CASCADE, HOLD, RELEASE, PRIORITY)
"""What is pointless once the tasks of a job are cancelled, or would let them start again."""
WAITS = -1
"""In place of the next position: the work waits for tasks to end."""


class ChunkedWork(Struct):
    """One unfinished piece of work; ``position`` is the last id that was processed."""

    id: int
    kind: str
    subject: int
    job_id: int | None
    position: int
    args: str
    created_at: Micros

    @property
    def turn(self) -> int:
        """Whose turn it is when this work gets a chunk: see ``turns``."""
        return self.job_id if self.job_id is not None else -self.id


_COLUMNS = ", ".join(ChunkedWork.__struct_fields__)
_ROWS = Insert("chunked_work", _COLUMNS)


def insert(tx: Tx, works: Sequence[ChunkedWork]) -> None:
    tx.insert(_ROWS, [structs.astuple(work) for work in works])


PENDING = f"SELECT {_COLUMNS} FROM chunked_work ORDER BY id LIMIT :n"


def pending(tx: Tx, n: int = 100) -> list[ChunkedWork]:
    """The first n unfinished pieces of work, oldest first."""
    return [ChunkedWork(*row) for row in tx.all(PENDING, n=n)]


TURNS = """
    SELECT job_id FROM chunked_work WHERE job_id IS NOT NULL GROUP BY job_id
    UNION ALL SELECT -id FROM chunked_work WHERE job_id IS NULL
"""


def turns(tx: Tx) -> list[int]:
    """Who has unfinished work: ids of jobs, and minus the ids of work that has no job."""
    return [row[0] for row in tx.all(TURNS)]


LOCK = f"SELECT {_COLUMNS} FROM chunked_work WHERE id = :id {{for_update}}"


def lock(tx: Tx, work_id: int) -> ChunkedWork | None:
    """Lock unfinished work that has no job; None when another server has finished it."""
    row = tx.one(LOCK, id=work_id)
    return ChunkedWork(*row) if row else None


LOCK_CANCEL = f"SELECT {_COLUMNS} FROM chunked_work WHERE kind = '{CANCEL}' AND subject = :job {{for_update}}"
LOCK_OLDEST = f"SELECT {_COLUMNS} FROM chunked_work WHERE job_id = :job ORDER BY id LIMIT 1 {{for_update}}"


def lock_next_of_job(tx: Tx, job_id: int) -> ChunkedWork | None:
    """Lock the next work of a locked job: its cancellation, else the oldest; None when it has none."""
    row = tx.one(LOCK_CANCEL, job=job_id) or tx.one(LOCK_OLDEST, job=job_id)
    return ChunkedWork(*row) if row else None


LOCK_OF_KINDS = f"SELECT {_COLUMNS} FROM chunked_work WHERE job_id = :job AND kind {{in_text:kinds}} {{for_update}}"


def lock_of_kinds(tx: Tx, job_id: int, kinds: Sequence[str]) -> list[ChunkedWork]:
    """Lock all unfinished work of these kinds for a locked job."""
    return [ChunkedWork(*row) for row in tx.all(LOCK_OF_KINDS, job=job_id, kinds=kinds)]


LOCK_OF_JOB = f"""
    SELECT {_COLUMNS} FROM chunked_work WHERE job_id = :job AND kind = :kind ORDER BY id LIMIT :n {{for_update}}
"""


def lock_of_job(tx: Tx, kind: str, job_id: int, n: int) -> list[ChunkedWork]:
    """Lock the first n unfinished pieces of work of a kind for a job, which is locked."""
    return [ChunkedWork(*row) for row in tx.all(LOCK_OF_JOB, kind=kind, job=job_id, n=n)]


ADVANCE = "UPDATE chunked_work SET position = :position, args = :args WHERE id = :id"
FINISH = "DELETE FROM chunked_work WHERE id {in:ids}"
OF_KIND = "SELECT id FROM chunked_work WHERE kind = :kind AND subject = :subject LIMIT 1"


def advance(tx: Tx, work: ChunkedWork) -> None:
    tx.run(ADVANCE, id=work.id, position=work.position, args=work.args)


def finish(tx: Tx, works: Sequence[ChunkedWork]) -> None:
    tx.run(FINISH, ids=[work.id for work in works])


def exists(tx: Tx, kind: str, subject: int) -> bool:
    return tx.one(OF_KIND, kind=kind, subject=subject) is not None
