"""Carrying on: the consequences of decisions that were too wide for one transaction.

Each step does one chunk of one drain. Any server may take any step; the row lock
on the drain (and, before it, on its job) lets only one at a time.
"""

from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler.bots import lost_capacity_chunk
from myrmidon.scheduler.cancel import cancel_children_on, cancel_tagged_on
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import cancel_job_chunk, propagate_chunk, settle
from myrmidon.scheduler.rerun import reset_on
from myrmidon.scheduler.retention import remove_group_on, remove_job_on
from myrmidon.scheduler.submit_job import start_on
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import ChunkedWork

_STEPS = {
    drains.FEED: propagate_chunk,
    drains.START: start_on,
    drains.CANCEL: cancel_job_chunk,
    drains.CHILDREN: cancel_children_on,
    drains.RESET: reset_on,
    drains.CAPACITY: lost_capacity_chunk,
    drains.TAGGED: cancel_tagged_on,
}
_REMOVALS = {drains.DELETE_JOB: remove_job_on, drains.DELETE_GROUP: remove_group_on}


def pending(tx: Tx, *, after: int = 0, n: int = 100) -> list[ChunkedWork]:
    """What is left to carry on with."""
    return drains.pending(tx, after=after, n=n)


def carry_on(
    tx: Tx, drain: ChunkedWork, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> tuple[set[int], list[int]]:
    """Do one more chunk of a drain; which queues got work, and which tasks' logs may be deleted."""
    turn = Turn(tx, now, ids, rules)
    turn.lock_jobs([drain.job_id])
    current = drains.lock(tx, drain.id)
    if current is None:
        return set(), []
    if current.kind in _REMOVALS:
        gone = _REMOVALS[current.kind](turn, current)
        jobs.save(tx, turn.jobs.values())
        return set(), gone
    _STEPS[current.kind](turn, current)
    settle(turn)
    return turn.woken, []
