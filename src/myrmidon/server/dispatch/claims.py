"""Claims of an exchange and of direct assignment: their nonce, their size, and what is recorded after the commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import structs

from myrmidon.model.ids import Micros, created_ms
from myrmidon.model.task_result import Finish, Report
from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler import claim as claiming
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import Outcome, Reply
from myrmidon.server.context import ServerContext
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run

ATTEMPT_BITS = 10
"""The low bits of a stored nonce number the claim attempts of one poll."""
CLAIM_WORK_S = 0.1
"""How much work one claim takes: enough to hide the round trip to the server, little enough to leave work to others."""
MIN_RUN_S = 0.0005
MIN_SPLIT = 8
"""While no other bot waits, claims are not made smaller than this: more of them would cost more than they spread."""
_MAX_DEPTH = 1024


def claim_with_nonce(
    tx: Tx,
    context: ServerContext,
    bot_id: str,
    session: int,
    nonce: int,
    n: int,
    now: Micros,
    *,
    accepts: Accepts,
    leave: frozenset[int] = frozenset(),
) -> list[Claimed]:
    """Claim up to n runs under the nonce of a poll; the same nonce again returns the same runs.

    A held poll may claim several times. Each attempt is a nonce of its own for the scheduler, and only the last one can
    have claimed runs. So a repeated poll gets the runs of the last attempt, if they are still the bot's, and makes
    another attempt if there are none.
    """
    bot = bots.lock(tx, bot_id)
    last = bot.nonce if bot is not None else 0
    poll = Poll(
        bot_id=bot_id,
        session=session,
        nonce=nonce << ATTEMPT_BITS,
        n=n,
        token_key=context.keys.run_token,
        accepts=accepts,
        leave=leave,
    )
    claim = partial(claiming.claim, tx, now=now, ids=context.ids, rules=context.rules, bot=bot)
    if last >> ATTEMPT_BITS != nonce or bot is None or bot.session != session:
        return claim(poll)
    repeated = claim(structs.replace(poll, nonce=last))
    if repeated or (last + 1) >> ATTEMPT_BITS != nonce:
        return repeated
    return claim(structs.replace(poll, nonce=last + 1))


def tasks_to_leave(tx: Tx, context: ServerContext, address: str) -> frozenset[int]:
    """The tasks that this transaction has made ready and whose data is at a waiting bot, but not at this address.

    The commit wakes that bot for them at once. Of tasks that were ready before, none is left: nobody waits for a bot.
    """
    left: dict[tuple[int, frozenset[str]], list[int]] = {}
    for task_id, (queue, addresses) in sorted(tx.effects.localities.items()):
        if address not in addresses:
            left.setdefault((queue, addresses), []).append(task_id)
    found: set[int] = set()
    for (queue, addresses), task_ids in left.items():
        found.update(task_ids[: context.hub.queues.capacity_at(queue, addresses)])
    return frozenset(found)


def record_claim(context: ServerContext, bot: ConnectedBot, nonce: int, tasks: Sequence[Claimed]) -> None:
    """Record a committed claim of a bot in memory and in the metrics, for exchanges and direct assignment alike.

    The claim has written the bot's heartbeat. The bot may repeat the request with the same nonce.
    """
    now = bot.flushed_at = context.now()
    bot.nonce = max(bot.nonce, nonce)
    context.hub.log_throttle.record_runs(len(tasks), now)
    for task in tasks:
        if task.run == 1:
            context.metrics.claimed(max(0, now - created_ms(task.task_id) * 1000) / SECOND)


def record_reports(context: ServerContext, reports: Sequence[Report], replies: Sequence[Reply], now: Micros) -> None:
    """Record committed reports in the metrics and the log throttle."""
    context.hub.log_throttle.record_runs(len(reports), now)
    for report, reply in zip(reports, replies, strict=False):
        if isinstance(report, Finish) and reply.outcome is Outcome.ACCEPTED:
            context.metrics.run_ended(_end_label(report), report.duration)


def _end_label(finish: Finish) -> str:
    if finish.hard_timeout or finish.io_timeout:
        return "timed_out"
    if finish.killed:
        return "killed"
    return "succeeded" if finish.exit_code == 0 else "failed"


# ---------------------------------------------------------------- the size of a claim


def claim_size(bot: ConnectedBot | None) -> int:
    """The number of runs that take about ``CLAIM_WORK_S`` on this bot; one per slot while the mean is not known."""
    if bot is None:
        return 1
    return max(bot.slots, round(bot.slots * CLAIM_WORK_S / bot.mean_run_s)) if bot.mean_run_s else bot.slots


def fair_share(tx: Tx, queues: Sequence[int], n: int, waiting_peers: int) -> int:
    """Limit a claim of n to the bot's share of the tasks in these queues, while ``waiting_peers`` others wait.

    While none waits, the share is half of what is left: the bots that work on a queue then finish at about the same
    time.
    """
    least = 1 if waiting_peers else MIN_SPLIT
    if n <= least or not queues:
        return n
    others = max(1, waiting_peers)
    enough = min(_MAX_DEPTH, n * (others + 1))
    ready = sum(task_to_run.depth(tx, queue, enough) for queue in queues)
    return min(n, max(least, -(-ready // (others + 1))))
