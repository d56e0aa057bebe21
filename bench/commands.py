"""Commands on real bots: how much of a bare loop is left, how long one takes, and what output costs.

`myrmidon up` with two bots, its defaults and a database on a real disk; the client is the SDK. Whatever a bar compares
is measured in turn, round by round, so that a busy machine changes both.

    W4               1,000 x /bin/true with log and exit code, as a share of bare subprocess.run loops in 2 processes
                     that have already started
    W4-latency       one /bin/true from submit to its result, p50, over a bare subprocess.run
    W4-latency-p99   its p99 over its p50
    log-rate         MB/s of output streamed by both bots together
    log-flood        slowdown of commands on one bot beside floods of output on the other
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bench import peers
from bench.bars import Bar, measure_each, note
from bench.bed import real_disk
from myrmidon.sdk.client import Client
from myrmidon.sdk.transport import Transport

TRUE = ["/bin/true"]
BARE = """import subprocess, sys
print(flush=True)
sys.stdin.readline()
for _ in range({}): subprocess.run(['/bin/true'], capture_output=True)
print(flush=True)"""
FLOODS = {
    "1 GB of text": (1000, 1, "sys.stdout.buffer.write((b'x' * 127 + b'\\n') * 7813)"),
    "a line of 100 MB": (100, 2, "sys.stdout.buffer.write(b'y' * 1_000_000)"),
    "100 MB of binary": (100, 2, "sys.stdout.buffer.write(os.urandom(1_000_000))"),
}
"""Megabytes, how often it is measured for each time that the longest one is, and how a program writes a megabyte."""


class Sizes(NamedTuple):
    tasks: int = 1_000
    rounds: int = 25
    ones: int = 1_000
    stream_mb: int = 90
    beside: int = 1_000
    floods: int = 9
    flood: float = 1.0
    peers: bool = True


QUICK = Sizes(tasks=50, rounds=1, ones=10, stream_mb=2, beside=20, floods=1, flood=0.01, peers=False)


@contextmanager
def local_cluster(*options: str, database: str | None = None) -> Iterator[tuple[Client, list[str]]]:
    """`myrmidon up` with these options, and the ids of its bots; two bots unless an option says otherwise."""
    folder = Path(tempfile.mkdtemp(prefix="myrmidon-bench-", dir=real_disk()))
    if database is not None:
        (folder / "settings.toml").write_text(f'database = "{database}"\n')
        options += (f"--config={folder / 'settings.toml'}",)
    words = [sys.executable, "-m", "myrmidon", "up", "--json", "--port=0", f"--data-dir={folder}", *options]
    up = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if up.stdout is None:
            raise RuntimeError("no pipe to the server")
        told = json.loads(up.stdout.readline() or "{}")
        with Client(Transport(told["server"], (folder / "admin.token").read_text().strip())) as client:
            yield client, sorted(bot.bot_id for bot in client.bots().bots)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def a_task(command: Sequence[str], **dimensions: list[str]) -> dict[str, Any]:
    properties = {"dimensions": {"pool": ["default"], **dimensions}, "command": list(command)}
    return {"name": "bench", "slices": [{"properties": properties}]}


def run_all(client: Client, tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Submit, and wait until the last one has ended well."""
    ids = [str(one.task_id) for one in client.submit_tasks(tasks)]
    wait_all(client, ids)
    return ids


def wait_all(client: Client, ids: Sequence[str]) -> None:
    left = list(ids)
    while left:
        states = {one.task_id: one.state for one in client.wait(left, all_of=True).tasks}
        if bad := {state for state in states.values() if state not in ("READY", "RUNNING", "SUCCEEDED")}:
            raise RuntimeError(f"a command of the benchmark ended {bad}")
        left = [one for one in left if states[one] != "SUCCEEDED"]


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bare(n: int) -> float:
    """Seconds of the same number of commands in a loop, in two processes, without the start and end of the two."""
    words = [sys.executable, "-c", BARE.format(n // 2)]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        _next_line(one, other)
        return timed(lambda: _next_line(one, other, send=True))


def _next_line(*processes: subprocess.Popen[str], send: bool = False) -> None:
    """Read a line of each process, after a line was sent to each."""
    for process in processes:
        if send:
            print(file=process.stdin, flush=True)
    for process in processes:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("a bare loop has failed")


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half: as deaf to what is far out as the median is, and it varies less."""
    cut = len(values) // 4
    return fmean(sorted(values)[cut : len(values) - cut])


class Bench:
    """Measures on one server with two bots."""

    def __init__(self, client: Client, bots: Sequence[str], sizes: Sizes) -> None:
        self.client = client
        self.bots = bots
        self.sizes = sizes
        self._latency: tuple[float, float, float] | None = None

    def w4(self) -> float:
        """Each round is compared with the bare loops before and after it, as the machine's speed changes."""
        n = self.sizes.tasks
        tasks = [a_task(TRUE) for _ in range(n)]
        run_all(self.client, tasks)  # to warm up
        others = list(peers.installed().values()) if self.sizes.peers else []
        ours, loop = [], [bare(n)]
        for number in range(self.sizes.rounds):
            ours.append(timed(lambda: run_all(self.client, tasks)))
            loop.append(bare(n))
            for command in others[number :: self.sizes.rounds]:
                for name, rate in peers.commands_per_second(command).items():
                    note(f"/bin/true by {name}", f"{rate:,.0f}/s")
        note("/bin/true on two bots", f"{n / median(ours):,.0f}/s")
        note("/bin/true in two bare loops", f"{n / median(loop):,.0f}/s")
        neighbours = [fmean(pair) for pair in pairwise(loop)]
        return middle([bare_s / ours_s for bare_s, ours_s in zip(neighbours, ours, strict=True)])

    def latency(self) -> float:
        p50, _, alone = self._measured_latency()
        return p50 / alone

    def latency_p99(self) -> float:
        p50, p99, _ = self._measured_latency()
        return p99 / p50

    def _measured_latency(self) -> tuple[float, float, float]:
        if self._latency is None:
            ours, alone = [], []
            for _ in range(self.sizes.ones + 10):
                ours.append(timed(lambda: run_all(self.client, [a_task(TRUE)])))
                alone.append(timed(lambda: subprocess.run(TRUE, capture_output=True, check=True)))
            ours, alone = sorted(ours[10:]), sorted(alone[10:])
            p99 = ours[int(len(ours) * 0.99) - 1]
            self._latency = median(ours), p99, median(alone)
            note("one /bin/true, p50, p99", f"{median(ours) * 1e3:.2f} ms, {p99 * 1e3:.2f} ms")
            note("one bare subprocess.run, p50", f"{median(alone) * 1e3:.2f} ms")
        return self._latency

    def log_rate(self) -> float:
        mb = self.sizes.stream_mb
        command = ["head", "-c", str(mb * 1_000_000), "/dev/zero"]
        tasks = [a_task(command, id=[bot]) for bot in self.bots]
        rates = [len(tasks) * mb / timed(lambda: run_all(self.client, tasks)) for _ in range(self.sizes.rounds)]
        note(f"{len(tasks)} x {mb} MB of output", f"{median(rates):.0f} MB/s")
        return median(rates)

    def log_flood(self) -> float:
        """The worst of the floods; before and after each, the same commands without one.

        A busy machine changes by more than a flood does, so each is compared with its own neighbours, and the middle
        half of the comparisons counts.
        """
        here, there = self.bots[:2]
        tasks = [a_task(TRUE, id=[here]) for _ in range(self.sizes.beside)]
        run_all(self.client, tasks)  # to warm up
        worst = 0.0
        for name, (mb, often, write) in FLOODS.items():
            program = f"import os, sys\nfor _ in range({round(mb * self.sizes.flood)}): {write}"
            slower = []
            before = timed(lambda: run_all(self.client, tasks))
            for _ in range(self.sizes.floods * often):
                [flood] = self.client.submit_tasks([a_task([sys.executable, "-c", program], id=[there])])
                beside = timed(lambda: run_all(self.client, tasks))
                wait_all(self.client, [str(flood.task_id)])
                after = timed(lambda: run_all(self.client, tasks))
                slower.append(2 * beside / (before + after))
                before = after
            note(f"beside {name}", f"{middle(slower):.2f} x")
            worst = max(worst, middle(slower))
        return worst


BARS = (
    Bar("W4", "0.6", Bench.w4, at_least=True),
    Bar("W4-latency", "8", Bench.latency),
    Bar("W4-latency-p99", "3", Bench.latency_p99),
    Bar("log-rate", "50", Bench.log_rate, at_least=True),
    Bar("log-flood", "1.1", Bench.log_flood),
)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    with local_cluster() as (client, bots):
        measure_each(wanted, Bench(client, bots, QUICK if quick else Sizes()))
