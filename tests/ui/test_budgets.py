"""What the benchmark of the page measures, in small: every bar is measured, and an open page does not grow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from bench.page_views import LOADED_BYTES, Usage
from bench.ui import BARS
from tests.deadline import HANG_S
from tests.ui.conftest import ROOT, Api, Visit

LINE = re.compile(r"bar (\S+) \d+\.\d\d \d+ (?:ok|short)")
MEASURED = ["ui-first-load", "ui-tasks", "ui-graph", "ui-log", "ui-memory"]
KEPT_MB = 3.0
"""More than compiled code and caches take; less than tasks that are not shown any more would take."""


@pytest.mark.full
def test_a_quick_run_of_the_benchmark_measures_every_bar_that_is_asked_for(built_page: Path) -> None:
    assert set(MEASURED) < {bar.name for bar in BARS}
    words = [sys.executable, "-m", "bench.ui", "--quick", "--only", ",".join(MEASURED)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=5 * HANG_S)
    assert ran.returncode == 0, ran.stderr
    found = [LINE.fullmatch(line) for line in ran.stdout.splitlines()]
    assert [one[1] for one in found if one] == MEASURED


def test_the_first_load_is_small(built_page: Path, visit: Visit) -> None:
    page = visit("/")
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    expect(page.locator("main canvas").first).to_be_visible()
    assert page.evaluate(LOADED_BYTES) <= 180_000


@pytest.mark.full
def test_an_open_page_does_not_grow_while_tasks_come_and_go(visit: Visit, api: Api) -> None:
    page = visit("/tasks?tag=grows:yes")
    expect(page.get_by_text("No task matches these filters")).to_be_visible()
    for number in range(4):  # the list is full then
        _come_and_go(page, api, number)
    before = _usage(page)
    for number in range(4, 7):
        _come_and_go(page, api, number)
    after = _usage(page)
    assert (after.nodes, after.listeners) <= (before.nodes + 50, before.listeners + 10)
    assert after.heap_mb - before.heap_mb < KEPT_MB


def _come_and_go(page: Page, api: Api, number: int) -> None:
    properties = {"command": ["true"], "dimensions": {"pool": ["default"], "rack": ["none such"]}}
    piece = {"properties": properties, "wait_for_capacity": True}
    names = [f"round {number} task {n}" for n in range(30)]
    requests = [{"name": name, "tags": ["grows:yes"], "slices": [piece]} for name in names]
    made = api.call("POST", "/api/v1/tasks", {"tasks": requests})["tasks"]
    api.call("POST", "/api/v1/tasks/batch", {"action": "cancel", "task_ids": [task["task_id"] for task in made]})
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=names[-1], exact=True))
    expect(row.get_by_text("cancelled")).to_be_visible()


def _usage(page: Page) -> Usage:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    usage = Usage(session)
    session.detach()
    return usage
