"""Signing in and out, and a server that goes away under the page."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from myrmidon.server.auth.sessions import IDLE_S, hashed
from myrmidon.wire.session import FIRST_LINK_S
from tests.cli.conftest import Up
from tests.deadline import HANG_S
from tests.live import live_server
from tests.ui.conftest import HANG_MS, Api, Visit, sign_in
from tests.ui.test_pages import PAGES


def test_a_visitor_signs_in_with_a_token_and_comes_to_the_page_he_wanted(visit: Visit, api: Api) -> None:
    page = visit("/tasks?state=FAILED", signed_in=False)
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Token").fill("not a token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(api.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/tasks\?state=FAILED"))
    expect(page.get_by_role("heading", name="Tasks")).to_be_visible()


def test_the_link_signs_in_once(visit: Visit, api: Api) -> None:
    link = api.url + api.call("POST", "/auth/links", {"lifetime_s": FIRST_LINK_S})["path"]
    page = visit(link, signed_in=False)
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    assert "#" not in page.url
    again = visit(link, signed_in=False)
    expect(again.get_by_role("alert")).to_be_visible()
    expect(again.get_by_text("myrmidon open", exact=True)).to_be_visible()


def test_after_signing_out_nothing_is_shown(visit: Visit, api: Api) -> None:
    context = visit.context(signed_in=False)
    page = context.new_page()
    sign_in(page, api.token)
    page.locator("summary", has_text="first administrator").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/login"))
    page.goto("/tasks")
    expect(page).to_have_url(re.compile("/login"))


def test_a_viewer_sees_everything_and_can_change_nothing(visit: Visit, api: Api) -> None:
    task = api.submit("true", name="only to be seen")
    api.wait(task)
    token = api.call("POST", "/api/v1/tokens", {"name": "a viewer", "role": "viewer"})["token"]
    page = visit.context(signed_in=False).new_page()
    sign_in(page, token)
    page.goto(f"/tasks/{task}")
    expect(page.get_by_role("button", name="Copy as")).to_be_visible()
    expect(page.get_by_role("button", name="Rerun")).to_have_count(0)


@pytest.mark.full
def test_a_session_that_ends_leads_to_the_login_and_back(visit: Visit, api: Api) -> None:
    made = api.call("POST", "/api/v1/tokens", {"name": "ends soon", "role": "user"})
    page = visit.context(signed_in=False).new_page()
    sign_in(page, made["token"])
    page.goto("/tasks")
    expect(page.get_by_role("heading", name="Tasks")).to_be_visible()
    api.call("DELETE", f"/api/v1/tokens/{made['id']}")  # the page notices by itself
    expect(page.get_by_text("Your session was ended")).to_be_visible()
    page.get_by_label("Token").fill(api.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Tasks")).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize(("column", "age_s"), [("seen_at", IDLE_S), ("expires_at", 0)], ids=["idle", "absolute"])
def test_a_session_that_expires_under_an_open_page_leads_to_the_login_and_back(
    visit: Visit, api: Api, up: Up, column: str, age_s: int
) -> None:
    context = visit.context(signed_in=False)
    page = context.new_page()
    sign_in(page, api.token)
    page.goto("/bots?state=idle&dimension=pool:default")
    expect(page.get_by_role("heading", name="Bots")).to_be_visible()
    [cookie] = [one for one in context.cookies() if one.get("name") == "myr_session"]
    expire(up, hashed(cookie["value"]), column, age_s)
    expect(page.get_by_text("Your session has expired. Sign in again to continue where you were.")).to_be_visible()
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Token").fill(api.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Bots")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/bots\?state=idle&dimension=pool(:|%3A)default$"))


def expire(up: Up, session: str, column: str, age_s: int) -> None:
    """Let a session be as old as it may become: nobody can wait for hours."""
    then = time.time_ns() // 1000 - age_s * 1_000_000
    with closing(sqlite3.connect(up.data / "myrmidon.db", timeout=HANG_S)) as database:
        changed = database.execute(f"UPDATE sessions SET {column} = ? WHERE id_hash = ?", (then, session))
        assert changed.rowcount == 1
        database.commit()


@pytest.mark.full
def test_the_login_says_why_it_is_asked_for_again(visit: Visit) -> None:
    page = visit("/login?ended=expired&to=/queues", signed_in=False)
    expect(page.get_by_text("Your session has expired. Sign in again to continue where you were.")).to_be_visible()
    page.goto("/login?ended=missing")
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("status")).to_have_count(0)


CHANGING = re.compile(
    "^(Cancel|Rerun|Edit and rerun|Delete|Hold|Release|Priority|Seal|Drain|Quarantine|Terminate|Revoke|Revert|Allow"
    "|New token|New group|New webhook|Change order)"
)
"""Buttons that change something."""
ALLOWED = {
    "viewer": set[str](),
    "user": {"Rerun", "Rerun all", "Rerun failed part", "Edit and rerun", "Delete", "New webhook"},
}


@pytest.mark.full
@pytest.mark.parametrize("role", ALLOWED)
def test_a_role_is_shown_what_it_may_see_and_do_and_nothing_that_is_refused(visit: Visit, api: Api, role: str) -> None:
    task = api.submit("false", name="seen by others")
    job = api.submit_job("seen by others", {"a": ("false", [])})
    api.wait(task)
    api.wait_for_job(job)
    bot = api.call("GET", f"/api/v1/tasks/{task}")["result"]["bot_id"]
    token = api.call("POST", "/api/v1/tokens", {"name": f"a {role}", "role": role})["token"]
    refused: list[str] = []
    visit.on_response = lambda answer: refused.append(answer.url) if answer.status == 403 else None
    page = visit.context(signed_in=False).new_page()
    sign_in(page, token)
    shown: set[str] = set()
    for path in [*PAGES, f"/tasks/{task}", f"/jobs/{job}", f"/jobs/{job}/tasks", f"/bots/{bot}"]:
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        shown.update(filter(CHANGING.match, page.get_by_role("button").all_inner_texts()))
    assert (shown, refused) == (ALLOWED[role], [])


def test_a_return_address_of_another_site_is_not_followed(visit: Visit, api: Api) -> None:
    page = visit("/login?to=//evil.example/x", signed_in=False)
    page.get_by_label("Token").fill(api.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    assert page.url.startswith(visit.url)


@pytest.mark.full
def test_a_lost_server_is_shown_and_heals(browser: Browser, built_page: Path) -> None:
    with live_server() as server:
        context = browser.new_context(base_url=server.url)
        context.set_default_timeout(HANG_MS)
        page = context.new_page()
        sign_in(page, server.token)
        page.goto("/queues")
        expect(page.get_by_text("There are no queues yet")).to_be_visible()
        server.kill()
        expect(page.get_by_text("The server does not answer").first).to_be_visible()
        server.start()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_text("● live")).to_be_visible()
        context.close()


@pytest.mark.full
def test_eight_tabs_share_one_stream(visit: Visit, api: Api) -> None:
    """Browsers open six connections to a server: a stream of each tab would leave none for the seventh."""
    context = visit.context()
    pages = [context.new_page() for _ in range(8)]
    for page in pages:
        page.goto("/tasks?tag=tabs:yes")
    for page in pages:
        expect(page.get_by_text("No task matches these filters")).to_be_visible()
    api.submit("true", name="in all tabs", tags=["tabs:yes"])
    for page in pages:
        expect(page.get_by_role("link", name="in all tabs")).to_be_visible()
