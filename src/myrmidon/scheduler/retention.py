"""Delete ended tasks and jobs from the store, references first.

A large job is deleted chunk by chunk. Nothing can be added to it meanwhile, because only ended jobs are deleted.
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
    delegate,
    edge,
    job_code,
    notes,
    outbox,
    shared_value,
    task_request,
    task_result,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import ChunkedWork
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.task_request import has_rows


def delete_job(tx: Tx, job_id: int, *, group_id: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> None:
    """Start deleting an ended job with all its tasks and values. Idempotent."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.resource_group_id != group_id or job.staged:
        raise NotFound("job", show_task(job_id))
    if chunked_work.exists(tx, chunked_work.DELETE_JOB, job_id):
        return
    if job.state in (JobState.RUNNING, JobState.PENDING_RETRY) or job.num_active or job.num_chunked_work:
        raise WrongState(f"the job is {job.state}, or some of its tasks have not ended; cancel it and wait for them")
    begin_deletion(uow, job)
    jobs.save(tx, uow.jobs.values())


def begin_deletion(uow: UnitOfWork, job: Job) -> None:
    """Start deleting a locked job, unless that was started before."""
    job.due_at = None
    if not chunked_work.exists(uow.tx, chunked_work.DELETE_JOB, job.id):
        uow.start_chunked_work(chunked_work.DELETE_JOB, job.id, job=job)


def delete_job_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Delete the next rows of a job."""
    return None if delete_of_job(uow, work.subject, n) else 0


def delete_of_job(uow: UnitOfWork, job_id: int, n: int) -> bool:
    """Delete up to n tasks of a locked job, then its references, its values and at last the job; whether it is gone."""
    page = jobs.task_ids(uow.tx, job_id, n)
    if page:
        delete_tasks(uow, page)
    if len(page) == n:
        return False
    refs = shared_value.of_job(uow.tx, job_id, n=n)
    if refs:
        shared_value.lock(uow.tx, refs)
        shared_value.unref_by_job(uow.tx, refs, job_id)
        shared_value.delete_unreferenced(uow.tx, refs)
    if len(refs) == n or values.delete_of_job(uow.tx, job_id, n) == n:
        return False
    job_code.delete_of_job(uow.tx, job_id)
    outbox.delete(uow.tx, [job_id])
    jobs.delete(uow.tx, job_id)
    uow.jobs.pop(job_id, None)
    return True


def delete_tasks(uow: UnitOfWork, task_ids: Sequence[int]) -> None:
    """Delete tasks: runs, edges, inputs and outputs, then requests and events. Their logs are deleted afterwards."""
    if not task_ids:
        return
    tagged = task_request.tags_of(uow.tx, task_ids)
    tags = sorted(
        {(tag, task_id) for task_id, text in tagged for tag in json.decode(text, type=list[str]) if has_rows(tag)}
    )
    edge.delete_of_tasks(uow.tx, task_ids)
    notes.delete_of_tasks(uow.tx, task_ids)
    values.delete_of_tasks(uow.tx, task_ids)
    delegate.delete_of_tasks(uow.tx, task_ids)
    task_result.delete(uow.tx, task_ids)
    task_request.delete(uow.tx, task_ids, tags)
    outbox.delete(uow.tx, task_ids)
    uow.tx.effects.deleted.extend(task_ids)
