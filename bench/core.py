"""The speed of the core: `make bench-core`, or `python -m bench.core [--only NAME,NAME] [--quick]`.

Prints a table of what was measured, then one line per bar: `bar NAME VALUE LIMIT ok|short`. Everything is a ratio of
two things measured in turn in the same run, with full durability (except `memory`, which is in MB), so that a busy
or slow machine changes both. `--quick` takes small sizes: it shows that everything works, not how fast it is.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from bench.bars import Bar, chosen, measure_each, note
from bench.bed import DIMENSIONS, KINDS, Bed, Ground, a_request
from bench.floor import Floor
from bench.rows import Sample, load, sample
from myrmidon.model.ids import show_task
from myrmidon.scheduler import submit_job
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.engine.db import Dialect
from tests.servers import CannotStart


class Sizes(NamedTuple):
    batch: int = 100
    life_batches: int = 30
    life_rounds: int = 9
    deep: int = 1_000_000
    deep_elsewhere: int = 100_000
    shallow: int = 1_000
    queues: int = 1_000
    claims: int = 60
    many_queues: int = 200
    per_queue: int = 100
    flat_lives: int = 5_000
    children: int = 10_000
    few_children: int = 100
    few_jobs: int = 20
    memory_lives: int = 200_000
    warm_up: int = 10_000
    commits_s: float = 2.0


QUICK = Sizes(
    life_batches=3, life_rounds=2, deep=5_000, deep_elsewhere=0, shallow=500, queues=27, claims=5, many_queues=20,
    per_queue=20, flat_lives=1_000, children=1_500, few_children=50, few_jobs=2, memory_lives=500, warm_up=500,
    commits_s=0.1,
)  # fmt: skip


class Bench:
    """Measures on grounds of its own."""

    def __init__(self, ground: Ground, sizes: Sizes) -> None:
        self.ground = ground
        self.sizes = sizes

    # -- lives against the floor

    def life(self, kind: str) -> float:
        """Lives per second of the verbs over those of the floor, round by round: a slow one is slow for both."""
        s = self.sizes
        if kind == "sqlite":
            note("sqlite: commits of one row, as limits.py counts them", f"{self._commits():,.0f}/s")
        with ExitStack() as stack:
            verbs, bare = (stack.enter_context(self.ground.bed(kind)) for _ in range(2))
            verbs.greet()
            floor = Floor(bare)
            stack.callback(floor.close)
            self._life_round(verbs, floor)  # to warm up
            rounds = [self._life_round(verbs, floor) for _ in range(s.life_rounds)]
        lives = s.life_batches * s.batch
        ours, theirs = (lives / median(each) for each in zip(*rounds, strict=True))
        note(f"{kind}: lives by the verbs", f"{ours:,.0f}/s")
        note(f"{kind}: lives by the floor", f"{theirs:,.0f}/s")
        return median(theirs_s / ours_s for ours_s, theirs_s in rounds)

    def _life_round(self, verbs: Bed, floor: Floor) -> tuple[float, float]:
        """A stretch of each: alternating after every batch would measure cold caches, which no server has."""
        raws = [verbs.requests(self.sizes.batch) for _ in range(self.sizes.life_batches)]
        ours = sum([timed(partial(verbs.live, batch)) for batch in raws])
        batches = [floor.prepare(self.sizes.batch) for _ in range(self.sizes.life_batches)]
        theirs = sum([timed(partial(floor.live, batch)) for batch in batches])
        return ours, theirs

    def _commits(self) -> float:
        """What the disk allows: one row per commit, WAL, synchronous=FULL."""
        connection = sqlite3.connect(self.ground.folder / "commits.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, state INT, payload TEXT)")
        start, n = time.perf_counter(), 0
        while time.perf_counter() - start < self.sizes.commits_s:
            connection.execute("INSERT INTO t(state,payload) VALUES(?,?)", (n, "x" * 100))
            n += 1
        rate = n / (time.perf_counter() - start)
        connection.close()
        return rate

    # -- claims

    def deep(self, queues: int) -> float:
        """Claim time with very many READY over claim time with few, both spread over the same number of queues."""
        self._elsewhere(lambda kind: self._deep(kind, queues, self.sizes.deep_elsewhere))
        return self._deep("sqlite", queues, self.sizes.deep)

    def _deep(self, kind: str, queues: int, deep: int) -> float:
        name = f"{kind}: {queues:,} queue{'s' * (queues > 1)}"
        with ExitStack() as stack:
            few, many = (
                self._filled(stack.enter_context(self.ground.bed(kind)), queues, ready)
                for ready in (self.sizes.shallow, deep)
            )
            return self._compare_claims(
                [few, many], (f"{name}, {self.sizes.shallow:,} ready", f"{name}, {deep:,} ready")
            )

    def many_queues(self) -> float:
        """Claim time of a bot that serves many queues over that of one that serves one; as many tasks for each."""
        self._elsewhere(self._many_queues)
        return self._many_queues("sqlite")

    def _many_queues(self, kind: str) -> float:
        n, ready = self.sizes.many_queues, self.sizes.many_queues * self.sizes.per_queue
        with self.ground.bed(kind) as bed:
            one = self._filled(bed, 1, ready, pool="one")
            many = self._filled(bed, n, ready, pool="many")
            return self._compare_claims([one, many], (f"{kind}: a bot of 1 queue", f"{kind}: a bot of {n} queues"))

    def _elsewhere(self, measure: Callable[[str], float]) -> None:
        """The same on the servers, for the table only."""
        for kind in KINDS[1:] if self.sizes.deep_elsewhere else ():
            try:
                note(f"{kind}: so here it would be", f"{measure(kind):.2f}")
            except CannotStart as why:
                note(str(why), "-")

    def _filled(self, bed: Bed, queues: int, ready: int, pool: str = "default") -> Site:
        """READY tasks in so many queues, and a bot that serves them all."""
        wanted = dimensions(queues, pool)
        has: dict[str, list[str]] = {"pool": [pool], "os": ["Linux"]}
        for key in "abc":
            has[key] = sorted({wants[key][0] for wants in wanted if key in wants})
        bed.greet(bot_id=f"bot-{pool}", dimensions={key: values for key, values in has.items() if values})
        samples = [sample(bed, a_request(wants)) for wants in wanted]
        site = Site(bed, f"bot-{pool}", samples[0], [made.queue for made in samples])
        load(bed, site.made, site.queues, ready - queues)
        refresh(bed)
        return site

    def _compare_claims(self, sites: Sequence[Site], names: Sequence[str]) -> float:
        """The larger ratio of claims of 1 and of 16, second site over first."""
        worst = 0.0
        for n in (1, 16):
            times: list[list[float]] = [[] for _ in sites]
            for turn in range(self.sizes.claims + 5):
                for site, spent in zip(sites, times, strict=True):
                    took = site.claim(n)
                    if turn >= 5:
                        spent.append(took)
            few, many = (median(spent) for spent in times)
            for name, each in zip(names, (few, many), strict=True):
                note(f"{name}, claim of {n}", f"{each * 1e3:.2f} ms")
            worst = max(worst, many / few)
        return worst

    # -- lives over time

    def flat(self, kind: str) -> float:
        """The tenth round of lives over a first: what is done must not slow down what is to do.

        The first is that of a bed beside it, in turn with the tenth by stretches: a machine that slows down between a
        first round and its own tenth would look like a store that does.
        """
        s = self.sizes
        with ExitStack() as stack:
            aged, young = (stack.enter_context(self.ground.bed(kind)) for _ in range(2))
            for bed in (aged, young):
                bed.greet()
                self._lives(bed, 10 * s.batch)  # to warm up
            spent = [timed(lambda: self._lives(aged, s.flat_lives)) for _ in range(9)]
            stretches = [
                [timed(partial(self._lives, bed, s.flat_lives // 10)) for bed in (aged, young)] for _ in range(10)
            ]
        tenth, first = map(sum, zip(*stretches, strict=True))
        rates = " ".join(f"{s.flat_lives / each:.0f}" for each in (*spent, tenth))
        note(f"{kind}: lives/s in ten rounds of {s.flat_lives:,}", rates)
        note(f"{kind}: in a first round beside the tenth", f"{s.flat_lives / first:.0f}")
        return tenth / first

    def _lives(self, bed: Bed, lives: int) -> None:
        for _ in range(lives // self.sizes.batch):
            bed.live(bed.requests(self.sizes.batch))

    def fan_out(self) -> float:
        """Time per child that the end of a parent takes, with very many children over few."""
        s = self.sizes
        with self.ground.bed("sqlite") as bed:
            bed.greet(dimensions={"pool": ["parents"], "os": ["Linux"]})
            self._feed(bed, s.few_children)  # to warm up
            few = median(self._feed(bed, s.few_children) for _ in range(s.few_jobs))
            many = median(self._feed(bed, s.children) for _ in range(2))
            few = median([few, *(self._feed(bed, s.few_children) for _ in range(s.few_jobs))])
        note(f"a parent of {s.few_children:,} ends", f"{few * 1e6:.1f} us per child")
        note(f"a parent of {s.children:,} ends", f"{many * 1e6:.1f} us per child")
        return many / few

    def _feed(self, bed: Bed, children: int) -> float:
        """Seconds per child from the parent's report until every child is READY."""
        child = {"task": a_request(DIMENSIONS), "requires": ["parent"]}
        parent = {"task": a_request({"pool": ["parents"], "os": ["Linux"]})}
        raw = {"name": "fan", "tasks": {"parent": parent} | {f"child-{n}": child for n in range(children)}}
        now = bed.now()
        draft = draft_job(raw, now=now, ids=bed.ids)
        submit_job.submit_job(bed.db.write, bed.group_id, draft, now=now, ids=bed.ids)
        bed.carry_all()
        claimed = bed.claim(1)
        if [c.task_id for c in claimed] != [draft.task_ids["parent"]]:
            raise RuntimeError(f"not the parent: {[show_task(c.task_id) for c in claimed]}")

        def end() -> None:
            bed.finish(claimed)
            bed.carry_all()

        spent = timed(end)
        ready = bed.db.read(
            lambda tx: tx.one(
                "SELECT COUNT(*) FROM task_results WHERE job_id = :job AND state = 'READY'", job=draft.job_id
            )
        )
        if ready is None or ready[0] != children:
            raise RuntimeError(f"{ready} of {children} children are ready")
        return spent / children

    # -- memory

    def memory(self) -> float:
        """Growth of a process of its own, in MB."""
        s = self.sizes
        numbers = map(str, (s.memory_lives, s.warm_up, s.batch))
        command = [sys.executable, "-m", "bench.memory", self.ground.url("sqlite"), *numbers]
        grown = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        note(f"sqlite: the process grows over {s.memory_lives:,} lives by", f"{grown:.1f} MB")
        return grown


class Site(NamedTuple):
    """Queues full of tasks, and the bot to claim them."""

    bed: Bed
    bot_id: str
    made: Sample
    queues: list[int]

    def claim(self, n: int) -> float:
        """The time of one claim; what it took is put back behind it, so that the queues stay as deep as they are."""
        found: list[Any] = []
        spent = timed(lambda: found.extend(self.bed.claim(n, self.bot_id)))
        if len(found) != n:
            raise RuntimeError(f"{len(found)} of {n} tasks were handed out")
        load(self.bed, self.made, [c.work.queue for c in found], n)
        return spent


def dimensions(queues: int, pool: str) -> list[dict[str, list[str]]]:
    """So many different sets that one bot has all at once."""
    base = {"pool": [pool], "os": ["Linux"]}
    if queues == 1:
        return [base]
    digits = [str(digit) for digit in range(10)]
    picked = list(product(digits, digits, digits))[:queues]
    return [base | {"a": [a], "b": [b], "c": [c]} for a, b, c in picked]


def refresh(bed: Bed) -> None:
    """After a bulk load: statistics as a running PostgreSQL has them. The others keep, or need, none."""
    if bed.db.dialect == Dialect.POSTGRESQL:
        bed.db.write(lambda tx: tx.run("ANALYZE"))


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ---------------------------------------------------------------- bars


def _life(kind: str) -> Bar:
    return Bar(f"life-{kind}", "0.5", lambda bench: bench.life(kind), at_least=True)


def _flat(kind: str) -> Bar:
    return Bar(f"flat-{kind}", "1.2", lambda bench: bench.flat(kind))


BARS = (
    *map(_life, KINDS),
    Bar("deep-1-queue", "1.5", lambda bench: bench.deep(1)),
    Bar("deep-1000-queues", "1.5", lambda bench: bench.deep(bench.sizes.queues)),
    Bar("many-queues", "3", Bench.many_queues),
    *map(_flat, ("postgresql", "mariadb", "sqlite")),
    Bar("fan-out", "2", Bench.fan_out),
    Bar("memory", "20", Bench.memory),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAMES", help="the bars to measure, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    asked = parser.parse_args()
    wanted = chosen(BARS, asked.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else its files and servers would stay
    ground = Ground()
    bench = Bench(ground, QUICK if asked.quick else Sizes())
    gc.freeze()  # as a server does when it has started: what was imported is not garbage
    gc.set_threshold(50_000)
    try:
        measure_each(wanted, bench)
    finally:
        ground.close()


if __name__ == "__main__":
    main()
