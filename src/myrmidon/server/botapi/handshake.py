"""The handshake: checks who a bot is, applies its group's configuration and starts its session.

The configuration of the administrator takes precedence over what a bot reports about itself.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from importlib.metadata import version as installed

from msgspec import structs

from myrmidon.model.bot import Bot, Handshake
from myrmidon.model.errors import Forbidden, InvalidRequest, Problem, Unauthorized
from myrmidon.model.ids import Micros, show_run
from myrmidon.scheduler import bots as scheduler_bots
from myrmidon.scheduler.policy import DAY, SECOND
from myrmidon.server.auth.authenticator import bot_credential
from myrmidon.server.botapi.bot_changes import HealthReasons, health_reasons
from myrmidon.server.botapi.bot_snapshot import BotSnapshot, read_snapshot, register_bot
from myrmidon.server.botapi.messages import HandshakeRequest, HandshakeResponse, encode, parse_run
from myrmidon.server.calls import Call, Role
from myrmidon.server.config.bot_groups import BotGroupConfig
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import config_sync, rollout
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event

VERSION = installed("myrmidon")


async def handshake(context: ServerContext, call: Call) -> HandshakeResponse:
    """Start or continue a session: the bot's credential, its configuration, and which runs are still its own.

    A credential is valid only for the bot that it was issued to, and only while that bot exists, so that deleting a bot
    revokes its credential.
    """
    body: HandshakeRequest = call.body
    if call.who.role is Role.BOT and call.who.bot_id != body.bot_id:
        raise Forbidden(f"This credential belongs to the bot {call.who.bot_id}; a bot with another id needs its own.")
    await config_sync.refresh(context)
    group, now = _require_group(context, body.bot_id), context.now()
    reasons = health_reasons(body.state, body.quarantined, body.maintenance)
    request = _to_handshake(call, group, reasons)

    def write(tx: Tx) -> tuple[scheduler_bots.HandshakeResult, BotSnapshot]:
        stored = bots.read(tx, body.bot_id)
        last = stored.session if stored is not None else 0
        session = _new_session(body.session, last, now) if body.new_process else body.session
        if call.who.role is Role.BOT and stored is None:
            raise Unauthorized("This bot was deleted; register it again with a bootstrap token.", advice="")
        if call.who.role is Role.BOOTSTRAP and stored is not None and stored.session != session:
            _check_gone(tx, stored, context, now)
        if call.who.role is not Role.BOT:
            _check_session(session, max(now, last))
        result = scheduler_bots.handshake(
            tx,
            structs.replace(request, session=session),
            now=now,
            ids=context.ids,
            rules=context.rules,
            limits=context.limits,
        )
        return result, read_snapshot(tx, body.bot_id, session)

    result, snapshot = await context.db.write(write)
    bot = register_bot(context, body.bot_id, result.session, snapshot)
    bot.health_reasons = reasons
    return _to_response(context, result, group, now)


def _check_gone(tx: Tx, stored: Bot, context: ServerContext, now: Micros) -> None:
    """Refuse to give a bootstrap token the credential of a bot that is alive."""
    if not stored.alive or stored.heartbeat + context.rules.dead_after <= now or bot_event.is_leaving(tx, stored.id):
        return
    raise Forbidden(
        f"The bot {stored.id} is alive, and a bootstrap token registers new bots only: wait until it has ended or sent"
        f" no heartbeat for {context.rules.dead_after // SECOND} s, have an administrator delete it, or choose another"
        " id."
    )


def _new_session(proposed: int, last: int, now: Micros) -> int:
    """The session of a new process of a bot. It proposes the time by its own clock, which may be wrong.

    A proposal that is far from the server's time is moved to today. A repeated proposal gets the same session, so that
    a bot whose first response was lost may repeat its handshake. The result is never less than the last session.
    """
    session = proposed if abs(proposed - now) <= DAY else now - now % DAY + proposed % DAY
    return session if session >= last else last + 1


def _check_session(session: int, now: Micros) -> None:
    """Refuse a session far in the future: sessions only grow, so that it would lock the bot out until then.

    Only a bot of an earlier release can ask for one. ``now`` is at least the stored session: a bot whose clock was
    wrong before continues from there.
    """
    if session > now + DAY:
        expected = (
            "the time in microseconds, at most a day ahead of the server's; set the clock of the bot's machine right"
        )
        raise InvalidRequest([Problem("session", str(session), expected, "range")])


def _require_group(context: ServerContext, bot_id: str) -> BotGroupConfig:
    group = context.state.config.group_config(bot_id)
    if group is None:
        shown = bot_id[:100]
        raise Forbidden(f"No group of bots.toml has the bot {shown!r}, and there is no default group; add it to one.")
    return group


def _to_handshake(call: Call, group: BotGroupConfig, reasons: HealthReasons) -> Handshake:
    body: HandshakeRequest = call.body
    return Handshake(
        bot_id=body.bot_id,
        session=body.session,
        dimensions=group.apply(body.dimensions),
        state=encode(body.state).decode(),
        address=call.address[:40],
        boot_id=body.boot_id,
        version=body.version,
        authenticated=call.who.name,
        quarantined=reasons[0],
        maintenance=reasons[1],
        holds=[parse_run(shown) for shown in body.holds],
        begun=[parse_run(shown)[0] for shown in body.begun],
    )


def _to_response(
    context: ServerContext, result: scheduler_bots.HandshakeResult, group: BotGroupConfig, now: Micros
) -> HandshakeResponse:
    credential = bot_credential(context.keys.bot, result.bot_id, result.session)
    release = rollout.release_for(context, result.bot_id)
    return HandshakeResponse(
        credential=credential,
        bot_id=result.bot_id,
        session=result.session,
        keep=[show_run(task_id, run) for task_id, run in result.keep],
        quarantined=result.quarantined,
        version=release,
        zip_hmac=zip_hmac(credential, release),
        poll_s=context.settings.poll_s,
        heartbeat_s=context.settings.heartbeat_s,
        server_time=now,
        server_version=VERSION,
        config=group.version,
        dimensions=group.dimensions,
        script=group.script,
        script_name=group.script_name,
        settings=group.settings,
    )


def zip_hmac(credential: str, digest: str) -> str:
    """Authenticates the digest of a zip to the holder of a credential."""
    return hmac.new(credential.encode(), digest.encode(), sha256).hexdigest()
