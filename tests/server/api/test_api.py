"""Lists, quotas, overload and the calls on tasks and bots, through the application."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from urllib.parse import quote

import pytest

from myrmidon.model.errors import StoreUnavailable
from myrmidon.model.ids import parse_id, show_run
from myrmidon.scheduler import servers
from myrmidon.server.api import submit_tasks as submit
from myrmidon.server.large_documents import LARGE_BYTES
from myrmidon.server.settings import PoolOrder, Quota
from myrmidon.server.usecases import submit as usecases
from myrmidon.store.views import listings
from tests.deadline import HANG_S
from tests.server.contexts import a_task, finish, until
from tests.server.inside import inside, pages
from tests.server.swarming_v1 import swarm


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        yield opened


@pytest.fixture
def any_app(db_url, tmp_path):
    with inside(tmp_path, db_url) as opened:
        yield opened


def exchange(app, nonce: int, n: int = 0, *reports: dict, bot: str = "b1") -> dict:
    body = {"session": 1, "nonce": nonce, "n": n, "reports": list(reports)}
    answer = app.post("/bot/v1/exchange", body, token=app.token("bot"))
    assert answer.status == 200, answer
    return answer.json


# ---------------------------------------------------------------- lists


@pytest.mark.parametrize("sort", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_hold_every_task_once_and_in_order(any_app, sort, limit):
    made = any_app.submit(*[a_task(f"c{n % 2}", tags=[f"odd:{n % 2}"]) for n in range(10)])
    path = f"/api/v1/tasks?sort={sort}&limit={limit}"
    wanted = made if sort == "oldest" else made[::-1]
    assert [one["task_id"] for one in pages(any_app, path, "tasks")] == wanted
    odd = [task for task in wanted if made.index(task) % 2]
    assert [one["task_id"] for one in pages(any_app, f"{path}&tag=odd:1", "tasks")] == odd
    assert [one["task_id"] for one in pages(any_app, f"{path}&tag=odd:1&tag=pool:default", "tasks")] == odd
    assert [one["task_id"] for one in pages(any_app, f"{path}&name=c1&pool=default", "tasks")] == odd


@pytest.mark.parametrize("sort", ["newest", "oldest"])
@pytest.mark.parametrize("tag", ["", "&tag=pool:default"])
def test_a_search_that_finds_little_goes_on_over_several_pages(app, monkeypatch, sort, tag):
    monkeypatch.setattr(listings, "SCAN_LIMIT", 4)
    made = app.submit(*[a_task(f"c{n}") for n in range(23)])
    for name in ("c0", "c11", "c22", "c4", "c18"):
        found = pages(app, f"/api/v1/tasks?sort={sort}&name={name}{tag}", "tasks")
        assert [one["task_id"] for one in found] == [made[int(name[1:])]]
    assert len(pages(app, f"/api/v1/tasks?sort={sort}&limit=3{tag}", "tasks")) == 23
    assert pages(app, f"/api/v1/tasks?sort={sort}&state=RUNNING{tag}", "tasks") == []


def test_tasks_are_found_by_state_bot_time_and_group(any_app):
    app = any_app
    app.meet_bot()
    before = app.context.now()
    ran, left = app.submit(a_task(), a_task())
    got = exchange(app, 1, 1)["tasks"][0]
    exchange(app, 1, 0, finish(got))
    assert [one["task_id"] for one in app.get("/api/v1/tasks?state=SUCCEEDED").json["tasks"]] == [ran]
    assert [one["task_id"] for one in app.get("/api/v1/tasks?state=SUCCEEDED&state=READY").json["tasks"]] == [left, ran]
    assert [one["task_id"] for one in app.get("/api/v1/tasks?bot=b1").json["tasks"]] == [ran]
    assert app.get(f"/api/v1/tasks?end={before - 2000}").json["tasks"] == []
    assert len(app.get(f"/api/v1/tasks?start={before - 2000}&end={app.context.now() + 2000}").json["tasks"]) == 2
    assert app.get("/api/v1/tasks?group=nope").code == "not_found"
    shown = app.get(f"/api/v1/tasks/{ran}").json
    assert (shown["result"]["state"], shown["result"]["exit_code"], shown["runs"][0]["bot_id"]) == (
        "SUCCEEDED",
        0,
        "b1",
    )


def test_bots_are_found_by_dimension_and_state(any_app):
    app = any_app
    for name in ("b1", "b2", "b3"):
        app.meet_bot(name)
    app.submit(a_task(name="build", dimensions={"pool": ["default"], "id": ["b1"]}))
    run = exchange(app, 1, 1)["tasks"][0]["run"]
    app.post("/api/v1/bots/b2/quarantine", {"reason": "smoke"})
    app.post("/api/v1/bots/b3/drain", {"draining": True})
    told = {one["bot_id"]: one for one in pages(app, "/api/v1/bots?limit=1", "bots")}
    assert {name: one["status"] for name, one in told.items()} == {"b1": "busy", "b2": "quarantined", "b3": "draining"}
    assert (told["b1"]["runs"], told["b2"]["quarantined"]) == ([run], "smoke")
    assert (told["b1"]["tasks"], told["b2"]["tasks"]) == ([{"run": run, "name": "build"}], [])
    for query, names in (
        ("state=busy", ["b1"]), ("state=quarantined", ["b2"]), ("state=draining", ["b3"]), ("state=idle", []),
        ("state=dead", []), ("state=alive", ["b1", "b2", "b3"]), ("dimension=id:b2", ["b2"]),
        ("dimension=os:Linux&dimension=id:b3", ["b3"]), ("dimension=os:Plan9", []), ("state=maintenance", []),
    ):  # fmt: skip
        assert [one["bot_id"] for one in app.get(f"/api/v1/bots?{query}").json["bots"]] == names
    assert app.post("/api/v1/bots/b2/quarantine", {"reason": ""}).json["quarantined"] == "smoke", "it keeps its reason"
    assert app.post("/api/v1/bots/b2/quarantine", {"reason": "fire"}).json["quarantined"] == "fire"
    app.post("/api/v1/bots/b2/quarantine", {"reason": None})
    assert app.get("/api/v1/bots/b2").json["status"] == "idle"
    kinds = [one["kind"] for one in pages(app, "/api/v1/bots/b2/events?limit=1", "events")]
    assert kinds == ["bot_released", "bot_quarantined", "bot_quarantined", "bot_quarantined", "bot_connected"]
    assert app.post("/api/v1/bots/b2/quarantine", {"reason": ""}).json["quarantined"] == "by hand"


def test_a_bots_runs_are_listed_whole_and_to_their_owners_only(any_app):
    app = any_app
    app.post("/api/v1/groups", {"name": "other"})
    app.meet_bot()
    made = app.submit(*[a_task() for _ in range(4)])
    for nonce in range(1, 4):
        exchange(app, nonce, 0, finish(exchange(app, nonce, 1)["tasks"][0]))
    exchange(app, 4, 1)
    runs = pages(app, "/api/v1/bots/b1/tasks?limit=1", "runs")
    assert [one["run"] for one in runs] == [show_run(parse_id(task)[0], 1) for task in made[::-1]]
    assert runs[0]["state"] == "RUNNING"
    stranger = app.token("viewer", "other")
    assert app.get("/api/v1/bots/b1/tasks", token=stranger).json["runs"] == []
    seen = app.get("/api/v1/bots/b1", token=stranger).json
    assert (seen["status"], seen["runs"], seen["tasks"]) == ("busy", [], [])
    told = app.get("/api/v1/bots/b1/events", token=stranger).json["events"]
    assert [one["kind"] for one in told] == ["bot_connected"]
    kinds = [one["kind"] for one in app.get("/api/v1/bots/b1/events", token=app.token("viewer")).json["events"]]
    assert (kinds.count("request_task"), kinds.count("task_completed")) == (4, 3)


def test_a_deleted_bot_is_gone_and_may_come_back(app):
    app.meet_bot()
    assert app.delete("/api/v1/bots/b1?force=true").status == 200
    assert app.get("/api/v1/bots/b1").code == "not_found"
    assert app.delete("/api/v1/bots/b1?force=true").status == 200
    assert app.delete("/api/v1/bots/nobody").code == "not_found"
    app.meet_bot(session=2)
    assert app.get("/api/v1/bots/b1").json["status"] == "idle"


@pytest.mark.parametrize("name", ["host.example.com", "host--1", "a b", "50%", "what?#", "gr\u00fcn"])
def test_every_bot_that_may_come_in_is_reached_by_its_id(app, name):
    app.meet_bot(name)
    path = f"/api/v1/bots/{quote(name, safe='')}"
    assert app.get(path).json["bot_id"] == name
    assert app.delete(f"{path}?force=true").status == 200


def test_an_id_that_no_path_can_hold_is_refused(app):
    said = {"bot_id": "a/b", "session": 1, "dimensions": {"id": ["a/b"], "pool": ["default"]}}
    refused = app.post("/bot/v1/handshake", said)
    assert (refused.status, refused.code) == (400, "request.invalid")
    assert app.get("/bootstrap?bot_id=a%2Fb").code == "request.invalid"


def test_only_an_administrator_calls_the_end_of_a_bot_off_and_nobody_repeats_it(app):
    app.meet_bot()
    user = app.token("user")
    order = f"/api/v1/tasks/{app.post('/api/v1/bots/b1/terminate').json['task_id']}"
    refused = app.post(f"{order}/cancel", {"kill_running": True}, token=user)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "administrator" in refused.json["error"]["message"]
    assert app.post("/api/v1/tasks/cancel", {"tags": ["swarming.terminate:1"]}, token=user).status == 200
    (args,) = app.context.db.engine.read(lambda tx: tx.all("SELECT args FROM chunked_work"))[0]
    assert '"terminate_tasks":false' in args
    assert app.post(f"{order}/cancel").json["state"] == "CANCELLED"
    for who in (user, app.token("admin")):
        assert app.post(f"{order}/rerun", {"force": True}, token=who).code == "wrong_state"


@pytest.mark.parametrize("wrong", [{"command": []}, {"command": None}, {"command": [], "dimensions": {"id": ["b1"]}}])
def test_nobody_can_submit_what_looks_like_the_end_of_a_bot(app, wrong):
    here = {"id": ["b1"], "pool": ["default"]}
    good, bad = a_task(dimensions=here), a_task(dimensions=here, properties=wrong)
    both = {**good, "slices": good["slices"] + bad["slices"]}
    for task in (bad, both, {**bad, "evaluate_only": True}, {**bad, "tags": ["swarming.terminate:1"]}):
        (answer,) = app.post("/api/v1/tasks", {"tasks": [task]}, token=app.token("user")).json["tasks"]
        assert answer["error"]["code"] == "request.invalid", task


def test_queues_and_pools_tell_what_waits(any_app):
    app = any_app
    app.meet_bot()
    app.submit(a_task(), a_task(), a_task(dimensions={"pool": ["gpu"]}))
    told = {one["pool"]: one for one in pages(app, "/api/v1/queues?limit=1", "queues")}
    assert (told["default"]["num_ready"], told["default"]["num_bots"]) == (2, 1)
    assert (told["gpu"]["num_ready"], told["gpu"]["num_bots"]) == (1, 0)
    assert app.put("/api/v1/pools/gpu", {"task_order": "lifo"}).json["task_order"] == "lifo"
    assert {one["name"]: one["task_order"] for one in pages(app, "/api/v1/pools?limit=1", "pools")} == {
        "default": "fifo",
        "gpu": "lifo",
    }
    page = app.get("/metrics").body.decode()
    assert 'myrmidon_queue_depth{pool="default"} 2.0' in page
    assert 'myrmidon_bots{state="alive"} 1.0' in page


def test_pools_are_ordered_by_the_settings(tmp_path):
    with inside(tmp_path, pools={"night": PoolOrder(task_order="lifo"), "day": PoolOrder(ageing_s=60)}) as app:
        told = {one["name"]: one for one in app.get("/api/v1/pools").json["pools"]}
        assert (told["night"]["task_order"], told["day"]["ageing"]) == ("lifo", 60_000_000)


# ---------------------------------------------------------------- verbs


def test_one_wrong_task_harms_no_other(app):
    answers = app.post("/api/v1/tasks", {"tasks": [a_task(), {"name": ""}, 7, a_task()]}).json["tasks"]
    assert ["error" in one for one in answers] == [False, True, True, False]
    assert answers[1]["error"]["problems"]


def test_many_tasks_are_checked_beside_the_loop(app):
    assert len(set(app.submit(*[a_task() for _ in range(100)]))) == 100


def test_a_long_list_that_broke_off_in_the_middle_is_completed_by_its_repeat(app, monkeypatch):
    stored: list[int] = []

    async def store(*given):
        if len(stored) == 2:
            raise StoreUnavailable("The database is away.")
        stored.append(1)
        return await store_drafts(*given)

    store_drafts = usecases.store_drafts
    tasks = {"tasks": [a_task(f"t{n}") for n in range(300)]}
    key = {"Idempotency-Key": "all of them"}
    monkeypatch.setattr(submit, "store_drafts", store)
    assert app.post("/api/v1/tasks", tasks, headers=key).status == 503
    monkeypatch.setattr(submit, "store_drafts", store_drafts)
    first = app.post("/api/v1/tasks", tasks, headers=key).json["tasks"]
    again = app.post("/api/v1/tasks", tasks, headers=key).json["tasks"]
    assert [one["task_id"] for one in first] == [one["task_id"] for one in again]
    assert [one.get("repeated", False) for one in first] == [n < 96 for n in range(300)]
    assert len(app.get("/api/v1/tasks?limit=1000").json["tasks"]) == 300


def test_a_long_list_without_a_key_is_stored_at_once_or_not_at_all(app, monkeypatch):
    calls: list[int] = []
    store_drafts = usecases.store_drafts

    async def store(*given):
        calls.append(1)
        return await store_drafts(*given)

    monkeypatch.setattr(submit, "store_drafts", store)
    assert len(app.submit(*(a_task(f"t{n}") for n in range(300)))) == 300
    assert len(calls) == 1


def test_the_key_of_a_list_is_no_key_of_a_single_task(app):
    for key in ("m", "=m", "k" * 250):
        pair = app.submit(a_task(), a_task(), headers={"Idempotency-Key": key})
        prefixes = ("", "0:", "1:", "=0:", "==1:")
        lone = [app.submit(a_task(), headers={"Idempotency-Key": f"{before}{key}"[:256]}) for before in prefixes]
        assert len({*pair, *(task for (task,) in lone)}) == 7
        again = [app.submit(a_task(), headers={"Idempotency-Key": f"{before}{key}"[:256]}) for before in prefixes]
        assert again == lone
        assert app.submit(a_task(), a_task(), headers={"Idempotency-Key": key}) == pair


def test_a_submit_that_only_evaluates_stores_nothing(app):
    answer = app.post("/api/v1/tasks", {"tasks": [a_task(evaluate_only=True)]}).json["tasks"][0]
    assert ("task_id" in answer, answer["state"]) == (False, "WAITING")
    assert app.get("/api/v1/tasks").json["tasks"] == []


def test_a_task_is_cancelled_killed_and_run_again(app):
    app.meet_bot()
    task = app.submit(a_task())[0]
    path = f"/api/v1/tasks/{task}"
    got = exchange(app, 1, 1)["tasks"][0]
    exchange(app, 1, 0, {"type": "start", "run": got["run"], "token": got["token"]})
    assert app.post(f"{path}/cancel").json == {"task_id": task, "ok": False, "state": "RUNNING", "was_running": True}
    assert app.post(f"{path}/cancel", {"kill_running": True}).json["ok"]
    exchange(app, 1, 0, finish(got, -9, killed=True))
    assert app.get(path).json["result"]["state"] == "KILLED"
    assert app.post(f"{path}/cancel").json["ok"]
    assert app.post(f"{path}/rerun").json == {"task_id": task, "state": "READY", "generation": 2}
    assert app.get(f"{path}/why").json["position"] == 0


def test_a_late_copy_of_a_cancel_leaves_alone_what_was_run_again(any_app):
    app = any_app
    task, other = app.submit(a_task(), a_task())
    path, key = f"/api/v1/tasks/{task}", {"Idempotency-Key": "c1"}
    assert app.post(f"{path}/cancel", headers=key).json["state"] == "CANCELLED"
    assert app.post(f"{path}/cancel", headers=key).json["ok"]
    assert app.post(f"{path}/rerun").json["generation"] == 2
    assert app.post(f"{path}/cancel", headers=key).json["state"] == "READY"
    refused = app.post(f"{path}/cancel", {"kill_running": True}, headers=key)
    assert (refused.status, refused.code) == (409, "request.conflict")
    assert app.post(f"/api/v1/tasks/{other}/cancel", headers=key).json["state"] == "CANCELLED"
    assert app.post(f"{path}/cancel", headers={"Idempotency-Key": "c2"}).json["state"] == "CANCELLED"


def test_a_late_copy_of_what_was_said_of_a_bot_changes_nothing(any_app):
    app = any_app
    app.meet_bot()
    for verb, field, yes, no in (("drain", "draining", True, False), ("quarantine", "reason", "it smells", None)):
        said = [(yes, "1"), (no, "2"), (yes, "1")]
        field_shown = "quarantined" if verb == "quarantine" else field
        answers = [
            app.post(f"/api/v1/bots/b1/{verb}", {field: value}, headers={"Idempotency-Key": key}).json[field_shown]
            for value, key in said
        ]
        assert answers == [yes, no, no]
        other = app.post(f"/api/v1/bots/b1/{verb}", {field: no}, headers={"Idempotency-Key": "1"})
        assert (other.status, other.code) == (409, "request.conflict")
        assert app.post(f"/api/v1/bots/b1/{verb}", {field: yes}).json[field_shown] == yes
    assert app.post("/api/v1/bots/b2/drain", {}, headers={"Idempotency-Key": "1"}).code == "not_found"
    assert app.post("/api/v1/bots/b1/drain", {}, headers={"Idempotency-Key": "1"}).status == 200


def test_a_late_copy_of_the_order_of_a_pool_changes_nothing(any_app):
    app = any_app
    said = [("lifo", "1"), ("fifo", "2"), ("lifo", "1")]
    answers = [
        app.put("/api/v1/pools/p", {"task_order": order}, headers={"Idempotency-Key": key}).json["task_order"]
        for order, key in said
    ]
    assert answers == ["lifo", "fifo", "fifo"]
    assert app.put("/api/v1/pools/p", {}, headers={"Idempotency-Key": "1"}).code == "request.conflict"


def test_a_mass_cancel_means_only_what_has_all_the_tags(app):
    app.submit(a_task(tags=["a:1", "b:1"]), a_task(tags=["a:1"]))
    assert app.post("/api/v1/tasks/cancel", {"tags": ["a:1", "b:1"]}).status == 200
    assert app.context.db.engine.read(lambda tx: tx.all("SELECT kind FROM chunked_work")) == [("tagged",)]
    assert app.post("/api/v1/tasks/cancel", {"tags": []}).code == "request.invalid"


@pytest.mark.parametrize("what", ["", "/log", "/log/follow", "/why"])
def test_what_is_no_id_is_no_task(app, what):
    missing = app.get(f"/api/v1/tasks/nope{what}")
    assert (missing.status, missing.code) == (404, "not_found")


@pytest.mark.parametrize("what", ["", "/log", "/log/follow", "/why"])
def test_the_id_of_a_job_in_place_of_that_of_a_task_is_named(app, what):
    job = app.post("/api/v1/jobs", {"job": {"name": "j", "tasks": {"a": {"task": a_task()}}}}).json["job_id"]
    told = app.get(f"/api/v1/tasks/{job}{what}")
    assert (told.status, told.code) == (404, "not_found")
    assert told.json["error"]["message"] == f"{job} is a job, not a task. `myrmidon job show {job}` shows it."
    app.post("/api/v1/groups", {"name": "b"})
    told = app.get(f"/api/v1/tasks/{job}{what}", token=app.token("viewer", group="b"))
    assert told.json["error"]["message"].startswith(f"There is no task {job}.")


def test_the_id_of_a_task_in_place_of_that_of_a_job_is_named(app):
    task = app.submit(a_task())[0]
    told = app.get(f"/api/v1/jobs/{task}/tasks")
    assert (told.status, told.code) == (404, "not_found")
    assert told.json["error"]["message"] == f"{task} is a task, not a job. `myrmidon task show {task}` shows it."
    app.post("/api/v1/groups", {"name": "b"})
    told = app.get(f"/api/v1/jobs/{task}", token=app.token("viewer", group="b"))
    assert told.json["error"]["message"].startswith(f"There is no job {task}.")


def test_a_secret_is_never_shown(app):
    task = app.submit(a_task(secret_bytes="c2VjcmV0"))[0]
    reply = app.get(f"/api/v1/tasks/{task}")
    assert reply.json["request"]["has_secret"]
    assert b"c2VjcmV0" not in reply.body
    assert b"secret_bytes" not in reply.body


def test_stdin_of_a_mebibyte_fits_into_a_request_and_is_not_shown(app):
    content = base64.b64encode(b"in" * (1 << 19)).decode()
    task = app.submit(a_task(stdin=content))[0]
    reply = app.get(f"/api/v1/tasks/{task}")
    assert reply.json["request"]["stdin_size"] == 1 << 20
    assert content[:40].encode() not in reply.body
    assert app.get(f"/api/v1/tasks/{app.submit(a_task())[0]}").json["request"]["stdin_size"] is None
    [refused] = app.post("/api/v1/tasks", {"tasks": [a_task(stdin=content + "AAAA")]}).json["tasks"]
    assert [problem["path"] for problem in refused["error"]["problems"]] == ["stdin"]
    assert app.post("/api/v1/tasks", {"tasks": [a_task(stdin=content), a_task(stdin=content)]}).code == (
        "request.too_large"
    )


def test_equal_work_has_an_equal_hash(app):
    hidden = {"secret_bytes": "c2VjcmV0"}
    tasks = app.submit(a_task(), a_task(name="other", priority=7), a_task(**hidden), a_task(**hidden))
    shown = [app.get(f"/api/v1/tasks/{task}").json["request"]["slices"][0]["properties_hash"] for task in tasks]
    assert shown[0] == shown[1]
    assert shown[2] == shown[3]
    assert len(set(shown)) == 2
    assert {len(one) for one in shown} == {64}


def test_a_group_with_work_is_not_deleted(app):
    app.post("/api/v1/groups", {"name": "g"})
    task = app.submit(a_task(), token=app.token("user", "g"))[0]
    assert app.delete("/api/v1/groups/g").code == "wrong_state"
    app.post(f"/api/v1/tasks/{task}/cancel")
    assert app.delete("/api/v1/groups/g").status == 200
    assert app.delete("/api/v1/groups/nope").code == "not_found"


# ---------------------------------------------------------------- limits


def test_a_quota_of_tasks_is_kept_and_freed_again(any_app, monkeypatch):
    app = any_app
    monkeypatch.setattr("myrmidon.server.quotas.COUNT_MAX_AGE", 0)
    app.context.quotas._settings = app.context.settings.__class__(quotas={"default": Quota(pending_tasks=3)})
    made = app.submit(a_task(), a_task())
    full = app.post("/api/v1/tasks", {"tasks": [a_task(), a_task()]})
    assert (full.status, full.code, full.headers["retry-after"]) == (429, "quota", "10")
    app.post(f"/api/v1/tasks/{made[0]}/cancel")
    assert app.post("/api/v1/tasks", {"tasks": [a_task(), a_task()]}).status == 200


def test_who_repeats_a_submit_to_a_full_group_learns_that_it_was_stored(tmp_path, db_url):
    with inside(tmp_path, db_url, quota=Quota(pending_tasks=2)) as app:
        key = {"Idempotency-Key": "k1"}
        made = app.submit(a_task(), a_task(), headers=key)
        again = app.post("/api/v1/tasks", {"tasks": [a_task(), a_task()]}, headers=key).json["tasks"]
        assert [(one["task_id"], one["repeated"]) for one in again] == [(task, True) for task in made]
        other = app.post("/api/v1/tasks", {"tasks": [a_task("other"), a_task()]}, headers=key).json["tasks"]
        assert (other[0]["error"]["code"], other[1]["task_id"]) == ("request.conflict", made[1])
        new = {"Idempotency-Key": "k2"}
        for headers in (new, {}):
            assert app.post("/api/v1/tasks", {"tasks": [a_task()]}, headers=headers).code == "quota"


def test_only_what_is_new_of_a_repeated_list_needs_room(tmp_path):
    with inside(tmp_path, quota=Quota(pending_tasks=4)) as app:
        key = {"Idempotency-Key": "k"}
        bad = {"name": "no command yet"}
        first = app.post("/api/v1/tasks", {"tasks": [a_task(), a_task(), bad]}, headers=key).json["tasks"]
        mended = app.submit(a_task(), a_task(), a_task(), headers=key)
        assert mended[:2] == [one["task_id"] for one in first[:2]]
        assert app.post("/api/v1/tasks", {"tasks": [a_task()]}).code == "quota"


def test_a_repeated_submit_of_v1_to_a_full_group_finds_its_task(tmp_path):
    with inside(tmp_path, quota=Quota(pending_tasks=1)) as app:
        body = swarm.a_task("true", request_uuid=str(uuid.uuid4()))
        first, again = (app.post(f"{swarm.NEW}swarming/v1/tasks/new", body) for _ in range(2))
        assert (first.status, again.status) == (200, 200)
        assert first.json["task_id"] == again.json["task_id"]
        other = swarm.a_task("true", request_uuid=str(uuid.uuid4()))
        assert app.post(f"{swarm.NEW}swarming/v1/tasks/new", other).status == 429


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_quota_of_bytes_is_kept_however_the_body_is_sent(tmp_path, pieces):
    with inside(tmp_path, quota=Quota(pending_bytes=2000)) as app:
        body = json.dumps({"tasks": [a_task("x" * 400)]}).encode()
        assert 800 < len(body) < 1000
        size = -(-len(body) // pieces)
        sent = [body[at : at + size] for at in range(0, len(body), size)]
        replies = [app.post("/api/v1/tasks", pieces=[*sent, b""]) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]


def test_an_overloaded_server_says_so_and_hears_heartbeats(tmp_path):
    with inside(tmp_path, most_calls=2) as app:
        app.meet_bot()
        app.context.state.num_calls = 2
        busy = app.get("/api/v1/tasks")
        assert (busy.status, busy.code, busy.headers["retry-after"]) == (429, "overloaded", "1")
        assert app.post("/bot/v1/heartbeat", {"session": 1}, token=app.token("bot")).status == 200
        assert app.get("/healthz").status == 200
        app.context.state.num_calls = 0
        assert app.get("/api/v1/tasks").status == 200


def test_slow_bodies_of_one_caller_keep_nobody_else_out(tmp_path):
    with inside(tmp_path, most_calls=2, most_bodies=5) as app:
        slow, other = app.token("user"), app.token("admin")

        async def story():
            assert (await app.ask("GET", "/api/v1/tasks", token=slow)).status == 200, "from now on it is cached"
            bodies = [
                asyncio.create_task(app.ask("POST", "/api/v1/tasks", token=slow, pieces=[b"{"])) for _ in range(5)
            ]
            await until(lambda: app.context.state.num_bodies == 5)
            assert app.context.state.num_calls == 0
            for method, path, body in (("POST", "/api/v1/groups", {"name": "g"}), ("GET", "/api/v1/tasks", None)):
                assert (await app.ask(method, path, body, token=other)).status == 200
            assert (await app.ask("GET", "/api/v1/tasks", token=slow)).status == 200
            refused = await app.ask("POST", "/api/v1/tasks", {"tasks": [a_task()]}, token=slow)
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "overloaded", "1")
            for one in bodies:
                one.cancel()
            await asyncio.gather(*bodies, return_exceptions=True)
            assert (app.context.state.num_calls, app.context.state.num_bodies) == (0, 0)
            assert (await app.ask("POST", "/api/v1/tasks", {"tasks": [a_task()]}, token=slow)).status == 200

        app.run(story())


def test_one_caller_can_hold_only_so_many_waiting_calls_and_streams(tmp_path):
    with inside(tmp_path, most_waits=3, most_event_streams=2) as app:
        busy, other = app.token("user"), app.token("viewer")
        (task_id,) = app.submit(a_task())
        wait = {"task_ids": [task_id], "wait_s": HANG_S}

        async def story():
            def stream(token):
                return asyncio.create_task(app.ask("GET", "/api/v1/events", token=token))

            held = [stream(busy), stream(busy)]
            await until(lambda: app.context.hub.num_event_streams == 2)
            refused = await app.ask("GET", "/api/v1/stream?topic=tasks", token=busy)
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "overloaded", "1")
            assert "Close some" in refused.json["error"]["message"]
            held.append(asyncio.create_task(app.ask("POST", "/api/v1/tasks/wait", wait, token=busy)))
            await until(lambda: app.context.hub._task_ends.waiters)
            refused = await app.ask("POST", "/api/v1/tasks/wait", wait, token=busy)
            assert (refused.status, refused.code) == (429, "overloaded")
            held.append(stream(other))
            await until(lambda: app.context.hub.num_event_streams == 3)
            for one in held:
                one.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            again = await app.ask("POST", "/api/v1/tasks/wait", wait | {"wait_s": 0}, token=busy)
            assert again.status == 200, "what has ended counts no more"

        app.run(story())


def test_large_bodies_of_one_caller_can_hold_only_so_much_memory(tmp_path):
    with inside(tmp_path, most_body_bytes=1 << 20, large_body_limit=1 << 20) as app:
        busy, other = app.token("user"), app.token("admin")
        size = {"content-length": str(600_000)}

        async def story():
            arriving = asyncio.create_task(app.ask("POST", "/api/v1/jobs", token=busy, pieces=[b"{"], headers=size))
            await until(lambda: app.context.state.num_bodies == 1)
            for headers in (size, {"transfer-encoding": "chunked"}):
                refused = await app.ask("POST", "/api/v1/jobs", token=busy, pieces=[b"{"], headers=headers)
                assert (refused.status, refused.code) == (429, "overloaded")
            assert (await app.ask("POST", "/api/v1/tasks", {"tasks": [a_task()]}, token=busy)).status == 200
            large = {"job": {"name": "x" * 600_000}}
            assert (await app.ask("POST", "/api/v1/jobs", large, token=other)).status == 400
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)
            assert (await app.ask("POST", "/api/v1/jobs", large, token=busy)).status == 400

        app.run(story())


def test_a_call_counts_as_one_when_its_body_is_there(tmp_path):
    """Calls that were let in while the server had time are refused if it has none left when they can begin."""
    with inside(tmp_path, most_calls=2) as app:

        async def story():
            first, rest = asyncio.Event(), asyncio.Event()

            async def slowly():
                first.set()
                await rest.wait()
                return b'{"name": "late"}'

            body = asyncio.create_task(app.ask("POST", "/api/v1/groups", waiting_for=slowly))
            await first.wait()
            app.context.state.num_calls = 2
            rest.set()
            assert (await body).code == "overloaded"
            app.context.state.num_calls = 0

        app.run(story())


def test_a_task_whose_submit_takes_minutes_to_arrive_has_its_whole_time(app):
    clock = [app.context.now()]
    app.context.now = lambda: clock[0]
    task = a_task()
    task["slices"][0]["expiration_s"] = 60

    async def slowly():
        clock[0] += 120_000_000
        return json.dumps({"tasks": [task]}).encode()

    assert app.run(app.ask("POST", "/api/v1/tasks", waiting_for=slowly)).json["tasks"][0]["state"] == "READY"
    expires = app.context.db.engine.read(lambda tx: tx.one("SELECT expires_at FROM task_to_run"))
    assert expires == (clock[0] + 60_000_000,)


def test_a_large_job_that_waits_for_other_large_ones_has_its_whole_time(app):
    clock = [app.context.now()]
    app.context.now = lambda: clock[0]
    job = {"name": "large", "deadline_s": 60, "tasks": {"a": {"task": a_task()}}}
    body = json.dumps({"job": job}).encode() + b" " * LARGE_BYTES

    async def story():
        async with app.context.large_documents.enter(LARGE_BYTES):
            asking = asyncio.create_task(app.ask("POST", "/api/v1/jobs", body))
            await until(lambda: app.context.large_documents._one._waiters)
            clock[0] += 120_000_000
        return await asking

    assert app.run(story()).status == 200
    [(deadline,)] = app.context.db.engine.read(lambda tx: tx.all("SELECT deadline_at FROM jobs"))
    assert deadline == clock[0] + 60_000_000


def test_a_server_whose_disk_is_full_is_not_ready(app, monkeypatch):
    engine = app.context.logs.engine
    monkeypatch.setattr(engine._backend, "disk_is_full", lambda: True)
    reply = app.get("/readyz", token="")
    assert (reply.status, reply.json["problems"]) == (503, ["the disk is full"])
    monkeypatch.undo()
    assert app.get("/readyz", token="").status == 200


def test_a_server_that_should_get_no_work_says_why(app, monkeypatch):
    assert app.get("/readyz", token="").status == 200
    app.context.state.enrolled = False
    monkeypatch.setattr(app.context.db.engine, "_disk_error", "no more sectors")
    clock = app.context.now
    app.context.now = lambda: clock() + 3_000_000
    reply = app.get("/readyz", token="")
    assert (reply.status, len(reply.json["problems"]), reply.headers["retry-after"]) == (503, 3, "5")
    assert app.get("/healthz", token="").status == 200


def test_a_stopping_server_takes_nothing_new(app):
    app.context.state.stopping = True
    reply = app.post("/api/v1/tasks", {"tasks": [a_task()]})
    assert (reply.status, reply.code) == (503, "stopping")
    assert app.get("/readyz").status == 503


def test_a_body_in_pieces_is_put_together_and_bounded(tmp_path):
    with inside(tmp_path, body_limit=1024) as app:
        whole = [b'{"na', b'me": "p', b'ieces"}', b""]
        assert app.post("/api/v1/groups", pieces=whole).status == 200
        assert app.post("/api/v1/groups", pieces=[b"x" * 600, b"x" * 600, b""]).code == "request.too_large"


def test_a_body_that_does_not_end_is_refused(tmp_path):
    with inside(tmp_path, body_timeout_s=0.1) as app:
        assert app.post("/api/v1/groups", pieces=[b'{"name"']).code == "request.too_slow"


def test_calls_at_the_same_time_do_not_mix(app):
    async def at_once():
        asked = [app.ask("GET", "/api/v1/server", headers={"X-Request-Id": f"r{n}"}) for n in range(50)]
        return await asyncio.gather(*asked)

    assert [reply.headers["x-request-id"] for reply in app.run(at_once())] == [f"r{n}" for n in range(50)]
    assert app.context.state.num_calls == 0


def test_a_server_that_died_is_still_shown_and_shown_as_dead(app):
    long_ago = app.context.now() - 3_600_000_000
    app.context.db.engine.write(
        lambda tx: servers.register(tx, "10.0.0.9", 8910, now=long_ago, rules=app.context.rules)
    )
    told = {one["address"]: one for one in app.get("/api/v1/servers").json["servers"]}
    assert (told["10.0.0.9"]["alive"], told["10.0.0.9"]["this"]) == (False, False)
    assert (told["127.0.0.1"]["alive"], told["127.0.0.1"]["this"]) == (True, True)


A_VALUE = {"type": "int64", "payload": {"inline": "Bw=="}}


def test_tokens_of_one_name_have_request_keys_of_their_own(tmp_path):
    """A caller could else find out what another group has stored, or keep it from storing something."""
    with inside(tmp_path) as app:
        app.post("/api/v1/groups", {"name": "other"})
        key = {"Idempotency-Key": "the same"}
        users = [app.new_token("user", "default"), app.new_token("user", "other"), app.new_token("user", "default")]
        for path, body, field in (
            ("/api/v1/values", A_VALUE, "id"),
            ("/api/v1/webhooks", {"url": "http://8.8.8.8/", "kinds": ["task-pending"]}, "id"),
        ):
            made = [app.post(path, body, token=token, headers=key) for token in users]
            assert [reply.status for reply in made] == [200, 200, 200], made
            assert len({reply.json[field] for reply in made}) == 3
            assert app.post(path, body, token=users[0], headers=key).json[field] == made[0].json[field]
        admins = [app.new_token("admin", None), app.new_token("admin", None)]
        viewer = {"name": "x", "role": "viewer", "group": "default"}
        made = [app.post("/api/v1/tokens", viewer, token=token, headers=key) for token in admins]
        assert len({reply.json["token"] for reply in made}) == 2


def test_only_administrators_see_whose_token_has_introduced_a_bot(tmp_path):
    with inside(tmp_path) as app:
        app.meet_bot()
        seen = {}
        for role in ("admin", "user"):
            token = app.token(role)
            v1 = app.get("/_ah/api/swarming/v1/bots/list", token=token).json["items"][0]
            single = app.get("/_ah/api/swarming/v1/bot/b1/get", token=token).json
            events = app.get("/_ah/api/swarming/v1/bot/b1/events", token=token).json["items"]
            ours = app.get("/api/v1/bots/b1", token=token).json
            told = {one["authenticated_as"] for one in (v1, single, *events)}
            seen[role] = (*told, ours["authenticated"])
        assert seen == {"admin": ("user:a admin", "a admin"), "user": ("bot:b1", "")}
