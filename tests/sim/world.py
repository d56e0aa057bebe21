"""The world of a simulation: virtual time, a network that errs, and servers that die.

Whole transactions are the atoms. A call is an event at the moment it arrives at a server, where it runs to its end;
its reply is another event. Everything that is random comes from one generator, so a seed is a whole history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any

from myrmidon.model.errors import MyrmidonError, StoreError, StoreUnavailable
from myrmidon.model.ids import IdSource
from myrmidon.scheduler.maintenance import TIMED, Maintenance, Step, run_step
from myrmidon.scheduler.outages import record_alive
from myrmidon.scheduler.policy import Rules, may_sweep
from myrmidon.store.engine.db import ConnectionLost, Db, Dialect, LostReply
from myrmidon.store.tables import chunked_work
from tests.sim.faults import SECOND, Faults

START = 1_767_225_600_000_000
TIMEOUT = 5 * SECOND


class Violation(AssertionError):
    """A promise was broken; the seed tells the rest."""


class Killed(BaseException):
    """A server's process dies here and now, in the middle of whatever it does."""


class Actor:
    """Whoever makes calls. What was sent or set by an earlier life (``epoch``) no longer concerns it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.frozen_until = 0
        self.sent = 0
        self.arrived = 0


class Call:
    """One remote call with all its repetitions: the same words, whichever server hears them."""

    __slots__ = ("actor", "answered", "done", "epoch", "fn", "kind", "number", "tries")

    def __init__(self, actor: Actor, kind: str, fn: Callable[[Server], Any], done: Callable[[Any], None]) -> None:
        self.actor = actor
        self.epoch = actor.epoch
        self.kind = kind
        self.fn = fn
        self.done = done
        self.tries = 0
        self.number = 0
        self.answered = False


class World:
    """Time, the network and the servers."""

    def __init__(self, seed: int, rules: Rules, *, verbose: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.rules = rules
        self.faults = Faults(self.rng)
        self.now = START
        self.servers: list[Server] = []
        self.last_ids: dict[int, int] = {}
        self.events = 0
        self.epoch_of_play = 0
        self.after_call: Callable[[Server, str], None] = lambda server, kind: None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._hash = hashlib.sha256()
        self._verbose = verbose

    # -- time

    def after(self, delay: float, fn: Callable[..., None], *args: Any) -> None:
        self.at(self.now + int(delay * SECOND), fn, *args)

    def at(self, when: int, fn: Callable[..., None], *args: Any) -> None:
        self._pushed += 1
        heappush(self._heap, (max(when, self.now), self._pushed, fn, args))

    def run(self, until: int, each: Callable[[], None]) -> None:
        """Let time pass; ``each`` is called after every event."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, fn, args = heappop(self._heap)
            self.events += 1
            fn(*args)
            each()
        self.now = max(self.now, until)

    def jump(self, delay: int) -> None:
        """Let time pass in which nothing happens; what was planned happens late."""
        self.now += delay

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # -- history

    def tell(self, text: str) -> None:
        line = f"{(self.now - START) / SECOND:12.6f} {text}"
        self._hash.update(line.encode())
        if self._verbose:
            print(line)

    def history(self) -> str:
        return self._hash.hexdigest()

    # -- network

    def call(self, actor: Actor, kind: str, fn: Callable[[Server], Any], done: Callable[[Any], None]) -> None:
        """Call a server, again and again until it answers. ``fn`` is what the server does with it."""
        self._send(Call(actor, kind, fn, done))

    def _send(self, call: Call) -> None:
        rng, faults = self.rng, self.faults
        call.tries += 1
        actor = call.actor
        actor.sent += 1
        call.number = actor.sent
        self.after(TIMEOUT / SECOND, self._timeout, call, call.tries)
        if faults.strikes(rng, "request lost"):
            return
        delay = 0.002 + 0.02 * rng.random()
        if faults.strikes(rng, "call delayed"):
            delay += rng.choice((1.0, 6.0, 40.0)) * rng.random()
        if faults.strikes(rng, "call reordered"):
            delay += 2.0 * rng.random()
        server = rng.choice(self.servers)
        self.after(delay, self._arrive, call, call.tries, call.number, server)
        if faults.strikes(rng, "call duplicated"):
            again = rng.choice(self.servers)
            self.after(delay + rng.choice((0.01, 3.0, 30.0)) * rng.random(), self._arrive, call, 0, call.number, again)

    def _arrive(self, call: Call, tries: int, number: int, server: Server) -> None:
        call.actor.arrived = max(call.actor.arrived, number)
        if not server.up or server.refuses:
            self.faults.note("calls refused by a server")
            if tries:
                self.after(1 + 5 * self.rng.random(), self._timeout, call, tries)
            return
        try:
            reply = server.do(call.kind, call.fn)
        except Killed:
            server.die()
            return
        except LostReply:
            self.tell(f"{call.actor.name} {call.kind} {server.name} done, unheard")
            return
        except StoreError as error:
            if not self.faults.on:
                raise Violation(f"the store failed without a fault: {error}") from error
            self.tell(f"{call.actor.name} {call.kind} {server.name} {error.code}")
            if tries:
                self.after(0.2 + self.rng.random(), self._timeout, call, tries)
            return
        if self.faults.strikes(self.rng, "reply lost"):
            return
        self.after(0.002 + 0.02 * self.rng.random(), self._reply, call, server, server.epoch, reply)

    def _reply(self, call: Call, server: Server, epoch: int, reply: Any) -> None:
        actor = call.actor
        if server.epoch != epoch:
            self.faults.note("calls gone with a server")
            return
        if actor.frozen_until > self.now:
            self.at(actor.frozen_until, self._reply, call, server, epoch, reply)
            return
        if call.answered or actor.epoch != call.epoch:
            self.faults.note("late reply ignored")
            return
        call.answered = True
        call.done(reply)

    def _timeout(self, call: Call, tries: int) -> None:
        actor = call.actor
        if call.answered or call.tries != tries or actor.epoch != call.epoch:
            return
        if actor.frozen_until > self.now:
            self.at(actor.frozen_until, self._timeout, call, tries)
            return
        self._send(call)


class Server:
    """One of the identical servers: a clock, an id slot and a way to the database."""

    def __init__(self, world: World, name: str, db: Db) -> None:
        self.world = world
        self.name = name
        self.db = db
        self.up = False
        self.refuses = False
        self.epoch = 0
        self.skew = 0
        self.slot = -1
        self.ids = IdSource(0)
        self.statements = 0
        self.maintenance: Maintenance
        self.boot()

    # -- life

    def boot(self) -> None:
        """Take a free id slot, and go on behind the last id that was ever made in it."""
        if self.up:
            return
        taken = {server.slot for server in self.world.servers if server.up}
        self.slot = self.world.rng.choice([slot for slot in range(8) if slot not in taken])
        self.ids = IdSource(self.slot, self.world.last_ids.get(self.slot, 0))
        self.up = True
        self.refuses = False
        self.epoch += 1
        self.maintenance = Maintenance(self.db, lambda: self.now, self.ids, self.world.rules)
        self.world.tell(f"{self.name} up, slot {self.slot}")

    def die(self, seconds: float = 0.0) -> None:
        if not self.up:
            return
        self.up = False
        self.epoch += 1
        self.world.last_ids[self.slot] = max(self.world.last_ids.get(self.slot, 0), self.ids.next(0))
        self.world.tell(f"{self.name} down")
        self.world.after(seconds or 1 + 20 * self.world.rng.random(), self.boot)

    @property
    def now(self) -> int:
        return self.world.now + self.skew

    # -- work

    def do(self, kind: str, fn: Callable[[Server], Any]) -> Any:
        """Do one call to its end. What the user did wrong is an answer like any other."""
        world = self.world
        self._arm()
        try:
            try:
                reply = fn(self)
            except MyrmidonError as error:
                if isinstance(error, StoreError) or error.code.startswith("broken_promise"):
                    raise
                reply = error
        finally:
            self.db._probe = None
            world.after_call(self, kind)
        return reply

    def write(self, fn: Callable[..., Any]) -> Any:
        """One transaction of the core's own making, with this server's clock and ids."""
        now, ids, rules = self.now, self.ids, self.world.rules
        again: list[int] = []

        def once(tx: Any) -> Any:
            if tx.attempt > 1 and not again:
                again.append(1)
                self.world.faults.note("verb run again, outcome unknown")
            return fn(tx, now=now, ids=ids, rules=rules)

        return self.db.write(once)

    def beat(self) -> None:
        """The heartbeat of the service."""

        def alive(server: Server) -> bool:
            if not may_sweep(server.now, server.db.clock(), server.world.rules):
                server.world.faults.note("sweep refused, clock untrusted")
                return False
            return bool(server.db.write(lambda tx: record_alive(tx, server.now, server.world.rules)))

        if self._work("beat", alive):
            self.world.faults.note("leases resumed")

    def sweep(self) -> None:
        """A heartbeat, then all that is due at once."""
        self.beat()
        steps = self.maintenance.steps()
        while self._next(steps) is not None:
            pass

    def begin_round(self) -> None:
        """Do what is due, with pauses of any length between two steps. A server that dies leaves the rest to others."""
        self._go_on(self.maintenance.steps(), self.epoch)

    def _go_on(self, steps: Iterator[Step], epoch: int) -> None:
        if self.epoch != epoch or self._next(steps) is None:
            return
        rng = self.world.rng
        pause = rng.choice((0.0, 0.01, 0.5, 3.0, 20.0)) * rng.random()
        self.world.after(pause, self._go_on, steps, epoch)

    def _next(self, steps: Iterator[Step]) -> Step | None:
        def step(_: Server) -> Step | None:
            done = next(steps, None)
            if done is not None and done.error is not None:
                raise done.error
            return done

        done: Step | None = self._work("maintain", step)
        if done is not None:
            self.world.tell(f"{self.name} {done.kind} {done.n} {done.skipped}")
        return done

    def any_step(self) -> None:
        """A step of any kind, or a chunk of anything, whatever the order of the kinds is."""

        def step(server: Server) -> None:
            turns = server.db.read(chunked_work.turns)
            choices: list[str | int] = [*TIMED, *turns, *turns]
            what = server.world.rng.choice(choices)
            if isinstance(what, int) or may_sweep(server.now, server.db.clock(), server.world.rules):
                server.write(lambda tx, **given: run_step(tx, what, **given))

        self._work("any step", step)

    def _work(self, kind: str, fn: Callable[[Server], Any]) -> Any:
        """Work that no call has asked for; None if the server is down or dies, or the store fails."""
        if not self.up:
            return None
        try:
            return self.do(kind, fn)
        except Killed:
            self.die()
        except (LostReply, StoreError) as error:
            if not self.world.faults.on:
                raise Violation(f"the store failed without a fault: {error}") from error
            self.world.tell(f"{self.name} {kind} failed {error}")
        return None

    # -- trouble with the store

    def _arm(self) -> None:
        """Draw whether the store fails somewhere inside the next call, and how."""
        world = self.world
        rng, faults = world.rng, world.faults
        if not faults.on:
            return
        for name, event, most, error, often in _STORE_FAULTS:
            if faults.drawn(rng, name):
                times = rng.choice(often)
                if self.db.dialect != Dialect.SQLITE:
                    times = min(times, 2)  # each costs a new connection there
                self._fail(name, rng.choice(event), rng.randrange(most), error, times=times)
                return

    def _fail(self, name: str, event: str, skip: int, error: type[BaseException], *, times: int) -> None:
        left = [skip, times]

        def probe(seen: str, sql: str) -> None:
            if seen != event or not left[1]:
                return
            if left[0]:
                left[0] -= 1
                return
            left[1] -= 1
            self.world.faults.note(name)
            raise error("simulated")

        self.db._probe = probe


# Name, where it may strike, behind how many others of its kind at most, what it looks like, how often in a row.
_STORE_FAULTS: tuple[tuple[str, tuple[str, ...], int, type[BaseException], tuple[int, ...]], ...] = (
    ("store failed before", ("statement",), 12, ConnectionLost, (1, 1, 2, 10)),
    ("store failed at commit", ("commit",), 2, ConnectionLost, (1, 2)),
    ("store lost the commit's answer", ("committed",), 2, ConnectionLost, (1, 1, 2, 3)),
    ("store did it, caller saw an error", ("committed",), 3, LostReply, (1,)),
    ("store unavailable", ("statement", "commit"), 3, StoreUnavailable, (1,)),
    ("server killed inside a call", ("statement", "statement", "commit", "committed"), 9, Killed, (1,)),
)
