"""Functions that recent tasks have run, with durations and failures; and the call of one task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from myrmidon.model.errors import WrongState
from myrmidon.model.ids import created_ms, show_task
from myrmidon.model.states import FINAL, TaskState
from myrmidon.model.task_request import properties_from_json
from myrmidon.model.value import Value
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import percentile
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.run_errors import shown_errors
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job_code, task_request
from myrmidon.store.tables import value as values
from myrmidon.store.views import function_stats
from myrmidon.store.views.function_stats import FunctionTask
from myrmidon.wire import function_stats as wire
from myrmidon.wire.function_calls import CallInput, CallValue, FunctionCall
from myrmidon.wire.functions import FunctionError

ROUTES = Routes()

NOT_FAILED = (TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.KILLED)
MAX_TASKS = 50
MAX_ERRORS = 500
"""Failed tasks whose exceptions are read."""
MAX_LINE = 200


@ROUTES.add("GET", "/api/v1/functions", READERS, "List functions with durations and failures")
async def list_functions(context: ServerContext, call: Call) -> wire.FunctionList:
    """Functions that recent tasks have run, those with the most tasks first."""
    scope = await context.groups.scope_of(call)
    by_name: dict[str, list[FunctionTask]] = defaultdict(list)
    for task in await context.db.read(lambda tx: function_stats.newest(tx, group_id=scope)):
        by_name[f"{task.package_name}:{task.func_name}"].append(task)
    found = [_summary(name, tasks) for name, tasks in by_name.items()]
    return wire.FunctionList(sorted(found, key=lambda one: (-one.num_tasks, one.name)))


@ROUTES.add("GET", "/api/v1/functions/{name}", READERS, "Get a function with its failures and newest tasks")
async def get_function(context: ServerContext, call: Call) -> wire.FunctionInfo:
    """One function: durations, failures by exception, versions, and its newest tasks."""
    name = call.params["name"]
    package, _, func = name.rpartition(":")
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> tuple[list[FunctionTask], dict[int, FunctionError]]:
        tasks = function_stats.newest_of(tx, package, func, group_id=scope)
        failed = [task.id for task in tasks if _has_failed(task)][:MAX_ERRORS]
        return tasks, shown_errors(tx, function_stats.errors(tx, failed))

    tasks, errors = await context.db.read(read)
    return wire.FunctionInfo(
        name=name,
        summary=_summary(name, tasks) if tasks else None,
        errors=_failures(tasks, errors),
        versions=_versions(tasks),
        tasks=[
            wire.FunctionTaskInfo(
                task_id=show_task(task.id),
                state=task.state,
                created_at=created_ms(task.id) * 1000,
                duration_s=_duration(task),
            )
            for task in tasks[:MAX_TASKS]
        ],
    )


def _failures(tasks: Sequence[FunctionTask], errors: Mapping[int, FunctionError]) -> list[wire.FunctionFailures]:
    """Failed tasks that look alike, most frequent first."""
    groups: dict[tuple[str, str, str], list[FunctionTask]] = defaultdict(list)
    for task in filter(_has_failed, tasks):
        groups[task.state, task.reason, _first_line(errors.get(task.id))].append(task)
    return [
        wire.FunctionFailures(
            state=state, reason=reason, error=error, num_tasks=len(alike), last_task_id=show_task(alike[0].id)
        )
        for (state, reason, error), alike in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _first_line(error: FunctionError | None) -> str:
    if error is None:
        return ""
    return f"{error.type}: {error.message.partition(chr(10))[0][:MAX_LINE]}"


def _versions(tasks: Sequence[FunctionTask]) -> list[wire.FunctionVersion]:
    """The tasks by their code, newest first."""
    by_code: dict[str | None, list[FunctionTask]] = defaultdict(list)
    for task in tasks:
        by_code[task.code].append(task)
    return [
        wire.FunctionVersion(
            code=code,
            num_tasks=len(alike),
            num_failed=sum(map(_has_failed, alike)),
            last_at=created_ms(alike[0].id) * 1000,
        )
        for code, alike in by_code.items()
    ]


def _has_failed(task: FunctionTask) -> bool:
    return task.state in FINAL and task.state not in NOT_FAILED


def _duration(task: FunctionTask) -> float | None:
    if task.started_at is None or task.completed_at is None:
        return None
    return (task.completed_at - task.started_at) / SECOND


def _summary(name: str, tasks: Sequence[FunctionTask]) -> wire.FunctionSummary:
    succeeded = [task for task in tasks if task.state == TaskState.SUCCEEDED]
    times = sorted(seconds for task in succeeded if (seconds := _duration(task)) is not None)
    return wire.FunctionSummary(
        name=name,
        num_tasks=len(tasks),
        num_running=sum(task.state == TaskState.RUNNING for task in tasks),
        num_failed=sum(map(_has_failed, tasks)),
        mean_s=sum(times) / len(times) if times else None,
        p50_s=percentile(times, 50),
        p95_s=percentile(times, 95),
        last_at=created_ms(tasks[0].id) * 1000,
    )


# ---------------------------------------------------------------- function calls


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
