"""Bots over Swarming's API v1: lists, counts, one in full, what happened to it, what it ran, and its end."""

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
from myrmidon.store.tables import bot_event, server_version, task_request, task_result
from myrmidon.store.tables.bot_event import BotEventRow
from myrmidon.store.views import bot_history, listings, run_details
from myrmidon.store.views.bot_history import Place, Told
from myrmidon.store.views.listings import BotSearch
from myrmidon.store.views.run_details import BotRun
from myrmidon.store.views.task_search import DEDUPED, MAX_ID

MAX_SORTED_RUNS = 5000
"""Runs of one bot that are sorted by another time than that of their tasks' creation."""


class BotsQuery(Struct, frozen=True, kw_only=True):
    """Filters of bots. The last four are TRUE, FALSE or NONE."""

    cursor: str | None = None
    dimensions: list[str] = []
    in_maintenance: str | None = None
    is_busy: str | None = None
    is_dead: str | None = None
    limit: int = DEFAULT_LIMIT
    quarantined: str | None = None


class DimensionsQuery(Struct, frozen=True, kw_only=True):
    pool: str | None = None


def _search(query: BotsQuery) -> BotSearch:
    def asked(name: str) -> bool | None:
        return THREE_STATES[parse_enum(getattr(query, name), THREE_STATES, name, "NONE", first=1)]

    terms = []
    for one in query.dimensions:
        key, colon, value = one.partition(":")
        if not colon:
            raise InvalidRequest([Problem("dimensions", one[:100], "key:value", "pattern")])
        terms.append([f"{key}:{alternative}" for alternative in value.split("|")])
    return BotSearch(
        terms=terms,
        dead=asked("is_dead"),
        quarantined=asked("quarantined"),
        maintenance=asked("in_maintenance"),
        busy=asked("is_busy"),
    )


async def list_bots(context: ServerContext, call: Call) -> v1.BotList:
    query: BotsQuery = call.query
    n, wanted, scope = check_limit(query.limit), _search(query), await context.groups.scope_of(call)
    after = read_cursor(context.keys.cursor, "v1 bots", query.cursor) if query.cursor else ""

    def look(tx: Tx) -> tuple[list[str], list[v1.BotInfo]]:
        ids = listings.search_bots(tx, wanted, after=after, n=n)
        work = _running_tasks(tx, ids, scope)
        return ids, [show_bot(context, bot, work.get(bot.id)) for bot in bots.read_many(tx, ids)]

    ids, found = await context.db.read(look)  # one that was deleted meanwhile does not end the list
    more = show_cursor(context.keys.cursor, "v1 bots", ids[-1]) if len(ids) == n else None
    death = int64(context.settings.dead_after_s)
    return v1.BotList(items=found, now=timestamp(context.now()), death_timeout=death, cursor=more)


def _running_tasks(tx: Tx, ids: Sequence[str], scope: int | None) -> dict[str, tuple[str, str]]:
    """The run that each busy bot has at work, and the name of its task; those of other groups are nobody's business."""
    busy = listings.busy_with(tx, ids)
    mine = {bot: [(t, r) for t, r, group in runs if scope in (None, group)] for bot, runs in busy.items()}
    names = task_request.read(tx, sorted({runs[0][0] for runs in mine.values() if runs}))
    return {
        bot: (show_run(*runs[0]), names[runs[0][0]].name) for bot, runs in mine.items() if runs and runs[0][0] in names
    }


def show_bot(context: ServerContext, bot: Bot, work: tuple[str, str] | None) -> v1.BotInfo:
    seat = context.hub.seats.get(bot.id)
    return v1.BotInfo(
        authenticated_as=user_identity(bot.authenticated) if bot.authenticated else f"bot:{bot.id}",
        bot_id=bot.id,
        deleted=False,
        dimensions=show.string_lists(json.decode(bot.dimensions, type=dict[str, list[str]])),
        external_ip=bot.address,
        first_seen_ts=timestamp(bot.first_seen_at),
        is_dead=not bot.alive,
        last_seen_ts=timestamp(max(bot.heartbeat, seat.seen_at if seat else 0)),
        maintenance_msg=bot.maintenance,
        quarantined=bot.quarantined is not None,
        state=_state(bot.state, bot.quarantined),
        task_id=work[0] if work else None,
        task_name=work[1] if work else None,
        version=bot.version,
    )


def _state(text: str | None, quarantined: str | None) -> str:
    """What a bot says of itself, as a text with JSON in it; why it is in quarantine is looked for in there."""
    said = as_object(text)
    if quarantined is not None and not said.get("quarantined"):
        said["quarantined"] = quarantined
    return json.encode(said, order="sorted").decode()


async def count_bots(context: ServerContext, call: Call) -> v1.BotsCount:
    wanted = _search(call.query)
    found = await context.db.read(lambda tx: listings.count_bots(tx, wanted))
    return v1.BotsCount(
        busy=int64(found.busy),
        count=int64(found.count),
        dead=int64(found.dead),
        maintenance=int64(found.maintenance),
        now=timestamp(context.now()),
        quarantined=int64(found.quarantined),
    )


async def bots_dimensions(context: ServerContext, call: Call) -> v1.BotsDimensions:
    """Every value of every dimension that some bot has."""
    found, at = await bot_usecases.count_dimensions(context, call.query.pool)
    lists = {key: list(values) for key, values in found.items()}
    return v1.BotsDimensions(bots_dimensions=show.string_lists(lists), ts=timestamp(at))


# ---------------------------------------------------------------- one bot


async def get_bot(context: ServerContext, call: Call) -> v1.BotInfo:
    """A bot; one that was deleted as it last was."""
    bot_id, scope = call.params["bot_id"], await context.groups.scope_of(call)

    def look(tx: Tx) -> v1.BotInfo:
        bot = bots.read(tx, bot_id)
        if bot is not None:
            return show_bot(context, bot, _running_tasks(tx, [bot_id], scope).get(bot_id))
        last = bot_event.read_full(tx, bot_id, low=0, high=MAX_ID, n=1)
        if not last:
            raise NotFound("bot", bot_id[:100])
        return _deleted_bot(bot_id, last[0])

    return await context.db.read(look)


def _deleted_bot(bot_id: str, event: BotEventRow) -> v1.BotInfo:
    return v1.BotInfo(
        authenticated_as=user_identity(event.authenticated) if event.authenticated else f"bot:{bot_id}",
        bot_id=bot_id,
        deleted=True,
        dimensions=_dimensions(event.dimensions),
        external_ip=event.address,
        is_dead=True,
        last_seen_ts=timestamp(event.at),
        maintenance_msg=event.maintenance,
        quarantined=event.quarantined is not None,
        state=_state(event.state, event.quarantined),
        version=event.version,
    )


def _dimensions(text: str | None) -> list[v1.StringListPair]:
    return show.string_lists(json.decode(text, type=dict[str, list[str]])) if text else []


class EventsQuery(Struct, frozen=True, kw_only=True):
    cursor: str | None = None
    end: float | None = None
    limit: int = DEFAULT_LIMIT
    start: float | None = None


async def bot_events(context: ServerContext, call: Call) -> v1.BotEvents:
    """What happened to a bot, newest first; also after it was deleted, until the retention ends."""
    query, bot_id = call.query, call.params["bot_id"]
    n, scope, kind = check_limit(query.limit), await context.groups.scope_of(call), f"v1 events {bot_id}"
    since, end = parse_seconds(query.start, "start") or 0, parse_seconds(query.end, "end")
    place = Place(end - 1 if end is not None else context.now())
    if query.cursor:
        place = Place(*map(int, read_cursor(context.keys.cursor, kind, query.cursor).split()))
    found, more = await context.db.read(lambda tx: bot_history.page(tx, bot_id, place, n=n, since=since))
    mine = [_event(bot_id, one) for one in found if one.task_id is None or scope in (None, one.resource_group_id)]
    cursor = show_cursor(context.keys.cursor, kind, f"{more.until} {more.seen}") if more else None
    return v1.BotEvents(items=mine, now=timestamp(context.now()), cursor=cursor)


def _event(bot_id: str, event: Told) -> v1.BotEvent:
    return v1.BotEvent(
        authenticated_as=user_identity(event.authenticated) if event.authenticated else f"bot:{bot_id}",
        dimensions=_dimensions(event.dimensions),
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


_NEVER_ON_A_BOT = ("PENDING", "PENDING_RUNNING", "DEDUPED")


async def bot_tasks(context: ServerContext, call: Call) -> v1.BotTasks:
    """What a bot has run; by the time of creation of the tasks, or by another one where those are few enough."""
    query: BotTasksQuery = call.query
    n, (low, high) = check_limit(query.limit), id_range(query.start, query.end)
    bot_id, scope = call.params["bot_id"], await context.groups.scope_of(call)
    sort = parse_enum(query.sort, SORTS, "sort", "CREATED_TS")
    states = _run_states(query)
    kind = f"v1 runs {bot_id} {sort}"
    place = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else ""

    def look(tx: Tx) -> tuple[list[v1.TaskResult], str]:
        if sort == "CREATED_TS":
            end = min(high, int(place)) if place else high
            found, last = run_details.runs_of_bot(tx, bot_id, low=low, high=end, n=n)
            more = str(last) if last is not None else ""
        else:
            there, last = run_details.runs_of_bot(tx, bot_id, low=low, high=high, n=MAX_SORTED_RUNS)
            _check_sortable(last, sort)
            found, more = _sorted(_with_times(tx, there, sort), place, n)
        mine = [one for one in found if scope in (None, one.run.resource_group_id)]
        mine = [one for one in mine if not states or one.run.state in states]
        return _shown(tx, mine, stats=query.include_performance_stats), more

    found, more = await context.db.read(look)
    cursor = show_cursor(context.keys.cursor, kind, more) if more else None
    return v1.BotTasks(items=found, now=timestamp(context.now()), cursor=cursor)


def _run_states(query: BotTasksQuery) -> list[str]:
    state = parse_enum(query.state, STATE_FILTERS, "state", "ALL")
    if state in _NEVER_ON_A_BOT:
        allowed = ", ".join(one for one in STATE_FILTERS if one not in _NEVER_ON_A_BOT)
        raise InvalidRequest([Problem("state", state, f"one that a run can have: {allowed}", "choice")])
    return [str(one) for one in STATE_FILTERS[state] if one != DEDUPED]


def _check_sortable(last: int | None, sort: str) -> None:
    if last is not None:
        told = f"CREATED_TS, or start and end with at most {MAX_SORTED_RUNS} runs between them"
        raise InvalidRequest([Problem("sort", sort, told, "too_many")])


def _with_times(tx: Tx, found: Sequence[BotRun], sort: str) -> list[tuple[Micros, BotRun]]:
    """The runs that have this time, each with it."""
    tasks = task_result.read(tx, sorted({one.run.task_id for one in found})) if sort == "ABANDONED_TS" else {}

    def time_of(run: TaskRun) -> Micros | None:
        times = {
            "STARTED_TS": run.started_at or run.claimed_at,
            "COMPLETED_TS": run.ended_at,
            "ABANDONED_TS": show.abandoned_at(run, tasks.get(run.task_id)),
            "MODIFIED_TS": run.modified_at,
        }
        return times[sort]

    return [(at, one) for one in found if (at := time_of(one.run)) is not None]


def _sorted(timed: Sequence[tuple[Micros, BotRun]], place: str, n: int) -> tuple[list[BotRun], str]:
    """The runs behind a place, latest first, and the place of the last."""
    keyed = [((at, one.run.task_id, one.run.run), one) for at, one in timed]
    keyed.sort(key=lambda pair: pair[0], reverse=True)
    if place:
        behind = tuple(int(part) for part in place.split())
        keyed = [pair for pair in keyed if pair[0] < behind]
    page = keyed[:n]
    more = " ".join(str(part) for part in page[-1][0]) if len(keyed) > n else ""
    return [one for _, one in page], more


def _shown(tx: Tx, found: Sequence[BotRun], *, stats: bool) -> list[v1.TaskResult]:
    ids = sorted({one.run.task_id for one in found})
    facts = show.Facts(
        tasks=task_result.read(tx, ids),
        requests={},
        runs={},
        bots=run_details.bots_of_runs(tx, ids),
        stats=run_details.stats(tx, ids) if stats else {},
        children={},
        versions=server_version.read(tx),
    )
    return [show.show_run_result(facts, one.run, one.name, one.created_at) for one in found]


# ---------------------------------------------------------------- verbs


async def delete_bot(context: ServerContext, call: Call) -> v1.DeletedResponse:
    """Forget a bot; its history stays. Saying it again is the same as saying it once."""
    await bot_usecases.delete_bot(context, call.params["bot_id"])
    return v1.DeletedResponse(deleted=True)


class TerminateBody(Struct, frozen=True, kw_only=True):
    reason: str | None = None


async def terminate_bot(context: ServerContext, call: Call) -> v1.TerminateResponse:
    """Let a bot finish what it has and then end; the id of the task that tells it so."""
    body: Any = call.body
    task_id = await bot_usecases.terminate_bot(context, call.params["bot_id"], body.reason or "", who=call.who.name)
    return v1.TerminateResponse(task_id=task_id)
