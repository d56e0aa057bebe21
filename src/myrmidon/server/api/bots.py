"""Bots: list, get, their events and runs; quarantine, drain, terminate, revoke, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import structs

from myrmidon.model.bot import Bot
from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_run
from myrmidon.scheduler import bot_identity
from myrmidon.scheduler import bots as scheduler_bots
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import (
    ADMINS,
    READERS,
    Call,
    Routes,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.usecases import bots as bot_usecases
from myrmidon.server.usecases.bots import count_dimensions, visible_events
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.views import bot_history, listings
from myrmidon.store.views.bot_history import HistoryEntry, HistoryPosition
from myrmidon.store.views.listings import BotFilter
from myrmidon.store.views.pool_filter import PoolFilter
from myrmidon.store.views.selection import stored_json
from myrmidon.wire import bots as wire
from myrmidon.wire.fields import Done, PageQuery

ROUTES = Routes()

Busy: TypeAlias = Mapping[str, list[wire.BotTask]]
"""What the caller may see of the running runs, by bot id."""


@ROUTES.add("GET", "/api/v1/bots", READERS, "List bots", query=wire.BotQuery)
async def list_bots(context: ServerContext, call: Call) -> wire.BotList:
    """Bots that match all filters, ordered by id."""
    query: wire.BotQuery = call.query
    after = read_cursor(context.keys.cursor, "bots", query.cursor) if query.cursor else ""
    visible = visible_pools(context, call.who)
    silent_before = context.now() - context.rules.silent_after
    bot_filter = BotFilter(dimensions=query.dimension, state=query.state, pools=visible, silent_before=silent_before)
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> tuple[list[str], list[Bot], Busy]:
        ids = listings.bots(tx, bot_filter, after=after, n=query.limit)
        return ids, bots.read_many(tx, ids), listings.live_runs(tx, ids, scope)

    # The cursor is taken from the ids: fewer rows are read when a bot was deleted between the two statements.
    ids, rows, busy = await context.db.read(read)
    cursor = show_cursor(context.keys.cursor, "bots", ids[-1]) if len(ids) == query.limit else None
    return wire.BotList([_summary(context, bot, busy, visible) for bot in rows], cursor)


@ROUTES.add("GET", "/api/v1/bots/{id}", READERS, "Get a bot")
async def get_bot(context: ServerContext, call: Call) -> wire.BotInfo:
    """A bot in full."""
    bot_id = call.params["id"]
    scope, visible = await context.groups.scope_of(call), visible_pools(context, call.who)

    def read(tx: Tx) -> tuple[Bot, Busy]:
        return _get(tx, bot_id), listings.live_runs(tx, [bot_id], scope)

    bot, busy = await context.db.read(read)
    if not bot_usecases.is_visible(bot.dimensions, visible):
        raise NotFound("bot", bot_id)
    return _info(context, bot, _summary(context, bot, busy, visible), scope)


def _info(context: ServerContext, bot: Bot, summary: wire.BotSummary, scope: int | None) -> wire.BotInfo:
    config = context.state.config.group_config(bot.id)
    return wire.BotInfo(
        **structs.asdict(summary),
        state=stored_json(bot.state),
        session=bot.session,
        boot_id=bot.boot_id,
        authenticated=bot.authenticated if scope is None else "",
        num_quick_failures=bot.num_quick_failures,
        group=config.group or None if config is not None else None,
        owners=config.owners if config is not None else [],
    )


def _summary(context: ServerContext, bot: Bot, busy: Busy, visible: PoolFilter | None) -> wire.BotSummary:
    """Everybody may see that a bot is busy; only runs in the caller's resource group are listed."""
    connected = context.hub.bots.get(bot.id)
    seen_at = max(bot.heartbeat, connected.seen_at if connected else 0)
    silent = context.now() - seen_at > context.rules.silent_after
    tasks = busy.get(bot.id, [])
    return wire.BotSummary(
        bot_id=bot.id,
        status=_status(bot, silent=silent, busy=bot.id in busy),
        alive=bool(bot.alive),
        draining=bool(bot.draining),
        quarantined=bot.quarantined,
        maintenance=bot.maintenance,
        dimensions=bot_usecases.visible_dimensions(bot.dimensions, visible),
        version=bot.version,
        address=bot.address,
        first_seen_at=bot.first_seen_at,
        last_seen_at=seen_at,
        runs=[task.run for task in tasks],
        tasks=tasks,
    )


def _status(bot: Bot, *, silent: bool, busy: bool) -> str:
    if bot.alive and silent:
        return "silent"
    return bot.unavailable or ("busy" if busy else "idle")


# ---------------------------------------------------------------- actions


def _changed(bot: Bot) -> wire.BotChanged:
    return wire.BotChanged(bot.id, bool(bot.alive), bool(bot.draining), bot.quarantined)


def _get(tx: Tx, bot_id: str) -> Bot:
    bot = bots.read(tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    return bot


@ROUTES.add(
    "POST",
    "/api/v1/bots/{id}/quarantine",
    ADMINS,
    "Quarantine a bot, or end its quarantine",
    body=wire.QuarantineBody,
    mutates=True,
)
async def quarantine_bot(context: ServerContext, call: Call) -> wire.BotChanged:
    """Quarantine a bot, or end its quarantine. A quarantined bot gets no new tasks; its runs continue."""
    bot_id, reason, now = call.params["id"], call.body.reason, context.now()

    def quarantine(tx: Tx) -> Bot:
        if not claim_call_key(tx, call, "quarantine", bot_id, now=now):
            return _get(tx, bot_id)
        return scheduler_bots.quarantine(tx, bot_id, reason, now=now, ids=context.ids, rules=context.rules)

    bot = await context.db.write(quarantine)
    context.hub.recheck(bot_id)
    return _changed(bot)


@ROUTES.add(
    "POST", "/api/v1/bots/{id}/drain", ADMINS, "Drain a bot, or stop draining it", body=wire.DrainBody, mutates=True
)
async def drain_bot(context: ServerContext, call: Call) -> wire.BotChanged:
    """Drain a bot, or stop draining it. A draining bot finishes its runs and gets no new tasks."""
    bot_id, draining, now = call.params["id"], call.body.draining, context.now()

    def drain(tx: Tx) -> Bot:
        if not claim_call_key(tx, call, "drain", bot_id, now=now):
            return _get(tx, bot_id)
        return scheduler_bots.drain_bot(tx, bot_id, draining, now=now, ids=context.ids, rules=context.rules)

    bot = await context.db.write(drain)
    context.hub.recheck(bot_id)
    return _changed(bot)


@ROUTES.add(
    "POST",
    "/api/v1/bots/{id}/terminate",
    ADMINS,
    "Terminate a bot after its runs",
    body=wire.TerminateBody,
    mutates=True,
)
async def terminate_bot(context: ServerContext, call: Call) -> wire.BotChanged:
    """Let a bot finish its runs and then exit. Idempotent."""
    bot_id = call.params["id"]
    task_id = await bot_usecases.terminate_bot(context, bot_id, call.body.reason, who=call.who.name)
    bot = await context.db.read(lambda tx: _get(tx, bot_id))
    return wire.BotChanged(bot.id, bool(bot.alive), bool(bot.draining), bot.quarantined, task_id)


@ROUTES.add("DELETE", "/api/v1/bots/{id}", ADMINS, "Delete a bot", query=wire.DeleteQuery, mutates=True)
async def delete_bot(context: ServerContext, call: Call) -> Done:
    """Delete a bot that is dead, and end its credentials; its events are kept. Idempotent."""
    query: wire.DeleteQuery = call.query
    await bot_usecases.delete_bot(context, call.params["id"], force=query.force)
    return Done()


@ROUTES.add("POST", "/api/v1/bots/{id}/revoke", ADMINS, "Revoke the credentials of a bot", mutates=True)
async def revoke_bot(context: ServerContext, call: Call) -> wire.BotChanged:
    """End the credentials of a bot; it must be introduced again. At once on this server, within seconds on others."""
    bot_id, now = call.params["id"], context.now()

    def revoke(tx: Tx) -> Bot:
        if not claim_call_key(tx, call, "revoke", bot_id, now=now):
            return _get(tx, bot_id)
        return bot_identity.revoke_bot(tx, bot_id, now=now, ids=context.ids, rules=context.rules)

    bot = await context.db.write(revoke)
    context.hub.recheck(bot_id)
    return _changed(bot)


# ---------------------------------------------------------------- events, runs and dimensions


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


@ROUTES.add("GET", "/api/v1/bots/dimensions", READERS, "Count the dimensions of bots", query=wire.DimensionsQuery)
async def list_dimensions(context: ServerContext, call: Call) -> wire.DimensionList:
    """The dimensions of the bots that the caller may see, with the number of bots for each value.

    Counts can be ten seconds old.
    """
    counts, counted_at = await count_dimensions(context, call.who, call.query.pool)
    return wire.DimensionList([wire.DimensionInfo(key, values) for key, values in counts.items()], counted_at)
