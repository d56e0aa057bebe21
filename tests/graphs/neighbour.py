"""Somebody else's work beside a test: submits one task after the other and sees how soon each reaches a bot.

In a process of its own, with its bots, so that its delays are those of the server and not those of the test:

    with neighbour(server) as other:
        other.begin("run")           # what the test does from now on
    other.phases["run"]              # the delays in seconds meanwhile, sorted

As a program it reads the names of phases from its standard input, and writes the delays by phase when that ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.deadline import HANG_S
from tests.live import LiveServer, ServerCalls
from tests.server.wire import WireBot

POOL = "neighbour"
FIRST = "alone"


class Neighbour:
    """The process, as the test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.phases: dict[str, list[float]] = {}

    def begin(self, phase: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{phase}\n")
        self._process.stdin.flush()

    def wait_until_it_was_alone(self) -> None:
        """Return when it has made enough tasks to know its delays without others."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == FIRST

    def end(self) -> None:
        out, _ = self._process.communicate(timeout=HANG_S)
        assert self._process.returncode == 0
        self.phases = json.loads(out)


@contextmanager
def neighbour(server: LiveServer, *, tasks_alone: int = 300) -> Iterator[Neighbour]:
    words = [sys.executable, "-m", "tests.graphs.neighbour", server.url, server.token, str(tasks_alone)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    made = Neighbour(process)
    try:
        yield made
        made.end()
    finally:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- the program


class Bot:
    """Finishes at once what it gets; ``arrived`` has the tasks by name with the times at which they came."""

    def __init__(self, calls: ServerCalls, name: str, arrived: dict[str, float], news: threading.Condition) -> None:
        self._wire = WireBot(calls, name)
        self._wire.dimensions = {"id": [name], "pool": [POOL]}
        self._wire.shake()
        self._arrived = arrived
        self._news = news

    def work(self, over: threading.Event) -> None:
        reports: list[Any] = []
        while not over.is_set() or reports:
            tasks = self._wire.exchange(n=1, wait_s=0.5, reports=reports)["tasks"]
            now = time.perf_counter()
            with self._news:
                self._arrived.update((task["name"], now) for task in tasks)
                self._news.notify_all()
            reports = [self._wire.finish_of(task) for task in tasks]


def main(url: str, token: str, tasks_alone: int) -> None:
    calls, phases, over = ServerCalls(url, token), {FIRST: list[float]()}, threading.Event()
    phase, arrived, news = [FIRST], dict[str, float](), threading.Condition()
    bots = [Bot(calls, f"{POOL}-{number}", arrived, news) for number in range(2)]

    def listen() -> None:
        for line in sys.stdin:
            phase[0] = line.strip()
        over.set()

    with ThreadPoolExecutor(len(bots) + 1) as threads:
        working = [threads.submit(bot.work, over) for bot in bots] + [threads.submit(listen)]
        number = 0
        while not over.is_set():
            number += 1
            during = phase[0]
            phases.setdefault(during, []).append(_delay(calls, f"task-{number}", arrived, news))
            if number == tasks_alone:
                print(FIRST, flush=True)
        for work in working:
            work.result(HANG_S)
    print(json.dumps({name: sorted(delays) for name, delays in phases.items()}))


def _delay(calls: ServerCalls, name: str, arrived: dict[str, float], news: threading.Condition) -> float:
    """Submit a task; the seconds until a bot had it."""
    properties = {"dimensions": {"pool": [POOL]}, "command": ["true"]}
    began = time.perf_counter()
    status, answer = calls.post("/api/v1/tasks", {"tasks": [{"name": name, "slices": [{"properties": properties}]}]})
    assert status == 200, answer
    with news:
        assert news.wait_for(lambda: name in arrived, HANG_S), name
    return arrived[name] - began


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
