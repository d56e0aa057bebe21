"""One seed from beginning to end: trouble, quiet, the end of all deadlines, the end of all memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import pytest
from msgspec import Struct

from myrmidon.model.ids import IdSource
from myrmidon.scheduler import cascade, maintenance, propagate, rerun, resource_groups, submit_job
from myrmidon.scheduler.policy import Rules
from myrmidon.store.engine.db import Db, Dialect, Row, Tx
from tests.sim.bots import Bot
from tests.sim.clients import Clients
from tests.sim.faults import OF_MACHINES, SECOND, times
from tests.sim.ledger import Ledger, check_secret
from tests.sim.world import START, Server, Violation, World

try:
    from tests import invariants
except ImportError:
    invariants = None  # type: ignore[assignment]

NUM_SERVERS = 3
NUM_BOTS = 20
BUSY = 130.0
TROUBLE = 190.0
QUIET = 400.0
RULES = Rules(
    default_deadline=3600 * SECOND,
    start_within=15 * SECOND,
    dead_after=90 * SECOND,
    retention=86_400 * SECOND,
    keep_keys=86_400 * SECOND,
    staging_limit=600 * SECOND,
    outage=60 * SECOND,
    secret_key=b"simulated",
)
EMPTY_IN_THE_END = (
    "request_keys", "chunked_work", "task_requests", "further_slices", "secret_bytes", "task_stdin", "task_tags",
    "task_to_run", "task_results", "task_runs", "performance_stats", "dedupe_sources", "task_logs", "log_chunks",
    "jobs", "task_edges", "completed_task_edges", "values",
    "job_to_shared_value_ref", "task_inputs", "task_input_parts", "task_outputs", "task_delegates", "job_codes",
    "outbox",
)  # fmt: skip
EMPTY_WITHOUT_GROUPS = (
    "resource_groups", "shared_values", "resource_group_to_shared_value_ref", "shared_value_localities",
)  # fmt: skip
OTHERS = ("shared_numbers", "pools", "task_dimensions", "bot_dimensions", "bots", "bot_events", "sinks")
UNFINISHED = "SELECT id, state, reason FROM task_results WHERE state IN ('WAITING', 'READY', 'RUNNING')"
OPEN_JOBS = "SELECT id, state FROM jobs WHERE state IN ('RUNNING', 'PENDING_RETRY')"
ACTIVE = """
    SELECT (SELECT COUNT(*) FROM task_results WHERE state IN ('READY', 'RUNNING'))
         + (SELECT COUNT(*) FROM jobs WHERE state IN ('RUNNING', 'PENDING_RETRY'))
         + (SELECT COUNT(*) FROM chunked_work)
"""
OLD_RUNS = "SELECT task_id, run, bot_id FROM task_runs WHERE due_at IS NOT NULL AND claimed_at < :before"
UNREFERENCED = """
    SELECT id FROM shared_values v
     WHERE NOT EXISTS (SELECT 1 FROM resource_group_to_shared_value_ref r WHERE r.id = v.id)
"""


class Pace(Struct, frozen=True, kw_only=True):
    """How often what repeats is repeated: a server answers in a hundred microseconds, SQLite in ten."""

    sweep_every: float
    check_every: int
    poll_after: float
    beat_every: float
    smallest_chunk: int


QUICK = Pace(sweep_every=25.0, check_every=2000, poll_after=5.0, beat_every=13.0, smallest_chunk=2)
THRIFTY = Pace(sweep_every=29.0, check_every=2500, poll_after=9.0, beat_every=13.0, smallest_chunk=5)


class Outcome(Struct):
    """What a seed has shown."""

    seed: int
    history: str
    struck: Counter[str]
    events: int
    tasks: int
    states: Counter[str]


def run(seed: int, databases: list[Db], *, verbose: bool = False, trouble: bool = True) -> Outcome:
    """Simulate one seed on an empty database; one Db per server, or one for all. Raises Violation."""
    sim = Simulation(seed, databases, verbose=verbose, trouble=trouble)
    with small_chunks(max(sim.world.rng.choice((2, 5, 9, 1000)), sim.pace.smallest_chunk)):
        return sim.run()


@contextlib.contextmanager
def small_chunks(n: int) -> Iterator[None]:
    """Make drains short of breath, so that a job of twenty tasks takes several steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (maintenance, rerun, cascade, propagate, submit_job):
            for name in ("CHUNK", "WHOLE", "STAGED"):
                patch.setattr(module, name, n, raising=False)
        yield


class Simulation:
    """The cast and the play."""

    def __init__(self, seed: int, databases: list[Db], *, verbose: bool, trouble: bool) -> None:
        self.world = world = World(seed, RULES, verbose=verbose)
        if not trouble:
            world.faults.stop()
        self.dbs = databases
        for db in databases:
            db.clock = lambda: world.now  # type: ignore[method-assign]
            db._sleep = lambda seconds: None
        for n in range(NUM_SERVERS):
            world.servers.append(Server(world, f"server-{n}", databases[n % len(databases)]))
        self.db = databases[0]
        self.pace = QUICK if self.db.dialect == Dialect.SQLITE else THRIFTY
        self.ledger = Ledger()
        ids = IdSource(9)
        made = [partial(resource_groups.create_group, external_id=name, now=START, ids=ids) for name in ("red", "blue")]
        groups = [self.db.write(create).id for create in made]
        names = [f"bot-{n:02}" for n in range(NUM_BOTS)]
        self.clients = Clients(world, self.ledger, groups, names)
        pauses = (self.pace.poll_after, self.pace.beat_every)
        self.bots = [
            Bot(world, self.ledger, name, has(n, world.rng), self.clients.spawn, pauses) for n, name in enumerate(names)
        ]
        self.checker = invariants.Checker() if invariants else None
        self.last_check = 0
        self.begun = 0
        world.after_call = self._after_call

    # -- the play

    def run(self) -> Outcome:
        world = self.world
        for bot in self.bots:
            world.after(5 * world.rng.random(), bot.start)
        for n, server in enumerate(world.servers):
            self._sweep_on(server, world.epoch_of_play, self.pace.sweep_every * n / NUM_SERVERS)
        self.clients.plan(BUSY)
        self._plan_faults()
        world.run(START + int(TROUBLE * SECOND), self._each)
        self._stop_trouble()
        self._settle()
        states = self._states()
        self._past_deadlines()
        self._past_retention()
        return Outcome(
            seed=world.seed,
            history=world.history(),
            struck=world.faults.struck,
            events=world.events,
            tasks=self.clients.num_tasks,
            states=states,
        )

    def _plan_faults(self) -> None:
        world = self.world
        if not world.faults.on:
            return
        rng = world.rng
        for name in OF_MACHINES:
            for _ in range(times(rng, world.faults.machines[name] * 1.0)):
                world.after(TROUBLE * rng.random(), self._strike, name)

    def _strike(self, name: str) -> None:
        world = self.world
        rng = world.rng
        if not world.faults.on:
            return
        world.faults.note(name)
        world.tell(name)
        if name.startswith("bot killed"):
            rng.choice(self.bots).kill(journal="kept" in name)
        elif name == "bot frozen":
            rng.choice(self.bots).freeze(rng.choice((20, 60, 120)) * (0.5 + rng.random()))
        elif name == "server killed":
            rng.choice(world.servers).die()
        elif name == "outage of all servers":
            self._outage(50 + 60 * rng.random())
        else:
            self._jump_clock(name, rng.choice(world.servers))

    def _outage(self, seconds: float) -> None:
        for server in self.world.servers:
            server.die(seconds + 3 * self.world.rng.random())

    def _jump_clock(self, name: str, server: Server) -> None:
        """A jump is noticed within a minute, and the server takes no calls until it is mended."""
        world = self.world
        rng = world.rng
        if name == "clock drifted":
            server.skew = int((rng.random() - 0.5) * 3.9 * SECOND)
            return
        far = int(rng.choice((5, 60, 1200)) * (0.5 + rng.random()) * SECOND)
        server.skew = far if name == "clock jumped forward" else -far
        world.after(20 * rng.random(), self._notice, server)

    def _notice(self, server: Server) -> None:
        if abs(server.skew) > RULES.max_skew:
            server.refuses = True
            self.world.after(10 + 20 * self.world.rng.random(), self._mend, server)

    def _mend(self, server: Server) -> None:
        server.skew = 0
        server.refuses = False

    def _sweep_on(self, server: Server, play: int, delay: float) -> None:
        if play == self.world.epoch_of_play:
            self.world.after(delay, self._swept, server, play)

    def _swept(self, server: Server, play: int) -> None:
        server.beat()
        server.begin_round()
        self._sweep_on(server, play, self.pace.sweep_every * (1 if self.world.faults.on else 2))

    # -- looking

    def _after_call(self, server: Server, kind: str) -> None:
        """What a server does with what its calls have begun, without being asked."""
        if kind in ("submit_job", "extend", "rerun_job", "cancel_job", "cancel_tagged", "delete_job", "report"):
            chance = 0.7 if kind != "report" else 0.02
            if self.world.chance(chance):
                self.world.after(0.5 * self.world.rng.random(), server.any_step)

    def _each(self) -> None:
        if self.world.events - self.last_check >= self.pace.check_every:
            self.check()

    def check(self) -> None:
        """What has changed since the last look."""
        self.last_check = self.world.events
        self._check_ledger()
        if self.checker is not None:
            self.checker.check(self.db)

    def _check_ledger(self) -> None:
        self.ledger.follow(self.db)
        self.db.read(self.ledger.check)

    def _states(self) -> Counter[str]:
        rows = self.db.read(lambda tx: tx.all("SELECT state, COUNT(*) FROM task_results GROUP BY state"))
        return Counter(dict(rows))

    # -- the end

    def _stop_trouble(self) -> None:
        world = self.world
        world.tell("quiet")
        world.faults.stop()
        for server in world.servers:
            if abs(server.skew) > RULES.max_skew:
                self._mend(server)
            server.refuses = False
            server.boot()
        for bot in self.bots:
            bot.frozen_until = min(bot.frozen_until, world.now)
            bot.start()
        for bot in world.rng.sample(self.bots, 2):
            bot.kill(journal=False, for_good=True)
        self.check()

    def _settle(self) -> None:
        """Let the work end by itself: no more faults, nothing held, bots at work."""
        world = self.world
        self.clients.top_up()
        ends = world.now + int(QUIET * SECOND)
        world.run(world.now + int(60 * SECOND), self._each)
        self.clients.quiet()
        while world.now < ends:
            world.run(world.now + int(10 * SECOND), self._each)
            if not self.clients.unanswered and not self._active():
                break
        world.after_call = lambda server, kind: None
        self._nobody_forgotten()
        if self.clients.unanswered:
            raise Violation(f"{self.clients.unanswered} calls were never answered")
        self._full_check()

    def _nobody_forgotten(self) -> None:
        """No run lives on though its bot is gone. A clock that was ahead makes that late."""
        if self.world.faults.struck["clock jumped forward"]:
            return
        before = self.world.now - 200 * SECOND
        if old := self.db.read(lambda tx: tx.all(OLD_RUNS, before=before)):
            raise Violation(f"runs are still alive long after the faults have stopped: {old}")

    def _active(self) -> int:
        row = self.db.read(lambda tx: tx.one(ACTIVE))
        return int(row[0]) if row else 0

    def _full_check(self) -> None:
        for server in self.world.servers:
            server.sweep()
        self._check_ledger()
        self.db.read(self.ledger.check_stream)
        self.db.read(self.ledger.check_logs)
        self.db.read(lambda tx: check_secret(tx, (*EMPTY_IN_THE_END, *EMPTY_WITHOUT_GROUPS, *OTHERS)))
        if invariants:
            invariants.check(self.db)

    def _past_deadlines(self) -> None:
        """Past every deadline and one sweep later nothing is left that has not ended."""
        world = self.world
        world.epoch_of_play += 1
        for bot in self.bots:
            bot.epoch += 1
            bot.alive = False
        world.jump(RULES.default_deadline + 3600 * SECOND)
        self._sweeps(3, 60)
        left = self.db.read(lambda tx: tx.all(UNFINISHED))
        if left:
            raise Violation(f"tasks have not ended though their deadline is over: {left}")
        if jobs := self.db.read(lambda tx: tx.all(OPEN_JOBS)):
            raise Violation(f"jobs have not ended though all their tasks have: {jobs}")
        if invariants:
            invariants.check_settled(self.db, world.now)
        self._check_ledger()

    def _past_retention(self) -> None:
        """Past the retention nothing is remembered but groups and what they reference; then those go too."""
        world = self.world
        world.jump(RULES.retention + 3600 * SECOND)
        # After such a gap the clock may be wrong: deletion waits.
        self._sweeps(1 + RULES.retention_wait // (1800 * SECOND), 1800)
        self._sweeps(3, 60)
        self._empty(EMPTY_IN_THE_END, "all retention is over")
        if orphans := self.db.read(lambda tx: tx.all(UNREFERENCED)):
            raise Violation(f"shared values are left that nothing references: {orphans}")
        server = world.servers[0]
        for group in self.clients.groups:
            server.write(lambda tx, group=group, **given: resource_groups.delete_group(tx, group, **given))
        self._sweeps(1, 60)
        self._empty(EMPTY_WITHOUT_GROUPS, "all groups are deleted")

    def _empty(self, tables: Sequence[str], why: str) -> None:
        text = " UNION ALL ".join(f"SELECT '{table}', COUNT(*) FROM \"{table}\"" for table in tables)
        for table, n in self.db.read(lambda tx: tx.all(text)):
            if n:
                some = f'SELECT * FROM "{table}" LIMIT 3'
                rows = self.db.read(partial(_all, text=some))
                raise Violation(f"{n} rows are left in {table} though {why}: {rows}")

    def _sweeps(self, rounds: int, seconds: int) -> None:
        for _ in range(rounds):
            for server in self.world.servers:
                server.sweep()
            self.world.jump(seconds * SECOND)


def _all(tx: Tx, *, text: str) -> list[Row]:
    return tx.all(text)


def has(n: int, rng: Random) -> dict[str, list[str]]:
    """What bot n can do: most are in pool a, one in four in pool b, few have a gpu."""
    dimensions = {"pool": ["b" if n % 4 == 3 else "a"], "os": ["Mac"] if n % 5 == 0 else ["Linux"]}
    if n % 6 == 1:
        dimensions["gpu"] = ["1"]
    return dimensions
