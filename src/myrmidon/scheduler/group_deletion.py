"""Delete a resource group with everything in it, chunk by chunk.

With force its jobs and tasks are cancelled first. A running task ends when its bot has reported that, or when its lease
expires; until then the deletion waits. Nothing can be added meanwhile, because the group is marked as being deleted.
"""

from typing import Final

from msgspec import Struct, json

from myrmidon.model.states import JobState
from myrmidon.scheduler.cancel import cancel_locked
from myrmidon.scheduler.propagate import CancelArgs, propagate
from myrmidon.scheduler.retention import begin_deletion, delete_tasks, remove_job
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import (
    chunked_work,
    group_turn,
    resource_group,
    shared_value,
    stored_file,
    task_queues,
    task_request,
    task_result,
    task_run,
    webhook,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork

CANCEL_JOBS: Final = "cancel_jobs"
CANCEL_TASKS: Final = "cancel_tasks"
WAIT: Final = "wait"
DELETE: Final = "delete"
_REASON: Final = "group_deleted"
_MAX_JOBS: Final = 100


class DeletionArgs(Struct, frozen=True):
    """The arguments of deleting a group: which step it is at. Without force it begins with the last one."""

    step: str = DELETE


def delete_group_chunk(uow: UnitOfWork, work: ChunkedWork) -> tuple[list[int], bool]:
    """Do the next chunk of a deletion; returns the deleted tasks, and whether it waits for tasks that run."""
    step = json.decode(work.args, type=DeletionArgs).step
    if step == CANCEL_JOBS:
        _cancel_jobs(uow, work)
    elif step == CANCEL_TASKS:
        _cancel_tasks(uow, work)
    elif step == WAIT:
        return [], _wait(uow, work)
    else:
        return _delete(uow, work), False
    return [], False


def _go_to(uow: UnitOfWork, work: ChunkedWork, step: str) -> None:
    work.position, work.args = 0, json.encode(DeletionArgs(step)).decode()
    chunked_work.advance(uow.tx, work)


# ---------------------------------------------------------------- cancel


def _cancel_jobs(uow: UnitOfWork, work: ChunkedWork) -> None:
    """Cancel the next jobs, together about CHUNK tasks, so that none of them starts or retries tasks."""
    found = jobs.live_of_group(uow.tx, work.subject, after=work.position, n=_MAX_JOBS)
    if not found:
        _go_to(uow, work, CANCEL_TASKS)
        return
    uow.lock_jobs(found)
    num_tasks = 0
    for job_id in found:
        job = uow.jobs.get(job_id)
        work.position = job_id
        if job is None:
            continue
        if job.staged:
            begin_deletion(uow, job)  # nobody has seen it, and its other parts cannot be stored any more
        elif job.state in (JobState.RUNNING, JobState.PENDING_RETRY):
            uow.move_job(job, JobState.CANCELLED, "cancelled")
            args = json.encode(CancelArgs(_REASON)).decode()
            uow.start_chunked_work(chunked_work.CANCEL, job.id, job=job, args=args)
        num_tasks += job.num_tasks
        if num_tasks >= CHUNK:
            break
    propagate(uow)
    chunked_work.advance(uow.tx, work)


def _cancel_tasks(uow: UnitOfWork, work: ChunkedWork) -> None:
    """Cancel the next tasks that have not ended: those without a job, and those that wait in jobs that have failed."""
    found = task_result.unfinished_after(uow.tx, work.subject, after=work.position, n=CHUNK)
    cancel_locked(uow, found, kill_running=True, reason=_REASON)
    propagate(uow)
    if len(found) < CHUNK:
        _go_to(uow, work, WAIT)
        return
    work.position = found[-1]
    chunked_work.advance(uow.tx, work)


def _wait(uow: UnitOfWork, work: ChunkedWork) -> bool:
    """Whether tasks of the group still run; else the next step begins."""
    if task_run.any_live_of_group(uow.tx, work.subject):
        return True
    if task_result.unfinished_of_group(uow.tx, work.subject) is not None:
        _go_to(uow, work, CANCEL_JOBS)  # a task was queued again after its cancellation had been passed by
        return True
    _go_to(uow, work, DELETE)
    return False


# ---------------------------------------------------------------- delete


def _delete(uow: UnitOfWork, work: ChunkedWork) -> list[int]:
    """Delete the next chunk: of a job, then tasks without a job, references, and the group; the deleted tasks."""
    group_id = work.subject
    job_ids = jobs.of_group(uow.tx, group_id, 1)
    if job_ids:
        uow.lock_jobs(job_ids)
        page = jobs.task_ids(uow.tx, job_ids[0], CHUNK)
        delete_tasks(uow, page)
        if len(page) < CHUNK:
            remove_job(uow, job_ids[0])
        return page
    task_ids = task_request.of_group(uow.tx, group_id, CHUNK)
    if task_ids:
        uow.lock(task_ids)
        delete_tasks(uow, task_ids)
        return task_ids
    refs = shared_value.of_group(uow.tx, group_id, n=CHUNK)
    if refs:
        shared_value.lock(uow.tx, refs)
        shared_value.unref_by_group(uow.tx, refs, group_id)
        shared_value.delete_unreferenced(uow.tx, refs)
        return []
    task_queues.delete_of_group(uow.tx, group_id)
    webhook.delete_of_group(uow.tx, group_id)
    stored_file.delete_of_group(uow.tx, group_id)
    group_turn.delete(uow.tx, group_id)
    resource_group.delete(uow.tx, group_id)
    uow.finish_chunked_work(work)
    return []
