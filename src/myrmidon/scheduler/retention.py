"""Removing: ended tasks, jobs and resource groups leave the store, references first.

A big job goes chunk by chunk; it is invisible to new work from the first chunk on,
because only ended jobs are removed and those take nothing in.
"""

from collections.abc import Sequence

from msgspec import json

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import JobState
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import (
    edge,
    outbox,
    resource_group,
    shared_value,
    tag_counts,
    task_queues,
    task_request,
    task_result,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork
from myrmidon.store.tables.job import Job


def delete_job(tx: Tx, job_id: int, *, group_id: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> None:
    """Delete an ended job with all its tasks and values; running tasks must have stopped."""
    turn = Turn(tx, now, ids, rules)
    turn.lock_jobs([job_id])
    job = turn.jobs.get(job_id)
    if job is None or job.resource_group_id != group_id or job.staged:
        raise NotFound("job", show_task(job_id))
    if drains.exists(tx, drains.DELETE_JOB, job_id):
        return
    if job.state in (JobState.RUNNING, JobState.PENDING_RETRY) or job.num_active or job.num_draining:
        raise WrongState(f"the job is {job.state} and not all of its tasks have ended; cancel it and wait for that")
    begin_deletion(turn, job)
    jobs.save(tx, turn.jobs.values())


def begin_deletion(turn: Turn, job: Job) -> None:
    """Drain a locked job away."""
    job.alarm_at = None
    if not drains.exists(turn.tx, drains.DELETE_JOB, job.id):
        turn.drain(drains.DELETE_JOB, job.id, job=job)


def delete_job_chunk(turn: Turn, drain: ChunkedWork) -> list[int]:
    """Remove the next chunk of a job's tasks, and the job itself with the last; which tasks went."""
    page = jobs.task_ids(turn.tx, drain.subject, CHUNK)
    delete_tasks(turn, page)
    if len(page) < CHUNK:
        _delete_job(turn, drain.subject)
    return page


def _delete_job(turn: Turn, job_id: int) -> None:
    refs = shared_value.of_job(turn.tx, job_id, n=CHUNK)
    while refs:
        shared_value.lock(turn.tx, refs)
        shared_value.unref_by_job(turn.tx, refs, job_id)
        shared_value.delete_unreferenced(turn.tx, refs)
        refs = shared_value.of_job(turn.tx, job_id, n=CHUNK)
    values.delete_of_job(turn.tx, job_id)
    outbox.delete(turn.tx, [job_id])
    jobs.delete(turn.tx, job_id)
    turn.jobs.pop(job_id, None)


def delete_tasks(turn: Turn, task_ids: Sequence[int]) -> None:
    """Forget ended tasks: runs, edges, inputs and outputs, then requests and events. Their logs go by themselves."""
    if not task_ids:
        return
    tagged = task_request.tags_of(turn.tx, task_ids)
    tags = sorted({(tag, task_id) for task_id, text in tagged for tag in json.decode(text, type=list[str])})
    edge.delete_of_tasks(turn.tx, task_ids)
    values.delete_of_tasks(turn.tx, task_ids)
    task_result.delete(turn.tx, task_ids)
    task_request.delete(turn.tx, task_ids, tags)
    outbox.delete(turn.tx, task_ids)
    tag_counts.open_spans(turn.tx, task_ids, turn.now)


def delete_group_chunk(turn: Turn, drain: ChunkedWork) -> list[int]:
    """Remove the next chunk of a resource group: a job, or lone tasks, or references, or at last the group."""
    group_id = drain.subject
    some = jobs.of_group(turn.tx, group_id, 1)
    if some:
        turn.lock_jobs(some)
        page = jobs.task_ids(turn.tx, some[0], CHUNK)
        delete_tasks(turn, page)
        if len(page) < CHUNK:
            _delete_job(turn, some[0])
        return page
    lone = task_request.of_group(turn.tx, group_id, CHUNK)
    if lone:
        turn.lock(lone)
        delete_tasks(turn, lone)
        return lone
    refs = shared_value.of_group(turn.tx, group_id, n=CHUNK)
    if refs:
        shared_value.lock(turn.tx, refs)
        shared_value.unref_by_group(turn.tx, refs, group_id)
        shared_value.delete_unreferenced(turn.tx, refs)
        return []
    task_queues.delete_of_group(turn.tx, group_id)
    resource_group.delete(turn.tx, group_id)
    turn.drained(drain)
    return []
