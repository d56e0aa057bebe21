"""Summaries of tasks, and the small texts that the tasks of a job share."""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.model.validation import is_clean
from myrmidon.scheduler import annotate as annotating
from myrmidon.server.calls import JOB_READERS, JOB_WRITERS, Call, Role, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.jobs import get_job, job_finder
from myrmidon.server.usecases.tasks import get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import notes
from myrmidon.wire import notes as wire
from myrmidon.wire.fields import Done

ROUTES = Routes()


def show_annotation(found: notes.Annotation | None, forms: SecretForms | None) -> wire.Annotation | None:
    """The summary of a task as clients see it: the task's secret is masked, as in its log."""
    if found is None:
        return None
    run = show_run(found.task_id, found.run) if found.run else None
    content = forms.mask_text(found.content) if forms is not None else found.content
    return wire.Annotation(content=content, written_at=found.written_at, run=run)


@ROUTES.add(
    "PUT", "/api/v1/tasks/{id}/annotation", JOB_WRITERS, "Show a summary with a task", body=wire.Annotate, mutates=True
)
async def annotate_task(context: ServerContext, call: Call) -> Done:
    """Replace the summary of a task. A run may annotate its own task only."""
    task_id = parse_path_id(call.params["id"])[0]
    body: wire.Annotate = call.body
    _check_text("content", body.content)
    scope = await context.groups.scope_of(call)
    now, is_run = context.now(), call.who.role is Role.RUN

    def annotate(tx: Tx) -> Done:
        if is_run and task_id != call.who.task_id:
            raise NotFound("task", show_task(task_id))
        get_visible_task(tx, task_id, scope)
        if claim_call_key(tx, call, "annotate", show_task(task_id), now=now, subject=task_id):
            annotating.annotate(tx, task_id, body.content, run=call.who.run, now=now, ids=context.ids)
        return Done()

    return await context.db.write(annotate)


@ROUTES.add("GET", "/api/v1/jobs/{id}/meta", JOB_READERS, "The texts that the tasks of a job share")
async def get_meta(context: ServerContext, call: Call) -> wire.JobMeta:
    """The texts of a job."""
    job = await get_job(context, call, call.params["id"])
    return wire.JobMeta(values=await context.db.read(lambda tx: notes.meta(tx, job.id)))


@ROUTES.add("POST", "/api/v1/jobs/{id}/meta", JOB_WRITERS, "Set a text of a job", body=wire.SetMeta, mutates=True)
async def set_meta(context: ServerContext, call: Call) -> wire.JobMeta:
    """Set or delete a text of a job; at most 100 names, of 4,096 characters each."""
    body: wire.SetMeta = call.body
    if body.value is not None:
        _check_text("value", body.value)
    find = await job_finder(context, call)
    now = context.now()

    def change(tx: Tx) -> wire.JobMeta:
        job = find(tx, call.params["id"])
        if claim_call_key(tx, call, "set meta", show_task(job.id), now=now, subject=job.id):
            annotating.set_meta(tx, job.id, body.name, body.value, now=now, ids=context.ids)
        return wire.JobMeta(values=notes.meta(tx, job.id))

    return await context.db.write(change)


def _check_text(path: str, text: str) -> None:
    """PostgreSQL cannot store NUL."""
    if not is_clean(text):
        raise InvalidRequest([Problem(path, "text with NUL", "text without NUL", "text")])
