"""Jobs over time: the last runs of each name, flaky labels, the timeline of a job, and its failures in groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec import json

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.logs import RunLog, read_range
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import shown_errors
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import log, resource_group, task_request
from myrmidon.store.views import job_history
from myrmidon.store.views.job_history import FailedTask, JobLine, LabelRuns, TaskTimes
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.job_history import (
    BotRuns,
    FailureGroup,
    FailureInfo,
    FlakyLabel,
    FlakyLabels,
    FlakyQuery,
    JobFailures,
    JobName,
    JobNames,
    JobRunInfo,
    NamesQuery,
    Timeline,
    TimelineQuery,
    TimelineRow,
)

RUNS = 30
"""Jobs of a name that are shown as bars and looked at for flaky labels."""
MAX_FLAKY_TASKS = 20_000
MAX_FAILED = 1_000
MAX_GROUPS = 20
TASKS_PER_GROUP = 50
TAIL_BYTES = 4_096


# ---------------------------------------------------------------- by name


async def list_names(context: ServerContext, call: Call) -> JobNames:
    """The names of jobs, each with its last runs."""
    query: NamesQuery = call.query
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> JobNames:
        by_name: dict[tuple[str, int], list[JobLine]] = defaultdict(list)
        for job in job_history.newest(tx, group_id=scope):
            by_name[job.name, job.resource_group_id].append(job)
        groups = resource_group.names(tx, sorted({group for _, group in by_name}))
        shown = list(by_name.items())[: query.limit]
        return JobNames([_job_name(name, groups.get(group, ""), jobs) for (name, group), jobs in shown])

    return await context.db.read(read)


def _job_name(name: str, group: str, jobs: Sequence[JobLine]) -> JobName:
    return JobName(
        name=name,
        group=group,
        num_jobs=len(jobs),
        num_failed=sum(job.state == "FAILED" for job in jobs),
        runs=[
            JobRunInfo(
                job_id=show_task(job.id),
                state=job.state,
                created_at=job.creation_time,
                ended_at=job.ended_at,
                num_tasks=job.num_tasks,
                num_failed=job.num_failed,
            )
            for job in jobs[:RUNS]
        ],
    )


async def list_flaky(context: ServerContext, call: Call) -> FlakyLabels:
    """Labels of the last jobs of a name that have failed, and on which bots."""
    query: FlakyQuery = call.query
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> FlakyLabels:
        jobs = _up_to(job_history.newest_of_name(tx, query.name, group_id=scope, before=LAST_ID, n=RUNS))
        return FlakyLabels(len(jobs), _flaky(job_history.runs_by_label(tx, [job.id for job in jobs])))

    return await context.db.read(read)


def _up_to(jobs: Sequence[JobLine]) -> list[JobLine]:
    """The first of these jobs that have at most MAX_FLAKY_TASKS tasks together; at least one."""
    chosen, total = list[JobLine](), 0
    for job in jobs:
        total += job.num_tasks
        if chosen and total > MAX_FLAKY_TASKS:
            break
        chosen.append(job)
    return chosen


def _flaky(runs: Sequence[LabelRuns]) -> list[FlakyLabel]:
    by_label: dict[str, list[LabelRuns]] = defaultdict(list)
    for one in runs:
        by_label[one.label].append(one)
    found = [
        FlakyLabel(
            label=label,
            num_runs=sum(one.num_runs for one in parts),
            num_failed=sum(one.num_failed for one in parts),
            bots=[
                BotRuns(one.bot_id, one.num_runs, one.num_failed)
                for one in sorted(parts, key=lambda one: -one.num_failed)
                if one.num_failed
            ],
        )
        for label, parts in by_label.items()
    ]
    return sorted((one for one in found if one.num_failed), key=lambda one: (-one.num_failed, one.label))


# ---------------------------------------------------------------- timeline


async def get_timeline(context: ServerContext, call: Call) -> Timeline:
    """When each task of a job waited and ran, and which of them decide when the job ends."""
    query: TimelineQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"timeline {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0

    def read(tx: Tx) -> Timeline:
        rows = job_history.times(tx, job.id, after=after, n=query.limit)
        path = job_history.critical_path(tx, job.id)
        critical = set(path)
        return Timeline(
            created_at=job.creation_time,
            ended_at=job.ended_at,
            now=context.now(),
            num_tasks=job.num_tasks,
            rows=[_timeline_row(row, critical) for row in rows],
            critical_path=[show_task(task_id) for task_id in path],
            cursor=show_cursor(context.keys.cursor, kind, str(rows[-1].id)) if len(rows) == query.limit else None,
        )

    return await context.db.read(read)


def _timeline_row(task: TaskTimes, critical: set[int]) -> TimelineRow:
    return TimelineRow(
        label=task.label,
        task_id=show_task(task.id),
        state=task.state,
        bot_id=task.bot_id,
        ready_at=task.ready_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        critical=task.id in critical,
    )


# ---------------------------------------------------------------- failures


async def get_failures(context: ServerContext, call: Call) -> JobFailures:
    """Why a job has failed: its failed tasks, grouped by what they tell, with their last lines."""
    job = await get_job(context, call, call.params["id"])

    def read(tx: Tx) -> tuple[list[tuple[FailedTask, str]], dict[int, bytes], str | None]:
        failed = job_history.failed_tasks(tx, job.id, MAX_FAILED)
        secrets = task_request.secrets(tx, [task.id for task in failed]) if failed else {}
        errors = shown_errors(tx, {task.id: task.error for task in failed})
        told = [(task, _message(task, errors.get(task.id), secrets.get(task.id))) for task in failed]
        return told, secrets, _last_success(tx, job.name, job.resource_group_id, job.id)

    told, secrets, last_success = await context.db.read(read)
    groups: dict[tuple[str, str, int | None, str], list[FailedTask]] = defaultdict(list)
    for task, message in told:
        groups[task.state, task.reason, task.exit_code, message].append(task)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_GROUPS]
    tails = await context.logs.read(lambda tx: [_tail(tx, tasks[0], secrets) for _, tasks in largest])
    return JobFailures(
        num_failed=len(told),
        groups=[_failure_group(key, tasks, tail) for (key, tasks), tail in zip(largest, tails, strict=True)],
        last_success=last_success,
    )


def _message(task: FailedTask, error: FunctionError | None, secret: bytes | None) -> str:
    """The exception of a function, or what the run told about its end; masked as its log is."""
    if error is not None:
        return f"{error.type}: {error.message}"
    evidence: Any = json.decode(task.evidence) if task.evidence else {}
    message = evidence.get("message") if isinstance(evidence, dict) else None
    if not isinstance(message, str):
        return ""
    return SecretForms(secret).mask_text(message) if secret else message


def _last_success(tx: Tx, name: str, group_id: int, before: int) -> str | None:
    jobs = job_history.newest_of_name(tx, name, group_id=group_id, before=before, n=RUNS)
    return next((show_task(job.id) for job in jobs if job.state == "SUCCEEDED"), None)


def _tail(tx: Tx, task: FailedTask, secrets: dict[int, bytes]) -> str:
    """The last bytes of both streams of a run, from the beginning of a line on."""
    if not task.run:
        return ""
    secret = secrets.get(task.id)
    run_log = RunLog(task.id, task.run, forms=SecretForms(secret) if secret else None)
    parts = []
    for stream in (log.STDOUT, log.STDERR):
        length = log.info(tx, task.id, task.run, stream).length
        offset = max(length - TAIL_BYTES, 0)
        content = read_range(tx, run_log, streams=(stream,), offset=offset, limit=TAIL_BYTES).content
        parts.append(content.partition(b"\n")[2] if offset else content)
    return b"".join(parts).decode(errors="replace")


def _failure_group(key: tuple[str, str, int | None, str], tasks: Sequence[FailedTask], tail: str) -> FailureGroup:
    state, reason, exit_code, message = key
    return FailureGroup(
        state=state,
        reason=reason,
        exit_code=exit_code,
        message=message,
        num_tasks=len(tasks),
        tasks=[
            FailureInfo(
                label=task.label,
                task_id=show_task(task.id),
                run=show_run(task.id, task.run) if task.run else None,
                bot_id=task.bot_id,
                exit_code=task.exit_code,
                completed_at=task.completed_at,
            )
            for task in tasks[:TASKS_PER_GROUP]
        ],
        tail=tail,
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/job-names",
        call=list_names,
        who=READERS,
        query=NamesQuery,
        out=JobNames,
        summary="List names of jobs with their last runs",
    ),
    Route(
        method="GET",
        path="/api/v1/job-names/flaky",
        call=list_flaky,
        who=READERS,
        query=FlakyQuery,
        out=FlakyLabels,
        summary="List labels that have failed in the last jobs of a name",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/timeline",
        call=get_timeline,
        who=READERS,
        query=TimelineQuery,
        out=Timeline,
        summary="Get the times of a job's tasks and its critical path",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/failures",
        call=get_failures,
        who=READERS,
        out=JobFailures,
        summary="Get the failures of a job in groups",
    ),
)
