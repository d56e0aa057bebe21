"""Run chunked work: changes that are too large for one transaction.

Each call processes one chunk of one piece of work. Any server may do so; the locks on its job and then on its row let
only one at a time.
"""

from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler.cancel import cancel_children_chunk, cancel_tagged_chunk
from myrmidon.scheduler.capacity import lost_capacity_chunk
from myrmidon.scheduler.cascade import cascade_chunk
from myrmidon.scheduler.hold import hold_job_chunk, release_job_chunk
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.pools import rerank_chunk
from myrmidon.scheduler.priority import set_priority_chunk
from myrmidon.scheduler.propagate import cancel_job_chunk, propagate, propagate_chunk
from myrmidon.scheduler.rerun import reset_job_chunk
from myrmidon.scheduler.retention import delete_group_chunk, delete_job_chunk
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
_DELETIONS = {store.DELETE_JOB: delete_job_chunk, store.DELETE_GROUP: delete_group_chunk}


def pending(tx: Tx, *, after: int = 0, n: int = 100) -> list[ChunkedWork]:
    """Chunked work that is not finished, by id."""
    return store.pending(tx, after=after, n=n)


def run_chunk(
    tx: Tx, work: ChunkedWork, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> tuple[set[int], list[int]]:
    """Process the next chunk; returns the queues that got tasks, and the deleted tasks, whose logs may be deleted."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([work.job_id])
    current = store.lock(tx, work.id)
    if current is None:
        return set(), []
    if current.kind in _DELETIONS:
        deleted = _DELETIONS[current.kind](uow, current)
        jobs.save(tx, uow.jobs.values())
        return set(), deleted
    _STEPS[current.kind](uow, current)
    propagate(uow)
    return uow.queues_to_wake, []
