"""Events and runs of a bot, and the dimensions of all bots."""

from __future__ import annotations

from myrmidon.model.ids import show_run
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.usecases.bots import count_dimensions, visible_events
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.views import bot_history, listings
from myrmidon.store.views.bot_history import HistoryEntry, HistoryPosition
from myrmidon.wire import bots as wire
from myrmidon.wire.fields import PageQuery

ROUTES = Routes()


@ROUTES.add("GET", "/api/v1/bots/{id}/events", READERS, "List events of a bot", query=PageQuery)
async def list_events(context: ServerContext, call: Call) -> wire.BotEventList:
    """Events of a bot, newest first. They are kept after the bot was deleted, until the retention time ends.

    Events of runs are listed only if the run is in the caller's resource group, others only if the bot was in a pool
    that the caller may see.
    """
    bot_id, query = call.params["id"], call.query
    kind = f"events {bot_id}"
    position = HistoryPosition(context.now() + SECOND)
    if query.cursor:
        position = HistoryPosition(*map(int, read_cursor(context.keys.cursor, kind, query.cursor).split(":")))
    scope = await context.groups.scope_of(call)
    events, more = await context.db.read(lambda tx: bot_history.page(tx, bot_id, position, n=query.limit))
    cursor = show_cursor(context.keys.cursor, kind, f"{more.until}:{more.seen}") if more else None
    visible = visible_events(events, scope, visible_pools(context, call.who))
    return wire.BotEventList([_event_info(event) for event in visible], cursor)


def _event_info(event: HistoryEntry) -> wire.BotEventInfo:
    run = show_run(event.task_id, event.run) if event.task_id is not None else None
    return wire.BotEventInfo(event.at, event.kind, event.message, run, event.version)


@ROUTES.add("GET", "/api/v1/bots/{id}/tasks", READERS, "List runs of a bot", query=PageQuery)
async def list_runs(context: ServerContext, call: Call) -> wire.BotRunList:
    """Runs of a bot in the caller's resource group, newest task first."""
    bot_id, query = call.params["id"], call.query
    kind = f"runs {bot_id}"
    before = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else LAST_ID
    scope = await context.groups.scope_of(call)
    runs, last = await context.db.read(
        lambda tx: listings.runs_of_bot(tx, bot_id, group_id=scope, before=before, n=query.limit)
    )
    cursor = show_cursor(context.keys.cursor, kind, str(last)) if last else None
    return wire.BotRunList(runs, cursor)


# ---------------------------------------------------------------- dimensions


@ROUTES.add("GET", "/api/v1/bots/dimensions", READERS, "Count the dimensions of bots", query=wire.DimensionsQuery)
async def list_dimensions(context: ServerContext, call: Call) -> wire.DimensionList:
    """The dimensions of the bots that the caller may see, with the number of bots for each value.

    Counts can be ten seconds old.
    """
    counts, counted_at = await count_dimensions(context, call.who, call.query.pool)
    return wire.DimensionList([wire.DimensionInfo(key, values) for key, values in counts.items()], counted_at)
