"""Requests of the API v1 as they are stored: retries, tags, realms, and problems under the names that v1 has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.inside import Inside, inside
from tests.server.swarming_v1.swarm import NEW, a_task, pairs
from tests.server.test_fleet import write

API = f"{NEW}swarming/v1/"
POOLS = """
[pool.once]
default_retries = 0
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    write(folder / "config", pools_toml=POOLS)
    with inside(folder) as opened:
        opened.meet_bot(pools=["default", "once"])
        yield opened


def submitted(app: Inside, **fields: Any) -> str:
    reply = app.post(f"{API}tasks/new", a_task(**fields))
    assert reply.status == 200, reply.body
    return str(reply.json["task_id"])


def after_its_bot_died(app: Inside, task_id: str) -> dict[str, Any]:
    """The native result of a task after its bot began the run and then reported its own failure."""
    bot = app.token("bot")
    exchange = {"session": 1, "nonce": app.context.now(), "n": 1}
    [run] = app.post("/bot/v1/exchange", exchange, token=bot).json["tasks"]
    assert run["task_id"] == task_id
    told = {"run": run["run"], "token": run["token"]}
    reports = [{"type": "start", **told}, {"type": "fault", **told, "kind": "shutdown"}]
    app.post("/bot/v1/exchange", {"session": 1, "reports": reports}, token=bot)
    result: dict[str, Any] = app.get(f"/api/v1/tasks/{task_id}").json["result"]
    return result


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_task_whose_bot_died_is_retried_once_idempotent_or_not(app: Inside, idempotent: bool) -> None:
    task = submitted(app, idempotent=idempotent)
    once = after_its_bot_died(app, task)
    assert (once["state"], once["num_retries"]) == ("READY", 1)
    assert after_its_bot_died(app, task)["state"] == "BOT_DIED"


def test_a_pool_can_ask_for_no_retry(app: Inside) -> None:
    task = submitted(app, dimensions=pairs(pool="once"))
    assert after_its_bot_died(app, task)["state"] == "BOT_DIED"


def test_a_timeout_with_a_fraction_is_shown_as_the_next_whole_number(app: Inside) -> None:
    properties = {"command": ["true"], "dimensions": {"pool": ["nobody"]}, "execution_timeout_s": 2.5}
    task = {"name": "t", "slices": [{"properties": properties}], "max_instances": 2, "soft_timeout_s": 0.5}
    [task_id] = app.submit(task)
    assert app.get(f"{API}task/{task_id}/request").json["properties"]["execution_timeout_secs"] == "3"
    assert app.get(f"/api/v1/tasks/{task_id}").json["request"]["slices"][0]["properties"]["execution_timeout_s"] == 2.5


def test_tags_that_swarming_adds_are_always_there(app: Inside) -> None:
    def tags_of(**fields: Any) -> set[str]:
        made = app.post(f"{API}tasks/new", a_task(**fields)).json
        told = set(made["request"]["tags"])
        if "task_id" in made:
            assert set(app.get(f"{API}task/{made['task_id']}/request").json["tags"]) == told
            assert set(app.get(f"{API}task/{made['task_id']}/result").json["tags"]) == told
        return told

    version = app.context.state.config.pools.version
    who = app.get("/auth/api/v1/accounts/self").json["identity"]
    both = {f"authenticated:{who}", f"swarming.pool.version:{version}"}
    plain = tags_of(dimensions=pairs(pool="other"), wait_for_capacity=True)
    assert plain >= both | {"realm:none", "swarming.pool.template:no_config"}
    known = tags_of(dimensions=pairs(pool="once"), realm="infra:ci", evaluate_only=True)
    assert known >= both | {"realm:infra:ci", "swarming.pool.template:none"}
    assert f"authenticated:{who}" in tags_of(tags=[f"t:{n}" for n in range(256)], evaluate_only=True)


def test_a_task_has_no_root_in_v1(app: Inside) -> None:
    bot = app.token("bot")
    parent = submitted(app)
    exchange = {"session": 1, "nonce": app.context.now(), "n": 1}
    [run] = app.post("/bot/v1/exchange", exchange, token=bot).json["tasks"]
    assert run["task_id"] == parent
    child = {"parent_task_id": run["run"], "dimensions": pairs(pool="other"), "wait_for_capacity": True}
    evaluated = app.post(f"{API}tasks/new", a_task(**child, evaluate_only=True)).json["request"]
    stored = app.get(f"{API}task/{submitted(app, **child)}/request").json
    assert evaluated["parent_task_id"] == stored["parent_task_id"] == run["run"]
    assert not any("root_task_id" in one for one in (evaluated, stored))
    assert "root_task_id" not in str(app.get(f"{API}tasks/requests").json)
    assert b"root_task_id" not in app.get(f"{NEW}discovery/v1/apis/swarming/v1/rest").body


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"execution_timeout_secs": 0}, "task_slices[0].properties.execution_timeout_secs"),
        ({"io_timeout_secs": -1}, "task_slices[0].properties.io_timeout_secs"),
        ({"grace_period_secs": 9999}, "task_slices[0].properties.grace_period_secs"),
        ({"expiration_secs": 0}, "task_slices[0].expiration_secs"),
        ({"task_slices": [{"properties": {}}] * 9}, "task_slices"),
        ({"bot_ping_tolerance_secs": 1}, "bot_ping_tolerance_secs"),
        ({"parent_task_id": "x"}, "parent_task_id"),
        ({"secret_bytes": "YQ" * 20_000}, "properties.secret_bytes"),
        ({"dimensions": pairs(pool=["a", "b"])}, "task_slices[0].properties.dimensions.pool"),
        ({"realm": "r" * 257}, "realm"),
        ({"priority": 256}, "priority"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_problem_is_told_under_the_name_that_v1_has_for_the_field(app: Inside, fields: Any, path: str) -> None:
    reply = app.post(f"{API}tasks/new", a_task(**fields))
    assert reply.status == 400
    assert f"{path}: got " in reply.json["error"]["message"]


def test_a_problem_of_a_request_without_slices_is_told_where_it_is(app: Inside) -> None:
    properties = {
        "command": ["true"],
        "dimensions": pairs(pool="p"),
        "execution_timeout_secs": 0,
        "io_timeout_secs": -1,
    }
    body = {"name": "old", "properties": properties, "expiration_secs": 0}
    message = app.post(f"{API}tasks/new", body).json["error"]["message"]
    assert message.startswith("3 problems: ")
    for path in ("properties.execution_timeout_secs", "properties.io_timeout_secs", "expiration_secs"):
        assert f" {path}: got " in message, path


# ---------------------------------------------------------------- fields that v1 does not have


@pytest.mark.parametrize(
    ("body", "path", "meant"),
    [
        ({**a_task(), "taskSlices": []}, "taskSlices", "task_slices"),
        ({**a_task(), "evaluateOnly": True}, "evaluateOnly", "evaluate_only"),
        ({**a_task(), "botPingToleranceSecs": 30}, "botPingToleranceSecs", "bot_ping_tolerance_secs"),
        ({**a_task(), "priorty": 30}, "priorty", "priority"),
        ({"name": "t", "task_slices": [{"expirationSecs": 5, "properties": {"command": ["x"]}}]},
         "task_slices[0].expirationSecs", "expiration_secs"),
        ({"name": "t", "properties": {"command": ["x"], "executionTimeoutSecs": 5}},
         "properties.executionTimeoutSecs", "execution_timeout_secs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_field_of_the_api_v2_and_a_misspelt_one_are_refused(app: Inside, body: Any, path: str, meant: str) -> None:
    before = app.get("/api/v1/tasks").json["tasks"]
    error = app.post(f"{API}tasks/new", body).json["error"]
    assert f"{path}: got " in error["message"]
    assert f"`{meant}` (did you mean that?)" in error["message"]
    assert app.get("/api/v1/tasks").json["tasks"] == before


def test_a_cancel_with_a_field_of_the_api_v2_is_refused(app: Inside) -> None:
    reply = app.post(f"{API}task/{submitted(app)}/cancel", {"killRunning": True})
    assert (reply.status, "`kill_running` (did you mean that?)" in reply.json["error"]["message"]) == (400, True)


OPTIONAL = {
    "pubsub_auth_token": "t", "pubsub_userdata": "u", "resultdb": {"enable": True}, "root_task_id": "1",
    "task_id": "1", "created_ts": "2026-01-01T00:00:00", "authenticated": "user:a", "containment": {},
}  # fmt: skip
"""Fields that published clients send, of newer and older servers, and of requests that were read and sent again."""


def test_optional_fields_of_other_versions_are_accepted_with_a_warning(app: Inside) -> None:
    reply = app.post(f"{API}tasks/new", {**a_task(evaluate_only=True), **OPTIONAL})
    assert reply.status == 200, reply
    warned = reply.headers["myrmidon-warning"].split("; ")
    assert warned == [f"{name} has no effect: this server does not know the field" for name in OPTIONAL]
    inner = a_task(evaluate_only=True)
    inner["task_slices"][0]["properties"]["containment"] = {"containment_type": "NONE"}
    told = app.post(f"{API}tasks/new", inner).headers["myrmidon-warning"]
    assert told.startswith("task_slices[0].properties.containment has no effect: ")
    assert "myrmidon-warning" not in app.post(f"{API}tasks/new", a_task(evaluate_only=True)).headers
