"""Two real servers on one PostgreSQL or MariaDB: each wakes the other's bots and clients, and any of them may die."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live import live_server
from tests.server.wire import WireBot, a_task, wait_for

pytestmark = [pytest.mark.untraced, pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)]


@pytest.fixture
def two_servers(new_db_url, tmp_path):
    """Two servers on one new database; they share nothing else but their administrator's token."""
    with live_server(new_db_url, folder=tmp_path / "one") as one:
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "admin.token").write_text(one.token)
        with live_server(new_db_url, folder=tmp_path / "two", public_url=one.url) as two:
            yield one, two


def test_a_submit_on_one_server_wakes_a_bot_that_waits_on_the_other(two_servers):
    one, two = two_servers
    bot = WireBot(two, "b1")
    bot.shake()
    one.post("/api/v1/tasks", {"tasks": [a_task()]})
    task = bot.work()[0]
    bot.finish(task)
    with ThreadPoolExecutor(2) as threads:
        for round_trip in range(3):
            poll = threads.submit(bot.work)
            wait_for(lambda: bot.is_waiting(two))
            began = time.monotonic()
            made = one.post("/api/v1/tasks", {"tasks": [a_task()]})[1]["tasks"][0]
            got = poll.result(20)
            took = time.monotonic() - began
            assert took < 1.0, f"woken after {took:.2f} s in round {round_trip}"
            assert got[0]["run"].startswith(made["task_id"][:-2])
            waiting = threads.submit(
                one.post, "/api/v1/tasks/wait", {"task_ids": [made["task_id"]], "mode": "all", "wait_s": 20}
            )
            bot.finish(got[0])
            reported = time.monotonic()
            status, waited = waiting.result(20)
            assert (status, waited["done"], waited["tasks"][0]["state"]) == (200, True, "SUCCEEDED")
            assert time.monotonic() - reported < 1.0


def test_a_cancel_on_one_server_stops_a_run_that_is_held_on_the_other(two_servers):
    one, two = two_servers
    bot = WireBot(two, "b1")
    bot.shake()
    made = one.post("/api/v1/tasks", {"tasks": [a_task()]})[1]["tasks"][0]
    task = bot.work()[0]
    bot.start(task)
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(bot.exchange, n=0, wait_s=20, holds=[[task["run"], task["token"]]])
        wait_for(lambda: bot.is_waiting(two))
        one.post(f"/api/v1/tasks/{made['task_id']}/cancel", {"kill_running": True})
        began = time.monotonic()
        assert poll.result(20)["stop"] == [task["run"]]
        assert time.monotonic() - began < 1.0


def test_both_servers_hand_out_the_same_zip_and_take_each_others_credentials(two_servers):
    one, two = two_servers
    bot = WireBot(one, "b1")
    welcome = bot.shake()
    zips = [server.call("GET", "/bot/v1/zip", token=bot.credential) for server in (one, two)]
    wait_for(lambda: len({server.get("/api/v1/server")[1]["bot_version"] for server in (one, two)}) == 1, 15)
    assert {answer.status for answer in zips} == {200}
    bot.server = two
    assert bot.exchange(n=0)["order"] is None
    assert welcome["bot_id"] == "b1"


def test_two_servers_never_give_one_task_to_two_bots(two_servers):
    one, two = two_servers
    bots = [WireBot(server, f"b{i}") for i, server in enumerate([one, two, one, two])]
    for bot in bots:
        bot.shake()
    one.post("/api/v1/tasks", {"tasks": [a_task() for _ in range(60)]})
    lock = threading.Lock()
    runs: list[str] = []

    def drain(bot):
        tasks = bot.exchange(wait_s=0, n=8)["tasks"]
        while tasks:
            with lock:
                runs.extend(task["run"] for task in tasks)
            reports = [bot.finish_of(task, duration=0.005) for task in tasks]
            tasks = bot.exchange(wait_s=0, n=8, reports=reports)["tasks"]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(drain, bots))
    assert len(runs) == len(set(runs)) == 60


def test_a_killed_server_costs_nothing_but_a_repeated_call(two_servers):
    one, two = two_servers
    bot = WireBot(one, "b1")
    bot.shake()
    made = two.post("/api/v1/tasks", {"tasks": [a_task()]})[1]["tasks"][0]
    task = bot.work()[0]
    bot.start(task)
    one.kill()
    bot.server = two
    answer = bot.exchange(n=0, reports=[bot.finish_of(task)], nonce=bot.nonce + 1)
    assert answer["replies"] == [{"outcome": "accepted", "stop": False}]
    assert two.get(f"/api/v1/tasks/{made['task_id']}")[1]["result"]["state"] == "SUCCEEDED"
    one.start()
    assert one.get(f"/api/v1/tasks/{made['task_id']}")[1]["result"]["state"] == "SUCCEEDED"
