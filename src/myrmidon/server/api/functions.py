"""Functions by name: how long they take and how often they fail, among the newest 20,000 tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from myrmidon.model.ids import created_ms, show_task
from myrmidon.model.states import FINAL, TaskState
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import percentile
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.store.views import function_stats
from myrmidon.store.views.function_stats import FunctionTask
from myrmidon.wire.function_stats import FunctionFailures, FunctionInfo, FunctionList, FunctionSummary, FunctionTaskInfo

NOT_FAILED = (TaskState.SUCCEEDED, TaskState.CANCELED, TaskState.KILLED)
MAX_TASKS = 50


async def list_functions(context: ServerContext, call: Call) -> FunctionList:
    """Functions that recent tasks have run, those with the most tasks first."""
    scope = await context.groups.scope_of(call)
    by_name: dict[str, list[FunctionTask]] = defaultdict(list)
    for task in await context.db.read(lambda tx: function_stats.newest(tx, group_id=scope)):
        by_name[f"{task.package_name}:{task.func_name}"].append(task)
    found = [_summary(name, tasks) for name, tasks in by_name.items()]
    return FunctionList(sorted(found, key=lambda one: (-one.num_tasks, one.name)))


async def get_function(context: ServerContext, call: Call) -> FunctionInfo:
    """One function: durations, failures by reason, and its newest tasks."""
    name = call.params["name"]
    package, _, func = name.rpartition(":")
    scope = await context.groups.scope_of(call)
    tasks = await context.db.read(lambda tx: function_stats.newest_of(tx, package, func, group_id=scope))
    failures = Counter((task.state, task.reason) for task in tasks if _has_failed(task))
    return FunctionInfo(
        name=name,
        summary=_summary(name, tasks) if tasks else None,
        errors=[
            FunctionFailures(
                state=state,
                reason=reason,
                num_tasks=num,
                last_task_id=next(show_task(t.id) for t in tasks if (t.state, t.reason) == (state, reason)),
            )
            for (state, reason), num in failures.most_common()
        ],
        tasks=[
            FunctionTaskInfo(
                task_id=show_task(task.id),
                state=task.state,
                created_at=created_ms(task.id) * 1000,
                duration_s=_duration(task),
            )
            for task in tasks[:MAX_TASKS]
        ],
    )


def _has_failed(task: FunctionTask) -> bool:
    return task.state in FINAL and task.state not in NOT_FAILED


def _duration(task: FunctionTask) -> float | None:
    if task.started_at is None or task.completed_at is None:
        return None
    return (task.completed_at - task.started_at) / SECOND


def _summary(name: str, tasks: Sequence[FunctionTask]) -> FunctionSummary:
    succeeded = [task for task in tasks if task.state == TaskState.SUCCEEDED]
    times = sorted(seconds for task in succeeded if (seconds := _duration(task)) is not None)
    return FunctionSummary(
        name=name,
        num_tasks=len(tasks),
        num_running=sum(task.state == TaskState.RUNNING for task in tasks),
        num_failed=sum(map(_has_failed, tasks)),
        mean_s=sum(times) / len(times) if times else None,
        p50_s=percentile(times, 50),
        p95_s=percentile(times, 95),
        last_at=created_ms(tasks[0].id) * 1000,
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/functions",
        call=list_functions,
        who=READERS,
        out=FunctionList,
        summary="List functions with durations and failures",
    ),
    Route(
        method="GET",
        path="/api/v1/functions/{name}",
        call=get_function,
        who=READERS,
        out=FunctionInfo,
        summary="Get a function with its failures and newest tasks",
    ),
)
