"""Directives to a bot besides its tasks: update, restart, terminate."""

from __future__ import annotations

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.assigned_run import is_terminate
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.server.waiting.connected_bots import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event

FIRST_RESEND: Micros = 10 * SECOND
MAX_RESEND: Micros = 600 * SECOND
_RESEND_FACTOR = 6
"""The response with a directive may be lost, so it is sent again soon, and after ever longer intervals."""
EVENT_KINDS = {"update": "request_update", "restart": "request_restart"}
"""The directives that are recorded as an event of the bot when they are sent."""


def directive_for(context: ServerContext, bot: ConnectedBot) -> str | None:
    """The directive to send to a bot now, if any; counts it as sent.

    A bot that fails to update keeps its version, so the same update or restart is repeated less and less often. Bots
    follow directives between tasks.
    """
    if bot.directive is not None:
        return bot.directive
    release, config = rollout.release_for(context, bot.bot_id), context.state.config.config_version_of(bot.bot_id)
    if release and bot.version and bot.version != release:
        directive, target = "update", release
    elif bot.config is not None and bot.config != config:
        directive, target = "restart", config
    else:
        return None
    now = context.now()
    sends = bot.directive_sends if target == bot.directive_target else 0
    if sends and now - bot.directive_sent_at < min(FIRST_RESEND * _RESEND_FACTOR ** (sends - 1), MAX_RESEND):
        return None
    bot.directive_target, bot.directive_sent_at, bot.directive_sends = target, now, sends + 1
    return directive


async def record_directive(
    context: ServerContext, bot: ConnectedBot, tasks: Sequence[Claimed], directive: str | None
) -> None:
    """Record an event of the bot for a directive or a terminate task that it gets."""
    terminate = next((task.work.name for task in tasks if is_terminate(task)), None)
    kind = "bot_terminate" if terminate is not None else EVENT_KINDS.get(directive or "")
    if kind is None:
        return
    now = context.now()

    def write(tx: Tx) -> None:
        row = bots.read(tx, bot.bot_id)
        if row is not None:
            bot_event.insert(tx, row, context.ids.next(now), at=now, kind=kind, message=terminate or "")

    await context.db.write(write)
