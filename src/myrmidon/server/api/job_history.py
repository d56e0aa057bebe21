"""Jobs over time: the last runs of each name, flaky labels, and the timeline of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, islice

from myrmidon.model.ids import show_task
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import job_history
from myrmidon.wire import job_history as wire

ROUTES = Routes()

RUNS = 30
"""Jobs of a name that are shown as bars and looked at for flaky labels."""
MAX_FLAKY_TASKS = 20_000


# ---------------------------------------------------------------- by name


@ROUTES.add("GET", "/api/v1/job-names", READERS, "List names of jobs with their last runs", query=wire.NamesQuery)
async def list_names(context: ServerContext, call: Call) -> wire.JobNames:
    """The names of jobs, each with its last runs."""
    query: wire.NamesQuery = call.query
    scope = await context.groups.scope_of(call)

    by_name = await context.db.read(lambda tx: job_history.newest(tx, group_id=scope))
    return wire.JobNames(
        [
            wire.JobName(
                name=name,
                group=group,
                num_jobs=len(jobs),
                num_failed=sum(job.state == "FAILED" for job in jobs),
                runs=jobs[:RUNS],
            )
            for (name, group), jobs in islice(by_name.items(), query.limit)
        ]
    )


@ROUTES.add(
    "GET",
    "/api/v1/job-names/flaky",
    READERS,
    "List labels that have failed in the last jobs of a name",
    query=wire.FlakyQuery,
)
async def list_flaky(context: ServerContext, call: Call) -> wire.FlakyLabels:
    """Labels of the last jobs of a name that have failed, and on which bots."""
    query: wire.FlakyQuery = call.query
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> wire.FlakyLabels:
        ids = _up_to(job_history.newest_of_name(tx, query.name, group_id=scope, before=LAST_ID, n=RUNS))
        return wire.FlakyLabels(len(ids), _flaky(job_history.runs_by_label(tx, ids)))

    return await context.db.read(read)


def _up_to(jobs: Mapping[int, wire.JobRunInfo]) -> list[int]:
    """The first of these jobs that have at most MAX_FLAKY_TASKS tasks together; at least one."""
    totals = accumulate(job.num_tasks for job in jobs.values())
    return [job_id for job_id, total in zip(jobs, totals, strict=True) if total <= MAX_FLAKY_TASKS] or list(jobs)[:1]


def _flaky(by_label: Mapping[str, Sequence[wire.BotRuns]]) -> list[wire.FlakyLabel]:
    found = [
        wire.FlakyLabel(
            label=label,
            num_runs=sum(one.num_runs for one in bots),
            num_failed=sum(one.num_failed for one in bots),
            bots=[one for one in sorted(bots, key=lambda one: -one.num_failed) if one.num_failed],
        )
        for label, bots in by_label.items()
    ]
    return sorted((one for one in found if one.num_failed), key=lambda one: (-one.num_failed, one.label))


# ---------------------------------------------------------------- timeline


@ROUTES.add(
    "GET",
    "/api/v1/jobs/{id}/timeline",
    READERS,
    "Get the times of a job's tasks and its critical path",
    query=wire.TimelineQuery,
)
async def get_timeline(context: ServerContext, call: Call) -> wire.Timeline:
    """When each task of a job waited and ran, and which of them decide when the job ends."""
    query: wire.TimelineQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"timeline {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0

    def read(tx: Tx) -> wire.Timeline:
        path = job_history.critical_path(tx, job.id)
        rows, last = job_history.times(tx, job.id, after=after, n=query.limit, path=set(path))
        return wire.Timeline(
            created_at=job.creation_time,
            ended_at=job.ended_at,
            now=context.now(),
            num_tasks=job.num_tasks,
            rows=rows,
            critical_path=[show_task(task_id) for task_id in path],
            cursor=show_cursor(context.keys.cursor, kind, str(last)) if len(rows) == query.limit else None,
        )

    return await context.db.read(read)
