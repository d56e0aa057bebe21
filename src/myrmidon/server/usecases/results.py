"""The results of tasks, as the calls that submit tasks or wait for them return them."""

from __future__ import annotations

from collections.abc import Sequence

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_run, show_task
from myrmidon.model.states import FINAL
from myrmidon.model.value import Value
from myrmidon.server.usecases.run_errors import shown_errors
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import delegate
from myrmidon.store.views import job_values
from myrmidon.store.views.job_values import TaskEnd
from myrmidon.wire import values as wire
from myrmidon.wire.functions import FunctionError


def read_results(tx: Tx, ids: Sequence[int], scope: int | None) -> tuple[list[wire.TaskOutcome], set[int]]:
    """The results of the tasks that have ended, and the delegates that others wait for.

    One statement for the states, one for the outputs, more for errors and delegates.
    """
    ends = job_values.ends(tx, ids)
    for task_id in ids:
        if task_id not in ends or scope not in (None, ends[task_id].resource_group_id):
            raise NotFound("task", show_task(task_id))
    ended = {task_id: end for task_id, end in ends.items() if end.state in FINAL}
    outputs = job_values.outputs(tx, [task_id for task_id, end in ended.items() if end.state == "SUCCEEDED"])
    unwritten = [task_id for task_id, values in outputs.items() if any(value.size is None for value in values)]
    delegates: set[int] = set()
    if unwritten:
        delegates = _follow_delegates(tx, unwritten, ended)
        # Again, because a delegate may have ended between the two statements.
        outputs.update(job_values.outputs(tx, [task_id for task_id in unwritten if task_id in ended]))
    errors = shown_errors(tx, {end.task_id: end.error for end in ended.values()})
    shown = [
        _show_end(task_id, end, errors.get(end.task_id), outputs.get(task_id, [])) for task_id, end in ended.items()
    ]
    return shown, delegates


def _follow_delegates(tx: Tx, unwritten: Sequence[int], ended: dict[int, TaskEnd]) -> set[int]:
    """Change the ends of tasks whose outputs a delegate writes: one that has failed is the end, else there is none yet.

    Returns the delegates that have not ended.
    """
    delegates = delegate.of_tasks(tx, unwritten)
    ends = job_values.ends(tx, sorted({one for of_task in delegates.values() for one in of_task}))
    awaited: set[int] = set()
    for task_id, of_task in delegates.items():
        open_ones = {one for one in of_task if ends[one].state not in FINAL}
        failed = next((ends[one] for one in of_task if ends[one].state in FINAL - {"SUCCEEDED"}), None)
        if failed is not None:
            ended[task_id] = failed
        elif open_ones:
            del ended[task_id]
            awaited |= open_ones
    return awaited


def _show_end(task_id: int, end: TaskEnd, error: FunctionError | None, outputs: Sequence[Value]) -> wire.TaskOutcome:
    return wire.TaskOutcome(
        task_id=show_task(task_id),
        state=end.state,
        reason=end.reason,
        bot_id=end.bot_id,
        run=show_run(end.task_id, end.run) if end.run else None,
        exit_code=end.exit_code,
        error=error,
        outputs=[
            wire.ResultValue(show_task(value.id), value.type, value.size, value.payload)
            for value in outputs
            if value.size is not None
        ],
    )
