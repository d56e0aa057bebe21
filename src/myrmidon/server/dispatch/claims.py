"""A claim at the desk: under which nonce it is made, how large it is, and what the metrics are told of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import structs

from myrmidon.model.ids import Micros, created_ms
from myrmidon.model.task_result import Finish, Report
from myrmidon.scheduler import claim as claiming
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import Outcome, Reply
from myrmidon.server.context import ServerContext
from myrmidon.server.waiting.connected_bot import Seat
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run

TRY_BITS = 10
"""The low bits of a stored nonce number the claim attempts of one poll."""
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


def record_reports(context: ServerContext, reports: Sequence[Report], replies: Sequence[Reply]) -> None:
    """Update the metrics and the log throttle after reports were committed."""
    context.hub.floods.worked(len(reports), context.now())
    for report, reply in zip(reports, replies, strict=False):
        if isinstance(report, Finish) and reply.outcome is Outcome.ACCEPTED:
            context.metrics.ended(_end_label(report), report.duration)


def _end_label(finish: Finish) -> str:
    if finish.hard_timeout or finish.io_timeout:
        return "timed_out"
    if finish.killed:
        return "killed"
    return "succeeded" if finish.exit_code == 0 else "failed"


# ---------------------------------------------------------------- how much at once


def update_run_stats(
    seat: Seat | None, durations: Sequence[float], cache_sizes: Iterable[dict[str, int] | None]
) -> None:
    """Update the mean run time and the cache sizes of a bot from the runs that it reports as finished."""
    if seat is None or not durations:
        return
    mean = sum(durations) / len(durations)
    seat.pace = max(QUICKEST_S, (seat.pace + mean) / 2 if seat.pace else mean)
    for sizes in cache_sizes:
        if sizes:
            seat.caches = {**(seat.caches or {}), **sizes}


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
