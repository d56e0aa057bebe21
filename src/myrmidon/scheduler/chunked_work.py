"""Carrying on: the consequences of decisions that were too wide for one transaction.

Each step does one chunk of one drain. Any server may take any step; the row lock
on the drain (and, before it, on its job) lets only one at a time.
"""

from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler.cancel import cancel_children_chunk, cancel_tagged_chunk
from myrmidon.scheduler.capacity import lost_capacity_chunk
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import cancel_job_chunk, propagate_chunk, settle
from myrmidon.scheduler.rerun import reset_job_chunk
from myrmidon.scheduler.retention import delete_group_chunk, delete_job_chunk
from myrmidon.scheduler.submit_job import start_job_chunk
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import ChunkedWork

_STEPS = {
    drains.FEED: propagate_chunk,
    drains.START: start_job_chunk,
    drains.CANCEL: cancel_job_chunk,
    drains.CHILDREN: cancel_children_chunk,
    drains.RESET: reset_job_chunk,
    drains.CAPACITY: lost_capacity_chunk,
    drains.TAGGED: cancel_tagged_chunk,
}
_DELETIONS = {drains.DELETE_JOB: delete_job_chunk, drains.DELETE_GROUP: delete_group_chunk}


def pending(tx: Tx, *, after: int = 0, n: int = 100) -> list[ChunkedWork]:
    """What is left to carry on with."""
    return drains.pending(tx, after=after, n=n)


def run_chunk(
    tx: Tx, drain: ChunkedWork, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> tuple[set[int], list[int]]:
    """Do one more chunk of a drain; which queues got work, and which tasks' logs may be deleted."""
    turn = Turn(tx, now, ids, rules)
    turn.lock_jobs([drain.job_id])
    current = drains.lock(tx, drain.id)
    if current is None:
        return set(), []
    if current.kind in _DELETIONS:
        gone = _DELETIONS[current.kind](turn, current)
        jobs.save(tx, turn.jobs.values())
        return set(), gone
    _STEPS[current.kind](turn, current)
    settle(turn)
    return turn.woken, []
