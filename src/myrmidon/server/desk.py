"""The desk: where bots shake hands, report, and get their work.

One exchange is one transaction: reports, the sign of life, the claim. A bot that has nothing to say and for
which there is nothing costs no look at the database at all: its poll is held in the hub, on what is known of
the bot since the last look.

A bot acts as itself only, and on runs whose token it has. This file decides nothing about tasks.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import TypeVar

from msgspec import Struct, structs

from myrmidon.model.bot import Hello
from myrmidon.model.errors import (
    BrokenPromise,
    Forbidden,
    InvalidRequest,
    NotFound,
    Problem,
    Stopping,
    TooLarge,
    Unauthorized,
    WrongState,
)
from myrmidon.model.ids import Micros, created_ms, show_run
from myrmidon.model.task_result import Report
from myrmidon.scheduler import claim as claiming
from myrmidon.scheduler import fleet
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import LogBytes, Reply
from myrmidon.server.auth import bearer_of, bot_credential
from myrmidon.server.bot_wire import (
    NOTHING,
    BotEvent,
    Exchange,
    Exchanged,
    Handshake,
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
    log_bytes_of,
    report_of,
    run_of,
    taken,
)
from myrmidon.server.door import BOTS, INTRODUCERS, Call, Door, Role, Route
from myrmidon.server.waiting import LOOK, MOST_HOPS, TIME_IS_UP, Seat, Woken
from myrmidon.store import bot as bots
from myrmidon.store import task_queues, task_to_run
from myrmidon.store.db import Tx

T = TypeVar("T")

WORK_S = 0.05
"""How much work a claim takes at once: enough to hide the way to the server, too little to be missed elsewhere."""
QUICKEST_S = 0.0005
LOOK_AGAIN: Micros = 600 * SECOND
TELL_AGAIN: Micros = 600 * SECOND
BEAT_EVERY: Micros = 60 * SECOND
STATE_EVERY: Micros = 300 * SECOND
LONGEST_WAIT_S = 120.0
MOST_PIECES = 256 << 10
MOST_LOG_BYTES = 1 << 20
_TRY_BITS = 10
"""So many bits of a stored nonce tell the tries of one poll apart."""
_MOST_TEXT = 4096
_MOST_DEPTH = 1024
_MOST_QUEUES = 8
_MOST_REMEMBERED = 10_000


# ---------------------------------------------------------------- coming in


async def handshake(door: Door, call: Call) -> Welcomed:
    """A bot has started, or has changed: who it is from now on, and which of its runs are still its own.

    Whoever shows a credential can only be the bot that it was given to; and only while that bot is known, so
    that deleting a bot takes its credential away.
    """
    body: Handshake = call.body
    if call.who.role is Role.BOT and call.who.bot_id != body.bot_id:
        raise Forbidden(f"This credential is that of the bot {call.who.bot_id}.")
    now = door.now()
    hello = Hello(
        bot_id=body.bot_id,
        session=body.session,
        dimensions=body.dimensions,
        state=encode(body.state).decode(),
        address=call.address[:40],
        boot_id=body.boot_id,
        version=body.version,
        authenticated=call.who.name,
        quarantined=body.quarantined,
        maintenance=body.maintenance,
        holds=[run_of(shown) for shown in body.holds],
    )

    def meet(tx: Tx) -> tuple[fleet.Welcome, Looked]:
        if call.who.role is Role.BOT and bots.read(tx, body.bot_id) is None:
            raise Unauthorized("This bot was deleted; it must be introduced again.")
        welcome = fleet.handshake(tx, hello, now=now, ids=door.ids, rules=door.rules, limits=door.limits)
        return welcome, _look(tx, body.bot_id, body.session)

    welcome, looked = await door.write(meet)
    _sit(door, body.bot_id, body.session, looked)
    credential = bot_credential(door.keys.bot, body.bot_id, body.session)
    return Welcomed(
        credential=credential,
        bot_id=welcome.bot_id,
        session=welcome.session,
        keep=[show_run(task_id, run) for task_id, run in welcome.keep],
        quarantined=welcome.quarantined,
        version=door.hub.wanted,
        zip_hmac=zip_hmac(credential, door.hub.wanted),
        poll_s=door.settings.poll_s,
        heartbeat_s=door.settings.heartbeat_s,
        server_time=now,
    )


def zip_hmac(credential: str, digest: str) -> str:
    """Proves to a bot that the digest comes from whoever gave it its credential."""
    return hmac.new(credential.encode(), digest.encode(), sha256).hexdigest()


class Looked(Struct, frozen=True):
    """What the database says of a bot, as far as its polls ask for it."""

    queues: list[int]
    serving: bool
    version: str
    nonce: int
    heartbeat: Micros
    ends: bool
    work: bool


def _look(tx: Tx, bot_id: str, session: int, *, for_work: bool = False) -> Looked:
    bot = bots.read(tx, bot_id)
    if bot is None or bot.session != session or not bot.alive:
        raise WrongState("This bot's session has ended; it must shake hands again.")
    ends = bots.ending(tx, bot_id)
    serving = bool(bot.serving)
    return Looked(
        queues=task_queues.queues_of_bot(tx, bot_id) if serving else [],
        serving=serving,
        version=bot.version,
        nonce=bot.nonce >> _TRY_BITS,
        heartbeat=bot.heartbeat,
        ends=ends is not None and ends >= session,
        work=for_work and serving and bool(task_to_run.heads(tx, bot_id)),
    )


def _sit(door: Door, bot_id: str, session: int, looked: Looked) -> Seat:
    seat = door.hub.sit(bot_id, session, looked.queues)
    seat.version = looked.version
    seat.order = "terminate" if looked.ends else None
    seat.nonce = max(seat.nonce, looked.nonce)
    seat.looked_at = seat.seen_at = door.now()
    seat.flushed_at = max(seat.flushed_at, looked.heartbeat)
    return seat


def _seat(door: Door, bot_id: str, session: int) -> Seat | None:
    """The bot as it is known here, if that can be relied on."""
    seat = door.hub.seats.get(bot_id)
    if seat is None or seat.session != session or seat.outdated or door.now() - seat.looked_at >= LOOK_AGAIN:
        return None
    return seat


def beat_every(door: Door) -> Micros:
    """How old the last sign of life that was written down may get."""
    return min(BEAT_EVERY, door.rules.dead_after // 4)


def _itself(call: Call) -> str:
    if call.who.bot_id is None:
        raise Forbidden("Only a bot may do this.")
    return call.who.bot_id


# ---------------------------------------------------------------- the exchange


async def exchange(door: Door, call: Call) -> bytes:
    """Take what a bot has to say and give it work; the answer is held while there is none."""
    ask: Exchange = call.body
    bot_id, bearer = _itself(call), bearer_of(call.headers)
    if door.stopping and not (ask.reports or ask.logs or ask.holds):
        raise Stopping("This server is going down.")
    until = asyncio.get_running_loop().time() + min(ask.wait_s, LONGEST_WAIT_S)
    lengths = await _store_pieces(door, bot_id, ask) if ask.logs else []
    try:
        turn = await _first_turn(door, bot_id, ask)
        if not turn.urgent:
            turn = await _wait_for_more(door, ask, turn, until)
    except WrongState:
        door.hub.forget_session(bot_id, ask.session)
        raise
    if not (turn.urgent or turn.replies or lengths):
        return NOTHING
    told = turn.order == "update"
    return encode(
        Exchanged(
            replies=taken(turn.replies),
            log_lengths=lengths,
            stop=[show_run(task_id, run) for task_id, run in turn.stop],
            tasks=[assigned(one) for one in turn.tasks],
            more=turn.more,
            order=turn.order,
            version=door.hub.wanted if told else None,
            zip_hmac=zip_hmac(bearer, door.hub.wanted) if told else None,
        )
    )


class Turn(Struct):
    """What one go of an exchange has brought."""

    seat: Seat
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


async def _first_turn(door: Door, bot_id: str, ask: Exchange) -> Turn:
    """What the bot says is written down; a bot that says nothing costs a read, or nothing at all.

    A bot that will not wait is not put off with hints: it gets what there is.
    """
    seat = _seat(door, bot_id, ask.session)
    if ask.reports or ask.holds:
        return await _write_turn(door, bot_id, ask, seat)
    work = False
    if seat is None:
        looked = await door.read(partial(_look, bot_id=bot_id, session=ask.session, for_work=True))
        seat, work = _sit(door, bot_id, ask.session, looked), looked.work
    now = seat.seen_at = door.now()
    hinted = work or ask.wait_s <= 0 or ask.nonce <= seat.nonce or door.hub.may_have_work(seat)
    work = ask.n > 0 and hinted
    overdue = now - seat.flushed_at > 3 * beat_every(door)
    news = ask.state is not None and now - seat.state_at > STATE_EVERY
    if work or overdue or news:
        return await _write_turn(door, bot_id, ask, seat)
    return Turn(seat, _order(door, seat))


async def _wait_for_more(door: Door, ask: Exchange, turn: Turn, until: float) -> Turn:
    """Hold the answer until there is something to say, or time is up."""
    hub, seat, replies = door.hub, turn.seat, turn.replies
    clock = asyncio.get_running_loop().time
    holds = tuple(run_of(shown)[0] for shown, _ in ask.holds)
    while not turn.urgent and (left := until - clock()) > 0:
        if ask.n > 0 and hub.may_have_work(seat) and not door.stopping:
            turn = await _next_turn(door, ask, seat, _CAME_MEANWHILE)
        else:
            woken = await hub.wait(seat, left, nonce=ask.nonce, n=ask.n, holds=holds)
            if woken is TIME_IS_UP or hub.seats.get(seat.bot_id) is not seat:
                break
            seat.seen_at = door.now()
            if woken.reply is not None:
                tasks, more = woken.reply
                turn = Turn(seat, tasks=tasks, more=more)
            else:
                turn = await _next_turn(door, ask, seat, woken)
        turn.replies = replies
    return turn


_CAME_MEANWHILE = Woken()
"""Work came while the bot's claim was under way and found nothing."""


async def _next_turn(door: Door, ask: Exchange, seat: Seat, woken: Woken) -> Turn:
    """A held poll goes on: what it had to say has been said."""
    again = Exchange(session=ask.session, nonce=ask.nonce, n=ask.n, wait_s=ask.wait_s, holds=ask.holds)
    if woken is LOOK and not ask.holds:
        return await _first_turn(door, seat.bot_id, again)
    return await _write_turn(door, seat.bot_id, again, _seat(door, seat.bot_id, seat.session), woken)


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


async def _write_turn(door: Door, bot_id: str, ask: Exchange, seat: Seat | None, woken: Woken = TIME_IS_UP) -> Turn:
    """Reports, sign of life and claim in one transaction. Without a seat, the bot is looked at in it, too."""
    hub, now = door.hub, door.now()
    reports = [report_of(said) for said in ask.reports]
    order = _order(door, seat) if seat else None
    beat, crowd = hub.beat, hub.crowd(seat) if seat else 0
    queues = sorted(seat.line.queues)[:_MOST_QUEUES] if seat and crowd else []
    _learn_pace(seat, ask)
    most = 0 if order or door.stopping else min(ask.n, door.rules.claim_limit, claim_size(seat))

    def write(tx: Tx) -> Wrote:
        looked = _look(tx, bot_id, ask.session) if seat is None else None
        wrote = Wrote(looked, 0 if looked and looked.ends else _share(tx, queues, most, crowd))
        _speak(tx, door, bot_id, ask, reports, wrote, now)
        wrote.more = 0 < wrote.n <= len(wrote.tasks) and bool(task_to_run.heads(tx, bot_id))
        wrote.left = bool(woken.queue and not wrote.tasks and task_to_run.not_empty(tx, [woken.queue]))
        return wrote

    wrote = await door.write(write)
    if wrote.looked is not None:
        seat = _sit(door, bot_id, ask.session, wrote.looked)
        order = _order(door, seat) if not wrote.tasks else None
    if seat is None:
        raise BrokenPromise("a bot was neither known nor looked at")
    seat.flushed_at = now
    measure(door, ask, wrote.replies, wrote.tasks)
    if ask.state is not None:
        seat.state_at = now
    if wrote.tasks:
        seat.nonce = max(seat.nonce, ask.nonce)
    if wrote.n and len(wrote.tasks) < wrote.n:
        hub.emptied(seat, beat)
    if wrote.left and woken.hops < MOST_HOPS:
        hub.wake(woken.queue, hops=woken.hops + 1)
    return Turn(seat, order, wrote.replies, wrote.stop, wrote.tasks, wrote.more)


def _speak(
    tx: Tx, door: Door, bot_id: str, ask: Exchange, reports: Sequence[Report], wrote: Wrote, now: Micros
) -> None:
    try:
        if reports:
            wrote.replies = reporting.report(
                tx, bot_id, reports, session=ask.session, now=now, ids=door.ids, rules=door.rules
            )
        if ask.holds or not (reports or wrote.n):
            wrote.stop = reporting.heartbeat(tx, bot_id, held_runs(ask.holds), session=ask.session, now=now)
        if wrote.n:
            wrote.tasks = claim_under(tx, door, bot_id, ask.session, ask.nonce, wrote.n, now)
    except NotFound:
        raise WrongState("This bot was deleted; it must shake hands again.") from None
    if ask.state is not None:
        bots.set_state(tx, bot_id, ask.session, encode(ask.state).decode())


def claim_under(tx: Tx, door: Door, bot_id: str, session: int, nonce: int, n: int, now: Micros) -> list[Claimed]:
    """Claim under a poll's nonce, which the poll may do several times: it is held until there is something.

    Each try is a nonce of its own for the core, and only the last one can have brought anything. So a poll that
    comes again gets the runs of its last try, if they are still its own, and tries once more if there are none.
    """
    bot = bots.read(tx, bot_id)
    last = bot.nonce if bot is not None else 0
    poll = Poll(bot_id=bot_id, session=session, nonce=nonce << _TRY_BITS, n=n, token_key=door.keys.run_token)
    claim = partial(claiming.claim, tx, now=now, ids=door.ids, rules=door.rules)
    if last >> _TRY_BITS != nonce or bot is None or bot.session != session:
        return claim(poll)
    found = claim(structs.replace(poll, nonce=last))
    if found or (last + 1) >> _TRY_BITS != nonce:
        return found
    return claim(structs.replace(poll, nonce=last + 1))


def measure(door: Door, ask: Exchange, replies: Sequence[Reply], tasks: Sequence[Claimed]) -> None:
    """Tell the metrics of runs that have ended and runs that begin."""
    now = door.now()
    for said, reply in zip(ask.reports, replies, strict=False):
        if isinstance(said, SaysFinish) and reply.outcome is reporting.Outcome.ACCEPTED:
            door.metrics.ended(_end_of(said), said.duration)
    for one in tasks:
        if one.run == 1:
            door.metrics.claimed(max(0, now - created_ms(one.task_id) * 1000) / SECOND)


def _end_of(said: SaysFinish) -> str:
    if said.hard_timeout or said.io_timeout:
        return "timed_out"
    if said.killed:
        return "killed"
    return "succeeded" if said.exit_code == 0 else "failed"


def _order(door: Door, seat: Seat) -> str | None:
    """What the bot is told to do besides its work. An update it is told of once in a while only.

    A bot that cannot update goes on with the version it has: better an old soldier than none.
    """
    if seat.order is not None:
        return seat.order
    wanted, now = door.hub.wanted, door.now()
    if wanted and seat.version and seat.version != wanted and now - seat.told_at >= TELL_AGAIN:
        seat.told_at = now
        return "update"
    return None


# ---------------------------------------------------------------- how much at once


def _learn_pace(seat: Seat | None, ask: Exchange) -> None:
    """What runs take on this bot, by its last reports."""
    took = [said.duration for said in ask.reports if isinstance(said, SaysFinish)]
    if seat is not None and took:
        mean = sum(took) / len(took)
        seat.pace = max(QUICKEST_S, (seat.pace + mean) / 2 if seat.pace else mean)


def claim_size(seat: Seat | None) -> int:
    """So many runs are about ``WORK_S`` of work on this bot; one while its pace is not known."""
    return max(1, round(WORK_S / seat.pace)) if seat is not None and seat.pace else 1


def _share(tx: Tx, queues: Sequence[int], n: int, crowd: int) -> int:
    """No more than this bot's share of what there is, while others of its queues wait."""
    if n <= 1 or not crowd:
        return n
    enough = min(_MOST_DEPTH, n * (crowd + 1))
    ready = sum(task_to_run.depth(tx, queue, enough) for queue in queues)
    return min(n, max(1, -(-ready // (crowd + 1))))


# ---------------------------------------------------------------- signs of life and events


async def heartbeat(door: Door, call: Call) -> HeartbeatAnswer:
    """Keep a bot and its runs alive while it is busy; which of them must stop."""
    body: Heartbeat = call.body
    bot_id = _itself(call)
    ask = Exchange(session=body.session, holds=body.holds)
    turn = await _write_turn(door, bot_id, ask, _seat(door, bot_id, body.session))
    told = turn.order == "update"
    return HeartbeatAnswer(
        stop=[show_run(task_id, run) for task_id, run in turn.stop],
        order=turn.order,
        version=door.hub.wanted if told else None,
        zip_hmac=zip_hmac(bearer_of(call.headers), door.hub.wanted) if told else None,
    )


async def event(door: Door, call: Call) -> Noted:
    """Something that the bot's owner should see."""
    body: BotEvent = call.body
    bot_id = _itself(call)
    if body.kind not in fleet.BOT_SAYS:
        raise InvalidRequest([Problem("kind", body.kind[:100], ", ".join(sorted(fleet.BOT_SAYS)), "choice")])
    message = body.message[:_MOST_TEXT].replace("\x00", "")
    now = door.now()
    await door.write(
        partial(
            fleet.note_event,
            bot_id=bot_id,
            kind=body.kind,
            message=message,
            session=body.session,
            now=now,
            ids=door.ids,
        )
    )
    if body.kind == "bot_shutdown":
        door.hub.forget(bot_id)
    return Noted()


# ---------------------------------------------------------------- output


async def log(door: Door, call: Call) -> LogStored:
    """Bytes of a run's output, at their offset; the same bytes again change nothing."""
    bot_id = _itself(call)
    place_of: LogPlace = call.query
    task_id, run = run_of(call.params["run"])
    stream = call.params["stream"]
    item = LogBytes(
        task_id=task_id,
        run=run,
        token=call.headers.get("x-run-token", ""),
        stream=int(stream) if stream in ("0", "1") else -1,
        offset=place_of.offset,
        content=call.body,
    )
    if not await _may_write(door, bot_id, [item]):
        raise NotFound("run of this bot", call.params["run"][:32])
    info = await door.write_log(partial(reporting.append_log, item=item, rules=door.rules))
    door.hub.grown((task_id, run))
    return LogStored(length=info.length, cut_from=info.cut_from, cut_to=info.cut_to)


async def _store_pieces(door: Door, bot_id: str, ask: Exchange) -> list[int]:
    """The small pieces that come with an exchange, in one write; -1 for those that are not the bot's to write."""
    if sum(len(piece.data) for piece in ask.logs) > MOST_PIECES:
        raise TooLarge(f"An exchange carries at most {MOST_PIECES} bytes of output.")
    items = [log_bytes_of(piece) for piece in ask.logs]
    mine = await _may_write(door, bot_id, items)
    good = [item for item in items if (item.task_id, item.run, item.token) in mine and item.stream in (0, 1)]

    def append(tx: Tx) -> dict[int, int]:
        return {id(item): reporting.append_log(tx, item, door.rules).length for item in good}

    lengths = await door.write_log(append) if good else {}
    for item in good:
        door.hub.grown((item.task_id, item.run))
    return [lengths.get(id(item), -1) for item in items]


async def _may_write(door: Door, bot_id: str, items: Sequence[LogBytes]) -> set[tuple[int, int, str]]:
    """Those runs, with their tokens, whose log this bot may add to. Who has a run never changes, so it is kept."""
    known = door.hub.log_rights
    asked = {(item.task_id, item.run, item.token): item for item in items}
    mine = {key for key in asked if (bot_id, *key) in known}
    missing = [item for key, item in asked.items() if key not in mine]
    if missing:
        checked = await door.read(lambda tx: [item for item in missing if reporting.check_log(tx, bot_id, item)])
        for item in checked:
            key = (item.task_id, item.run, item.token)
            mine.add(key)
            known[(bot_id, *key)] = None
        while len(known) > _MOST_REMEMBERED:
            known.popitem(last=False)
    return mine


ROUTES = (
    Route(
        method="POST",
        path="/bot/v1/handshake",
        call=handshake,
        who=INTRODUCERS | BOTS,
        summary="A bot has started, or has changed",
        body=Handshake,
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
