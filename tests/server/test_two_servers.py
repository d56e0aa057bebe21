"""Two real servers on one PostgreSQL or MariaDB: each wakes the other's bots and clients, and any of them may die."""

from __future__ import annotations

import random
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests import databases, servers
from tests.bot.test_chaos import bot_of
from tests.bot.test_live import ended, log, submit
from tests.chaos.proxy import chaos
from tests.deadline import HANG_S, POLL_S
from tests.live import LiveServer, live_server
from tests.server.botapi.test_bots_on_the_wire import events_of
from tests.server.wire import WireBot, held, wait_for

pytestmark = [pytest.mark.untraced, pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)]
_lanes = count(1)


@pytest.fixture(scope="module")
def pairs() -> Iterator[tuple[ExitStack, dict[str, tuple[LiveServer, LiveServer]]]]:
    """Pairs of servers, made when they are first asked for."""
    with ExitStack() as stack:
        yield stack, {}


def a_pair(stack: ExitStack, url: str, folder: Path, **settings: Any) -> tuple[LiveServer, LiveServer]:
    """Two servers on one new database; they share nothing else but their administrator's token."""
    one = stack.enter_context(live_server(url, folder=folder / "one", **settings))
    (folder / "two").mkdir()
    (folder / "two" / "admin.token").write_text(one.token)
    return one, stack.enter_context(live_server(url, folder=folder / "two", public_url=one.url, **settings))


@pytest.fixture
def two_servers(dialect, pairs, tmp_path_factory) -> tuple[LiveServer, LiveServer]:
    stack, made = pairs
    if dialect not in made:
        url = servers.new_database(databases.server_url(dialect))
        # A sweep wakes bots whose wake was lost: without one, only the other server can have woken them.
        made[dialect] = a_pair(stack, url, tmp_path_factory.mktemp(f"two-{dialect}"), sweep_s=3600)
    return made[dialect]


@pytest.fixture
def lane() -> str:
    """What only the bots of one test have, and only its tasks want."""
    return f"lane{next(_lanes)}"


def a_bot(server: LiveServer, lane: str, number: int = 1) -> WireBot:
    bot = WireBot(server, f"{lane}-{number}")
    bot.dimensions["os"] = [lane]
    bot.shake()
    return bot


def a_task(lane: str, **properties: Any) -> dict[str, Any]:
    wanted = {"dimensions": {"pool": ["default"], "os": [lane]}, "command": ["true"], **properties}
    return {"name": lane, "slices": [{"properties": wanted}]}


def test_a_submit_on_one_server_wakes_a_bot_that_waits_on_the_other(two_servers, lane):
    one, two = two_servers
    bot = a_bot(two, lane)
    one.post("/api/v1/tasks", {"tasks": [a_task(lane)]})
    task = bot.work()[0]
    bot.finish(task)
    for _ in range(3):
        with held(two, bot.exchange, wait_s=POLL_S) as poll:
            made = one.post("/api/v1/tasks", {"tasks": [a_task(lane)]})[1]["tasks"][0]
            (got,) = poll.result(HANG_S)["tasks"]
        assert got["run"].startswith(made["task_id"][:-2])
        bot.finish(got)
        ask = {"task_ids": [made["task_id"]], "mode": "all", "wait_s": POLL_S}
        status, waited = one.post("/api/v1/tasks/wait", ask)
        assert (status, waited["done"], waited["tasks"][0]["state"]) == (200, True, "SUCCEEDED")


def test_a_cancel_on_one_server_stops_a_run_that_is_held_on_the_other(two_servers, lane):
    one, two = two_servers
    bot = a_bot(two, lane)
    made = one.post("/api/v1/tasks", {"tasks": [a_task(lane)]})[1]["tasks"][0]
    task = bot.work()[0]
    bot.start(task)
    with held(two, bot.exchange, n=0, wait_s=POLL_S, holds=[[task["run"], task["token"]]]) as poll:
        one.post(f"/api/v1/tasks/{made['task_id']}/cancel", {"kill_running": True})
        assert poll.result(HANG_S)["stop"] == [task["run"]]


def test_both_servers_hand_out_the_same_zip_and_take_each_others_credentials(two_servers, lane):
    one, two = two_servers
    wait_for(lambda: len({server.get("/api/v1/server")[1]["bot_version"] for server in (one, two)}) == 1)
    bot = a_bot(one, lane)
    welcome = bot.shake()
    zips = [server.call("GET", "/bot/v1/zip", token=bot.credential) for server in (one, two)]
    assert {(answer.status, answer.headers["etag"]) for answer in zips} == {(200, f'"{welcome["version"]}"')}
    assert zips[0].data == zips[1].data
    bot.server = two
    assert bot.exchange(n=0)["order"] is None
    assert welcome["bot_id"] == bot.name


def test_a_credential_that_is_revoked_on_one_server_is_refused_by_the_other(two_servers, lane):
    one, two = two_servers
    bot = a_bot(two, lane)
    bot.shake()
    with held(two, bot.exchange, n=0, wait_s=POLL_S):  # so that the other remembers it
        status, told = one.post(f"/api/v1/bots/{bot.name}/revoke")
        assert (status, told["alive"]) == (200, False)
        ask = {"session": bot.session, "nonce": 0, "n": 0}
        wait_for(lambda: two.post("/bot/v1/exchange", ask, token=bot.credential)[0] == 401)


def test_a_group_made_anew_on_one_server_is_the_new_one_on_the_other(two_servers, lane):
    one, two = two_servers
    tasks, path = {"tasks": [a_task(lane)]}, f"/api/v1/tasks?group={lane}"
    assert one.post("/api/v1/groups", {"name": lane})[0] == 200
    old = one.new_token("user", lane)
    assert two.post("/api/v1/tasks/cancel", {"tags": ["no:such"], "group": lane})[0] == 200, "now it knows the group"
    assert two.get("/api/v1/tasks", token=old) == (200, {"tasks": [], "cursor": None})
    assert one.call("DELETE", f"/api/v1/groups/{lane}").status == 200
    wait_for(lambda: one.post("/api/v1/groups", {"name": lane})[0] == 200)
    assert two.post("/api/v1/tasks", {**tasks, "group": lane})[0] == 200
    status, refused = two.post("/api/v1/tasks", tasks, token=old)
    assert status == 401 or (status, refused["error"]["code"], f"resource group {lane}." in str(refused)) == (
        404, "not_found", True,
    ), "it is remembered for a while, but not as one of the new group"  # fmt: skip
    new = two.new_token("user", lane)
    for server in (one, two):
        assert server.post("/api/v1/tasks", tasks, token=new)[0] == 200
    for server in (one, two):
        assert len(server.get("/api/v1/tasks", token=new)[1]["tasks"]) == 3
        assert len(server.get(path)[1]["tasks"]) == 3


def test_each_server_knows_of_the_other_and_which_it_is(two_servers):
    for here, there in (two_servers, two_servers[::-1]):
        told = here.get("/api/v1/servers")[1]["servers"]
        assert {one["port"] for one in told if one["alive"]} >= {here.port, there.port}
        assert [one["port"] for one in told if one["this"]] == [here.port]


def test_two_servers_never_give_one_task_to_two_bots(two_servers, lane):
    one, two = two_servers
    bots = [a_bot(server, lane, number) for number, server in enumerate([one, two, one, two])]
    one.post("/api/v1/tasks", {"tasks": [a_task(lane) for _ in range(60)]})
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


def test_a_whole_life_is_the_same_through_either_server(two_servers, lane):
    """Submitted here, run there; its log, its events and its end are seen on the other side."""
    one, two = two_servers
    bot = a_bot(two, lane)
    story = events_of(one, "/api/v1/events?after=0")
    (made,) = one.post("/api/v1/tasks", {"tasks": [a_task(lane)]})[1]["tasks"]
    task_id = made["task_id"]
    (task,) = bot.work()
    bot.start(task)
    said = random.Random(1).randbytes(300_000)
    assert bot.log(task, 0, 0, said[:200_000])[0] == 200
    follow = events_of(one, f"/api/v1/tasks/{task_id}/log/follow")
    heard = b"".join(b64decode(next(follow)[2]["data"]) for _ in range(1))
    bot.server = one
    assert bot.log(task, 0, 200_000, said[200_000:])[0] == 200
    bot.finish(task, 3)
    for _, name, told in follow:
        if name == "end":
            assert (told["state"], told["exit_code"]) == ("FAILED", 3)
            break
        heard += b64decode(told["data"])
    assert sha256(heard).digest() == sha256(said).digest()
    assert two.call("GET", f"/api/v1/tasks/{task_id}/log?limit=1000000").data == said
    assert two.post(f"/api/v1/tasks/{task_id}/rerun")[1]["generation"] == 2
    (again,) = bot.work()
    bot.finish(again)
    assert two.get(f"/api/v1/tasks/{task_id}")[1]["result"]["state"] == "SUCCEEDED"
    states = []
    for _, _, told in story:
        states += [told["state"]] if told["id"] == task_id else []
        if "SUCCEEDED" in states:
            break
    assert states == ["READY", "RUNNING", "FAILED", "WAITING", "READY", "RUNNING", "SUCCEEDED"]


def test_an_equal_task_is_answered_and_a_repeated_submit_recognised_by_the_other_server(two_servers, lane):
    one, two = two_servers
    bot = a_bot(one, lane)
    same = a_task(lane, idempotent=True)
    (first,) = one.post("/api/v1/tasks", {"tasks": [same]})[1]["tasks"]
    bot.finish(bot.work()[0])
    (second,) = two.post("/api/v1/tasks", {"tasks": [same]})[1]["tasks"]
    assert (second["state"], second["deduped_from"]) == ("SUCCEEDED", first["task_id"])
    with ThreadPoolExecutor(8) as threads:
        key = {"Idempotency-Key": "one task"}
        racing = [
            threads.submit(server.post, "/api/v1/tasks", {"tasks": [a_task(lane)]}, headers=key)
            for server in (one, two) * 4
        ]
        made = {one.result(HANG_S)[1]["tasks"][0]["task_id"] for one in racing}
    assert len(made) == 1
    assert len(bot.exchange(n=8)["tasks"]) == 1


def test_a_task_that_waits_is_cancelled_for_both(two_servers, lane):
    one, two = two_servers
    bot = a_bot(two, lane)
    (made,) = two.post("/api/v1/tasks", {"tasks": [a_task(lane)]})[1]["tasks"]
    assert one.post(f"/api/v1/tasks/{made['task_id']}/cancel")[1]["state"] == "CANCELLED"
    assert bot.exchange()["tasks"] == []
    assert two.get(f"/api/v1/tasks/{made['task_id']}")[1]["result"]["state"] == "CANCELLED"


def test_a_killed_server_costs_nothing_but_a_repeated_call(two_servers, lane):
    one, two = two_servers
    bot = a_bot(one, lane)
    made = two.post("/api/v1/tasks", {"tasks": [a_task(lane)]})[1]["tasks"][0]
    task = bot.work()[0]
    bot.start(task)
    one.kill()
    bot.server = two
    answer = bot.exchange(n=0, reports=[bot.finish_of(task)], nonce=bot.nonce + 1)
    assert answer["replies"] == [{"outcome": "accepted", "stop": False}]
    assert two.get(f"/api/v1/tasks/{made['task_id']}")[1]["result"]["state"] == "SUCCEEDED"
    one.start()
    assert one.get(f"/api/v1/tasks/{made['task_id']}")[1]["result"]["state"] == "SUCCEEDED"


@pytest.mark.full
def test_a_real_bot_goes_on_with_the_other_server_when_its_own_is_killed(two_servers, lane, tmp_path):
    """Behind one address, as a balancer gives it; the command knows of nothing."""
    one, two = two_servers
    go = tmp_path / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; seq 20000"
    with chaos(one.url, rate=0.0) as way, bot_of(two, tmp_path / lane, lane, "--server", way.url):
        task_id = submit(two, lane, "/bin/sh", "-c", script)
        wait_for(lambda: log(two, task_id) == b"before\n")
        one.kill()
        way.turn_to(two.url)
        go.touch()
        told = ended(two, task_id)
        assert (told["result"]["state"], len(told["runs"])) == ("SUCCEEDED", 1)
        assert log(two, task_id) == b"before\n" + b"".join(b"%d\n" % number for number in range(1, 20_001))
        one.start()


def start_safely(database: servers.Server) -> None:
    """Commits of test servers survive the death of their process, if not that of the machine."""
    database.start()
    if database.kind == "mariadb":
        servers.execute(database.url, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")


def stubborn(live: list[LiveServer], path: str, body: Any, **options: Any) -> Any:
    """Ask one server after the other until there is an answer; what is away comes back."""
    end = time.monotonic() + HANG_S
    for server in cycle(live):
        try:
            status, answer = server.post(path, body, **options)
        except urllib3.exceptions.HTTPError:
            status, answer = 0, None
        if status == 200:
            return answer
        assert status in (0, 503), (status, answer)
        assert time.monotonic() < end, (status, answer)
        time.sleep(0.02)
    raise AssertionError


@pytest.mark.full
def test_kill_of_a_server_and_of_the_database_in_mid_flight_loses_and_doubles_nothing(dialect, lane, tmp_path):
    """Four bots and two clients on two servers, while one server and the database are killed with -9."""
    database = servers.KINDS[dialect](durable=False)
    database.prepare()
    start_safely(database)
    finished: list[str] = []
    acknowledged: list[str] = []
    wanted = 160

    def submit_on(name: str, live: list[LiveServer]) -> None:
        for number in range(wanted // 2 // 5):
            key = {"Idempotency-Key": f"{name} {number}"}
            body = {"tasks": [a_task(lane) for _ in range(5)]}
            answer = stubborn(live, "/api/v1/tasks", body, headers=key)
            acknowledged.extend(one["task_id"] for one in answer["tasks"])

    def labour(bot: WireBot, live: list[LiveServer]) -> None:
        reports: list[Any] = []
        while len(finished) < wanted or reports:
            bot.nonce += 1
            body = {"session": bot.session, "nonce": bot.nonce, "n": 4, "wait_s": 0.5, "reports": reports}
            answer = stubborn(live, "/bot/v1/exchange", body, token=bot.credential)
            assert [reply["outcome"] for reply in answer["replies"]] == ["accepted"] * len(reports)
            finished.extend(report["run"] for report in reports)
            reports = [bot.finish_of(task, duration=0.01) for task in answer["tasks"]]

    try:
        with ExitStack() as stack:
            url = database.new_database()
            one, two = a_pair(stack, url, tmp_path)
            places = [one, two, one, two]
            bots = [a_bot(server, lane, number) for number, server in enumerate(places)]
            threads = stack.enter_context(ThreadPoolExecutor(6))
            working = [threads.submit(labour, bot, [at, one, two]) for at, bot in zip(places, bots, strict=True)]
            working += [threads.submit(submit_on, f"client {at.port}", [at, one, two]) for at in (one, two)]
            for enough, kill, start in (
                (20, database.kill, partial(start_safely, database)),
                (80, two.kill, two.start),
            ):
                wait_for(partial(lambda enough: len(finished) >= enough, enough))
                kill()
                start()
            for work in working:
                work.result(HANG_S)
            assert len(finished) == len(set(finished)) == len(set(acknowledged)) == wanted
            for server in (one, two):
                body = {"task_ids": acknowledged, "mode": "all", "wait_s": POLL_S}
                waited = stubborn([server], "/api/v1/tasks/wait", body)
                assert waited["done"]
                assert {(task["state"], task["run"][-2:]) for task in waited["tasks"]} == {("SUCCEEDED", "01")}
    finally:
        database.stop()
