"""Introductions: who may register a bot without its credential, and which bots a bootstrap token may introduce."""

from __future__ import annotations

from collections.abc import Mapping

from myrmidon.model.bot import Bot, Introduction
from myrmidon.model.errors import Forbidden, Unauthorized
from myrmidon.model.ids import Micros
from myrmidon.scheduler.bots import repeats_introduction
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.messages import HandshakeRequest
from myrmidon.server.calls import Call, Role
from myrmidon.server.config.bot_groups import BotGroupConfig
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import api_token, bot_event
from myrmidon.store.tables.api_token import Token

_ANY_POOL = ["default"]
"""The pool that a bot reports if its owner has chosen none: such a bot may be put into any pool."""
UNBOUND = Token(0, "", "", Role.BOOTSTRAP, None, 0, None, None)
"""The token of a caller that its network admits: without limits."""


def introduce(
    tx: Tx,
    context: ServerContext,
    call: Call,
    group: BotGroupConfig,
    *,
    token: Token | None,
    stored: Bot | None,
    session: int,
    now: Micros,
) -> Introduction | None:
    """Check that the caller may introduce this bot, and count the use of its token; None for a bot with a credential.

    A repeated introduction, whose first response was lost, is no second use.
    """
    body: HandshakeRequest = call.body
    if call.who.role is Role.BOT:
        return None
    introduction = Introduction(call.who.token_id or 0, token.bot_pool if token is not None else None)
    if token is None or (stored is not None and repeats_introduction(stored, session, introduction)):
        return introduction
    if stored is not None:
        _check_gone(tx, stored, context, now)
    _check_binding(token, body.bot_id, group, context.state.config.trusting_prefix(body.bot_id))
    _check_pool(token, body.dimensions, group)
    if token.uses_left is not None:
        if token.uses_left <= 0:
            raise Unauthorized("This token was used as often as it may be; create another one.", advice="")
        api_token.use(tx, token.id)
    return introduction


def lock_token(tx: Tx, call: Call, now: Micros) -> Token | None:
    """Lock the caller's bootstrap token; None if it is not restricted to what a token says.

    It is read again, because the authenticator may remember one that was revoked on another server.
    """
    if call.who.role is not Role.BOOTSTRAP:
        return None
    if call.who.token_id is None:
        return UNBOUND
    token = api_token.lock(tx, call.who.token_id)
    if token is None or token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now):
        raise Unauthorized("The token is unknown, expired or revoked.")
    return token


def _check_gone(tx: Tx, stored: Bot, context: ServerContext, now: Micros) -> None:
    """Refuse to give a bootstrap token the credential of a bot that is alive."""
    if not stored.alive or stored.heartbeat + context.rules.dead_after <= now or bot_event.is_leaving(tx, stored.id):
        return
    raise Forbidden(
        f"The bot {stored.id} is alive, and a bootstrap token registers new bots only: wait until it has ended or sent"
        f" no heartbeat for {context.rules.dead_after // SECOND} s, have an administrator delete it, or choose another"
        " id."
    )


def _check_binding(token: Token, bot_id: str, group: BotGroupConfig, prefix: str) -> None:
    """Refuse ids that the token is not bound to.

    A group with a prefix trusts every id that begins with it, and anybody can choose such an id. So only a token for
    this group, or for ids that begin with that prefix, may introduce such a bot.
    """
    if token.bot_ids is not None and not matches(token.bot_ids, bot_id):
        raise Forbidden(f"This token introduces bots with ids {token.bot_ids!r} only; create one for {bot_id[:100]!r}.")
    if token.bot_group is not None and token.bot_group != group.group:
        raise Forbidden(
            f"This token introduces bots of the group {token.bot_group!r} only; put {bot_id[:100]!r} into it."
        )
    names_prefix = token.bot_ids is not None and token.bot_ids.removesuffix("*").startswith(prefix)
    if prefix and token.bot_group is None and not names_prefix:
        raise Forbidden(
            f"The id {bot_id[:100]!r} would belong to the group {group.group!r} because it begins with {prefix!r}, and"
            " this token is bound neither to that group nor to such ids; create one that is."
        )


def matches(pattern: str, bot_id: str) -> bool:
    """Whether a pattern, an id or the beginning of ids and ``*``, covers an id."""
    return bot_id.startswith(pattern[:-1]) if pattern.endswith("*") else bot_id == pattern


def _check_pool(token: Token, reported: Mapping[str, list[str]], group: BotGroupConfig) -> None:
    """Refuse a bot whose owner has chosen another pool: in the token's pool it would run tasks it is not meant for."""
    if token.bot_pool is None or "pool" in group.dimensions or "pool" in group.trusted:
        return
    if reported.get("pool", _ANY_POOL) not in (_ANY_POOL, [token.bot_pool]):
        raise Forbidden(
            f"This token introduces bots of the pool {token.bot_pool!r} only; start the bot in this pool, or create"
            " another token."
        )
