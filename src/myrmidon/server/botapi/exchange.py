"""The exchange: a bot reports and gets work; the response is held while there is none.

Reports, heartbeat and the first claim are one transaction. Log pieces, changes of the bot and directives are written by
transactions of their own before or after it, and a held poll that is woken claims in another one. An exchange without
reports, for a bot without work, costs no database access: it is held in the hub, by what was last read of the bot.

A bot acts only as itself, and only on runs whose token it has. The scheduler decides what happens to tasks.
"""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import structs

from myrmidon.model.errors import Stopping, WrongState
from myrmidon.model.ids import Micros, show_run
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.assigned_run import assigned_run, is_terminate
from myrmidon.server.botapi.bot_changes import apply_state_change, record_config_version
from myrmidon.server.botapi.bot_snapshot import (
    connected_bot,
    is_heartbeat_due,
    read_snapshot,
    register_bot,
    require_bot_id,
)
from myrmidon.server.botapi.conversion import parse_run, report_results
from myrmidon.server.botapi.directives import EVENT_KINDS, directive_for, record_directive
from myrmidon.server.botapi.exchange_transaction import ExchangeResult, write_exchange
from myrmidon.server.botapi.handshake import zip_hmac
from myrmidon.server.botapi.logs import store_pieces
from myrmidon.server.botapi.messages import EMPTY_RESPONSE, AssignedRun, ExchangeRequest, ExchangeResponse, encode
from myrmidon.server.botapi.rendering import read_files
from myrmidon.server.botapi.unreceived import begin_give_back_unreceived, give_back_if_abandoned, note_request
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.server.fleet.cache_hints import size_hints_for
from myrmidon.server.waiting.connected_bot import ConnectedBot, WakeReason, Wakeup

STATE_WRITE_INTERVAL: Micros = 10 * SECOND
MAX_WAIT_S = 120.0
_WORK_IN_SOME_QUEUE = Wakeup(WakeReason.WORK)


async def exchange(context: ServerContext, call: Call) -> bytes:
    """Apply a bot's reports and give it work; held until there is something to send, or ``wait_s`` is over."""
    request: ExchangeRequest = call.body
    bot_id, bearer = require_bot_id(call), call.bearer
    if context.state.stopping and not (request.reports or request.logs or request.holds):
        raise Stopping("This server is stopping.")
    deadline = asyncio.get_running_loop().time() + min(request.wait_s, MAX_WAIT_S)
    log_lengths = await store_pieces(context, bot_id, request) if request.logs else []
    try:
        await record_config_version(context, bot_id, request.session, request.config)
        await apply_state_change(context, bot_id, request)
        await note_request(context, connected_bot(context, bot_id, request.session), request)
        result = await _first_attempt(context, bot_id, _permitted(context, bot_id, request))
        if not result.urgent:
            result = await _wait_for_work(context, request, result, deadline)
        if result.tasks and await give_back_if_abandoned(context, result.bot, request.nonce):
            result.tasks = []
    except WrongState:
        context.hub.forget_session(bot_id, request.session)
        raise
    if not (result.urgent or result.stop or result.replies or log_lengths):
        return EMPTY_RESPONSE
    if result.directive in EVENT_KINDS or any(is_terminate(task) for task in result.tasks):
        await record_directive(context, result.bot, result.tasks, result.directive)
    release = rollout.release_for(context, bot_id) if result.directive == "update" else None
    return encode(
        ExchangeResponse(
            replies=report_results(result.replies),
            log_lengths=log_lengths,
            stop=[show_run(task_id, run) for task_id, run in result.stop],
            tasks=await _assigned_runs(context, result),
            more=result.more,
            order=result.directive,
            version=release,
            zip_hmac=zip_hmac(bearer, release) if release else None,
        )
    )


def _permitted(context: ServerContext, bot_id: str, request: ExchangeRequest) -> ExchangeRequest:
    """The request without its claim, if the configuration gives this bot no tasks now; it may finish those it has."""
    if not request.n or context.state.config.may_work(bot_id):
        return request
    return structs.replace(request, n=0)


async def _assigned_runs(context: ServerContext, result: ExchangeResult) -> list[AssignedRun]:
    if not result.tasks:
        return []
    names = await context.groups.names_of(task.resource_group_id for task in result.tasks)
    hints = size_hints_for(context, result.bot.os_family)
    key = context.keys.run_api
    files = await read_files(context.files, result.tasks)
    return [
        assigned_run(task, api_key=key, group=names.get(task.resource_group_id), hints=hints, files=files)
        for task in result.tasks
    ]


async def _first_attempt(context: ServerContext, bot_id: str, request: ExchangeRequest) -> ExchangeResult:
    """Write what the bot reports; a poll without reports costs a read, or nothing if the bot is in memory.

    A poll that does not wait always claims: the hints in memory may be wrong, and no later wakeup would correct them.
    """
    bot = connected_bot(context, bot_id, request.session)
    if bot is not None and request.n:
        bot.slots = request.slots
    if request.reports or request.holds:
        return await write_exchange(context, bot_id, request, bot)
    has_work = False
    if bot is None:
        read = partial(read_snapshot, bot_id=bot_id, session=request.session, check_work=True)
        queue_seq = context.hub.queue_seq
        snapshot = await context.db.read(read)
        bot = register_bot(context, bot_id, request.session, snapshot, queue_seq=queue_seq)
        has_work = snapshot.has_work
        bot.config = request.config
        begin_give_back_unreceived(context, bot, request, claimed=snapshot.nonce)
    now = bot.seen_at = context.now()
    if context.hub.canary_release:
        rollout.check_canary_progress(context, bot, finished=False)
    repeated = request.nonce <= bot.nonce
    claims = request.n > 0 and (
        has_work or request.wait_s <= 0 or repeated or context.hub.may_have_work(bot, request.accepts)
    )
    state_due = request.state is not None and now - bot.state_written_at > STATE_WRITE_INTERVAL
    if claims or state_due or is_heartbeat_due(context, bot, now):
        return await write_exchange(context, bot_id, request, bot)
    return ExchangeResult(bot, directive_for(context, bot))


async def _wait_for_work(
    context: ServerContext, request: ExchangeRequest, result: ExchangeResult, deadline: float
) -> ExchangeResult:
    """Hold the response until there is something to send, or time is up."""
    hub, bot, replies = context.hub, result.bot, result.replies
    clock = asyncio.get_running_loop().time
    held_tasks = tuple(parse_run(shown)[0] for shown, _ in request.holds)
    while not result.urgent and (remaining_s := deadline - clock()) > 0:
        n = _permitted(context, bot.bot_id, request).n
        if n > 0 and hub.may_have_work(bot, request.accepts) and not context.state.stopping:
            result = await _next_attempt(context, request, bot, _WORK_IN_SOME_QUEUE)
        else:
            wakeup = await hub.wait(
                bot, remaining_s, nonce=request.nonce, n=n, accepts=request.accepts, holds=held_tasks
            )
            if wakeup.reason is WakeReason.TIMED_OUT or hub.bots.get(bot.bot_id) is not bot:
                break
            bot.seen_at = context.now()
            if wakeup.claim is not None:
                tasks, more = wakeup.claim
                result = ExchangeResult(bot, tasks=tasks, more=more)
            else:
                result = await _next_attempt(context, request, bot, wakeup)
        result.replies = replies
    return result


async def _next_attempt(
    context: ServerContext, request: ExchangeRequest, bot: ConnectedBot, wakeup: Wakeup
) -> ExchangeResult:
    """Continue a held poll with the same request; its reports and state are already written."""
    again = ExchangeRequest(
        session=request.session,
        nonce=request.nonce,
        n=_permitted(context, bot.bot_id, request).n,
        accepts=request.accepts,
        wait_s=request.wait_s,
        holds=request.holds,
        stopping=request.stopping,
        config=request.config,
    )
    if wakeup.reason is WakeReason.RECHECK and not request.holds:
        return await _first_attempt(context, bot.bot_id, again)
    current = connected_bot(context, bot.bot_id, bot.session)
    return await write_exchange(context, bot.bot_id, again, current, wakeup)
