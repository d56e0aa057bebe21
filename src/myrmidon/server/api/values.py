"""The values of jobs and tasks, and their content."""

from __future__ import annotations

from functools import partial

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import try_parse_id
from myrmidon.model.value import Value
from myrmidon.server.calls import JOB_READERS, READERS, Answer, Call, Identity, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.files import send_file
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.shared_values import is_visible
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import job_values, task_values
from myrmidon.store.views.job_values import OwnedValue
from myrmidon.wire import values as wire
from myrmidon.wire.fields import PageQuery

ROUTES = Routes()

# ---------------------------------------------------------------- the values of a job


@ROUTES.add("GET", "/api/v1/jobs/{id}/values", JOB_READERS, "List the values of a job", query=PageQuery)
async def list_values(context: ServerContext, call: Call) -> wire.ValueList:
    """The values of a job: constants of the request, and outputs of tasks, also those that are not written yet."""
    query: PageQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"values of job {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0
    values, last = await context.db.read(partial(job_values.of_job, job_id=job.id, after=after, n=query.limit))
    return wire.ValueList(values, show_cursor(context.keys.cursor, kind, str(last)) if last is not None else None)


# ---------------------------------------------------------------- the values of a task

MAX_PARTS = 200
"""Parts of gathered inputs that are listed."""


@ROUTES.add("GET", "/api/v1/tasks/{id}/values", READERS, "List the inputs and outputs of a task")
async def list_task_values(context: ServerContext, call: Call) -> wire.TaskValues:
    """The inputs of a task with their sources, and its outputs, also those that are not written yet."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> wire.TaskValues:
        get_visible_task(tx, task_id, scope)
        inputs = task_values.inputs(tx, task_id, max_parts=MAX_PARTS)
        return wire.TaskValues(inputs, task_values.outputs(tx, task_id))

    return await context.db.read(read)


# ---------------------------------------------------------------- one value


@ROUTES.add("GET", "/api/v1/values/{id}", JOB_READERS, "Get the content of a value", media=wire.MSGPACK)
async def get_value(context: ServerContext, call: Call) -> Answer:
    """The content of a value in MessagePack; the header X-Value-Type has its type."""
    text = call.params["id"]
    scope = await context.groups.scope_of(call)
    value = await context.db.read(partial(_find_value, text=text, scope=scope, who=call.who))
    headers = {wire.TYPE_HEADER: value.type}
    if value.size is None:
        raise WrongState(f"the value {text[:32]} has not been produced: wait until its task has succeeded")
    if value.digest is None:
        return Answer(headers=headers, body=value.payload or b"")
    return await send_file(context, value.digest, headers)


def _find_value(tx: Tx, text: str, scope: int | None, who: Identity) -> Value:
    """A value that the caller may see; NotFound for any other."""
    parsed = try_parse_id(text)
    found = job_values.read(tx, parsed[0]) if parsed and not parsed[1] else None
    if found is None or not _is_visible(tx, found, scope, who):
        raise NotFound("value", text[:100])
    return found.value


def _is_visible(tx: Tx, found: OwnedValue, scope: int | None, who: Identity) -> bool:
    if found.job_id is not None:
        return scope in (None, found.resource_group_id) and who.job_id in (None, found.job_id)
    return is_visible(tx, found.value.id, scope, who)
