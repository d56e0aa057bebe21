"""Bots in Swarming's API v1: list, count, get, events, runs, delete, terminate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, json

from myrmidon.model.bot import Bot
from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros, show_run
from myrmidon.model.task_result import TaskRun
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1 import render as show
from myrmidon.server.swarming_v1.encoding import (
    SORTS,
    STATE_FILTERS,
    THREE_STATES,
    as_object,
    id_range,
    int64,
    parse_enum,
    parse_seconds,
    timestamp,
    user_identity,
)
from myrmidon.server.swarming_v1.tasks import DEFAULT_LIMIT, check_limit
from myrmidon.server.usecases import bots as bot_usecases
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, server_version, task_result
from myrmidon.store.tables.bot_event import BotEventRow
from myrmidon.store.views import bot_history, listings, run_details
from myrmidon.store.views.bot_history import HistoryEntry, HistoryPosition
from myrmidon.store.views.listings import BotSearch
from myrmidon.store.views.pool_filter import PoolFilter
from myrmidon.store.views.run_details import BotRun
from myrmidon.store.views.task_search import DEDUPED, MAX_ID

MAX_SORTED_RUNS = 5000
"""The maximum number of runs of one bot that are sorted by another time than their task's creation."""


class BotsQuery(Struct, frozen=True, kw_only=True):
    """Filters of bots. ``is_*``, ``in_maintenance`` and ``quarantined`` are TRUE, FALSE or NONE."""

    cursor: str | None = None
    dimensions: list[str] = []
    in_maintenance: str | None = None
    is_busy: str | None = None
    is_dead: str | None = None
    limit: int = DEFAULT_LIMIT
    quarantined: str | None = None


class DimensionsQuery(Struct, frozen=True, kw_only=True):
    pool: str | None = None


def _search(query: BotsQuery, visible: PoolFilter | None) -> BotSearch:
    def state_filter(name: str) -> bool | None:
        return THREE_STATES[parse_enum(getattr(query, name), THREE_STATES, name, "NONE", first=1)]

    terms = []
    for dimension in query.dimensions:
        key, colon, value = dimension.partition(":")
        if not colon:
            raise InvalidRequest([Problem("dimensions", dimension[:100], "key:value", "pattern")])
        terms.append([f"{key}:{alternative}" for alternative in value.split("|")])
    return BotSearch(
        pools=visible,
        terms=terms,
        dead=state_filter("is_dead"),
        quarantined=state_filter("quarantined"),
        maintenance=state_filter("in_maintenance"),
        busy=state_filter("is_busy"),
    )


async def list_bots(context: ServerContext, call: Call) -> v1.BotList:
    """Bots that match all filters, ordered by id."""
    query: BotsQuery = call.query
    visible, scope = visible_pools(context, call.who), await context.groups.scope_of(call)
    n, search = check_limit(query.limit), _search(query, visible)
    after = read_cursor(context.keys.cursor, "v1 bots", query.cursor) if query.cursor else ""

    def read(tx: Tx) -> tuple[list[str], list[v1.BotInfo]]:
        ids = listings.search_bots(tx, search, after=after, n=n)
        running = _running_tasks(tx, ids, scope)
        return ids, [
            show_bot(context, bot, running.get(bot.id), scope=scope, visible=visible) for bot in bots.read_many(tx, ids)
        ]

    # The cursor is taken from the ids: fewer rows are read when a bot was deleted between the two statements.
    ids, items = await context.db.read(read)
    cursor = show_cursor(context.keys.cursor, "v1 bots", ids[-1]) if len(ids) == n else None
    death_timeout = int64(context.settings.dead_after_s)
    return v1.BotList(items=items, now=timestamp(context.now()), death_timeout=death_timeout, cursor=cursor)


def _running_tasks(tx: Tx, ids: Sequence[str], scope: int | None) -> dict[str, tuple[str, str]]:
    """One running run of each busy bot and the name of its task, for runs in the resource group ``scope``."""
    busy = listings.live_runs(tx, ids, scope)
    return {bot_id: (runs[0].run, runs[0].name) for bot_id, runs in busy.items() if runs}


def _introduced_by(bot_id: str, token: str | None, scope: int | None) -> str:
    """The owner of the token that has introduced a bot; for administrators only, because it may be of another group."""
    return user_identity(token) if token and scope is None else f"bot:{bot_id}"


def show_bot(
    context: ServerContext,
    bot: Bot,
    running: tuple[str, str] | None,
    *,
    scope: int | None,
    visible: PoolFilter | None,
) -> v1.BotInfo:
    connected = context.hub.bots.get(bot.id)
    return v1.BotInfo(
        authenticated_as=_introduced_by(bot.id, bot.authenticated, scope),
        bot_id=bot.id,
        deleted=False,
        dimensions=show.string_lists(bot_usecases.visible_dimensions(bot.dimensions, visible)),
        external_ip=bot.address,
        first_seen_ts=timestamp(bot.first_seen_at),
        is_dead=not bot.alive,
        last_seen_ts=timestamp(max(bot.heartbeat, connected.seen_at if connected else 0)),
        maintenance_msg=bot.maintenance,
        quarantined=bot.quarantined is not None,
        state=_state(bot.state, bot.quarantined),
        task_id=running[0] if running else None,
        task_name=running[1] if running else None,
        version=bot.version,
    )


def _state(text: str | None, quarantined: str | None) -> str:
    """The state that a bot reported, as JSON in a string. v1 clients read the reason of a quarantine from it."""
    state = as_object(text)
    if quarantined is not None and not state.get("quarantined"):
        state["quarantined"] = quarantined
    return json.encode(state, order="sorted").decode()


async def count_bots(context: ServerContext, call: Call) -> v1.BotsCount:
    """Numbers of bots that match all filters."""
    search = _search(call.query, visible_pools(context, call.who))
    counts = await context.db.read(lambda tx: listings.count_bots(tx, search))
    return v1.BotsCount(
        busy=int64(counts.busy),
        count=int64(counts.count),
        dead=int64(counts.dead),
        maintenance=int64(counts.maintenance),
        now=timestamp(context.now()),
        quarantined=int64(counts.quarantined),
    )


async def bots_dimensions(context: ServerContext, call: Call) -> v1.BotsDimensions:
    """All values of all dimensions of the bots."""
    counts, counted_at = await bot_usecases.count_dimensions(context, call.who, call.query.pool)
    lists = {key: list(values) for key, values in counts.items()}
    return v1.BotsDimensions(bots_dimensions=show.string_lists(lists), ts=timestamp(counted_at))


# ---------------------------------------------------------------- one bot


async def get_bot(context: ServerContext, call: Call) -> v1.BotInfo:
    """A bot; a deleted one as it was in its last event."""
    bot_id, scope, visible = (
        call.params["bot_id"],
        await context.groups.scope_of(call),
        visible_pools(context, call.who),
    )

    def read(tx: Tx) -> v1.BotInfo:
        bot = bots.read(tx, bot_id)
        newest = [] if bot is not None else bot_event.read_full(tx, bot_id, low=0, high=MAX_ID, n=1)
        last = bot or (newest[0] if newest else None)
        if last is None or not bot_usecases.is_visible(last.dimensions, visible):
            raise NotFound("bot", bot_id[:100])
        if bot is None:
            return _deleted_bot(bot_id, newest[0], scope, visible)
        running = _running_tasks(tx, [bot_id], scope).get(bot_id)
        return show_bot(context, bot, running, scope=scope, visible=visible)

    return await context.db.read(read)


def _deleted_bot(bot_id: str, event: BotEventRow, scope: int | None, visible: PoolFilter | None) -> v1.BotInfo:
    return v1.BotInfo(
        authenticated_as=_introduced_by(bot_id, event.authenticated, scope),
        bot_id=bot_id,
        deleted=True,
        dimensions=_dimensions(event.dimensions, visible),
        external_ip=event.address,
        is_dead=True,
        last_seen_ts=timestamp(event.at),
        maintenance_msg=event.maintenance,
        quarantined=event.quarantined is not None,
        state=_state(event.state, event.quarantined),
        version=event.version,
    )


def _dimensions(text: str | None, visible: PoolFilter | None) -> list[v1.StringListPair]:
    return show.string_lists(bot_usecases.visible_dimensions(text, visible)) if text else []


class EventsQuery(Struct, frozen=True, kw_only=True):
    cursor: str | None = None
    end: float | None = None
    limit: int = DEFAULT_LIMIT
    start: float | None = None


async def bot_events(context: ServerContext, call: Call) -> v1.BotEvents:
    """Events of a bot, newest first. They are kept after the bot was deleted, until the retention time ends."""
    query, bot_id = call.query, call.params["bot_id"]
    n, scope, kind = check_limit(query.limit), await context.groups.scope_of(call), f"v1 events {bot_id}"
    since, end = parse_seconds(query.start, "start") or 0, parse_seconds(query.end, "end")
    position = HistoryPosition(end - 1 if end is not None else context.now())
    if query.cursor:
        position = HistoryPosition(*map(int, read_cursor(context.keys.cursor, kind, query.cursor).split()))
    events, more = await context.db.read(lambda tx: bot_history.page(tx, bot_id, position, n=n, since=since))
    visible = visible_pools(context, call.who)
    items = [_event(bot_id, event, scope, visible) for event in bot_usecases.visible_events(events, scope, visible)]
    cursor = show_cursor(context.keys.cursor, kind, f"{more.until} {more.seen}") if more else None
    return v1.BotEvents(items=items, now=timestamp(context.now()), cursor=cursor)


def _event(bot_id: str, event: HistoryEntry, scope: int | None, visible: PoolFilter | None) -> v1.BotEvent:
    return v1.BotEvent(
        authenticated_as=_introduced_by(bot_id, event.authenticated, scope),
        dimensions=_dimensions(event.dimensions, visible),
        event_type=event.kind,
        external_ip=event.address,
        maintenance_msg=event.maintenance,
        message=event.message or None,
        quarantined=event.quarantined is not None,
        state=_state(event.state, event.quarantined) if event.state is not None else None,
        task_id=show_run(event.task_id, event.run or 0) if event.task_id is not None else None,
        ts=timestamp(event.at),
        version=event.version,
    )


class BotTasksQuery(Struct, frozen=True, kw_only=True):
    cursor: str | None = None
    end: float | None = None
    include_performance_stats: bool = False
    limit: int = DEFAULT_LIMIT
    sort: str | None = None
    start: float | None = None
    state: str | None = None


_NO_RUN_STATES = ("PENDING", "PENDING_RUNNING", "DEDUPED")


async def bot_tasks(context: ServerContext, call: Call) -> v1.BotTasks:
    """Runs of a bot, sorted by their task's creation; by another time only if there are at most MAX_SORTED_RUNS."""
    query: BotTasksQuery = call.query
    n, (low, high) = check_limit(query.limit), id_range(query.start, query.end)
    bot_id, scope = call.params["bot_id"], await context.groups.scope_of(call)
    sort = parse_enum(query.sort, SORTS, "sort", "CREATED_TS")
    states = _run_states(query)
    kind = f"v1 runs {bot_id} {sort}"
    position = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else ""

    def read(tx: Tx) -> tuple[list[v1.TaskResult], str]:
        if sort == "CREATED_TS":
            end = min(high, int(position)) if position else high
            page, last = run_details.runs_of_bot(tx, bot_id, low=low, high=end, n=n)
            next_position = str(last) if last is not None else ""
        else:
            unsorted, last = run_details.runs_of_bot(tx, bot_id, low=low, high=high, n=MAX_SORTED_RUNS)
            _check_sortable(last, sort)
            page, next_position = _sorted(_with_times(tx, unsorted, sort), position, n)
        visible = [one for one in page if scope in (None, one.run.resource_group_id)]
        selected = [one for one in visible if not states or one.run.state in states]
        return _results(tx, selected, stats=query.include_performance_stats), next_position

    items, next_position = await context.db.read(read)
    cursor = show_cursor(context.keys.cursor, kind, next_position) if next_position else None
    return v1.BotTasks(items=items, now=timestamp(context.now()), cursor=cursor)


def _run_states(query: BotTasksQuery) -> list[str]:
    state = parse_enum(query.state, STATE_FILTERS, "state", "ALL")
    if state in _NO_RUN_STATES:
        allowed = ", ".join(name for name in STATE_FILTERS if name not in _NO_RUN_STATES)
        raise InvalidRequest([Problem("state", state, f"one that a run can have: {allowed}", "choice")])
    return [str(selected) for selected in STATE_FILTERS[state] if selected != DEDUPED]


def _check_sortable(last: int | None, sort: str) -> None:
    if last is not None:
        allowed = f"CREATED_TS, or start and end with at most {MAX_SORTED_RUNS} runs between them"
        raise InvalidRequest([Problem("sort", sort, allowed, "too_many")])


def _with_times(tx: Tx, runs: Sequence[BotRun], sort: str) -> list[tuple[Micros, BotRun]]:
    """The runs that have a time of this kind, each with its time."""
    tasks = task_result.read(tx, sorted({one.run.task_id for one in runs})) if sort == "ABANDONED_TS" else {}

    def time_of(run: TaskRun) -> Micros | None:
        times = {
            "STARTED_TS": run.started_at or run.claimed_at,
            "COMPLETED_TS": run.ended_at,
            "ABANDONED_TS": show.abandoned_at(run, tasks.get(run.task_id)),
            "MODIFIED_TS": run.modified_at,
        }
        return times[sort]

    return [(at, one) for one in runs if (at := time_of(one.run)) is not None]


def _sorted(timed: Sequence[tuple[Micros, BotRun]], position: str, n: int) -> tuple[list[BotRun], str]:
    """The next n runs after a position, latest first, and the position of the last one."""
    keyed = [((at, one.run.task_id, one.run.run), one) for at, one in timed]
    keyed.sort(key=lambda pair: pair[0], reverse=True)
    if position:
        last_key = tuple(int(part) for part in position.split())
        keyed = [pair for pair in keyed if pair[0] < last_key]
    page = keyed[:n]
    next_position = " ".join(str(part) for part in page[-1][0]) if len(keyed) > n else ""
    return [one for _, one in page], next_position


def _results(tx: Tx, runs: Sequence[BotRun], *, stats: bool) -> list[v1.TaskResult]:
    ids = sorted({one.run.task_id for one in runs})
    facts = show.Facts(
        tasks=task_result.read(tx, ids),
        requests={},
        runs={},
        bots=run_details.bots_of_runs(tx, ids),
        stats=run_details.stats(tx, ids) if stats else {},
        children={},
        versions=server_version.read(tx),
    )
    return [show.show_run_result(facts, one.run, one.name, one.created_at) for one in runs]


# ---------------------------------------------------------------- actions


async def delete_bot(context: ServerContext, call: Call) -> v1.DeletedResponse:
    """Delete a bot; its events are kept. Idempotent."""
    await bot_usecases.delete_bot(context, call.params["bot_id"], force=True)
    return v1.DeletedResponse(deleted=True)


class TerminateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str | None = None


async def terminate_bot(context: ServerContext, call: Call) -> v1.TerminateResponse:
    """Submit the task that makes a bot finish its runs and exit; the response has its id."""
    body: Any = call.body
    task_id = await bot_usecases.terminate_bot(context, call.params["bot_id"], body.reason or "", who=call.who.name)
    return v1.TerminateResponse(task_id=task_id)
