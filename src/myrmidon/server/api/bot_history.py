"""What happened to bots, what they have run, and what all of them have to offer."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID, PageQuery
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.bots import count_dimensions
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.views import bot_history, listings
from myrmidon.store.views.bot_history import Place, Told
from myrmidon.store.views.listings import RunLine


class BotEventInfo(Struct, frozen=True):
    """``run``: the run that it is about, if it is about one."""

    at: Micros
    kind: str
    message: str
    run: str | None = None
    version: str | None = None


class BotEventList(Struct, frozen=True):
    events: list[BotEventInfo]
    cursor: str | None


async def list_events(context: ServerContext, call: Call) -> BotEventList:
    """What happened to a bot, newest first; also after it was deleted, until the retention ends.

    What was run only those may know whose tasks they are.
    """
    bot_id, page = call.params["id"], call.query
    kind = f"events {bot_id}"
    place = Place(context.now() + SECOND)
    if page.cursor:
        place = Place(*map(int, read_cursor(context.keys.cursor, kind, page.cursor).split(":")))
    scope = await context.groups.scope_of(call)
    found, more = await context.db.read(lambda tx: bot_history.page(tx, bot_id, place, n=page.limit))
    cursor = show_cursor(context.keys.cursor, kind, f"{more.until}:{more.seen}") if more else None
    mine = [_event(one) for one in found if one.task_id is None or scope in (None, one.resource_group_id)]
    return BotEventList(mine, cursor)


def _event(one: Told) -> BotEventInfo:
    run = show_run(one.task_id, one.run) if one.task_id is not None else None
    return BotEventInfo(one.at, one.kind, one.message, run, one.version)


class BotRun(Struct, frozen=True, kw_only=True):
    task_id: str
    run: str
    name: str
    state: str
    reason: str
    claimed_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    exit_code: int | None
    duration: float | None


class BotRunList(Struct, frozen=True):
    runs: list[BotRun]
    cursor: str | None


async def list_runs(context: ServerContext, call: Call) -> BotRunList:
    """What a bot has run, newest task first."""
    bot_id, page = call.params["id"], call.query
    kind = f"runs {bot_id}"
    before = int(read_cursor(context.keys.cursor, kind, page.cursor)) if page.cursor else LAST_ID
    scope = await context.groups.scope_of(call)
    found, last = await context.db.read(
        lambda tx: listings.runs_of_bot(tx, bot_id, group_id=scope, before=before, n=page.limit)
    )
    more = show_cursor(context.keys.cursor, kind, str(last)) if last else None
    return BotRunList([_bot_run(line) for line in found], more)


def _bot_run(line: RunLine) -> BotRun:
    return BotRun(
        task_id=show_task(line.task_id),
        run=show_run(line.task_id, line.run),
        name=line.name,
        state=line.state,
        reason=line.reason,
        claimed_at=line.claimed_at,
        started_at=line.started_at,
        ended_at=line.ended_at,
        exit_code=line.exit_code,
        duration=line.duration,
    )


# ---------------------------------------------------------------- what all of them have


class DimensionsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the bots of one pool, or of all."""

    pool: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class DimensionInfo(Struct, frozen=True):
    """One dimension, and how many bots have each of its values."""

    key: str
    values: dict[str, int]


class DimensionList(Struct, frozen=True):
    dimensions: list[DimensionInfo]
    counted_at: Micros


async def list_dimensions(context: ServerContext, call: Call) -> DimensionList:
    """Which dimensions there are to ask for."""
    values, at = await count_dimensions(context, call.query.pool)
    return DimensionList([DimensionInfo(key, found) for key, found in values.items()], at)


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/bots/dimensions",
        call=list_dimensions,
        who=READERS,
        query=DimensionsQuery,
        out=DimensionList,
        summary="Which dimensions bots have, and how many have each",
    ),
    Route(
        method="GET",
        path="/api/v1/bots/{id}/events",
        call=list_events,
        who=READERS,
        query=PageQuery,
        out=BotEventList,
        summary="What happened to a bot",
    ),
    Route(
        method="GET",
        path="/api/v1/bots/{id}/tasks",
        call=list_runs,
        who=READERS,
        query=PageQuery,
        out=BotRunList,
        summary="What a bot has run",
    ),
)
