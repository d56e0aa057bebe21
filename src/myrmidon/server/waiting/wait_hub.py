"""Held polls of bots and waiting clients, in memory only: what is lost here costs time, not correctness.

A bot that finds nothing to do has its poll held here. That costs a future and a timer, but no asyncio task and no
database access, so that one server can hold 20,000 idle bots. Bots that serve the same queues share one
``WaitingBots``; of those whose poll accepts the task, the one that has waited longest is woken first. Clients wait here
too, for tasks to end and for logs and events to get new data.

Everything here is a hint. A bot that is woken reads the database; a wakeup that was missed is made up for by the check
of its queues that every server makes every few seconds, or by the end of the poll.

All methods run on the event loop, except ``reserve``, which a submit calls on a writer's thread inside its transaction.
The lock protects the waiting bots from that.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from myrmidon.model.states import FINAL
from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler.claim import Claimed
from myrmidon.server.waiting.connected_bots import (
    RECHECK,
    TIMED_OUT,
    ClaimRequest,
    ConnectedBot,
    ServedQueues,
    WaitingBots,
    WakeReason,
    Wakeup,
)
from myrmidon.server.waiting.log_throttle import LogThrottle
from myrmidon.server.waiting.result_stream import ResultStream
from myrmidon.server.waiting.watch import GrowingWatch, Subscriptions, Watch, discard
from myrmidon.store.engine.effects import CommitEffects

NO_ADDRESSES: frozenset[str] = frozenset()
MAX_FORWARDS = 4
"""How often a wakeup is forwarded to another bot when the woken one cannot take the tasks."""
_FINAL = frozenset(str(state) for state in FINAL)
_KILL_REQUESTED = '"killing":1'
"""Part of the JSON body of a task's event."""
_JOB = re.compile(r'"job":(\d+)')


def failures_of(job_id: int) -> tuple[str, int]:
    """What is notified when a task of a job ends without success: a key for ``watch_ends``."""
    return "failures", job_id


class WaitHub:
    """Connected bots, held polls, and clients that wait for tasks, logs and events."""

    def __init__(self) -> None:
        self.bots: dict[str, ConnectedBot] = {}
        self.stopping = False
        self.log_throttle = LogThrottle()
        self.active_release = ""
        """The digest of the zip that bots are to run."""
        self.canary_release = ""
        """The digest of a newer zip that goes to a share of the bots first; empty if there is none."""
        self.canary_share = 0
        """The percentage of bots that get it."""
        self.proven_release = ""
        """The digest of a zip that has proved itself on a bot and is to be promoted."""
        self.log_rights: OrderedDict[tuple[str, int, int, str], None] = OrderedDict()
        """Bot, task, run and token that were checked; they stay valid, as a run never changes its bot."""
        self.on_new_queue: Callable[[int, int], None] | None = None
        """Called for a queue that is not known here, with the number of its new tasks: find the bots that serve it."""
        self.on_events: Callable[[], None] | None = None
        """Called before those that watch for events are notified."""
        self._lock = Lock()
        self.queues = ServedQueues(self._lock)
        self._known_queues: set[int] = set()
        self.queue_seq = 0
        """Grows when the bots of a queue are recorded. Read it before a bot is read, for ``bot.outdated`` after it."""
        self._addresses_of_new_queues: dict[int, frozenset[str]] = {}
        """For queues whose bots are being looked up: where the data of their tasks is."""
        self._unclaimed_work: dict[int, int] = {}
        """Queues that may have tasks for which no bot waited, with the ``work_seq`` at which the last ones came."""
        self.work_seq = 0
        """Grows when tasks come for which no bot waits. Read it before a claim, for ``mark_empty`` after it."""
        self._last_wait_number = 0
        self._polls_by_held_task: dict[int, set[tuple[ConnectedBot, asyncio.Future[Wakeup]]]] = {}
        """By poll and not by bot: the clean-up of a poll that was replaced must not remove its successor."""
        self._task_ends = Subscriptions()
        self._updates = Subscriptions()
        self.num_waiting = 0
        self.result_streams: dict[str, ResultStream] = {}
        """Open streams of results by id."""
        self.num_event_streams = 0
        """Open event streams. Without one, events need not get their sequence numbers at once."""
        self.num_partial_submits = 0
        """Submits that have another part to write: a bot that has claimed everything there is should poll again."""

    # ------------------------------------------------------------ connected bots

    def register(
        self, bot_id: str, session: int, queues: Iterable[int], *, function_queues: Iterable[int] = ()
    ) -> ConnectedBot:
        """Add or update a bot that was just read from the database; a held poll of an older session ends.

        ``function_queues``: those of its queues that hold functions.
        """
        self.queues.add_function_queues(function_queues)
        bot = self.bots.get(bot_id)
        if bot is not None and bot.session != session:
            self._unregister(bot)
            bot = None
        peers = self.queues.peers_for(frozenset(queues))  # after _unregister, which may remove the same peers
        if bot is None:
            bot = self.bots[bot_id] = ConnectedBot(bot_id, session, peers)
            peers.num_connected += 1
        else:
            self.queues.move(bot, peers)
        bot.outdated = False
        return bot

    def forget(self, bot_id: str) -> None:
        """Remove a bot that is gone. Its next request reads it from the database."""
        bot = self.bots.pop(bot_id, None)
        if bot is not None:
            self._unregister(bot)

    def forget_session(self, bot_id: str, session: int) -> None:
        """Remove a session that has ended; a newer session of the bot stays."""
        bot = self.bots.get(bot_id)
        if bot is not None and bot.session == session:
            self.forget(bot_id)

    def recheck(self, bot_id: str) -> None:
        """Let a bot be read from the database again, at once if its poll is held."""
        bot = self.bots.get(bot_id)
        if bot is not None:
            bot.outdated = True
            self._end_poll(bot, RECHECK)

    def _unregister(self, bot: ConnectedBot) -> None:
        self._end_poll(bot, RECHECK)
        self.queues.leave(bot.peers)

    # ------------------------------------------------------------ held polls

    async def wait(
        self,
        bot: ConnectedBot,
        seconds: float,
        *,
        nonce: int,
        n: int,
        accepts: Accepts = Accepts.ANY,
        holds: Sequence[int] = (),
    ) -> Wakeup:
        """Hold a bot's poll until there is something for it, or time is up.

        A second poll of the same bot means that the connection of the first was lost, so the first ends. The poll of a
        bot that is outdated is not held: it would miss tasks of queues that are not known to be its own.
        """
        if self.stopping or seconds <= 0:
            return TIMED_OUT
        if bot.outdated:
            return RECHECK
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Wakeup] = loop.create_future()
        timer = loop.call_later(seconds, self._on_timeout, bot, future)
        self.num_waiting += 1
        for task_id in holds:
            self._polls_by_held_task.setdefault(task_id, set()).add((bot, future))
        self._attach_poll(bot, future, ClaimRequest(nonce, n, accepts))
        try:
            return await future
        finally:
            timer.cancel()
            self.num_waiting -= 1
            self._detach_poll(bot, future)
            for task_id in holds:
                discard(self._polls_by_held_task, task_id, (bot, future))

    def _attach_poll(self, bot: ConnectedBot, future: asyncio.Future[Wakeup], claim_request: ClaimRequest) -> None:
        with self._lock:
            before, bot.future = bot.future, future
            if not bot.reserved:
                self._last_wait_number += 1
                bot.peers.discard(bot)
                bot.wait_number, bot.claim_request = self._last_wait_number, claim_request
                if claim_request.n > 0:
                    bot.peers.add(bot)
        if before is not None and not before.done():
            before.set_result(TIMED_OUT)

    def _detach_poll(self, bot: ConnectedBot, future: asyncio.Future[Wakeup]) -> None:
        with self._lock:
            if bot.future is future:
                bot.future = None
                bot.peers.discard(bot)

    def _on_timeout(self, bot: ConnectedBot, future: asyncio.Future[Wakeup]) -> None:
        if bot.future is future and not bot.reserved and not future.done():
            future.set_result(TIMED_OUT)

    def _end_poll(self, bot: ConnectedBot, wakeup: Wakeup) -> None:
        """End the held poll, if there is one and no submit is claiming for it."""
        with self._lock:
            future = bot.future
            if future is None or future.done() or bot.reserved:
                return
            bot.peers.discard(bot)
        future.set_result(wakeup)

    def end_abandoned(self, bot: ConnectedBot, nonce: int) -> None:
        """End a held poll that is older than a request of the bot with this nonce: nobody reads its answer."""
        if bot.future is not None and bot.claim_request.nonce < nonce:
            self._end_poll(bot, TIMED_OUT)

    def num_waiting_for(self, queue: int) -> int:
        """The number of waiting bots that would take a task of a queue."""
        return self.queues.num_waiting(queue)

    def wake(self, queue: int, n: int = 1, *, forward_count: int = 0, addresses: frozenset[str] = NO_ADDRESSES) -> int:
        """Wake up to n waiting bots of a queue, those at the addresses first, longest waiting first; how many."""
        wakeup = Wakeup(WakeReason.WORK, queue, forward_count)
        if self._addresses_of_new_queues:
            addresses |= self._addresses_of_new_queues.pop(queue, NO_ADDRESSES)
        num_woken = 0
        while num_woken < n:
            with self._lock:
                bot = self.queues.next_waiting(queue, addresses)
                if bot is None:
                    break
                bot.peers.discard(bot)
            future = bot.future
            if future is not None and not future.done():
                future.set_result(wakeup)
                num_woken += 1
        if num_woken < n:
            self.work_seq += 1
            self._unclaimed_work[queue] = self.work_seq
        return num_woken

    # ------------------------------------------------------------ tasks for which no bot waited

    def may_have_work(self, bot: ConnectedBot, accepts: Accepts = Accepts.ANY) -> bool:
        """Whether a claim is worth a transaction: one of the bot's queues may have tasks that it accepts."""
        work = self._unclaimed_work
        return bool(work) and not work.keys().isdisjoint(self.queues.accepted(bot, accepts))

    def mark_empty(self, bot: ConnectedBot, work_seq: int, accepts: Accepts = Accepts.ANY) -> None:
        """A claim of a bot found its queues empty. Tasks that came after ``work_seq`` still count."""
        work = self._unclaimed_work
        if not work:
            return
        empty = [queue for queue, seq in work.items() if seq <= work_seq and self.queues.serves(bot, queue, accepts)]
        for queue in empty:
            del work[queue]

    def queues_waited_for(self) -> list[int]:
        """The queues whose tasks a waiting bot would take."""
        return self.queues.waited_for()

    def knows(self, queue: int) -> bool:
        """Whether the bots that serve a queue were looked up."""
        return queue in self._known_queues

    def add_queue(self, queue: int, bot_ids: Collection[str], *, of_functions: bool = False) -> None:
        """Record that these bots serve a queue that was not known here."""
        self._known_queues.add(queue)
        self.queue_seq += 1
        if of_functions:
            self.queues.add_function_queues([queue])
        extended: dict[WaitingBots, WaitingBots] = {}
        for bot_id in bot_ids:
            bot = self.bots.get(bot_id)
            if bot is not None and queue not in bot.peers.queues:
                peers = bot.peers
                if peers not in extended:
                    extended[peers] = self.queues.peers_for(peers.queues | {queue})
                self.queues.move(bot, extended[peers])

    # ------------------------------------------------------------ direct assignment

    def reserve(self, queue: int, n: int, addresses: frozenset[str] = NO_ADDRESSES) -> list[ConnectedBot]:
        """Reserve up to n waiting bots, those at the addresses first, to claim for them in the caller's transaction.

        Neither a timeout nor a wakeup ends their polls until ``deliver_claim`` or ``cancel_reservation``.
        """
        reserved: list[ConnectedBot] = []
        with self._lock:
            while len(reserved) < n:
                bot = self.queues.next_waiting(queue, addresses)
                if bot is None:
                    break
                bot.peers.discard(bot)
                if bot.future is not None and not bot.future.done():
                    bot.reserved = True
                    reserved.append(bot)
        return reserved

    def deliver_claim(self, bot: ConnectedBot, tasks: list[Claimed], *, more: bool) -> bool:
        """End the poll of a reserved bot with runs whose claim is committed; whether there is still a poll.

        If its connection was lost meanwhile, the next request of the bot gets the same runs or gives them back.
        """
        bot.reserved = False
        if bot.future is None or bot.future.done():
            return False
        bot.future.set_result(Wakeup(WakeReason.CLAIMED, claim=(tasks, more)))
        return True

    def cancel_reservation(self, bot: ConnectedBot) -> None:
        """End a reservation without a claim; the bot reads the database itself."""
        bot.reserved = False
        self._end_poll(bot, RECHECK)

    # ------------------------------------------------------------ commits

    def notify_commit(self, effects: CommitEffects) -> None:
        """Wake the bots and clients that wait for what was committed, here or on another server."""
        for queue, n in effects.enqueued.items():
            self.notify_work(queue, n, effects.addresses_of(queue) if effects.localities else NO_ADDRESSES)
        if effects.events and (self._task_ends.waiters or self._polls_by_held_task or self._updates.waiters):
            self._notify_tasks(effects.events)

    def notify_work(self, queue: int, n: int, addresses: frozenset[str] = NO_ADDRESSES) -> None:
        """Wake bots for n tasks of a queue, those at the addresses first; with 0 only learn who serves the queue."""
        if queue in self._known_queues or self.on_new_queue is None:
            self.wake(queue, n, addresses=addresses)
            return
        if addresses:
            self._addresses_of_new_queues[queue] = addresses
        self.on_new_queue(queue, n)

    def _notify_tasks(self, events: Iterable[tuple[Any, ...]]) -> None:
        for subject, _, _, _, state, body in events:
            if self._updates.waiters:
                self._updates.notify(("task", subject))
            final = state in _FINAL
            if final:
                self._task_ends.notify(subject)
                if state != "SUCCEEDED" and self._task_ends.waiters and (job := _JOB.search(body)) is not None:
                    self._task_ends.notify(failures_of(int(job[1])))
            if subject in self._polls_by_held_task and (final or _KILL_REQUESTED in body or state == "READY"):
                for bot, _ in tuple(self._polls_by_held_task[subject]):
                    self._end_poll(bot, RECHECK)

    # ------------------------------------------------------------ clients

    def watch_ends(self, keys: Collection[object]) -> Watch:
        """Watch for the end of one of these tasks or jobs, or for ``failures_of`` a job."""
        return self._task_ends.watch(keys)

    @contextmanager
    def open_result_stream(self, stream_id: str, caller: str) -> Iterator[ResultStream]:
        """A stream of results of a growing number of tasks; calls that add tasks find it by its id."""
        stream = ResultStream(stream_id, caller, GrowingWatch(self._task_ends))
        self.result_streams[stream_id] = stream
        try:
            yield stream
        finally:
            del self.result_streams[stream_id]
            stream.close()

    def watch_updates(self, keys: Collection[object]) -> Watch:
        """Watch for new data under one of these keys.

        The key of a log is (task id, run), that of a task's events ("task", task id), that of the event stream
        "events".
        """
        return self._updates.watch(keys)

    def notify(self, key: object) -> None:
        """Wake the clients that watch for updates of this key."""
        if key == "events" and self.on_events is not None:
            self.on_events()
        self._updates.notify(key)

    def stop(self) -> None:
        """End all held polls and watches, because the server stops."""
        self.stopping = True
        for bot in tuple(self.bots.values()):
            self._end_poll(bot, TIMED_OUT)
        self._task_ends.close()
        self._updates.close()
