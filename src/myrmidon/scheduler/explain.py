"""Explain why a task is not running: its parents, a hold, a dimension that no bot has, or its position in the queue.

Reads without locks and changes nothing.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_task
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import edge, task_queues, task_request, task_result, task_to_run

_SHOWN_PARENTS = 20


class Removed(Struct, frozen=True):
    """A required dimension: how many bots it excludes (``removes``) and how many remain (``left``)."""

    dimension: str
    removes: int
    left: int


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a task is not running. ``unreachable``: a parent has failed, so it will not run without a rerun."""

    task_id: int
    state: TaskState
    summary: str
    waiting_on: list[int] = []
    unreachable: bool = False
    held: bool = False
    dimensions: list[Removed] = []
    num_bots: int = 0
    num_serving: int = 0
    position: int | None = None


def explain(tx: Tx, task_id: int) -> Explanation:
    """The reason why a task is not running, in one sentence, with the facts behind it."""
    task = task_result.read(tx, [task_id]).get(task_id)
    if task is None:
        raise NotFound("task", show_task(task_id))
    if task.state == TaskState.WAITING:
        return _explain_waiting(tx, task)
    if task.state == TaskState.READY:
        return _explain_ready(tx, task)
    if task.state == TaskState.RUNNING:
        what = "is being stopped" if task.killing else "is running"
        return Explanation(task_id=task_id, state=task.state, summary=f"The task {what} on bot {task.bot_id}.")
    why = f" ({task.reason})" if task.reason else ""
    return Explanation(task_id=task_id, state=task.state, summary=f"The task has ended: {task.state}{why}.")


def _explain_waiting(tx: Tx, task: TaskResult) -> Explanation:
    waiting_on = edge.waiting_on(tx, task.id, _SHOWN_PARENTS)
    if task.held and not waiting_on:
        return Explanation(
            task_id=task.id,
            state=task.state,
            held=True,
            summary="The task is held; release it to let it run.",
        )
    unreachable = _unreachable(tx, task)
    shown = ", ".join(show_task(parent) for parent in waiting_on[:5])
    summary = f"The task waits for {shown}."
    if unreachable:
        summary = f"The task cannot run: {show_task(unreachable)} has failed. Rerun that one, or rerun this with force."
    return Explanation(
        task_id=task.id,
        state=task.state,
        held=bool(task.held),
        waiting_on=waiting_on,
        unreachable=unreachable is not None,
        summary=summary,
    )


def _unreachable(tx: Tx, task: TaskResult) -> int | None:
    """An ancestor that ended without success, so that this task cannot become ready; None if there is none."""
    seen: set[int] = set()
    pending = [(task.id, bool(task.resolves_all))]
    while pending:
        child, resolves_all = pending.pop()
        for parent in task_result.read(tx, edge.waiting_on(tx, child, _SHOWN_PARENTS)).values():
            if parent.final and not resolves_all:
                return parent.id
            if parent.state == TaskState.WAITING and parent.id not in seen and not resolves_all:
                seen.add(parent.id)
                pending.append((parent.id, bool(parent.resolves_all)))
    return None


def _explain_ready(tx: Tx, task: TaskResult) -> Explanation:
    rows = task_to_run.of_tasks(tx, [task.id])
    task_slice = task_request.slices(tx, [task.id])[task.id][task.current_task_slice]
    queue = task_queues.read(tx, [task_slice.queue])[task_slice.queue]
    removed, matching = _filter_bots(tx, queue.dimensions, queue.pool)
    serving = len(task_queues.serving_bots(tx, queue.id, 1000))
    position = task_to_run.position(tx, rows[0]) if rows else None
    return Explanation(
        task_id=task.id,
        state=task.state,
        summary=_ready_summary(removed, matching, serving, position or 0),
        dimensions=removed,
        num_bots=matching,
        num_serving=serving,
        position=position,
    )


def _ready_summary(removed: Sequence[Removed], matching: int, serving: int, position: int) -> str:
    if not matching:
        last = next((step for step in removed if step.left == 0), None)
        missing = f": none of the remaining bots has {last.dimension}" if last else ""
        return f"No bot matches{missing}. Start such a bot, or change the dimensions."
    if not serving:
        return f"{matching} bots match, but none of them is alive and healthy. Check these bots."
    return f"{serving} bots can run it; {position} tasks are before it in its queue."


def _filter_bots(tx: Tx, required: str, pool: str) -> tuple[list[Removed], int]:
    """Apply the required dimensions one by one to the bots of the pool; returns the steps, and how many bots match.

    A terminate task has no pool: there it starts with the bots that have its id.
    """
    values = [f"pool:{pool}"] if pool else dimensions.narrowest_values(required)
    left = [dimensions.bot_sets(text) for value in values for text in bots.dimensions_of_bots_with(tx, value)]
    steps = []
    for single in dimensions.split_values(required):
        before = len(left)
        left = [has for has in left if dimensions.matches(single, has)]
        steps.append(Removed(dimensions.show_single(single), before - len(left), len(left)))
    return steps, len(left)
