"""Hold tasks that have not started, and release them: one by one, or all tasks of a job chunk by chunk."""

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import JOB_FINAL, JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work
from myrmidon.store.tables.chunked_work import ChunkedWork
from myrmidon.store.tables.job import Job


def hold(tx: Tx, task_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> TaskResult:
    """Keep a task that has not started from starting. Idempotent."""
    uow = UnitOfWork(tx, now, ids, rules)
    task = _lock_task(uow, task_id)
    if task.held:
        return task
    if task.state not in (TaskState.WAITING, TaskState.READY):
        raise WrongState(
            f"only a task that has not started can be held, and this one is {task.state}; cancel it if it runs"
        )
    job = uow.job_of(task)
    if job is not None and job.state in JOB_FINAL:
        raise WrongState(f"the job of the task has ended ({job.state}), and starts no task; hold it after a rerun")
    _hold(uow, task)
    propagate(uow)
    return task


def _hold(uow: UnitOfWork, task: TaskResult) -> None:
    if task.state == TaskState.READY:
        uow.move(task, TaskState.WAITING, "held")
    uow.hold(task, held=True)


def release(tx: Tx, task_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> TaskResult:
    """Release a held task; it becomes ready if its parents allow it. Idempotent."""
    uow = UnitOfWork(tx, now, ids, rules)
    task = _lock_task(uow, task_id)
    if not task.held:
        return task
    uow.hold(task, held=False)
    job = uow.job_of(task)
    if task.satisfied and (job is None or job.state != JobState.PENDING_RETRY):
        make_ready(uow, [task])
    propagate(uow)
    return task


def hold_job(tx: Tx, job_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Job:
    """Start holding all tasks of a running job that have not started."""
    return _start(UnitOfWork(tx, now, ids, rules), job_id, chunked_work.HOLD)


def release_job(tx: Tx, job_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Job:
    """Start releasing all held tasks of a running job."""
    return _start(UnitOfWork(tx, now, ids, rules), job_id, chunked_work.RELEASE)


def _start(uow: UnitOfWork, job_id: int, kind: str) -> Job:
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged:
        raise NotFound("job", show_task(job_id))
    if job.state != JobState.RUNNING:
        raise WrongState(f"only tasks of a running job can be held or released; this one is {job.state}")
    uow.start_chunked_work(kind, job.id, job=job)
    propagate(uow)
    return job


def hold_page(uow: UnitOfWork, _work: ChunkedWork, page: list[TaskResult]) -> None:
    """Hold the next tasks of a job, except those that have started."""
    uow.load_requests(task.id for task in page)
    for task in page:
        if not task.held and task.state in (TaskState.WAITING, TaskState.READY):
            _hold(uow, task)


def release_page(uow: UnitOfWork, _work: ChunkedWork, page: list[TaskResult]) -> None:
    """Release the next tasks of a job; those whose parents allow it become ready."""
    held = [task for task in page if task.held]
    for task in held:
        uow.hold(task, held=False)
    make_ready(uow, [task for task in held if task.satisfied])


def _lock_task(uow: UnitOfWork, task_id: int) -> TaskResult:
    task = uow.lock([task_id]).get(task_id)
    if task is None or uow.is_staged(task):
        raise NotFound("task", show_task(task_id))
    return task
