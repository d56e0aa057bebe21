"""What a task calls: the function, its code and the values that it reads."""

from __future__ import annotations

from functools import partial

from myrmidon.model.errors import WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.task_request import properties_from_json
from myrmidon.model.value import Value
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job_code, task_request
from myrmidon.store.tables import value as values
from myrmidon.wire.function_calls import CallInput, CallValue, FunctionCall

ROUTES = Routes()


@ROUTES.add("GET", "/api/v1/tasks/{id}/call", READERS, "Get the function call of a task")
async def get_call(context: ServerContext, call: Call) -> FunctionCall:
    """The function that a task calls, with its code and its arguments."""
    task_id = parse_path_id(call.params["id"])[0]
    return await context.db.read(partial(_read_call, task_id=task_id, scope=await context.groups.scope_of(call)))


def _read_call(tx: Tx, task_id: int, scope: int | None) -> FunctionCall:
    task = get_visible_task(tx, task_id, scope)
    request = task_request.read(tx, [task_id])[task_id]
    if request.func_name is None or request.package_name is None:
        raise WrongState("the task runs a command and calls no function; `myrmidon task show` shows the command")
    properties = properties_from_json(task_request.slices(tx, [task_id])[task_id][task.current_task_slice].properties)
    replaced = job_code.of_job(tx, task.job_id) if task.job_id is not None else {}
    code, environment = request.code or "", request.environment or ""
    new_code = replaced.get(code)
    return FunctionCall(
        task_id=show_task(task_id),
        package_name=request.package_name,
        func_name=request.func_name,
        language=request.language or "",
        code=new_code or code,
        identity="" if new_code else request.identity or "",
        signature=request.signature or "",
        environment=replaced.get(environment) or environment,
        python=properties.dimensions.get("python", []),
        env=properties.env,
        inputs=[_input(value) for value in values.inputs(tx, [task_id]).get(task_id, [])],
    )


def _input(value: Value) -> CallInput:
    parts = [CallValue(value_id=show_task(one.id), type=one.type, size=one.size) for one in value.parts or ()]
    return CallInput(
        value_id=show_task(value.id),
        type=value.type,
        size=value.size,
        parts=parts if value.parts is not None else None,
    )
