"""Sweeping: what time alone brings about.

Each pass looks at the rows that an index of deadlines says are due, never at all
rows, and each is guarded by what it finds when it holds the locks: two servers
sweeping at once are harmless, and a heartbeat that came first wins.

A service that was away must not blame its bots. Every pass leaves a mark of life;
when the last one is too old, or lies in the future, every lease begins anew.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import JobState, RunState, TaskState
from myrmidon.model.task_result import Evidence, TaskResult, TaskRun
from myrmidon.scheduler import chunked_work
from myrmidon.scheduler.bots import mark_bot_dead
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
    known_not_started,
    lease_end,
    may_have_started,
    may_sweep,
    service_was_away,
    start_deadline,
)
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready, new_task_to_run
from myrmidon.scheduler.rerun import retry_job
from myrmidon.scheduler.retention import begin_deletion, delete_tasks
from myrmidon.scheduler.run_end import end_lost_runs
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
_LAST_ALIVE = "last_alive"
_RESUMED_AT = "resumed_at"
_LOGS_SEEN = "logs_seen"
BATCH = 100
EVENT_BATCH = 250
"""Events in one transaction: on SQLite, whoever wants to write waits for it."""


class SweepResult(Struct):
    """How much each pass has done."""

    slices: int = 0
    runs: int = 0
    bots: int = 0
    tasks: int = 0
    jobs: int = 0
    drains: int = 0
    events: int = 0
    forgotten: int = 0
    woken: set[int] = set()
    late: list[tuple[str, Micros]] = []
    """Waiting that came to its end (expired, next_slice, deadline), and how late that was noticed."""
    lost: list[tuple[str, Micros]] = []
    """Runs that were given up (bot_lost, not_started), and how long they had been silent."""
    no_resource: int = 0
    """Tasks that no bot could run."""


def sweep(
    db: Db, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, log_db: Db | None = None
) -> SweepResult | None:
    """All passes, each in transactions of its own; None when this server's clock cannot be trusted."""
    if not may_sweep(now, db.clock(), rules):
        return None
    db.write(lambda tx: record_alive(tx, now, rules))
    done = SweepResult()
    gone: list[int] = []
    passes: dict[str, Callable[..., int]] = {
        "runs": partial(sweep_runs, now=now, ids=ids, rules=rules),
        "bots": partial(sweep_bots, now=now, ids=ids, rules=rules),
        "slices": partial(sweep_slices, now=now, ids=ids, rules=rules),
        "tasks": partial(sweep_tasks, now=now, ids=ids, rules=rules, gone=gone),
        "jobs": partial(sweep_jobs, now=now, ids=ids, rules=rules),
    }
    due = db.read(next_due.first)
    for name, step in passes.items():
        due = _pass(db, step, due, done, name, now)
    if _is_due(due.drains, now):
        noted = PassEffects()
        done.drains = run_chunked_work(db, now=now, ids=ids, rules=rules, gone=gone, woken=done.woken, noted=noted)
        done.no_resource += noted.no_resource
    done.events = _repeat(db, lambda tx: outbox.assign_positions(tx, EVENT_BATCH), EVENT_BATCH)
    if _is_due(due.oldest_bot_event, now - rules.retention) or _is_due(due.oldest_queue, now - rules.queue_idle):
        done.forgotten = _repeat(db, lambda tx: delete_old(tx, now=now, rules=rules), BATCH)
    drop_logs(db, log_db or db, gone)
    update_tag_counts(db, now=now, rules=rules)
    return done


def _pass(db: Db, step: Callable[..., int], due: NextDue, done: SweepResult, name: str, now: Micros) -> NextDue:
    """Repeat a pass while its alarm rings; what is due afterwards, for it may have given the next ones work."""
    while _is_due(getattr(due, name), now):
        n, noted = db.write(partial(_run_step, step=step, watched=name in _WATCHED))
        if not n:
            break
        setattr(done, name, getattr(done, name) + n)
        done.woken |= noted.queues
        done.late += noted.late
        done.lost += noted.lost
        done.no_resource += noted.no_resource
        due = db.read(next_due.first)
    return due


class PassEffects(Struct):
    """What one step has brought about, for those who watch: it counts only once the step is committed.

    Queues that got work are among it: a bot may wait that does not know it serves one of them.
    """

    queues: set[int] = set()
    late: list[tuple[str, Micros]] = []
    lost: list[tuple[str, Micros]] = []
    no_resource: int = 0


_WATCHED = ("runs", "slices", "tasks")
"""The passes that tell how late they were."""


def _run_step(tx: Tx, step: Callable[..., int], *, watched: bool) -> tuple[int, PassEffects]:
    noted = PassEffects()
    n = step(tx, noted=noted) if watched else step(tx)
    noted.queues = set(tx.effects.enqueued)
    noted.no_resource = count_no_resource(tx.effects.events)
    return n, noted


def count_no_resource(told: Iterable[tuple[Any, ...]]) -> int:
    """How many tasks a transaction has given up for want of bots, by the events that it wrote."""
    return sum(1 for _, _, _, kind, state, _ in told if state == TaskState.NO_RESOURCE and kind == outbox.TASK)


def _is_due(alarm: Micros | None, now: Micros) -> bool:
    return alarm is not None and alarm <= now


def _repeat(db: Db, step: Callable[[Tx], int], most: int) -> int:
    """Repeat a step for as long as it finds all that it may do at once; fewer were the last ones."""
    total = n = db.write(step)
    while n >= most:
        n = db.write(step)
        total += n
    return total


def run_chunked_work(
    db: Db,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    gone: list[int],
    woken: set[int],
    noted: PassEffects | None = None,
) -> int:
    """Carry every work to its end."""
    steps = 0
    noted = noted or PassEffects()
    while waiting := db.read(chunked_work.pending):
        for work in waiting:
            step = partial(chunked_work.run_chunk, work=work, now=now, ids=ids, rules=rules)
            (queues, removed), given_up = db.write(partial(_run_chunk, step=step))
            woken |= queues
            gone += removed
            noted.no_resource += given_up
            steps += 1
    return steps


def _run_chunk(tx: Tx, step: Callable[[Tx], T]) -> tuple[T, int]:
    return step(tx), count_no_resource(tx.effects.events)


def drop_logs(db: Db, log_db: Db, gone: Iterable[int]) -> int:
    """Delete the logs of tasks that are no more; how many tasks' logs that were.

    Logs lie apart and cannot go in the transaction that removes their task. A
    server may die in between, and late bytes may come after, so each sweep looks
    at some more logs, in turn.
    """
    last = db.read(lambda tx: shared_numbers.read(tx, _LOGS_SEEN)) or 0
    page = log_db.read(lambda tx: logs.tasks_after(tx, last, BATCH))
    asked = {*gone, *page}
    lost = sorted(asked - db.read(lambda tx: task_request.existing(tx, sorted(asked)))) if asked else []
    if lost:
        log_db.write(lambda tx: logs.delete(tx, lost))
    seen = page[-1] if len(page) == BATCH else 0
    if seen != last:
        db.write(lambda tx: _save_logs_seen(tx, seen))
    return len(lost)


def _save_logs_seen(tx: Tx, task_id: int) -> None:
    shared_numbers.lock(tx, _LOGS_SEEN)
    shared_numbers.put(tx, _LOGS_SEEN, task_id)


# ---------------------------------------------------------------- life of the service


def record_alive(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> bool:
    """Leave a sign of life; True when the service was away, so that leases begin anew."""
    last = shared_numbers.lock(tx, _LAST_ALIVE)
    was_away = service_was_away(now, last, rules)
    if was_away:
        shared_numbers.lock(tx, _RESUMED_AT)
        shared_numbers.put(tx, _RESUMED_AT, now)
    if was_away or now > last:
        shared_numbers.put(tx, _LAST_ALIVE, now)
    return was_away


# ---------------------------------------------------------------- runs


def sweep_runs(
    tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, noted: PassEffects | None = None
) -> int:
    """Runs that were never started, have outlasted their soft timeout, or whose bot is silent."""
    due = task_run.due(tx, now, BATCH)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = uow.lock(task_id for task_id, _ in due)
    uow.load_requests(tasks)
    runs = [run for run in task_run.read(tx, sorted(tasks)) if run.live]
    looked = [run for run in runs if (run.task_id, run.run) in set(due) and (run.alarm_at or now + 1) <= now]
    heard = bots.lock_many(tx, sorted({run.bot_id for run in looked}))
    back = shared_numbers.read(tx, _RESUMED_AT) or 0
    lost: dict[str, list[TaskRun]] = {}
    for run in looked:
        heartbeat = heard[run.bot_id].heartbeat if run.bot_id in heard else 0
        if not _keep_run(uow, tasks[run.task_id], run, heartbeat=heartbeat, back=back, runs=runs):
            lost.setdefault(run.bot_id, []).append(run)
    for bot_id, its_runs in sorted(lost.items()):
        bot = heard.get(bot_id)
        proof = Evidence(last_heartbeat=bot.heartbeat if bot else None, boot_id=bot.boot_id if bot else "")
        if noted is not None:
            noted.lost += [_silence(run, bot.heartbeat if bot else 0, now) for run in its_runs]
        waited = {run.task_id for run in its_runs if known_not_started(run, bot.heartbeat if bot else 0, rules)}
        end_lost_runs(uow, its_runs, runs, why="bot_lost", evidence=proof, waited=waited)
    propagate(uow)
    return len(looked)


def _silence(run: TaskRun, heartbeat: Micros, now: Micros) -> tuple[str, Micros]:
    """Why a run is given up, and how long ago its bot was last heard of."""
    if run.started_at is None:
        return "not_started", now - run.claimed_at
    return "bot_lost", now - max(run.started_at, heartbeat)


def _keep_run(
    uow: UnitOfWork, task: TaskResult, run: TaskRun, *, heartbeat: Micros, back: Micros, runs: list[TaskRun]
) -> bool:
    """Set the run's next alarm, unless its time has come."""
    if run.started_at is None:
        end = start_deadline(run, back, uow.rules.start_within)
        waited = known_not_started(run, heartbeat, uow.rules)
        if may_have_started(run, retries=uow.requests[task.id].retries, waited=waited):
            end = max(end, lease_end(run, heartbeat, back))  # it may have begun, and the bot may come back with its end
        run.alarm_at = end
    else:
        end = lease_end(run, heartbeat, back)
        if end > uow.now and run.soft_at is not None and run.soft_at <= uow.now:
            run.soft_at = None
            _grant_instance(uow, task, run, runs)
        run.alarm_at = min(end, run.soft_at) if run.soft_at is not None else end
    if end <= uow.now:
        return False
    uow.touch_run(run)
    return True


def _grant_instance(uow: UnitOfWork, task: TaskResult, run: TaskRun, runs: list[TaskRun]) -> None:
    """A straggler: let another bot try the same task beside it."""
    request = uow.requests[task.id]
    granted = task_to_run.of_tasks(uow.tx, [task.id])
    if task.killing or task.state != TaskState.RUNNING or granted:
        return
    if len(live(runs, task)) >= request.max_num_instances:
        return
    instance = 1 + max(r.instance for r in live(runs, task))
    shared = task.id in values.reads_shared(uow.tx, [task.id])
    uow.enqueue(new_task_to_run(uow, task, instance, shared=shared, avoid_bot=run.bot_id))
    uow.touch(task)


# ---------------------------------------------------------------- bots


def sweep_bots(tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> int:
    """Bots that have not been heard of for too long; not for the time in which nobody listened."""
    back = shared_numbers.read(tx, _RESUMED_AT) or 0
    if back + rules.dead_after > now:
        return 0
    due = bots.due(tx, now, BATCH)
    heard = bots.postpone_checks(tx, sorted(due), now=now, dead_after=rules.dead_after) if due else 0
    if heard:
        return heard  # the silent ones come in a transaction of their own each: pools are locked before bots
    for bot_id in due[:1]:
        mark_bot_dead(UnitOfWork(tx, now, ids, rules), bot_id)
    return len(due[:1])


# ---------------------------------------------------------------- waiting


def sweep_slices(
    tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, noted: PassEffects | None = None
) -> int:
    """Slices that have waited long enough: on to the next one, or the end of the task."""
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
            uow.unqueue(task)
        elif row.slice + 1 < len(uow.slices[task.id]) and not task.num_retries:
            task.current_task_slice = row.slice + 1
            moving.append(task)
        else:
            uow.move(task, TaskState.BOT_DIED if task.num_retries else TaskState.EXPIRED, "expired")
    expired = _expire_or_move(uow, moving)
    if noted is not None:
        noted.late += [(_wait_outcome(tasks[task_id]), delay) for task_id, delay in late.items()]
    propagate(uow)
    return len(rows) + expired - len(moving)


def _wait_outcome(task: TaskResult) -> str:
    return "next_slice" if task.state == TaskState.READY else "expired"


def _expire_or_move(uow: UnitOfWork, moving: list[TaskResult]) -> int:
    """Fall back to the next slice that can run; none left means that the wait is over."""
    waits = {s.queue for t in moving for s in uow.slices[t.id][t.current_task_slice :] if not s.wait_for_capacity}
    served = task_queues.served(uow.tx, waits)
    able = []
    for task in moving:
        rest = uow.slices[task.id][task.current_task_slice :]
        if any(task_slice.wait_for_capacity or task_slice.queue in served for task_slice in rest):
            able.append(task)
        else:
            uow.move(task, TaskState.EXPIRED, "expired")
    make_ready(uow, able)
    return len(moving)


# ---------------------------------------------------------------- tasks and jobs


def sweep_tasks(
    tx: Tx,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    gone: list[int] | None = None,
    noted: PassEffects | None = None,
) -> int:
    """Tasks past their deadline end; lone tasks past their retention go."""
    due = task_result.due(tx, now, BATCH)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = {i: t for i, t in uow.lock(due).items() if t.alarm_at is not None and t.alarm_at <= now}
    old = [task.id for task in tasks.values() if task.final]
    ending = {task.id: task.alarm_at or now for task in tasks.values() if not task.final}
    for task_id in ending:
        _end_at_deadline(uow, tasks[task_id])
    if noted is not None:
        noted.late += [("deadline", now - at) for task_id, at in ending.items() if tasks[task_id].final]
    propagate(uow)
    delete_tasks(uow, old)
    if gone is not None:
        gone += old
    return len(tasks)


def _end_at_deadline(uow: UnitOfWork, task: TaskResult) -> None:
    """Nothing outlives its deadline. What waited has expired; what ran is out of time, and its bot is told so."""
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


def sweep_jobs(tx: Tx, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> int:
    """Jobs to retry, jobs whose retention is over, and staged jobs that never came."""
    due = jobs.due(tx, now, 10)
    if not due:
        return 0
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs(due)
    for job in list(uow.jobs.values()):
        if job.alarm_at is None or job.alarm_at > now:
            continue
        if job.staged or job.state not in (JobState.RUNNING, JobState.PENDING_RETRY):
            begin_deletion(uow, job)
        elif job.state == JobState.PENDING_RETRY:
            retry_job(uow, job)
        else:
            job.alarm_at = None
    propagate(uow)
    return len(due)


def delete_old(tx: Tx, *, now: Micros, rules: Rules = DEFAULT_RULES) -> int:
    """Old events of bots, queues that nobody uses any more, and request keys of what is about no task."""
    request_key.delete_old(tx, before=now - rules.keep_keys)
    old = bot_event.delete_old(tx, before=now - rules.retention, n=BATCH)
    return old + task_queues.delete_idle(tx, before=now - rules.queue_idle, n=BATCH)
