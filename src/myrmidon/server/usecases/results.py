"""The results of tasks, as the calls that submit tasks or wait for them return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_run, show_task
from myrmidon.model.states import FINAL, SUCCEEDED, WAITING
from myrmidon.model.value import Value
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.run_errors import shown_errors
from myrmidon.server.waiting.result_stream import ResultStream
from myrmidon.server.waiting.wait_hub import failures_of
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import delegate
from myrmidon.store.views import job_values
from myrmidon.store.views.job_values import TaskEnd
from myrmidon.wire import values as wire
from myrmidon.wire.functions import FunctionError


class Found(NamedTuple):
    """What was read of some tasks."""

    results: list[wire.TaskOutcome]
    """Of those that have ended, or will never start."""
    ended: set[int]
    """These tasks."""
    missing: list[int]
    """Those that do not exist, or that the caller may not see."""
    awaited: dict[int, list[object]]
    """For each of the others that depends on more than its own end, the keys of ``WaitHub.watch_ends`` for the rest."""

    def require_all(self) -> Self:
        """Raise NotFound if some are missing."""
        for task_id in self.missing:
            raise NotFound("task", show_task(task_id))
        return self


NOTHING = Found([], set(), [], {})


def read_results(tx: Tx, ids: Sequence[int], scope: int | None) -> Found:
    """The results of the tasks that have ended. One statement for the states, one for the outputs, more for the rest.

    Two kinds of tasks end by others. The value of one that has delegates is written by the last of them. One that waits
    for a task that has failed for good never starts, so that end is its own.
    """
    ends = {task_id: end for task_id, end in job_values.ends(tx, ids).items() if scope in (None, end.resource_group_id)}
    ended = {task_id: end for task_id, end in ends.items() if end.state in FINAL}
    outputs = job_values.outputs(tx, [task_id for task_id, end in ended.items() if end.state == SUCCEEDED])
    unwritten = [task_id for task_id, values in outputs.items() if any(value.size is None for value in values)]
    writers = delegate.of_tasks(tx, unwritten) if unwritten else {}
    writers.update({task_id: [task_id] for task_id, end in ends.items() if end.state == WAITING})
    awaited = _follow(tx, writers, ends, ended) if writers else {}
    if unwritten:  # again, because a delegate may have ended between the two statements
        outputs.update(job_values.outputs(tx, [task_id for task_id in unwritten if task_id in ended]))
    errors = shown_errors(tx, {end.task_id: end.error for end in ended.values()})
    return Found(
        [_show_end(task_id, end, errors.get(end.task_id), outputs.get(task_id, [])) for task_id, end in ended.items()],
        set(ended),
        [task_id for task_id in ids if task_id not in ends],
        awaited,
    )


def _follow(
    tx: Tx, writers: Mapping[int, Sequence[int]], ends: Mapping[int, TaskEnd], ended: dict[int, TaskEnd]
) -> dict[int, list[object]]:
    """Set the ends of tasks whose values others write, by these writers; those that are not known yet have none.

    Returns what decides about each of the latter.
    """
    known = {**ends, **job_values.ends(tx, sorted({one for some in writers.values() for one in some} - ends.keys()))}
    waiting = sorted({one for some in writers.values() for one in some if known[one].state == WAITING})
    causes = job_values.causes_of_waiting(tx, waiting) if waiting else {}
    of_causes = job_values.ends(tx, sorted(set(causes.values()))) if causes else {}
    awaited: dict[int, list[object]] = {}
    for task_id, some in writers.items():
        failed = next((known[one] for one in some if known[one].state in FINAL - {SUCCEEDED}), None)
        cause = failed or next((of_causes[causes[one]] for one in some if one in causes), None)
        open_ones = [one for one in some if known[one].state not in FINAL]
        if cause is not None:
            ended[task_id] = cause
        elif open_ones:
            ended.pop(task_id, None)
            job_id = known[task_id].job_id
            awaited[task_id] = [*open_ones, *((job_id, failures_of(job_id)) if job_id is not None else ())]
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
        ended_by=show_task(end.task_id) if end.task_id != task_id else None,
    )


def find_stream(context: ServerContext, call: Call, stream_id: str, num_new: int = 0) -> ResultStream | None:
    """A stream of results that this caller has opened on this server, if it may have that many tasks more."""
    stream = context.hub.result_streams.get(stream_id)
    is_own = stream is not None and stream.caller == call.who.key
    return stream if is_own and num_new <= room_for_results(context, call) else None


def room_for_results(context: ServerContext, call: Call) -> int:
    """How many tasks more the streams of this caller may have: in all as many as its waiting calls could name."""
    streams = context.hub.result_streams.values()
    held = sum(len(stream.tasks) for stream in streams if stream.caller == call.who.key)
    return context.settings.most_waits * wire.MAX_RESULTS - held
