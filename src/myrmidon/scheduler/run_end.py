"""What the end of a run means for its task."""

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

from msgspec import MsgspecError, Struct, json

from myrmidon.model.ids import Micros
from myrmidon.model.states import READY, SUCCEEDED, WAITING, JobState, RunState
from myrmidon.model.task_result import Evidence, TaskResult, TaskRun
from myrmidon.scheduler.policy import (
    PARENT_RERUN,
    Verdict,
    judge_lost,
    judge_outdated,
    judge_unstarted,
    may_have_started,
)
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork, live
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_result, task_run

HOUR: Micros = 3_600_000_000
MAX_UNCOUNTED_LOSSES = 2
"""How often runs of a task may be lost before their start was reported without counting as retries."""
_NOT_STARTED = "not_started"
SUPERSEDED = "superseded"
"""The reason of a run whose result does not count, because another one has won or the task waits again."""


class _Price(Struct, frozen=True):
    """What the state of a bot says about its price."""

    cost_usd_hour: float | None = None


def apply_verdict(uow: UnitOfWork, task: TaskResult, run: TaskRun, verdict: Verdict, others: Sequence[TaskRun]) -> bool:
    """Apply the verdict on an ended run to its task; True when the task must be made ready again.

    While other instances of the task are running, only a success ends the task: the other instances are then
    ended as superseded. A run of an earlier generation decides nothing.
    """
    if run.generation != task.generation:
        verdict = judge_outdated(task)
    if others and (task.killing or verdict.state != SUCCEEDED):
        _show_run(uow, task, others[-1])
        if verdict.is_loss:
            grant_again(uow, task, others)
        return False
    for other in others:
        uow.end_run(other, RunState.CANCELLED, SUPERSEDED)
    _show_run(uow, task, run)
    if verdict.state == READY:
        task.num_retries += int(verdict.retried)
        task.num_reruns += int(verdict.rerun)
        task.reason = verdict.reason
        uow.unqueue(task)
        return True
    if verdict.state == WAITING:
        return _wait_again(uow, task)
    if verdict.state == SUCCEEDED:
        task.instance_id = run.run
    uow.move(task, verdict.state, verdict.reason)
    return False


def _wait_again(uow: UnitOfWork, task: TaskResult) -> bool:
    """Let a task wait for its parents in the generation that began while it was running; True if they have ended."""
    uow.move(task, WAITING, PARENT_RERUN)
    task.killing = 0
    task.current_task_slice = 0
    task.bot_id = None
    task.started_at = task.abandoned_at = None
    job = uow.job_of(task)
    return task.satisfied and job is not None and job.state == JobState.RUNNING


def _show_run(uow: UnitOfWork, task: TaskResult, run: TaskRun) -> None:
    """Let the task show the bot and the start of this run: of several instances the last claimed one was shown."""
    if (task.bot_id, task.started_at) != (run.bot_id, run.claimed_at):
        task.bot_id, task.started_at = run.bot_id, run.claimed_at
        uow.touch(task)


def grant_again(uow: UnitOfWork, task: TaskResult, runs: Sequence[TaskRun]) -> None:
    """Start the soft timeout of a live run again, because the instance that it granted was lost or withdrawn."""
    timeout = uow.run_policy(task.id).timeout
    started = [run for run in runs if run.started_at is not None]
    if timeout is None or not started or any(run.soft_at is not None for run in started):
        return
    run = started[-1]
    run.soft_at = uow.now + timeout
    run.due_at = min(run.due_at or run.soft_at, run.soft_at)
    uow.touch_run(run)


def end_lost_runs(
    uow: UnitOfWork,
    lost: Sequence[TaskRun],
    runs: Sequence[TaskRun],
    *,
    why: str,
    evidence: Evidence,
    begun: Collection[int] = (),
    not_started: Collection[int] = (),
) -> None:
    """End live runs of locked tasks whose bot was lost; a run that had not started does not count as a retry.

    A bot reports the start of a command only if the command runs longer than a moment. A task that crashes its bot at
    once would otherwise be tried for ever, so a loss counts if the task is in ``begun`` (the bot recorded its start) or
    if its runs were lost too often before. Tasks in ``not_started`` are known not to have started.
    """
    if not lost:
        return
    begun = {*begun, *_lost_too_often(uow, lost)}
    tasks = task_result.read(uow.tx, sorted({run.task_id for run in lost}))
    uow.load_requests(tasks)
    _add_costs(uow, lost, until=evidence.last_heartbeat or uow.now)
    requeued, avoid = [], {}
    for run in lost:
        task = tasks[run.task_id]
        run.evidence = json.encode(evidence).decode()
        retries = uow.requests[task.id].retries
        counts = run.task_id in begun or may_have_started(run, retries=retries, not_started=run.task_id in not_started)
        verdict = judge_lost(task, why, retries=retries) if counts else judge_unstarted(task)
        uow.end_run(run, RunState.KILLED if task.killing else RunState.BOT_DIED, why if counts else _NOT_STARTED)
        others = [other for other in live(runs, task) if other is not run]
        if apply_verdict(uow, task, run, verdict, others):
            requeued.append(task)
            if counts:
                avoid[task.id] = run.bot_id
    make_ready(uow, requeued, avoid=avoid)


def _add_costs(uow: UnitOfWork, lost: Sequence[TaskRun], *, until: Micros) -> None:
    """Compute what lost runs have cost, because their bot, which reports costs, cannot do that any more.

    Runs of one bot share its price.
    """
    started = [run for run in lost if run.started_at is not None]
    for bot in bots.read_many(uow.tx, sorted({run.bot_id for run in started})):
        with suppress(MsgspecError):  # hooks may have written anything into the state
            price = json.decode(bot.state, type=_Price).cost_usd_hour or 0.0
            runs = [run for run in started if run.bot_id == bot.id]
            for run in runs:
                hours = max(0, until - (run.started_at or until)) / HOUR
                run.cost_usd = max(run.cost_usd, price * hours / len(runs))


def _lost_too_often(uow: UnitOfWork, lost: Sequence[TaskRun]) -> set[int]:
    """The tasks whose uncounted losses have reached the limit."""
    seen = sorted({run.task_id for run in lost if run.started_at is None and run.run > MAX_UNCOUNTED_LOSSES})
    earlier = task_run.read(uow.tx, seen) if seen else []
    uncounted = Counter(run.task_id for run in earlier if run.reason == _NOT_STARTED)
    return {task_id for task_id, count in uncounted.items() if count >= MAX_UNCOUNTED_LOSSES}
