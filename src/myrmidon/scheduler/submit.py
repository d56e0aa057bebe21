"""Submit tasks. Jobs are submitted by submit_job.

A submit that was answered is committed. The same request key gives the same answer while its task or job exists; the
same key with a different body is refused. Drafts get their ids before the transaction: a transaction that is repeated
because the outcome of its commit is unknown finds what it stored by these ids.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, json, structs

from myrmidon.model.errors import Conflict, MyrmidonError
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.job import FailurePolicy, Graph
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.states import JobState, TaskState
from myrmidon.model.task_request import TaskRequest
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_validation import parse_task
from myrmidon.scheduler.idempotency import check_key, key_conflict
from myrmidon.scheduler.new_task import NewTask
from myrmidon.scheduler.new_tasks import check_parents, digest_of, open_group, store_new_tasks
from myrmidon.scheduler.new_values import check_lone_functions, check_shared
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import task_request, task_result
from myrmidon.store.tables.job import Job


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """A validated request with the ids it will have; ``job_id`` is used by functions only."""

    task_id: int
    job_id: int
    request: TaskRequest
    request_key: str | None = None
    body_hash: str = ""
    authenticated: str = ""


class Submitted(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a submit. ``task_id`` is 0 when the request was only evaluated."""

    task_id: int
    state: TaskState
    job_id: int | None = None
    deduped_from: int | None = None
    cost_saved_usd: float | None = None
    repeated: bool = False
    queues_to_wake: list[int] = []


def draft_task(
    raw: object,
    *,
    now: Micros,
    ids: IdSource,
    request_key: str | None = None,
    authenticated: str = "",
    limits: Limits = DEFAULT_LIMITS,
    rules: Rules = DEFAULT_RULES,
    original: object = None,
) -> Draft:
    """Validate an untyped request and assign ids; raises InvalidRequest with every problem.

    ``original`` is what the caller sent, if a pool's policy has changed it: repetitions are recognised by that.
    """
    request = parse_task(raw, limits)
    if request_key is not None:
        check_key(request_key)
    task_id, job_id = ids.block(2, now) if request.function else (ids.next(now), 0)
    return Draft(
        task_id=task_id,
        job_id=job_id,
        request=request,
        request_key=request_key,
        body_hash=digest_of(raw if original is None else original, rules.secret_key) if request_key is not None else "",
        authenticated=authenticated,
    )


def submit(
    tx: Tx,
    group_id: int,
    drafts: Sequence[Draft],
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> list[Submitted | MyrmidonError]:
    """Store tasks and make them ready; one result or error per draft, in order."""
    uow = UnitOfWork(tx, now, ids, rules)
    open_group(uow, group_id)
    answers: dict[int, Submitted | MyrmidonError] = {}
    same_key: dict[int, int] = {}
    keyed = [draft for draft in drafts if draft.request_key is not None]
    if keyed:
        answers.update(_answers_for_keys(uow, group_id, keyed, same_key))
    if tx.attempt > 1:
        answers.update(_already_stored(uow, drafts))
    new_tasks: dict[int, NewTask] = {}
    unusual: list[Draft] = []
    for draft in drafts:
        if draft.task_id not in answers and draft.task_id not in same_key:
            new_tasks[draft.task_id] = _new_task(uow, draft)
            r = draft.request
            if r.parent or r.inputs or r.function or r.evaluate_only or r.external_id is not None:
                unusual.append(draft)
    if unusual:
        answers.update(_refusals(uow, group_id, unusual, new_tasks))
    if keyed:
        stored = [draft for draft in keyed if draft.task_id in new_tasks and draft.task_id not in answers]
        answers.update(_store_keys(uow, group_id, stored))
    if answers:
        new_tasks = {task_id: new_task for task_id, new_task in new_tasks.items() if task_id not in answers}
    if new_tasks:
        _store(uow, group_id, new_tasks, answers)
    for task_id, first in same_key.items():
        answers[task_id] = _as_repeat(answers[first])
    return [answers[draft.task_id] for draft in drafts]


def _refusals(
    uow: UnitOfWork, group_id: int, drafts: Sequence[Draft], new_tasks: Mapping[int, NewTask]
) -> dict[int, Submitted | MyrmidonError]:
    """Errors of requests that name other tasks, values, files or an external id; results of those to evaluate only."""
    some = [new_tasks[draft.task_id] for draft in drafts]
    answers: dict[int, Submitted | MyrmidonError] = {}
    answers.update(check_parents(uow, group_id, some))
    answers.update(check_shared(uow, group_id, some))
    answers.update(check_lone_functions(uow, group_id, some))
    taken = check_external_ids(uow, group_id, [p for p in some if p.task_id not in answers])
    if taken:  # perhaps by the same request, which another transaction has stored since the keys were read
        keyed = [draft for draft in drafts if draft.task_id in taken and draft.request_key is not None]
        answers.update({**taken, **_answers_for_keys(uow, group_id, keyed, {})})
    for draft in drafts:
        if draft.request.evaluate_only and draft.task_id not in answers:
            answers[draft.task_id] = Submitted(task_id=0, state=TaskState.WAITING)
    return answers


def _as_repeat(answer: Submitted | MyrmidonError) -> Submitted | MyrmidonError:
    """The result of a draft that repeats another one of the same call."""
    return structs.replace(answer, repeated=True) if isinstance(answer, Submitted) else answer


def _answers_for_keys(
    uow: UnitOfWork, group_id: int, keyed: Sequence[Draft], same_key: dict[int, int]
) -> dict[int, Submitted | MyrmidonError]:
    """Results of drafts whose request key was used before; adds drafts that repeat one of this call to ``same_key``."""
    known = request_keys.read(uow.tx, group_id, [d.request_key for d in keyed if d.request_key])
    answers: dict[int, Submitted | MyrmidonError] = {}
    fresh: dict[str, Draft] = {}
    for draft in keyed:
        key = draft.request_key or ""
        if key not in known:
            first = fresh.setdefault(key, draft)
            if first is not draft and first.body_hash == draft.body_hash:
                same_key[draft.task_id] = first.task_id
            elif first is not draft:
                answers[draft.task_id] = key_conflict(key)
        elif known[key][1] != draft.task_id:
            answers[draft.task_id] = _answer_for_key(uow, draft, *known[key])
    return answers


def _answer_for_key(uow: UnitOfWork, draft: Draft, body_hash: str, subject: int) -> Submitted | MyrmidonError:
    """The result for a request key that was used before: its task, or a conflict."""
    if body_hash != draft.body_hash:
        return key_conflict(draft.request_key or "")
    return _submitted(task_result.read(uow.tx, [subject]).get(subject), subject, repeated=True)


def _submitted(task: TaskResult | None, task_id: int, *, repeated: bool) -> Submitted:
    if task is None:
        return Submitted(task_id=task_id, state=TaskState.WAITING, repeated=repeated)
    return Submitted(
        task_id=task_id,
        state=task.state,
        job_id=task.job_id,
        deduped_from=task.deduped_from,
        cost_saved_usd=task.cost_saved_usd,
        repeated=repeated,
    )


def _already_stored(uow: UnitOfWork, drafts: Sequence[Draft]) -> dict[int, Submitted | MyrmidonError]:
    """Results of drafts that an earlier attempt of this transaction stored, when its outcome was unknown."""
    stored = task_result.read(uow.tx, [draft.task_id for draft in drafts])
    return {task_id: _submitted(task, task_id, repeated=True) for task_id, task in stored.items()}


def _new_task(uow: UnitOfWork, draft: Draft) -> NewTask:
    allowed = draft.request.deadline_s
    return NewTask(
        task_id=draft.task_id,
        request=draft.request,
        authenticated=draft.authenticated,
        deadline_at=uow.now + (allowed * SECOND if allowed is not None else uow.rules.default_deadline),
        job_id=draft.job_id if draft.request.function else None,
        insertion=0 if draft.request.function else None,
    )


def check_external_ids(uow: UnitOfWork, group_id: int, new_tasks: Sequence[NewTask]) -> dict[int, Conflict]:
    """Check that external ids are not used by other tasks of the group; returns errors by task id."""
    named = {p.task_id: p.request.external_id for p in new_tasks if p.request.external_id is not None}
    if not named:
        return {}
    taken = task_request.by_external(uow.tx, group_id, sorted({name for name in named.values() if name}))
    refused = {}
    for task_id, name in named.items():
        if name in taken:
            refused[task_id] = Conflict(
                f"the external id {name} belongs to task {show_task(taken[name])}; choose another one"
            )
        elif name is not None:
            taken[name] = task_id
    return refused


def _store_keys(uow: UnitOfWork, group_id: int, keyed: Sequence[Draft]) -> dict[int, Submitted | MyrmidonError]:
    """Store the request keys; where another transaction was faster, its result is returned."""
    rows = [(group_id, d.request_key or "", d.body_hash, d.task_id, uow.now) for d in keyed]
    if not rows or request_keys.insert(uow.tx, rows) == len(rows):
        return {}
    known = request_keys.read(uow.tx, group_id, [d.request_key for d in keyed if d.request_key])
    lost = [draft for draft in keyed if known[draft.request_key or ""][1] != draft.task_id]
    return {draft.task_id: _answer_for_key(uow, draft, *known[draft.request_key or ""]) for draft in lost}


def _store(
    uow: UnitOfWork,
    group_id: int,
    new_tasks: Mapping[int, NewTask],
    answers: dict[int, Submitted | MyrmidonError],
) -> None:
    """Store tasks, make them ready, and add their results to ``answers``."""
    commands: list[NewTask] = []
    functions: list[NewTask] = []
    for new_task in new_tasks.values():
        (commands if new_task.request.function is None else functions).append(new_task)
    tasks = store_new_tasks(uow, group_id, commands) if commands else []
    for new_task in functions:
        tasks += _store_lone_function(uow, group_id, new_task)
    make_ready(uow, tasks)
    propagate(uow)
    queues_to_wake = sorted(uow.queues_to_wake)
    for task in tasks:
        answers[task.id] = Submitted(
            task_id=task.id,
            state=task.state,
            job_id=task.job_id,
            deduped_from=task.deduped_from,
            cost_saved_usd=task.cost_saved_usd,
            queues_to_wake=queues_to_wake,
        )


def _store_lone_function(uow: UnitOfWork, group_id: int, new_task: NewTask) -> list[TaskResult]:
    """Store a function submitted without a job as a job with one task, because values belong to jobs."""
    graph = Graph(name=new_task.request.name, nodes=[], failure_policy=FailurePolicy.FAIL_FAST)
    job = new_job(uow, group_id, new_task.job_id or 0, graph, deadline_at=new_task.deadline_at)
    uow.add_job(job)
    return store_new_tasks(uow, group_id, [new_task])


def new_job(
    uow: UnitOfWork, group_id: int, job_id: int, graph: Graph, *, deadline_at: Micros, staged: bool = False
) -> Job:
    return Job(
        id=job_id,
        resource_group_id=group_id,
        external_id=graph.external_id,
        name=graph.name,
        routing=graph.routing,
        creation_time=uow.now,
        state=JobState.RUNNING,
        seq=0 if staged else 1,
        max_num_retries=graph.max_num_retries,
        num_retries=0,
        failure_policy=graph.failure_policy,
        staged=int(staged),
        sealed_at=None,
        blocked_by=None,
        error=None,
        deadline_at=deadline_at,
        ended_at=None,
        due_at=uow.now + uow.rules.staging_limit if staged else None,
        num_tasks=0,
        num_succeeded=0,
        num_failed=0,
        num_active=0,
        num_chunked_work=0,
        tags=json.encode(graph.tags).decode(),
        metadata=json.encode(graph.metadata).decode(),
    )
