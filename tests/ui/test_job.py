"""A job's page: what failed, the graph, the times, the table; and a job that is repaired."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cli.conftest import Up
from tests.deadline import HANG_S
from tests.ui.conftest import Api, Visit

pytestmark = pytest.mark.full


def failing_job(api: Api, repaired: Path, size: int) -> str:
    """A job whose tests 3 and 5 fail until the file ``repaired`` exists."""
    tests = {
        f"test-{n}": (
            f"[ -e '{repaired}' ] || {{ echo 'AssertionError: case {n} is wrong' >&2; exit 1; }}"
            if n in (3, 5)
            else "true",
            ["build"],
        )
        for n in range(size)
    }
    return api.submit_job("repairable", {"build": ("true", []), **tests, "report": ("echo done", list(tests))})


@pytest.mark.short
def test_a_job_fails_is_understood_and_is_repaired(visit: Visit, api: Api, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"
    job = failing_job(api, repaired, 300)
    assert api.wait_for_job(job) == "FAILED"
    page = visit(f"/jobs/{job}")
    expect(page.get_by_role("heading", name="failed repairable")).to_be_visible()
    expect(page.get_by_role("heading", name="AssertionError: case 3 is wrong")).to_be_visible()
    expect(page.get_by_text("2 tasks", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="test-5", exact=True).last).to_be_visible()
    repaired.touch()
    page.get_by_role("button", name="Rerun failed part").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("will run again")).to_be_visible()
    dialog.get_by_role("button", name="Rerun failed part", exact=True).click()
    expect(page.get_by_role("heading", name="succeeded repairable")).to_be_visible()
    expect(page.get_by_text("Every task succeeded")).to_be_visible()


PROGRAM = """
from myrmidon import Client, task

@task
def parse(text: str) -> int:
    return int(text)

if __name__ == "__main__":
    with Client() as client:
        with client.new_job("parsing", fail_fast=False) as job:
            job.map(parse, ["one", "two"])
        job.wait()
        print(job.id)
"""


@pytest.mark.short
def test_failed_functions_are_shown_with_their_exception_by_place(visit: Visit, up: Up, tmp_path: Path) -> None:
    file = tmp_path / "report.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file)]
    job = subprocess.check_output(command, env=up.terminal.env, text=True, timeout=HANG_S, cwd=tmp_path).strip()
    page = visit(f"/jobs/{job}")
    group = page.get_by_role("heading", name="ValueError: invalid literal for int() with base 10: 'one'")
    expect(group).to_contain_text("raised at main_report.py:6 in parse")
    expect(page.get_by_text("2 tasks", exact=True).last).to_be_visible()
    expect(page.get_by_text("Traceback (most recent call last):")).to_have_count(1)
    expect(page.get_by_text("return int(text)")).to_be_visible()
    page.get_by_role("link", name="parse[1]", exact=True).last.click()
    expect(page.get_by_text("It raised ValueError at main_report.py:6 in parse.").first).to_be_visible()
    expect(page.get_by_text("ValueError: invalid literal for int() with base 10: 'two'").first).to_be_visible()
    expect(page.get_by_text("exited with code")).to_have_count(0)


@pytest.mark.short
def test_the_graph_stacks_siblings_and_opens_them(visit: Visit, api: Api, tmp_path: Path) -> None:
    job = failing_job(api, tmp_path / "never", 12)
    api.wait_for_job(job)
    page = visit(f"/jobs/{job}/graph")
    graph = page.get_by_role("group", name="Graph of the job")
    expect(graph.get_by_role("button")).to_have_count(3)
    graph.get_by_role("button", name="test \u00d712").click()
    expect(graph.get_by_role("button")).to_have_count(14)
    graph.get_by_role("button", name="test-3: failed").press("Enter")
    expect(page.get_by_role("heading", name="failed test-3")).to_be_visible()


def test_the_times_of_a_job_are_drawn_while_it_runs(visit: Visit, api: Api, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    job = api.submit_job(
        "still running", {"a": ("true", []), "b": (f"while [ ! -e '{go_on}' ]; do sleep 0.1; done", ["a"])}
    )
    page = visit(f"/jobs/{job}/time")
    expect(page.get_by_text("Critical path:")).to_be_visible()
    expect(page.get_by_text("a → b")).to_be_visible()
    assert page.locator("canvas").evaluate(
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x)"
    )
    go_on.touch()
    expect(page.get_by_role("heading", name="succeeded still running")).to_be_visible()


def test_the_tasks_of_a_job_are_a_table_too(visit: Visit, api: Api, tmp_path: Path) -> None:
    job = failing_job(api, tmp_path / "never", 12)
    api.wait_for_job(job)
    page = visit(f"/jobs/{job}/tasks")
    expect(page.get_by_role("row")).to_have_count(15)
    page.get_by_role("combobox", name="State").select_option("FAILED")
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_role("combobox", name="State").select_option("")
    page.get_by_label("Filter by label").fill("test-1")
    expect(page.get_by_role("row")).to_have_count(4)


def test_jobs_of_one_name_show_their_last_runs(visit: Visit, api: Api) -> None:
    for _ in range(3):
        assert api.wait_for_job(api.submit_job("nightly", {"a": ("true", [])})) == "SUCCEEDED"
    page = visit("/jobs?view=names")
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(4)
