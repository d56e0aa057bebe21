"""The calls of TaskCluster's graph scheduler. A task-graph is a job; its id is the job's external id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET, Raw

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros, show_task, try_parse_id
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.new_tasks import digest_of
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import ANYONE, MIB, READERS, WRITERS, Call, ErrorReply, Route, Style, joined_message
from myrmidon.server.context import ServerContext
from myrmidon.server.taskcluster import messages, render
from myrmidon.server.taskcluster.documents import (
    GRAPH_ID,
    IGNORED_IN_PAYLOAD,
    ConvertedGraph,
    GraphTarget,
    convert_graph,
)
from myrmidon.server.usecases import jobs as job_usecases
from myrmidon.server.usecases.jobs import find_job
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import task_request
from myrmidon.store.tables.job import Job
from myrmidon.store.views import task_graph

DOCUMENT_LIMIT = 64 * MIB
_ATTEMPTS = 3


def _error_reply(status: int, details: Mapping[str, Any]) -> ErrorReply:
    """An error as TaskCluster's clients expect it."""
    return ErrorReply(status, {"message": joined_message(details), "error": details})


STYLE: Final = Style(
    "taskcluster scheduler v1", "/v1/", tolerant=True, cross_origin=True, takes_hawk=True, error_reply=_error_reply
)


async def ping(context: ServerContext, call: Call) -> messages.Ping:
    """Answer while the server runs."""
    return messages.Ping(alive=True, uptime=(context.now() - context.state.started_at) / SECOND)


# ---------------------------------------------------------------- create and extend


async def create_graph(context: ServerContext, call: Call) -> messages.StatusReply:
    """Store a task-graph and start it. The same content again is the same task-graph; other content is a conflict."""
    graph_id = call.params["id"]
    if not GRAPH_ID.fullmatch(graph_id):
        raise InvalidRequest([Problem("taskGraphId", graph_id[:100], "1 to 22 letters, digits, - and _", "pattern")])
    async with context.large_documents.enter(call.body_size):
        return await _create(context, call, graph_id)


async def _create(context: ServerContext, call: Call, graph_id: str) -> messages.StatusReply:
    document = await context.db.run_in_thread(partial(job_usecases.decode_document, call.body))
    converted = await context.db.run_in_thread(partial(convert_graph, document, _target(context, graph_id)))
    key, group_id = f"PUT task-graph {graph_id}", await context.groups.id_for(call)
    body_hash = await context.db.run_in_thread(partial(digest_of, converted.sent, context.rules.secret_key))
    stored_hash, stored = await context.db.read(partial(_stored_before, group_id=group_id, key=key))
    if stored is None or stored_hash == body_hash:
        # Content that is stored is not validated again: by now its deadlines may have passed.
        job = stored or await _store(context, call, converted, key)
    else:
        await context.db.run_in_thread(partial(_draft, context, call, converted, key, context.now()))
        raise Conflict(f"The task-graph {graph_id} exists with other content; choose another taskGraphId.")
    routing = job.routing if "routing" in document else UNSET
    return messages.StatusReply(render.status(job, context.limits.deployment, routing))


def _target(context: ServerContext, graph_id: str, labels: dict[str, str] | None = None) -> GraphTarget:
    return GraphTarget(graph_id=graph_id, scheduler_id=context.limits.deployment, limits=context.limits, labels=labels)


def _stored_before(tx: Tx, *, group_id: int, key: str) -> tuple[str, Job | None]:
    """The job that was created under this key, and the digest of its content."""
    stored_hash, job_id = request_keys.read(tx, group_id, [key]).get(key, ("", 0))
    return stored_hash, jobs.read(tx, [job_id]).get(job_id) if stored_hash else None


def _draft(context: ServerContext, call: Call, converted: ConvertedGraph, key: str, now: Micros) -> JobDraft:
    """Validate a task-graph; all problems are raised together."""
    group = context.groups.name_for(call)
    try:
        prepare = partial(job_usecases.prepare_document, context, call, converted.document, {}, group=group, now=now)
        prepared = prepare(sent=converted.sent, ignored=IGNORED_IN_PAYLOAD)
        drafted = job_usecases.draft_job(context, call, prepared, key=key, now=now)
    except InvalidRequest as error:
        raise InvalidRequest(_joined(converted.problems, error.problems)) from None
    if converted.problems:
        raise InvalidRequest(converted.problems)
    return drafted


async def _store(context: ServerContext, call: Call, converted: ConvertedGraph, key: str) -> Job:
    now, group = context.now(), context.groups.name_for(call)
    draft = await context.db.run_in_thread(partial(_draft, context, call, converted, key, now))
    stored = await job_usecases.store_job(context, call, group, draft, now=now)
    return await context.db.read(lambda tx: _read_job(tx, stored.job_id))


def _joined(first: list[Problem], others: list[Problem]) -> list[Problem]:
    """All problems; one that conversion and validation both found is named once."""
    return [*first, *(problem for problem in others if problem not in first)]


def _read_job(tx: Tx, job_id: int) -> Job:
    job = jobs.read(tx, [job_id]).get(job_id)
    if job is None:
        raise NotFound("job", show_task(job_id))
    return job


async def extend_graph(context: ServerContext, call: Call) -> messages.StatusReply:
    """Add tasks to a task-graph. Tasks that it has already are left out if they are the same."""
    job = await job_usecases.get_job(context, call, call.params["id"])
    async with context.large_documents.enter(call.body_size):
        return await _extend_with_retries(context, call, job)


async def _extend_with_retries(context: ServerContext, call: Call, job: Job) -> messages.StatusReply:
    document = await context.db.run_in_thread(partial(job_usecases.decode_document, call.body))
    names = await _names(context, job)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await _extend(context, call, job, document, names)
            break
        except Conflict:
            # Another call may have added a task of the same name meanwhile: then this one gets another label.
            before, names = names, await _names(context, job)
            if names == before or attempt == _ATTEMPTS:
                raise
    job = await context.db.read(lambda tx: _read_job(tx, job.id))
    return messages.StatusReply(render.status(job, context.limits.deployment))


async def _names(context: ServerContext, job: Job) -> list[tuple[str, int, str | None]]:
    return await context.db.read(lambda tx: task_graph.names(tx, job.id))


async def _extend(
    context: ServerContext, call: Call, job: Job, document: Any, names: list[tuple[str, int, str | None]]
) -> None:
    labels = {external_id or show_task(task_id): label for label, task_id, external_id in names}
    target = _target(context, job.external_id or show_task(job.id), labels)
    converted = await context.db.run_in_thread(partial(convert_graph, document, target))
    if converted.problems:
        raise InvalidRequest(converted.problems)
    extend = partial(job_usecases.extend_job, context, call, job, converted.document, {})
    await extend(sent=converted.sent, ignored=IGNORED_IN_PAYLOAD)


# ---------------------------------------------------------------- look at a graph


async def graph_status(context: ServerContext, call: Call) -> messages.StatusReply:
    """Say whether a task-graph runs, is blocked or has finished."""
    job = await job_usecases.get_job(context, call, call.params["id"])
    return messages.StatusReply(render.status(job, context.limits.deployment))


async def graph_info(context: ServerContext, call: Call) -> messages.InfoReply:
    """The status of a task-graph with its metadata and tags."""
    job = await job_usecases.get_job(context, call, call.params["id"])
    return messages.InfoReply(
        status=render.status(job, context.limits.deployment), metadata=render.metadata(job), tags=render.tags(job)
    )


async def inspect_graph(context: ServerContext, call: Call) -> messages.InspectReply:
    """A task-graph with the state of each of its tasks."""
    scope, group_id = await context.groups.scope_of(call), await context.groups.id_for(call)

    def read(tx: Tx) -> messages.InspectReply:
        job = find_job(tx, call.params["id"], scope=scope, group_id=group_id)
        tasks, edges = task_graph.graph(tx, job.id)
        return messages.InspectReply(
            status=render.status(job, context.limits.deployment),
            tasks=render.tasks(tasks, edges, {task.id: render.task_id(task) for task in tasks}),
            metadata=render.metadata(job),
            tags=render.tags(job),
            scopes=render.scopes(job),
        )

    return await context.db.read(read)


async def inspect_task(context: ServerContext, call: Call) -> messages.TaskInfo:
    """The state of one task of a task-graph."""
    scope, group_id = await context.groups.scope_of(call), await context.groups.id_for(call)

    def read(tx: Tx) -> messages.TaskInfo:
        job = find_job(tx, call.params["id"], scope=scope, group_id=group_id)
        task = _find_task(tx, job, call.params["task"])
        edges = task_graph.edges_of(tx, task.id)
        others = task_graph.tasks_by_id(tx, sorted({side for edge in edges for side in (edge.parent, edge.child)}))
        return render.tasks([task], edges, {one.id: render.task_id(one) for one in others.values()})[0]

    return await context.db.read(read)


def _find_task(tx: Tx, job: Job, text: str) -> task_graph.GraphTask:
    """The task of a job with the id that its client chose, or with this id."""
    parsed = try_parse_id(text)
    found = task_request.by_external(tx, job.resource_group_id, [text]).get(text)
    candidates = [found] if found is not None else [parsed[0]] if parsed and not parsed[1] else []
    task = next(iter(task_graph.tasks_by_id(tx, candidates).values()), None)
    if task is None or task.job_id != job.id:
        raise NotFound("task", text[:100])
    return task


def _get(path: str, call: Any, out: Any, summary: str, **more: Any) -> Route:
    return Route(
        method="GET", path=path, call=call, out=out, summary=summary, style=STYLE,
        **{"who": READERS, **more},
    )  # fmt: skip


def _change(method: str, path: str, call: Any, summary: str) -> Route:
    return Route(
        method=method,
        path=path,
        call=call,
        who=WRITERS,
        body=Raw,
        out=messages.StatusReply,
        mutates=True,
        body_limit=DOCUMENT_LIMIT,
        style=STYLE,
        summary=summary,
    )


ROUTES = (
    _get("/v1/ping", ping, messages.Ping, "Answer while the server runs", who=ANYONE, vital=True, quiet=True),
    _change("PUT", "/v1/task-graph/{id}", create_graph, "Create a task-graph"),
    _change("POST", "/v1/task-graph/{id}/extend", extend_graph, "Add tasks to a task-graph"),
    _get("/v1/task-graph/{id}/status", graph_status, messages.StatusReply, "Get the status of a task-graph"),
    _get("/v1/task-graph/{id}/info", graph_info, messages.InfoReply, "Get metadata and tags of a task-graph"),
    _get("/v1/task-graph/{id}/inspect", inspect_graph, messages.InspectReply, "Get a task-graph with its tasks"),
    _get("/v1/task-graph/{id}/inspect/{task}", inspect_task, messages.TaskInfo, "Get a task of a task-graph"),
)
