"""Hold tasks that have not started, and release them."""

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import settle
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.engine.db import Tx


def hold(tx: Tx, task_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> TaskResult:
    """Keep a task that has not started from starting."""
    turn = Turn(tx, now, ids, rules)
    task = _lock_task(turn, task_id)
    if task.held:
        return task
    if task.state not in (TaskState.WAITING, TaskState.READY):
        raise WrongState(f"only a task that has not started can be held; this one is {task.state}")
    if task.state == TaskState.READY:
        turn.move(task, TaskState.WAITING, "held")
    turn.hold(task, held=True)
    settle(turn)
    return task


def release(tx: Tx, task_id: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> TaskResult:
    """Let a held task go; it starts when nothing else holds it back."""
    turn = Turn(tx, now, ids, rules)
    task = _lock_task(turn, task_id)
    if not task.held:
        return task
    turn.hold(task, held=False)
    if task.satisfied:
        make_ready(turn, [task])
    settle(turn)
    return task


def _lock_task(turn: Turn, task_id: int) -> TaskResult:
    task = turn.lock([task_id]).get(task_id)
    if task is None or turn.staged(task):
        raise NotFound("task", show_task(task_id))
    return task
