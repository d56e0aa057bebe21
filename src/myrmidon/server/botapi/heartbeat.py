"""Heartbeats and events of a bot."""

from __future__ import annotations

from functools import partial

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import show_run
from myrmidon.scheduler import bot_end
from myrmidon.scheduler import bots as scheduler_bots
from myrmidon.server.botapi.bot_changes import MAX_TEXT_CHARS, record_config_version
from myrmidon.server.botapi.bot_snapshot import connected_bot, require_bot_id
from myrmidon.server.botapi.directives import EVENT_KINDS, record_directive
from myrmidon.server.botapi.exchange_transaction import write_exchange
from myrmidon.server.botapi.handshake import zip_hmac
from myrmidon.server.botapi.messages import (
    BotEvent,
    EventResponse,
    ExchangeRequest,
    HeartbeatRequest,
    HeartbeatResponse,
)
from myrmidon.server.calls import BOTS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout

ROUTES = Routes()


@ROUTES.add(
    "POST", "/bot/v1/heartbeat", BOTS, "Renew the leases of a busy bot's runs; which of them must stop",
    body=HeartbeatRequest, mutates=True, vital=True,
)  # fmt: skip
async def heartbeat(context: ServerContext, call: Call) -> HeartbeatResponse:
    """Renew the leases of a busy bot's runs; returns which of them must stop."""
    body: HeartbeatRequest = call.body
    bot_id = require_bot_id(call)
    request = ExchangeRequest(session=body.session, holds=body.holds, progress=body.progress, config=body.config)
    await record_config_version(context, bot_id, body.session, body.config)
    bot = connected_bot(context, bot_id, body.session, call.now)
    result = await write_exchange(context, bot_id, request, 0, bot)
    if result.directive in EVENT_KINDS:
        await record_directive(context, result.bot, (), result.directive)
    release = rollout.release_for(context, bot_id) if result.directive == "update" else None
    return HeartbeatResponse(
        stop=[show_run(task_id, run) for task_id, run in result.stop],
        order=result.directive,
        version=release,
        zip_hmac=zip_hmac(call.bearer, release) if release else None,
    )


@ROUTES.add("POST", "/bot/v1/event", BOTS, "Record an event of a bot for its owner", body=BotEvent, mutates=True)
async def event(context: ServerContext, call: Call) -> EventResponse:
    """Record an event of a bot for its owner, and act on those that tell its end or a bad release."""
    body: BotEvent = call.body
    bot_id = require_bot_id(call)
    if body.kind not in scheduler_bots.BOT_EVENT_KINDS:
        raise InvalidRequest(
            [Problem("kind", body.kind[:100], ", ".join(sorted(scheduler_bots.BOT_EVENT_KINDS)), "choice")]
        )
    message = body.message[:MAX_TEXT_CHARS].replace("\x00", "")
    now = context.now()
    await context.db.write(
        partial(
            scheduler_bots.record_event,
            bot_id=bot_id,
            kind=body.kind,
            message=message,
            session=body.session,
            now=now,
            ids=context.ids,
        )
    )
    if body.ended:
        stop = partial(bot_end.mark_bot_stopped, session=body.session, now=now, ids=context.ids, rules=context.rules)
        await context.db.write(partial(stop, bot_id=bot_id))
    elif body.kind == "bot_rebooting":
        end_runs = partial(
            bot_end.end_runs_before_reboot, session=body.session, now=now, ids=context.ids, rules=context.rules
        )
        await context.db.write(partial(end_runs, bot_id=bot_id))
    if body.bad_release:
        await rollout.report_failure(context, bot_id, body.bad_release)
    if body.kind == "bot_shutdown":
        context.hub.forget(bot_id)
    return EventResponse()
