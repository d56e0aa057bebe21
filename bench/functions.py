"""Functions on real bots, beside Ray and BullMQ: rates, latency, graphs, values.

`myrmidon up` with its defaults and a database on a real disk; the client is the SDK. Peers run the same in turn, round
by round. One that is not installed (`make bench-peers` installs them) prints `missing` for its bars.

    W1               10,000 no-op functions by one map, submitted, run and collected, over Ray's rate
    W1-bullmq        the same over BullMQ's rate
    W1-each          the same by one executor.submit each, over Ray's rate
    W1-native        10,000 no-op C++ functions by one map, over our rate for no-op Python functions
    W1-postgresql, W1-mariadb   W1 on these databases, over Ray's rate
    W2               one no-op from submit to its result, p50, over Ray's
    W3               100 layers of 100 functions, each fed by two of the layer before, over Ray's rate
    W3-chain         1,000 functions in a row, over Ray's rate
    W6               1,000 values of 1 MB through one fan-out and fan-in, over Ray's time
    late             from the end of a call to its result at the client, beside 1,000 calls that wait, p99, over 50 ms
    efficiency-*     the share of the ideal time for functions of 1, 10 and 100 ms on two slots

One bot with two slots. The bars W1, W2, W3 and W3-chain are measured on the two bots of `make run`, too: the names of
these end with -two-bots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import median, quantiles
from typing import NamedTuple

from bench import function_peers, native_tasks
from bench.bars import Bar, Missing, measure_each, note
from bench.bed import Ground
from bench.commands import local_cluster, timed
from bench.function_peers import Driver
from bench.function_tasks import MODULUS, add, ended_at, megabyte, nap, noop, total_size
from myrmidon import Client


class Sizes(NamedTuple):
    tasks: int = 10_000
    rounds: int = 5
    ones: int = 300
    layers: int = 100
    chain: int = 1_000
    values: int = 1_000


QUICK = Sizes(tasks=100, rounds=1, ones=5, layers=4, chain=5, values=5)
NAPS = {"1": (0.001, 2_000), "10": (0.01, 400), "100": (0.1, 100)}
"""Milliseconds: the seconds of one function, and how many of them are run."""
LATE_S = 0.05
LATE_BESIDE = 1_000
LATE_CALL_S = 0.06
"""How long a call takes, in seconds: longer than its submit."""
ONE_BOT = ("--bots=1", "--slots=2")
TWO_BOTS = "-two-bots"


class Bench:
    """Measures on one server, and on the peers that are there."""

    def __init__(self, client: Client, peers: dict[str, Driver | None], ground: Ground, sizes: Sizes) -> None:
        self.client = client
        self.peers = peers
        self.ground = ground
        self.sizes = sizes

    # ---------------------------------------------------------------- our side

    def map_noops(self, client: Client | None = None) -> None:
        n = self.sizes.tasks
        total = sum((client or self.client).map(noop, range(n)))
        if total != n * (n - 1) // 2:
            raise RuntimeError(f"the sum of the results is {total}")

    def map_native_noops(self) -> None:
        n = self.sizes.tasks
        total = sum(self.client.map(native_tasks.noop, range(n)))
        if total != n * (n - 1) // 2:
            raise RuntimeError(f"the sum of the results is {total}")

    def submit_noops(self) -> None:
        n = self.sizes.tasks
        with self.client.executor() as executor:
            futures = [executor.submit(noop, number) for number in range(n)]
            if sum(future.result() for future in futures) != n * (n - 1) // 2:
                raise RuntimeError("the sum of the results is wrong")

    def layered_graph(self) -> None:
        n = self.sizes.layers
        with self.client.new_job("layers") as job:
            row = [noop(1) for _ in range(n)]
            for _ in range(n - 1):
                row = [add(row[column], row[(column + 1) % n]) for column in range(n)]
        if job.result(row) != [pow(2, n - 1, MODULUS)] * n:
            raise RuntimeError("the last layer is wrong")

    def chain_graph(self) -> None:
        with self.client.new_job("chain") as job:
            value = noop(0)
            for _ in range(self.sizes.chain - 1):
                value = noop(value)
        job.result(value)

    def large_values(self) -> None:
        with self.client.new_job("values") as job:
            size = total_size([megabyte(number) for number in range(self.sizes.values)])
        if job.result(size) != self.sizes.values * 1_000_000:
            raise RuntimeError("the total size is wrong")

    # ---------------------------------------------------------------- bars

    def w1(self) -> float:
        return self._rate_over("ray", "many", self.sizes.tasks, self.map_noops)

    def w1_bullmq(self) -> float:
        return self._rate_over("bullmq", "many", self.sizes.tasks, self.map_noops)

    def w1_each(self) -> float:
        return self._rate_over("ray", "many", self.sizes.tasks, self.submit_noops)

    def w1_native(self) -> float:
        if not native_tasks.build():
            raise Missing("the C++ functions could not be built")
        for work in (self.map_noops, self.map_native_noops):
            work()  # to warm up
        python, native = [], []
        for _ in range(self.sizes.rounds):
            native.append(timed(self.map_native_noops))
            python.append(timed(self.map_noops))
        rates = [f"{self.sizes.tasks / median(seconds):,.0f}/s" for seconds in (native, python)]
        note("no-op functions in C++ and in Python", " ".join(rates))
        return median(theirs / ours for ours, theirs in zip(native, python, strict=True))

    def w1_postgresql(self) -> float:
        return self._on("postgresql")

    def w1_mariadb(self) -> float:
        return self._on("mariadb")

    def _on(self, kind: str) -> float:
        with local_cluster(*ONE_BOT, database=self.ground.url(kind)) as (client, _):
            return self._rate_over("ray", "many", self.sizes.tasks, lambda: self.map_noops(client), on=kind)

    def w2(self) -> float:
        peer = self._peer("ray")
        ours, theirs = [], []
        for _ in range(self.sizes.rounds):
            ours += [timed(lambda: self.client.submit(noop, 1).result()) for _ in range(self.sizes.ones)]
            theirs += peer.times("one", self.sizes.ones)
        note("one no-op function, p50, ours and Ray's", f"{median(ours) * 1e3:.2f} {median(theirs) * 1e3:.2f} ms")
        return median(ours) / median(theirs)

    def w3(self) -> float:
        return self._rate_over("ray", "layers", self.sizes.layers, self.layered_graph, tasks=self.sizes.layers**2)

    def w3_chain(self) -> float:
        return self._rate_over("ray", "chain", self.sizes.chain, self.chain_graph)

    def w6(self) -> float:
        return 1 / self._rate_over("ray", "values", self.sizes.values, self.large_values)

    def late(self) -> float:
        far = noop.options(dimensions={"id": "no such bot"})
        waiting = [self.client.submit(far, number) for number in range(min(LATE_BESIDE, self.sizes.tasks))]
        late: list[float] = []
        for _ in range(self.sizes.ones):
            ended = self.client.submit(ended_at, LATE_CALL_S).result()
            late.append(time.time() - ended)
        for future in waiting:
            future.cancel()
        p99 = quantiles(late, n=100)[98]
        note("from the end of a call to its result, p50 and p99", f"{median(late) * 1e3:.2f} {p99 * 1e3:.2f} ms")
        return p99 / LATE_S

    def efficiency_1(self) -> float:
        return self._efficiency("1")

    def efficiency_10(self) -> float:
        return self._efficiency("10")

    def efficiency_100(self) -> float:
        return self._efficiency("100")

    def _efficiency(self, name: str) -> float:
        seconds, n = NAPS[name]
        n = max(4, n * self.sizes.tasks // Sizes().tasks)
        shares = []
        for _ in range(self.sizes.rounds):
            taken = timed(lambda: list(self.client.map(nap, [seconds] * n)))
            shares.append(n * seconds / 2 / taken)
        return median(shares)

    def _peer(self, name: str) -> Driver:
        peer = self.peers[name]
        if peer is None:
            raise Missing(f"{name} is not installed")
        return peer

    def _rate_over(
        self, name: str, workload: str, n: int, work: Callable[[], None], *, tasks: int | None = None, on: str = ""
    ) -> float:
        """The median of the ratios of neighbouring rounds: how many times as fast as the peer."""
        peer = self._peer(name)
        work()  # to warm up
        ours, theirs = [], []
        for _ in range(self.sizes.rounds):
            ours.append(timed(work))
            theirs.append(peer.seconds(workload, n))
        rates = [f"{(tasks or n) / median(seconds):,.0f}/s" for seconds in (ours, theirs)]
        note(f"{workload}{' on ' + on if on else ''}, ours and by {name}", " ".join(rates))
        return median(peer_s / ours_s for peer_s, ours_s in zip(theirs, ours, strict=True))


ON_ONE_BOT = (
    Bar("W1", "3", Bench.w1, at_least=True),
    Bar("W1-bullmq", "0.5", Bench.w1_bullmq, at_least=True),
    Bar("W1-each", "1", Bench.w1_each, at_least=True),
    Bar("W1-native", "1.2", Bench.w1_native, at_least=True),
    Bar("W1-postgresql", "2", Bench.w1_postgresql, at_least=True),
    Bar("W1-mariadb", "2", Bench.w1_mariadb, at_least=True),
    Bar("W2", "1.5", Bench.w2),
    Bar("W3", "3", Bench.w3, at_least=True),
    Bar("W3-chain", "1", Bench.w3_chain, at_least=True),
    Bar("W6", "2", Bench.w6),
    Bar("late", "1", Bench.late),
    Bar("efficiency-1", "0.5", Bench.efficiency_1, at_least=True),
    Bar("efficiency-10", "0.9", Bench.efficiency_10, at_least=True),
    Bar("efficiency-100", "0.98", Bench.efficiency_100, at_least=True),
)
ON_TWO_BOTS = tuple(
    bar._replace(name=bar.name + TWO_BOTS) for bar in ON_ONE_BOT if bar.name in ("W1", "W2", "W3", "W3-chain")
)
BARS = (*ON_ONE_BOT, *ON_TWO_BOTS)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    """Those on one bot first, then those on the two bots of `make run`; each fleet has a server of its own."""
    ground = Ground()
    with closing(ground), function_peers.ray() as ray, function_peers.bullmq() as bullmq:
        for options, bars in ((ONE_BOT, ON_ONE_BOT), (("--bots=2",), ON_TWO_BOTS)):
            if here := [bar for bar in wanted if bar in bars]:
                with local_cluster(*options) as (client, _):
                    peers = {"ray": ray, "bullmq": bullmq}
                    measure_each(here, Bench(client, peers, ground, QUICK if quick else Sizes()))
