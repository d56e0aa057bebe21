"""Values on the page: where the inputs of a function come from, what is in them, and what passes along edges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from myrmidon import Client
from myrmidon.sdk.transport import Transport
from tests.functions import remote_tasks as tasks
from tests.ui.conftest import Api, Visit


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with Client(Transport(api.url, api.token)) as client:
        yield client


def test_a_task_shows_its_inputs_with_their_sources_and_its_outputs(visit: Visit, api: Api, client: Client) -> None:
    with client.new_job("values") as job:
        number, text = tasks.two(41)
        whole = tasks.joined((number, text))
        large = tasks.make(300_000)
    job.result([whole, large])
    listed = api.call("GET", f"/api/v1/jobs/{job.id}/tasks")["tasks"]
    ids = {task["label"]: task["task_id"] for task in listed}
    first, last, made = [next(ids[label] for label in ids if name in label) for name in ("two", "joined", "make")]
    page = visit(f"/tasks/{first}")
    inputs = page.get_by_role("list", name="Inputs")
    expect(inputs.get_by_text("constant")).to_be_visible()
    inputs.get_by_role("button", name="show").click()
    expect(inputs.get_by_text("41", exact=True)).to_be_visible()
    outputs = page.get_by_role("list", name="Outputs")
    outputs.get_by_role("button", name="show").last.click()
    expect(outputs.get_by_text('"<41>"', exact=True)).to_be_visible()
    page.goto(f"/tasks/{last}")
    page.get_by_text("2 parts").click()
    page.get_by_role("list", name="Inputs").get_by_role("link", name="two").first.click()
    expect(page.get_by_role("list", name="Outputs")).to_be_visible()
    page.goto(f"/tasks/{made}")
    outputs = page.get_by_role("list", name="Outputs")
    expect(outputs.get_by_role("button", name="show")).to_have_count(0)
    with page.expect_download() as download:
        outputs.get_by_role("link", name="download").click()
    assert download.value.path().stat().st_size > 300_000
    page.goto(f"/jobs/{job.id}/graph")
    expect(page.locator("svg title", has_text="two → joined: ")).to_have_count(1)
