"""Each page against a real server with real bots: it shows what is there, at every width, and says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cases import some
from tests.cli.conftest import Up
from tests.server.wire import wait_for
from tests.ui.conftest import Api, Visit, introduce

PAGES = {
    "/": "Home",
    "/tasks": "Tasks",
    "/jobs": "Jobs",
    "/jobs?view=names": "Jobs",
    "/bots": "Bots",
    "/queues": "Queues",
    "/functions": "Functions",
    "/values": "Values",
    "/system": "System",
    "/system/releases": "System",
    "/system/config": "System",
    "/system/tokens": "System",
    "/system/webhooks": "System",
    "/system/events": "System",
}


@pytest.mark.parametrize("path", some(PAGES, short=4))
def test_each_page_loads_and_fits_a_narrow_screen(visit: Visit, path: str) -> None:
    page = visit(path, viewport={"width": 360, "height": 740})
    expect(page.get_by_role("heading", name=PAGES[path], exact=True, level=1)).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_list_of_tasks_is_filtered_by_its_address(visit: Visit, api: Api) -> None:
    good = api.submit("true", name="filtered good", tags=["filter:yes"])
    bad = api.submit("false", name="filtered bad", tags=["filter:yes"])
    api.wait(good, bad)
    page = visit("/tasks?tag=filter:yes")
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_role("group", name="States").get_by_role("button", name="failed").click()
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("link", name="filtered bad")).to_be_visible()
    assert "state=FAILED" in page.url
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)


@pytest.mark.full
def test_a_busy_bot_is_shown_with_the_name_of_its_task_which_leads_to_it(visit: Visit, api: Api) -> None:
    task = api.submit("sleep 600", name="index the archive")
    page = visit("/bots", viewport={"width": 1400, "height": 800})
    page.get_by_role("link", name="index the archive").click()
    expect(page.get_by_role("heading", name="index the archive", level=1)).to_be_visible()
    bot = api.call("GET", f"/api/v1/tasks/{task}")["runs"][0]["bot_id"]
    page.goto(f"/bots/{bot}")
    expect(page.get_by_text("It runs index the archive.")).to_be_visible()
    api.call("POST", f"/api/v1/tasks/{task}/cancel", {"kill_running": True})
    api.wait(task)


def test_a_new_task_appears_in_the_list_by_itself(visit: Visit, api: Api) -> None:
    page = visit("/tasks?tag=appears:yes")
    expect(page.get_by_text("No task matches these filters")).to_be_visible()
    api.submit("true", name="it appeared", tags=["appears:yes"])
    expect(page.get_by_role("link", name="it appeared")).to_be_visible()


def test_selected_tasks_are_cancelled_together(visit: Visit, api: Api) -> None:
    wanted = {"dimensions": {"gpu": ["none such"]}, "tags": ["bulk:yes"]}
    ids = [api.submit("true", name=f"bulk {n}", **wanted) for n in range(3)]
    page = visit("/tasks?tag=bulk:yes")
    page.get_by_label("Select all rows").check()
    page.get_by_role("button", name="Cancel 3").click()
    expect(page.get_by_role("dialog").get_by_text("myrmidon task cancel")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 3", exact=True).click()
    expect(page.get_by_text("3 tasks changed")).to_be_visible()
    api.wait(*ids)


@pytest.mark.full
def test_a_bot_is_drained_and_shows_its_runs_and_events(visit: Visit, api: Api) -> None:
    task = api.submit("true", name="a run of a bot")
    api.wait(task)
    bot = api.call("GET", f"/api/v1/tasks/{task}")["result"]["bot_id"]
    page = visit(f"/bots/{bot}")
    expect(page.get_by_role("link", name="a run of a bot").first).to_be_visible()
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("button", name="End draining").click()
    page.get_by_role("dialog").get_by_role("button", name="End draining", exact=True).click()
    expect(page.get_by_role("button", name="Drain", exact=True)).to_be_visible()
    assert api.call("GET", f"/api/v1/bots/{bot}")["draining"] is False


@pytest.mark.full
def test_a_file_of_the_configuration_is_put_and_its_history_shows_what_changed(
    visit: Visit, up: Up, tmp_path: Path
) -> None:
    file = tmp_path / "pools.toml"
    for number in (1, 2):
        file.write_text(f"# same line\n# number {number}\n")
        shown = up.terminal.ok("config", "put", "--server", up.url, str(file))
        assert f"+# number {number}" in shown.splitlines()
    file.write_text("[[")
    refused = up.terminal.run("config", "put", "--server", up.url, str(file))
    assert (refused.returncode, "pools.toml" in refused.stderr) == (65, True), refused.stderr
    assert up.terminal.ok("config", "show", "--server", up.url, "pools.toml") == "# same line\n# number 2\n"
    page = visit("/system/config")
    page.get_by_role("button", name="pools.toml", exact=True).click()
    expect(page.get_by_text("- # number 1", exact=True)).to_be_visible()
    expect(page.get_by_text("+ # number 2", exact=True)).to_be_visible()
    expect(page.get_by_text("myrmidon config put pools.toml", exact=True)).to_be_visible()


@pytest.mark.full
def test_events_come_by_the_stream_that_all_tabs_share(visit: Visit, api: Api) -> None:
    asked: list[str] = []
    visit.on_response = lambda answer: asked.append(answer.url)
    page = visit("/system/events")
    expect(page.get_by_text("Waiting for events")).to_be_visible()
    expect(page.get_by_text("● live")).to_be_visible()
    task = api.submit("true", name="seen as an event")
    expect(page.get_by_role("link", name=f"task {task}").first).to_be_visible()
    page.get_by_label("Filter the events").fill("no such text")
    expect(page.get_by_text("No event matches")).to_be_visible()
    assert not [url for url in asked if "/api/v1/events" in url]


def test_the_palette_finds_a_task_by_its_id(visit: Visit, api: Api) -> None:
    task = api.submit("true", name="to be found")
    page = visit("/")
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type(task)
    page.get_by_role("option", name="to be found").click()
    expect(page.get_by_role("heading", name="to be found")).to_be_visible()


@pytest.mark.full
def test_keys_lead_through_the_pages(visit: Visit, api: Api) -> None:
    api.wait(api.submit("true", name="the newest task"))
    page = visit("/")
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Tasks", exact=True, level=1)).to_be_visible()
    expect(page.get_by_role("link", name="the newest task").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Log")).to_be_visible()


@pytest.mark.parametrize("path", ["/tasks/7c00000000000100", "/jobs/7c00000000000100", "/bots/no%2Fsuch%20b%C3%B6t%3F"])
def test_what_does_not_exist_is_said_in_words(visit: Visit, path: str) -> None:
    page = visit(path)
    expect(page.get_by_text("does not exist")).to_be_visible()


def test_a_function_that_nobody_has_called_is_said_in_words(visit: Visit) -> None:
    page = visit("/functions/no_such_module:function")
    expect(page.get_by_text("No task has called no_such_module:function")).to_be_visible()


def test_an_address_without_a_page_says_so(visit: Visit) -> None:
    page = visit("/tasks/a/b/c")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def status_of(api: Api, path: str) -> int:
    return api.http.request("GET", api.url + path, headers={"authorization": f"Bearer {api.token}"}).status


@pytest.mark.full
def test_a_task_that_is_deleted_under_its_page_is_said_in_words(visit: Visit, api: Api) -> None:
    job = api.submit_job("deleted", {"only": ("false", [])})
    api.wait_for_job(job)
    [task] = api.call("GET", f"/api/v1/jobs/{job}/tasks")["tasks"]
    page = visit(f"/tasks/{task['task_id']}")
    expect(page.get_by_role("heading", name="failed only")).to_be_visible()
    api.call("DELETE", f"/api/v1/jobs/{job}")
    wait_for(lambda: status_of(api, f"/api/v1/tasks/{task['task_id']}") == 404)
    page.get_by_role("button", name="Rerun", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Rerun", exact=True).click()
    gone = page.get_by_role("alert").get_by_text(f"There is no task {task['task_id']}")
    expect(gone).to_be_visible()
    page.reload()
    expect(page.get_by_text(f"The task {task['task_id']} does not exist")).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)


@pytest.mark.full
def test_a_bot_with_odd_characters_in_its_id_is_listed_opened_and_drained(visit: Visit, api: Api) -> None:
    odd = "büro #7 100%25 a?b&c=d+e;f'g\"h\\i <j> 机器 \U0001f41c"
    introduce(api, odd)
    page = visit("/bots?dimension=pool:fake")
    page.get_by_role("link", name=odd, exact=True).click()
    expect(page.get_by_role("heading", name=f"idle {odd}")).to_be_visible()
    expect(page.get_by_text("connected").first).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name=f"idle {odd}")).to_be_visible()
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("heading", name=f"draining {odd}")).to_be_visible()
    [bot] = api.call("GET", "/api/v1/bots?dimension=pool:fake&state=draining")["bots"]
    assert bot["bot_id"] == odd


@pytest.mark.full
@pytest.mark.parametrize(("hours", "said"), [(-5, "5 h behind the server"), (5, "5 h ahead of the server")])
def test_a_wrong_clock_of_the_browser_does_not_show(visit: Visit, api: Api, hours: int, said: str) -> None:
    task = api.submit("true", name="just submitted")
    api.wait(task)
    page = visit.context().new_page()
    page.add_init_script(f"const real = Date.now; Date.now = () => real() + {hours} * 3600 * 1000")
    page.goto(f"/tasks/{task}")
    about = page.get_by_role("complementary")
    expect(about.get_by_text("Created")).to_be_visible()
    expect(about.get_by_text(re.compile(r"^(\d+ s|\d min) ago$|^just now$")).first).to_be_visible()
    expect(about.get_by_text(re.compile(r"\d h ago|in \d h"))).to_have_count(0)
    page.goto("/system")
    expect(page.get_by_text(said)).to_be_visible()
