"""Tasks in Swarming's API v1: get, list, count, cancel.

A caller whose token is bound to a resource group sees only that group's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, json

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import parse_id, show_run
from myrmidon.model.shown_input import show_value
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.scheduler import cancel as cancelling
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
from myrmidon.server.usecases.logs import LogRange, RunLog, read_range, run_log
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
MAX_PAGE_BYTES = 16 << 20
READ_AT_ONCE = 50
MAX_OUTPUT_BYTES = 16_384_000
MAX_IDS = 1000


# ---------------------------------------------------------------- one task


class ResultQuery(Struct, frozen=True, kw_only=True):
    include_performance_stats: bool = False


class OutputQuery(Struct, frozen=True, kw_only=True):
    """Which bytes of the output; a length of 0 means MAX_OUTPUT_BYTES."""

    offset: int = 0
    length: int = 0


async def task_result_of(context: ServerContext, call: Call) -> v1.TaskResult:
    """The result of a task, or of a run if the id is that of a run."""
    (task_id, run), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    stats = call.query.include_performance_stats

    def read(tx: Tx) -> v1.TaskResult:
        get_visible_task(tx, task_id, scope)
        facts = show.load_facts(tx, [task_id], stats=stats)
        if not run:
            return show.show_result(facts, task_id)
        request = facts.requests[task_id]
        return show.show_run_result(facts, _get_run(facts, task_id, run), request.name, request.created_at)

    return await context.db.read(read)


def _get_run(facts: show.Facts, task_id: int, number: int) -> TaskRun:
    for run in facts.runs.get(task_id, ()):
        if run.run == number:
            return run
    raise NotFound("run", show_run(task_id, number))


async def task_request_of(context: ServerContext, call: Call) -> v1.TaskRequest:
    """The request of a task, with its secret redacted."""
    (task_id, _), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)

    def read(tx: Tx) -> v1.TaskRequest:
        get_visible_task(tx, task_id, scope)
        return show.requests(tx, [task_id])[0]

    return await context.db.read(read)


async def task_output(context: ServerContext, call: Call) -> v1.TaskOutput:
    """The output of a task or run, from an offset on: stdout, followed by stderr once the run has ended.

    While it runs only stdout is shown: an offset that a client has already read must not move.
    """
    (task_id, run), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    query: OutputQuery = call.query
    if query.offset < 0 or not 0 <= query.length <= MAX_OUTPUT_BYTES:
        value = f"offset {query.offset}, length {query.length}"
        allowed = f"an offset of 0 or more, a length of 0 to {MAX_OUTPUT_BYTES}"
        raise InvalidRequest([Problem("offset, length", value, allowed, "range")])

    def read(tx: Tx) -> tuple[TaskResult, RunLog | None]:
        task = get_visible_task(tx, task_id, scope)
        facts = show.load_facts(tx, [task_id], stats=False)
        one = _get_run(facts, task_id, run) if run else show.deciding_run(facts, task)
        return task, run_log(tx, one.task_id, one.run, growing=one.live) if one is not None else None

    task, log = await context.db.read(read)
    content = b""
    if log is not None:
        content = (await context.logs.read(partial(_read_output, log=log, query=query))).content
    return v1.TaskOutput(output=content.decode("utf-8", "replace"), state=STATE_NAMES[task.state])


def _read_output(tx: Tx, log: RunLog, query: OutputQuery) -> LogRange:
    streams = (STDOUT,) if log.growing else (STDOUT, STDERR)
    limit = query.length or MAX_OUTPUT_BYTES
    return read_range(tx, log, streams=streams, offset=query.offset, limit=limit)


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kill_running: bool | None = None


async def cancel_task(context: ServerContext, call: Call) -> v1.CancelResponse:
    """Cancel a task that waits; kill one that runs only if kill_running is set."""
    (task_id, _), scope = parse_path_id(call.params["task_id"]), await context.groups.scope_of(call)
    kill, now = bool(call.body.kill_running), context.now()

    def cancel(tx: Tx) -> v1.CancelResponse:
        get_visible_task(tx, task_id, scope)
        check_may_cancel(tx, call, task_id)
        [result] = cancelling.cancel(tx, [task_id], now=now, ids=context.ids, kill_running=kill, rules=context.rules)
        return v1.CancelResponse(ok=result.ok, was_running=result.was_running)

    return await context.db.write(cancel)


# ---------------------------------------------------------------- lists


class TasksQuery(Struct, frozen=True, kw_only=True):
    """Filters of tasks. ``start`` and ``end`` limit the time of creation, in seconds since 1970."""

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
    """The search for the filters of a list or a count."""
    low, high = id_range(query.start, query.end)
    state = parse_enum(query.state, STATE_FILTERS, "state", "ALL")
    return TaskSearch(
        group_id=await context.groups.scope_of(call),
        states=[str(selected) for selected in STATE_FILTERS[state]],
        terms=tag_terms(query.tags),
        low=low,
        high=high,
    )


async def _page(
    context: ServerContext, call: Call, render: Callable[[Tx, Sequence[int]], list[Any]]
) -> tuple[list[Any], str | None]:
    """One page of a search, rendered, and the cursor of the next page. A page of large tasks is short."""
    query: TasksQuery = call.query
    n, search = check_limit(query.limit), await build_search(context, call, query)
    sort = SORTS[parse_enum(query.sort, SORTS, "sort", "CREATED_TS")]
    kind = f"v1 tasks {sort}"
    position = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else None

    def read(tx: Tx) -> tuple[list[Any], str | None]:
        if sort == "created_at":
            ids, more = task_search.page(tx, search, n=n, before=int(position) if position else None)
            positions, last = [str(task_id) for task_id in ids], str(more) if more else None
        elif not task_search.can_sort(tx, search):
            allowed = f"CREATED_TS, or start and end with at most {task_search.SCAN_LIMIT} tasks between them"
            raise InvalidRequest([Problem("sort", show_value(query.sort), allowed, "too_many")])
        else:
            after = SortPosition(*map(int, position.split())) if position else task_search.START
            found = task_search.sorted_page(tx, search, sort, n=n, after=after)
            ids, positions = [one.id for one in found], [f"{one.at} {one.id}" for one in found]
            last = positions[-1] if len(found) == n else None
        items, num_read = _within_size(ids, partial(render, tx))
        return items, positions[num_read - 1] if num_read < len(ids) else last

    items, next_position = await context.db.read(read)
    return items, show_cursor(context.keys.cursor, kind, next_position) if next_position else None


def _within_size(ids: Sequence[int], render: Callable[[Sequence[int]], list[Any]]) -> tuple[list[Any], int]:
    """The rendered tasks until they have MAX_PAGE_BYTES, and how many ids these are: a request may have a MiB."""
    items: list[Any] = []
    size = num_read = 0
    while num_read < len(ids) and size < MAX_PAGE_BYTES:
        chunk = ids[num_read : num_read + READ_AT_ONCE]
        rendered = render(chunk)
        size += len(json.encode(rendered))
        items += rendered
        num_read += len(chunk)
    return items, num_read


async def list_tasks(context: ServerContext, call: Call) -> v1.TaskList:
    """Results of tasks that match the filters, in any of v1's orders."""
    stats = call.query.include_performance_stats
    items, cursor = await _page(context, call, lambda tx, ids: show.results(tx, ids, stats=stats))
    return v1.TaskList(items=items, now=timestamp(context.now()), cursor=cursor)


async def list_requests(context: ServerContext, call: Call) -> v1.TaskRequests:
    """Requests of tasks that match the filters."""
    items, cursor = await _page(context, call, show.requests)
    return v1.TaskRequests(items=items, now=timestamp(context.now()), cursor=cursor)


async def count_tasks(context: ServerContext, call: Call) -> v1.TasksCount:
    """The number of tasks that match the filters: of the newest 100,000, if there are more."""
    query: CountQuery = call.query
    if query.start is None:
        raise InvalidRequest([Problem("start", "nothing", "a time in seconds since 1970", "missing")])
    search = await build_search(context, call, query)
    counts, _ = await context.db.read(lambda tx: task_search.count_by_state(tx, search))
    return v1.TasksCount(count=int64(counts.total()), now=timestamp(context.now()))


class StatesQuery(Struct, frozen=True, kw_only=True):
    task_id: list[str] = []


async def get_states(context: ServerContext, call: Call) -> v1.TaskStates:
    """The states of tasks, in the order of the ids. A task that does not exist is PENDING, as in v1."""
    texts: list[str] = call.query.task_id
    if not 1 <= len(texts) <= MAX_IDS:
        raise InvalidRequest([Problem("task_id", f"{len(texts)} ids", f"1 to {MAX_IDS}", "length")])
    ids = [parse_id(text, "task_id")[0] for text in texts]
    scope = await context.groups.scope_of(call)
    stored = await context.db.read(lambda tx: task_result.groups_and_states(tx, sorted(set(ids))))
    visible = {task_id: state for task_id, (group_id, state) in stored.items() if scope in (None, group_id)}
    return v1.TaskStates(states=[STATE_NAMES[visible.get(task_id, TaskState.READY)] for task_id in ids])


async def list_tags(context: ServerContext, call: Call) -> v1.TasksTags:
    """Tags of the newest tasks that the caller may see."""
    return v1.TasksTags(tasks_tags=show.string_lists(await recent_tags(context, call)), ts=timestamp(context.now()))


# ---------------------------------------------------------------- cancelling by tags


class CancelManyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cancel the tasks that have all these tags, one page per call."""

    cursor: str | None = None
    end: float | None = None
    kill_running: bool | None = None
    limit: int | None = None
    start: float | None = None
    tags: list[str] | None = None


CANCEL_LIMIT = 100


async def cancel_tasks(context: ServerContext, call: Call) -> v1.TasksCancelResponse:
    """Cancel waiting tasks that have all these tags; kill running ones too if kill_running is set.

    The tasks are cancelled when the response is sent. The search runs outside of the write transaction, which would
    delay other writes; a task that starts in between is cancelled only with kill_running.
    """
    body: CancelManyBody = call.body
    if not body.tags:
        raise InvalidRequest([Problem("tags", "nothing", "at least one tag", "missing")])
    n = check_limit(CANCEL_LIMIT if body.limit is None else body.limit)
    low, high = id_range(body.start, body.end)
    kill, now, scope = bool(body.kill_running), context.now(), await context.groups.scope_of(call)
    states = STATE_FILTERS["PENDING_RUNNING" if kill else "PENDING"]
    search = TaskSearch(group_id=scope, states=[str(s) for s in states], terms=tag_terms(body.tags), low=low, high=high)
    before = int(read_cursor(context.keys.cursor, "v1 cancel", body.cursor)) if body.cursor else None

    def find(tx: Tx) -> tuple[list[int], int | None]:
        ids, more = task_search.page(tx, search, n=n, before=before)
        return cancellable_tasks(tx, call, ids), more

    task_ids, more = await context.db.read(find)
    if task_ids:
        cancel = partial(
            cancelling.cancel, task_ids=task_ids, kill_running=kill, now=now, ids=context.ids, rules=context.rules
        )
        await context.db.write(cancel)
    cursor = show_cursor(context.keys.cursor, "v1 cancel", str(more)) if more else None
    return v1.TasksCancelResponse(matched=int64(len(task_ids)), now=timestamp(now), cursor=cursor)
