"""Tasks over Swarming's API v1: new ones, single ones, lists and counts, cancelling.

The verbs are those of /api/v1; only words and shapes are v1's. A caller bound to a resource group sees the tasks of
that group only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import parse_id, show_run
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.model.validation import show_value
from myrmidon.scheduler import cancel as canceling
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1 import render as show
from myrmidon.server.swarming_v1.encoding import (
    SORTS,
    STATE_FILTERS,
    STATE_NAMES,
    id_range,
    int64,
    parse_enum,
    tag_terms,
    timestamp,
)
from myrmidon.server.usecases.logs import read_range
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.tasks import (
    cancellable_tasks,
    check_may_cancel,
    get_visible_task,
    parse_path_id,
    recent_tags,
)
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_result
from myrmidon.store.tables.log import STDERR, STDOUT
from myrmidon.store.views import task_search
from myrmidon.store.views.task_search import SortPosition, TaskSearch

DEFAULT_LIMIT = 200
MAX_LIMIT = 1000
MAX_OUTPUT_BYTES = 16_384_000
MAX_IDS = 1000


# ---------------------------------------------------------------- one task


class ResultQuery(Struct, frozen=True, kw_only=True):
    include_performance_stats: bool = False


class OutputQuery(Struct, frozen=True, kw_only=True):
    """Which bytes of the output; a length of 0 means as many as one answer may have."""

    offset: int = 0
    length: int = 0


async def task_result_of(context: ServerContext, call: Call) -> v1.TaskResult:
    """What became of a task; of one run, where the id is that of a run."""
    (task_id, run), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    stats = call.query.include_performance_stats

    def look(tx: Tx) -> v1.TaskResult:
        get_visible_task(tx, task_id, scope)
        facts = show.load_facts(tx, [task_id], stats=stats)
        if not run:
            return show.show_result(facts, task_id)
        one, request = _get_run(facts, task_id, run), facts.requests[task_id]
        return show.show_run_result(facts, one, request.name, request.created_at)

    return await context.db.read(look)


def _get_run(facts: show.Facts, task_id: int, number: int) -> TaskRun:
    for one in facts.runs.get(task_id, ()):
        if one.run == number:
            return one
    raise NotFound("run", show_run(task_id, number))


async def task_request_of(context: ServerContext, call: Call) -> v1.TaskRequest:
    """What was asked for; of a secret only that there is one."""
    (task_id, _), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)

    def look(tx: Tx) -> v1.TaskRequest:
        get_visible_task(tx, task_id, scope)
        return show.requests(tx, [task_id])[0]

    return await context.db.read(look)


async def task_output(context: ServerContext, call: Call) -> v1.TaskOutput:
    """What a command wrote, from a byte on. Standard error stands behind standard output once the run has ended.

    While it runs only standard output is shown: a place in the text that was read once must not move.
    """
    (task_id, run), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    query: OutputQuery = call.query
    if query.offset < 0 or not 0 <= query.length <= MAX_OUTPUT_BYTES:
        shown = f"offset {query.offset}, length {query.length}"
        told = f"an offset of 0 or more, a length of 0 to {MAX_OUTPUT_BYTES}"
        raise InvalidRequest([Problem("offset, length", shown, told, "range")])

    def look(tx: Tx) -> tuple[TaskResult, int, int, bool]:
        task = get_visible_task(tx, task_id, scope)
        facts = show.load_facts(tx, [task_id], stats=False)
        found = _get_run(facts, task_id, run) if run else show.deciding_run(facts, task)
        return (task, found.task_id, found.run, not found.live) if found else (task, 0, 0, True)

    task, whose, of_run, ended = await context.db.read(look)
    content = b""
    if of_run:
        length = query.length or MAX_OUTPUT_BYTES
        streams = (STDOUT, STDERR) if ended else (STDOUT,)
        found = await context.logs.read(
            lambda tx: read_range(tx, whose, of_run, streams=streams, offset=query.offset, limit=length)
        )
        content = found.content
    return v1.TaskOutput(output=content.decode("utf-8", "replace"), state=STATE_NAMES[task.state])


class CancelBody(Struct, frozen=True, kw_only=True):
    kill_running: bool | None = None


async def cancel_task(context: ServerContext, call: Call) -> v1.CancelResponse:
    """End a task that waits; kill one that runs only if that was asked for."""
    (task_id, _), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    kill, now = bool(call.body.kill_running), context.now()

    def stop(tx: Tx) -> v1.CancelResponse:
        get_visible_task(tx, task_id, scope)
        check_may_cancel(tx, call, task_id)
        [done] = canceling.cancel(tx, [task_id], now=now, ids=context.ids, kill_running=kill, rules=context.rules)
        return v1.CancelResponse(ok=done.ok, was_running=done.was_running)

    return await context.db.write(stop)


# ---------------------------------------------------------------- lists


class TasksQuery(Struct, frozen=True, kw_only=True):
    """Filters of tasks. ``start`` and ``end`` bound the time of creation, in seconds since 1970."""

    cursor: str | None = None
    end: float | None = None
    include_performance_stats: bool = False
    limit: int = DEFAULT_LIMIT
    sort: str | None = None
    start: float | None = None
    state: str | None = None
    tags: list[str] = []


class CountQuery(Struct, frozen=True, kw_only=True):
    end: float | None = None
    start: float | None = None
    state: str | None = None
    tags: list[str] = []


def check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest([Problem("limit", show_value(limit), f"1 to {MAX_LIMIT}", "range")])
    return limit


async def build_search(context: ServerContext, call: Call, query: Any) -> TaskSearch:
    """What the filters of a list or a count ask for."""
    low, high = id_range(query.start, query.end)
    state = parse_enum(query.state, STATE_FILTERS, "state", "ALL")
    return TaskSearch(
        group_id=await context.groups.scope_of(call),
        states=[str(one) for one in STATE_FILTERS[state]],
        terms=tag_terms(query.tags),
        low=low,
        high=high,
    )


async def _page(context: ServerContext, call: Call, fill: Callable[[Tx, Sequence[int]], Any]) -> tuple[Any, str | None]:
    """One page of a search, whatever its order, and the cursor to the next."""
    query: TasksQuery = call.query
    n, search = check_limit(query.limit), await build_search(context, call, query)
    sort = SORTS[parse_enum(query.sort, SORTS, "sort", "CREATED_TS")]
    kind = f"v1 tasks {sort}"
    place = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else None

    def look(tx: Tx) -> tuple[Any, str | None]:
        if sort == "created_at":
            ids, more = task_search.page(tx, search, n=n, before=int(place) if place else None)
            return fill(tx, ids), str(more) if more else None
        after = SortPosition(*map(int, place.split())) if place else task_search.START
        ids, behind = task_search.sorted_page(tx, search, sort, n=n, after=after)
        return fill(tx, ids), f"{behind.at} {behind.id}" if behind else None

    found, position = await context.db.read(look)
    return found, show_cursor(context.keys.cursor, kind, position) if position else None


async def list_tasks(context: ServerContext, call: Call) -> v1.TaskList:
    """Tasks by state, tags and time of creation, in any order that v1 knows."""
    stats = call.query.include_performance_stats
    found, cursor = await _page(context, call, lambda tx, ids: show.results(tx, ids, stats=stats))
    return v1.TaskList(items=found, now=timestamp(context.now()), cursor=cursor)


async def list_requests(context: ServerContext, call: Call) -> v1.TaskRequests:
    """What was asked for, of the tasks that the same filters find."""
    found, cursor = await _page(context, call, show.requests)
    return v1.TaskRequests(items=found, now=timestamp(context.now()), cursor=cursor)


async def count_tasks(context: ServerContext, call: Call) -> v1.TasksCount:
    """How many tasks the filters find: exactly, and as of now."""
    query: CountQuery = call.query
    if query.start is None:
        raise InvalidRequest([Problem("start", "nothing", "from when on, in seconds since 1970", "missing")])
    search = await build_search(context, call, query)
    total = await context.db.read(lambda tx: task_search.count(tx, search))
    return v1.TasksCount(count=int64(total), now=timestamp(context.now()))


class StatesQuery(Struct, frozen=True, kw_only=True):
    task_id: list[str] = []


async def get_states(context: ServerContext, call: Call) -> v1.TaskStates:
    """The states of tasks, in the order asked for. One that is not there counts as PENDING, as ever in v1."""
    asked: list[str] = call.query.task_id
    if not 1 <= len(asked) <= MAX_IDS:
        raise InvalidRequest([Problem("task_id", f"{len(asked)} ids", f"1 to {MAX_IDS}", "length")])
    ids = [parse_id(text, "task_id")[0] for text in asked]
    scope = await context.groups.scope_of(call)
    found = await context.db.read(lambda tx: task_result.standing(tx, sorted(set(ids))))
    states = [
        STATE_NAMES[found[i][1]] if i in found and scope in (None, found[i][0]) else STATE_NAMES[TaskState.READY]
        for i in ids
    ]
    return v1.TaskStates(states=states)


async def list_tags(context: ServerContext, call: Call) -> v1.TasksTags:
    return v1.TasksTags(tasks_tags=show.string_lists(await recent_tags(context, call)), ts=timestamp(context.now()))


# ---------------------------------------------------------------- cancelling many


class CancelManyBody(Struct, frozen=True, kw_only=True):
    """All tasks with all these tags, page by page."""

    cursor: str | None = None
    end: float | None = None
    kill_running: bool | None = None
    limit: int | None = None
    start: float | None = None
    tags: list[str] | None = None


CANCEL_LIMIT = 100


async def cancel_tasks(context: ServerContext, call: Call) -> v1.TasksCancelResponse:
    """End the tasks that carry all these tags and wait; those that run too, if that was asked for.

    It has happened when the answer comes. They are looked for on a reader, so that nobody's writes wait for that; a
    task that started in between is left alone, unless it was to be killed.
    """
    body: CancelManyBody = call.body
    if not body.tags:
        told = "at least one tag, so that nobody cancels everything"
        raise InvalidRequest([Problem("tags", "nothing", told, "missing")])
    n = check_limit(CANCEL_LIMIT if body.limit is None else body.limit)
    low, high = id_range(body.start, body.end)
    kill, now, scope = bool(body.kill_running), context.now(), await context.groups.scope_of(call)
    states = STATE_FILTERS["PENDING_RUNNING" if kill else "PENDING"]
    wanted = TaskSearch(group_id=scope, states=[str(s) for s in states], terms=tag_terms(body.tags), low=low, high=high)
    before = int(read_cursor(context.keys.cursor, "v1 cancel", body.cursor)) if body.cursor else None

    def look(tx: Tx) -> tuple[list[int], int | None]:
        ids, more = task_search.page(tx, wanted, n=n, before=before)
        return cancellable_tasks(tx, call, ids), more

    found, more = await context.db.read(look)
    if found:
        stop = partial(
            canceling.cancel, task_ids=found, kill_running=kill, now=now, ids=context.ids, rules=context.rules
        )
        await context.db.write(stop)
    cursor = show_cursor(context.keys.cursor, "v1 cancel", str(more)) if more else None
    return v1.TasksCancelResponse(matched=int64(len(found)), now=timestamp(now), cursor=cursor)
