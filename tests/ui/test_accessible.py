"""Every page is checked with axe in both colour schemes: no serious or critical issue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import ROOT, Api
from tests.ui.test_pages import PAGES

pytestmark = pytest.mark.full

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"


def serious(page: Page) -> list[str]:
    """What axe finds, one line for each issue."""
    # Evaluated, not added as an element: the page's security policy would refuse an inline script.
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{issue['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for issue in found["violations"]
        if issue["impact"] in ("serious", "critical")
        for node in issue["nodes"][:3]
    ]


@pytest.fixture(scope="module")
def things(api: Api, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages about one thing."""
    failed = api.submit(r"printf '\033[31mred\033[0m \033[42mon green\033[0m\n'; echo bad >&2; exit 1", name="failed")
    waits = api.submit("true", name="waits", dimensions={"gpu": ["none such"]})
    job = api.submit_job(
        "accessible", {"a": ("false", []), "b": ("true", ["a"]), **{f"c-{n}": ("true", []) for n in range(5)}}
    )
    api.wait(failed)
    api.wait_for_job(job)
    bot = api.call("GET", f"/api/v1/tasks/{failed}")["result"]["bot_id"]
    return {
        "a failed task": f"/tasks/{failed}",
        "a task that waits": f"/tasks/{waits}",
        "failures of a job": f"/jobs/{job}",
        "graph of a job": f"/jobs/{job}/graph",
        "times of a job": f"/jobs/{job}/time",
        "tasks of a job": f"/jobs/{job}/tasks",
        "jobs of a name": "/jobs/name/accessible",
        "a bot": f"/bots/{bot}",
    }


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_serious_issue(each_scheme: Callable[[str], Iterator[Page]], path: str) -> None:
    for page in each_scheme(path):
        expect(page.get_by_role("heading", name=PAGES[path], exact=True, level=1)).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert serious(page) == []


@pytest.mark.parametrize(
    "thing",
    ["a failed task", "a task that waits", "failures of a job", "graph of a job", "times of a job", "tasks of a job",
     "jobs of a name", "a bot"],
)  # fmt: skip
def test_a_page_about_one_thing_has_no_serious_issue(
    each_scheme: Callable[[str], Iterator[Page]], things: dict[str, str], thing: str
) -> None:
    for page in each_scheme(things[thing]):
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert serious(page) == []


@pytest.mark.short
def test_the_dialogs_have_no_serious_issue(
    each_scheme: Callable[[str], Iterator[Page]], things: dict[str, str]
) -> None:
    for page in each_scheme(things["a failed task"]):
        for button in ("Rerun", "Edit and rerun", "Copy as …"):
            page.get_by_role("button", name=button, exact=True).click()
            assert serious(page) == []
            page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        assert serious(page) == []


@pytest.mark.short
def test_the_login_has_no_serious_issue(visit: Any, built_page: Path) -> None:
    for scheme in ("light", "dark"):
        page = visit("/login", signed_in=False, color_scheme=scheme)
        expect(page.get_by_label("Token")).to_be_visible()
        assert serious(page) == []
