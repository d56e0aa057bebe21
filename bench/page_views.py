"""The web page in a real browser: how long until something is seen, how much is loaded, and what stays in memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from playwright.sync_api import BrowserContext, CDPSession, Page, sync_playwright

from bench.bars import note
from tests.live import LiveServer
from tests.server.wire import WireBot, piece

MB = 1 << 20
WAIT_MS = 120_000
# What is measured is the time of the page itself, from the start of the navigation to the frame that shows the content.
HOME_SHOWN = (
    "() => document.querySelector('main canvas') && document.querySelector('main tbody tr') && performance.now()"
)
GRAPH_SHOWN = "() => document.querySelectorAll('main svg g[role=button]').length > 1 && performance.now()"
LOG_SHOWN = "(text) => document.querySelector('[role=log]')?.textContent.includes(text) && performance.now()"
LOADED_BYTES = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter(one => !new URL(one.name).pathname.startsWith('/api/'))
    .reduce((sum, one) => sum + one.encodedBodySize, 0)"""


@contextmanager
def a_browser(server: LiveServer) -> Iterator[BrowserContext]:
    """A browser that is signed in."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(base_url=server.url)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.goto("/login")
        page.get_by_label("Token").fill(server.token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Home").wait_for()
        page.close()
        yield context
        browser.close()


def _fresh(context: BrowserContext) -> BrowserContext:
    """A browser that has loaded nothing yet, signed in."""
    browser = context.browser
    assert browser is not None
    fresh = browser.new_context(storage_state=context.storage_state())
    fresh.set_default_timeout(WAIT_MS)
    return fresh


def _time_of(page: Page, address: str, shown: str, arg: Any = None) -> float:
    page.goto(address, wait_until="commit")
    return float(page.wait_for_function(shown, arg=arg).json_value())


def first_view_ms(context: BrowserContext, server: LiveServer, rounds: int) -> float:
    """Until the first page shows its charts and lists, in a browser that has loaded nothing yet."""
    times = []
    for _ in range(rounds):
        fresh = _fresh(context)
        times.append(_time_of(fresh.new_page(), server.url, HOME_SHOWN))
        fresh.close()
    return median(times)


def first_load_kb(context: BrowserContext, server: LiveServer) -> float:
    """The compressed bytes of the first page: document, scripts, styles, without answers of the API."""
    fresh = _fresh(context)
    page = fresh.new_page()
    _time_of(page, server.url, HOME_SHOWN)
    size = float(page.evaluate(LOADED_BYTES))
    fresh.close()
    return size / 1000


def graph_ms(context: BrowserContext, server: LiveServer, job: str, rounds: int) -> float:
    """Until the graph of a job is laid out and drawn."""
    page = context.new_page()
    times = [_time_of(page, f"{server.url}/jobs/{job}/graph", GRAPH_SHOWN) for _ in range(rounds + 1)]
    page.close()
    return median(times[1:])


def log_ms(context: BrowserContext, server: LiveServer, task: str, last_line: str, rounds: int) -> float:
    """Until the last line of a log is seen."""
    page = context.new_page()
    times = [_time_of(page, f"{server.url}/tasks/{task}", LOG_SHOWN, last_line) for _ in range(rounds + 1)]
    page.close()
    return median(times[1:])


# ---------------------------------------------------------------- memory

SAMPLES = 30
PACE_S = 0.1
"""Between two changes: the stream tells of them twice a second, so that more of them would only load the machine."""


class Usage:
    """What a page keeps: bytes of its heap, elements of its document and listeners, after a collection."""

    def __init__(self, session: CDPSession) -> None:
        for _ in range(2):  # what is collected first can release more
            session.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        self.heap_mb = float(session.send("Runtime.getHeapUsage")["usedSize"]) / MB
        self.nodes = int(found["Nodes"])
        self.listeners = int(found["JSEventListeners"])


class Writer:
    """A bot whose task writes a log, so that the page of the task follows it."""

    LINES = 100
    """Of one piece: after a minute or two the page has as many lines as it keeps."""

    def __init__(self, server: LiveServer) -> None:
        self._bot = WireBot(server, "writer")
        self._bot.dimensions = {"id": ["writer"], "pool": ["logs"]}
        self._bot.shake()
        properties = {"command": ["true"], "dimensions": {"pool": ["logs"]}}
        server.post("/api/v1/tasks", {"tasks": [{"name": "writes", "slices": [{"properties": properties}]}]})
        [self._run] = self._bot.work()
        self._bot.start(self._run)
        self._written = 0

    @property
    def path(self) -> str:
        return f"/tasks/{self._run['task_id']}"

    def write(self) -> None:
        data = b"".join(b"%07d a line of a log\n" % (self._written + n) for n in range(self.LINES))
        held = [[self._run["run"], self._run["token"]]]
        self._bot.exchange(n=0, holds=held, logs=[piece(self._run, 0, self._written, data)])
        self._written += len(data)


def memory_growth_mb(context: BrowserContext, server: LiveServer, pages: Sequence[str], seconds: float) -> float:
    """How much the pages, and that of a task whose log grows, have grown together while tasks came and went: the
    median of the last third of the samples less that of the first third."""
    writer = Writer(server)
    opened: dict[str, CDPSession] = {}
    for path in (*pages, writer.path):
        page = context.new_page()
        page.goto(server.url + path)
        page.get_by_text("● live").wait_for()
        opened[path] = context.new_cdp_session(page)
        opened[path].send("Performance.enable")
    changes = 0
    samples: list[list[Usage]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(samples) < 9:
        changes += _change(server)
        writer.write()
        time.sleep(PACE_S)
        if (time.monotonic() - began) / seconds * SAMPLES >= len(samples):
            samples.append([Usage(session) for session in opened.values()])
    third = len(samples) // 3
    parts = {"first": samples[:third], "middle": samples[third:-third], "last": samples[-third:]}
    for nth, path in enumerate(opened):
        for part, some in parts.items():
            note(f"{path}: heap, elements, listeners, {part} third", _medians(some, nth))
    note("changes of tasks meanwhile", f"{changes:,}")
    return _total(parts["last"]) - _total(parts["first"])


def _medians(samples: list[list[Usage]], nth: int) -> str:
    heap = median(sample[nth].heap_mb for sample in samples)
    nodes = median(sample[nth].nodes for sample in samples)
    listeners = median(sample[nth].listeners for sample in samples)
    return f"{heap:.2f} MB, {nodes:.0f}, {listeners:.0f}"


def _total(samples: list[list[Usage]]) -> float:
    return median(sum(usage.heap_mb for usage in sample) for sample in samples)


def _change(server: LiveServer) -> int:
    """Ten tasks come and are cancelled; how many changes that were."""
    properties = {"command": ["true"], "dimensions": {"pool": ["default"], "rack": ["none"]}}
    request = {"name": "comes and goes", "slices": [{"properties": properties, "wait_for_capacity": True}]}
    status, made = server.post("/api/v1/tasks", {"tasks": [request] * 10})
    ids = [task["task_id"] for task in made["tasks"]]
    cancelled, answer = server.post("/api/v1/tasks/batch", {"action": "cancel", "task_ids": ids})
    if (status, cancelled) != (200, 200):
        raise RuntimeError(f"{made} {answer}")
    return 2 * len(ids)
