"""Bots come in: who they are, what their group gives them, and what is known of them from then on.

A bot acts as itself only. What the administrator has decided for its group comes before what it says of itself.
"""

from __future__ import annotations

import hmac
from functools import partial
from hashlib import sha256
from importlib.metadata import version as installed
from typing import Any

from msgspec import Struct, json

from myrmidon.model import dimensions
from myrmidon.model.bot import Bot, Handshake
from myrmidon.model.errors import Forbidden, InvalidRequest, Problem, Unauthorized, WrongState
from myrmidon.model.ids import Micros, show_run
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler.policy import DAY, SECOND
from myrmidon.server.auth.authenticator import bot_credential
from myrmidon.server.botapi.messages import Exchange, HandshakeRequest, Welcomed, encode, run_of
from myrmidon.server.calls import Call, Role
from myrmidon.server.config.bot_groups import BotGroupConfig
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import ATTEMPT_BITS
from myrmidon.server.fleet import config_sync, rollout
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, task_queues, task_to_run

VERSION = installed("myrmidon")
LOOK_AGAIN: Micros = 600 * SECOND
BEAT_EVERY: Micros = 60 * SECOND
_MOST_TEXT = 4096


async def handshake(context: ServerContext, call: Call) -> Welcomed:
    """A bot has started, or has changed: who it is from now on, and which of its runs are still its own.

    Whoever shows a credential can only be the bot that it was given to; and only while that bot is known, so
    that deleting a bot takes its credential away.
    """
    body: HandshakeRequest = call.body
    if call.who.role is Role.BOT and call.who.bot_id != body.bot_id:
        raise Forbidden(f"This credential is that of the bot {call.who.bot_id}.")
    await config_sync.refresh(context)
    given, now = given_to(context, body.bot_id), context.now()
    word = own_word(body.state, body.quarantined, body.maintenance)
    hello = _hello(call, given, word)

    def meet(tx: Tx) -> tuple[fleet.HandshakeResult, Looked]:
        known = bots.read(tx, body.bot_id)
        if call.who.role is Role.BOT and known is None:
            raise Unauthorized("This bot was deleted; it must be introduced again.")
        if call.who.role is Role.BOOTSTRAP and known is not None and known.session != body.session:
            _check_gone(tx, known, context, now)
        if call.who.role is not Role.BOT:
            _check_session(body.session, max(now, known.session if known is not None else 0))
        welcome = fleet.handshake(tx, hello, now=now, ids=context.ids, rules=context.rules, limits=context.limits)
        return welcome, look(tx, body.bot_id, body.session)

    welcome, looked = await context.db.write(meet)
    seat = sit(context, body.bot_id, body.session, looked)
    seat.health_reasons = word
    return _welcomed(context, welcome, given, now)


def _check_gone(tx: Tx, known: Bot, context: ServerContext, now: Micros) -> None:
    """Who brings new bots in, and nothing else, does not get the credential of one that lives."""
    if not known.alive or known.heartbeat + context.rules.dead_after <= now or bot_event.is_leaving(tx, known.id):
        return
    raise Forbidden(
        f"The bot {known.id} is alive, and a bootstrap token brings in new bots only: wait until it has ended or been"
        f" silent for {context.rules.dead_after // SECOND} s, have an administrator delete it, or choose another id."
    )


def _check_session(session: int, now: Micros) -> None:
    """Sessions are times that only grow: one far ahead would keep the bot out until then, whoever has said it.

    A bot that is known may have come so far by a clock that was wrong; it goes on from there.
    """
    if session > now + DAY:
        told = "the time in microseconds, at most a day ahead of the server's; set the clock of the bot's machine right"
        raise InvalidRequest([Problem("session", str(session), told, "range")])


def given_to(context: ServerContext, bot_id: str) -> BotGroupConfig:
    """What a bot's group gives it; whoever is in no group has no business here."""
    given = context.state.config.group_config(bot_id)
    if given is None:
        shown = bot_id[:100]
        raise Forbidden(f"No group of bots.toml has the bot {shown!r}, and there is no default group; add it to one.")
    return given


def own_word(state: dict[str, Any], *more: str | None) -> tuple[str | None, str | None]:
    """Why the bot itself thinks that it should get no work: quarantined, or in maintenance."""
    said = [_text(state.get(name)) or other or None for name, other in zip(_WORDS, more or (None, None), strict=True)]
    return said[0], said[1]


_WORDS = ("quarantined", "maintenance")


def _text(said: object) -> str | None:
    if isinstance(said, str):
        return said.replace("\x00", "")[:_MOST_TEXT] or None
    return "the bot says so" if said is True else None


def _hello(call: Call, given: BotGroupConfig, word: tuple[str | None, str | None]) -> Handshake:
    body: HandshakeRequest = call.body
    return Handshake(
        bot_id=body.bot_id,
        session=body.session,
        dimensions=given.apply(body.dimensions),
        state=encode(body.state).decode(),
        address=call.address[:40],
        boot_id=body.boot_id,
        version=body.version,
        authenticated=call.who.name,
        quarantined=word[0],
        maintenance=word[1],
        holds=[run_of(shown) for shown in body.holds],
        begun=[run_of(shown)[0] for shown in body.begun],
    )


def _welcomed(context: ServerContext, welcome: fleet.HandshakeResult, given: BotGroupConfig, now: Micros) -> Welcomed:
    credential = bot_credential(context.keys.bot, welcome.bot_id, welcome.session)
    wanted = rollout.release_for(context, welcome.bot_id)
    return Welcomed(
        credential=credential,
        bot_id=welcome.bot_id,
        session=welcome.session,
        keep=[show_run(task_id, run) for task_id, run in welcome.keep],
        quarantined=welcome.quarantined,
        version=wanted,
        zip_hmac=zip_hmac(credential, wanted),
        poll_s=context.settings.poll_s,
        heartbeat_s=context.settings.heartbeat_s,
        server_time=now,
        server_version=VERSION,
        config=given.version,
        dimensions=given.dimensions,
        script=given.script,
        script_name=given.script_name,
        settings=given.settings,
    )


def zip_hmac(credential: str, digest: str) -> str:
    """Proves to a bot that the digest comes from whoever gave it its credential."""
    return hmac.new(credential.encode(), digest.encode(), sha256).hexdigest()


# ---------------------------------------------------------------- what is known of a bot


class Looked(Struct, frozen=True):
    """What the database says of a bot, as far as its polls ask for it."""

    queues: list[int]
    serving: bool
    version: str
    nonce: int
    heartbeat: Micros
    ends: bool
    work: bool
    os: str


def look(tx: Tx, bot_id: str, session: int, *, for_work: bool = False) -> Looked:
    bot = bots.read(tx, bot_id)
    if bot is None or bot.session != session or not bot.alive:
        raise WrongState("This bot's session has ended; it must shake hands again.")
    ends = bots.terminating_session(tx, bot_id)
    serving = bool(bot.serving)
    return Looked(
        queues=task_queues.queues_of_bot(tx, bot_id) if serving else [],
        serving=serving,
        version=bot.version,
        nonce=bot.nonce >> ATTEMPT_BITS,
        heartbeat=bot.heartbeat,
        ends=ends is not None and ends >= session,
        work=for_work and _has_work(tx, bot_id, serving=serving),
        os=dimensions.os_family(dimensions.bot_sets(bot.dimensions).get("os", frozenset())),
    )


def _has_work(tx: Tx, bot_id: str, *, serving: bool) -> bool:
    """A bot that gets no work may still be told to end."""
    if serving:
        return bool(task_to_run.heads(tx, bot_id))
    return bool(task_to_run.not_empty(tx, task_queues.own_queues(tx, bot_id)))


def sit(context: ServerContext, bot_id: str, session: int, looked: Looked) -> ConnectedBot:
    seat = context.hub.register(bot_id, session, looked.queues)
    seat.version = looked.version
    seat.os_family = looked.os
    seat.directive = "terminate" if looked.ends else None
    seat.nonce = max(seat.nonce, looked.nonce)
    seat.loaded_at = seat.seen_at = context.now()
    seat.first_seen_at = seat.first_seen_at or seat.seen_at
    seat.flushed_at = max(seat.flushed_at, looked.heartbeat)
    return seat


def seat_of(context: ServerContext, bot_id: str, session: int) -> ConnectedBot | None:
    """The bot as it is known here, if that can be relied on."""
    seat = context.hub.bots.get(bot_id)
    if seat is None or seat.session != session or seat.outdated or context.now() - seat.loaded_at >= LOOK_AGAIN:
        return None
    return seat


def beat_every(context: ServerContext) -> Micros:
    """How old the last sign of life that was written down may get."""
    return min(BEAT_EVERY, context.rules.dead_after // 4)


def itself(call: Call) -> str:
    if call.who.bot_id is None:
        raise Forbidden("Only a bot may do this.")
    return call.who.bot_id


# ---------------------------------------------------------------- changes


async def hear_change(context: ServerContext, bot_id: str, ask: Exchange) -> None:
    """A bot says what it has become: other dimensions, or why it should get no work. Most say nothing of the kind."""
    if ask.dimensions is None and ask.state is None:
        return
    seat = context.hub.bots.get(bot_id)
    word = own_word(ask.state) if ask.state is not None else None
    known = seat is not None and seat.session == ask.session and word in (None, seat.health_reasons)
    if ask.dimensions is None and known:
        return
    now = context.now()
    given = context.state.config.group_config(bot_id)  # one that is in no group any more keeps what it had, and finishes that
    own = given.apply(ask.dimensions) if ask.dimensions is not None and given is not None else None
    change = partial(_change, context=context, bot_id=bot_id, ask=ask, own=own, now=now)
    looked, word = await context.db.write(change)
    seat = sit(context, bot_id, ask.session, looked)
    seat.health_reasons = word
    if ask.state is not None:
        seat.state_written_at = now


def _change(
    tx: Tx, context: ServerContext, bot_id: str, ask: Exchange, own: dict[str, list[str]] | None, now: Micros
) -> tuple[Looked, tuple[str | None, str | None]]:
    before = bots.read(tx, bot_id)
    state = encode(ask.state).decode() if ask.state is not None else before.state if before is not None else "{}"
    word = own_word(json.decode(state, type=dict[str, Any]))
    change = fleet.BotChange(
        bot_id=bot_id, session=ask.session, dimensions=own, state=state, quarantined=word[0], maintenance=word[1]
    )
    fleet.change_bot(tx, change, now=now, ids=context.ids, rules=context.rules, limits=context.limits)
    return look(tx, bot_id, ask.session), word
