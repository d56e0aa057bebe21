"""The results of a job: those of its tasks without children.

The last task of a job may be a delegate, which writes the outputs of the function that has added it
(scheduler/growth.py). Clients know the function, so it is shown, with the end of the delegate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model.ids import show_task
from myrmidon.model.states import FINAL, JobState
from myrmidon.model.value import Value
from myrmidon.server.calls import JOB_READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import delegate
from myrmidon.store.views import job_details, job_values
from myrmidon.store.views.job_details import JobTaskLine
from myrmidon.wire import jobs as wire
from myrmidon.wire.fields import PageQuery

ROUTES = Routes()


@ROUTES.add("GET", "/api/v1/jobs/{id}/outputs", JOB_READERS, "Get the results of a job", query=PageQuery)
async def get_outputs(context: ServerContext, call: Call) -> wire.JobOutputs:
    """The results of the tasks that have no children: their states, exit codes and values."""
    query = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"outputs of job {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0

    def read(tx: Tx) -> wire.JobOutputs:
        ids = job_details.output_tasks(tx, job.id, after=after, n=query.limit)
        values = job_values.outputs(tx, ids)
        return wire.JobOutputs(
            ready=job.state == JobState.SUCCEEDED,
            state=JobState(job.state).value,
            tasks=[_show(found, values.get(task_id, [])) for task_id, found in _read_tasks(tx, ids).items()],
            error=job.error,
            cursor=show_cursor(context.keys.cursor, kind, str(ids[-1])) if len(ids) == query.limit else None,
        )

    return await context.db.read(read)


class _Output(Struct, frozen=True):
    """The task that is shown, and the one whose end is shown with it."""

    task: JobTaskLine
    end: JobTaskLine


def _read_tasks(tx: Tx, ids: Sequence[int]) -> dict[int, _Output]:
    """What is shown for each of the tasks without children."""
    functions = delegate.delegators(tx, ids)
    delegates = delegate.of_tasks(tx, sorted(set(functions.values())))
    tasks = job_details.tasks_by_id(
        tx, sorted({*ids, *delegates, *(one for some in delegates.values() for one in some)})
    )
    return {task_id: _output(tasks, task_id, functions.get(task_id), delegates) for task_id in ids}


def _output(
    tasks: Mapping[int, JobTaskLine], task_id: int, function: int | None, delegates: Mapping[int, Sequence[int]]
) -> _Output:
    if function is None:
        return _Output(tasks[task_id], tasks[task_id])
    writers = (tasks[one] for one in (function, *delegates[function]))
    failed = next((one for one in writers if one.state in FINAL - {"SUCCEEDED"}), None)
    return _Output(tasks[function], failed or tasks[task_id])


def _show(found: _Output, values: Sequence[Value]) -> wire.TaskOutputs:
    return wire.TaskOutputs(
        label=found.task.label,
        task_id=show_task(found.task.id),
        state=found.end.state,  # type: ignore[arg-type]
        exit_code=found.end.exit_code,
        values=[
            wire.OutputValue(
                value_id=show_task(value.id), type=value.type, size=value.size, data=value.payload, digest=value.digest
            )
            for value in values
        ],
    )
