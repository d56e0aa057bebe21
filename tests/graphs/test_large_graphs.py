"""Large graphs on a real server with simulated bots: wide fans, and 100,000 tasks beside other people's work."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from bench.fleet import resident_kib
from tests.bot.bots import wait_for
from tests.deadline import HANG_S
from tests.graphs.live import Graphs, Job, checked
from tests.live import LiveServer, live_server
from tests.server.wire import WireBot

pytestmark = pytest.mark.untraced
CHILDREN = 10_000
LONG_S = 900.0


class SimulatedBots:
    """Threads that finish at once what they get; the times of arrival by name, for tasks that are asked for."""

    def __init__(self, graphs: Graphs, n: int, *, slots: int = 100) -> None:
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(n)
        self._slots = slots
        self.arrived: dict[str, float] = {}
        self.done = 0
        bots = [graphs.bot(f"{graphs.pool}-{number}") for number in range(n)]
        self._working = [self._threads.submit(self._work, bot) for bot in bots]

    def _work(self, bot: WireBot) -> None:
        reports: list[Any] = []
        while not self._over.is_set() or reports:
            tasks = bot.exchange(n=self._slots, wait_s=0.5, reports=reports)["tasks"]
            now = time.perf_counter()
            self.arrived.update((task["name"], now) for task in tasks)
            reports = [bot.finish_of(task) for task in tasks]
            self.done += len(reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for work in self._working:
            work.result(HANG_S)
        self._threads.shutdown()


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


class Neighbour:
    """Somebody else, who submits one task after the other and sees how soon each reaches a bot."""

    def __init__(self, server: LiveServer) -> None:
        self.graphs = Graphs(server, "neighbour")
        self.bots = SimulatedBots(self.graphs, 2, slots=1)
        self._made = 0
        self.phase = "alone"
        self.phases: dict[str, list[float]] = {}
        """The delays by what the others did meanwhile."""

    def delays(self, until: threading.Event | None = None, n: int = 0) -> list[float]:
        """Seconds from submit to bot of n tasks, or of as many as there is time for."""
        took: list[float] = []
        while len(took) < n or (until is not None and not until.is_set()):
            self._made += 1
            name = f"task-{self._made}"
            properties = {"dimensions": {"pool": ["neighbour"]}, "command": ["true"]}
            began = time.perf_counter()
            body = {"tasks": [{"name": name, "slices": [{"properties": properties}]}]}
            status, answer = self.graphs.server.post("/api/v1/tasks", body)
            assert status == 200, answer
            wait_for(lambda name=name: name in self.bots.arrived, name)
            took.append(self.bots.arrived[name] - began)
            self.phases.setdefault(self.phase, []).append(took[-1])
        return sorted(took)


def p99(delays: list[float]) -> float:
    return delays[len(delays) * 99 // 100]


@pytest.mark.soak
def test_100000_tasks_are_submitted_run_inspected_and_cancelled_while_others_work(tmp_path: Path):
    """Prints the p99 of the neighbour's delays, with and without the graph, and the server's memory."""
    with live_server(folder=tmp_path, sweep_s=1) as server:
        graphs, neighbour, over = Graphs(server, "huge"), Neighbour(server), threading.Event()
        with neighbour.bots, ThreadPoolExecutor(1) as threads:
            alone = neighbour.delays(n=300)
            before = resident_kib(server.pid)
            beside = threads.submit(neighbour.delays, over)
            try:
                most = _live_half(graphs, neighbour)
            finally:
                over.set()
            busy = beside.result(HANG_S)
        ratio = p99(busy) / p99(alone)
        for phase, delays in neighbour.phases.items():
            shown = f"p99 {1000 * p99(sorted(delays)):.1f} ms, slowest {1000 * max(delays):.1f} ms"
            print(f"{phase:>8}: {len(delays)} tasks, {shown}")
        print(f"ratio {ratio:.2f} (target 3); the server grew from {before >> 10} to {most >> 10} MiB")
        checked(server)


def _live_half(graphs: Graphs, neighbour: Neighbour) -> int:
    """Submit, run, inspect and cancel the large graph; the server's memory in KiB when it was largest."""
    server, layers, width = graphs.server, 100, 1000
    document = {
        "name": "huge",
        "tasks": {
            f"n{layer}-{place}": graphs.node(
                "true", *([f"n{layer - 1}-{(place + step) % width}" for step in range(3)] if layer else [])
            )
            for layer in range(layers)
            for place in range(width)
        },
    }
    body = json.dumps({"job": document}).encode()
    began, neighbour.phase = time.perf_counter(), "submit"
    answer = server.call("POST", "/api/v1/jobs", body, timeout=LONG_S)
    assert answer.status == 200, answer.data[:500]
    print(f"\nsubmitted {len(body) >> 20} MiB in {time.perf_counter() - began:.1f} s")
    memory = resident_kib(server.pid)
    job = Job(server, json.loads(answer.data))
    neighbour.phase = "run"
    with SimulatedBots(graphs, 4, slots=10) as bots:
        end = time.monotonic() + LONG_S
        while job.show()["num_succeeded"] < layers * width // 2:
            assert time.monotonic() < end
            time.sleep(1)  # else this loop itself would be the load
        began, neighbour.phase = time.perf_counter(), "inspect"
        status, graph = server.get(f"/api/v1/jobs/{job.id}/graph")
        print(f"the graph in groups took {time.perf_counter() - began:.1f} s")
        assert (status, graph["num_nodes"], len(graph["groups"])) == (200, layers * width, layers)
        assert sum(group["num_nodes"] for group in graph["groups"]) == layers * width
        assert sum(job.show()["counts"].values()) == layers * width
        neighbour.phase = "cancel"
        assert job.do("cancel")["state"] == "CANCELLED"
        wait_for(lambda: not job.show()["busy"], "the end of the cancel")
    assert bots.done < layers * width
    counts = job.show()["counts"]
    assert set(counts) <= {"SUCCEEDED", "CANCELED", "KILLED"}
    assert sum(counts.values()) == layers * width
    return max(memory, resident_kib(server.pid))
