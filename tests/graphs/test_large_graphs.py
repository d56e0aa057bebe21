"""Large graphs on a real server with simulated bots: wide fans, and 100,000 tasks beside other people's work."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Self

import pytest

from bench.fleet import resident_kib
from tests.bot.bots import wait_for
from tests.deadline import HANG_S
from tests.graphs.live import Graphs, Job, checked
from tests.graphs.neighbour import FIRST, Neighbour, neighbour
from tests.live import live_server
from tests.server.wire import WireBot

pytestmark = pytest.mark.untraced
CHILDREN = 10_000
LAYERS, WIDTH = 100, 1_000
LONG_S = 900.0


class SimulatedBots:
    """Threads that finish at once what they get."""

    def __init__(self, graphs: Graphs, n: int, *, slots: int = 100) -> None:
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(n)
        self._slots = slots
        self.done = 0
        bots = [graphs.bot(f"{graphs.pool}-{number}") for number in range(n)]
        self._working = [self._threads.submit(self._work, bot) for bot in bots]

    def _work(self, bot: WireBot) -> None:
        reports: list[Any] = []
        while not self._over.is_set() or reports:
            tasks = bot.exchange(n=self._slots, wait_s=0.5, reports=reports)["tasks"]
            reports = [bot.finish_of(task) for task in tasks]
            self.done += len(reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for work in self._working:
            work.result(HANG_S)
        self._threads.shutdown()


@pytest.mark.full
def test_a_fan_out_and_fan_in_of_10000_tasks_ends_and_no_task_runs_twice():
    with live_server(sweep_s=0.5) as server:
        graphs = Graphs(server, "wide")
        children = [f"c-{number}" for number in range(CHILDREN)]
        tasks = {"root": graphs.node(), **{label: graphs.node("true", "root") for label in children}}
        job = graphs.submit({**tasks, "all": graphs.node("true", *children)})
        with SimulatedBots(graphs, 4):
            assert job.wait()["counts"] == {"SUCCEEDED": CHILDREN + 2}
        status, graph = server.get(f"/api/v1/jobs/{job.id}/graph")
        assert status == 200
        assert [(group["prefix"], group["depth"], group["num_nodes"]) for group in graph["groups"]] == [
            ("root", 0, 1), ("c", 1, CHILDREN), ("all", 2, 1),
        ]  # fmt: skip
        assert {task["run"][-2:] for task in job.tasks().values()} == {"01"}
        assert job.events() == ["running", "finished"]
        checked(server)


# ---------------------------------------------------------------- 100,000 tasks beside other work


def p99(delays: list[float]) -> float:
    return delays[len(delays) * 99 // 100]


def _huge_document(graphs: Graphs) -> bytes:
    """100 layers of 1,000 tasks, each of which requires three of the layer before."""
    tasks = {
        f"n{layer}-{place}": graphs.node(
            "true", *([f"n{layer - 1}-{(place + step) % WIDTH}" for step in range(3)] if layer else [])
        )
        for layer in range(LAYERS)
        for place in range(WIDTH)
    }
    return json.dumps({"job": {"name": "huge", "tasks": tasks}}).encode()


@pytest.mark.soak
def test_100000_tasks_are_submitted_run_inspected_and_cancelled_while_others_work(tmp_path: Path):
    """Prints the p99 of the neighbour's delays, with and without the graph, and the server's memory."""
    with live_server(folder=tmp_path, sweep_s=1) as server:
        graphs = Graphs(server, "huge")
        body = _huge_document(graphs)
        with neighbour(server) as other:
            other.wait_until_it_was_alone()
            before = resident_kib(server.pid)
            most = _live_half(graphs, other, body)
        for phase, delays in other.phases.items():
            shown = f"p99 {1000 * p99(delays):.1f} ms, slowest {1000 * max(delays):.1f} ms"
            print(f"{phase:>8}: {len(delays)} tasks, p50 {1000 * median(delays):.1f} ms, {shown}")
        busy = sorted(delay for phase, delays in other.phases.items() if phase != FIRST for delay in delays)
        ratio = p99(busy) / p99(other.phases[FIRST])
        print(f"ratio {ratio:.2f} (target 3); the server grew from {before >> 10} to {most >> 10} MiB")
        checked(server)


def _live_half(graphs: Graphs, other: Neighbour, body: bytes) -> int:
    """Submit, run, inspect and cancel the large graph; the server's memory in KiB when it was largest."""
    server = graphs.server
    other.begin("submit")
    began = time.perf_counter()
    answer = server.call("POST", "/api/v1/jobs", body, timeout=LONG_S)
    assert answer.status == 200, answer.data[:500]
    print(f"\nsubmitted {len(body) >> 20} MiB in {time.perf_counter() - began:.1f} s")
    memory = resident_kib(server.pid)
    job = Job(server, json.loads(answer.data))
    other.begin("run")
    with SimulatedBots(graphs, 4, slots=10) as bots:
        end = time.monotonic() + LONG_S
        while job.show()["num_succeeded"] < LAYERS * WIDTH // 2:
            assert time.monotonic() < end
            time.sleep(1)  # else this loop itself would be the load
        other.begin("inspect")
        began = time.perf_counter()
        status, graph = server.get(f"/api/v1/jobs/{job.id}/graph")
        print(f"the graph in groups took {time.perf_counter() - began:.1f} s")
        assert (status, graph["num_nodes"], len(graph["groups"])) == (200, LAYERS * WIDTH, LAYERS)
        assert sum(group["num_nodes"] for group in graph["groups"]) == LAYERS * WIDTH
        assert sum(job.show()["counts"].values()) == LAYERS * WIDTH
        other.begin("cancel")
        assert job.do("cancel")["state"] == "CANCELLED"
        wait_for(lambda: not job.show()["busy"], "the end of the cancel")
    assert bots.done < LAYERS * WIDTH
    counts = job.show()["counts"]
    assert set(counts) <= {"SUCCEEDED", "CANCELLED", "KILLED"}
    assert sum(counts.values()) == LAYERS * WIDTH
    return max(memory, resident_kib(server.pid))
