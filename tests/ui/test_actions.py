"""Every change that can be made on the page is made there once, and the server accepts it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from myrmidon.server.facades import every_route
from tests.architecture.test_page_sources import NOT_ON_THE_PAGE
from tests.cases import some
from tests.live import a_source, live_server
from tests.ui.conftest import HANG_MS, Api, Visit, introduce, sign_in

NOWHERE = {"dimensions": {"gpu": ["none such"]}}
ELSEWHERE = {
    "POST /auth/login": "test_login.py: every test signs in",
    "POST /auth/link": "test_login.py: test_the_link_signs_in_once",
    "POST /auth/logout": "test_login.py: test_after_signing_out_nothing_is_shown",
    "POST /api/v1/releases/{digest}/revert": "test_a_release_is_reverted_and_allowed_again",
    "POST /api/v1/releases/{digest}/allow": "test_a_release_is_reverted_and_allowed_again",
}
Do = Callable[[Visit, Api], Page]


def confirm(page: Page, label: str, opened: str | None = None) -> None:
    """Press a button, and the same one in the dialog that opens."""
    page.get_by_role("button", name=opened or label, exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=label, exact=True).click()
    expect(
        dialog.get_by_role("alert").or_(page.locator("body:not(:has([role=dialog], dialog[open]))"))
    ).to_be_attached()
    assert dialog.count() == 0, dialog.inner_text()


def change_a_task(visit: Visit, api: Api) -> Page:
    page = visit(f"/tasks/{api.submit('true', name='changed', **NOWHERE)}")
    confirm(page, "Cancel")
    confirm(page, "Rerun")
    page.get_by_role("button", name="Edit and rerun").click()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    return page


def change_many_tasks(visit: Visit, api: Api) -> Page:
    ids = [api.submit("true", name=f"one of many {n}", tags=["many:yes"], **NOWHERE) for n in range(3)]
    page = visit("/tasks?tag=many:yes")
    page.get_by_label(f"Select {ids[0]}", exact=True).check()
    confirm(page, "Cancel 1")
    confirm(page, "Cancel all with these tags")
    return page


def change_a_job(visit: Visit, api: Api) -> Page:
    node = {"task": {"payload": {"command": ["true"], "dimensions": {"pool": ["default"], "gpu": ["none such"]}}}}
    job = api.call("POST", "/api/v1/jobs", {"job": {"name": "changed", "tasks": {"a": node}}})
    page = visit(f"/jobs/{job['job_id']}")
    for label in ("Hold", "Release", "Priority", "Seal", "Cancel"):
        confirm(page, label)
    expect(page.get_by_role("button", name="Delete", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Rerun all")).to_have_count(0)  # the server would refuse it
    confirm(page, "Delete")
    expect(page).to_have_url(re.compile("/jobs$"))
    failed = api.submit_job("fails", {"a": ("false", [])})
    api.wait_for_job(failed)
    page.goto(f"/jobs/{failed}")
    confirm(page, "Rerun failed part")
    return page


def change_a_bot(visit: Visit, api: Api) -> Page:
    shown = "fake bot"
    leave = introduce(api, shown)
    page = visit(f"/bots/{shown}")
    for label in ("Drain", "End draining", "Quarantine", "End quarantine", "Terminate"):
        confirm(page, label)
    leave()
    confirm(page, "Delete")
    expect(page).to_have_url(re.compile("/bots$"))
    introduce(api, "revoked bot")
    page.goto("/bots/revoked%20bot")
    confirm(page, "Revoke")
    return page


def change_tokens(visit: Visit, api: Api) -> Page:
    page = visit("/system/tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_role("textbox", name="Name").fill("made on the page")
    page.get_by_role("dialog").get_by_role("button", name="New token", exact=True).click()
    expect(page.get_by_text("It cannot be shown again")).to_be_visible()
    page.get_by_role("row").filter(has_text="made on the page").get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="made on the page").get_by_text("revoked")).to_be_visible()
    return page


def change_webhooks(visit: Visit, api: Api) -> Page:
    page = visit("/system/webhooks")
    page.get_by_role("button", name="New webhook").click()
    page.get_by_role("textbox", name="Address").fill("https://127.0.0.1:1024/nobody")
    page.get_by_role("dialog").get_by_role("button", name="New webhook", exact=True).click()
    expect(page.get_by_text("The secret of the new webhook")).to_be_visible()
    api.wait(api.submit("true", name="told to a webhook"))
    page.get_by_role("button", name="Deliveries").first.click()
    confirm(page, "Send again")
    confirm(page, "Delete")
    return page


def change_groups_and_pools(visit: Visit, api: Api) -> Page:
    page = visit("/values")
    page.get_by_role("button", name="New group").click()
    page.get_by_role("textbox", name="Name").fill("a group of the page")
    page.get_by_role("dialog").get_by_role("button", name="New group", exact=True).click()
    row = page.get_by_role("row").filter(has_text="a group of the page")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto("/queues")
    confirm(page, "Change order")
    return page


CHANGES: dict[str, tuple[Do, list[str]]] = {
    "a task": (
        change_a_task,
        ["POST /api/v1/tasks/{id}/cancel", "POST /api/v1/tasks/{id}/rerun", "POST /api/v1/tasks"],
    ),
    "many tasks": (change_many_tasks, ["POST /api/v1/tasks/batch", "POST /api/v1/tasks/cancel"]),
    "a job": (
        change_a_job,
        [f"POST /api/v1/jobs/{{id}}/{verb}" for verb in ("hold", "release", "priority", "seal", "cancel", "rerun")]
        + ["DELETE /api/v1/jobs/{id}"],
    ),
    "a bot": (
        change_a_bot,
        [f"POST /api/v1/bots/{{id}}/{verb}" for verb in ("drain", "quarantine", "terminate", "revoke")]
        + ["DELETE /api/v1/bots/{id}"],
    ),
    "tokens": (change_tokens, ["POST /api/v1/tokens", "DELETE /api/v1/tokens/{id}"]),
    "webhooks": (
        change_webhooks,
        [
            "POST /api/v1/webhooks",
            "POST /api/v1/webhooks/{id}/deliveries/{delivery}/replay",
            "DELETE /api/v1/webhooks/{id}",
        ],
    ),
    "groups and pools": (
        change_groups_and_pools,
        ["POST /api/v1/groups", "DELETE /api/v1/groups/{name}", "PUT /api/v1/pools/{name}"],
    ),
}


def test_every_change_of_the_page_is_made_by_a_test() -> None:
    made = [route for _, routes in CHANGES.values() for route in routes]
    there = {f"{one.method} {one.path}" for one in every_route() if one.mutates and _is_ours(one.path)}
    assert {*made, *ELSEWHERE} == there - set(NOT_ON_THE_PAGE)


def _is_ours(path: str) -> bool:
    return path.startswith(("/api/v1/", "/auth/"))


@pytest.mark.parametrize("what", some(CHANGES, short=3))
def test_a_change_is_made_on_the_page_and_accepted(visit: Visit, api: Api, what: str) -> None:
    do, routes = CHANGES[what]
    accepted: list[str] = []
    visit.on_response = lambda response: accepted.extend(_change_of(response))
    do(visit, api)
    patterns = {route: re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route))) for route in routes}
    missing = [route for route, pattern in patterns.items() if not any(map(pattern.fullmatch, accepted))]
    assert missing == [], accepted


def _change_of(response: Response) -> list[str]:
    method = response.request.method
    path = "/" + response.url.split("/", 3)[3].partition("?")[0]
    return [f"{method} {path}"] if method != "GET" and response.status == 200 else []


@pytest.mark.full
def test_a_release_is_reverted_and_allowed_again(browser: Browser, built_page: Path, tmp_path: Path) -> None:
    with live_server() as server:
        server.stop()
        server.source = a_source(tmp_path, ("bot/link/http_client.py", "= 15.0", "= 14.0"))
        server.start()
        context = browser.new_context(base_url=server.url)
        context.set_default_timeout(HANG_MS)
        page = context.new_page()
        sign_in(page, server.token)
        page.goto("/system/releases")
        confirm(page, "Revert")
        expect(page.get_by_role("row").filter(has_text="bad")).to_have_count(1)
        confirm(page, "Allow")
        expect(page.get_by_role("row").filter(has_text="bad")).to_have_count(0)
        context.close()
