"""Hold tasks that have not started, and release them."""

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx


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
    if task.state == TaskState.READY:
        uow.move(task, TaskState.WAITING, "held")
    uow.hold(task, held=True)
    propagate(uow)
    return task


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


def _lock_task(uow: UnitOfWork, task_id: int) -> TaskResult:
    task = uow.lock([task_id]).get(task_id)
    if task is None or uow.is_staged(task):
        raise NotFound("task", show_task(task_id))
    return task
