"""Submitting tasks. Graphs have a file of their own.

A submit that was answered is on disk. The same request key gives the same answer
for as long as its task or job exists; the same key with another body is refused.
Drafts are made at the door, with the ids that the tasks will have: a call that is
repeated because nobody knows whether it was committed finds its own ids.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from msgspec import Struct, json, structs

from myrmidon.model.errors import Conflict, InvalidRequest, MyrmidonError, Problem
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.job import FailurePolicy, Graph
from myrmidon.model.states import JobState, TaskState
from myrmidon.model.task_parsing import parse_task
from myrmidon.model.task_request import TaskRequest
from myrmidon.model.task_result import TaskResult
from myrmidon.model.validation import DEFAULT_LIMITS, Limits, is_clean, show_value
from myrmidon.scheduler.new_tasks import Plan, check_parents, check_shared, digest_of, open_group, store_plans
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.scheduler.propagate import settle
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import task_request, task_result
from myrmidon.store.tables.job import Job

_KEY_CHARS = 256


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """A checked request with the ids it will have; ``job_id`` is used by functions only."""

    task_id: int
    job_id: int
    request: TaskRequest
    request_key: str | None = None
    body_hash: str = ""
    authenticated: str = ""


class Submitted(Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a submit. ``task_id`` is 0 when the request was only evaluated."""

    task_id: int
    state: TaskState
    job_id: int | None = None
    deduped_from: int | None = None
    cost_saved_usd: float | None = None
    repeated: bool = False
    woken: list[int] = []


def draft_task(
    raw: object,
    *,
    now: Micros,
    ids: IdSource,
    request_key: str | None = None,
    authenticated: str = "",
    limits: Limits = DEFAULT_LIMITS,
    rules: Rules = DEFAULT_RULES,
    said: object = None,
) -> Draft:
    """Check an untyped request and give it ids; InvalidRequest names everything that is wrong with it.

    ``said`` is what the caller sent, where a pool's rules have made another request of it: a repeat is told by that.
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
        body_hash=digest_of(raw if said is None else said, rules.secret_key) if request_key is not None else "",
        authenticated=authenticated,
    )


def check_key(key: str) -> None:
    if not (0 < len(key) <= _KEY_CHARS and is_clean(key)):
        allowed = f"1 to {_KEY_CHARS} characters"
        raise InvalidRequest([Problem("request_key", show_value(key), allowed, "length")])


def submit(
    tx: Tx,
    group_id: int,
    drafts: Sequence[Draft],
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> list[Submitted | MyrmidonError]:
    """Store tasks and let them run; one answer or error per draft, in order."""
    turn = Turn(tx, now, ids, rules)
    open_group(turn, group_id)
    twins: dict[int, int] = {}
    answers: dict[int, Submitted | MyrmidonError] = _repeated(turn, group_id, drafts, twins)
    if tx.attempt > 1:
        answers.update(_already_stored(turn, drafts))
    plans = {d.task_id: _plan(turn, d) for d in drafts if d.task_id not in answers and d.task_id not in twins}
    answers.update(check_parents(turn, group_id, plans.values()))
    answers.update(check_shared(turn, group_id, plans.values()))
    answers.update(taken_names(turn, group_id, [p for p in plans.values() if p.task_id not in answers]))
    for draft in drafts:
        if draft.request.evaluate_only and draft.task_id in plans and draft.task_id not in answers:
            answers[draft.task_id] = Submitted(task_id=0, state=TaskState.WAITING)
    new = [draft for draft in drafts if draft.task_id in plans and draft.task_id not in answers]
    answers.update(_remember_keys(turn, group_id, new))
    new = [draft for draft in new if draft.task_id not in answers]
    answers.update(_store(turn, group_id, new, plans))
    answers.update({task_id: _like(answers[first]) for task_id, first in twins.items()})
    return [answers[draft.task_id] for draft in drafts]


def _like(answer: Submitted | MyrmidonError) -> Submitted | MyrmidonError:
    """The answer to the same request, made twice in one call."""
    return structs.replace(answer, repeated=True) if isinstance(answer, Submitted) else answer


def _repeated(
    turn: Turn, group_id: int, drafts: Sequence[Draft], twins: dict[int, int]
) -> dict[int, Submitted | MyrmidonError]:
    """Answers to drafts whose request key is known; in ``twins``, those that repeat one of the same call."""
    keyed = [draft for draft in drafts if draft.request_key is not None]
    if not keyed:
        return {}
    known = request_keys.read(turn.tx, group_id, [d.request_key for d in keyed if d.request_key])
    answers: dict[int, Submitted | MyrmidonError] = {}
    fresh: dict[str, Draft] = {}
    for draft in keyed:
        key = draft.request_key or ""
        if key not in known:
            first = fresh.setdefault(key, draft)
            if first is not draft and first.body_hash == draft.body_hash:
                twins[draft.task_id] = first.task_id
            elif first is not draft:
                answers[draft.task_id] = other_body(key)
        elif known[key][1] != draft.task_id:
            answers[draft.task_id] = _same(turn, draft, *known[key])
    return answers


def other_body(key: str) -> Conflict:
    return Conflict(f"the request key {key} was used for another request; use a new key for a new request")


def was_asked(
    tx: Tx,
    verb: str,
    request_key: str,
    what: object,
    *,
    now: Micros,
    group_id: int = request_keys.NO_GROUP,
    subject: int = request_keys.NO_SUBJECT,
) -> bool:
    """Whether a verb other than submit came with this key before; Conflict if it asked for something else then."""
    key, asked = f"{verb}:{sha256(request_key.encode()).hexdigest()}", sha256(json.encode(what)).hexdigest()
    if request_keys.insert(tx, [(group_id, key, asked, subject, now)]):
        return False
    if request_keys.read(tx, group_id, [key])[key][0] != asked:
        raise Conflict(f"the request key was used for another {verb}; use a new key for a new request")
    return True


def _same(turn: Turn, draft: Draft, body_hash: str, subject: int) -> Submitted | MyrmidonError:
    """The answer of the task or job that has this request key."""
    if body_hash != draft.body_hash:
        return other_body(draft.request_key or "")
    return _answer(task_result.read(turn.tx, [subject]).get(subject), subject, repeated=True)


def _answer(task: TaskResult | None, task_id: int, *, repeated: bool) -> Submitted:
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


def _already_stored(turn: Turn, drafts: Sequence[Draft]) -> dict[int, Submitted | MyrmidonError]:
    """The outcome of an earlier commit was unknown: what it stored, if it did."""
    stored = task_result.read(turn.tx, [draft.task_id for draft in drafts])
    return {task_id: _answer(task, task_id, repeated=True) for task_id, task in stored.items()}


def _plan(turn: Turn, draft: Draft) -> Plan:
    allowed = draft.request.deadline_s
    return Plan(
        task_id=draft.task_id,
        request=draft.request,
        authenticated=draft.authenticated,
        deadline_at=turn.now + (allowed * SECOND if allowed is not None else turn.rules.default_deadline),
        job_id=draft.job_id if draft.request.function else None,
        insertion=0 if draft.request.function else None,
    )


def taken_names(turn: Turn, group_id: int, plans: Sequence[Plan]) -> dict[int, Conflict]:
    """Client-chosen ids name one task of a group for ever."""
    named = {p.task_id: p.request.external_id for p in plans if p.request.external_id is not None}
    if not named:
        return {}
    taken = task_request.by_external(turn.tx, group_id, sorted({name for name in named.values() if name}))
    refused = {}
    for task_id, name in named.items():
        if name in taken:
            refused[task_id] = Conflict(
                f"the external id {name} belongs to task {show_task(taken[name])}; choose another one"
            )
        elif name is not None:
            taken[name] = task_id
    return refused


def _remember_keys(turn: Turn, group_id: int, drafts: Sequence[Draft]) -> dict[int, Submitted | MyrmidonError]:
    """Take the request keys; where another server was faster, its answer is the answer."""
    keyed = [draft for draft in drafts if draft.request_key is not None]
    rows = [(group_id, d.request_key or "", d.body_hash, d.task_id, turn.now) for d in keyed]
    if not rows or request_keys.insert(turn.tx, rows) == len(rows):
        return {}
    known = request_keys.read(turn.tx, group_id, [d.request_key for d in keyed if d.request_key])
    lost = [draft for draft in keyed if known[draft.request_key or ""][1] != draft.task_id]
    return {draft.task_id: _same(turn, draft, *known[draft.request_key or ""]) for draft in lost}


def _store(
    turn: Turn, group_id: int, drafts: Sequence[Draft], plans: Mapping[int, Plan]
) -> dict[int, Submitted | MyrmidonError]:
    if not drafts:
        return {}
    commands = [plans[draft.task_id] for draft in drafts if not draft.request.function]
    tasks = store_plans(turn, group_id, commands) if commands else []
    for draft in drafts:
        if draft.request.function:
            tasks += _store_lone_function(turn, group_id, plans[draft.task_id])
    make_ready(turn, tasks)
    settle(turn)
    woken = sorted(turn.woken)
    return {
        task.id: Submitted(
            task_id=task.id,
            state=task.state,
            job_id=task.job_id,
            deduped_from=task.deduped_from,
            cost_saved_usd=task.cost_saved_usd,
            woken=woken,
        )
        for task in tasks
    }


def _store_lone_function(turn: Turn, group_id: int, plan: Plan) -> list[TaskResult]:
    """A function has values, and values belong to a job: a lone function is a job of one."""
    graph = Graph(name=plan.request.name, nodes=[], failure_policy=FailurePolicy.FAIL_FAST)
    job = new_job(turn, group_id, plan.job_id or 0, graph, deadline_at=plan.deadline_at)
    jobs.insert(turn.tx, [job])
    jobs.insert_input_and_output_tasks(turn.tx, job.id, [plan.task_id], [plan.task_id])
    turn.jobs[job.id] = job
    return store_plans(turn, group_id, [plan])


def new_job(turn: Turn, group_id: int, job_id: int, graph: Graph, *, deadline_at: Micros, staged: bool = False) -> Job:
    return Job(
        id=job_id,
        resource_group_id=group_id,
        external_id=graph.external_id,
        name=graph.name,
        routing=graph.routing,
        creation_time=turn.now,
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
        alarm_at=turn.now + turn.rules.staging_limit if staged else None,
        num_tasks=0,
        num_succeeded=0,
        num_failed=0,
        num_active=0,
        num_draining=0,
        tags=json.encode(graph.tags).decode(),
        metadata=json.encode(graph.metadata).decode(),
    )
