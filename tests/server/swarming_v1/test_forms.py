"""Every odd form in which known clients speak v1, and the forms that all of them can read."""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from typing import Any

import pytest

from tests.server.swarming_v1.swarm import PREFIXES, Swarm, a_task, pairs, properties

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def evaluated(swarm: Swarm, body: Any) -> Any:
    """What the server makes of a request, without storing it."""
    return swarm.call("tasks.new", body={**body, "evaluate_only": True})["request"]


def test_whole_numbers_come_out_as_texts_and_go_in_as_either(either):
    for priority, timeout in (("150", "61"), (150, 61)):
        shown = evaluated(either, a_task(priority=priority, execution_timeout_secs=timeout, io_timeout_secs=None))
        assert (shown["priority"], shown["properties"]["execution_timeout_secs"]) == ("150", "61")


def test_null_is_nothing(either):
    body: dict[str, Any] = a_task("echo")
    body |= dict.fromkeys(("parent_task_id", "service_account", "realm", "request_uuid", "pubsub_topic"))
    body["task_slices"][0]["properties"] |= dict.fromkeys(("env", "caches", "inputs_ref", "secret_bytes", "outputs"))
    shown = evaluated(either, body)
    assert shown["properties"]["command"] == ["echo"]
    assert not {"parent_task_id", "realm"} & set(shown)


def test_unknown_keys_of_body_and_query_are_left_alone(either):
    body = a_task("echo", containment={"containment_type": 3}, isolate_mode=7, extra_args=["-n"])
    body |= {"is_mp": True, "unheard_of": {"x": [1]}}
    body["task_slices"][0]["properties"]["inputs_ref"] = {
        "isolated": None,
        "isolatedserver": "https://x",
        "namespace": "",
    }
    assert evaluated(either, body)["properties"]["command"] == ["echo", "-n"]
    query = {"alt": "json", "prettyPrint": False, "fields": "items", "is_mp": True, "key": "k", "limit": 5}
    assert either.call("tasks.list", **query)["items"] is not None
    assert either.call("server.details", **query)


def test_json_is_understood_whatever_the_content_type_says(either):
    path, data = either.url("tasks.new"), json.dumps(a_task(evaluate_only=True)).encode()
    for headers in (FORM, {}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-8"}):
        status, answer = either.raw("POST", path, data, headers)
        assert (status, "task_id" in answer) == (200, False), answer
    packed = zlib.compress(data)
    assert either.raw("POST", path, packed, {"Content-Type": "application/json-zlib"})[0] == 200
    status, answer = either.raw("POST", path, data, {"Content-Type": "application/json-zlib"})
    assert "zlib" in either.checked_error(status, answer)["message"]


def test_a_post_without_a_body_says_nothing(either):
    task = either.new("true", dimensions=pairs(pool="nobody"), wait_for_capacity=True)
    for body in (None, b"", b"null", b" \n"):
        status, answer = either.raw("POST", either.url("task.cancel", task_id=task), body)
        assert status == 200, answer
    assert either.call("task.result", task_id=task)["state"] == "CANCELED"
    assert either.raw("POST", either.url("server.token"))[0] == 200


def test_enums_are_named_or_numbered(either):
    for template in ("SKIP", 3, "3", "skip", None):
        assert evaluated(either, a_task(pool_task_template=template))
    assert either.refused("tasks.new", body=a_task(pool_task_template=9))[0] == 400
    assert either.call("tasks.count", start=0, state=10)["count"] == either.call("tasks.count", start=0)["count"]
    for state in ("COMPLETED_FAILURE", "5", 5):
        assert either.call("tasks.list", state=state, limit=1)["items"] is not None
    for flag in ("TRUE", "true", 2, "NONE"):
        assert either.call("bots.list", is_dead=flag)["items"] is not None


def test_a_request_of_an_older_client_becomes_one_slice(either):
    old = {"name": "old", "priority": 100, "expiration_secs": "3600", "properties": properties("echo", "hi")}
    shown = evaluated(either, old)
    assert [one["expiration_secs"] for one in shown["task_slices"]] == ["3600"]
    assert shown["task_slices"][0]["properties"] == shown["properties"]
    assert shown["expiration_secs"] == "3600"
    both = {**old, "task_slices": [{"properties": properties(), "expiration_secs": 60}]}
    assert "either" in either.refused("tasks.new", body=both)[1]["message"]
    assert either.refused("tasks.new", body={"name": "neither", "priority": 100})[0] == 400
    twice = {"name": "n", "expiration_secs": 60, "task_slices": both["task_slices"]}
    assert "expiration_secs" in either.refused("tasks.new", body=twice)[1]["message"]


def test_base64_may_end_in_a_newline(either):
    secret = base64.encodebytes(b"the secret").decode()
    assert secret.endswith("\n")
    shown = evaluated(either, a_task(secret_bytes=secret))
    assert base64.b64decode(shown["properties"]["secret_bytes"]) == b"<REDACTED>"
    assert "base64" in either.refused("tasks.new", body=a_task(secret_bytes="?!"))[1]["message"]


def test_the_same_uuid_is_the_same_task_whatever_else_is_said(either):
    key = str(uuid.uuid4())
    first = either.call("tasks.new", body=a_task("true", request_uuid=key))
    again = either.call("tasks.new", body=a_task("false", request_uuid=key.upper(), name="another"))
    assert again["task_id"] == first["task_id"]
    assert again["request"]["name"] == first["request"]["name"] == "a test"
    assert either.call("tasks.new", body=a_task("true", request_uuid=str(uuid.uuid4())))["task_id"] != first["task_id"]
    assert either.refused("tasks.new", body=a_task(request_uuid="17"))[0] == 400


def test_a_uuid_is_one_callers_own(swarm, user):
    key = str(uuid.uuid4())
    mine = swarm.call("tasks.new", body=a_task(request_uuid=key))["task_id"]
    assert user.call("tasks.new", body=a_task(request_uuid=key))["task_id"] != mine


def test_an_urgent_priority_without_the_right_is_raised_and_shown(swarm, user):
    assert evaluated(user, a_task(priority=5))["priority"] == "20"
    assert evaluated(user, a_task(priority=20))["priority"] == "20"
    assert evaluated(swarm, a_task(priority=5))["priority"] == "5"


def test_evaluating_stores_nothing(either):
    before = either.call("tasks.count", start=0)["count"]
    answer = either.call("tasks.new", body=a_task(evaluate_only=True))
    assert "task_id" not in answer
    assert "task_id" not in answer["request"]
    assert either.call("tasks.count", start=0)["count"] == before


def test_maps_are_lists_of_pairs(either):
    prefixes = [{"key": "PATH", "value": ["bin", "tools"]}]
    body = a_task(
        env=pairs(A="1", B=""), env_prefixes=prefixes, dimensions=pairs(pool="default", os=["Linux", "Debian|Ubuntu"])
    )
    shown = evaluated(either, body)["properties"]
    assert shown["env"] == pairs(A="1", B="")
    assert shown["env_prefixes"] == prefixes
    assert shown["dimensions"] == pairs(os=["Debian|Ubuntu", "Linux"], pool="default")
    for name, twice in (("env", [*pairs(A="1"), *pairs(A="2")]), ("env_prefixes", prefixes * 2)):
        assert f"{name}[1].key" in either.refused("tasks.new", body=a_task(**{name: twice}))[1]["message"]


def test_a_request_is_shown_as_it_was_made(either, user):
    given = properties(
        "echo", "hi", caches=[{"name": "c", "path": "p"}], env=pairs(A="1"), idempotent=True, io_timeout_secs="9",
        env_prefixes=[{"key": "PATH", "value": ["bin"]}], relative_cwd="down",
        dimensions=pairs(os="Haiku", pool="default"),
    )  # fmt: skip
    piece = {"expiration_secs": "77", "properties": given, "wait_for_capacity": True}
    body = a_task(
        task_slices=[piece], name="in full", priority="150", user="ann", tags=["k:v"], service_account="bot",
        realm="project:realm", bot_ping_tolerance_secs="90",
    )  # fmt: skip
    made = either.call("tasks.new", body=body)
    told = made["request"]
    assert told == either.call("task.request", task_id=made["task_id"])
    assert told == next(iter(either.call("tasks.requests", limit=1)["items"]))
    for name in ("name", "priority", "user", "service_account", "realm", "bot_ping_tolerance_secs", "task_slices"):
        assert told[name] == body[name], name
    assert (told["properties"], told["expiration_secs"], told["task_id"]) == (given, "77", made["task_id"])
    assert told["authenticated"] == either.raw("GET", "/auth/api/v1/accounts/self")[1]["identity"]
    result = either.call("task.result", task_id=made["task_id"])
    assert result == made["task_result"]
    assert (result["created_ts"], result["state"]) == (told["created_ts"], "PENDING")
    assert either.call("task.cancel", task_id=made["task_id"])["ok"]
    assert evaluated(user, body)["authenticated"] == "user:a user"


def test_automatic_tags_are_there(either):
    body = a_task(dimensions=pairs(pool="default", os="Linux|Mac"), tags=["a:b"], priority=77, user="ann")
    tags = evaluated(either, body)["tags"]
    wanted = {"a:b", "pool:default", "os:Linux", "os:Mac", "priority:77", "user:ann", "service_account:none"}
    assert wanted <= set(tags)
    assert tags == sorted(tags)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"inputs_ref": {"isolated": "a" * 40, "isolatedserver": "https://x", "namespace": "n"}}, "inputs_ref"),
        ({"cas_input_root": {"cas_instance": "x", "digest": {"hash": "a" * 64, "size_bytes": "1"}}}, "cas_input_root"),
        ({"outputs": ["out.txt"]}, "outputs"),
        ({"cipd_input": {"packages": [{"package_name": "p"}]}}, "cipd_input"),
        ({"pubsub_topic": "projects/x/topics/y"}, "pubsub_topic"),
    ],
)
def test_what_is_not_served_is_refused_with_a_reason(either, fields, word):
    status, error = either.refused("tasks.new", body=a_task(**fields))
    assert (status, word in error["message"]) == (400, True), error


@pytest.mark.parametrize(
    "change",
    [
        {"priority": 256}, {"priority": "soon"}, {"tags": ["no colon"]}, {"parent_task_id": "x"}, {"name": ""},
        {"command": []}, {"dimensions": []}, {"dimensions": pairs(pool=["a", "b"])}, {"execution_timeout_secs": -1},
        {"expiration_secs": 0}, {"relative_cwd": "../up"}, {"parent_task_id": "5cee488008811"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_told_in_v1s_shape(either, change):
    body = a_task(**{key: value for key, value in change.items() if key != "command"})
    if "command" in change:
        body["task_slices"][0]["properties"]["command"] = change["command"]
    status, error = either.refused("tasks.new", body=body)
    assert status == 400, error


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff\xfe", b'{"name": 3, "x": "\\u0000"}', b"[" * 3000])
def test_a_body_that_is_no_object_is_refused(either, body):
    status, answer = either.raw("POST", either.url("tasks.new"), body)
    assert either.checked_error(status, answer)["code"] == 400


def test_the_characters_that_write_nul_are_ordinary_text(either):
    assert evaluated(either, a_task(r"grep", r"\u0000"))["properties"]["command"] == ["grep", r"\u0000"]
    status, error = either.refused("tasks.new", body=a_task("grep", "\0"))
    assert status == 400
    assert "task_slices[0].properties.command[1]: got a text with NUL" in error["message"]


def test_short_execution_timeouts_are_allowed(either):
    assert evaluated(either, a_task(execution_timeout_secs=1))["properties"]["execution_timeout_secs"] == "1"


def test_every_404_is_json(server, swarm):
    paths = ["/nothing", "/_ah/", "/_ah/api/swarming/v2/x", "/api/nope", "/bot/nope", "/auth/nope", "/swarming/api/v1"]
    paths += [
        f"{prefix}swarming/v1/{rest}" for prefix in PREFIXES for rest in ("", "tasks", "task/1/nope", "nope/list")
    ]
    for path in paths:
        for http in ("GET", "POST"):
            status, answer = swarm.raw(http, path, b"{}" if http == "POST" else None)
            assert status in (404, 405), (path, status)
            assert answer["error"]["message"], path
    for method, params in (("task.result", {"task_id": "5cee4880088100"}), ("bot.get", {"bot_id": "no-such"})):
        assert swarm.refused(method, **params)[0] == 404
    assert swarm.refused("task.result", task_id="not an id")[0] == 404


def test_who_shows_no_token_or_a_wrong_one_is_turned_away(server):
    for prefix in PREFIXES:
        nobody, liar = Swarm(server, token="", prefix=prefix), Swarm(server, token="wrong", prefix=prefix)
        assert nobody.refused("tasks.list")[0] == 401
        assert liar.refused("tasks.list")[0] == 401
        viewer = Swarm(server, token=server.new_token("viewer", "default"), prefix=prefix)
        assert viewer.refused("tasks.new", body=a_task())[0] == 403
        assert viewer.call("tasks.list", limit=1)["items"] is not None
