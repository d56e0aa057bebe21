"""Run chunked work: changes that are too large for one transaction.

Each call processes one chunk of one piece of work. Any server may do so; the locks on its job and then on its row let
only one at a time.
"""

from msgspec import Struct

from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler.cancel import cancel_children_chunk, cancel_tagged_chunk
from myrmidon.scheduler.capacity import lost_capacity_chunk
from myrmidon.scheduler.cascade import cascade_chunk
from myrmidon.scheduler.group_deletion import delete_group_chunk
from myrmidon.scheduler.hold import hold_job_chunk, release_job_chunk
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.pools import rerank_chunk
from myrmidon.scheduler.priority import set_priority_chunk
from myrmidon.scheduler.propagate import cancel_job_chunk, propagate, propagate_chunk
from myrmidon.scheduler.rerun import reset_job_chunk
from myrmidon.scheduler.retention import delete_job_chunk
from myrmidon.scheduler.submit_job import start_job_chunk
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work as store
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import ChunkedWork

_STEPS = {
    store.FEED: propagate_chunk,
    store.START: start_job_chunk,
    store.CANCEL: cancel_job_chunk,
    store.CHILDREN: cancel_children_chunk,
    store.RESET: reset_job_chunk,
    store.CASCADE: cascade_chunk,
    store.CAPACITY: lost_capacity_chunk,
    store.TAGGED: cancel_tagged_chunk,
    store.RERANK: rerank_chunk,
    store.HOLD: hold_job_chunk,
    store.RELEASE: release_job_chunk,
    store.PRIORITY: set_priority_chunk,
}


class ChunkResult(Struct, frozen=True):
    """The queues that got tasks, the deleted tasks, whose logs may be deleted, and whether the work waits for tasks."""

    queues: set[int] = set()
    deleted: list[int] = []
    waits: bool = False


def pending(tx: Tx, *, after: int = 0, n: int = 100) -> list[ChunkedWork]:
    """Chunked work that is not finished, by id."""
    return store.pending(tx, after=after, n=n)


def run_chunk(tx: Tx, work: ChunkedWork, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> ChunkResult:
    """Process the next chunk."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([work.job_id])
    current = store.lock(tx, work.id)
    if current is None:
        return ChunkResult()
    if current.kind == store.DELETE_JOB:
        deleted, waits = delete_job_chunk(uow, current), False
    elif current.kind == store.DELETE_GROUP:
        deleted, waits = delete_group_chunk(uow, current)
    else:
        _STEPS[current.kind](uow, current)
        propagate(uow)
        return ChunkResult(uow.queues_to_wake)
    jobs.save(tx, uow.jobs.values())
    return ChunkResult(uow.queues_to_wake, deleted, waits)
