"""Passes of a sweep over runs and bots: runs that are lost or slow, bots that send no heartbeats."""

from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import Evidence, TaskResult, TaskRun
from myrmidon.scheduler.bot_end import mark_bot_dead
from myrmidon.scheduler.outages import resumed_at
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
    known_not_started,
    lease_end,
    may_have_started,
    start_deadline,
)
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import new_task_to_run
from myrmidon.scheduler.run_end import end_lost_runs
from myrmidon.scheduler.sweep_effects import BATCH, PassEffects
from myrmidon.scheduler.unit_of_work import UnitOfWork, live
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_run, task_to_run
from myrmidon.store.tables import value as values


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
