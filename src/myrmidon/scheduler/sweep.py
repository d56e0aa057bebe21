"""Sweep: everything that becomes due by time, such as expiry, lost runs, dead bots, retries and retention.

Each pass reads only the rows that an index says are due, and checks them again under locks: two servers may sweep at
the same time, and a heartbeat that was stored first wins.

An outage of the service must not count against bots, and a wrong clock must not delete anything: see outages.py.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import JobState, RunState, TaskState
from myrmidon.model.task_result import Evidence, TaskResult, TaskRun
from myrmidon.scheduler import chunked_work
from myrmidon.scheduler.bot_end import mark_bot_dead
from myrmidon.scheduler.outages import record_alive, resumed_at, retention_waits_until
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
    known_not_started,
    lease_end,
    may_have_started,
    may_sweep,
    start_deadline,
)
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready, new_task_to_run
from myrmidon.scheduler.rerun import retry_job
from myrmidon.scheduler.retention import begin_deletion, delete_tasks
from myrmidon.scheduler.run_end import end_lost_runs, grant_again
from myrmidon.scheduler.tag_counts import update_tag_counts
from myrmidon.scheduler.unit_of_work import UnitOfWork, live
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import (
    bot_event,
    outbox,
    request_key,
    shared_numbers,
    task_queues,
    task_request,
    task_result,
    task_run,
    task_to_run,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import value as values
from myrmidon.store.views import next_due
from myrmidon.store.views.next_due import NextDue

T = TypeVar("T")
_LOGS_SEEN = "logs_seen"
BATCH = 100
EVENT_BATCH = 250
"""Events numbered in one transaction; on SQLite other writers wait for it."""


class SweepResult(Struct):
    """What a sweep did: counts by pass, the queues that got tasks (``queues_to_wake``), and delays for metrics."""

    slices: int = 0
    runs: int = 0
    bots: int = 0
    tasks: int = 0
    jobs: int = 0
    chunks: int = 0
    events: int = 0
    old_rows: int = 0
    queues_to_wake: set[int] = set()
    late: list[tuple[str, Micros]] = []
    """Tasks whose waiting ended (expired, next_slice, deadline), with the detection lag."""
    lost: list[tuple[str, Micros]] = []
    """Runs that were declared lost (bot_lost, not_started), with the time since the last sign of them."""
    no_resource: int = 0
    """Tasks that ended because no bot could run them."""
    retention_waits_until: Micros | None = None
    """When old rows may be deleted again; None if they may be deleted now."""

    @property
    def changed_something(self) -> bool:
        """Whether tasks, jobs or bots have changed, so that waiting bots must check again."""
        return bool(self.slices or self.runs or self.bots or self.tasks or self.jobs or self.chunks)


def sweep(
    db: Db, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, log_db: Db | None = None
) -> SweepResult | None:
    """Run all passes, each in its own transactions; None if this server's clock differs from the database's."""
    if not may_sweep(now, db.clock(), rules):
        return None
    db.write(lambda tx: record_alive(tx, now, rules))
    done = SweepResult(retention_waits_until=db.read(lambda tx: retention_waits_until(tx, now, rules)))
    keep_old = done.retention_waits_until is not None
    deleted: list[int] = []
    passes: dict[str, Callable[..., int]] = {
        "runs": partial(sweep_runs, now=now, ids=ids, rules=rules),
        "bots": partial(sweep_bots, now=now, ids=ids, rules=rules),
        "slices": partial(sweep_slices, now=now, ids=ids, rules=rules),
        "tasks": partial(sweep_tasks, now=now, ids=ids, rules=rules, deleted=deleted, keep_old=keep_old),
        "jobs": partial(sweep_jobs, now=now, ids=ids, rules=rules, keep_old=keep_old),
    }
    read_due = next_due.first_without_old if keep_old else next_due.first
    due = db.read(read_due)
    for name, step in passes.items():
        due = _pass(db, step, due, done, name, now, read_due=read_due)
    if _is_due(due.drains, now):
        effects = PassEffects()
        done.chunks = run_chunked_work(
            db, now=now, ids=ids, rules=rules, deleted=deleted, queues_to_wake=done.queues_to_wake, effects=effects
        )
        done.no_resource += effects.no_resource
    done.events = _repeat(db, lambda tx: outbox.assign_positions(tx, EVENT_BATCH), EVENT_BATCH)
    if not keep_old and (
        _is_due(due.oldest_bot_event, now - rules.retention) or _is_due(due.oldest_queue, now - rules.queue_idle)
    ):
        done.old_rows = _repeat(db, lambda tx: delete_old(tx, now=now, rules=rules), BATCH)
    drop_logs(db, log_db or db, deleted)
    update_tag_counts(db, now=now, rules=rules)
    return done


def _pass(
    db: Db,
    step: Callable[..., int],
    due: NextDue,
    done: SweepResult,
    name: str,
    now: Micros,
    *,
    read_due: Callable[[Tx], NextDue],
) -> NextDue:
    """Repeat a pass while rows are due; returns what is due afterwards, since a pass may create work for the next."""
    while _is_due(getattr(due, name), now):
        n, effects = db.write(partial(_run_step, step=step, watched=name in _WATCHED))
        if not n:
            break
        setattr(done, name, getattr(done, name) + n)
        done.queues_to_wake |= effects.queues
        done.late += effects.late
        done.lost += effects.lost
        done.no_resource += effects.no_resource
        due = db.read(read_due)
    return due


class PassEffects(Struct):
    """What one transaction of a pass did, for metrics and for waking bots; used only after it is committed."""

    queues: set[int] = set()
    late: list[tuple[str, Micros]] = []
    lost: list[tuple[str, Micros]] = []
    no_resource: int = 0


_WATCHED = ("runs", "slices", "tasks")
"""The passes that record delays."""


def _run_step(tx: Tx, step: Callable[..., int], *, watched: bool) -> tuple[int, PassEffects]:
    effects = PassEffects()
    n = step(tx, effects=effects) if watched else step(tx)
    effects.queues = set(tx.effects.enqueued)
    effects.no_resource = count_no_resource(tx.effects.events)
    return n, effects


def count_no_resource(events: Iterable[tuple[Any, ...]]) -> int:
    """How many tasks ended as NO_RESOURCE, by the events that a transaction wrote."""
    return sum(1 for _, _, _, kind, state, _ in events if state == TaskState.NO_RESOURCE and kind == outbox.TASK)


def _is_due(alarm: Micros | None, now: Micros) -> bool:
    return alarm is not None and alarm <= now


def _repeat(db: Db, step: Callable[[Tx], int], limit: int) -> int:
    """Repeat a step until it processes fewer rows than its limit."""
    total = n = db.write(step)
    while n >= limit:
        n = db.write(step)
        total += n
    return total


def run_chunked_work(
    db: Db,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    deleted: list[int],
    queues_to_wake: set[int],
    effects: PassEffects | None = None,
) -> int:
    """Run all chunked work to completion; returns the number of chunks."""
    steps = 0
    effects = effects or PassEffects()
    while waiting := db.read(chunked_work.pending):
        for work in waiting:
            step = partial(chunked_work.run_chunk, work=work, now=now, ids=ids, rules=rules)
            (queues, removed), no_resource = db.write(partial(_run_chunk, step=step))
            queues_to_wake |= queues
            deleted += removed
            effects.no_resource += no_resource
            steps += 1
    return steps


def _run_chunk(tx: Tx, step: Callable[[Tx], T]) -> tuple[T, int]:
    return step(tx), count_no_resource(tx.effects.events)


def drop_logs(db: Db, log_db: Db, task_ids: Iterable[int]) -> int:
    """Delete the logs of deleted tasks; returns for how many tasks.

    Logs are in their own database, so they cannot be deleted in the transaction that deletes their task. A server may
    crash in between, and output may arrive later, so each sweep also checks a page of all logs, round robin.
    """
    last = db.read(lambda tx: shared_numbers.read(tx, _LOGS_SEEN)) or 0
    page = log_db.read(lambda tx: logs.tasks_after(tx, last, BATCH))
    candidates = {*task_ids, *page}
    deleted = (
        sorted(candidates - db.read(lambda tx: task_request.existing(tx, sorted(candidates)))) if candidates else []
    )
    if deleted:
        log_db.write(lambda tx: logs.delete(tx, deleted))
    seen = page[-1] if len(page) == BATCH else 0
    if seen != last:
        db.write(lambda tx: _save_logs_seen(tx, seen))
    return len(deleted)


def _save_logs_seen(tx: Tx, task_id: int) -> None:
    shared_numbers.lock(tx, _LOGS_SEEN)
    shared_numbers.put(tx, _LOGS_SEEN, task_id)


# ---------------------------------------------------------------- runs


def sweep_runs(
    tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, effects: PassEffects | None = None
) -> int:
    """Process runs that were never started, exceeded their soft timeout, or whose bot sends no heartbeats."""
    due = task_run.due(tx, now, BATCH)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = uow.lock(task_id for task_id, _ in due)
    uow.load_requests(tasks)
    runs = [run for run in task_run.read(tx, sorted(tasks)) if run.live]
    due_runs = [run for run in runs if (run.task_id, run.run) in set(due) and (run.due_at or now + 1) <= now]
    locked_bots = bots.lock_many(tx, sorted({run.bot_id for run in due_runs}))
    resumed = resumed_at(tx)
    lost: dict[str, list[TaskRun]] = {}
    for run in due_runs:
        heartbeat = locked_bots[run.bot_id].heartbeat if run.bot_id in locked_bots else 0
        if not _keep_run(uow, tasks[run.task_id], run, heartbeat=heartbeat, resumed_at=resumed, runs=runs):
            lost.setdefault(run.bot_id, []).append(run)
    for bot_id, lost_runs in sorted(lost.items()):
        bot = locked_bots.get(bot_id)
        evidence = Evidence(last_heartbeat=bot.heartbeat if bot else None, boot_id=bot.boot_id if bot else "")
        if effects is not None:
            effects.lost += [_silence(run, bot.heartbeat if bot else 0, now) for run in lost_runs]
        not_started = {run.task_id for run in lost_runs if known_not_started(run, bot.heartbeat if bot else 0, rules)}
        end_lost_runs(uow, lost_runs, runs, why="bot_lost", evidence=evidence, not_started=not_started)
    propagate(uow)
    return len(due_runs)


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


def sweep_bots(tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> int:
    """Mark bots dead that have sent no heartbeat for too long; not shortly after an outage of the service."""
    if resumed_at(tx) + rules.dead_after > now:
        return 0
    due = bots.due(tx, now, BATCH)
    postponed = bots.postpone_checks(tx, sorted(due), now=now, dead_after=rules.dead_after) if due else 0
    if postponed:
        return postponed  # each dead bot takes its own transaction: pools must be locked before bots
    for bot_id in due[:1]:
        mark_bot_dead(UnitOfWork(tx, now, ids, rules), bot_id)
    return len(due[:1])


# ---------------------------------------------------------------- waiting


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


def delete_old(tx: Tx, *, now: Micros, rules: Rules = DEFAULT_RULES) -> int:
    """Delete old bot events, idle queues and old request keys."""
    request_key.delete_old(tx, before=now - rules.keep_keys)
    old = bot_event.delete_old(tx, before=now - rules.retention, n=BATCH)
    return old + task_queues.delete_idle(tx, before=now - rules.queue_idle, n=BATCH)
