"""Reading tasks: one task in full, lists, recent tags.

A caller whose token is bound to a resource group sees only that group's tasks; for others it gets NotFound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import json, structs

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.model.task_result import PerformanceStats, TaskResult, TaskRun
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.silence import Silence, silent_runs
from myrmidon.server.api.common import show_optional_task, stored_json
from myrmidon.server.api.notes import show_annotation
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import show_error
from myrmidon.server.usecases.tasks import filter_of_query, get_visible_task, parse_path_id, recent_tags
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import notes, resource_group, task_request, task_run
from myrmidon.store.tables.task_request import RequestRow, SliceRow
from myrmidon.store.views import listings, run_details
from myrmidon.store.views.listings import TaskLine
from myrmidon.wire.tasks import (
    RequestInfo,
    ResultInfo,
    RunInfo,
    RunStats,
    SliceInfo,
    TagInfo,
    TagList,
    TaskInfo,
    TaskList,
    TaskQuery,
    TaskSummary,
)

# ---------------------------------------------------------------- one task


async def get_task(context: ServerContext, call: Call) -> TaskInfo:
    """A task with its request, its result and all its runs."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> TaskInfo:
        task = get_visible_task(tx, task_id, scope)
        row = task_request.read(tx, [task_id])[task_id]
        slices = task_request.slices(tx, [task_id])[task_id]
        runs = task_run.read(tx, [task_id])
        stats = run_details.stats(tx, [task_id])
        silent = silent_runs(tx, runs, now=context.now(), rules=context.rules)
        group = resource_group.names(tx, [row.resource_group_id]).get(row.resource_group_id, "")
        secret = task_request.secrets(tx, [task_id]).get(task_id)
        forms = SecretForms(secret) if secret else None
        return TaskInfo(
            task_id=show_task(task_id),
            group=group,
            job_id=show_optional_task(task.job_id),
            request=_request_info(
                row,
                slices,
                has_secret=secret is not None,
                stdin_size=task_request.stdin_sizes(tx, [task_id]).get(task_id),
            ),
            result=_result_info(task, runs),
            runs=[
                _run_info(run, forms, stats.get((run.task_id, run.run)), silent.get((run.task_id, run.run)))
                for run in runs
            ],
            annotation=show_annotation(notes.read(tx, task_id), forms),
        )

    return await context.db.read(read)


def _request_info(
    row: RequestRow, slices: Sequence[SliceRow], *, has_secret: bool, stdin_size: int | None
) -> RequestInfo:
    parent = show_run(row.parent_task_id, row.parent_run or 0) if row.parent_task_id is not None else None
    return RequestInfo(
        name=row.name,
        created_at=row.created_at,
        user=row.user_name,
        authenticated=row.authenticated,
        priority=row.priority,
        service_account=row.service_account,
        parent=parent,
        root=show_optional_task(row.root_task_id),
        external_id=row.external_id,
        function=f"{row.package_name}:{row.func_name}" if row.func_name is not None else None,
        retries=row.retries,
        reruns=row.max_num_retries,
        max_instances=row.max_num_instances,
        lease_s=row.lease / SECOND,
        deadline_at=row.deadline_at,
        tags=json.decode(row.tags, type=list[str]),
        metadata=stored_json(row.metadata),
        slices=[
            SliceInfo(
                properties=stored_json(row.properties),
                properties_hash=row.properties_hash,
                expiration_s=row.expiration / SECOND,
                wait_for_capacity=bool(row.wait_for_capacity),
            )
            for row in slices
        ],
        has_secret=has_secret,
        stdin_size=stdin_size,
    )


def _result_info(task: TaskResult, runs: Sequence[TaskRun]) -> ResultInfo:
    number = task.instance_id or task.run_number
    deciding = [run for run in runs if run.run == number and run.generation == task.generation and task.final]
    decided_by = deciding[0] if deciding else None
    return ResultInfo(
        state=task.state,
        reason=task.reason,
        generation=task.generation,
        held=bool(task.held),
        killing=bool(task.killing),
        slice=task.current_task_slice,
        run=show_run(task.id, number) if number else None,
        bot_id=task.bot_id,
        exit_code=decided_by.exit_code if decided_by else None,
        duration=decided_by.duration if decided_by else None,
        num_retries=task.num_retries,
        num_reruns=task.num_reruns,
        deduped_from=show_run(task.deduped_from, task.deduped_run or 0) if task.deduped_from else None,
        cost_saved_usd=task.cost_saved_usd,
        ready_at=task.ready_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        abandoned_at=task.abandoned_at,
        modified_at=task.modified_at,
    )


def _evidence(text: str, forms: SecretForms | None) -> Any:
    """Why a run ended as it did. Its message can repeat output of the task, so the secret is masked as in the log."""
    if forms is None:
        return stored_json(text)
    evidence = json.decode(text, type=dict[str, Any])
    if isinstance(message := evidence.get("message"), str):
        evidence["message"] = forms.mask_text(message)
    return evidence


def _run_info(
    run: TaskRun, forms: SecretForms | None, stats: PerformanceStats | None, silence: Silence | None
) -> RunInfo:
    return RunInfo(
        run=show_run(run.task_id, run.run),
        number=run.run,
        generation=run.generation,
        state=run.state,
        reason=run.reason,
        evidence=_evidence(run.evidence, forms) if run.evidence else None,
        bot_id=run.bot_id,
        slice=run.slice,
        claimed_at=run.claimed_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        exit_code=run.exit_code,
        duration=run.duration,
        cost_usd=run.cost_usd,
        stdout_size=run.stdout_size,
        stderr_size=run.stderr_size,
        outputs_ref=stored_json(run.outputs_ref) if run.outputs_ref else None,
        stats=RunStats(**structs.asdict(stats)) if stats else None,
        silent_since=silence.since if silence else None,
        given_up_at=silence.given_up_at if silence else None,
        progress=run.progress,
        error=show_error(run.error, forms),
    )


# ---------------------------------------------------------------- lists


async def list_tasks(context: ServerContext, call: Call) -> TaskList:
    """Tasks that match all filters, ordered by time of creation."""
    query: TaskQuery = call.query
    kind = f"tasks {query.sort}"
    cursor = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else None
    task_filter = await filter_of_query(context, call, query)

    def read(tx: Tx) -> tuple[list[TaskLine], int, dict[int, str]]:
        lines, more = listings.tasks(tx, task_filter, n=query.limit, cursor=cursor, oldest_first=query.sort == "oldest")
        return lines, more, resource_group.names(tx, sorted({line.resource_group_id for line in lines}))

    lines, more, group_names = await context.db.read(read)
    return TaskList(
        [show_summary(line, group_names) for line in lines],
        show_cursor(context.keys.cursor, kind, str(more)) if more else None,
    )


def show_summary(line: TaskLine, group_names: dict[int, str]) -> TaskSummary:
    return TaskSummary(
        task_id=show_task(line.id),
        group=group_names.get(line.resource_group_id, ""),
        name=line.name,
        state=line.state,
        reason=line.reason,
        user=line.user_name,
        priority=line.priority,
        tags=json.decode(line.tags, type=list[str]),
        created_at=line.created_at,
        started_at=line.started_at,
        completed_at=line.completed_at,
        modified_at=line.modified_at,
        bot_id=line.bot_id,
        run=show_run(line.id, line.run_number) if line.run_number else None,
        deduped_from=show_optional_task(line.deduped_from),
        killing=bool(line.killing),
    )


async def list_tags(context: ServerContext, call: Call) -> TagList:
    """Tags of the newest tasks that the caller may see."""
    return TagList([TagInfo(key, values) for key, values in (await recent_tags(context, call)).items()])


ROUTES = (
    Route("GET", "/api/v1/tasks", list_tasks, READERS, "List tasks", query=TaskQuery),
    Route("GET", "/api/v1/tasks/tags", list_tags, READERS, "List tags of the newest tasks"),
    Route("GET", "/api/v1/tasks/{id}", get_task, READERS, "Get a task"),
)
