"""The web page with a million tasks: `make bench-ui`, or `python -m bench.ui [--only NAME,NAME] [--quick] [--long]`.

    ui-first-view   ms until the first page shows its charts and lists, in a browser that has loaded nothing yet
    ui-first-load   KB that this loads, compressed, without answers of the API
    ui-tasks ...    ms that the server takes for the slowest of some lists, 95th percentile: tasks, counts, jobs, bots,
                    queues, functions, values, search, series
    ui-graph        ms until the graph of a job with 10,000 tasks is drawn
    ui-log          ms until the last line of a log with 1,000,000 lines is seen
    ui-memory       MB by which four pages have grown while tasks came and went; for half an hour with --long

A real server on SQLite, fully durable, on a real disk, and Chromium on the same machine.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import BrowserContext

from bench import bars, page_lists, page_rows, page_views
from bench.bars import Bar, note
from bench.bed import real_disk
from bench.graphs import layered
from tests.live import LiveServer, live_server

LISTS = ("tasks", "counts", "jobs", "bots", "queues", "functions", "values", "search", "series")
PAGES = ("/", "/tasks", "/system/events")


class Sizes(NamedTuple):
    rows: page_rows.Sizes = page_rows.Sizes()
    calls: int = 40
    rounds: int = 5
    graph: tuple[int, int] = (100, 100)
    lines: int = 1_000_000
    memory_s: float = 60.0


QUICK = Sizes(rows=page_rows.SMALL, calls=3, rounds=1, graph=(10, 30), lines=20_000, memory_s=3.0)
HALF_AN_HOUR = 1800.0


class Bed:
    """The server with its rows, and a browser."""

    def __init__(self, sizes: Sizes, server: LiveServer, browser: BrowserContext, log: page_rows.LongLog) -> None:
        self.sizes = sizes
        self.server = server
        self.browser = browser
        self.log = log
        self.lists = page_lists.groups(server)

    def slowest(self, name: str) -> float:
        return page_lists.slowest(self.server, self.lists[name], self.sizes.calls)

    def first_view(self) -> float:
        return page_views.first_view_ms(self.browser, self.server, self.sizes.rounds)

    def first_load(self) -> float:
        return page_views.first_load_kb(self.browser, self.server)

    def graph(self) -> float:
        layers, width = self.sizes.graph
        status, made = self.server.post("/api/v1/jobs", {"job": layered(layers, width)})
        if status != 200:
            raise RuntimeError(f"a job of {layers * width} tasks: {status} {made}")
        return page_views.graph_ms(self.browser, self.server, made["job_id"], self.sizes.rounds)

    def log_end(self) -> float:
        return page_views.log_ms(self.browser, self.server, self.log.task, self.log.last_line, self.sizes.rounds)

    def memory(self) -> float:
        return page_views.memory_growth_mb(self.browser, self.server, PAGES, self.sizes.memory_s)


BARS = (
    Bar("ui-first-view", "1000", Bed.first_view),
    Bar("ui-first-load", "180", Bed.first_load),
    *[Bar(f"ui-{name}", "200", partial(Bed.slowest, name=name)) for name in LISTS],
    Bar("ui-graph", "2000", Bed.graph),
    Bar("ui-log", "500", Bed.log_end),
    Bar("ui-memory", "2", Bed.memory),
)


@contextmanager
def a_bed(sizes: Sizes) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="ui-", dir=real_disk()) as folder:
        place = Path(folder)
        began = time.perf_counter()
        log = page_rows.fill(place / "ui.db", sizes.rows, lines=sizes.lines)
        note(f"{sizes.rows.tasks:,} tasks stored in", f"{time.perf_counter() - began:.0f} s")
        with (
            live_server(f"sqlite:///{place / 'ui.db'}", folder=place) as server,
            page_views.a_browser(server) as browser,
        ):
            yield Bed(sizes, server, browser, log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAMES", help="the bars to measure, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--long", action="store_true", help="watch the memory of the page for half an hour")
    asked = parser.parse_args()
    wanted = bars.chosen(BARS, asked.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else its files, its server and its browser would stay
    sizes = QUICK if asked.quick else Sizes()
    if asked.long:
        sizes = sizes._replace(memory_s=HALF_AN_HOUR)
    with a_bed(sizes) as bed:
        bars.measure_each(wanted, bed)


if __name__ == "__main__":
    main()
