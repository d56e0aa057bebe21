"""Passes of a sweep over tasks and jobs: slices that expire, deadlines, job retries and retention."""

from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import JobState, RunState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
)
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.rerun import retry_job
from myrmidon.scheduler.retention import begin_deletion, delete_tasks
from myrmidon.scheduler.run_end import grant_again
from myrmidon.scheduler.sweep_effects import BATCH, PassEffects
from myrmidon.scheduler.unit_of_work import UnitOfWork, live
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import task_queues, task_result, task_run, task_to_run


def sweep_slices(
    tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, effects: PassEffects | None = None
) -> int:
    """Process slices that have expired: move the task to its next slice, or end it."""
    due = task_to_run.expired(tx, now, BATCH)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = uow.lock(due)
    uow.load_requests(tasks)
    rows = [row for row in task_to_run.of_tasks(tx, sorted(tasks)) if row.expires_at <= now]
    late = {row.task_id: now - row.expires_at for row in rows if row.instance == 0}
    moving = []
    for row in rows:
        task = tasks[row.task_id]
        if row.instance > 0:
            _expire_instance(uow, task)
        elif row.slice + 1 < len(uow.slices[task.id]) and not task.num_retries:
            task.current_task_slice = row.slice + 1
            moving.append(task)
        else:
            uow.move(task, TaskState.BOT_DIED if task.num_retries else TaskState.EXPIRED, "expired")
    expired = _expire_or_move(uow, moving)
    if effects is not None:
        effects.late += [(_wait_outcome(tasks[task_id]), delay) for task_id, delay in late.items()]
    propagate(uow)
    return len(rows) + expired - len(moving)


def _expire_instance(uow: UnitOfWork, task: TaskResult) -> None:
    """Withdraw the right to start a further instance, which no bot has used; the soft timeout begins again."""
    uow.unqueue(task)
    grant_again(uow, task, live(task_run.read(uow.tx, [task.id]), task))


def _wait_outcome(task: TaskResult) -> str:
    return "next_slice" if task.state == TaskState.READY else "expired"


def _expire_or_move(uow: UnitOfWork, moving: list[TaskResult]) -> int:
    """Move tasks to their next slice that can run; those without one expire."""
    waits = {s.queue for t in moving for s in uow.slices[t.id][t.current_task_slice :] if not s.wait_for_capacity}
    served = task_queues.served(uow.tx, waits)
    movable = []
    for task in moving:
        rest = uow.slices[task.id][task.current_task_slice :]
        if any(task_slice.wait_for_capacity or task_slice.queue in served for task_slice in rest):
            movable.append(task)
        else:
            uow.move(task, TaskState.EXPIRED, "expired")
    make_ready(uow, movable)
    return len(moving)


# ---------------------------------------------------------------- tasks and jobs


def sweep_tasks(
    tx: Tx,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    deleted: list[int] | None = None,
    effects: PassEffects | None = None,
    keep_old: bool = False,
) -> int:
    """End tasks past their deadline, and delete tasks without a job past their retention unless ``keep_old``."""
    due = task_result.due_unfinished(tx, now, BATCH) if keep_old else task_result.due(tx, now, BATCH)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = {i: t for i, t in uow.lock(due).items() if t.due_at is not None and t.due_at <= now}
    old = [task.id for task in tasks.values() if task.final and not keep_old]
    ending = {task.id: task.due_at or now for task in tasks.values() if not task.final}
    for task_id in ending:
        _end_at_deadline(uow, tasks[task_id])
    if effects is not None:
        effects.late += [("deadline", now - at) for task_id, at in ending.items() if tasks[task_id].final]
    propagate(uow)
    delete_tasks(uow, old)
    if deleted is not None:
        deleted += old
    return len(tasks)


def _end_at_deadline(uow: UnitOfWork, task: TaskResult) -> None:
    """End a task at its deadline: EXPIRED if it waited, TIMED_OUT if it ran; the next reply to its bot says stop."""
    job = uow.job_of(task)
    if job is not None and job.staged:
        task_result.postpone(uow.tx, task.id, uow.now + uow.rules.staging_limit)
        return
    if task.state != TaskState.RUNNING:
        retry = task.num_retries and task.state == TaskState.READY
        uow.move(task, TaskState.BOT_DIED if retry else TaskState.EXPIRED, "deadline")
        return
    state = TaskState.KILLED if task.killing else TaskState.TIMED_OUT
    for run in task_run.read(uow.tx, [task.id]):
        if run.live:
            uow.end_run(run, RunState(state), "deadline")
    uow.move(task, state, "deadline")


def sweep_jobs(tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, keep_old: bool = False) -> int:
    """Retry jobs, delete staged jobs that were never completed and, unless ``keep_old``, jobs past their retention."""
    due = jobs.due_unfinished(tx, now, 10) if keep_old else jobs.due(tx, now, 10)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs(due)
    for job in list(uow.jobs.values()):
        if job.due_at is None or job.due_at > now:
            continue
        ended = job.state not in (JobState.RUNNING, JobState.PENDING_RETRY)
        if job.staged or (ended and not keep_old):
            begin_deletion(uow, job)
        elif ended:
            continue
        elif job.state == JobState.PENDING_RETRY:
            retry_job(uow, job)
        else:
            job.due_at = None
    propagate(uow)
    return len(due)
