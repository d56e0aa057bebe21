"""A task's page: its log as it grows, why it waits, why it died, and what can be done with it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cli.conftest import Up
from tests.ui.conftest import Api, Visit

pytestmark = pytest.mark.full


@pytest.mark.short
def test_a_task_is_watched_from_submit_to_end(visit: Visit, api: Api, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    task = api.submit(f"echo first line; while [ ! -e '{go_on}' ]; do sleep 0.1; done; echo last line", name="watched")
    page = visit(f"/tasks/{task}")
    log = page.get_by_role("log")
    expect(log.get_by_text("first line")).to_be_visible()
    expect(page.get_by_role("heading", name="running watched")).to_be_visible()
    go_on.touch()
    expect(log.get_by_text("last line")).to_be_visible()
    expect(page.get_by_role("heading", name="succeeded watched")).to_be_visible()


def test_a_task_that_no_bot_can_run_says_which_dimension_is_missing(visit: Visit, api: Api) -> None:
    task = api.submit("true", name="wants a gpu", dimensions={"gpu": ["a100"]})
    page = visit(f"/tasks/{task}")
    why = page.get_by_text("No bot matches")
    expect(why).to_be_visible()
    expect(page.get_by_role("row", name="gpu:a100 0 left")).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"myrmidon task cancel {task}")).to_be_visible()
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("heading", name="cancelled wants a gpu")).to_be_visible()


@pytest.mark.short
def test_a_failed_task_says_why_and_runs_again(visit: Visit, api: Api) -> None:
    task = api.submit("echo a reason >&2; kill -SEGV $$", name="crashes")
    api.wait(task)
    page = visit(f"/tasks/{task}")
    expect(page.get_by_role("log").get_by_text("a reason")).to_be_visible()
    expect(page.get_by_text(re.compile("SIGSEGV")).first).to_be_visible()
    page.get_by_role("button", name="Rerun", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Rerun", exact=True).click()
    expect(page.get_by_text("Runs (2)")).to_be_visible()


def test_a_task_whose_bot_is_killed_shows_the_evidence(visit: Visit, api: Api, up: Up) -> None:
    task = api.submit("echo it has begun; sleep 1000", name="loses its bot", retries=0)
    page = visit(f"/tasks/{task}")
    expect(page.get_by_role("log").get_by_text("it has begun")).to_be_visible()
    bot = api.call("GET", f"/api/v1/tasks/{task}")["result"]["bot_id"]
    pid = (up.data / "bots" / bot.rpartition("-")[2] / "bot.pid").read_text()
    os.kill(int(pid), signal.SIGKILL)
    expect(page.get_by_role("heading", name="bot died loses its bot")).to_be_visible()
    expect(page.get_by_text("The bot was restarted while it ran this task.").first).to_be_visible()
    expect(page.get_by_text("the bot reconnected without this run").first).to_be_visible()
    expect(page.get_by_role("log").get_by_text("it has begun")).to_be_visible()


@pytest.mark.short
def test_the_colours_of_a_log_are_shown_and_its_lines_have_addresses(visit: Visit, api: Api) -> None:
    task = api.submit(r"printf '\033[31mred\033[0m plain\n'; seq 1 3000; echo the end", name="colours")
    api.wait(task)
    page = visit(f"/tasks/{task}")
    log = page.get_by_role("log")
    expect(log.get_by_text("the end")).to_be_visible()
    page.get_by_role("button", name="start", exact=True).click()
    expect(log.locator(".ansi-1", has_text="red")).to_be_visible()
    log.get_by_role("button", name="1: link to the line at byte 0", exact=True).click()
    expect(page).to_have_url(re.compile("at=0"))
    page.reload()
    expect(log.locator(".ansi-1", has_text="red")).to_be_visible()


def test_a_log_is_searched_with_a_regular_expression(visit: Visit, api: Api) -> None:
    task = api.submit("seq 1 200000; echo done", name="a long log")
    api.wait(task)
    page = visit(f"/tasks/{task}")
    log = page.get_by_role("log")
    expect(log.get_by_text("done", exact=True)).to_be_visible()
    page.get_by_label("Search the log").fill("^1234(5|6)$")
    expect(page.get_by_text("2 lines")).to_be_visible()
    page.get_by_label("Search the log").press("Enter")
    expect(log.locator("span", has_text="12346").first).to_be_visible()
    page.get_by_label("Search the log").fill("(")
    expect(page.get_by_text("Invalid regular expression")).to_be_visible()


def test_a_log_that_is_not_text_and_has_one_very_long_line_is_shown(visit: Visit, api: Api) -> None:
    command = r"""printf '\377\376 odd\n'; head -c 100000000 /dev/zero | tr '\0' x; printf '\nafter it\n'"""
    task = api.submit(command, name="odd bytes")
    api.wait(task)
    page = visit(f"/tasks/{task}")
    log = page.get_by_role("log")
    expect(log.get_by_text("after it")).to_be_visible()
    page.get_by_role("button", name="start", exact=True).click()
    expect(log.get_by_text("odd")).to_be_visible()


def test_both_streams_are_shown_in_the_order_in_which_they_were_written(visit: Visit, api: Api, tmp_path: Path) -> None:
    waits = [f"while [ ! -e {tmp_path}/{word} ]; do sleep 0.02; done" for word in ("one", "two")]
    task = api.submit(f"echo one; {waits[0]}; echo two >&2; {waits[1]}; echo three", name="both streams")
    page = visit(f"/tasks/{task}")
    for word in ("one", "two"):  # the next one is written after the bot has read this one
        expect(page.get_by_role("log").get_by_text(word)).to_be_visible()
        (tmp_path / word).touch()
    api.wait(task)
    page.reload()
    expect(page.get_by_role("log").get_by_text("three")).to_be_visible()
    text = page.get_by_role("log").inner_text()
    assert [word for word in text.split() if word.isalpha()] == ["one", "two", "three"]
    page.get_by_role("button", name="stderr", exact=True).click()
    expect(page.get_by_role("log").get_by_text("two")).to_be_visible()
    expect(page.get_by_role("log").get_by_text("three")).to_have_count(0)


def test_a_task_is_edited_and_submitted_again(visit: Visit, api: Api) -> None:
    task = api.submit("echo before the edit", name="edited")
    api.wait(task)
    page = visit(f"/tasks/{task}")
    page.get_by_role("button", name="Edit and rerun").click()
    request = page.get_by_label("The request as JSON")
    request.fill(request.input_value().replace("before the edit", "after the edit"))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("log").get_by_text("after the edit")).to_be_visible()
    assert task not in page.url


def test_a_task_is_given_as_a_command(visit: Visit, api: Api) -> None:
    task = api.submit("echo 'it is quoted'", name="copied", tags=["copied:yes"])
    page = visit(f"/tasks/{task}")
    page.get_by_role("button", name="Copy as").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("myrmidon run --name copied").first).to_be_visible()
    expect(dialog.get_by_text(f"myrmidon task reproduce {task}")).to_be_visible()
    expect(dialog.get_by_text("Authorization: Bearer $MYRMIDON_TOKEN")).to_be_visible()
