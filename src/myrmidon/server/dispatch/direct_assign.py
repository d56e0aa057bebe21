"""A submit that finds a bot waiting claims for it inside its own write and hands the answer over.

So one commit lies between a submit and the start of its command. The desk knows how a claim is made and how large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler.claim import Claimed
from myrmidon.server.context import ServerContext
from myrmidon.server.database import with_db_timeout
from myrmidon.server.dispatch.claims import claim_size, claim_under, record_claim
from myrmidon.server.waiting.connected_bot import Seat
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.effects import CommitEffects

T = TypeVar("T")

MOST_PLACED = 8
"""For how many waiting bots one submit claims; the others are woken and claim for themselves."""


async def place(context: ServerContext, fn: Callable[[Tx], T]) -> T:
    """As ``context.db.write``, for a submit: its tasks go to bots that wait for them, inside the same transaction.

    The bots' held polls are answered as soon as the commit is on disk: one commit lies between the submit and
    the start. What goes wrong for a bot harms the submit in no way: the bot looks for itself then.
    """
    placing = Placing(context)

    def run(tx: Tx) -> T:
        result = fn(tx)
        placing.place(tx)
        return result

    writing = context.db.begin_write(run)
    writing.add_done_callback(placing.done)
    return (await with_db_timeout(asyncio.shield(writing)))[0]


class Placing:
    """The bots that one submit has reserved, and what it claimed for them."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._reserved: dict[Seat, None] = {}
        self._claimed: dict[Seat, list[Claimed]] = {}

    def place(self, tx: Tx) -> None:
        """On the writer's thread. It may run again: the bots that are reserved already stay so."""
        self._claimed = {}
        for queue, count in list(tx.effects.enqueued.items()):
            seats = [seat for seat in self._reserved if queue in seat.line.queues and seat not in self._claimed]
            more = min(count - len(seats), MOST_PLACED - len(self._reserved))
            if more > 0:
                seats += self._context.hub.reserve(queue, more)
                self._reserved.update(dict.fromkeys(seats))
            seats.sort(key=lambda seat: seat.bot_id)
            left = count
            for number, seat in enumerate(seats):
                left -= self._claim(tx, seat, -(-left // (len(seats) - number)))
        if tx.attempt > 1:
            for seat in [seat for seat in self._reserved if seat not in self._claimed]:
                self._claim(tx, seat, 1)  # the commit in doubt may have claimed for it: the same nonce finds out

    def _claim(self, tx: Tx, seat: Seat, share: int) -> int:
        context, (nonce, n) = self._context, seat.claim
        if share < 1:
            return 0
        n = min(n, share, claim_size(seat))
        try:
            tasks = claim_under(tx, context, seat.bot_id, seat.session, nonce, n, context.now())
        except (NotFound, WrongState):
            return 0  # its session has ended meanwhile: the bot will hear of it when it looks for itself
        self._claimed[seat] = tasks
        for one in tasks:
            if one.work.queue in tx.effects.enqueued:
                tx.effects.enqueued[one.work.queue] -= 1
        return len(tasks)

    def done(self, writing: asyncio.Future[tuple[T, CommitEffects]]) -> None:
        """On the event loop, after the commit or after it has failed."""
        hub = self._context.hub
        good = not writing.cancelled() and writing.exception() is None
        effects = writing.result()[1] if good else CommitEffects()
        effects.enqueued = {queue: n for queue, n in effects.enqueued.items() if n > 0}
        for seat in self._reserved:
            tasks = self._claimed.get(seat) if good else None
            if tasks:
                record_claim(self._context, seat, seat.claim[0], tasks)
                more = hub.may_have_work(seat) or not seat.line.queues.isdisjoint(effects.enqueued)
                hub.hand_over(seat, (tasks, more or hub.num_unfinished > 0))
            else:
                hub.settle(seat)
        self._context.db.publish(effects)
