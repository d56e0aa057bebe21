"""Changes of a bot during its session: state, dimensions, group configuration."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from msgspec import json

from myrmidon.model.ids import Micros
from myrmidon.scheduler import bots as scheduler_bots
from myrmidon.server.botapi.bot_snapshot import BotSnapshot, read_snapshot, register_bot
from myrmidon.server.botapi.messages import ExchangeRequest, encode
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import config_sync
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots

MAX_TEXT_CHARS = 4096
HealthReasons: TypeAlias = tuple[str | None, str | None]
"""Why a bot reports itself quarantined, and in maintenance; None where it does not."""


def health_reasons(
    state: dict[str, Any], quarantined: str | None = None, maintenance: str | None = None
) -> HealthReasons:
    """The reasons in a bot's state, which come before the given ones."""
    return (
        _reason(state.get("quarantined")) or quarantined or None,
        _reason(state.get("maintenance")) or maintenance or None,
    )


def _reason(value: object) -> str | None:
    if isinstance(value, str):
        return value.replace("\x00", "")[:MAX_TEXT_CHARS] or None
    return "reported by the bot" if value is True else None


async def record_config_version(context: ServerContext, bot_id: str, session: int, version: str | None) -> None:
    """Remember which group configuration a bot has; None from a bot that does not support groups.

    If it is not the current one, the settings are read again first, so that the bot is not restarted for old ones.
    """
    if version is None:
        return
    if version != context.state.config.config_version_of(bot_id):
        await config_sync.refresh(context)
    bot = context.hub.bots.get(bot_id)
    if bot is not None and bot.session == session:
        bot.config = version


async def apply_state_change(context: ServerContext, bot_id: str, request: ExchangeRequest) -> None:
    """Write new dimensions or health reasons of a bot; most exchanges have none, and cost nothing here."""
    if request.dimensions is None and request.state is None:
        return
    bot = context.hub.bots.get(bot_id)
    reasons = health_reasons(request.state) if request.state is not None else None
    unchanged = bot is not None and bot.session == request.session and reasons in (None, bot.health_reasons)
    if request.dimensions is None and unchanged:
        return
    now, queue_seq = context.now(), context.hub.queue_seq
    change = partial(_write_change, context=context, bot_id=bot_id, request=request, now=now)
    snapshot, reasons = await context.db.write(change)
    bot = register_bot(context, bot_id, request.session, snapshot, queue_seq=queue_seq)
    bot.health_reasons = reasons
    if request.state is not None:
        bot.state_written_at = now


def _write_change(
    tx: Tx, context: ServerContext, bot_id: str, request: ExchangeRequest, now: Micros
) -> tuple[BotSnapshot, HealthReasons]:
    before = bots.read(tx, bot_id)
    group = context.state.config.group_config(bot_id)
    dimensions = None  # a bot that is in no group any more keeps its dimensions
    if request.dimensions is not None and group is not None:
        dimensions = group.apply(request.dimensions, before.bound_pool if before is not None else None)
    if request.state is not None:
        state = encode(request.state).decode()
    else:
        state = before.state if before is not None else "{}"
    reasons = health_reasons(json.decode(state, type=dict[str, Any]))
    change = scheduler_bots.BotChange(
        bot_id=bot_id,
        session=request.session,
        dimensions=dimensions,
        state=state,
        quarantined=reasons[0],
        maintenance=reasons[1],
    )
    scheduler_bots.change_bot(tx, change, now=now, ids=context.ids, rules=context.rules, limits=context.limits)
    return read_snapshot(tx, bot_id, request.session), reasons
