"""The handshake: checks who a bot is, applies its group's configuration and starts its session.

The configuration of the administrator takes precedence over what a bot reports about itself.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from importlib.metadata import version as installed

from msgspec import Struct

from myrmidon.model.bot import Handshake, Introduction
from myrmidon.model.errors import Forbidden, InvalidRequest, Problem, Unauthorized, WrongState
from myrmidon.model.ids import Micros, show_run
from myrmidon.scheduler import bot_identity
from myrmidon.scheduler import bots as scheduler_bots
from myrmidon.scheduler.policy import DAY
from myrmidon.server.auth.authenticator import REVOKED, bot_credential
from myrmidon.server.botapi.bot_changes import HealthReasons, health_reasons
from myrmidon.server.botapi.bot_snapshot import BotSnapshot, read_snapshot, register_bot
from myrmidon.server.botapi.conversion import parse_run
from myrmidon.server.botapi.introduction import introduce, lock_token
from myrmidon.server.botapi.messages import HandshakeRequest, HandshakeResponse, encode
from myrmidon.server.calls import BOTS, INTRODUCERS, Call, Role, Routes
from myrmidon.server.config.bot_groups import BotGroupConfig
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import config_sync, rollout
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots

ROUTES = Routes()

VERSION = installed("myrmidon")
_SHARE_TO_START = 2 / 3
"""Of the time that a run may wait for its start: the rest is for the report of the start."""


class Accepted(Struct, frozen=True):
    """What the transaction of an accepted handshake returns. ``dimensions`` are those that the bot is given."""

    result: scheduler_bots.HandshakeResult
    snapshot: BotSnapshot
    dimensions: dict[str, list[str]]


@ROUTES.add(
    "POST", "/bot/v1/handshake", INTRODUCERS | BOTS, "Start or continue a bot's session", body=HandshakeRequest,
    mutates=True,
)  # fmt: skip
async def handshake(context: ServerContext, call: Call) -> HandshakeResponse:
    """Start or continue a session: the bot's credential, its configuration, and which runs are still its own.

    A credential is valid only for the bot that it was issued to and in the bot's present epoch, so that deleting a bot
    or revoking its credentials ends them for good. A caller without one must be allowed to introduce the bot.
    """
    body: HandshakeRequest = call.body
    if call.who.role is Role.BOT and call.who.bot_id != body.bot_id:
        raise Forbidden(f"This credential belongs to the bot {call.who.bot_id}; a bot with another id needs its own.")
    await config_sync.refresh(context)
    group, now = _require_group(context, body.bot_id), context.now()
    reasons = health_reasons(body.state, body.quarantined, body.maintenance)

    def write(tx: Tx) -> Accepted | None:
        token = lock_token(tx, call, now)  # before the bot is read, so that two introductions at once are two uses
        stored = bots.read(tx, body.bot_id)
        last = stored.session if stored is not None else 0
        session = _new_session(body.session, last, now) if body.new_process else body.session
        introduction = introduce(tx, context, call, group, token=token, stored=stored, session=session, now=now)
        if introduction is not None:
            _check_session(session, max(now, last))
        elif stored is None or stored.epoch != call.who.epoch:
            raise Unauthorized(REVOKED, advice="")
        elif session < last:
            bot_identity.record_displaced(
                tx, stored, session, call.address, now=now, ids=context.ids, rules=context.rules
            )
            return None  # committed, although the caller is refused
        pool = introduction.pool if introduction is not None else stored.bound_pool if stored is not None else None
        request = _to_handshake(call, group, reasons, session=session, introduction=introduction, pool=pool)
        result = scheduler_bots.handshake(
            tx, request, now=now, ids=context.ids, rules=context.rules, limits=context.limits
        )
        return Accepted(result, read_snapshot(tx, body.bot_id, session), group.assigned(pool))

    queue_seq = context.hub.queue_seq
    accepted = await context.db.write(write)
    if accepted is None:
        context.hub.recheck(body.bot_id)  # it may have been quarantined
        raise WrongState(scheduler_bots.NEWER_SESSION)
    bot = register_bot(context, body.bot_id, accepted.result.session, accepted.snapshot, queue_seq=queue_seq)
    bot.health_reasons = reasons
    return _to_response(context, accepted, group, now)


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


def _to_handshake(
    call: Call,
    group: BotGroupConfig,
    reasons: HealthReasons,
    *,
    session: int,
    introduction: Introduction | None,
    pool: str | None,
) -> Handshake:
    body: HandshakeRequest = call.body
    return Handshake(
        bot_id=body.bot_id,
        session=session,
        dimensions=group.apply(body.dimensions, pool),
        state=encode(body.state).decode(),
        address=call.address[:40],
        boot_id=body.boot_id,
        version=body.version,
        authenticated=call.who.name,
        quarantined=reasons[0],
        maintenance=reasons[1],
        holds=[parse_run(shown) for shown in body.holds],
        begun=[parse_run(shown)[0] for shown in body.begun],
        introduction=introduction,
    )


def _to_response(context: ServerContext, accepted: Accepted, group: BotGroupConfig, now: Micros) -> HandshakeResponse:
    result = accepted.result
    credential = bot_credential(context.keys.bot, result.bot_id, result.epoch)
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
        start_within_s=context.settings.start_within_s * _SHARE_TO_START,
        server_time=now,
        server_version=VERSION,
        config=group.version,
        dimensions=accepted.dimensions,
        script=group.script,
        script_name=group.script_name,
        settings=group.settings,
    )


def zip_hmac(credential: str, digest: str) -> str:
    """Authenticates the digest of a zip to the holder of a credential."""
    return hmac.new(credential.encode(), digest.encode(), sha256).hexdigest()
