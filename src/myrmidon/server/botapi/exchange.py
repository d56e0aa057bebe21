"""The desk: where bots report and get their work.

The reports of an exchange, the sign of life and the first claim are one transaction. Pieces of logs, a change of the
bot and orders are written by transactions of their own before or after it, and a poll that is held and woken claims
again in another one. A bot that has nothing to say and for which there is nothing costs no look at the database at
all: its poll is held in the hub, on what is known of the bot since the last look.

A bot acts as itself only, and on runs whose token it has. This file decides nothing about tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec import Struct, structs

from myrmidon.model.errors import BrokenPromise, InvalidRequest, NotFound, Problem, Stopping, WrongState
from myrmidon.model.ids import Micros, show_run
from myrmidon.model.task_result import Report
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import Reply
from myrmidon.server.auth.authenticator import bearer_of
from myrmidon.server.botapi.directives import TOLD, note_order, order_for
from myrmidon.server.botapi.handshake import (
    Looked,
    beat_every,
    handshake,
    hear_change,
    itself,
    look,
    seat_of,
    sit,
    zip_hmac,
)
from myrmidon.server.botapi.logs import MOST_LOG_BYTES, log, store_pieces
from myrmidon.server.botapi.messages import (
    NOTHING,
    Assigned,
    BotEvent,
    Exchange,
    Exchanged,
    HandshakeRequest,
    Heartbeat,
    HeartbeatAnswer,
    LogPlace,
    LogStored,
    Noted,
    SaysFinish,
    Welcomed,
    assigned,
    encode,
    held_runs,
    is_terminate,
    report_of,
    run_of,
    taken,
)
from myrmidon.server.calls import (
    BOTS,
    INTRODUCERS,
    Call,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import (
    claim_size,
    claim_with_nonce,
    record_claim,
    record_reports,
    fair_share,
    update_run_stats,
)
from myrmidon.server.fleet import config_sync, rollout
from myrmidon.server.fleet.cache_hints import size_hints_for
from myrmidon.server.waiting.connected_bot import RECHECK, TIMED_OUT, ConnectedBot, Wakeup
from myrmidon.server.waiting.wait_hub import MAX_FORWARDS
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run

STATE_EVERY: Micros = 10 * SECOND
LONGEST_WAIT_S = 120.0
_MOST_TEXT = 4096
_MOST_QUEUES = 8


# ---------------------------------------------------------------- the exchange


async def exchange(context: ServerContext, call: Call) -> bytes:
    """Take what a bot has to say and give it work; the answer is held while there is none."""
    ask: Exchange = call.body
    bot_id, bearer = itself(call), bearer_of(call.headers)
    if context.state.stopping and not (ask.reports or ask.logs or ask.holds):
        raise Stopping("This server is going down.")
    until = asyncio.get_running_loop().time() + min(ask.wait_s, LONGEST_WAIT_S)
    lengths = await store_pieces(context, bot_id, ask) if ask.logs else []
    try:
        await _hear(context, bot_id, ask.session, ask.config)
        await hear_change(context, bot_id, ask)
        turn = await _first_turn(context, bot_id, _allowed(context, bot_id, ask))
        if not turn.urgent:
            turn = await _wait_for_more(context, ask, turn, until)
    except WrongState:
        context.hub.forget_session(bot_id, ask.session)
        raise
    if not (turn.urgent or turn.replies or lengths):
        return NOTHING
    if turn.order in TOLD or any(is_terminate(one) for one in turn.tasks):
        known = ask.config is not None
        turn.tasks, turn.order = await note_order(context, turn.seat, turn.tasks, turn.order, knows_end=known)
    wanted = rollout.release_for(context, bot_id) if turn.order == "update" else None
    return encode(
        Exchanged(
            replies=taken(turn.replies),
            log_lengths=lengths,
            stop=[show_run(task_id, run) for task_id, run in turn.stop],
            tasks=await _assign(context, turn),
            more=turn.more,
            order=turn.order,
            version=wanted,
            zip_hmac=zip_hmac(bearer, wanted) if wanted else None,
        )
    )


def _allowed(context: ServerContext, bot_id: str, ask: Exchange) -> Exchange:
    """What a bot says, without its wish for tasks if it gets none now; what it has it may finish."""
    return ask if not ask.n or context.state.config.may_work(bot_id) else structs.replace(ask, n=0)


async def _hear(context: ServerContext, bot_id: str, session: int, config: str | None) -> None:
    """What its group has given a bot, as far as the bot knows; before it is told to restart, we look closer."""
    if config is None:
        return
    if config != context.state.config.config_version_of(bot_id):
        await config_sync.refresh(context)
    seat = context.hub.bots.get(bot_id)
    if seat is not None and seat.session == session:
        seat.config = config


async def _assign(context: ServerContext, turn: Turn) -> list[Assigned]:
    if not turn.tasks:
        return []
    names = await context.groups.names_of(one.resource_group_id for one in turn.tasks)
    hints = size_hints_for(context, turn.seat.os_family)
    return [assigned(one, group=names.get(one.resource_group_id), hints=hints) for one in turn.tasks]


class Turn(Struct):
    """What one go of an exchange has brought."""

    seat: ConnectedBot
    order: str | None = None
    replies: list[Reply] = []
    stop: list[tuple[int, int]] = []
    tasks: list[Claimed] = []
    more: bool = False

    @property
    def urgent(self) -> bool:
        """The bot must hear of it now."""
        if self.order or self.stop or self.tasks:
            return True
        return bool(self.replies) and any(r.stop or r.outcome in _BAD for r in self.replies)


_BAD = frozenset({reporting.Outcome.STALE, reporting.Outcome.CONFLICT, reporting.Outcome.UNKNOWN})


async def _first_turn(context: ServerContext, bot_id: str, ask: Exchange) -> Turn:
    """What the bot says is written down; a bot that says nothing costs a read, or nothing at all.

    A bot that will not wait is not put off with hints: it gets what there is.
    """
    seat = seat_of(context, bot_id, ask.session)
    if ask.reports or ask.holds:
        return await _write_turn(context, bot_id, ask, seat)
    work = False
    if seat is None:
        looked = await context.db.read(partial(look, bot_id=bot_id, session=ask.session, for_work=True))
        seat, work = sit(context, bot_id, ask.session, looked), looked.work
        seat.config = ask.config
    now = seat.seen_at = context.now()
    if context.hub.canary_release:
        rollout.check_canary_progress(context, seat, finished=False)
    hinted = work or ask.wait_s <= 0 or ask.nonce <= seat.nonce or context.hub.may_have_work(seat)
    work = ask.n > 0 and hinted
    overdue = now - seat.flushed_at > 3 * beat_every(context)
    news = ask.state is not None and now - seat.state_written_at > STATE_EVERY
    if work or overdue or news:
        return await _write_turn(context, bot_id, ask, seat)
    return Turn(seat, order_for(context, seat))


async def _wait_for_more(context: ServerContext, ask: Exchange, turn: Turn, until: float) -> Turn:
    """Hold the answer until there is something to say, or time is up."""
    hub, seat, replies = context.hub, turn.seat, turn.replies
    clock = asyncio.get_running_loop().time
    holds = tuple(run_of(shown)[0] for shown, _ in ask.holds)
    while not turn.urgent and (left := until - clock()) > 0:
        n = _allowed(context, seat.bot_id, ask).n
        if n > 0 and hub.may_have_work(seat) and not context.state.stopping:
            turn = await _next_turn(context, ask, seat, _CAME_MEANWHILE)
        else:
            woken = await hub.wait(seat, left, nonce=ask.nonce, n=n, holds=holds)
            if woken is TIMED_OUT or hub.bots.get(seat.bot_id) is not seat:
                break
            seat.seen_at = context.now()
            if woken.claim is not None:
                tasks, more = woken.claim
                turn = Turn(seat, tasks=tasks, more=more)
            else:
                turn = await _next_turn(context, ask, seat, woken)
        turn.replies = replies
    return turn


_CAME_MEANWHILE = Wakeup()
"""Work came while the bot's claim was under way and found nothing."""


async def _next_turn(context: ServerContext, ask: Exchange, seat: ConnectedBot, woken: Wakeup) -> Turn:
    """A held poll goes on: what it had to say has been said."""
    n = _allowed(context, seat.bot_id, ask).n
    again = Exchange(session=ask.session, nonce=ask.nonce, n=n, wait_s=ask.wait_s, holds=ask.holds, config=ask.config)
    if woken is RECHECK and not ask.holds:
        return await _first_turn(context, seat.bot_id, again)
    return await _write_turn(context, seat.bot_id, again, seat_of(context, seat.bot_id, seat.session), woken)


class Wrote(Struct):
    """What the transaction of an exchange has brought."""

    looked: Looked | None
    n: int
    replies: list[Reply] = []
    stop: list[tuple[int, int]] = []
    tasks: list[Claimed] = []
    more: bool = False
    left: bool = False
    """There is work in the queue that woke the bot, but not for this one."""


async def _write_turn(
    context: ServerContext, bot_id: str, ask: Exchange, seat: ConnectedBot | None, woken: Wakeup = TIMED_OUT
) -> Turn:
    """Reports, sign of life and claim in one transaction. Without a seat, the bot is looked at in it, too."""
    hub, now = context.hub, context.now()
    reports = [report_of(said) for said in ask.reports]
    order = order_for(context, seat) if seat else None
    beat, crowd = hub.work_seq, hub.waiting_peers(seat) if seat else 0
    queues = _looked_at(seat, crowd) if seat else []
    finished = [said for said in ask.reports if isinstance(said, SaysFinish)]
    update_run_stats(seat, [said.duration for said in finished], [said.caches for said in finished])
    most = 0 if order or context.state.stopping else min(ask.n, context.rules.claim_limit, claim_size(seat))

    def write(tx: Tx) -> Wrote:
        looked = look(tx, bot_id, ask.session) if seat is None else None
        wrote = Wrote(looked, 0 if looked and looked.ends else fair_share(tx, queues, most, crowd))
        _speak(tx, context, bot_id, ask, reports, wrote, now)
        wrote.more = 0 < wrote.n <= len(wrote.tasks) and bool(task_to_run.heads(tx, bot_id))
        wrote.left = bool(woken.queue and not wrote.tasks and task_to_run.not_empty(tx, [woken.queue]))
        return wrote

    wrote = await context.db.write(write)
    if wrote.looked is not None:
        seat = sit(context, bot_id, ask.session, wrote.looked)
        seat.config = ask.config
        order = order_for(context, seat) if not wrote.tasks else None
    if seat is None:
        raise BrokenPromise("a bot was neither known nor looked at")
    seat.flushed_at = now
    if context.hub.canary_release:
        rollout.check_canary_progress(context, seat, finished=bool(finished))
    record_reports(context, reports, wrote.replies)
    record_claim(context, seat, ask.nonce, wrote.tasks)
    if ask.state is not None:
        seat.state_written_at = now
    if wrote.n and len(wrote.tasks) < wrote.n:
        hub.mark_empty(seat, beat)
    if wrote.left and woken.forward_count < MAX_FORWARDS:
        hub.wake(woken.queue, hops=woken.forward_count + 1)
    return Turn(seat, order, wrote.replies, wrote.stop, wrote.tasks, wrote.more or hub.num_partial_submits > 0)


def _looked_at(seat: ConnectedBot, crowd: int) -> list[int]:
    """The queues by whose depth a claim is cut; none where no other bot serves them, or where there are too many."""
    line = seat.peers
    if crowd or (line.num_connected > 1 and len(line.queues) <= _MOST_QUEUES):
        return sorted(line.queues)[:_MOST_QUEUES]
    return []


def _speak(
    tx: Tx, context: ServerContext, bot_id: str, ask: Exchange, reports: Sequence[Report], wrote: Wrote, now: Micros
) -> None:
    try:
        if reports:
            wrote.replies = reporting.report(
                tx, bot_id, reports, session=ask.session, now=now, ids=context.ids, rules=context.rules
            )
        if ask.holds or not (reports or wrote.n):
            wrote.stop = reporting.heartbeat(tx, bot_id, held_runs(ask.holds), session=ask.session, now=now)
        if wrote.n:
            wrote.tasks = claim_with_nonce(tx, context, bot_id, ask.session, ask.nonce, wrote.n, now)
    except NotFound:
        raise WrongState("This bot was deleted; it must shake hands again.") from None
    if ask.state is not None:
        bots.set_state(tx, bot_id, ask.session, encode(ask.state).decode())


# ---------------------------------------------------------------- signs of life and events


async def heartbeat(context: ServerContext, call: Call) -> HeartbeatAnswer:
    """Keep a bot and its runs alive while it is busy; which of them must stop."""
    body: Heartbeat = call.body
    bot_id = itself(call)
    ask = Exchange(session=body.session, holds=body.holds, config=body.config)
    await _hear(context, bot_id, body.session, body.config)
    turn = await _write_turn(context, bot_id, ask, seat_of(context, bot_id, body.session))
    if turn.order in TOLD:
        await note_order(context, turn.seat, (), turn.order, knows_end=True)
    wanted = rollout.release_for(context, bot_id) if turn.order == "update" else None
    return HeartbeatAnswer(
        stop=[show_run(task_id, run) for task_id, run in turn.stop],
        order=turn.order,
        version=wanted,
        zip_hmac=zip_hmac(bearer_of(call.headers), wanted) if wanted else None,
    )


async def event(context: ServerContext, call: Call) -> Noted:
    """Something that the bot's owner should see."""
    body: BotEvent = call.body
    bot_id = itself(call)
    if body.kind not in fleet.BOT_EVENT_KINDS:
        raise InvalidRequest([Problem("kind", body.kind[:100], ", ".join(sorted(fleet.BOT_EVENT_KINDS)), "choice")])
    message = body.message[:_MOST_TEXT].replace("\x00", "")
    now = context.now()
    await context.db.write(
        partial(
            fleet.record_event,
            bot_id=bot_id,
            kind=body.kind,
            message=message,
            session=body.session,
            now=now,
            ids=context.ids,
        )
    )
    if body.ended:
        bye = partial(fleet.mark_bot_stopped, session=body.session, now=now, ids=context.ids, rules=context.rules)
        await context.db.write(partial(bye, bot_id=bot_id))
    if body.bad_release:
        await rollout.report_failure(context, bot_id, body.bad_release)
    if body.kind == "bot_shutdown":
        context.hub.forget(bot_id)
    return Noted()


ROUTES = (
    Route(
        method="POST",
        path="/bot/v1/handshake",
        call=handshake,
        who=INTRODUCERS | BOTS,
        summary="A bot has started, or has changed",
        body=HandshakeRequest,
        out=Welcomed,
        mutates=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/exchange",
        call=exchange,
        who=BOTS,
        summary="A bot reports and gets work; held while there is none",
        body=Exchange,
        out=Exchanged,
        mutates=True,
        waits=True,
        vital=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/heartbeat",
        call=heartbeat,
        who=BOTS,
        summary="A busy bot's sign of life; which of its runs must stop",
        body=Heartbeat,
        out=HeartbeatAnswer,
        mutates=True,
        vital=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/log/{run}/{stream}",
        call=log,
        who=BOTS,
        summary="Bytes of a run's output, at their offset",
        body=bytes,
        query=LogPlace,
        out=LogStored,
        mutates=True,
        body_limit=MOST_LOG_BYTES,
    ),
    Route(
        method="POST",
        path="/bot/v1/event",
        call=event,
        who=BOTS,
        summary="Something that the bot's owner should see",
        body=BotEvent,
        out=Noted,
        mutates=True,
    ),
)
