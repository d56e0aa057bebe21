"""Swarming's API v1: what its words cost, and what a million tasks do to its lists and counts.

    v1-submit     tasks/new calls per second, as a share of single submits to /api/v1
    v1-list-1M    time of tasks/list with a tag and a state, at 1,000,000 tasks over that at 1,000
    v1-count-1M   likewise for tasks/count

Real servers on SQLite, fully durable, on a real disk. The tasks of the large one are those of the small one, again and
again, a minute apart: one in ten has failed, every one carries the tag that is asked for. Whatever a bar compares is
measured in turn.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.bars import Bar, measure_each, note
from bench.bed import BOT, Bed, real_disk
from bench.fleet import Connection
from myrmidon.model.task_result import Finish
from myrmidon.scheduler import report
from myrmidon.store.engine.table_copy import tables
from tests.live import LiveServer, live_server

API = "/_ah/api/swarming/v1/"
TAG = "pool:default"
LIST = f"{API}tasks/list?tags={TAG}&state=COMPLETED_FAILURE&limit=50"
COUNT = f"{API}tasks/count?start=0&tags={TAG}&state=COMPLETED_SUCCESS"
MORE_COUNTS = {
    "a state alone": f"{API}tasks/count?start=0&state=COMPLETED",
    "two tags that all tasks carry": f"{API}tasks/count?start=0&tags={TAG}&tags=os:Linux",
    "a rare tag": f"{API}tasks/count?start=0&tags=build:7&state=COMPLETED_SUCCESS",
}
MORE_LISTS = {
    "a state that is rare": f"{API}tasks/list?tags={TAG}&state=EXPIRED&limit=50",
    "the last that ended": f"{API}tasks/list?tags={TAG}&sort=COMPLETED_TS&limit=50",
}
COPIED = ("task_requests", "task_tags", "task_results", "task_runs")
MINUTE = 60_000_000
STEP = (MINUTE // 1000) << 20
FAILS = 10


class Sizes(NamedTuple):
    tasks: int = 1_000
    copies: int = 1_000
    calls: int = 200
    connections: int = 8
    rounds: int = 7
    round_s: float = 1.0


QUICK = Sizes(tasks=200, copies=20, calls=5, rounds=1, round_s=0.2)


# ---------------------------------------------------------------- submits


def new_task(number: int) -> dict[str, Any]:
    dimensions = [{"key": "pool", "value": "default"}, {"key": "os", "value": "Linux"}]
    properties = {"command": ["true", str(number)], "dimensions": dimensions, "execution_timeout_secs": "3600"}
    piece = {"expiration_secs": "86400", "properties": properties}
    return {"name": "bench", "priority": "100", "task_slices": [piece], "user": "joe"}


def native_task(number: int) -> dict[str, Any]:
    dimensions = {"pool": ["default"], "os": ["Linux"]}
    properties = {"command": ["true", str(number)], "dimensions": dimensions, "execution_timeout_s": 3600}
    piece = {"expiration_s": 86400, "wait_for_capacity": False, "properties": properties}
    return {"tasks": [{"name": "bench", "priority": 100, "slices": [piece], "user": "joe"}]}


async def submit_rate(server: LiveServer, token: str, path: str, body: Callable[[int], Any], sizes: Sizes) -> float:
    """Submits per second over several kept connections, each of one task."""
    loop = asyncio.get_running_loop()
    texts = [json.dumps(body(number)).encode() for number in range(100)]
    until = time.perf_counter() + sizes.round_s

    async def submit() -> int:
        connection = Connection()
        await loop.create_connection(lambda: connection, "127.0.0.1", server.port)
        done = 0
        while time.perf_counter() < until:
            status, answer = await connection.send(path, token, texts[done % len(texts)])
            if status != 200 or b'"error"' in answer:
                raise RuntimeError(f"{path}: {status} {answer[:300]!r}")
            done += 1
        if connection.transport is not None:
            connection.transport.close()
        return done

    began = time.perf_counter()
    total = sum(await asyncio.gather(*[submit() for _ in range(sizes.connections)]))
    return total / (time.perf_counter() - began)


def submit_share(sizes: Sizes) -> float:
    with a_server() as server:
        hello = {"bot_id": "b1", "session": 1, "dimensions": {"id": ["b1"], "pool": ["default"], "os": ["Linux"]}}
        server.post("/bot/v1/handshake", hello)  # else v1's tasks would find nobody and end at once
        token, ours, theirs = server.token, [], []
        for round_number in range(sizes.rounds + 1):
            native = asyncio.run(submit_rate(server, token, "/api/v1/tasks", native_task, sizes))
            swarming = asyncio.run(submit_rate(server, token, f"{API}tasks/new", new_task, sizes))
            if round_number:  # the first one warms up
                ours.append(native)
                theirs.append(swarming)
        note("single submits by /api/v1", f"{median(ours):,.0f}/s")
        note("single submits by tasks/new", f"{median(theirs):,.0f}/s")
        return median([v1 / native for v1, native in zip(theirs, ours, strict=True)])


@contextmanager
def a_server(database: Path | None = None) -> Iterator[LiveServer]:
    with tempfile.TemporaryDirectory(prefix="v1-", dir=real_disk()) as folder:
        place = database or Path(folder) / "v1.db"
        with live_server(f"sqlite:///{place}", folder=Path(folder)) as server:
            yield server


# ---------------------------------------------------------------- lists and counts


def fill(database: Path, sizes: Sizes, copies: int) -> None:
    """Whole lives of some tasks, and copies of them, each a minute older."""
    bed = Bed(f"sqlite:///{database}")
    try:
        bed.greet()
        for start in range(0, sizes.tasks, 100):
            live(bed, range(start, min(start + 100, sizes.tasks)))
        if copies > 1:
            for table in tables():
                if table.name in COPIED:
                    bed.db.write(partial(copy, table=table.name, columns=table.columns, copies=copies))
    finally:
        bed.close()


def live(bed: Bed, numbers: range) -> None:
    raws = [{**raw, "tags": [f"build:{n}"]} for n, raw in zip(numbers, bed.requests(len(numbers)), strict=True)]
    bed.submit(raws)
    claimed = bed.claim(len(raws))
    ends = [
        Finish(task_id=c.task_id, run=c.run, token=c.token, exit_code=int(n % FAILS == 0), duration=0.1)
        for n, c in zip(numbers, claimed, strict=True)
    ]
    bed.db.write(lambda tx: report.report(tx, BOT, ends, session=1, now=bed.now(), ids=bed.ids))


def moved(column: str, by: str) -> str:
    """A column of a copy: ids and times lie further back."""
    if column in ("id", "task_id"):
        return f"s.{column} - {by} * {STEP}"
    return f"s.{column} - {by} * {MINUTE}" if column.endswith(("_at", "_since")) else f"s.{column}"


def copy(tx: Any, table: str, columns: Sequence[str], copies: int) -> None:
    made = ", ".join(moved(column, "n.value") for column in columns)
    sql = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {made} FROM {{each:copies}} n CROSS JOIN {table} s"
    tx.run(sql, copies=list(range(1, copies)))


class Beds:
    """The small and the large server, made when the first bar asks for them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._found: dict[str, tuple[float, float]] = {}

    def ratio(self, path: str) -> float:
        small, large = self._measured()[path]
        return large / small

    def _measured(self) -> dict[str, tuple[float, float]]:
        if not self._found:
            with tempfile.TemporaryDirectory(prefix="v1-", dir=real_disk()) as folder:
                few, many = Path(folder) / "few.db", Path(folder) / "many.db"
                fill(few, self.sizes, 1)
                began = time.perf_counter()
                fill(many, self.sizes, self.sizes.copies)
                total = self.sizes.tasks * self.sizes.copies
                note(f"{total:,} tasks stored in", f"{time.perf_counter() - began:.0f} s")
                with a_server(few) as small, a_server(many) as large:
                    self._compare(small, large)
        return self._found

    def _compare(self, small: LiveServer, large: LiveServer) -> None:
        self._check(small, large)
        named = {"tasks/list": LIST, **{f"a list of {name}": path for name, path in MORE_LISTS.items()}}
        named |= {"tasks/count": COUNT, **{f"a count of {name}": path for name, path in MORE_COUNTS.items()}}
        for name, path in named.items():
            took = self._times(small, large, path)
            self._found[path] = took
            note(f"{name}, {self.sizes.tasks:,} tasks, {self.sizes.copies} times that", shown(took))

    def _times(self, small: LiveServer, large: LiveServer, path: str) -> tuple[float, float]:
        both: tuple[list[float], list[float]] = [], []
        for _ in range(self.sizes.calls + 5):
            for server, took in zip((small, large), both, strict=True):
                began = time.perf_counter()
                status, answer = server.get(path)
                took.append(time.perf_counter() - began)
                if status != 200:
                    raise RuntimeError(f"{path}: {status} {answer}")
        return median(both[0][5:]), median(both[1][5:])

    def _check(self, small: LiveServer, large: LiveServer) -> None:
        """A wrong answer would be quick, too."""
        for server, copies in ((small, 1), (large, self.sizes.copies)):
            wanted = self.sizes.tasks * copies * (FAILS - 1) // FAILS
            counted = int(server.get(COUNT)[1]["count"])
            listed = len(server.get(LIST)[1]["items"])
            if counted != wanted or listed != min(50, self.sizes.tasks * copies // FAILS):
                raise RuntimeError(f"{counted} tasks were counted instead of {wanted}, {listed} listed")


def shown(took: tuple[float, float]) -> str:
    return f"{took[0] * 1e3:.2f}, {took[1] * 1e3:.2f} ms"


BARS = (
    Bar("v1-submit", "0.7", lambda beds: submit_share(beds.sizes), at_least=True),
    Bar("v1-list-1M", "3", lambda beds: beds.ratio(LIST)),
    Bar("v1-count-1M", "3", lambda beds: beds.ratio(COUNT)),
)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    measure_each(wanted, Beds(QUICK if quick else Sizes()))
