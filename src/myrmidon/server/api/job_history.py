"""Jobs over time: the last runs of each name, flaky labels, and the timeline of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from myrmidon.model.ids import show_task
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import resource_group
from myrmidon.store.views import job_history
from myrmidon.store.views.job_history import JobLine, LabelRuns, TaskTimes
from myrmidon.wire.job_history import (
    BotRuns,
    FlakyLabel,
    FlakyLabels,
    FlakyQuery,
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


ROUTES = (
    Route("GET", "/api/v1/job-names", list_names, READERS, "List names of jobs with their last runs", query=NamesQuery),
    Route(
        "GET",
        "/api/v1/job-names/flaky",
        list_flaky,
        READERS,
        "List labels that have failed in the last jobs of a name",
        query=FlakyQuery,
    ),
    Route(
        "GET",
        "/api/v1/jobs/{id}/timeline",
        get_timeline,
        READERS,
        "Get the times of a job's tasks and its critical path",
        query=TimelineQuery,
    ),
)
