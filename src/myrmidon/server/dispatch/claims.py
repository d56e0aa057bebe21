"""A claim at the desk: under which nonce it is made, how large it is, and what the metrics are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import structs

from myrmidon.model.ids import Micros, created_ms
from myrmidon.scheduler import claim as claiming
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import Outcome, Reply
from myrmidon.server.botapi.handshake import TRY_BITS
from myrmidon.server.botapi.messages import Exchange, SaysFinish
from myrmidon.server.context import ServerContext
from myrmidon.server.waiting.connected_bot import Seat
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run

WORK_S = 0.1
"""How much work a claim takes at once: enough to hide the way to the server, too little to be missed elsewhere."""
QUICKEST_S = 0.0005
FEW = 8
"""Claims of fewer quick tasks cost more than they spread."""
_MOST_DEPTH = 1024


def claim_under(
    tx: Tx, context: ServerContext, bot_id: str, session: int, nonce: int, n: int, now: Micros
) -> list[Claimed]:
    """Claim under a poll's nonce, which the poll may do several times: it is held until there is something.

    Each try is a nonce of its own for the core, and only the last one can have brought anything. So a poll that
    comes again gets the runs of its last try, if they are still its own, and tries once more if there are none.
    """
    bot = bots.read(tx, bot_id)
    last = bot.nonce if bot is not None else 0
    poll = Poll(bot_id=bot_id, session=session, nonce=nonce << TRY_BITS, n=n, token_key=context.keys.run_token)
    claim = partial(claiming.claim, tx, now=now, ids=context.ids, rules=context.rules)
    if last >> TRY_BITS != nonce or bot is None or bot.session != session:
        return claim(poll)
    found = claim(structs.replace(poll, nonce=last))
    if found or (last + 1) >> TRY_BITS != nonce:
        return found
    return claim(structs.replace(poll, nonce=last + 1))


def record_claim(context: ServerContext, seat: Seat, nonce: int, tasks: Sequence[Claimed]) -> None:
    """Note runs that were claimed for a bot and committed; an exchange and a direct assignment both end here.

    The claim has written the bot's sign of life. Its answer may be asked for again under the same nonce.
    """
    if not tasks:
        return
    now = seat.flushed_at = context.now()
    seat.nonce = max(seat.nonce, nonce)
    context.hub.floods.worked(len(tasks), now)
    for one in tasks:
        if one.run == 1:
            context.metrics.claimed(max(0, now - created_ms(one.task_id) * 1000) / SECOND)


def measure(context: ServerContext, ask: Exchange, replies: Sequence[Reply]) -> None:
    """Tell the metrics of runs that have ended."""
    context.hub.floods.worked(len(ask.reports), context.now())
    for said, reply in zip(ask.reports, replies, strict=False):
        if isinstance(said, SaysFinish) and reply.outcome is Outcome.ACCEPTED:
            context.metrics.ended(_end_of(said), said.duration)


def _end_of(said: SaysFinish) -> str:
    if said.hard_timeout or said.io_timeout:
        return "timed_out"
    if said.killed:
        return "killed"
    return "succeeded" if said.exit_code == 0 else "failed"


# ---------------------------------------------------------------- how much at once


def learn_pace(seat: Seat | None, ask: Exchange) -> None:
    """What runs take on this bot, in time and in the room of their caches, by its last reports."""
    ended = [said for said in ask.reports if isinstance(said, SaysFinish)]
    if seat is not None and ended:
        mean = sum([said.duration for said in ended]) / len(ended)
        seat.pace = max(QUICKEST_S, (seat.pace + mean) / 2 if seat.pace else mean)
        for said in ended:
            if said.caches:
                seat.caches = {**(seat.caches or {}), **said.caches}


def claim_size(seat: Seat | None) -> int:
    """So many runs are about ``WORK_S`` of work on this bot; one while its pace is not known."""
    return max(1, round(WORK_S / seat.pace)) if seat is not None and seat.pace else 1


def share(tx: Tx, queues: Sequence[int], n: int, crowd: int) -> int:
    """No more than this bot's share of what there is, while ``crowd`` others of its queues wait.

    While none waits, half of what is left: it is used up step by step, so that all who work on it are done at once.
    """
    least = 1 if crowd else FEW
    if n <= least or not queues:
        return n
    others = max(1, crowd)
    enough = min(_MOST_DEPTH, n * (others + 1))
    ready = sum(task_to_run.depth(tx, queue, enough) for queue in queues)
    return min(n, max(least, -(-ready // (others + 1))))
