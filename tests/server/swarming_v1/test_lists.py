"""Lists, counts and bots over v1: filters, orders and cursors, and what one group may see of another."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest

from tests.bot.bots import a_bot, wait_for
from tests.deadline import HANG_S
from tests.live import LiveServer
from tests.server.swarming_v1.swarm import Swarm, a_task, pairs

SH = "/bin/sh"


@pytest.fixture(scope="session")  # the two prefixes take turns, module by module
def batch(swarm: Swarm) -> dict[str, str]:
    """Seven tasks that differ; their ids by what became of them."""
    tag = f"batch:{uuid.uuid4().hex}"
    haiku = pairs(pool="default", os="Haiku")
    made = {
        "good": swarm.new("true", tags=[tag, "kind:a"]),
        "bad": swarm.new("false", tags=[tag, "kind:b"]),
        "good too": swarm.new("true", tags=[tag, "kind:b", "extra:1"]),
        "slow": swarm.new("sleep", "600", tags=[tag, "kind:a"], execution_timeout_secs=1),
        "waits": swarm.new("true", tags=[tag, "kind:a"], dimensions=haiku, wait_for_capacity=True),
        "nobody": swarm.new("true", tags=[tag, "kind:c"], dimensions=haiku),
        "gone": swarm.new("true", tags=[tag, "kind:a"], dimensions=haiku, wait_for_capacity=True),
    }
    swarm.call("task.cancel", task_id=made["gone"])
    for name in ("good", "bad", "good too", "slow"):
        swarm.ended(made[name])
    return {**made, "tag": tag}


def names_of(batch: dict[str, str], items: list[dict[str, Any]]) -> list[str]:
    known = {task: name for name, task in batch.items()}
    return [known[item["task_id"]] for item in items]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["gone", "nobody", "waits", "slow", "good too", "bad", "good"]),
        ({"state": "ALL"}, ["gone", "nobody", "waits", "slow", "good too", "bad", "good"]),
        ({"state": "COMPLETED"}, ["good too", "bad", "good"]),
        ({"state": "COMPLETED_SUCCESS"}, ["good too", "good"]),
        ({"state": "COMPLETED_FAILURE"}, ["bad"]),
        ({"state": "PENDING"}, ["waits"]),
        ({"state": "PENDING_RUNNING"}, ["waits"]),
        ({"state": "TIMED_OUT"}, ["slow"]),
        ({"state": "CANCELED"}, ["gone"]),
        ({"state": "NO_RESOURCE"}, ["nobody"]),
        *(({"state": state}, []) for state in ("BOT_DIED", "CLIENT_ERROR", "RUNNING", "EXPIRED", "DEDUPED", "KILLED")),
        ({"tags": ["kind:a"]}, ["gone", "waits", "slow", "good"]),
        ({"tags": ["kind:a|b"], "state": "COMPLETED"}, ["good too", "bad", "good"]),
        ({"tags": ["kind:b", "extra:1"]}, ["good too"]),
        ({"tags": ["none:such"]}, []),
    ],
    ids=str,
)
def test_filters_of_lists_and_counts_agree(either, batch, filters, names):
    asked = {**filters, "tags": [batch["tag"], *filters.get("tags", [])]}
    assert names_of(batch, either.call("tasks.list", **asked)["items"]) == names
    assert names_of(batch, list(either.pages("tasks.list", **asked))) == names
    assert names_of(batch, list(either.pages("tasks.requests", **asked))) == names
    assert either.call("tasks.count", start=0, **asked)["count"] == str(len(names))


@pytest.mark.parametrize("sort", ["CREATED_TS", "STARTED_TS", "COMPLETED_TS", "ABANDONED_TS", "MODIFIED_TS"])
def test_every_order_goes_with_tags_and_times(either, batch, sort):
    field = sort.lower()
    start = time.time() - 3600
    items = list(either.pages("tasks.list", tags=[batch["tag"]], sort=sort, start=start, end=time.time() + 10))
    times = [item[field] for item in items]
    assert times == sorted(times, reverse=True)
    wanted = {item["task_id"] for item in either.call("tasks.list", tags=[batch["tag"]])["items"] if field in item}
    assert {item["task_id"] for item in items} == wanted
    assert either.call("tasks.list", sort=sort, limit=3)["items"]


def test_times_bound_the_creation(either, batch):
    first = either.call("task.result", task_id=batch["good"])["created_ts"]
    last = either.call("task.result", task_id=batch["gone"])["created_ts"]
    begin, end = (time.mktime(time.strptime(at[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone for at in (first, last))
    tags = [batch["tag"]]
    assert either.call("tasks.count", start=begin, end=end + 1, tags=tags)["count"] == "7"
    assert either.call("tasks.count", start=f"{begin}", end=begin, tags=tags)["count"] == "0"
    assert either.call("tasks.list", start=end + 1, tags=tags)["items"] == []
    assert either.refused("tasks.count", tags=tags)[0] == 400
    assert either.refused("tasks.list", start=-1)[0] == 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"state": "NOPE"}, {"sort": "SIZE"}, {"cursor": "nope"},
        {"tags": ["colonless"]}, {"start": "yesterday"}, {"tags": [f"a:{n}" for n in range(17)]},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_filter_is_told(either, wrong):
    assert either.refused("tasks.list", **wrong)[0] == 400


def test_a_cursor_belongs_to_its_list(swarm, batch):
    cursor = swarm.call("tasks.list", tags=[batch["tag"]], limit=2)["cursor"]
    assert swarm.refused("tasks.list", sort="STARTED_TS", cursor=cursor)[0] == 400
    assert swarm.refused("bots.list", cursor=cursor)[0] == 400


def test_known_tags_are_listed(either, batch):
    known = {one["key"]: one["value"] for one in either.call("tasks.tags")["tasks_tags"]}
    assert {"a", "b", "c"} <= set(known["kind"])
    assert "default" in known["pool"]
    native = either.server.get("/api/v1/tasks/tags")[1]["tags"]
    assert {one["key"]: one["values"] for one in native} == known


def test_queues_are_listed(either, batch):
    found = [one["dimensions"] for one in either.pages("queues.list")]
    assert ["pool:default"] in found
    assert ["os:Haiku", "pool:default"] in found
    assert not [one for one in found if len(one) == 1 and one[0].startswith("id:")], "orders to a single bot are none"


def test_a_group_sees_its_own_tasks_only(server: LiveServer, swarm: Swarm, batch: dict[str, str]) -> None:
    server.post("/api/v1/groups", {"name": "others"})
    other = Swarm(server, token=server.new_token("user", "others"))
    task = batch["good"]
    for method in ("task.result", "task.request", "task.stdout", "task.cancel"):
        assert other.refused(method, task_id=task)[0] == 404
    assert other.call("tasks.list", tags=[batch["tag"]])["items"] == []
    assert other.call("tasks.count", start=0, tags=[batch["tag"]])["count"] == "0"
    assert other.call("tasks.cancel", body={"tags": [batch["tag"]]})["matched"] == "0"
    assert other.call("tasks.get_states", task_id=[task])["states"] == ["PENDING"]
    mine = other.new("true", dimensions=pairs(pool="nobody"), wait_for_capacity=True)
    assert [one["task_id"] for one in other.call("tasks.list")["items"]] == [mine]
    assert swarm.call("task.cancel", task_id=mine)["ok"]


# ---------------------------------------------------------------- bots


def test_the_bot_is_shown_in_full(either):
    found = either.call("bot.get", bot_id="b1")
    assert (found["bot_id"], found["is_dead"], found["quarantined"], found["deleted"]) == ("b1", False, False, False)
    assert {"key": "id", "value": ["b1"]} in found["dimensions"]
    assert found["external_ip"] == "127.0.0.1"
    assert found["authenticated_as"]
    assert found["first_seen_ts"] <= found["last_seen_ts"]
    assert isinstance(json.loads(found["state"]), dict)
    assert found["version"] == either.call("server.details")["bot_version"]


def test_a_busy_bot_shows_its_task(swarm):
    task = swarm.new(SH, "-c", "echo up; exec sleep 600", name="busy")
    wait_for(lambda: swarm.output(task) == "up\n", "the first word")
    found = swarm.call("bot.get", bot_id="b1")
    assert (found["task_name"], found["task_id"][:-1]) == ("busy", task[:-1])
    assert [one["bot_id"] for one in swarm.call("bots.list", is_busy="TRUE")["items"]] == ["b1"]
    assert swarm.call("bots.count", is_busy="FALSE", dimensions=["id:b1"])["count"] == "0"
    assert int(swarm.call("bots.count")["busy"]) == 1
    swarm.call("task.cancel", task_id=task, body={"kill_running": True})
    assert swarm.ended(task)["state"] == "KILLED"


def handshake(server: LiveServer, name: str, pool: str = "others", **more: Any) -> None:
    dimensions = {"id": [name], "pool": [pool], "os": ["Plan9", "Unix"]}
    status, answer = server.post(
        "/bot/v1/handshake", {"bot_id": name, "session": 1, "dimensions": dimensions, "state": {"x": 1}, **more}
    )
    assert status == 200, answer


def test_filters_of_bots(server, either):
    for name in ("f1", "f2", "f3"):
        handshake(server, name, "filters")
    handshake(server, "f4", "filters", quarantined="it smells")
    handshake(server, "f5", "filters", maintenance="new disk")

    def listed(**filters: Any) -> list[str]:
        dimensions = [*filters.pop("dimensions", []), "pool:filters"]
        items = list(either.pages("bots.list", dimensions=dimensions, **filters))
        count = either.call("bots.count", dimensions=dimensions, **filters)["count"]
        assert count == str(len(items))
        return [item["bot_id"] for item in items]

    assert listed() == ["f1", "f2", "f3", "f4", "f5"]
    assert listed(dimensions=["os:Linux|Plan9", "id:f1|f2|f9"]) == ["f1", "f2"]
    assert listed(dimensions=["os:Linux"]) == []
    assert listed(quarantined="TRUE") == ["f4"]
    assert listed(quarantined="FALSE", in_maintenance="FALSE") == ["f1", "f2", "f3"]
    assert listed(in_maintenance="TRUE", is_dead="NONE") == ["f5"]
    assert listed(is_dead="TRUE") == []
    numbers = either.call("bots.count", dimensions=["pool:filters"])
    assert (numbers["quarantined"], numbers["maintenance"], numbers["dead"]) == ("1", "1", "0")
    assert "it smells" in either.call("bot.get", bot_id="f4")["state"]
    assert either.call("bot.get", bot_id="f5")["maintenance_msg"] == "new disk"
    smelly, idle = (either.call("bot.events", bot_id=name)["items"][0] for name in ("f4", "f5"))
    assert (smelly["event_type"], smelly["quarantined"], idle["quarantined"]) == ("bot_connected", True, False)
    assert "it smells" in smelly["state"]
    assert (idle["maintenance_msg"], idle["authenticated_as"], idle["external_ip"]) == (
        "new disk", either.call("bot.get", bot_id="f5")["authenticated_as"], "127.0.0.1",
    )  # fmt: skip
    assert either.refused("bots.list", dimensions=["colonless"])[0] == 400
    assert either.refused("bots.list", is_dead="PERHAPS")[0] == 400
    assert int(either.call("bots.list")["death_timeout"]) == 600


def test_dimensions_of_all_bots_and_of_a_pool(server, either):
    handshake(server, "d1")
    everything = {one["key"]: one["value"] for one in either.call("bots.dimensions")["bots_dimensions"]}
    assert {"default", "others"} <= set(everything["pool"])
    assert "id" not in everything
    others = {one["key"]: one["value"] for one in either.call("bots.dimensions", pool="others")["bots_dimensions"]}
    assert others == {"os": ["Plan9", "Unix"], "pool": ["others"]}


def test_what_a_bot_has_run(swarm):
    done = [swarm.run("true")["run_id"], swarm.run("false")["run_id"]]
    runs = swarm.call("bot.tasks", bot_id="b1", limit=2, include_performance_stats=True)["items"]
    assert [one["task_id"] for one in runs] == done[::-1]
    assert all("tags" not in one and one["bot_id"] == "b1" for one in runs)
    assert runs[0]["bot_idle_since_ts"] == runs[1]["completed_ts"], "it had nothing else to do"
    alone = swarm.call("task.result", task_id=done[1])
    assert alone == {name: value for name, value in runs[0].items() if name != "performance_stats"}
    failed = swarm.call("bot.tasks", bot_id="b1", state="COMPLETED_FAILURE")["items"]
    assert failed[0]["task_id"] == done[1]
    for sort in ("STARTED_TS", "COMPLETED_TS", "ABANDONED_TS", "MODIFIED_TS"):
        times = [one[sort.lower()] for one in swarm.pages("bot.tasks", bot_id="b1", sort=sort, limit=3)]
        assert times == sorted(times, reverse=True)
    assert swarm.refused("bot.tasks", bot_id="b1", state="PENDING")[0] == 400
    assert swarm.call("bot.tasks", bot_id="b1", start=time.time() + 100)["items"] == []


def test_everything_agrees_since_when_the_bot_of_a_task_was_idle(either):
    tag = f"idle:{uuid.uuid4().hex}"
    first, second = (either.run("true", tags=[tag]) for _ in range(2))
    assert second["bot_idle_since_ts"] == first["completed_ts"], "it had nothing else to do"
    listed = {one["task_id"]: one for one in either.call("tasks.list", tags=[tag])["items"]}
    ran = {one["task_id"]: one for one in either.call("bot.tasks", bot_id="b1", limit=10)["items"]}
    for done in (first, second):
        alone = either.call("task.result", task_id=done["run_id"])
        shown = [one["bot_idle_since_ts"] for one in (listed[done["task_id"]], ran[done["run_id"]], alone)]
        assert shown == [done["bot_idle_since_ts"]] * 3


def test_what_happened_to_a_bot(swarm):
    done = swarm.run("true")
    events = list(swarm.pages("bot.events", bot_id="b1", limit=4))
    assert len(events) == len({(one["ts"], one["event_type"], one.get("task_id")) for one in events})
    kinds = [one["event_type"] for one in events]
    assert "bot_connected" in kinds
    times = [one["ts"] for one in events]
    assert times == sorted(times, reverse=True)
    about = {one["event_type"] for one in events if one.get("task_id") == done["run_id"]}
    assert about == {"request_task", "task_completed"}
    connected = next(one for one in events if one["event_type"] == "bot_connected")
    assert (connected["external_ip"], connected["quarantined"]) == ("127.0.0.1", False)
    assert {"key": "id", "value": ["b1"]} in connected["dimensions"]
    assert connected["version"]
    assert isinstance(json.loads(connected["state"]), dict)


def test_a_deleted_bot_is_shown_as_it_last_was(server, either):
    handshake(server, "gone")
    for _ in range(2):
        assert either.call("bot.delete", bot_id="gone") == {"deleted": True}
    found = either.call("bot.get", bot_id="gone")
    assert (found["deleted"], found["is_dead"]) == (True, True)
    assert {"key": "os", "value": ["Plan9", "Unix"]} in found["dimensions"]
    kinds = [one["event_type"] for one in either.call("bot.events", bot_id="gone")["items"]]
    assert "bot_deleted" in kinds
    assert either.refused("bot.delete", bot_id="never-there")[0] == 404
    assert either.refused("bot.terminate", bot_id="never-there")[0] == 404


def test_terminating_is_a_task(server, either):
    handshake(server, "t1")
    task = either.call("bot.terminate", bot_id="t1")["task_id"]
    assert either.call("bot.terminate", bot_id="t1")["task_id"] == task
    shown = either.call("task.request", task_id=task)
    assert shown["priority"] == "0"
    assert shown["name"].startswith("Terminate t1")
    assert {"key": "id", "value": "t1"} in shown["properties"]["dimensions"]
    assert either.call("task.result", task_id=task)["state"] == "PENDING"
    assert either.call("task.cancel", task_id=task)["ok"]


def test_a_user_cannot_call_the_end_of_a_bot_off(server, swarm, user):
    handshake(server, "t3")
    task = swarm.call("bot.terminate", bot_id="t3")["task_id"]
    assert user.refused("task.cancel", task_id=task)[0] == 403
    tags = ["swarming.terminate:1", "id:t3"]
    assert user.call("tasks.cancel", body={"tags": tags, "kill_running": True})["matched"] == "0"
    assert swarm.call("task.result", task_id=task)["state"] == "PENDING"
    assert swarm.call("tasks.cancel", body={"tags": tags})["matched"] == "1"
    assert swarm.call("task.result", task_id=task)["state"] == "CANCELED"


def test_a_real_bot_obeys_when_it_is_terminated(server, swarm, tmp_path):
    token = swarm.call("server.token")["bootstrap_token"]
    place = tmp_path / "t2"
    place.mkdir()
    (place / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip", token=token).data)
    with a_bot(server.url, place, "--pool", "doomed", token=token) as bot:
        wait_for(lambda: server.get("/api/v1/bots/t2")[0] == 200, "the handshake")
        task = swarm.new(SH, "-c", "echo first; sleep 0.3", dimensions=pairs(pool="doomed"))
        wait_for(lambda: swarm.output(task) == "first\n", "the first word")
        ending = swarm.call("bot.terminate", bot_id="t2", body={"reason": "old age"})["task_id"]
        assert swarm.ended(task)["state"] == "COMPLETED"
        done = swarm.ended(ending)
        assert (done["state"], done["exit_code"], done["bot_id"]) == ("COMPLETED", "0", "t2")
        assert "old age" in done["name"]
        assert bot.process.wait(HANG_S) == 0


# ---------------------------------------------------------------- the server itself


def test_the_server_tells_of_itself(either, user):
    told = either.call("server.details")
    assert told["server_version"]
    assert len(told["bot_version"]) == 64
    rights = either.call("server.permissions", bot_id="b1", task_id="1", tags=["a:b"])
    can = {"delete_bot", "delete_bots", "cancel_task", "cancel_tasks", "terminate_bot", "get_bootstrap_token"}
    assert all(rights[name] is True for name in can)
    assert rights["list_bots"] == rights["list_tasks"]
    assert "default" in rights["list_tasks"]
    fewer = user.call("server.permissions")
    assert (fewer["cancel_task"], fewer["delete_bot"], fewer["get_bootstrap_token"]) == (True, False, False)
    assert "def " in either.call("server.get_bot_config")["content"]
    assert "python" in either.call("server.get_bootstrap")["content"].lower()
    assert user.refused("server.get_bootstrap")[0] == 403


def test_a_bootstrap_token_lets_a_bot_in(server, either):
    token = either.call("server.token")["bootstrap_token"]
    name = f"new-{token.split('_')[1]}"
    hello = {"bot_id": name, "session": 1, "dimensions": {"id": [name], "pool": ["others"]}}
    assert server.post("/bot/v1/handshake", hello, token=token)[0] == 200
    assert server.get("/api/v1/tasks", token=token)[0] == 403


def test_accounts(server, swarm, user):
    account = "/auth/api/v1/accounts/self"
    assert swarm.raw("GET", account)[1]["identity"].startswith("user:")
    assert user.raw("GET", account)[1] == {"identity": "user:a user"}
    assert Swarm(server, token="").raw("GET", account)[1] == {"identity": "anonymous:anonymous"}
    assert Swarm(server, token="myr_wrong").raw("GET", account)[0] == 401
    told = Swarm(server, token="").raw("GET", "/auth/api/v1/server/oauth_config")[1]
    assert {"client_id", "client_not_so_secret"} <= set(told)


def test_the_document_is_whole(swarm):
    status, listed = swarm.raw("GET", "/_ah/api/discovery/v1/apis")
    assert (status, [one["id"] for one in listed["items"]]) == (200, ["swarming:v1"])
    assert listed["items"][0]["discoveryRestUrl"].startswith(swarm.server.url)
    told = swarm.document
    assert told["rootUrl"] == f"{swarm.server.url}/_ah/api/"
    assert told["baseUrl"] == told["rootUrl"] + told["servicePath"]
    wanted = {
        "task.result", "task.request", "task.stdout", "task.cancel", "tasks.new", "tasks.cancel", "tasks.list",
        "tasks.requests", "tasks.count", "tasks.get_states", "tasks.tags", "bots.list", "bots.count", "bots.dimensions",
        "bot.get", "bot.tasks", "bot.events", "bot.delete", "bot.terminate", "queues.list", "server.details",
        "server.permissions", "server.get_bootstrap", "server.get_bot_config", "server.token",
    }  # fmt: skip
    assert set(swarm.methods) == wanted
    for name, method in swarm.methods.items():
        assert method["id"] == f"swarming.{name}"
        assert set(method["parameterOrder"]) <= set(method["parameters"])
        for side in ("request", "response"):
            if side in method:
                assert method[side]["$ref"] in told["schemas"]
        assert ("request" in method) == (name in ("tasks.new", "tasks.cancel", "task.cancel"))
    assert refs(told) <= set(told["schemas"])
    required = {
        (name, parameter)
        for name, method in swarm.methods.items()
        for parameter, one in method["parameters"].items()
        if one.get("required") and one["location"] == "query"
    }
    assert required == {("tasks.count", "start"), ("tasks.get_states", "task_id")}


def refs(tree: Any) -> set[str]:
    if isinstance(tree, list):
        return set().union(*map(refs, tree)) if tree else set()
    if not isinstance(tree, dict):
        return set()
    here = {tree["$ref"]} if isinstance(tree.get("$ref"), str) else set()
    return here.union(*(refs(value) for value in tree.values()))


def test_the_checker_finds_what_is_wrong(swarm):
    good = swarm.call("tasks.count", start=0)
    for wrong in ({**good, "count": 3}, {**good, "now": "2026-01-01T00:00:00Z"}, {**good, "more": "x"}, [good]):
        with pytest.raises(AssertionError):
            swarm.checked("tasks.count", wrong)
    with pytest.raises(AssertionError):
        swarm.checked("task.result", {"duration": None})
    with pytest.raises(AssertionError):
        swarm.checked("task.result", {"state": "WAITING"})


def test_every_request_that_we_send_is_in_the_document(swarm):
    body = a_task("true", env=pairs(A="b"), caches=[{"name": "c", "path": "p"}], idempotent=True)
    body["task_slices"][0]["wait_for_capacity"] = True
    swarm.checker.check(body, swarm.methods["tasks.new"]["request"], "tasks.new")
