"""Rules of pools: who may submit, how urgently, what tasks get, and which of several words on a pool counts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.errors import Forbidden, InvalidRequest
from myrmidon.server.calls import Identity, Role
from myrmidon.server.config.pools import CHANCE_SCALE, PoolPolicy, Template
from myrmidon.server.fleet.pool_policy import apply_pool_policy, choose_template
from myrmidon.server.settings import PoolOrder
from tests.server.inside import inside
from tests.server.test_fleet import write

POOLS = """
[pool.ci]
task_order = "lifo"
default_expiration_s = 120
default_retries = 3
template = "base"
urgent = ["a user", "oncall"]

[pool.closed]
roles = ["admin", "user"]
groups = ["release"]
template = "base"

[pool.viewers]
roles = ["viewer"]

[pool.bare]

[pool.night]
urgent = ["default"]

[pool.trying]
template = "base"
canary_template = "next"
canary_chance = 300

[pool.walled]
require_isolation = true

[resource_group.release]
require_isolation = true

[template.next]
env.LANG = "D"

[template.base]
env.LANG = "C"
env.CC = { value = "clang", soft = true }
caches = [{ name = "git", path = "cache/git" }]
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    write(folder / "config", pools_toml=POOLS)
    with inside(folder, pools={"ci": PoolOrder(task_order="fifo")}) as opened:
        yield opened


def a_task(pool="ci", **more):
    properties = {"dimensions": {"pool": [pool]}, "command": ["true"], **more.pop("properties", {})}
    return {"name": "t", "slices": [{"properties": properties, **more.pop("slice", {})}], **more}


def answer(app, task, **options):
    return app.post("/api/v1/tasks", {"tasks": [task]}, **options).json["tasks"][0]


def stored(app, task, **options):
    task_id = answer(app, task, **options)["task_id"]
    return app.get(f"/api/v1/tasks/{task_id}").json["request"]


# ---------------------------------------------------------------- what tasks get


def test_a_task_gets_the_template_of_its_pool_its_expiry_and_tags_that_say_so(app):
    request = stored(app, a_task(tags=["mine:1"], properties={"env": {"CC": "gcc"}}))
    (piece,) = request["slices"]
    assert piece["properties"]["env"] == {"LANG": "C", "CC": "gcc"}, "a soft variable gives way"
    assert piece["properties"]["caches"] == [{"name": "git", "path": "cache/git"}]
    assert piece["expiration_s"] == 120
    version = app.context.state.config.pools.version
    assert {"mine:1", "swarming.pool.template:prod", f"swarming.pool.version:{version}"} <= set(request["tags"])


def test_what_a_task_says_itself_counts_before_the_usual_expiry(app):
    assert stored(app, a_task(slice={"expiration_s": 7}))["slices"][0]["expiration_s"] == 7


def test_a_pool_sets_how_often_tasks_that_do_not_say_so_are_retried(app):
    assert [stored(app, a_task(**said))["retries"] for said in ({}, {"retries": None}, {"retries": 0})] == [3, 3, 0]
    assert stored(app, a_task("bare"))["retries"] == 1


def test_a_pool_with_an_entry_but_no_template_only_tells_of_itself(app):
    request = stored(app, a_task("bare"))
    assert "swarming.pool.template:none" in request["tags"]
    assert request["slices"][0]["expiration_s"] == 86_400


def test_a_pool_without_rules_changes_nothing(app):
    raw = a_task("other", priority=50)
    assert apply_pool_policy(app.context, Identity("u", Role.USER, "default"), raw)[0] is raw
    assert not any(tag.startswith("swarming.") for tag in stored(app, raw)["tags"])


def _isolation(request: dict[str, Any]) -> list[list[str] | None]:
    return [piece["properties"]["dimensions"].get("isolation") for piece in request["slices"]]


@pytest.mark.parametrize(
    ("asked", "required"),
    [
        (None, ["landlock|user"]),
        (["none"], ["landlock|user", "none"]),
        (["landlock|none"], ["landlock|none", "landlock|user"]),
        (["landlock"], ["landlock"]),
        (["user|landlock"], ["landlock|user"]),
    ],
)
def test_tasks_of_a_pool_that_requires_isolation_match_only_isolated_bots(app, asked, required):
    dimensions = {"pool": ["walled"], **({} if asked is None else {"isolation": asked})}
    task = a_task(properties={"dimensions": dimensions})
    task["slices"].append({"properties": {"dimensions": {"pool": ["walled"], "os": ["Linux"]}, "command": ["true"]}})
    assert _isolation(stored(app, task)) == [required, ["landlock|user"]]
    assert "isolation" not in task["slices"][1]["properties"]["dimensions"], "what the caller sent is not changed"
    assert _isolation(stored(app, a_task("bare"))) == [None]


def test_tasks_of_a_group_that_requires_isolation_match_only_isolated_bots_in_every_pool(app):
    app.post("/api/v1/groups", {"name": "release"})
    for pool in ("bare", "of no entry"):
        task_id = app.post("/api/v1/tasks", {"tasks": [a_task(pool)], "group": "release"}).json["tasks"][0]["task_id"]
        assert _isolation(app.get(f"/api/v1/tasks/{task_id}").json["request"]) == [["landlock|user"]]


@pytest.mark.parametrize("dimensions", [None, "x", {"pool": ["walled"], "isolation": "none"}])
def test_a_request_that_cannot_be_read_is_left_for_validation_to_refuse(app, dimensions):
    task = a_task("walled")
    task["slices"].append({"properties": {"dimensions": dimensions, "command": ["true"]}})
    assert answer(app, task)["error"]["code"] == "request.invalid"


def test_what_contradicts_the_template_is_refused_all_at_once(app):
    properties = {
        "env": {"LANG": "de"},
        "caches": [{"name": "git", "path": "elsewhere"}, {"name": "mine", "path": "cache"}],
    }
    error = answer(app, a_task(properties=properties))["error"]
    assert error["code"] == "request.invalid"
    assert [(one["path"], one["code"]) for one in error["problems"]] == [
        ("slices[0].properties.env.LANG", "template"),
        ("slices[0].properties.caches[0].name", "template"),
        ("slices[0].properties.caches[1].path", "template"),
    ]


def test_the_request_that_was_given_is_not_changed_and_a_repeat_is_told_by_it(app):
    raw = a_task()
    before = repr(raw)
    apply_pool_policy(app.context, Identity("u", Role.USER, "default"), raw)
    assert repr(raw) == before
    key = {"Idempotency-Key": "one and the same"}
    first = answer(app, raw, headers=key)
    fleet = app.context.state.config
    app.context.state.config = type(fleet)()  # the rules have changed meanwhile
    try:
        again = answer(app, raw, headers=key)
    finally:
        app.context.state.config = fleet
    assert (again["task_id"], again["repeated"]) == (first["task_id"], True)


@pytest.mark.parametrize(
    "raw",
    [None, 7, [], {}, {"slices": 7}, {"slices": []}, {"slices": [7]}, {"slices": [{"properties": {"dimensions": 7}}]},
     {"slices": [{"properties": {"dimensions": {"pool": []}}}]},
     {"slices": [{"properties": {"dimensions": {"pool": [7]}}}]},
     a_task(properties={"env": 7}), a_task(properties={"caches": [7]}), a_task(tags=7), a_task(priority="high"),
     {"slices": [a_task()["slices"][0], 7]}],
)  # fmt: skip
def test_what_makes_no_sense_is_left_to_the_checks_that_follow(app, raw):
    with contextlib.suppress(InvalidRequest):
        apply_pool_policy(app.context, Identity("u", Role.USER, "default"), raw)
    assert app.post("/api/v1/tasks", {"tasks": [raw]}).json["tasks"][0]["error"]["code"] == "request.invalid"


def test_a_canary_template_is_for_the_share_that_was_asked_for():
    base, following = Template(), Template(env={})
    half = PoolPolicy(name="p", template=base, canary=following, canary_chance=5000)
    words = [choose_template(half, "AUTO", chance=chance)[0] for chance in range(CHANCE_SCALE)]
    assert (words.count("canary"), words.count("prod")) == (5000, 5000)
    assert choose_template(half, "CANARY_PREFER", chance=9999) == ("canary", following)
    assert choose_template(half, "CANARY_NEVER", chance=0) == ("prod", base)
    assert choose_template(half, "SKIP", chance=0) == ("skip", None)
    assert choose_template(PoolPolicy(name="p"), "CANARY_PREFER", chance=0) == ("none", None)


@pytest.mark.parametrize(("drawn", "word"), [(299, "canary"), (300, "prod")])
def test_the_servers_dice_choose_the_template(app, monkeypatch, drawn, word):
    monkeypatch.setattr(app.context, "random_int", lambda below: drawn)
    request = stored(app, a_task("trying"))
    assert f"swarming.pool.template:{word}" in request["tags"]
    assert request["slices"][0]["properties"]["env"]["LANG"] == ("D" if word == "canary" else "C")


# ---------------------------------------------------------------- who may


def test_only_those_whom_a_pool_names_may_submit_and_others_learn_nothing_of_it(app):
    user = app.token("user")
    wrong = a_task("closed", properties={"env": {"LANG": "would be told by the template"}})
    error = answer(app, wrong, token=user)["error"]
    assert error["code"] == "forbidden"
    assert "LANG" not in str(error)
    assert answer(app, a_task("viewers"), token=user)["error"]["code"] == "forbidden"
    assert "task_id" in answer(app, a_task("closed")), "an administrator may everything"
    app.post("/api/v1/groups", {"name": "release"})
    theirs = app.token("user", "release")
    assert "task_id" in answer(app, a_task("closed"), token=theirs)
    two = {**a_task("ci"), "slices": [a_task("ci")["slices"][0], a_task("closed")["slices"][0]]}
    assert answer(app, two, token=user)["error"]["code"] == "request.invalid", "a fallback is no way around it"


def test_a_closed_list_of_pools_takes_no_others(tmp_path):
    write(tmp_path / "config", pools_toml="closed = true\n[pool.open]\n")
    with inside(tmp_path) as app:
        user = app.token("user")
        assert "task_id" in answer(app, a_task("open"), token=user)
        refused = answer(app, a_task("unheard of"), token=user)["error"]
        assert (refused["code"], "unheard of" in refused["message"]) == ("forbidden", True)
        assert "task_id" in answer(app, a_task("unheard of"))


def test_priorities_below_twenty_need_a_right_and_are_refused_or_raised(app):
    stranger = Identity("somebody", Role.USER, "default")
    with pytest.raises(Forbidden, match="below 20"):
        apply_pool_policy(app.context, stranger, a_task(priority=19))
    raised, notes = apply_pool_policy(app.context, stranger, a_task("other", priority=0), clamp=True)
    assert raised["priority"] == 20
    assert "to 20" in notes[0]
    for who in (Identity("root", Role.ADMIN), Identity("a user", Role.USER, "x"), Identity("z", Role.USER, "oncall")):
        same, notes = apply_pool_policy(app.context, who, a_task(priority=0), clamp=True)
        assert (same["priority"], notes) == (0, [])
    assert apply_pool_policy(app.context, Identity("z", Role.USER), a_task("night", priority=3))[1] == [], (
        "its group is the usual one"
    )
    assert answer(app, a_task("other", priority=3), token=app.token("user"))["error"]["code"] == "forbidden"
    assert "task_id" in answer(app, a_task("ci", priority=3), token=app.token("user")), "this pool calls it urgent"


# ---------------------------------------------------------------- which word counts


def test_pools_toml_counts_before_the_setting_and_the_api(app):
    listed = {one["name"]: one for one in app.get("/api/v1/pools").json["pools"]}
    assert listed["ci"]["task_order"] == "lifo", "the setting said fifo"
    refused = app.put("/api/v1/pools/ci", {"task_order": "fifo"})
    assert (refused.status, refused.code) == (409, "wrong_state")
    assert "pools.toml" in refused.json["error"]["message"]
    assert app.put("/api/v1/pools/bare", {"task_order": "lifo"}).status == 200, "of its order nothing is said there"
    assert "" not in listed


def test_the_order_of_a_pool_changes_with_an_edit(tmp_path):
    from myrmidon.server.fleet.config_sync import ConfigFolderWatcher

    folder = Path(tmp_path / "config")
    write(folder, pools_toml=POOLS)
    with inside(tmp_path) as app:
        watch = ConfigFolderWatcher(app.context)
        app.run(watch.poll())
        write(folder, pools_toml='[pool.ci]\ntask_order = "fifo"\nageing_s = 60\n')
        app.run(watch.poll())
        (ci,) = [one for one in app.get("/api/v1/pools").json["pools"] if one["name"] == "ci"]
        assert (ci["task_order"], ci["ageing"]) == ("fifo", 60_000_000)


# ---------------------------------------------------------------- what bots have


def test_dimensions_are_counted_for_the_fleet_and_for_a_pool(tmp_path):
    with inside(tmp_path) as app:
        for name, pool in (("b1", "x"), ("b2", "x"), ("b3", "y")):
            has = {"id": [name], "pool": [pool], "os": ["Linux", f"Debian-{pool}"]}
            body = {"bot_id": name, "session": 1, "dimensions": has}
            assert app.post("/bot/v1/handshake", body).status == 200
        viewer = app.token("viewer")
        everywhere = app.get("/api/v1/bots/dimensions", token=viewer).json["dimensions"]
        assert {one["key"]: one["values"] for one in everywhere} == {
            "os": {"Linux": 3, "Debian-x": 2, "Debian-y": 1},
            "pool": {"x": 2, "y": 1},
        }
        there = app.get("/api/v1/bots/dimensions?pool=y", token=viewer).json["dimensions"]
        assert {one["key"]: one["values"] for one in there} == {"os": {"Debian-y": 1, "Linux": 1}, "pool": {"y": 1}}
        assert app.get("/api/v1/bots/dimensions", token="").status == 401


def test_events_of_a_bot_go_on_where_a_page_ends_and_hide_what_others_run(tmp_path):
    with inside(tmp_path) as app:
        app.meet_bot()
        bot = app.token("bot")
        app.post("/api/v1/groups", {"name": "theirs"})
        dimensions = {"pool": ["default"], "os": ["Linux"]}
        for number in range(3):
            task = {"name": "t", "slices": [{"properties": {"dimensions": dimensions, "command": ["true"]}}]}
            app.submit(task)
            given = app.post("/bot/v1/exchange", {"session": 1, "nonce": 2 * number + 1, "n": 1}, token=bot).json
            (one,) = given["tasks"]
            report = {"type": "finish", "run": one["run"], "token": one["token"], "exit_code": 0}
            ask = {"session": 1, "nonce": 2 * number + 2, "n": 0, "reports": [report]}
            app.post("/bot/v1/exchange", ask, token=bot)
        whole = app.get("/api/v1/bots/b1/events?limit=100").json["events"]
        assert sorted(one["kind"] for one in whole) == ["bot_connected", *["request_task"] * 3, *["task_completed"] * 3]
        assert sum(one["run"] is not None for one in whole) == 6
        paged: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = app.get(f"/api/v1/bots/b1/events?limit=2{f'&cursor={cursor}' if cursor else ''}").json
            paged, cursor = [*paged, *page["events"]], page["cursor"]
        assert paged == whole
        hidden = app.get("/api/v1/bots/b1/events", token=app.token("viewer", "theirs")).json["events"]
        assert [one["kind"] for one in hidden] == ["bot_connected"]


# ---------------------------------------------------------------- what is in force


def test_the_settings_in_force_and_their_versions_are_shown_to_administrators_only(tmp_path):
    from myrmidon.server.fleet.config_sync import ConfigFolderWatcher

    with inside(tmp_path) as app:
        assert app.get("/api/v1/config").json["version"] == ""
        watch = ConfigFolderWatcher(app.context)
        for text in ("[pool.a]\n", "[pool.b]\n"):
            write(tmp_path / "config", pools_toml=text)
            app.run(watch.poll())
        told = app.get("/api/v1/config").json
        assert (told["in_force"], set(told["files"]), told["version"]) == (
            True,
            {"pools.toml"},
            app.context.state.config.version,
        )
        first = app.get("/api/v1/config/history?file=pools.toml&limit=1").json
        second = app.get(f"/api/v1/config/history?file=pools.toml&limit=1&cursor={first['cursor']}").json
        assert [one["versions"][0]["content"] for one in (first, second)] == ["[pool.b]\n", "[pool.a]\n"]
        assert first["versions"][0]["who"]
        assert len(app.get("/api/v1/config/history").json["versions"]) == 2
        assert app.get("/api/v1/config/history?file=nothing.py").status == 404
        assert app.get("/api/v1/config", token=app.token("user")).status == 403
