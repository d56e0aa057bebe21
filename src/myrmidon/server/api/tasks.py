"""Tasks: one in full, lists, recent tags, waiting for their end; texts that tasks add to themselves and to their job.

A caller whose token is bound to a resource group sees only that group's tasks; for others it gets NotFound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from msgspec import structs

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import parse_id, show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.model.states import FINAL
from myrmidon.model.validation import is_clean
from myrmidon.scheduler import annotate as annotating
from myrmidon.scheduler.outages import Silence, silent_runs
from myrmidon.server.calls import JOB_READERS, JOB_WRITERS, READERS, Call, Role, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.jobs import get_job, job_finder
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import show_error
from myrmidon.server.usecases.tasks import filter_of_query, get_visible_task, parse_path_id, recent_tags
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import notes, task_request, task_result, task_run
from myrmidon.store.views import listings, run_details, task_details
from myrmidon.store.views.selection import decode_stored
from myrmidon.wire import notes as wire
from myrmidon.wire.fields import Done
from myrmidon.wire.tasks import (
    Mode,
    RunInfo,
    TagInfo,
    TagList,
    TaskEnd,
    TaskInfo,
    TaskList,
    TaskQuery,
    Waited,
    WaitRequest,
)

ROUTES = Routes()

# ---------------------------------------------------------------- one task


@ROUTES.add("GET", "/api/v1/tasks/{id}", READERS, "Get a task")
async def get_task(context: ServerContext, call: Call) -> TaskInfo:
    """A task with its request, its result and all its runs."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> TaskInfo:
        get_visible_task(tx, task_id, scope)
        secret = task_request.secrets(tx, [task_id]).get(task_id)
        forms = SecretForms(secret) if secret else None
        runs = task_details.runs(tx, task_id)
        silent: Mapping[tuple[int, int], Silence] = {}
        if any(run.ended_at is None for run, _ in runs):
            silent = silent_runs(tx, task_run.read(tx, [task_id]), now=context.now(), rules=context.rules)
        shown = [_shown(run, error, forms, silent.get((task_id, run.number))) for run, error in runs]
        task = task_details.read(tx, task_id, shown, has_secret=secret is not None)
        annotation = show_annotation(notes.read(tx, task_id), forms)
        return structs.replace(task, annotation=annotation) if annotation is not None else task

    return await context.db.read(read)


def _shown(run: RunInfo, error: str | None, forms: SecretForms | None, silence: Silence | None) -> RunInfo:
    """A run with its error, and with the secret of its task masked: texts can repeat output of the task."""
    if error is not None:
        run = structs.replace(run, error=show_error(error, forms))
    if silence is not None:
        run = structs.replace(run, silent_since=silence.since, given_up_at=silence.given_up_at)
    if forms is not None and run.evidence is not None:
        evidence = decode_stored(run.evidence)
        if isinstance(message := evidence.get("message"), str):
            run = structs.replace(run, evidence={**evidence, "message": forms.mask_text(message)})
    return run


# ---------------------------------------------------------------- lists


@ROUTES.add("GET", "/api/v1/tasks", READERS, "List tasks", query=TaskQuery)
async def list_tasks(context: ServerContext, call: Call) -> TaskList:
    """Tasks that match all filters, ordered by time of creation."""
    query: TaskQuery = call.query
    kind = f"tasks {query.sort}"
    cursor = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else None
    task_filter = await filter_of_query(context, call, query)

    found, more = await context.db.read(
        lambda tx: listings.tasks(tx, task_filter, n=query.limit, cursor=cursor, oldest_first=query.sort == "oldest")
    )
    return TaskList(found, show_cursor(context.keys.cursor, kind, str(more)) if more else None)


@ROUTES.add("GET", "/api/v1/tasks/tags", READERS, "List tags of the newest tasks")
async def list_tags(context: ServerContext, call: Call) -> TagList:
    """Tags of the newest tasks that the caller may see."""
    return TagList([TagInfo(key, values) for key, values in (await recent_tags(context, call)).items()])


# ---------------------------------------------------------------- wait


RECHECK_S = 5.0
"""The time between two reads of states without a notification: another server may have written them."""
MAX_WAIT_S = 120.0


@ROUTES.add("POST", "/api/v1/tasks/wait", READERS, "Wait until tasks have ended", body=WaitRequest, waits=True)
async def wait(context: ServerContext, call: Call) -> Waited:
    """Wait until any or all of these tasks have ended, or the time is up."""
    body: WaitRequest = call.body
    ids = [parse_id(shown, f"task_ids[{number}]")[0] for number, shown in enumerate(body.task_ids)]
    group = await context.groups.scope_of(call)
    clock = asyncio.get_running_loop().time
    deadline = clock() + min(body.wait_s, MAX_WAIT_S)
    waiting = set(ids)
    while True:
        watched = waiting if body.mode is Mode.ANY else {max(waiting, default=0)}
        with context.hub.watch_ends(watched) as watch:
            ended, response = await context.db.read(
                partial(_check, ids=ids, waiting=waiting, mode=body.mode, group=group)
            )
            waiting = waiting - ended
            remaining_s = deadline - clock()
            if response is not None:
                return response
            if remaining_s <= 0 or context.hub.stopping:
                return await context.db.read(lambda tx: Waited(done=False, tasks=_ends(tx, ids)))
            if not watched & ended:
                await watch.wait(min(remaining_s, RECHECK_S))


def _check(
    tx: Tx, ids: Sequence[int], waiting: AbstractSet[int], mode: Mode, group: int | None
) -> tuple[set[int], Waited | None]:
    """Which of the waiting tasks have ended, and the response if the condition is met."""
    states = task_result.groups_and_states(tx, sorted(waiting))
    for task_id in waiting:
        if task_id not in states or group not in (None, states[task_id][0]):
            raise NotFound("task", show_task(task_id))
    ended = {task_id for task_id, (_, state) in states.items() if state in FINAL}
    done = len(ended) == len(waiting) or (mode is Mode.ANY and bool(ended))
    return ended, Waited(done=True, tasks=_ends(tx, ids)) if done else None


def _ends(tx: Tx, ids: Sequence[int]) -> list[TaskEnd]:
    ends = run_details.ends(tx, sorted(set(ids)))
    return [ends[task_id] for task_id in ids if task_id in ends]


# ---------------------------------------------------------------- texts of tasks and jobs


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
