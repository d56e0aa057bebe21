"""Actions on jobs: extend, seal, cancel, rerun, hold, release, and wait for the end by long poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import show_task
from myrmidon.model.states import JOB_FINAL, JobState
from myrmidon.scheduler import cancel as cancelling
from myrmidon.scheduler import extend as extending
from myrmidon.scheduler import hold as holding
from myrmidon.scheduler import priority as prioritizing
from myrmidon.scheduler import rerun
from myrmidon.scheduler import rerun as rerunning
from myrmidon.scheduler.job_codes import replace_code
from myrmidon.server.api.jobs import DOCUMENT_LIMIT, job_info
from myrmidon.server.calls import JOB_READERS, JOB_WRITERS, WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import check_priority
from myrmidon.server.usecases import jobs as job_usecases
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.jobs import find_job, job_finder
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.job import Job
from myrmidon.store.views import job_details
from myrmidon.wire import job_actions as wire

ROUTES = Routes()

RECHECK_S = 5.0
"""The time between two reads of the job without a notification: another server may have changed it."""
MAX_WAIT_S = 120.0
MAX_LABELS = 1_000


# ---------------------------------------------------------------- grow


@ROUTES.add(
    "POST",
    "/api/v1/jobs/{id}/extend",
    JOB_WRITERS,
    "Add tasks to a job",
    body=wire.ExtendJob,
    mutates=True,
    body_limit=DOCUMENT_LIMIT,
)
async def extend_job(context: ServerContext, call: Call) -> wire.JobExtended:
    """Add tasks to a running job. Repeatable: tasks that the job already has are skipped."""
    job = await job_usecases.get_job(context, call, call.params["id"])
    async with context.large_documents.enter(call.body_size):
        document = await context.db.run_in_thread(partial(job_usecases.decode_document, call.body.job))
        extended = await job_usecases.extend_job(context, call, job, document, call.body.parameters)
    return wire.JobExtended(
        job_id=show_task(extended.job_id),
        state=JobState(extended.state).value,
        task_ids={label: show_task(task_id) for label, task_id in extended.task_ids.items()},
        num_new=extended.num_new,
    )


# ---------------------------------------------------------------- change


async def _change(
    context: ServerContext, call: Call, verb: str, change: Callable[[Tx, Job], object]
) -> wire.JobChanged:
    """Apply a change to a job once per request key; the job afterwards."""
    find = await job_finder(context, call)
    now = context.now()

    def apply(tx: Tx) -> wire.JobChanged:
        job = find(tx, call.params["id"])
        if claim_call_key(tx, call, verb, show_task(job.id), now=now, subject=job.id):
            change(tx, job)
        return _changed(jobs.read(tx, [job.id])[job.id])

    return await context.db.write(apply)


def _changed(job: Job) -> wire.JobChanged:
    return wire.JobChanged(
        job_id=show_task(job.id),
        state=JobState(job.state).value,
        view=job.view,  # type: ignore[arg-type]
        busy=job.num_chunked_work > 0,
    )


@ROUTES.add("POST", "/api/v1/jobs/{id}/seal", WRITERS, "Refuse further extensions of a job", mutates=True)
async def seal_job(context: ServerContext, call: Call) -> wire.JobChanged:
    """Refuse further extensions of a job."""
    seal = partial(extending.seal, now=context.now(), ids=context.ids, rules=context.rules)
    return await _change(context, call, "seal", lambda tx, job: seal(tx, job.id, group_id=job.resource_group_id))


@ROUTES.add("POST", "/api/v1/jobs/{id}/cancel", WRITERS, "Cancel a job", mutates=True)
async def cancel_job(context: ServerContext, call: Call) -> wire.JobChanged:
    """Cancel a job and all its tasks; running ones are killed."""
    cancel = partial(cancelling.cancel_job, now=context.now(), ids=context.ids, rules=context.rules)
    return await _change(context, call, "cancel job", lambda tx, job: cancel(tx, job.id))


@ROUTES.add("POST", "/api/v1/jobs/{id}/hold", WRITERS, "Hold tasks of a job", body=wire.SelectTasks, mutates=True)
async def hold_job(context: ServerContext, call: Call) -> wire.JobChanged:
    """Keep one task, or all tasks of a job that have not started, from starting."""
    return await _hold_or_release(context, call, "hold", holding.hold, holding.hold_job)


@ROUTES.add(
    "POST", "/api/v1/jobs/{id}/release", WRITERS, "Release held tasks of a job", body=wire.SelectTasks, mutates=True
)
async def release_job(context: ServerContext, call: Call) -> wire.JobChanged:
    """Release one held task, or all of a job."""
    return await _hold_or_release(context, call, "release", holding.release, holding.release_job)


@ROUTES.add(
    "POST",
    "/api/v1/jobs/{id}/priority",
    WRITERS,
    "Change the priority of tasks of a job",
    body=wire.SetPriority,
    mutates=True,
)
async def set_priority(context: ServerContext, call: Call) -> wire.JobChanged:
    """Change the priority of one task, or of all tasks of a job that have not ended."""
    body: wire.SetPriority = call.body
    job = await job_usecases.get_job(context, call, call.params["id"])
    group = (await context.groups.names_of([job.resource_group_id])).get(job.resource_group_id, "")
    options = {"now": context.now(), "ids": context.ids, "rules": context.rules}

    def change(tx: Tx, job: Job) -> None:
        pools = job_details.pools(tx, job.id)
        check_priority(context, call.who, body.priority, pools=pools, group=group)
        if body.task is None:
            prioritizing.set_job_priority(tx, job.id, body.priority, **options)  # type: ignore[arg-type]
        else:
            prioritizing.set_priority(tx, task_of(tx, job, body.task), body.priority, **options)  # type: ignore[arg-type]

    return await _change(context, call, "priority", change)


async def _hold_or_release(
    context: ServerContext,
    call: Call,
    verb: str,
    one: Callable[..., object],
    every: Callable[..., object],
) -> wire.JobChanged:
    body: wire.SelectTasks = call.body
    options = {"now": context.now(), "ids": context.ids, "rules": context.rules}

    def change(tx: Tx, job: Job) -> None:
        if body.task is None:
            every(tx, job.id, **options)
        else:
            one(tx, task_of(tx, job, body.task), **options)

    return await _change(context, call, verb, change)


def task_of(tx: Tx, job: Job, label: str) -> int:
    """The id of the task with this label; InvalidRequest if the job has none."""
    found = job_details.tasks_by_label(tx, job.id, [label]).get(label)
    if found is None:
        raise InvalidRequest([Problem("task", label[:100], "the label of a task of this job", "unknown_label")])
    return found.id


# ---------------------------------------------------------------- rerun


@ROUTES.add("POST", "/api/v1/jobs/{id}/rerun", WRITERS, "Run tasks of a job again", body=wire.RerunJob, mutates=True)
async def rerun_job(context: ServerContext, call: Call) -> wire.JobRerun:
    """Run again what did not succeed, all tasks, or one task with what depends on it; or say what that would be."""
    body: wire.RerunJob = call.body
    find = await job_finder(context, call)
    now = context.now()

    def preview(tx: Tx) -> wire.JobRerun:
        job = find(tx, call.params["id"])
        num_tasks, labels = _preview(tx, job, body)
        return wire.JobRerun(
            job_id=show_task(job.id), state=JobState(job.state).value, num_tasks=num_tasks, labels=labels
        )

    def rerun(tx: Tx) -> wire.JobRerun:
        job = find(tx, call.params["id"])
        if claim_call_key(tx, call, "rerun job", show_task(job.id), now=now, subject=job.id):
            _rerun(tx, context, job, body, now)
        return wire.JobRerun(job_id=show_task(job.id), state=JobState(jobs.read(tx, [job.id])[job.id].state).value)

    return await (context.db.read(preview) if body.dry_run else context.db.write(rerun))


def _preview(tx: Tx, job: Job, body: wire.RerunJob) -> tuple[int, list[str]]:
    """The number of tasks that run again, and the first of their labels."""
    if body.task is None:
        labels = list(rerun.preview_job(tx, job.id, full=body.full))
        return len(labels), labels[:MAX_LABELS]
    ids = rerun.preview_task(tx, task_of(tx, job, body.task), cascade=body.cascade)
    shown = job_details.labels_of(tx, ids[:MAX_LABELS])
    return len(ids), sorted(shown.values())


def _rerun(tx: Tx, context: ServerContext, job: Job, body: wire.RerunJob, now: int) -> None:
    if body.code:
        jobs.lock(tx, [job.id])
        replace_code(tx, job, body.code, now=now)
    if body.task is None:
        rerunning.rerun_job(tx, job.id, now=now, ids=context.ids, full=body.full, rules=context.rules)
        return
    rerunning.rerun(
        tx,
        task_of(tx, job, body.task),
        now=now,
        ids=context.ids,
        force=body.force,
        cascade=body.cascade,
        rules=context.rules,
    )


# ---------------------------------------------------------------- wait


@ROUTES.add(
    "POST", "/api/v1/jobs/{id}/wait", JOB_READERS, "Wait until a job has ended", body=wire.WaitForJob, waits=True
)
async def wait_for_job(context: ServerContext, call: Call) -> wire.JobWaited:
    """Wait until a job has ended, has changed since ``seq``, or the time is up."""
    body: wire.WaitForJob = call.body
    job = await job_usecases.get_job(context, call, call.params["id"])
    clock = asyncio.get_running_loop().time
    deadline = clock() + min(body.wait_s, MAX_WAIT_S)
    while True:
        with context.hub.watch_updates([("task", job.id)]) as watch:
            waited = await context.db.read(partial(_waited, job_id=job.id, call=call))
            left = deadline - clock()
            changed = body.seq is not None and waited.seq != body.seq
            if waited.done or changed or left <= 0 or context.hub.stopping:
                return waited
            await watch.wait(min(left, RECHECK_S))


def _waited(tx: Tx, *, job_id: int, call: Call) -> wire.JobWaited:
    job = find_job(tx, show_task(job_id), scope=None, group_id=0)
    return wire.JobWaited(done=job.state in JOB_FINAL, seq=job.seq, job=job_info(tx, job))
