"""Claims of exchanges and of direct assignment: nonces, sizes, what is recorded of a claim, and giving runs back.

Direct assignment: a submit claims its tasks for waiting bots inside its own transaction, so that only one commit lies
between a submit and the start of its command.

A bot repeats a poll that was not answered, and gets the same runs. But the abandoned poll may still be at work here: it
may claim after the bot has got its answer, or after the bot has gone on to another request. Nobody would run these
tasks until the time to start them is over, so they are given back, to be claimed again at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import structs

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import Micros, created_ms
from myrmidon.model.keyed_hash import claim_token
from myrmidon.model.task_result import Finish, GiveBack, Report, TaskRun
from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler import claim as claiming
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import Outcome, Reply
from myrmidon.server.context import ServerContext
from myrmidon.server.waiting.connected_bots import ConnectedBot
from myrmidon.server.waiting.wait_hub import NO_ADDRESSES
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_run, task_to_run

T = TypeVar("T")

ATTEMPT_BITS = 10
"""The low bits of a stored nonce number the claim attempts of one poll."""
CLAIM_WORK_S = 0.1
"""How much work one claim takes: enough to hide the round trip to the server, little enough to leave work to others."""
MIN_RUN_S = 0.0005
MIN_SPLIT = 8
"""While no other bot waits, claims are not made smaller than this: more of them would cost more than they spread."""
_MAX_DEPTH = 1024
MAX_ASSIGNED_BOTS = 8
"""For how many waiting bots one submit claims; other bots are woken and claim for themselves."""


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


# ---------------------------------------------------------------- direct assignment


def write_and_assign(context: ServerContext, fn: Callable[[Tx], T], *, size: int = 1) -> Awaitable[T]:
    """Like ``context.db.write``, for a submit: assigns its tasks to waiting bots in the same transaction.

    The held polls of those bots end as soon as the commit is durable. A bot that cannot claim does not make the submit
    fail: it reads the database itself.
    """
    assignment = DirectAssignment(context)

    def run(tx: Tx) -> T:
        tx.effects.claim_follows = True
        result = fn(tx)
        assignment.assign(tx)
        return result

    return context.db.write_unpublished(run, assignment.deliver, assignment.cancel, size=size)


class DirectAssignment:
    """The bots that one submit has reserved, and the runs that it has claimed for them."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._reserved: dict[ConnectedBot, None] = {}
        self._claimed: dict[ConnectedBot, list[Claimed]] = {}

    def assign(self, tx: Tx) -> None:
        """Reserve waiting bots and claim for them, on the writer's thread.

        It may run again when the transaction is retried; bots that are already reserved stay so.
        """
        self._claimed = {}
        for queue in list(tx.effects.enqueued):
            count = tx.effects.enqueued[queue]  # without what a bot of another queue has just taken of it
            bots: list[ConnectedBot] = []
            if self._reserved:
                bots += [bot for bot in self._reserved if bot not in self._claimed and self._serves(bot, queue)]
            more = min(count - len(bots), MAX_ASSIGNED_BOTS - len(self._reserved))
            addresses = tx.effects.addresses_of(queue) if tx.effects.localities else NO_ADDRESSES
            if more > 0:
                new = self._context.hub.reserve(queue, more, addresses)
                self._reserved.update(dict.fromkeys(new))
                bots += new
            if len(bots) > 1:
                # Bots that have the data of some tasks choose first: the others would take those tasks in their order.
                bots.sort(key=lambda bot, near=addresses: (bot.address not in near, bot.bot_id))  # type: ignore[misc]
            left = count
            for index, bot in enumerate(bots):
                left -= self._claim(tx, bot, -(-left // (len(bots) - index)))
        if tx.attempt > 1:
            for bot in [bot for bot in self._reserved if bot not in self._claimed]:
                self._claim(tx, bot, 1)  # an earlier attempt may have committed a claim: the same nonce finds it

    def _serves(self, bot: ConnectedBot, queue: int) -> bool:
        return self._context.hub.queues.serves(bot, queue, bot.claim_request.accepts)

    def _claim(self, tx: Tx, bot: ConnectedBot, share: int) -> int:
        context, (nonce, n, accepts) = self._context, bot.claim_request
        if share < 1:
            return 0
        n = min(n, share, claim_size(bot))
        try:
            tasks = claim_with_nonce(tx, context, bot.bot_id, bot.session, nonce, n, context.now(), accepts=accepts)
        except (NotFound, WrongState):
            return 0  # its session has ended meanwhile; the bot gets that error when it reads the database itself
        self._claimed[bot] = tasks
        return len(tasks)

    def deliver(self, _: object, effects: CommitEffects) -> None:
        """Deliver the claims, on the event loop, after the commit; cancel the reservations of bots that got none."""
        for bot in self._reserved:
            tasks = self._claimed.get(bot)
            if tasks:
                self._deliver(bot, tasks, effects)
            else:
                self._context.hub.cancel_reservation(bot)
        self._context.db.publish(effects)

    def cancel(self) -> None:
        """Cancel the reservations, on the event loop, because the transaction has failed."""
        for bot in self._reserved:
            self._context.hub.cancel_reservation(bot)

    def _deliver(self, bot: ConnectedBot, tasks: list[Claimed], effects: CommitEffects) -> None:
        """End the poll of a bot with its runs; give them back if the poll is gone and the bot has sent another one."""
        hub, (nonce, _, accepts) = self._context.hub, bot.claim_request
        record_claim(self._context, bot, nonce, tasks)
        more = hub.num_partial_submits > 0 or hub.may_have_work(bot, accepts)
        for queue, n in effects.enqueued.items():
            more = more or (n > 0 and self._serves(bot, queue))
        delivered = hub.deliver_claim(bot, tasks, more=more)
        if not delivered and bot.has_given_up(nonce):
            begin_give_back(self._context, bot, after=nonce - 1, before=nonce + 1)


# ---------------------------------------------------------------- giving back


async def give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> None:
    """Give back the runs of claims whose nonces are between these two."""
    if await context.db.read(partial(_runs_between, bot=bot, after=after, before=before)):
        await context.db.write(_give_back(context, bot, after=after, before=before))


def begin_give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> None:
    """As `give_back`, without waiting for it: the handler of the poll may have been cancelled."""
    context.db.write(_give_back(context, bot, after=after, before=before))


def _give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> Callable[[Tx], None]:
    """The transaction."""
    now = context.now()

    def write(tx: Tx) -> None:
        runs = _runs_between(tx, bot, after=after, before=before)
        reports = [GiveBack(run.task_id, run.run, _token(context, run)) for run in runs]
        reporting.report(tx, bot.bot_id, reports, session=bot.session, now=now, ids=context.ids, rules=context.rules)

    return write


def _runs_between(tx: Tx, bot: ConnectedBot, *, after: int, before: int) -> list[TaskRun]:
    return [
        run
        for run in task_run.live_of_bot(tx, bot.bot_id)
        if run.session == bot.session and run.started_at is None and after < run.nonce >> ATTEMPT_BITS < before
    ]


def _token(context: ServerContext, run: TaskRun) -> str:
    return claim_token(context.keys.run_token, bot_id=run.bot_id, session=run.session, nonce=run.nonce)


async def note_request(context: ServerContext, bot: ConnectedBot, nonce: int, received: int) -> bool:
    """Record the request of a bot, and give back the runs of earlier claims that it did not receive, if there are any.

    Whether there were: the bot may have changed in memory meanwhile.
    """
    if nonce >= bot.latest_nonce:
        bot.latest_nonce, bot.latest_received = nonce, received
    if bot.future is not None:
        context.hub.end_abandoned(bot, nonce)
    if received < bot.nonce < nonce:
        await give_back(context, bot, after=received, before=nonce)
        bot.nonce = received
        return True
    return False


def begin_give_back_if_abandoned(context: ServerContext, bot: ConnectedBot, nonce: int) -> bool:
    """Give back what a poll has just claimed if the bot no longer waits for its answer; whether that is so.

    Not awaited: at the moment of the commit no handler may be left that could.
    """
    if not bot.has_given_up(nonce):
        return False
    begin_give_back(context, bot, after=nonce - 1, before=nonce + 1)
    return True


def begin_give_back_unreceived(
    context: ServerContext, bot: ConnectedBot, nonce: int, received: int | None, *, claimed: int
) -> None:
    """Give back what a bot has not received from another server; ``claimed``: its last claim, by the database."""
    if received is not None and received < claimed < nonce:
        begin_give_back(context, bot, after=received, before=nonce)
