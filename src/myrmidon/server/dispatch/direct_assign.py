"""Direct assignment: a submit claims its tasks for waiting bots inside its own transaction.

So only one commit lies between a submit and the start of its command.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler.claim import Claimed
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import claim_size, claim_with_nonce, record_claim
from myrmidon.server.dispatch.give_back import begin_give_back
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.server.waiting.wait_hub import NO_ADDRESSES
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.effects import CommitEffects

T = TypeVar("T")

MAX_ASSIGNED_BOTS = 8
"""For how many waiting bots one submit claims; other bots are woken and claim for themselves."""


def write_and_assign(context: ServerContext, fn: Callable[[Tx], T], *, size: int = 1) -> Awaitable[T]:
    """Like ``context.db.write``, for a submit: assigns its tasks to waiting bots in the same transaction.

    The held polls of those bots end as soon as the commit is durable. A bot that cannot claim does not make the submit
    fail: it reads the database itself.
    """
    assignment = DirectAssignment(context)

    def run(tx: Tx) -> T:
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
        if not delivered and bot.latest_nonce > nonce:
            begin_give_back(self._context, bot, after=nonce - 1, before=nonce + 1)
