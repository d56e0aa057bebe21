"""Bots as people see them: lists, one in full, and putting them aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, json

from myrmidon.model.bot import Bot
from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros, show_run
from myrmidon.scheduler import bots as fleet
from myrmidon.server.api.common import Done, Limit
from myrmidon.server.calls import (
    ADMINS,
    READERS,
    Call,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases import bots as terminate
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.views import listings
from myrmidon.store.views.listings import BotFilter

Busy: TypeAlias = Mapping[str, Sequence[tuple[int, int, int]]]
"""Runs under way by bot: task, run, resource group."""


class BotQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dimension`` is ``key:value``; all that are given must be there."""

    dimension: Annotated[list[str], Meta(max_length=16)] = []
    state: Literal["alive", "dead", "quarantined", "maintenance", "draining", "busy", "idle"] | None = None
    limit: Limit = 100
    cursor: str | None = None


class BotSummary(Struct, frozen=True, kw_only=True):
    """``status`` is one word for what matters most about the bot now."""

    bot_id: str
    status: str
    alive: bool
    draining: bool
    quarantined: str | None
    maintenance: str | None
    dimensions: dict[str, list[str]]
    version: str
    address: str
    first_seen_at: Micros
    last_seen_at: Micros
    runs: list[str]


class BotInfo(BotSummary, frozen=True, kw_only=True):
    """A bot in full; ``state`` is what it says of itself, ``group`` the one of bots.toml that it is in."""

    state: Raw
    session: int
    boot_id: str
    authenticated: str
    num_quick_failures: int
    group: str | None
    owners: list[str]


class BotList(Struct, frozen=True):
    bots: list[BotSummary]
    cursor: str | None


async def list_bots(context: ServerContext, call: Call) -> BotList:
    query: BotQuery = call.query
    after = read_cursor(context.keys.cursor, "bots", query.cursor) if query.cursor else ""
    wanted = BotFilter(dimensions=query.dimension, state=query.state)
    scope = await context.groups.scope_of(call)

    def look(tx: Tx) -> tuple[list[str], list[Bot], Busy]:
        ids = listings.bots(tx, wanted, after=after, n=query.limit)
        return ids, bots.read_many(tx, ids), listings.busy_with(tx, ids)

    ids, found, busy = await context.db.read(look)  # one that was deleted meanwhile does not end the list
    more = show_cursor(context.keys.cursor, "bots", ids[-1]) if len(ids) == query.limit else None
    return BotList([_summary(context, bot, busy, scope) for bot in found], more)


async def get_bot(context: ServerContext, call: Call) -> BotInfo:
    bot_id = call.params["id"]
    scope = await context.groups.scope_of(call)

    def look(tx: Tx) -> tuple[Bot, Busy]:
        bot = bots.read(tx, bot_id)
        if bot is None:
            raise NotFound("bot", bot_id)
        return bot, listings.busy_with(tx, [bot_id])

    bot, busy = await context.db.read(look)
    return _info(context, bot, _summary(context, bot, busy, scope))


def _info(context: ServerContext, bot: Bot, short: BotSummary) -> BotInfo:
    given = context.state.config.given(bot.id)
    return BotInfo(
        **{field: getattr(short, field) for field in BotSummary.__struct_fields__},
        state=Raw(bot.state.encode()),
        session=bot.session,
        boot_id=bot.boot_id,
        authenticated=bot.authenticated,
        num_quick_failures=bot.num_quick_failures,
        group=given.group or None if given is not None else None,
        owners=given.owners if given is not None else [],
    )


def _summary(context: ServerContext, bot: Bot, busy: Busy, scope: int | None) -> BotSummary:
    """That it is busy everybody may know; with what, only those whose tasks they are."""
    seat = context.hub.seats.get(bot.id)
    runs = [show_run(task_id, run) for task_id, run, group in busy.get(bot.id, ()) if scope in (None, group)]
    return BotSummary(
        bot_id=bot.id,
        status=_status(bot, busy=bot.id in busy),
        alive=bool(bot.alive),
        draining=bool(bot.draining),
        quarantined=bot.quarantined,
        maintenance=bot.maintenance,
        dimensions=json.decode(bot.dimensions, type=dict[str, list[str]]),
        version=bot.version,
        address=bot.address,
        first_seen_at=bot.first_seen_at,
        last_seen_at=max(bot.heartbeat, seat.seen_at if seat else 0),
        runs=runs,
    )


def _status(bot: Bot, *, busy: bool) -> str:
    if not bot.alive:
        return "dead"
    if bot.quarantined is not None:
        return "quarantined"
    if bot.maintenance is not None:
        return "maintenance"
    if bot.draining:
        return "draining"
    return "busy" if busy else "idle"


# ---------------------------------------------------------------- putting aside


class QuarantineBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the bot shall get no work; null lets it work again."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)] | None


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    draining: bool = True


class TerminateBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class BotChanged(Struct, frozen=True):
    bot_id: str
    alive: bool
    draining: bool
    quarantined: str | None
    task_id: str | None = None
    """The task that tells the bot to end."""


def _changed(bot: Bot) -> BotChanged:
    return BotChanged(bot.id, bool(bot.alive), bool(bot.draining), bot.quarantined)


def _known(tx: Tx, bot_id: str) -> Bot:
    bot = bots.read(tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    return bot


async def quarantine_bot(context: ServerContext, call: Call) -> BotChanged:
    """Give a bot no more work, for a reason, or let it work again; what it runs goes on."""
    bot_id, reason, now = call.params["id"], call.body.reason, context.now()

    def put(tx: Tx) -> Bot:
        if not claim_call_key(tx, call, "quarantine", bot_id, now=now):
            return _known(tx, bot_id)
        return fleet.quarantine(tx, bot_id, reason, now=now, ids=context.ids, rules=context.rules)

    bot = await context.db.write(put)
    context.hub.look(bot_id)
    return _changed(bot)


async def drain_bot(context: ServerContext, call: Call) -> BotChanged:
    """Let a bot finish what it has and give it nothing more, or end that."""
    bot_id, draining, now = call.params["id"], call.body.draining, context.now()

    def drain(tx: Tx) -> Bot:
        if not claim_call_key(tx, call, "drain", bot_id, now=now):
            return _known(tx, bot_id)
        return fleet.drain_bot(tx, bot_id, draining, now=now, ids=context.ids, rules=context.rules)

    bot = await context.db.write(drain)
    context.hub.look(bot_id)
    return _changed(bot)


async def terminate_bot(context: ServerContext, call: Call) -> BotChanged:
    """Let a bot finish what it has and then end its process. Saying it again is the same as saying it once."""
    bot_id = call.params["id"]
    task_id = await terminate.terminate_bot(context, bot_id, call.body.reason, who=call.who.name)
    bot = await context.db.read(lambda tx: _known(tx, bot_id))
    return BotChanged(bot.id, bool(bot.alive), bool(bot.draining), bot.quarantined, task_id)


async def delete_bot(context: ServerContext, call: Call) -> Done:
    """Forget a bot. Saying it again is the same as saying it once."""
    await terminate.delete_bot(context, call.params["id"])
    return Done()


ROUTES = (
    Route(method="GET", path="/api/v1/bots", call=list_bots, who=READERS, query=BotQuery, out=BotList, summary="Bots"),
    Route(method="GET", path="/api/v1/bots/{id}", call=get_bot, who=READERS, out=BotInfo, summary="One bot in full"),
    Route(
        method="POST",
        path="/api/v1/bots/{id}/quarantine",
        call=quarantine_bot,
        who=ADMINS,
        body=QuarantineBody,
        out=BotChanged,
        mutates=True,
        summary="Give a bot no work, or let it work again",
    ),
    Route(
        method="POST",
        path="/api/v1/bots/{id}/drain",
        call=drain_bot,
        who=ADMINS,
        body=DrainBody,
        out=BotChanged,
        mutates=True,
        summary="Let a bot finish and give it nothing more",
    ),
    Route(
        method="POST",
        path="/api/v1/bots/{id}/terminate",
        call=terminate_bot,
        who=ADMINS,
        body=TerminateBody,
        out=BotChanged,
        mutates=True,
        summary="Let a bot finish and end",
    ),
    Route(
        method="DELETE",
        path="/api/v1/bots/{id}",
        call=delete_bot,
        who=ADMINS,
        out=Done,
        mutates=True,
        summary="Forget a bot",
    ),
)
