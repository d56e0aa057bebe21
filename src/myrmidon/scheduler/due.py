"""What is due: runs that are lost or slow, silent bots, expired slices, deadlines, retries of jobs and retention.

Each function is one step of maintenance.py: it reads up to BATCH rows that an index says are due, checks them again
under locks, and handles them. Two servers may do so at the same time, and a heartbeat that was stored first wins.
"""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.states import JobState, RunState, TaskState
from myrmidon.model.task_result import Evidence, TaskResult, TaskRun
from myrmidon.scheduler.bot_end import mark_bot_dead
from myrmidon.scheduler.outages import is_away, keeps_old, resumed_at
from myrmidon.scheduler.policy import known_not_started, lease_end, may_have_started, start_deadline
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready, new_task_to_run
from myrmidon.scheduler.rerun import retry_job
from myrmidon.scheduler.retention import begin_deletion, delete_tasks
from myrmidon.scheduler.run_end import end_lost_runs, grant_again
from myrmidon.scheduler.unit_of_work import UnitOfWork, live
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import task_queues, task_result, task_run, task_to_run
from myrmidon.store.tables import value as values

BATCH = 100


class Handled(Struct, frozen=True):
    """How many rows a step has handled, and how late it has detected what: lost runs, and waits that were too long."""

    n: int = 0
    delays: list[tuple[str, Micros]] = []


# ---------------------------------------------------------------- runs


def handle_due_runs(uow: UnitOfWork) -> Handled:
    """Handle runs that were never started, exceeded their soft timeout, or whose bot sends no heartbeats.

    While the end of an outage is not recorded, missing heartbeats prove nothing.
    """
    tx, now = uow.tx, uow.now
    due = set(task_run.due(tx, now, BATCH))
    if not due or is_away(tx, now, uow.rules):
        return Handled()
    tasks = uow.lock(task_id for task_id, _ in due)
    uow.load_requests(tasks)
    runs = [run for run in task_run.read(tx, sorted(tasks)) if run.live] if tasks else []
    due_runs = [run for run in runs if (run.task_id, run.run) in due and (run.due_at or now + 1) <= now]
    locked_bots = bots.lock_many(tx, sorted({run.bot_id for run in due_runs}), skip_locked=uow.skip_locked)
    if uow.skip_locked:
        due_runs = [run for run in due_runs if run.bot_id in locked_bots]
    resumed = resumed_at(tx)
    delays: list[tuple[str, Micros]] = []
    lost: dict[str, list[TaskRun]] = {}
    for run in due_runs:
        heartbeat = locked_bots[run.bot_id].heartbeat if run.bot_id in locked_bots else 0
        if not _keep_run(uow, tasks[run.task_id], run, heartbeat=heartbeat, resumed_at=resumed, runs=runs):
            lost.setdefault(run.bot_id, []).append(run)
    for bot_id, lost_runs in sorted(lost.items()):
        bot = locked_bots.get(bot_id)
        evidence = Evidence(last_heartbeat=bot.heartbeat if bot else None, boot_id=bot.boot_id if bot else "")
        heartbeat = bot.heartbeat if bot else 0
        delays += [_silence(run, heartbeat, now) for run in lost_runs]
        not_started = {run.task_id for run in lost_runs if known_not_started(run, heartbeat, uow.rules)}
        end_lost_runs(uow, lost_runs, runs, why="bot_lost", evidence=evidence, not_started=not_started)
    propagate(uow)
    return Handled(len(due_runs), delays)


def _silence(run: TaskRun, heartbeat: Micros, now: Micros) -> tuple[str, Micros]:
    """Why a run is lost, and the time since its last sign: the claim, the start or a heartbeat."""
    if run.started_at is None:
        return "not_started", now - run.claimed_at
    return "bot_lost", now - max(run.started_at, heartbeat)


def _keep_run(
    uow: UnitOfWork, task: TaskResult, run: TaskRun, *, heartbeat: Micros, resumed_at: Micros, runs: list[TaskRun]
) -> bool:
    """Set the next due time of a run; False if it is lost. May grant another instance after the soft timeout."""
    if run.started_at is None:
        end = start_deadline(run, resumed_at, uow.rules.start_within)
        not_started = known_not_started(run, heartbeat, uow.rules)
        if may_have_started(run, retries=uow.requests[task.id].retries, not_started=not_started):
            end = max(
                end, lease_end(run, heartbeat, resumed_at)
            )  # it may have started, and the bot may still report its end
        run.due_at = end
    else:
        end = lease_end(run, heartbeat, resumed_at)
        if end > uow.now and run.soft_at is not None and run.soft_at <= uow.now:
            run.soft_at = None
            _grant_instance(uow, task, run, runs)
        run.due_at = min(end, run.soft_at) if run.soft_at is not None else end
    if end <= uow.now:
        return False
    uow.touch_run(run)
    return True


def _grant_instance(uow: UnitOfWork, task: TaskResult, run: TaskRun, runs: list[TaskRun]) -> None:
    """Let another bot run the task too, because this run exceeded its soft timeout."""
    request = uow.requests[task.id]
    granted = uow.enqueues(task) or task_to_run.of_tasks(uow.tx, [task.id])
    if task.killing or task.state != TaskState.RUNNING or granted:
        return
    if run.generation != task.generation:
        return  # the task waits again when its runs have ended
    if len(live(runs, task)) >= request.max_num_instances:
        return
    instance = 1 + max(r.instance for r in live(runs, task))
    shared = task.id in values.reads_shared(uow.tx, [task.id])
    uow.enqueue(new_task_to_run(uow, task, instance, shared=shared, avoid_bot=run.bot_id))
    uow.touch(task)


# ---------------------------------------------------------------- bots


def handle_silent_bots(uow: UnitOfWork) -> Handled:
    """Mark bots dead that have sent no heartbeat for too long; not shortly after an outage of the service."""
    tx, now, dead_after = uow.tx, uow.now, uow.rules.dead_after
    if resumed_at(tx) + dead_after > now or is_away(tx, now, uow.rules):
        return Handled()
    due = bots.due(tx, now, BATCH)
    postponed = bots.postpone_checks(tx, sorted(due), now=now, dead_after=dead_after) if due else 0
    if postponed:
        return Handled(postponed)  # each dead bot takes its own transaction: pools must be locked before bots
    for bot_id in due[:1]:
        mark_bot_dead(uow, bot_id)
    return Handled(len(due[:1]))


# ---------------------------------------------------------------- slices


def handle_expired_slices(uow: UnitOfWork) -> Handled:
    """Move tasks whose slice has expired to their next slice, or end them."""
    tx, now = uow.tx, uow.now
    tasks = uow.lock(task_to_run.expired(tx, now, BATCH))
    if not tasks:
        return Handled()
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
    _expire_or_move(uow, moving)
    delays = [(_wait_outcome(tasks[task_id]), delay) for task_id, delay in late.items()]
    propagate(uow)
    return Handled(len(rows), delays)


def _expire_instance(uow: UnitOfWork, task: TaskResult) -> None:
    """Withdraw the right to start a further instance, which no bot has used; the soft timeout begins again."""
    uow.unqueue(task)
    grant_again(uow, task, live(task_run.read(uow.tx, [task.id]), task))


def _wait_outcome(task: TaskResult) -> str:
    return "next_slice" if task.state == TaskState.READY else "expired"


def _expire_or_move(uow: UnitOfWork, moving: list[TaskResult]) -> None:
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


# ---------------------------------------------------------------- tasks and jobs

_JOBS = 10
"""Due jobs that one step handles: a retry resets up to CHUNK tasks at once."""


def handle_due_tasks(uow: UnitOfWork) -> Handled:
    """End tasks past their deadline, and delete tasks without a job past their retention."""
    tx, now = uow.tx, uow.now
    keep_old = keeps_old(tx, now, uow.rules)
    due = task_result.due_unfinished(tx, now, BATCH) if keep_old else task_result.due(tx, now, BATCH)
    tasks = {i: t for i, t in uow.lock(due).items() if t.due_at is not None and t.due_at <= now}
    old = [task.id for task in tasks.values() if task.final and not keep_old]
    ending = {task.id: task.due_at or now for task in tasks.values() if not task.final}
    for task_id in ending:
        _end_at_deadline(uow, tasks[task_id])
    delays = [("deadline", now - at) for task_id, at in ending.items() if tasks[task_id].final]
    propagate(uow)
    delete_tasks(uow, old)
    return Handled(len(tasks), delays)


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


def handle_due_jobs(uow: UnitOfWork) -> Handled:
    """Retry jobs, begin to delete staged jobs that were never completed, and jobs past their retention."""
    tx, now = uow.tx, uow.now
    keep_old = keeps_old(tx, now, uow.rules)
    uow.lock_jobs(jobs.due_unfinished(tx, now, _JOBS) if keep_old else jobs.due(tx, now, _JOBS))
    due = [job for job in uow.jobs.values() if job.due_at is not None and job.due_at <= now]
    for job in due:
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
    return Handled(len(due))
