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
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import (
    chunked_work,
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
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.resource_group_id != group_id or job.staged:
        raise NotFound("job", show_task(job_id))
    if chunked_work.exists(tx, chunked_work.DELETE_JOB, job_id):
        return
    if job.state in (JobState.RUNNING, JobState.PENDING_RETRY) or job.num_active or job.num_draining:
        raise WrongState(f"the job is {job.state} and not all of its tasks have ended; cancel it and wait for that")
    begin_deletion(uow, job)
    jobs.save(tx, uow.jobs.values())


def begin_deletion(uow: UnitOfWork, job: Job) -> None:
    """Drain a locked job away."""
    job.alarm_at = None
    if not chunked_work.exists(uow.tx, chunked_work.DELETE_JOB, job.id):
        uow.start_chunked_work(chunked_work.DELETE_JOB, job.id, job=job)


def delete_job_chunk(uow: UnitOfWork, work: ChunkedWork) -> list[int]:
    """Remove the next chunk of a job's tasks, and the job itself with the last; which tasks went."""
    page = jobs.task_ids(uow.tx, work.subject, CHUNK)
    delete_tasks(uow, page)
    if len(page) < CHUNK:
        _delete_job(uow, work.subject)
    return page


def _delete_job(uow: UnitOfWork, job_id: int) -> None:
    refs = shared_value.of_job(uow.tx, job_id, n=CHUNK)
    while refs:
        shared_value.lock(uow.tx, refs)
        shared_value.unref_by_job(uow.tx, refs, job_id)
        shared_value.delete_unreferenced(uow.tx, refs)
        refs = shared_value.of_job(uow.tx, job_id, n=CHUNK)
    values.delete_of_job(uow.tx, job_id)
    outbox.delete(uow.tx, [job_id])
    jobs.delete(uow.tx, job_id)
    uow.jobs.pop(job_id, None)


def delete_tasks(uow: UnitOfWork, task_ids: Sequence[int]) -> None:
    """Forget ended tasks: runs, edges, inputs and outputs, then requests and events. Their logs go by themselves."""
    if not task_ids:
        return
    tagged = task_request.tags_of(uow.tx, task_ids)
    tags = sorted({(tag, task_id) for task_id, text in tagged for tag in json.decode(text, type=list[str])})
    edge.delete_of_tasks(uow.tx, task_ids)
    values.delete_of_tasks(uow.tx, task_ids)
    task_result.delete(uow.tx, task_ids)
    task_request.delete(uow.tx, task_ids, tags)
    outbox.delete(uow.tx, task_ids)
    tag_counts.open_spans(uow.tx, task_ids, uow.now)


def delete_group_chunk(uow: UnitOfWork, work: ChunkedWork) -> list[int]:
    """Remove the next chunk of a resource group: a job, or lone tasks, or references, or at last the group."""
    group_id = work.subject
    some = jobs.of_group(uow.tx, group_id, 1)
    if some:
        uow.lock_jobs(some)
        page = jobs.task_ids(uow.tx, some[0], CHUNK)
        delete_tasks(uow, page)
        if len(page) < CHUNK:
            _delete_job(uow, some[0])
        return page
    lone = task_request.of_group(uow.tx, group_id, CHUNK)
    if lone:
        uow.lock(lone)
        delete_tasks(uow, lone)
        return lone
    refs = shared_value.of_group(uow.tx, group_id, n=CHUNK)
    if refs:
        shared_value.lock(uow.tx, refs)
        shared_value.unref_by_group(uow.tx, refs, group_id)
        shared_value.delete_unreferenced(uow.tx, refs)
        return []
    task_queues.delete_of_group(uow.tx, group_id)
    resource_group.delete(uow.tx, group_id)
    uow.finish_chunked_work(work)
    return []
