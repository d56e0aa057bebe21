"""Who waits for what, in memory only: losing it costs time, never truth.

A bot that finds nothing to do has its reply held here. It costs a future and a timer, no task and no look
at the database: 20,000 idle bots are the aim. Bots that serve the same queues stand in one *line*, the one
that has waited longest in front. Clients wait here too, for tasks to end and for logs and events to grow.

What is known here are hints. Whoever is woken looks at the database; whoever is forgotten is found by the
look that every server takes at its queues every few seconds, or by the end of its own poll.

Everything happens on the event loop but ``reserve``, which a submit calls on a writer's thread in the middle of its
transaction; hence the lock around the lines.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Lock
from typing import Any, Self, TypeAlias

from myrmidon.model.states import FINAL
from myrmidon.server.waiting.connected_bot import LOOK, TIME_IS_UP, Line, Seat, Woken
from myrmidon.server.waiting.log_throttle import Floods
from myrmidon.store.engine.effects import CommitEffects

Waiters: TypeAlias = dict[Any, set[asyncio.Future[bool]]]
MOST_HOPS = 4
"""How often a wake is passed on by bots that may not take what there is."""
_FINAL = frozenset(str(state) for state in FINAL)
_KILLING = '"killing":1'


class Watch:
    """Ears for some things, open from the moment it is made: look after that, then wait, and nothing is missed."""

    __slots__ = ("_future", "_hub", "_keys", "_where")

    def __init__(self, hub: Hub, where: Waiters, keys: Collection[Any]) -> None:
        self._hub = hub
        self._where = where
        self._keys = keys
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            where.setdefault(key, set()).add(self._future)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._keys:
            _drop(self._where, key, self._future)

    async def wait(self, seconds: float) -> bool:
        """Until something was heard since the watch was made; False when time was up, or the server stops."""
        if self._hub.stopping or seconds <= 0:
            return self._future.done()
        timer = asyncio.get_running_loop().call_later(seconds, _in_vain, self._future)
        try:
            return await self._future
        finally:
            timer.cancel()


class Hub:
    """Everyone whose answer is held back."""

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}
        self.stopping = False
        self.floods = Floods()
        self.wanted = ""
        """The digest of the zip that every bot shall run."""
        self.canary = ""
        """The digest of a newer zip that goes to a share of the bots first; empty when there is none."""
        self.canary_share = 0
        """So many of a hundred bots get it."""
        self.proven = ""
        """The digest of a zip that a bot has shown to be good."""
        self.log_rights: OrderedDict[tuple[str, int, int, str], None] = OrderedDict()
        """Bots with runs and tokens that were checked: who has a run never changes."""
        self.on_new_queue: Callable[[int, int], None] | None = None
        """Called with a queue that no wake was ever for, and how many tasks it got: who serves it must be read."""
        self._lock = Lock()
        self._lines: dict[frozenset[int], Line] = {}
        self._by_queue: defaultdict[int, dict[Line, None]] = defaultdict(dict)
        self._learned: set[int] = set()
        self._full: dict[int, int] = {}
        """Queues that may have work which nobody waited for, with the beat at which that was last heard."""
        self._beat = 0
        self._number = 0
        self._holders: dict[int, set[Seat]] = {}
        self._watches: Waiters = {}
        self._growing: Waiters = {}
        self.num_waiting = 0
        self.num_streams = 0
        """Open streams of events: without one, nobody needs to number events at once."""
        self.num_unfinished = 0
        """Submits of which another part is about to come: a bot that gets the last of what there is asks again."""

    # ------------------------------------------------------------ seats

    def sit(self, bot_id: str, session: int, queues: Iterable[int]) -> Seat:
        """A bot that was looked up in the database; an earlier session's held poll is answered."""
        seat = self.seats.get(bot_id)
        if seat is not None and seat.session != session:
            self._rise(seat)
            seat = None
        line = self._line(frozenset(queues))  # not before: the last one to rise takes its line away
        if seat is None:
            seat = self.seats[bot_id] = Seat(bot_id, session, line)
            line.num_seats += 1
        else:
            self._change_line(seat, line)
        seat.outdated = False
        return seat

    def forget(self, bot_id: str) -> None:
        """A bot that is gone; should it come again, the database knows it."""
        seat = self.seats.pop(bot_id, None)
        if seat is not None:
            self._rise(seat)

    def forget_session(self, bot_id: str, session: int) -> None:
        """A session that has ended; a newer one of the same bot stays."""
        seat = self.seats.get(bot_id)
        if seat is not None and seat.session == session:
            self.forget(bot_id)

    def look(self, bot_id: str) -> None:
        """Something about a bot has changed: it looks at the database, at once if its poll is held."""
        seat = self.seats.get(bot_id)
        if seat is not None:
            seat.outdated = True
            self._answer(seat, LOOK)

    def _rise(self, seat: Seat) -> None:
        self._answer(seat, LOOK)
        self._leave_line(seat)

    def _line(self, queues: frozenset[int]) -> Line:
        line = self._lines.get(queues)
        if line is None:
            with self._lock:
                line = self._lines[queues] = Line(queues)
                for queue in queues:
                    self._by_queue[queue][line] = None
        return line

    def _change_line(self, seat: Seat, line: Line) -> None:
        if seat.line is line:
            return
        with self._lock:
            waits = seat in seat.line.waiting
            if waits:
                del seat.line.waiting[seat]
                line.waiting[seat] = None
        line.num_seats += 1
        self._leave_line(seat)
        seat.line = line

    def _leave_line(self, seat: Seat) -> None:
        """Drop a line that nobody stands in any more, or bots pinned by their ids would leave one each."""
        line = seat.line
        line.num_seats -= 1
        if line.num_seats == 0:
            with self._lock:
                self._lines.pop(line.queues, None)
                for queue in line.queues:
                    self._by_queue[queue].pop(line, None)
                    if not self._by_queue[queue]:
                        del self._by_queue[queue]

    # ------------------------------------------------------------ bots that wait

    async def wait(self, seat: Seat, seconds: float, *, nonce: int, n: int, holds: Sequence[int] = ()) -> Woken:
        """Hold a bot's poll until there is something for it, or time is up.

        A second poll of the same bot means that the first one's connection is lost: the first is let go.
        """
        if self.stopping or seconds <= 0:
            return TIME_IS_UP
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Woken] = loop.create_future()
        timer = loop.call_later(seconds, self._time_is_up, seat, future)
        self.num_waiting += 1
        for task_id in holds:
            self._holders.setdefault(task_id, set()).add(seat)
        self._hold(seat, future, nonce, n)
        try:
            return await future
        finally:
            timer.cancel()
            self.num_waiting -= 1
            self._let_go(seat, future)
            for task_id in holds:
                self._drop_holder(task_id, seat)

    def _hold(self, seat: Seat, future: asyncio.Future[Woken], nonce: int, n: int) -> None:
        with self._lock:
            before, seat.future = seat.future, future
            if not seat.reserved:
                self._number += 1
                seat.number, seat.claim = self._number, (nonce, n)
                seat.line.waiting.pop(seat, None)
                if n > 0:
                    seat.line.waiting[seat] = None
        if before is not None and not before.done():
            before.set_result(TIME_IS_UP)

    def _let_go(self, seat: Seat, future: asyncio.Future[Woken]) -> None:
        with self._lock:
            if seat.future is future:
                seat.future = None
                seat.line.waiting.pop(seat, None)

    def _drop_holder(self, task_id: int, seat: Seat) -> None:
        _drop(self._holders, task_id, seat)

    def _time_is_up(self, seat: Seat, future: asyncio.Future[Woken]) -> None:
        if seat.future is future and not seat.reserved and not future.done():
            future.set_result(TIME_IS_UP)

    def _answer(self, seat: Seat, woken: Woken) -> bool:
        """Let a held poll go on; False when there is none, or a submit is claiming for it."""
        with self._lock:
            future = seat.future
            if future is None or future.done() or seat.reserved:
                return False
            seat.line.waiting.pop(seat, None)
        future.set_result(woken)
        return True

    def waiting(self, queue: int) -> int:
        """How many bots of a queue wait."""
        return sum(len(line.waiting) for line in self._by_queue.get(queue, ()))

    def crowd(self, seat: Seat) -> int:
        """How many bots wait that stand in the same line as this one."""
        return len(seat.line.waiting)

    def wake(self, queue: int, n: int = 1, *, hops: int = 0) -> int:
        """Wake up to n waiting bots of a queue, the longest waiting first; how many those were."""
        woken = Woken(queue, hops)
        done = 0
        while done < n:
            with self._lock:
                seat = self._first(queue)
                if seat is None:
                    break
                del seat.line.waiting[seat]
            future = seat.future
            if future is not None and not future.done():
                future.set_result(woken)
                done += 1
        if done < n:
            self._beat += 1
            self._full[queue] = self._beat
        return done

    def _first(self, queue: int) -> Seat | None:
        """The longest waiting bot over all lines of a queue."""
        fronts = [next(iter(line.waiting)) for line in self._by_queue.get(queue, ()) if line.waiting]
        return min(fronts, key=_by_number, default=None)

    # ------------------------------------------------------------ work that nobody waited for

    @property
    def beat(self) -> int:
        """A moment, for ``emptied``."""
        return self._beat

    def may_have_work(self, seat: Seat) -> bool:
        """Whether a look at the bot's queues is worth its while."""
        return bool(self._full) and not self._full.keys().isdisjoint(seat.line.queues)

    def emptied(self, seat: Seat, beat: int) -> None:
        """A bot found its queues empty at that beat; what was heard since then still counts."""
        for queue in [queue for queue in self._full if queue in seat.line.queues and self._full[queue] <= beat]:
            del self._full[queue]

    def queues_waited_for(self) -> list[int]:
        """The queues of all waiting bots."""
        with self._lock:
            return sorted({queue for line in self._lines.values() if line.waiting for queue in line.queues})

    def learn(self, queue: int, bots: Collection[str]) -> None:
        """These bots serve a queue that is new here."""
        self._learned.add(queue)
        longer: dict[Line, Line] = {}
        for bot_id in bots:
            seat = self.seats.get(bot_id)
            if seat is not None and queue not in seat.line.queues:
                line = seat.line
                if line not in longer:
                    longer[line] = self._line(line.queues | {queue})
                self._change_line(seat, longer[line])

    # ------------------------------------------------------------ a submit that claims for a waiting bot

    def reserve(self, queue: int, n: int) -> list[Seat]:
        """Take up to n waiting bots out of their lines, to claim for them in the transaction under way.

        Their polls end neither by time nor by another wake until ``hand_over`` or ``settle``.
        """
        taken: list[Seat] = []
        with self._lock:
            while len(taken) < n:
                seat = self._first(queue)
                if seat is None:
                    break
                del seat.line.waiting[seat]
                if seat.future is not None and not seat.future.done():
                    seat.reserved = True
                    taken.append(seat)
        return taken

    def hand_over(self, seat: Seat, reply: Any) -> None:
        """The claim for a reserved bot is on disk: its poll is answered with it.

        If its connection was lost meanwhile, it asks again with the same nonce and gets the same runs.
        """
        seat.reserved = False
        if seat.future is not None and not seat.future.done():
            seat.future.set_result(Woken(reply=reply))

    def settle(self, seat: Seat) -> None:
        """A submit failed, or claimed nothing, for a reserved bot: it looks for itself."""
        seat.reserved = False
        self._answer(seat, LOOK)

    # ------------------------------------------------------------ what was committed

    def tell(self, effects: CommitEffects) -> None:
        """Wake whoever waits for what was just committed, here or on another server."""
        for queue, n in effects.enqueued.items():
            self.work_came(queue, n)
        if effects.events and (self._watches or self._holders or self._growing):
            self._tell_of(effects.events)

    def work_came(self, queue: int, n: int) -> None:
        if queue in self._learned or self.on_new_queue is None:
            self.wake(queue, n)
        else:
            self.on_new_queue(queue, n)

    def _tell_of(self, told: Iterable[tuple[Any, ...]]) -> None:
        for subject, _, _, _, state, body in told:
            if self._growing:
                self.grown(("task", subject))
            final = state in _FINAL
            if final:
                for future in self._watches.pop(subject, ()):
                    _came(future)
            if subject in self._holders and (final or _KILLING in body or state == "READY"):
                for seat in tuple(self._holders[subject]):
                    self._answer(seat, LOOK)

    # ------------------------------------------------------------ clients

    def watch_ends(self, task_ids: Collection[int]) -> Watch:
        """Hears when one of these tasks has ended."""
        return Watch(self, self._watches, task_ids)

    def watch_growth(self, things: Collection[object]) -> Watch:
        """Hears when one of these things has grown.

        A log is (task id, run), a task's story ("task", task id), the stream of events "events".
        """
        return Watch(self, self._growing, things)

    def grown(self, thing: object) -> None:
        """A log or the stream of events has grown."""
        for future in self._growing.pop(thing, ()):
            _came(future)

    def look_all(self) -> None:
        """Something has changed that was not told here: whoever waits for a task looks for itself."""
        for waiting in list(self._watches.values()):
            for future in tuple(waiting):
                _came(future)
        for holders in list(self._holders.values()):
            for seat in tuple(holders):
                self._answer(seat, LOOK)

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        """Answer everybody at once: the server goes down."""
        self.stopping = True
        for seat in tuple(self.seats.values()):
            self._answer(seat, TIME_IS_UP)
        for where in (self._watches, self._growing):
            for waiting in list(where.values()):
                for future in tuple(waiting):
                    _in_vain(future)


def _by_number(seat: Seat) -> int:
    return seat.number


def _came(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)


def _in_vain(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


def _drop(where: dict[Any, set[Any]], key: Any, waiting: Any) -> None:
    """Take one out of those who wait for a thing, and the thing with the last of them."""
    there = where.get(key)
    if there is not None:
        there.discard(waiting)
        if not there:
            del where[key]
