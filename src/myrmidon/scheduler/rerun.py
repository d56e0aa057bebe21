"""Running again: a task by hand, or what failed of a job by its retries.

Each time is a new generation of the task: its runs go on counting, its result
counts anew. Holding and releasing a node are here too, being the other way to
say when a task may run.
"""

from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct, json

from myrmidon.model.errors import Conflict, NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, next_run_number, show_task
from myrmidon.model.states import JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.new_tasks import open_group
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import cancel_or_kill, propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, edge, shared_value, task_request, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork
from myrmidon.store.tables.job import Job


class Rerun(Struct, frozen=True):
    """The answer to a rerun: the task's state now, and whether this call has changed it."""

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

    ``force`` is needed for one that succeeded, or whose parents did not. With
    ``cascade`` everything behind it waits again for the new result; what is
    running there goes on, unless ``kill`` stops it.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    task = uow.lock([task_id]).get(task_id)
    if task is None or uow.is_staged(task):
        raise NotFound("task", show_task(task_id))
    if task_request.terminate_tasks(tx, [task_id]):
        raise WrongState("the task told a bot to end, and is not run again; terminate the bot anew")
    if task.state in (TaskState.READY, TaskState.RUNNING):
        return Rerun(task_id, task.state, changed=False)
    _check_rerunnable(uow, task, force=force)
    reopen_job(uow, task)
    if cascade:
        _reset_descendants(uow, task, kill=kill)
    _start_generation(uow, task, "rerun")
    task.forced = int(not _parents_satisfied(task))
    uow.flush()
    unblock_job(uow, uow.job_of(task))
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
    """As rerun, but the same request key runs the task again only once, however often it is said; the task as it is."""
    request = task_request.read(tx, [task_id]).get(task_id)
    if request is None:
        raise NotFound("task", show_task(task_id))
    group_id = request.resource_group_id
    key = f"rerun:{sha256(request_key.encode()).hexdigest()}"
    asked = sha256(f"{task_id} {force} {cascade}".encode()).hexdigest()
    if request_keys.insert(tx, [(group_id, key, asked, task_id, now)]):
        rerun(tx, task_id, now=now, ids=ids, force=force, cascade=cascade, rules=rules)
    elif request_keys.read(tx, group_id, [key])[key] != (asked, task_id):
        raise Conflict("the request key was used for another rerun")
    return task_result.read(tx, [task_id])[task_id]


def _check_rerunnable(uow: UnitOfWork, task: TaskResult, *, force: bool) -> None:
    open_group(uow, task.resource_group_id)
    uow.load_requests([task.id])
    job = uow.job_of(task)
    if job and job.state in (JobState.CANCELLED, JobState.PENDING_RETRY):
        raise WrongState(f"the job is {job.state}; its tasks cannot be run again by hand")
    if job and job.num_draining:
        raise WrongState("the job is still dealing with an earlier decision; try again in a moment")
    if uow.requests[task.id].deadline_at <= uow.now:
        raise WrongState("the deadline of the task has passed; submit it anew")
    if next_run_number(task.run_number) is None:
        raise WrongState("the task has used up its run numbers; submit it anew")
    if not force and task.state == TaskState.SUCCEEDED:
        raise WrongState("the task has succeeded; say force to run it again all the same")
    if not force and not _parents_satisfied(task):
        raise WrongState("the task's parents have not succeeded; say force to run it without them")
    if values.lacks_input(uow.tx, task.id):
        raise WrongState("the task reads what its parents have not produced; run those again first")


def _parents_satisfied(task: TaskResult) -> bool:
    """Whether its parents let it run, leaving aside that somebody had forced it before."""
    return task.num_succeeded_parents >= task.num_parents


def _start_generation(uow: UnitOfWork, task: TaskResult, reason: str) -> None:
    """Begin a new generation: what the last one came to no longer counts."""
    if task.final:
        uow.move(task, TaskState.WAITING, reason, new_generation=True)
    elif task.state == TaskState.READY:
        uow.move(task, TaskState.WAITING, reason)
    uow.hold(task, held=False)
    task.forced = 0
    task.num_retries = 0
    task.killing = 0
    task.instance_id = None
    task.current_task_slice = 0
    task.bot_id = None
    task.deduped_from = task.deduped_run = task.cost_saved_usd = None
    task.started_at = task.completed_at = task.abandoned_at = None
    task.alarm_at = uow.requests[task.id].deadline_at


def reopen_job(uow: UnitOfWork, task: TaskResult) -> None:
    """Let a job that has ended go on for a task, and for whatever else has come to wait for nothing meanwhile."""
    job = uow.job_of(task)
    if job is None or job.state == JobState.RUNNING:
        return
    uow.move_job(job, JobState.RUNNING, "running")
    if task_result.waits_for_job(uow.tx, job.id, excluding=task.id):
        uow.start_chunked_work(chunked_work.START, job.id, job=job)


def unblock_job(uow: UnitOfWork, job: Job | None) -> None:
    """When nothing that failed is left, nothing blocks the job any more."""
    if job is not None and job.blocked_by is not None and job.num_failed == 0:
        job.blocked_by = None
        job.error = None
        jobs.add_event(uow.tx, job, "running", uow.now)


# ---------------------------------------------------------------- cascade


def _reset_descendants(uow: UnitOfWork, task: TaskResult, *, kill: bool) -> None:
    """Put everything behind a task back to waiting for it, with exact counters.

    What already waits or runs there will have another result, too: it may be a rerun whose last one still counts. So
    whatever lies behind waits for the new one, or it would wait for nothing and nobody would start it.
    """
    behind = _descendants(uow, task.id)
    tasks = task_result.lock(uow.tx, behind) if behind else {}
    uow.load_requests(tasks)
    waiting = []
    for other in tasks.values():
        if other.state == TaskState.RUNNING:
            other.forced = 1
            uow.touch(other)
            if kill:
                cancel_or_kill(uow, other, "rerun_of_parent")
        elif other.state != TaskState.WAITING:
            _start_generation(uow, other, "parent_rerun")
            waiting.append(other)
    again = [task.id, *(other.id for other in waiting)]
    uow.flush()
    _reopen_edges(uow, [task.id, *tasks])
    _erase_outputs(uow, again)
    for fresh in task_result.read(uow.tx, list(tasks)).values():
        tasks[fresh.id].num_succeeded_parents = fresh.num_succeeded_parents


def _descendants(uow: UnitOfWork, task_id: int) -> list[int]:
    found: set[int] = set()
    edge_of_search = [task_id]
    while edge_of_search:
        step = {child for _, child in edge.children(uow.tx, edge_of_search)} - found
        found |= step
        edge_of_search = sorted(step)
    return sorted(found)


def _reopen_edges(uow: UnitOfWork, parents: Sequence[int]) -> None:
    """These parents run again, so what they satisfied is open, and counted out of their children."""
    lost: dict[int, int] = {}
    for _, child in edge.completed_by(uow.tx, parents):
        lost[child] = lost.get(child, 0) + 1
    if not lost:
        return
    edge.reopen(uow.tx, parents)
    by_count: dict[int, list[int]] = {}
    for child, n in lost.items():
        by_count.setdefault(n, []).append(child)
    for n, children in sorted(by_count.items()):
        task_result.add_satisfied_parents(uow.tx, sorted(children), -n)


def _erase_outputs(uow: UnitOfWork, task_ids: Sequence[int]) -> None:
    """Take back what tasks have produced; shared values lose this job's reference."""
    found = values.outputs(uow.tx, task_ids)
    plain = [value_id for outputs in found.values() for kind, value_id, _, _ in outputs if kind == values.VALUE]
    if plain:
        values.erase(uow.tx, plain)
    for task_id, outputs in found.items():
        for position, (_, value_id, shared_id, _) in enumerate(outputs):
            if shared_id is not None:
                _unlink(uow, task_id, position, value_id=value_id, shared_id=shared_id)


def _unlink(uow: UnitOfWork, task_id: int, position: int, *, value_id: int, shared_id: int) -> None:
    job_id = task_result.jobs_of(uow.tx, [task_id]).get(task_id)
    shared_value.lock(uow.tx, [shared_id])
    values.link_output(uow.tx, task_id, position, None)
    values.link_consumers(uow.tx, task_id, value_id, None)
    if job_id is not None and not values.names_shared_value(uow.tx, job_id, shared_id):
        shared_value.unref_by_job(uow.tx, [shared_id], job_id)
        shared_value.delete_unreferenced(uow.tx, [shared_id])


# ---------------------------------------------------------------- jobs


class Reset(Struct, frozen=True):
    """How a job starts again: only what failed, or everything (``full``)."""

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
    """Run again what failed of an ended job, or with ``full`` all of it; a running job is left as it is."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged:
        raise NotFound("job", show_task(job_id))
    open_group(uow, job.resource_group_id)
    if job.state == JobState.CANCELLED:
        raise WrongState("the job was cancelled; submit it anew")
    if job.state == JobState.SUCCEEDED and not full:
        raise WrongState("the job has succeeded; say full to run all of it again")
    if job.num_draining and job.state != JobState.RUNNING:
        raise WrongState("the job is being deleted; submit it anew")
    if job.deadline_at <= now:
        raise WrongState("the deadline of the job has passed; submit it anew")
    if job.state != JobState.RUNNING:
        _begin_reset(uow, job, Reset(full=full))
        propagate(uow)
    return job


def retry_job(uow: UnitOfWork, job: Job) -> None:
    """Start again what failed of a locked job that waits for its retry."""
    job.num_retries += 1
    _begin_reset(uow, job, Reset(automatic=True))


def _begin_reset(uow: UnitOfWork, job: Job, reset: Reset) -> None:
    uow.move_job(job, JobState.RUNNING, "running")
    job.blocked_by = None
    job.error = None
    work = uow.start_chunked_work(chunked_work.RESET, job.id, job=job, args=json.encode(reset).decode())
    uow.started_work.remove(work)
    reset_job_chunk(uow, work)


def reset_job_chunk(uow: UnitOfWork, work: ChunkedWork) -> None:
    """Reset the next chunk of a job; when all are reset, those that nothing holds back are let go."""
    reset = json.decode(work.args, type=Reset)
    page = task_result.lock_of_job(uow.tx, work.subject, after=work.position, n=CHUNK)
    uow.load_requests(task.id for task in page)
    again = [task for task in page if task.final and (reset.full or task.state != TaskState.SUCCEEDED)]
    late = [task for task in again if uow.requests[task.id].deadline_at <= uow.now]
    again = [task for task in again if task not in late]
    for task in again:
        _start_generation(uow, task, "job_retry")
        task.num_reruns = 0
    uow.flush()
    _reopen_edges(uow, [task.id for task in again])
    if reset.full:
        _erase_outputs(uow, [task.id for task in again])
    if len(page) == CHUNK:
        work.position = page[-1].id
        chunked_work.advance(uow.tx, work)
        return
    uow.finish_chunked_work(work)
    job = uow.jobs[work.subject]
    uow.start_chunked_work(chunked_work.START, job.id, job=job)
