"""The route table: who may call what, what a repeated call does, what wrong bodies get. Made from the table itself."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from functools import partial
from hashlib import sha256

import pytest
from msgspec import Struct

from myrmidon.model.ids import show_task
from myrmidon.server.calls import OURS, Role, StreamedBody
from myrmidon.server.facades import every_route
from myrmidon.server.settings import Webhooks
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import release
from tests.server.contexts import a_task
from tests.server.functions import world_of
from tests.server.inside import BOT, Inside, Reply, inside
from tests.world import a_function, a_node, constant

TABLE = tuple(line for line in every_route() if line.style is OURS)  # the facades' tests have the others
ROLES = list(Role)
STREAMS = {"/api/v1/events", "/api/v1/stream", "/api/v1/tasks/{id}/log/follow", "/api/v1/results/streams"}
OF_A_STREAM = {"/api/v1/results/streams/{id}"}
"""Only for the caller that has opened the stream: tests/server/api/test_results.py."""
OWNED = ("/api/v1/tasks/{id}", "/api/v1/jobs/{id}", "/api/v1/webhooks/{id}", "/api/v1/values/{id}")
A_JOB = {"name": "j", "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}
A_VALUE = {"type": "int64", "payload": {"inline": "Bw=="}}
_keys = itertools.count(1)
LOCAL_WEBHOOKS = Webhooks(allowed_networks=["127.0.0.0/8"])
A_WEBHOOK = {"url": "http://127.0.0.1:65535/hook", "kinds": ["task-pending"]}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """One application for the whole table: no test here looks at what another has left."""
    with inside(tmp_path_factory.mktemp("routes"), webhooks=LOCAL_WEBHOOKS) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        opened.meet_bot()
        yield opened


def a_release(app: Inside) -> str:
    """A release besides the one that bots run, so that there is something to go back to."""
    digest = "0" * 64
    spare = partial(release.offer, digest=digest, content=b"", server=1, who="", now=1)
    app.context.db.engine.write(spare)
    return digest


def a_request(app: Inside, route, group: str = "default") -> tuple[str, object]:
    """A path and a body that are fine for this route, on things of a group."""
    token = app.token("user", group)
    task = app.submit(a_task(), token=token)[0] if "{id}" in route.path or "{run}" in route.path else ""
    values = {
        "id": task,
        "run": f"{task[:-2]}01",
        "stream": "0",
        "digest": app.context.hub.active_release,
        "name": "default",
    }
    if "/files/" in route.path:
        values["digest"] = sha256(b"text").hexdigest()
    if route.path.endswith(("/revert", "/allow")):
        values["digest"] = a_release(app)
    if route.path.startswith("/api/v1/bots/"):
        values["id"] = BOT
    if route.path.startswith("/api/v1/tokens/"):
        values["id"] = app.new_token("viewer", group).split("_")[1]
    if route.path.startswith("/api/v1/webhooks/"):
        values |= a_webhook(app, token, deliveries="{delivery}" in route.path)
    if route.path.startswith("/api/v1/jobs/{id}"):
        values["id"] = f"put-{next(_keys)}" if route.method == "PUT" else a_job(app, token, route)
    if route.path == "/api/v1/values/{id}":
        values["id"] = a_value(app, group)
    if route.path.startswith("/api/v1/values/{id}/"):
        values["id"] = app.post("/api/v1/values", A_VALUE, token=token).json["id"]
    if route.path == "/api/v1/tasks/{id}/call":
        values["id"] = show_task(world_of(app, group).job({"f": a_node(task=a_function(constant()))}).task_ids["f"])
    if route.path == "/api/v1/files/{digest}" and route.method == "GET":
        values["digest"] = a_file(app, token)
    if route.path == "/api/v1/groups/{name}" and route.method == "DELETE":
        values["name"] = f"g{next(_keys)}"
        app.post("/api/v1/groups", {"name": values["name"]})
    path = route.path.format(**values)
    if route.path == "/api/v1/jobs/{id}/compare":
        path += f"?other={values['id']}"
    if route.path == "/api/v1/job-names/flaky":
        path += "?name=j"
    if route.path == "/api/v1/search":
        path += "?q=j"
    if route.path == "/bot/v1/log/{run}/{stream}":
        path += "?offset=0"
    if route.method == "DELETE" and route.path == "/api/v1/bots/{id}":
        path += "?force=true"
    return path, a_body(app, route, task, group)


def a_webhook(app: Inside, token: str, *, deliveries: bool) -> dict[str, str]:
    """A webhook, and a message for it."""
    hook = app.post("/api/v1/webhooks", A_WEBHOOK, token=token).json["id"]
    if deliveries:
        app.add_delivery(hook)
    return {"id": hook, "delivery": "7"}


def a_value(app: Inside, group: str) -> str:
    """A constant of a job of this group."""
    job = world_of(app, group).job({"f": a_node(task=a_function(constant()))})
    listed = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/values").json["values"]
    return next(str(one["value_id"]) for one in listed if one["written"])


def a_file(app: Inside, token: str) -> str:
    digest = sha256(b"text").hexdigest()
    app.put(f"/api/v1/files/{digest}", b"text", token=token)
    return digest


def a_job(app: Inside, token: str, route) -> str:
    """A running job, or for what needs it an ended one."""
    job = app.post("/api/v1/jobs", {"job": A_JOB}, token=token).json["job_id"]
    if route.method == "DELETE":
        app.post(f"/api/v1/jobs/{job}/cancel", token=token)
        app.settle(job)
    return str(job)


def a_body(app: Inside, route, task: str, group: str) -> object:
    bodies = {
        "/api/v1/tasks": {"tasks": [a_task()]},
        "/api/v1/jobs": {"job": A_JOB},
        "/api/v1/jobs/check": {"job": A_JOB},
        "/api/v1/jobs/batch": {"jobs": [A_JOB, A_JOB]},
        "/api/v1/jobs/{id}": {"job": A_JOB} if route.method == "PUT" else {},
        "/api/v1/jobs/{id}/extend": {"job": {"tasks": {"b": {"task": {"payload": {"command": ["true"]}}}}}},
        "/api/v1/jobs/{id}/wait": {"wait_s": 0},
        "/api/v1/jobs/{id}/priority": {"priority": 50},
        "/api/v1/jobs/{id}/meta": {"name": "version", "value": "1.2"},
        "/api/v1/tasks/{id}/annotation": {"content": "# All is well"},
        "/api/v1/tasks/cancel": {"tags": ["none:such"]},
        "/api/v1/tasks/batch": {"action": "cancel", "task_ids": app.submit(a_task(), token=app.token("user", group))},
        "/api/v1/files/missing": {"files": [{"digest": "0" * 64, "size": 1}]},
        "/api/v1/results/streams": {"task_ids": []},
        "/api/v1/results": {"task_ids": app.submit(a_task(), token=app.token("user", group)), "wait_s": 0},
        "/api/v1/tasks/wait": {"task_ids": app.submit(a_task(), token=app.token("user", group)), "wait_s": 0},
        "/api/v1/config": {"files": {"bot_config.py": f"N = {next(_keys)}\n"}},
        "/api/v1/webhooks": A_WEBHOOK,
        "/api/v1/values": A_VALUE,
        "/api/v1/values/{id}/localities": {"add": ["10.0.0.7"]},
        "/api/v1/tokens": {"name": "new", "role": "viewer", "group": group},
        "/api/v1/groups": {"name": f"g{next(_keys)}"},
        "/api/v1/pools/{name}": {"task_order": "fifo"},
        "/api/v1/bots/{id}/quarantine": {"reason": None},
        "/api/v1/bots/{id}/drain": {"draining": False},
        "/bot/v1/handshake": {"bot_id": BOT, "session": 1, "dimensions": {"id": [BOT], "pool": ["default"]}},
        "/bot/v1/exchange": {"session": 1, "nonce": 0, "n": 0},
        "/bot/v1/heartbeat": {"session": 1},
        "/bot/v1/event": {"session": 1, "kind": "bot_log", "message": "hello"},
    }
    return b"text" if route.body in (bytes, StreamedBody) else bodies.get(route.path, {})


def name_of(route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize(
    "route",
    [line for line in TABLE if line.path not in STREAMS | OF_A_STREAM and not line.path.startswith("/auth/")],
    ids=name_of,
)
def test_only_those_in_the_table_may_call(app, route):
    if route.path == "/api/v1/bots/{id}" and route.method == "DELETE":
        app.meet_bot()
    for role in ROLES:
        path, body = a_request(app, route)
        if route.path.startswith(("/api/v1/bots/", "/bot/")):
            app.meet_bot()
        if route.path == "/bot/v1/handshake" and role is Role.BOOTSTRAP:
            app.delete(f"/api/v1/bots/{BOT}?force=true")  # a living bot is not introduced again
        reply = app.call(route.method, path, body, token=app.token(role))
        if role in route.who:
            not_its_run = route.path.startswith(("/bot/v1/log/", "/bot/v1/runs/"))
            not_its_job = role is Role.RUN and "{id}" in route.path
            assert reply.status == (404 if not_its_run or not_its_job else 200), (role, reply)
        else:
            assert reply.status == (401 if role is Role.NOBODY else 403), (role, reply)


@pytest.mark.parametrize(
    "route",
    [line for line in TABLE if line.path.startswith(OWNED) and not line.path.startswith("/api/v1/webhooks/")
     and line.method != "PUT"],
    ids=name_of,
)  # fmt: skip
def test_an_id_that_is_too_short_is_told_as_it_was_typed(app, route):
    path, body = a_request(app, route)
    given = path.split("/")[4].partition("?")[0]
    reply = app.call(route.method, path.replace(given, "123"), body)
    assert (reply.status, reply.code) == (404, "not_found")
    assert re.search(r"There is no (task|job|value|shared value) 123\.", reply.json["error"]["message"]), reply


@pytest.mark.parametrize("route", [line for line in TABLE if line.path in STREAMS], ids=name_of)
def test_a_stream_turns_others_away_before_it_begins(app, route):
    path, body = a_request(app, route)
    for role in ROLES:
        if role not in route.who:
            refused = app.call(route.method, path, body, token=app.token(role))
            assert refused.status == (401 if role is Role.NOBODY else 403)
        else:
            assert app.call(route.method, path, body, token=app.token(role), begin_only=True).status == 200


@pytest.mark.parametrize(
    "route", [line for line in TABLE if line.path.startswith(OWNED) and line.method != "PUT"], ids=name_of
)
def test_a_task_or_job_of_another_group_does_not_exist(app, route):
    path, body = a_request(app, route, group="other")
    for role in ("user", "viewer"):
        reply = app.call(route.method, path, body, token=app.token(role))
        assert (reply.status, reply.code) == ((404, "not_found") if role in route.who else (403, "forbidden"))
    if route.path not in STREAMS:
        assert app.call(route.method, path, body).status == 200


@pytest.mark.parametrize("route", [line for line in TABLE if line.mutates and "/api/" in line.path], ids=name_of)
def test_a_call_repeated_with_its_key_gets_the_same_answer(app, route):
    call_again(app, route)


def test_that_holds_on_every_database(db_url, dialect, tmp_path):
    if dialect == "sqlite":
        pytest.skip("done one by one")
    with inside(tmp_path, db_url, webhooks=LOCAL_WEBHOOKS) as app:
        for route in TABLE:
            if route.mutates and "/api/" in route.path:
                call_again(app, route)


def call_again(app: Inside, route) -> None:
    """The reply was lost, or the request came twice, one after the other or at the same time."""
    app.meet_bot()
    path, body = a_request(app, route)
    headers = {"Idempotency-Key": f"key {next(_keys)}"}
    first = app.call(route.method, path, body, headers=headers)
    assert first.status == 200, first
    before = rows(app)
    again = app.call(route.method, path, body, headers=headers)
    for reply in [again, *at_once(app, route.method, path, body, headers)]:
        assert (reply.status, plain(reply.json)) == (200, plain(first.json))
    assert rows(app) == before
    app.meet_bot()
    path, body = a_request(app, route)
    replies = at_once(app, route.method, path, body, {"Idempotency-Key": f"key {next(_keys)}"})
    assert [(reply.status, plain(reply.json)) for reply in replies] == [(200, plain(replies[0].json))] * 3


def at_once(app: Inside, method: str, path: str, body: object, headers: dict[str, str]) -> list[Reply]:
    async def all_of_them():
        return await asyncio.gather(*(app.ask(method, path, body, headers=headers) for _ in range(3)))

    replies: list[Reply] = app.run(all_of_them())
    return replies


def plain(answer: object) -> object:
    """An answer without what may differ: that it is a repetition, how much it has added, what is still going on."""
    return json.loads(re.sub(r', "(repeated|num_new|busy)": \w+', "", json.dumps(answer)))


def rows(app: Inside) -> list[object]:
    """What a repeated call must not add to."""
    names = ("task_requests", "task_runs", "tokens", "resource_groups", "pools", "bots", "task_to_run", "shared_values")
    return [app.context.db.engine.read(partial(count, name=name)) for name in names]


def count(tx: Tx, name: str) -> object:
    return tx.all(f"SELECT COUNT(*) FROM {name}")


def test_the_same_key_for_another_thing_is_refused(app):
    key = {"Idempotency-Key": "one of a kind"}
    assert "error" not in app.post("/api/v1/tasks", {"tasks": [a_task()]}, headers=key).json["tasks"][0]
    other = app.post("/api/v1/tasks", {"tasks": [a_task("false")]}, headers=key).json["tasks"][0]
    assert other["error"]["code"] == "request.conflict"
    assert app.post("/api/v1/tokens", {"name": "a", "role": "viewer"}, headers=key).status == 200
    assert app.post("/api/v1/tokens", {"name": "b", "role": "viewer"}, headers=key).code == "request.conflict"


@pytest.mark.parametrize("key", ["", "k" * 257, "\x00"], ids=["empty", "long", "odd"])
def test_a_key_that_cannot_be_stored_is_refused(app, key):
    reply = app.post("/api/v1/tasks", {"tasks": [a_task()]}, headers={"Idempotency-Key": key})
    assert (reply.status, reply.code) == (400, "request.invalid")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"nope": 1}', b"\xff", b'"\\ud800"', b"[" * 5000, b'{"name":"\\u0000"}']
)
@pytest.mark.parametrize(
    "route",
    [line for line in TABLE if line.body not in (None, bytes, StreamedBody) and line.path.startswith("/api/")],
    ids=name_of,
)
def test_a_wrong_body_gets_the_one_shape_of_errors(app, route, body):
    path, _ = a_request(app, route)
    reply = app.call(route.method, path, body)
    assert (reply.status, reply.code) == (400, "request.invalid")
    assert set(reply.json["error"]) == {"code", "message", "problems"}
    assert set(reply.json["error"]["problems"][0]) == {"path", "value", "allowed", "code"}
    assert reply.headers["x-request-id"]


def test_nul_is_refused_but_not_the_characters_that_write_it(app):
    text = r"\u0000 and \\u0000"
    accepted = app.post("/api/v1/tasks", {"tasks": [a_task(text, metadata={text: text}, tags=[f"a:{text}"])]})
    task_id = accepted.json["tasks"][0]["task_id"]
    shown = app.get(f"/api/v1/tasks/{task_id}").json["request"]
    assert (shown["name"], shown["metadata"], shown["tags"][0]) == (text, {text: text}, f"a:{text}")
    wrong = {"tasks": [a_task(text), a_task(f"{text}\0", metadata={"a\0": text})]}
    refused = app.post("/api/v1/tasks", wrong)
    assert (refused.status, {one["path"] for one in refused.json["error"]["problems"]}) == (
        400,
        {"tasks[1].name", r"tasks[1].metadata['a\x00']", "tasks[1].slices[0].properties.command[0]"},
    )


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "nope=1", "cursor=nope", "limit=1&limit=2", "cursor=%00"])
@pytest.mark.parametrize("path", ["tasks", "jobs", "bots", "queues", "pools", "tokens", "groups"])
def test_a_wrong_query_is_refused(app, path, query):
    assert (app.get(f"/api/v1/{path}?{query}").status, app.get(f"/api/v1/{path}?{query}").code) == (
        400,
        "request.invalid",
    )


def test_every_body_and_query_refuses_unknown_fields():
    """A field that is accepted and ignored does not do what its sender means."""
    public = [line for line in TABLE if line.path.startswith("/api/v1/")]
    kinds = {kind for line in public for kind in (line.body, line.query) if isinstance(kind, type)}
    structs = [kind for kind in kinds if issubclass(kind, Struct)]
    assert structs
    assert [kind.__name__ for kind in structs if not kind.__struct_config__.forbid_unknown_fields] == []


def test_a_path_or_method_that_is_not_there_has_the_same_shape(app):
    assert app.get("/api/v1/nope").code == "not_found"
    assert app.call("PATCH", "/api/v1/tasks").code == "method_not_allowed"
    assert app.get("/api/v1/tasks/%00").code == "not_found"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_calls_of_newer_swarming_clients_are_told_not_to_be_repeated(app, method):
    told = app.call(method, "/prpc/swarming.v2.Swarming/GetDetails")
    assert (told.status, told.headers["x-prpc-grpc-code"]) == (501, "12")
    assert "API version 1" in told.json["error"]["message"]
    told = app.call(method, "/prpc/swarming.v2.Swarming/GetDetails", headers={"host": "evil.example"})
    assert (told.status, told.headers["x-prpc-grpc-code"]) == (403, "7")


def test_every_route_has_a_summary_and_a_place_of_its_own():
    assert all(line.summary for line in TABLE)
    assert len({(line.method, line.path) for line in TABLE}) == len(TABLE)


def test_what_changes_something_is_not_for_viewers():
    """Except for their own sessions."""
    changing = [line for line in TABLE if line.mutates and Role.VIEWER in line.who]
    assert [name_of(line) for line in changing if not line.path.startswith("/auth/")] == []


def test_the_document_describes_every_route(app):
    told = app.get("/api/openapi.json", token="").json
    assert told["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, calls in told["paths"].items() for method in calls}
    assert described == {(line.method, line.path) for line in TABLE}
    names = [call["operationId"] for calls in told["paths"].values() for call in calls.values()]
    assert len(set(names)) == len(names)


def test_the_page_loads_nothing_from_elsewhere(app):
    page = app.get("/api/docs", token="")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for part in (page, app.get("/api/docs/docs.js", token=""), app.get("/api/docs/docs.css", token="")):
        assert part.status == 200
        assert b"http://" not in part.body
        assert b"https://" not in part.body
