"""Jobs: submit a graph of tasks, check one without storing it, list, show and delete jobs.

A job is named by its id, or by its external id in the caller's resource group.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from msgspec import structs

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros, first_id_at, show_task
from myrmidon.model.states import JobState
from myrmidon.scheduler import check_job as checking
from myrmidon.scheduler import retention
from myrmidon.scheduler.check_job import CheckedJob
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.submit_job import JobSubmitted, batch_keys
from myrmidon.server.api.common import LAST_ID, show_optional_task
from myrmidon.server.calls import JOB_READERS, MIB, READERS, WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.large_documents import LARGE_BYTES, free_parts
from myrmidon.server.usecases import jobs as job_usecases
from myrmidon.server.usecases.jobs import job_finder
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.results import find_stream
from myrmidon.server.usecases.run_errors import NO_END, shown_ends
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables.job import Job
from myrmidon.store.views import job_details
from myrmidon.wire import jobs as wire
from myrmidon.wire.fields import Done

ROUTES = Routes()

T = TypeVar("T")

DOCUMENT_LIMIT = 64 * MIB
_KIND = "jobs"
_SMALL_BYTES = 2 << 10
"""A document of up to this size is handled on the event loop: a few tasks take less time than a change of threads."""


# ---------------------------------------------------------------- submit and check


@ROUTES.add(
    "POST", "/api/v1/jobs", WRITERS, "Submit a job", body=wire.SubmitJob, mutates=True, body_limit=DOCUMENT_LIMIT
)
async def submit_job(context: ServerContext, call: Call) -> wire.JobSubmitted:
    """Store a graph of tasks and start it. A repeated call with the same request key returns the same job.

    With ``stream`` the results of its tasks come through that stream.
    """
    return await _submit(context, call, key=call.request_key)


@ROUTES.add(
    "PUT",
    "/api/v1/jobs/{id}",
    WRITERS,
    "Submit a job under an external id",
    body=wire.SubmitJob,
    mutates=True,
    body_limit=DOCUMENT_LIMIT,
)
async def put_job(context: ServerContext, call: Call) -> wire.JobSubmitted:
    """Store a job under an external id. The same document again is the same job; a different one is a conflict.

    With ``resume`` a different one is the next revision of the job, and what has failed in the same one runs again.
    """
    external_id = call.params["id"]
    return await _submit(context, call, key=f"PUT job {external_id}", external_id=external_id)


async def _submit(
    context: ServerContext, call: Call, *, key: str | None, external_id: str | None = None
) -> wire.JobSubmitted:
    group = context.groups.name_for(call, call.body.group)

    def draft(now: Micros) -> JobDraft:
        document = job_usecases.decode_document(call.body.job)
        if external_id is not None and isinstance(document, dict):
            document = _with_external_id(document, external_id)
        return _draft(context, call, document, group=group, key=key, now=now)

    async with context.large_documents.enter(call.body_size):
        now = context.now()  # other large documents may have taken minutes
        drafted = await _by_size(context, call, partial(draft, now))
        stream = find_stream(context, call, call.body.stream, len(drafted.task_ids)) if call.body.stream else None
        # Before the job is stored: its tasks may end at once.
        with stream.expecting(drafted.task_ids.values()) if stream is not None else nullcontext():
            stored = await job_usecases.store_job(context, call, group, drafted, now=now)
    if call.body.resume and stored.repeated and stored.state == JobState.FAILED:
        stored = await job_usecases.rerun_failed(context, stored)
    if stream is not None:
        stream.confirm(stored.task_ids.values())
    return await _by_size(context, call, partial(_submitted, stored, is_followed=stream is not None))


@ROUTES.add(
    "POST",
    "/api/v1/jobs/batch",
    WRITERS,
    "Submit several jobs, all or none",
    body=wire.SubmitJobs,
    mutates=True,
    body_limit=DOCUMENT_LIMIT,
)
async def submit_jobs(context: ServerContext, call: Call) -> wire.JobsSubmitted:
    """Store several graphs and start them: all of them, or none. They have up to 1,000 tasks together."""
    group = context.groups.name_for(call, call.body.group)
    async with context.large_documents.enter(call.body_size):
        now = context.now()
        drafts = await _by_size(context, call, partial(_drafts, context, call, group, now))
    stored = await job_usecases.store_jobs(context, call, group, drafts, now=now)
    return wire.JobsSubmitted(jobs=[_submitted(one) for one in stored])


def _drafts(context: ServerContext, call: Call, group: str, now: Micros) -> list[JobDraft]:
    """Validate the documents of a call; all problems of all of them are raised together."""
    drafts: list[JobDraft] = []
    problems: list[Problem] = []
    keys = batch_keys(call.request_key, len(call.body.jobs))
    for position, (raw, key) in enumerate(zip(call.body.jobs, keys, strict=True)):
        try:
            document = job_usecases.decode_document(raw)
            prepared = job_usecases.prepare_document(context, call, document, {}, group=group, now=now)
            drafts.append(job_usecases.draft_job(context, call, prepared, key=key, now=now))
        except InvalidRequest as error:
            problems += [job_usecases.below(f"jobs[{position}]", problem) for problem in error.problems]
    if problems:
        raise InvalidRequest(problems)
    return drafts


async def _by_size(context: ServerContext, call: Call, fn: Callable[[], T]) -> T:
    """Run what takes as long as the call's document is large: here, or on a thread."""
    return fn() if call.body_size <= _SMALL_BYTES else await context.db.run_in_thread(fn)


def _with_external_id(document: dict[str, Any], external_id: str) -> dict[str, Any]:
    given = document.get("external_id")
    if given not in (None, external_id):
        raise InvalidRequest([Problem("external_id", str(given)[:100], "none, or the id of the path", "path")])
    return {**document, "external_id": external_id}


def _submitted(stored: JobSubmitted, *, is_followed: bool = False) -> wire.JobSubmitted:
    return wire.JobSubmitted(
        job_id=show_task(stored.job_id),
        state=JobState(stored.state).value,
        task_ids={label: show_task(task_id) for label, task_id in stored.task_ids.items()},
        repeated=stored.repeated,
        revision=stored.revision,
        superseded=show_optional_task(stored.superseded),
        followed=is_followed,
    )


def _draft(context: ServerContext, call: Call, document: Any, *, group: str, key: str | None, now: Micros) -> JobDraft:
    """Prepare and validate a document, on a thread: a large one takes seconds."""
    prepared = job_usecases.prepare_document(context, call, document, call.body.parameters, group=group, now=now)
    drafted = job_usecases.draft_job(context, call, prepared, key=key, now=now, resume=call.body.resume)
    if call.body_size >= LARGE_BYTES:
        for form in (prepared.applied, prepared.original):
            free_parts(job_usecases.tasks_of(form))
    return drafted


@ROUTES.add(
    "POST",
    "/api/v1/jobs/check",
    WRITERS,
    "Check a job without storing it",
    body=wire.SubmitJob,
    body_limit=DOCUMENT_LIMIT,
)
async def check_job(context: ServerContext, call: Call) -> wire.JobCheck:
    """Validate a graph, and say which nodes could run now and which would be answered by earlier results."""
    now, group = context.now(), context.groups.name_for(call, call.body.group)
    group_id = await context.groups.id_for(call, call.body.group)

    def draft() -> JobDraft:
        document = job_usecases.decode_document(call.body.job)
        return _draft(context, call, document, group=group, key=None, now=now)

    async with context.large_documents.enter(call.body_size):
        drafted = await context.db.run_in_thread(draft)
        checked = await context.db.read(
            partial(checking.check_job, group_id=group_id, draft=drafted, now=now, rules=context.rules)
        )
        return await context.db.run_in_thread(partial(_check_answer, drafted, checked, call.warnings))


def _check_answer(draft: JobDraft, checked: CheckedJob, warnings: list[str]) -> wire.JobCheck:
    return wire.JobCheck(
        name=draft.graph.name,
        num_tasks=len(checked.nodes),
        num_edges=sum(len(parents) for parents in draft.dag.parents),
        depth=checked.depth,
        num_without_bots=sum(not node.live and node.deduped_from is None for node in checked.nodes),
        num_deduped=sum(node.deduped_from is not None for node in checked.nodes),
        num_with_known_duration=sum(node.expected_s is not None for node in checked.nodes),
        expected_s=checked.expected_s,
        critical_path=checked.critical_path,
        nodes=[
            wire.NodeCheck(
                label=node.label,
                live_bots=node.live,
                dead_bots=node.other,
                deduped_from=show_optional_task(node.deduped_from),
                why=node.predicted.why.value,
                parent=node.predicted.parent or None,
            )
            for node in checked.nodes
        ],
        attached_to=show_optional_task(checked.plan.attached),
        supersedes=show_optional_task(checked.plan.earlier),
        warnings=warnings,
    )


# ---------------------------------------------------------------- list and show


@ROUTES.add("GET", "/api/v1/jobs", READERS, "List jobs", query=wire.JobQuery)
async def list_jobs(context: ServerContext, call: Call) -> wire.JobList:
    """Jobs that match all filters, newest first."""
    query: wire.JobQuery = call.query
    scope = await context.groups.scope_of(call)
    if query.group is not None:
        scope = await context.groups.id_for(call, query.group)
    before = int(read_cursor(context.keys.cursor, _KIND, query.cursor)) if query.cursor else LAST_ID
    if query.end is not None:
        before = min(before, first_id_at(query.end))
    filters = job_details.JobFilter(
        group_id=scope,
        states=list(query.state),
        name=query.name,
        tags=query.tag,
        submitter=call.who.name if query.mine else None,
        from_id=first_id_at(query.start) if query.start is not None else 0,
    )

    def read(tx: Tx) -> wire.JobList:
        found, more = job_details.jobs(tx, filters, before=before, n=query.limit)
        cursor = show_cursor(context.keys.cursor, _KIND, str(more)) if more else None
        return wire.JobList(found, job_details.counts(tx, scope), cursor)

    return await context.db.read(read)


@ROUTES.add("GET", "/api/v1/jobs/{id}", JOB_READERS, "Get a job")
async def get_job(context: ServerContext, call: Call) -> wire.JobInfo:
    """A job with the counts of its tasks and its first failure."""
    find = await job_finder(context, call)
    return await context.db.read(lambda tx: job_info(tx, find(tx, call.params["id"])))


def job_info(tx: Tx, job: Job) -> wire.JobInfo:
    found = job_details.in_full(tx, job.id)
    if found is None:
        raise NotFound("job", show_task(job.id))
    return structs.replace(found, first_failure=_failure(tx, job.blocked_by)) if job.blocked_by is not None else found


def _failure(tx: Tx, task_id: int) -> wire.Failure | None:
    task = job_details.tasks_by_id(tx, [task_id]).get(task_id)
    if task is None:
        return None
    end = shown_ends(tx, {task.id: (task.evidence, task.error)}).get(task.id, NO_END)
    return wire.Failure(
        task_id=show_task(task.id),
        label=task.label,
        state=task.state,  # type: ignore[arg-type]
        reason=task.reason,
        exit_code=task.exit_code,
        bot_id=task.bot_id,
        message=end.message,
        error=end.error,
    )


@ROUTES.add("DELETE", "/api/v1/jobs/{id}", WRITERS, "Delete an ended job", mutates=True)
async def delete_job(context: ServerContext, call: Call) -> Done:
    """Delete an ended job with its tasks, values and logs, in the background."""
    find = await job_finder(context, call)
    now = context.now()

    def delete(tx: Tx) -> None:
        job = find(tx, call.params["id"])
        retention.delete_job(tx, job.id, group_id=job.resource_group_id, now=now, ids=context.ids, rules=context.rules)

    await context.db.write(delete)
    return Done()
