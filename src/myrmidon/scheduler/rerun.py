"""Rerun tasks and jobs: on request, or as the automatic retry of a job.

Each rerun starts a new generation of a task: run numbers continue, the result and the retry counters start over.
"""

from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct, json

from myrmidon.model.errors import Conflict, NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, next_run_number, show_task
from myrmidon.model.states import FINAL, JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.cascade import cascade as reset_descendants
from myrmidon.scheduler.cascade import plan_pages, reopen_edges, start_generation
from myrmidon.scheduler.new_tasks import open_group
from myrmidon.scheduler.outputs import erase_outputs
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import name_blocker, propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, edge, task_request, task_result
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import CHUNK, WHOLE, ChunkedWork
from myrmidon.store.tables.job import Job
from myrmidon.store.views import job_details


class Rerun(Struct, frozen=True):
    """The result of a rerun: the task's state, and whether this call changed it."""

    task_id: int
    state: TaskState
    changed: bool


def rerun(
    tx: Tx,
    task_id: int,
    *,
    now: Micros,
    ids: IdSource,
    force: bool = False,
    cascade: bool = False,
    kill: bool = False,
    rules: Rules = DEFAULT_RULES,
) -> Rerun:
    """Run an ended task again.

    ``force`` is required if the task succeeded, or if its parents did not. With ``cascade`` all descendants wait for
    the new result. Running ones are stopped if ``kill`` is true, and in any case wait again when their run has ended.
    A task that runs or waits for a bot is left unchanged; WrongState with ``cascade`` if children use its last result.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    task = uow.lock([task_id]).get(task_id)
    if task is None or uow.is_staged(task):
        raise NotFound("task", show_task(task_id))
    if task_request.terminate_tasks(tx, [task_id]):
        raise WrongState("the task terminates a bot and cannot be rerun; terminate the bot again")
    if task.state in (TaskState.READY, TaskState.RUNNING):
        if cascade and edge.completed_by(tx, [task_id]):
            raise WrongState(
                f"the task runs again already (it is {task.state}), and its descendants keep the result of its last"
                " run; wait for its end or cancel it, then rerun it with its descendants"
            )
        return Rerun(task_id, task.state, changed=False)
    _check_rerunnable(uow, task, force=force)
    reopen_job(uow, task)
    start_generation(uow, task, "rerun")
    task.forced = int(not _parents_satisfied(task))
    uow.flush()
    job = uow.job_of(task)
    if not cascade or job is None or reset_descendants(uow, task, job, kill=kill):
        if job is not None:
            name_blocker(uow, job)
        make_ready(uow, [task])
    propagate(uow)
    return Rerun(task_id, task.state, changed=True)


def rerun_once(
    tx: Tx,
    task_id: int,
    request_key: str,
    *,
    now: Micros,
    ids: IdSource,
    force: bool = False,
    cascade: bool = False,
    rules: Rules = DEFAULT_RULES,
) -> TaskResult:
    """Like rerun, but idempotent: calls with the same request key rerun the task once. Returns the current task."""
    request = task_request.read(tx, [task_id]).get(task_id)
    if request is None:
        raise NotFound("task", show_task(task_id))
    group_id = request.resource_group_id
    key = f"rerun:{sha256(request_key.encode()).hexdigest()}"
    body_hash = sha256(f"{task_id} {force} {cascade}".encode()).hexdigest()
    if request_keys.insert(tx, [(group_id, key, body_hash, task_id, now)]):
        rerun(tx, task_id, now=now, ids=ids, force=force, cascade=cascade, rules=rules)
    elif request_keys.read(tx, group_id, [key])[key] != (body_hash, task_id):
        raise Conflict("the request key was used for another rerun; use a new key for a new request")
    return task_result.read(tx, [task_id])[task_id]


def _check_rerunnable(uow: UnitOfWork, task: TaskResult, *, force: bool) -> None:
    open_group(uow, task.resource_group_id)
    uow.load_requests([task.id])
    job = uow.job_of(task)
    if job and job.num_chunked_work and job.state != JobState.CANCELLED:
        raise WrongState("the job is still processing an earlier change; try again in a moment")
    if job and job.state in (JobState.CANCELLED, JobState.PENDING_RETRY):
        raise WrongState(
            f"the job is {job.state}, and its tasks cannot be rerun one by one; wait until it runs again, or submit a"
            " new job"
        )
    if uow.requests[task.id].deadline_at <= uow.now:
        raise WrongState("the deadline of the task has passed; submit a new task")
    if next_run_number(task.run_number) is None:
        raise WrongState("the task has used up its run numbers; submit a new task")
    if not force and task.state == TaskState.SUCCEEDED:
        raise WrongState("the task has succeeded; rerun it with force (`--force`)")
    if not force and not _parents_satisfied(task):
        raise WrongState("the task's parents have not succeeded; rerun it without them with force (`--force`)")
    if not task.resolves_all and values.lacks_input(uow.tx, task.id):
        raise WrongState("the task reads outputs that its parents have not produced; rerun them first")


def _parents_satisfied(task: TaskResult) -> bool:
    """Whether the task may run by the state of its parents, regardless of ``forced``."""
    return task.num_succeeded_parents >= task.num_parents


def reopen_job(uow: UnitOfWork, task: TaskResult) -> None:
    """Move the ended job of a task back to RUNNING; also start other tasks of it that became ready meanwhile."""
    job = uow.job_of(task)
    if job is None or job.state == JobState.RUNNING:
        return
    uow.move_job(job, JobState.RUNNING, "running")
    if task_result.waits_for_job(uow.tx, job.id, excluding=task.id):
        uow.start_chunked_work(chunked_work.START, job.id, job=job)


# ---------------------------------------------------------------- jobs


class Reset(Struct, frozen=True):
    """The arguments of a job reset: only tasks that did not succeed, or all (``full``)."""

    full: bool = False
    automatic: bool = False


def rerun_job(
    tx: Tx,
    job_id: int,
    *,
    now: Micros,
    ids: IdSource,
    full: bool = False,
    rules: Rules = DEFAULT_RULES,
) -> Job:
    """Rerun the tasks of an ended job that did not succeed, or with ``full`` all; a running job is left unchanged."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged:
        raise NotFound("job", show_task(job_id))
    open_group(uow, job.resource_group_id)
    if job.state == JobState.CANCELLED:
        raise WrongState("the job was cancelled; submit a new job")
    if job.state == JobState.SUCCEEDED and not full:
        raise WrongState("the job has succeeded; to run all of it again, rerun it with full (`--full`)")
    if job.num_chunked_work and job.state == JobState.PENDING_RETRY:
        raise WrongState("the job is still processing an earlier change; try again in a moment")
    if job.num_chunked_work and job.state != JobState.RUNNING:
        raise WrongState("the job is being deleted; submit a new job")
    if job.deadline_at <= now:
        raise WrongState("the deadline of the job has passed; submit a new job")
    if job.state == JobState.FAILED and not full and not task_result.may_run_again(tx, job_id, now):
        raise WrongState("the deadlines of all its failed tasks have passed; submit a new job")
    if job.state != JobState.RUNNING:
        _begin_reset(uow, job, Reset(full=full))
        propagate(uow)
    return job


def retry_job(uow: UnitOfWork, job: Job) -> None:
    """Start the automatic retry of a locked job in the state PENDING_RETRY."""
    job.num_retries += 1
    _begin_reset(uow, job, Reset(automatic=True))


def _begin_reset(uow: UnitOfWork, job: Job, reset: Reset) -> None:
    job.blocked_by = job.error = None
    uow.move_job(job, JobState.RUNNING, "running")
    work = uow.start_chunked_work(chunked_work.RESET, job.id, job=job, args=json.encode(reset).decode())
    page = task_result.lock_of_job(uow.tx, job.id, after=0, n=CHUNK)
    reset_page(uow, work, page)
    uow.advance_chunked_work(work, page[-1].id if len(page) == CHUNK else None)
    if len(page) < CHUNK:
        finish_reset(uow, work)


def reset_page(uow: UnitOfWork, work: ChunkedWork, page: list[TaskResult]) -> None:
    """Reset the next tasks of a job."""
    reset = json.decode(work.args, type=Reset)
    uow.load_requests(task.id for task in page)
    again = [task for task in page if task.final and (reset.full or task.state != TaskState.SUCCEEDED)]
    late = [task for task in again if uow.requests[task.id].deadline_at <= uow.now]
    again = [task for task in again if task not in late]
    for task in again:
        start_generation(uow, task, "job_retry")
        task.num_reruns = 0
    uow.flush()
    reopen_edges(uow, edge.completed_by(uow.tx, [task.id for task in again]))
    if writers := [task.id for task in again if uow.requests[task.id].num_outputs]:
        erase_outputs(uow, work.subject, writers)


def finish_reset(uow: UnitOfWork, work: ChunkedWork) -> None:
    """Start the tasks of a reset job that wait for nothing."""
    job = uow.jobs[work.subject]
    name_blocker(uow, job)  # a task past its own deadline has not been reset
    uow.start_chunked_work(chunked_work.START, job.id, job=job)


# ---------------------------------------------------------------- previews


def preview_task(tx: Tx, task_id: int, *, cascade: bool) -> list[int]:
    """The task, and with ``cascade`` all descendants that have started or ended, by id."""
    if not cascade:
        return [task_id]
    pages = plan_pages(edge.below(tx, task_id), task_id, WHOLE)
    states = {i: state for page in pages for i, (_, state) in task_result.groups_and_states(tx, page.tasks).items()}
    return sorted([task_id, *(i for i, state in states.items() if state != TaskState.WAITING)])


def preview_job(tx: Tx, job_id: int, *, full: bool) -> Iterator[str]:
    """The labels of the ended tasks that did not succeed, or with ``full`` of all ended ones."""
    for task in job_details.all_tasks(tx, job_id):
        if task.state in FINAL and (full or task.state != TaskState.SUCCEEDED):
            yield task.label
