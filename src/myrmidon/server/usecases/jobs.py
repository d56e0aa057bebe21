"""Submitting, extending and finding jobs, the same way for every API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import MsgspecError, Raw, Struct, json, structs

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros, try_parse_id
from myrmidon.model.job import Graph
from myrmidon.model.limits import DEFAULT_LIMITS
from myrmidon.model.parameters import apply_parameters
from myrmidon.model.short_form import Ignored, ShortForms, expand_tasks, rename_problems
from myrmidon.model.shown_input import NOTHING, kind_of
from myrmidon.model.validation import Checker
from myrmidon.scheduler import extend as extending
from myrmidon.scheduler import job_draft, rerun, submit_job
from myrmidon.scheduler.extend import Extended
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.submit_job import JobSubmitted
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import write_and_assign
from myrmidon.server.fleet.pool_policy import apply_pool_policy
from myrmidon.server.large_documents import LARGE_BYTES, free_parts
from myrmidon.server.usecases.submit import check_served, store_within_quota
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import task_result
from myrmidon.store.tables.chunked_work import STAGED
from myrmidon.store.tables.job import Job

T = TypeVar("T")

_MAX_BLANKS = 64
"""A document that begins with more blanks is decoded as a whole."""
_decode_node = json.Decoder().decode


class Document(Struct, frozen=True):
    """A graph document as it was sent, and as it is stored: with parameters, requests and the policies of its pools."""

    original: object
    applied: object
    short: ShortForms
    problems: list[Problem] = []
    """Those of short tasks, which the requests that were made of them do not show."""

    def with_all_problems(self, error: InvalidRequest) -> InvalidRequest:
        """The problems of the requests and of the short tasks, with the paths that the document has."""
        known = [problem for problem in error.problems if problem not in self.problems]
        return rename_problems(InvalidRequest([*self.problems, *known]), self.short)


def decode_document(raw: Raw | bytes) -> Any:
    """Parse the JSON of a document. Decoding the body has only skipped over it, so errors show here.

    Task by task: the decoder does not let other threads run, and a whole document of 64 MiB takes it a second.
    """
    try:
        fields = _decode_parts(raw, b"{", dict[str, Raw])
        if fields is None:
            return json.decode(raw)
        tasks = fields.pop("tasks", None)
        document = {key: json.decode(value) for key, value in fields.items()}
        if tasks is not None:
            document["tasks"] = _decode_tasks(tasks)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest([Problem("job", str(error), "JSON", "json")]) from None
    return document


def _decode_tasks(raw: Raw) -> Any:
    """The tasks; InvalidRequest for more than any job may have, before anything is done with them."""
    parts = _decode_parts(raw, b"{", dict[str, Raw]) or _decode_parts(raw, b"[", list[Raw])
    if not parts:
        return json.decode(raw)
    if len(parts) > DEFAULT_LIMITS.nodes:
        raise InvalidRequest([Problem("tasks", kind_of(parts), f"1..{DEFAULT_LIMITS.nodes} tasks", "too_many")])
    if isinstance(parts, dict):
        return {label: _decode_node(node) for label, node in parts.items()}
    return [_decode_node(node) for node in parts]


def _decode_parts(raw: Raw | bytes, begin: bytes, kind: type[T]) -> T | None:
    """The parts of an object or of a list, not decoded; None if the text is not one."""
    text = memoryview(raw)[:_MAX_BLANKS].tobytes().lstrip()
    return json.decode(raw, type=kind) if text.startswith(begin) else None


def prepare_document(
    context: ServerContext,
    call: Call,
    document: object,
    parameters: Mapping[str, Any],
    *,
    group: str,
    now: Micros,
    sent: object = None,
    ignored: Ignored = NOTHING,
) -> Document:
    """Apply everything that happens to a document before it is validated.

    ``sent`` is what the client sent, if the document was converted from another form, which has no parameters.
    ``ignored``: fields of payloads that the API accepts without effect.
    """
    original = apply_parameters(document, parameters) if sent is None else sent
    check, short = Checker(context.limits), ShortForms()
    pool = context.settings.default_pool
    given = original if sent is None else document
    expanded = expand_tasks(check, given, short, default_pool=pool, now=now, ignored=ignored)
    call.warnings += check.warnings()
    return Document(original, _apply_policies(context, call, expanded, group), short, check.problems)


def _apply_policies(context: ServerContext, call: Call, document: object, group: str) -> object:
    """The document with the policy of each task's pool; all problems of all tasks are raised together."""
    tasks = document.get("tasks") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(tasks, (dict, list)):
        return document
    items: list[tuple[Any, Any]] = list(tasks.items()) if isinstance(tasks, dict) else list(enumerate(tasks))
    problems: list[Problem] = []
    applied: dict[Any, Any] = {}
    for key, node in items:
        applied[key] = node
        if not isinstance(node, dict) or not isinstance(node.get("task"), dict):
            continue
        try:
            task, _ = apply_pool_policy(context, call.who, node["task"], group=group)
        except InvalidRequest as error:
            problems += [below(f"tasks{_step(key)}.task", problem) for problem in error.problems]
            continue
        if task is not node["task"]:
            applied[key] = {**node, "task": task}
    if problems:
        raise InvalidRequest(problems)
    return {**document, "tasks": applied if isinstance(tasks, dict) else list(applied.values())}


def _step(key: str | int) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def below(prefix: str, problem: Problem) -> Problem:
    """The same problem of a part of a larger request."""
    return Problem(f"{prefix}.{problem.path}", problem.value, problem.allowed, problem.code)


def _check_supported(graph: Graph) -> None:
    problems: list[Problem] = []
    for node in graph.nodes:
        try:
            check_served(node.request, in_job=True)
        except InvalidRequest as error:
            problems += [below(f"tasks.{node.label}.task", problem) for problem in error.problems]
    if problems:
        raise InvalidRequest(problems)


def draft_job(
    context: ServerContext, call: Call, document: Document, *, key: str | None, now: Micros, resume: bool = False
) -> JobDraft:
    """Validate a prepared document and give ids to its tasks."""
    try:
        draft = job_draft.draft_job(
            document.applied,
            now=now,
            ids=context.ids,
            request_key=key,
            authenticated=call.who.name,
            limits=context.limits,
            rules=context.rules,
            original=document.original,
            resume=resume,
        )
        _check_supported(draft.graph)
    except InvalidRequest as error:
        raise document.with_all_problems(error) from None
    if document.problems:
        raise document.with_all_problems(InvalidRequest([]))
    return draft


async def store_job(context: ServerContext, call: Call, group: str, draft: JobDraft, *, now: Micros) -> JobSubmitted:
    """Store a job within the quota of its group. Its last transaction assigns tasks to waiting bots.

    The draft of a large document has no nodes afterwards.
    """
    num_tasks = len(draft.graph.nodes)
    stored = await store_within_quota(
        context,
        call,
        group,
        num_tasks=num_tasks,
        keys=lambda: [draft.request_key],
        store=partial(_run_steps, context, draft=draft, now=now),
        tasks_per_key=num_tasks,
    )
    if call.body_size >= LARGE_BYTES:
        # Only now: a transaction that nobody waits for any more may still use the draft.
        await context.db.run_in_thread(partial(free_parts, draft.graph.nodes))
    return stored


async def store_jobs(
    context: ServerContext, call: Call, group: str, drafts: Sequence[JobDraft], *, now: Micros
) -> list[JobSubmitted]:
    """Store small jobs within the quota of their group, in one transaction: all of them, or none."""

    async def store(group_id: int) -> list[JobSubmitted]:
        submit = partial(
            submit_job.submit_jobs,
            group_id=group_id,
            drafts=drafts,
            request_key=call.request_key,
            now=now,
            ids=context.ids,
            rules=context.rules,
        )
        return await write_and_assign(context, submit, size=num_tasks)

    num_tasks = sum(len(draft.graph.nodes) for draft in drafts)
    return await store_within_quota(
        context,
        call,
        group,
        num_tasks=num_tasks,
        keys=lambda: [drafts[0].request_key],  # an earlier call has stored all jobs, or none
        store=store,
        tasks_per_key=num_tasks,
    )


async def _run_steps(context: ServerContext, group_id: int, *, draft: JobDraft, now: Micros) -> JobSubmitted:
    *staging, commit = submit_job.submit_steps(group_id, draft, now=now, ids=context.ids, rules=context.rules)
    for stage in staging:
        staged = await context.db.write(stage, size=STAGED)
        if staged.repeated:
            return staged
    stored = await write_and_assign(context, commit, size=STAGED if staging else len(draft.graph.nodes))
    if staging:
        context.more_chunked_work.set()  # its tasks are started there
    return stored


async def rerun_failed(context: ServerContext, stored: JobSubmitted) -> JobSubmitted:
    """Run again what did not succeed in a job that was found in the state FAILED."""
    again = partial(rerun.rerun_job, job_id=stored.job_id, now=context.now(), ids=context.ids, rules=context.rules)
    job = await context.db.write(again)
    return structs.replace(stored, state=job.state)


async def extend_job(
    context: ServerContext,
    call: Call,
    job: Job,
    document: object,
    parameters: Mapping[str, Any],
    *,
    check: Callable[[Tx], None] | None = None,
    sent: object = None,
    ignored: Ignored = NOTHING,
) -> Extended:
    """Add the tasks of a document to a job; ``check`` runs first in the same transaction.

    ``sent`` and ``ignored`` as in prepare_document.
    """
    now = context.now()
    names = await context.groups.names_of([job.resource_group_id])
    group = names.get(job.resource_group_id, "")
    given = partial(prepare_document, context, call, document, parameters, group=group, now=now)
    prepared = await context.db.run_in_thread(partial(given, sent=sent, ignored=ignored))
    num_tasks = len(tasks_of(document))

    def extend(tx: Tx) -> Extended:
        if check is not None:
            check(tx)
        if prepared.problems:
            raise InvalidRequest(prepared.problems)
        return extending.extend(
            tx,
            job.id,
            prepared.applied,
            group_id=job.resource_group_id,
            now=now,
            ids=context.ids,
            authenticated=call.who.name,
            limits=context.limits,
            rules=context.rules,
            original=prepared.original,
            check_graph=_check_supported,
            by=call.who.task_id,
        )

    reserved = await context.quotas.reserve(
        group, job.resource_group_id, tasks=num_tasks, num_bytes=call.body_size, now=call.now, count_stored=lambda _: 0
    )
    try:
        return await write_and_assign(context, extend, size=num_tasks)
    except InvalidRequest as error:
        raise prepared.with_all_problems(error) from None
    finally:
        reserved.end()


def tasks_of(document: object) -> Any:
    tasks = document.get("tasks") if isinstance(document, dict) else None
    return tasks if isinstance(tasks, (dict, list)) else ()


# ---------------------------------------------------------------- finding jobs


def find_job(tx: Tx, text: str, *, scope: int | None, group_id: int, only: int | None = None) -> Job:
    """The job with this id, or with this external id in the group; NotFound if the caller may not see it.

    ``only``: the only job that the caller may see, which a run is bound to; None for all of its group.
    """
    parsed = try_parse_id(text)
    job = jobs.read(tx, [parsed[0]]).get(parsed[0]) if parsed and not parsed[1] else None
    if job is None and (found := jobs.by_external(tx, group_id, text)) is not None:
        job = jobs.read(tx, [found]).get(found)
    hidden = job is not None and ((scope is not None and job.resource_group_id != scope) or only not in (None, job.id))
    if job is None or job.staged or hidden:
        task = task_result.read(tx, [parsed[0]]).get(parsed[0]) if parsed and only is None else None
        is_task = task is not None and task.seq and scope in (None, task.resource_group_id)
        raise NotFound("job", text[:100], but="task" if is_task else "")
    return job


async def job_finder(context: ServerContext, call: Call, group: str | None = None) -> Callable[..., Job]:
    """``find_job`` with the rights of the caller; ``group``: where an external id is looked up."""
    scope, group_id = await context.groups.scope_of(call), await context.groups.id_for(call, group)
    return partial(find_job, scope=scope, group_id=group_id, only=call.who.job_id)


async def get_job(context: ServerContext, call: Call, text: str, *, group: str | None = None) -> Job:
    """As find_job, in a transaction of its own."""
    return await context.db.read(partial(await job_finder(context, call, group), text=text))
