"""Tasks over HTTP: submit many, look at them, cancel, run again, ask why. Logs and waiting are in api_logs.

A caller bound to a resource group sees the tasks of that group only; those of others do not exist for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, json

from myrmidon.model.errors import Forbidden, InvalidRequest, MyrmidonError, NotFound
from myrmidon.model.ids import Micros, first_id_at, parse_id, show_run, show_task
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.scheduler import cancel as canceling
from myrmidon.scheduler import explain as explaining
from myrmidon.scheduler import rerun as rerunning
from myrmidon.scheduler import submit as submitting
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.submit import Draft, Submitted
from myrmidon.server.api_admin import Limit, Name
from myrmidon.server.cursors import read_cursor, show_cursor
from myrmidon.server.door import READERS, WRITERS, Call, Door, Role, Route
from myrmidon.server.placing import place
from myrmidon.store import filters, task_request, task_result
from myrmidon.store import job as jobs
from myrmidon.store.db import Tx
from myrmidon.store.filters import TaskFilter, TaskLine
from myrmidon.store.task_request import RequestRow, SliceRow

RESERVED_PRIORITY = 20
"""Priorities below this are for administrators: they overtake everybody's work."""
MANY = 32
"""From so many tasks on a submit is checked on a thread, so that it holds up no other call."""
MOST_AT_ONCE = 10_000
_LONGEST_KEY = 240
Moment = Annotated[int, Meta(ge=0, le=9_000_000_000_000_000)]
"""Microseconds UTC, up to the year 2255: later ones have no place in an id."""
_STATES = Literal[
    "WAITING", "READY", "RUNNING", "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "CANCELED", "KILLED",
    "NO_RESOURCE", "CLIENT_ERROR",
]  # fmt: skip


# ---------------------------------------------------------------- submit


class Submit(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks as the documentation of requests describes them; each is checked by itself."""

    tasks: Annotated[list[Any], Meta(min_length=1, max_length=MOST_AT_ONCE)]
    group: Name | None = None


class TaskAnswer(Struct, frozen=True, omit_defaults=True):
    """What became of one task of a submit: an id and a state, or an error. No id: it was only evaluated."""

    task_id: str | None = None
    state: str | None = None
    job_id: str | None = None
    deduped_from: str | None = None
    cost_saved_usd: float | None = None
    repeated: bool = False
    error: dict[str, Any] | None = None


class SubmitAnswer(Struct, frozen=True):
    tasks: list[TaskAnswer]


async def submit_tasks(door: Door, call: Call) -> SubmitAnswer:
    """Store tasks; one answer or error for each, in order. What was answered is on disk.

    The request key counts for the whole call: each task gets a key made of it and of its place in the list.
    """
    body: Submit = call.body
    group = door.group_name(call, body.group)
    group_id = await door.group_id(group)
    now = door.now()
    draft = partial(_drafted, door, call, now)
    drafted = draft() if len(body.tasks) < MANY else await door.aside(draft)
    good = [one for one in drafted if isinstance(one, Draft)]
    if not good:
        return SubmitAnswer([_answer(one) for one in drafted if not isinstance(one, Draft)])
    async with door.quotas.room(group, group_id, tasks=len(good), num_bytes=_size(call)):
        answers = iter(await place(door, partial(_store, door, group_id, good, now)))
    return SubmitAnswer([_answer(next(answers) if isinstance(one, Draft) else one) for one in drafted])


def _size(call: Call) -> int:
    announced = call.headers.get("content-length", "")
    return int(announced) if announced.isdigit() else 0


def _drafted(door: Door, call: Call, now: Micros) -> list[Draft | MyrmidonError]:
    """Each request checked by itself: one that is wrong harms no other."""
    drafts: list[Draft | MyrmidonError] = []
    for number, raw in enumerate(call.body.tasks):
        try:
            draft = submitting.draft_task(
                raw,
                now=now,
                ids=door.ids,
                request_key=_key_of(call, number),
                authenticated=call.who.name,
                limits=door.limits,
                rules=door.rules,
            )
            _check_priority(call, draft)
            drafts.append(draft)
        except MyrmidonError as error:
            drafts.append(error)
    return drafts


def _key_of(call: Call, number: int) -> str | None:
    key = call.request_key
    if key is None or len(call.body.tasks) == 1:
        return key
    return f"{number}:{key if len(key) <= _LONGEST_KEY else sha256(key.encode()).hexdigest()}"


def _check_priority(call: Call, draft: Draft) -> None:
    if draft.request.priority < RESERVED_PRIORITY and call.who.role is not Role.ADMIN:
        raise Forbidden(f"Priorities below {RESERVED_PRIORITY} are for administrators.")


def _store(door: Door, group_id: int, drafts: Sequence[Draft], now: Micros, tx: Tx) -> list[Submitted | MyrmidonError]:
    return submitting.submit(tx, group_id, drafts, now=now, ids=door.ids, rules=door.rules)


def _answer(one: Submitted | MyrmidonError) -> TaskAnswer:
    if isinstance(one, MyrmidonError):
        return TaskAnswer(error=one.as_dict())
    return TaskAnswer(
        task_id=show_task(one.task_id) if one.task_id else None,
        state=one.state,
        job_id=_shown(one.job_id),
        deduped_from=_shown(one.deduped_from),
        cost_saved_usd=one.cost_saved_usd,
        repeated=one.repeated,
    )


def _shown(task_id: int | None) -> str | None:
    return show_task(task_id) if task_id is not None else None


# ---------------------------------------------------------------- one task


class SliceInfo(Struct, frozen=True):
    properties: Raw
    expiration_s: float
    wait_for_capacity: bool


class RequestInfo(Struct, frozen=True, kw_only=True):
    """What was asked for. A secret is never shown, only that there is one."""

    name: str
    created_at: Micros
    user: str
    authenticated: str
    priority: int
    service_account: str
    parent: str | None
    root: str | None
    external_id: str | None
    function: str | None
    retries: int
    reruns: int
    max_instances: int
    lease_s: float
    deadline_at: Micros
    tags: list[str]
    metadata: Raw
    slices: list[SliceInfo]
    has_secret: bool


class ResultInfo(Struct, frozen=True, kw_only=True):
    """What became of it so far. Exit code and duration are those of the run that counts."""

    state: str
    reason: str
    generation: int
    held: bool
    killing: bool
    slice: int
    run: str | None
    bot_id: str | None
    exit_code: int | None
    duration: float | None
    num_retries: int
    num_reruns: int
    deduped_from: str | None
    cost_saved_usd: float | None
    ready_at: Micros | None
    started_at: Micros | None
    completed_at: Micros | None
    abandoned_at: Micros | None
    modified_at: Micros


class RunInfo(Struct, frozen=True, kw_only=True):
    run: str
    number: int
    generation: int
    state: str
    reason: str
    evidence: Raw | None
    bot_id: str
    slice: int
    claimed_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    exit_code: int | None
    duration: float | None
    cost_usd: float
    stdout_size: int | None
    stderr_size: int | None
    outputs_ref: Raw | None


class TaskInfo(Struct, frozen=True, kw_only=True):
    task_id: str
    group: str
    job_id: str | None
    request: RequestInfo
    result: ResultInfo
    runs: list[RunInfo]


async def get_task(door: Door, call: Call) -> TaskInfo:
    """A task: what was asked for, what became of it, and every run."""
    task_id = wanted_task(call)
    scope = await door.scope(call)

    def look(tx: Tx) -> TaskInfo:
        task = visible(tx, task_id, scope)
        row = task_request.read(tx, [task_id])[task_id]
        slices = task_request.slices(tx, [task_id])[task_id]
        runs = task_result.runs_of(tx, [task_id])
        group = jobs.group_names(tx, [row.resource_group_id]).get(row.resource_group_id, "")
        hidden = bool(task_request.with_secret(tx, [task_id]))
        return TaskInfo(
            task_id=show_task(task_id),
            group=group,
            job_id=_shown(task.job_id),
            request=_request_info(row, slices, has_secret=hidden),
            result=_result_info(task, runs),
            runs=[_run_info(run) for run in runs],
        )

    return await door.read(look)


def wanted_task(call: Call) -> int:
    """The task that a path names, by its id or by that of one of its runs."""
    try:
        return parse_id(call.params["id"])[0]
    except InvalidRequest:
        raise NotFound("task", call.params["id"][:40]) from None


def visible(tx: Tx, task_id: int, scope: int | None) -> TaskResult:
    """A task that this caller may see; whatever else there is does not exist for it."""
    task = task_result.read(tx, [task_id]).get(task_id)
    if task is None or task.seq == 0 or (scope is not None and task.resource_group_id != scope):
        raise NotFound("task", show_task(task_id))
    return task


def _request_info(row: RequestRow, slices: Sequence[SliceRow], *, has_secret: bool) -> RequestInfo:
    parent = show_run(row.parent_task_id, row.parent_run or 0) if row.parent_task_id is not None else None
    return RequestInfo(
        name=row.name,
        created_at=row.created_at,
        user=row.user_name,
        authenticated=row.authenticated,
        priority=row.priority,
        service_account=row.service_account,
        parent=parent,
        root=_shown(row.root_task_id),
        external_id=row.external_id,
        function=f"{row.package_name}:{row.func_name}" if row.func_name is not None else None,
        retries=row.retries,
        reruns=row.max_num_retries,
        max_instances=row.max_num_instances,
        lease_s=row.lease / SECOND,
        deadline_at=row.deadline_at,
        tags=json.decode(row.tags, type=list[str]),
        metadata=Raw(row.metadata.encode()),
        slices=[
            SliceInfo(Raw(one.properties.encode()), one.expiration / SECOND, bool(one.wait_for_capacity))
            for one in slices
        ],
        has_secret=has_secret,
    )


def _result_info(task: TaskResult, runs: Sequence[TaskRun]) -> ResultInfo:
    number = task.instance_id or task.run_number
    counts = next((run for run in runs if run.run == number), None)
    return ResultInfo(
        state=task.state,
        reason=task.reason,
        generation=task.generation,
        held=bool(task.held),
        killing=bool(task.killing),
        slice=task.current_task_slice,
        run=show_run(task.id, number) if number else None,
        bot_id=task.bot_id,
        exit_code=counts.exit_code if counts else None,
        duration=counts.duration if counts else None,
        num_retries=task.num_retries,
        num_reruns=task.num_reruns,
        deduped_from=show_run(task.deduped_from, task.deduped_run or 0) if task.deduped_from else None,
        cost_saved_usd=task.cost_saved_usd,
        ready_at=task.ready_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        abandoned_at=task.abandoned_at,
        modified_at=task.modified_at,
    )


def _run_info(run: TaskRun) -> RunInfo:
    return RunInfo(
        run=show_run(run.task_id, run.run),
        number=run.run,
        generation=run.generation,
        state=run.state,
        reason=run.reason,
        evidence=Raw(run.evidence.encode()) if run.evidence else None,
        bot_id=run.bot_id,
        slice=run.slice,
        claimed_at=run.claimed_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        exit_code=run.exit_code,
        duration=run.duration,
        cost_usd=run.cost_usd,
        stdout_size=run.stdout_size,
        stderr_size=run.stderr_size,
        outputs_ref=Raw(run.outputs_ref.encode()) if run.outputs_ref else None,
    )


# ---------------------------------------------------------------- lists


class TaskQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All conditions must hold. ``start`` and ``end`` bound the time of creation."""

    state: list[_STATES] = []
    tag: Annotated[list[str], Meta(max_length=16)] = []
    name: str | None = None
    pool: str | None = None
    bot: str | None = None
    group: str | None = None
    start: Moment | None = None
    end: Moment | None = None
    sort: Literal["newest", "oldest"] = "newest"
    limit: Limit = 100
    cursor: str | None = None


class TaskSummary(Struct, frozen=True, kw_only=True):
    task_id: str
    group: str
    name: str
    state: str
    reason: str
    user: str
    priority: int
    tags: list[str]
    created_at: Micros
    started_at: Micros | None
    completed_at: Micros | None
    modified_at: Micros
    bot_id: str | None
    run: str | None
    deduped_from: str | None
    killing: bool


class TaskList(Struct, frozen=True):
    """``cursor`` leads to the next page; a page may be short, or empty, and still have one."""

    tasks: list[TaskSummary]
    cursor: str | None


async def list_tasks(door: Door, call: Call) -> TaskList:
    """Tasks by what they are like, by time of creation."""
    query: TaskQuery = call.query
    kind = f"tasks {query.sort}"
    cursor = int(read_cursor(door.keys.cursor, kind, query.cursor)) if query.cursor else None
    scope = await door.scope(call)
    if query.group is not None:
        scope = await door.group_of(call, query.group)
    wanted = TaskFilter(
        group_id=scope,
        states=list(query.state),
        tags=[*query.tag, *([f"pool:{query.pool}"] if query.pool is not None else [])],
        name=query.name,
        bot_id=query.bot,
        from_id=first_id_at(query.start) if query.start is not None else 0,
        until_id=first_id_at(query.end) if query.end is not None else filters.ALL_IDS,
    )

    def look(tx: Tx) -> tuple[list[TaskLine], int, dict[int, str]]:
        found, more = filters.tasks(tx, wanted, n=query.limit, cursor=cursor, oldest_first=query.sort == "oldest")
        return found, more, jobs.group_names(tx, sorted({line.resource_group_id for line in found}))

    found, more, names = await door.read(look)
    return TaskList(
        [_summary(line, names) for line in found],
        show_cursor(door.keys.cursor, kind, str(more)) if more else None,
    )


def _summary(line: TaskLine, names: dict[int, str]) -> TaskSummary:
    return TaskSummary(
        task_id=show_task(line.id),
        group=names.get(line.resource_group_id, ""),
        name=line.name,
        state=line.state,
        reason=line.reason,
        user=line.user_name,
        priority=line.priority,
        tags=json.decode(line.tags, type=list[str]),
        created_at=line.created_at,
        started_at=line.started_at,
        completed_at=line.completed_at,
        modified_at=line.modified_at,
        bot_id=line.bot_id,
        run=show_run(line.id, line.run_number) if line.run_number else None,
        deduped_from=_shown(line.deduped_from),
        killing=bool(line.killing),
    )


# ---------------------------------------------------------------- verbs


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A running task is left alone unless ``kill_running``."""

    kill_running: bool = False


class Cancelled(Struct, frozen=True):
    """``ok``: the task has ended unfinished, or is being stopped; the same however often it is asked for."""

    task_id: str
    ok: bool
    state: str
    was_running: bool


async def cancel_task(door: Door, call: Call) -> Cancelled:
    task_id = wanted_task(call)
    scope = await door.scope(call)
    kill, now = call.body.kill_running, door.now()

    def stop(tx: Tx) -> Cancelled:
        visible(tx, task_id, scope)
        canceling.cancel(tx, [task_id], now=now, ids=door.ids, kill_running=kill, rules=door.rules)
        task = visible(tx, task_id, scope)
        stopped = task.state in (TaskState.CANCELED, TaskState.KILLED) or bool(task.killing)
        running = task.state in (TaskState.RUNNING, TaskState.KILLED)
        return Cancelled(show_task(task_id), stopped, task.state, running)

    return await door.write(stop)


class CancelMany(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tasks with all these tags, made between ``start`` and ``end``, or until now."""

    tags: Annotated[list[Annotated[str, Meta(max_length=321)]], Meta(min_length=1, max_length=16)]
    start: Moment | None = None
    end: Moment | None = None
    kill_running: bool = False
    group: Name | None = None


class Began(Struct, frozen=True):
    """The decision is on disk and is being carried out, however many tasks it concerns."""

    ok: bool = True


async def cancel_tagged(door: Door, call: Call) -> Began:
    body: CancelMany = call.body
    group_id = await door.group_of(call, body.group)
    now = door.now()
    await door.write(
        lambda tx: canceling.cancel_tagged(
            tx,
            body.tags,
            group_id=group_id,
            now=now,
            ids=door.ids,
            start=body.start,
            end=body.end,
            kill_running=body.kill_running,
            rules=door.rules,
        )
    )
    return Began()


class RerunBody(Struct, frozen=True, forbid_unknown_fields=True):
    force: bool = False
    cascade: bool = False


class RerunAnswer(Struct, frozen=True):
    """The task as it is now; each rerun starts a new generation."""

    task_id: str
    state: str
    generation: int


async def rerun_task(door: Door, call: Call) -> RerunAnswer:
    """Run an ended task again; with a request key only once, however often it is asked for."""
    task_id = wanted_task(call)
    scope = await door.scope(call)
    body: RerunBody = call.body
    now = door.now()

    def again(tx: Tx) -> RerunAnswer:
        visible(tx, task_id, scope)
        how = {"force": body.force, "cascade": body.cascade}
        if call.request_key is None:
            rerunning.rerun(tx, task_id, now=now, ids=door.ids, rules=door.rules, **how)
        else:
            rerunning.rerun_once(tx, task_id, call.request_key, now=now, ids=door.ids, rules=door.rules, **how)
        task = visible(tx, task_id, scope)
        return RerunAnswer(show_task(task_id), task.state, task.generation)

    return await door.write(again)


class Lacking(Struct, frozen=True):
    dimension: str
    removes: int
    left: int


class Why(Struct, frozen=True, kw_only=True):
    """Why a task does not run now, in one sentence, with the evidence."""

    task_id: str
    state: str
    summary: str
    waiting_on: list[str]
    unreachable: bool
    held: bool
    dimensions: list[Lacking]
    num_bots: int
    num_serving: int
    position: int | None


async def explain_task(door: Door, call: Call) -> Why:
    task_id = wanted_task(call)
    scope = await door.scope(call)

    def look(tx: Tx) -> explaining.Explanation:
        visible(tx, task_id, scope)
        return explaining.explain(tx, task_id)

    found = await door.read(look)
    return Why(
        task_id=show_task(found.task_id),
        state=found.state,
        summary=found.summary,
        waiting_on=[show_task(parent) for parent in found.waiting_on],
        unreachable=found.unreachable,
        held=found.held,
        dimensions=[Lacking(step.dimension, step.removes, step.left) for step in found.dimensions],
        num_bots=found.num_bots,
        num_serving=found.num_serving,
        position=found.position,
    )


ROUTES = (
    Route(
        method="POST",
        path="/api/v1/tasks",
        call=submit_tasks,
        who=WRITERS,
        body=Submit,
        out=SubmitAnswer,
        mutates=True,
        quiet=True,
        summary="Submit tasks",
    ),
    Route(
        method="GET",
        path="/api/v1/tasks",
        call=list_tasks,
        who=READERS,
        query=TaskQuery,
        out=TaskList,
        summary="Tasks by what they are like",
    ),
    Route(
        method="GET", path="/api/v1/tasks/{id}", call=get_task, who=READERS, out=TaskInfo, summary="One task in full"
    ),
    Route(
        method="GET",
        path="/api/v1/tasks/{id}/why",
        call=explain_task,
        who=READERS,
        out=Why,
        summary="Why a task does not run",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/{id}/cancel",
        call=cancel_task,
        who=WRITERS,
        body=CancelBody,
        out=Cancelled,
        mutates=True,
        summary="Cancel a task",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/cancel",
        call=cancel_tagged,
        who=WRITERS,
        body=CancelMany,
        out=Began,
        mutates=True,
        summary="Cancel everything with certain tags",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/{id}/rerun",
        call=rerun_task,
        who=WRITERS,
        body=RerunBody,
        out=RerunAnswer,
        mutates=True,
        summary="Run a task again",
    ),
)
