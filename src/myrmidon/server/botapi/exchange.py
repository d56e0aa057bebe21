"""The exchange: a bot reports and gets work; the response is held while there is none.

Reports, heartbeat and the first claim are one transaction. Log pieces, changes of the bot and directives are written by
transactions of their own before or after it, and a held poll that is woken claims in another one. An exchange without
reports, for a bot without work, costs no database access: it is held in the hub, by what was last read of the bot.

A bot acts only as itself, and only on runs whose token it has. The scheduler decides what happens to tasks.
"""

from __future__ import annotations

import asyncio
from functools import partial

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
from myrmidon.server.calls import BOTS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import begin_give_back_unreceived, give_back, note_request
from myrmidon.server.fleet import rollout
from myrmidon.server.fleet.cache_hints import size_hints_for
from myrmidon.server.waiting.connected_bots import ConnectedBot, WakeReason, Wakeup

ROUTES = Routes()

STATE_WRITE_INTERVAL: Micros = 10 * SECOND
MAX_WAIT_S = 120.0
_WORK_IN_SOME_QUEUE = Wakeup(WakeReason.WORK)


@ROUTES.add(
    "POST", "/bot/v1/exchange", BOTS, "Report and get work; held while there is none", body=ExchangeRequest,
    out=ExchangeResponse, mutates=True, waits=True, vital=True,
)  # fmt: skip
async def exchange(context: ServerContext, call: Call) -> bytes:
    """Apply a bot's reports and give it work; held until there is something to send, or ``wait_s`` is over."""
    request: ExchangeRequest = call.body
    bot_id = call.who.bot_id or require_bot_id(call)
    if context.state.stopping and not (request.reports or request.logs or request.holds):
        raise Stopping("This server is stopping.")
    deadline = asyncio.get_running_loop().time() + min(request.wait_s, MAX_WAIT_S)
    log_lengths = await store_pieces(context, bot_id, request) if request.logs else []
    try:
        bot = await _record_changes(context, bot_id, request, call.now)
        result = await _first_attempt(context, bot_id, request, bot)
        if not result.urgent:
            result = await _wait_for_work(context, request, result, deadline)
        if result.tasks and result.bot.has_given_up(request.nonce):
            await give_back(context, result.bot, after=request.nonce - 1, before=request.nonce + 1)
            result.tasks = []
    except WrongState:
        context.hub.forget_session(bot_id, request.session)
        raise
    if not (result.tasks or result.replies or result.stop or log_lengths or result.directive):
        return EMPTY_RESPONSE
    if result.directive in EVENT_KINDS or any(map(is_terminate, result.tasks)):
        await record_directive(context, result.bot, result.tasks, result.directive)
    release = rollout.release_for(context, bot_id) if result.directive == "update" else None
    return encode(
        ExchangeResponse(
            replies=report_results(result.replies) if result.replies else [],
            log_lengths=log_lengths,
            stop=[show_run(task_id, run) for task_id, run in result.stop] if result.stop else [],
            tasks=await _assigned_runs(context, result) if result.tasks else [],
            more=result.more,
            order=result.directive,
            version=release,
            zip_hmac=zip_hmac(call.bearer, release) if release else None,
        )
    )


async def _record_changes(
    context: ServerContext, bot_id: str, request: ExchangeRequest, now: Micros
) -> ConnectedBot | None:
    """Record what the request says about the bot itself; the bot in memory, if it is up to date there."""
    known = context.hub.bots.get(bot_id)
    version = context.state.config.config_version_of(bot_id)
    if request.config != version or known is None or known.config != version:
        await record_config_version(context, bot_id, request.session, request.config)
    if request.dimensions is not None or request.state is not None:
        await apply_state_change(context, bot_id, request)
    bot = connected_bot(context, bot_id, request.session, now)
    if (
        bot is not None
        and request.received is not None
        and await note_request(context, bot, request.nonce, request.received)
    ):
        return connected_bot(context, bot_id, request.session, context.now())
    return bot


def _num_permitted(context: ServerContext, bot_id: str, request: ExchangeRequest) -> int:
    """How many tasks the bot may claim: none if the configuration gives it no tasks now. It may finish those it has."""
    return request.n if request.n and context.state.config.may_work(bot_id) else 0


async def _assigned_runs(context: ServerContext, result: ExchangeResult) -> list[AssignedRun]:
    names = await context.groups.names_of([task.resource_group_id for task in result.tasks])
    hints = size_hints_for(context, result.bot.os_family)
    key = context.keys.run_api
    readers = [task for task in result.tasks if task.inputs and task.work.func_name is None]
    files = await read_files(context.files, readers) if readers else {}
    return [
        assigned_run(task, api_key=key, group=names.get(task.resource_group_id), hints=hints, files=files)
        for task in result.tasks
    ]


async def _first_attempt(
    context: ServerContext, bot_id: str, request: ExchangeRequest, bot: ConnectedBot | None
) -> ExchangeResult:
    """Write what the bot reports; a poll without reports costs a read, or nothing if the bot is in memory.

    A poll that does not wait always claims: the hints in memory may be wrong, and no later wakeup would correct them.
    """
    n = _num_permitted(context, bot_id, request)
    if bot is not None and n:
        bot.slots = request.slots
    if request.reports or request.holds:
        return await write_exchange(context, bot_id, request, n, bot)
    has_work = False
    if bot is None:
        read = partial(read_snapshot, bot_id=bot_id, session=request.session, check_work=True)
        queue_seq = context.hub.queue_seq
        snapshot = await context.db.read(read)
        bot = register_bot(context, bot_id, request.session, snapshot, queue_seq=queue_seq)
        has_work = snapshot.has_work
        bot.config = request.config
        begin_give_back_unreceived(context, bot, request.nonce, request.received, claimed=snapshot.nonce)
    now = bot.seen_at = context.now()
    if context.hub.canary_release:
        rollout.check_canary_progress(context, bot, finished=False)
    repeated = request.nonce <= bot.nonce
    claims = n > 0 and (has_work or request.wait_s <= 0 or repeated or context.hub.may_have_work(bot, request.accepts))
    state_due = request.state is not None and now - bot.state_written_at > STATE_WRITE_INTERVAL
    if claims or state_due or is_heartbeat_due(context, bot, now):
        return await write_exchange(context, bot_id, request, n, bot)
    return ExchangeResult(bot, directive_for(context, bot))


async def _wait_for_work(
    context: ServerContext, request: ExchangeRequest, result: ExchangeResult, deadline: float
) -> ExchangeResult:
    """Hold the response until there is something to send, or time is up."""
    hub, bot, replies = context.hub, result.bot, result.replies
    clock = asyncio.get_running_loop().time
    held_tasks = [parse_run(shown)[0] for shown, _ in request.holds] if request.holds else []
    while (remaining_s := deadline - clock()) > 0:
        n = _num_permitted(context, bot.bot_id, request)
        if n > 0 and hub.may_have_work(bot, request.accepts) and not context.state.stopping:
            result = await _next_attempt(context, request, n, bot, _WORK_IN_SOME_QUEUE)
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
                n = _num_permitted(context, bot.bot_id, request)
                result = await _next_attempt(context, request, n, bot, wakeup)
        result.replies = replies
        if result.urgent:
            break
    return result


async def _next_attempt(
    context: ServerContext, request: ExchangeRequest, n: int, bot: ConnectedBot, wakeup: Wakeup
) -> ExchangeResult:
    """Continue a held poll with the same request; its reports and state are already written."""
    again = ExchangeRequest(
        session=request.session,
        nonce=request.nonce,
        n=n,
        accepts=request.accepts,
        wait_s=request.wait_s,
        holds=request.holds,
        stopping=request.stopping,
        config=request.config,
    )
    current = connected_bot(context, bot.bot_id, bot.session, context.now())
    if wakeup.reason is WakeReason.RECHECK and not request.holds:
        return await _first_attempt(context, bot.bot_id, again, current)
    return await write_exchange(context, bot.bot_id, again, n, current, wakeup)
