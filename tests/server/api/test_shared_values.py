"""Shared values over HTTP: create, list, reference and drop them; who may see which."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from myrmidon.model.ids import show_task
from tests import invariants
from tests.server.inside import Inside, inside

SEVEN = msgspec.msgpack.encode(7)
LARGE = msgspec.msgpack.encode("x" * 5000)
NOWHERE = show_task((1 << 62) + 1)


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


def inline(content: bytes = SEVEN) -> dict[str, Any]:
    return {"inline": b64encode(content).decode()}


def share(app: Inside, *, of: str = "int64", token: str | None = None, **given: Any) -> dict[str, Any]:
    reply = app.post("/api/v1/values", {"type": of, "payload": inline(), **given}, token=token)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def a_job(app: Inside, *value_ids: str, of: str = "int64", token: str | None = None) -> Any:
    """The reply to a job with one function that reads these shared values."""
    inputs = [{"kind": "shared", "type": of, "shared_value_id": one} for one in value_ids]
    task = {
        "name": "f", "function": {"package_name": "lib", "func_name": "lib.f"}, "inputs": inputs, "outputs": [],
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}],
    }  # fmt: skip
    return app.post("/api/v1/jobs", {"job": {"name": "j", "tasks": {"f": {"task": task}}}}, token=token)


def num_rows(app: Inside, table: str) -> int:
    return int(app.context.db.engine.read(lambda tx: tx.all(f"SELECT COUNT(*) FROM {table}"))[0][0])


def end(app: Inside, job_id: str) -> None:
    """Cancel and delete a job."""
    app.post(f"/api/v1/jobs/{job_id}/cancel")
    app.settle(job_id)
    assert app.delete(f"/api/v1/jobs/{job_id}").status == 200
    app.settle(job_id)


# ---------------------------------------------------------------- create and read


def test_a_value_is_stored_once_and_read_back(app):
    made = share(app, of=" List< int > ", localities=["10.0.0.2", "10.0.0.1"])
    assert (made["type"], made["size"], made["num_groups"], made["num_jobs"]) == ("List<int64>", 1, 1, 0)
    assert made["localities"] == ["10.0.0.1", "10.0.0.2"]
    content = app.get(f"/api/v1/values/{made['id']}")
    assert (content.body, content.headers["x-value-type"]) == (SEVEN, "List<int64>")
    shown = app.get(f"/api/v1/values/{made['id']}/info").json
    assert shown == {"value": made, "groups": ["default"], "jobs": []}


def test_a_large_value_is_an_uploaded_file(app):
    payload = {"digest": sha256(LARGE).hexdigest(), "size": len(LARGE)}
    refused = app.post("/api/v1/values", {"type": "string", "payload": payload})
    assert (refused.status, refused.code, num_rows(app, "shared_values")) == (409, "unknown_file", 0)
    app.put(f"/api/v1/files/{payload['digest']}", LARGE, token=app.token("user", "other"))
    assert app.post("/api/v1/values", {"type": "string", "payload": payload}).code == "unknown_file"
    app.put(f"/api/v1/files/{payload['digest']}", LARGE)
    wrong = app.post("/api/v1/values", {"type": "string", "payload": {**payload, "size": 7}})
    assert (wrong.code, num_rows(app, "shared_values")) == ("unknown_file", 0)
    made = app.post("/api/v1/values", {"type": "string", "payload": payload}).json
    assert app.get(f"/api/v1/values/{made['id']}").body == LARGE


@pytest.mark.parametrize(
    "body",
    [
        {"type": "int64", "payload": {}},
        {"type": "int64", "payload": {**inline(), "digest": "0" * 64, "size": 1}},
        {"type": "int64", "payload": {**inline(), "size": 2}},
        {"type": "int64", "payload": inline(b"x" * 1025)},
        {"type": "int64", "payload": {"digest": "0" * 64}},
        {"type": "int64", "payload": {"digest": "zz", "size": 1}},
        {"type": "List<", "payload": inline()},
        {"type": "int64", "payload": inline(), "localities": [""]},
        {"type": "int64", "payload": inline(), "localities": ["x" * 41]},
        {"type": "int64", "payload": inline(), "localities": ["a"] * 101},
    ],
)
def test_a_value_that_makes_no_sense_is_refused_and_nothing_stored(app, body):
    reply = app.post("/api/v1/values", body)
    assert (reply.status, reply.code, num_rows(app, "shared_values")) == (400, "request.invalid", 0)


def test_a_repeated_call_gets_the_value_of_the_first(app):
    key = {"Idempotency-Key": "once"}
    body = {"type": "int64", "payload": inline()}
    first, again = (app.post("/api/v1/values", body, headers=key).json for _ in range(2))
    assert (first, num_rows(app, "shared_values")) == (again, 1)
    other = app.post("/api/v1/values", {**body, "type": "double"}, headers=key)
    assert (other.status, other.code) == (409, "request.conflict")


def test_a_call_that_is_repeated_after_the_drop_makes_no_second_value(app):
    key = {"Idempotency-Key": "once"}
    body = {"type": "int64", "payload": inline()}
    value = app.post("/api/v1/values", body, headers=key).json["id"]
    invariants.check(app.context.db.engine)
    assert app.post(f"/api/v1/values/{value}/unref").json == {"deleted": True}
    again = app.post("/api/v1/values", body, headers=key)
    assert (again.status, again.code, num_rows(app, "shared_values")) == (409, "wrong_state", 0)
    invariants.check(app.context.db.engine)
    other = app.post("/api/v1/values", {**body, "type": "double"}, headers=key)
    assert (other.status, other.code) == (409, "request.conflict")


# ---------------------------------------------------------------- references


def test_the_last_reference_deletes_the_value(app):
    value = share(app)["id"]
    job = a_job(app, value).json["job_id"]
    assert app.get(f"/api/v1/values/{value}/info").json["jobs"] == [job]
    assert app.post(f"/api/v1/values/{value}/unref").json == {"deleted": False}
    assert app.get(f"/api/v1/values?job={job}").json["values"][0]["id"] == value
    end(app, job)
    gone = app.get(f"/api/v1/values/{value}/info")
    assert (gone.status, gone.code, num_rows(app, "shared_values")) == (404, "not_found", 0)


def test_a_job_keeps_what_its_tasks_read(app):
    value = share(app)["id"]
    job = a_job(app, value).json["job_id"]
    assert app.post(f"/api/v1/values/{value}/unref", {"job": job}).code == "forbidden"
    assert app.post(f"/api/v1/values/{value}/ref", {"job": job}).status == 200


def test_a_repeated_drop_says_what_the_first_said(app):
    value = share(app)["id"]
    key = {"Idempotency-Key": "drop"}
    path = f"/api/v1/values/{value}/unref"
    assert [app.post(path, headers=key).json for _ in range(2)] == [{"deleted": True}] * 2
    assert app.post(path).code == "not_found"


def test_only_an_administrator_gives_a_value_to_another_group(app):
    value = share(app, token=app.token("user"))["id"]
    theirs = app.token("user", "other")
    assert app.post(f"/api/v1/values/{value}/ref", {"group": "other"}, token=app.token("user")).status == 403
    assert app.post(f"/api/v1/values/{value}/ref", token=theirs).status == 404
    assert app.post(f"/api/v1/values/{value}/ref", {"group": "other"}).status == 200
    assert app.get(f"/api/v1/values/{value}", token=theirs).body == SEVEN
    assert a_job(app, value, token=theirs).status == 200
    assert app.post(f"/api/v1/values/{value}/unref", token=app.token("user")).json == {"deleted": False}
    assert app.get(f"/api/v1/values/{value}", token=app.token("user")).status == 404


# ---------------------------------------------------------------- isolation


def test_a_value_of_another_group_does_not_exist(app):
    value = share(app, token=app.token("user", "other"))["id"]
    for path in ("", "/info", "/localities"):
        reply = app.get(f"/api/v1/values/{value}{path}", token=app.token("user"))
        assert (reply.status, reply.code) == (404, "not_found")
    for path in ("/ref", "/unref", "/localities"):
        assert app.post(f"/api/v1/values/{value}{path}", token=app.token("user")).status == 404
    assert app.get("/api/v1/values", token=app.token("user")).json["values"] == []
    assert app.get("/api/v1/values?group=other", token=app.token("user")).status == 403
    assert app.get("/api/v1/values?group=default").json["values"] == []
    assert [one["id"] for one in app.get("/api/v1/values?group=other").json["values"]] == [value]


def test_a_job_with_a_deleted_or_foreign_value_is_refused_in_the_same_words(app):
    foreign = share(app, token=app.token("user", "other"))["id"]
    deleted = share(app)["id"]
    app.post(f"/api/v1/values/{deleted}/unref")
    replies = {one: a_job(app, one, token=app.token("user")) for one in (foreign, deleted, NOWHERE)}
    assert [(reply.status, reply.code) for reply in replies.values()] == [(409, "unknown_value")] * 3
    words = {reply.json["error"]["message"].replace(one, "X") for one, reply in replies.items()}
    assert len(words) == 1
    assert (num_rows(app, "jobs"), num_rows(app, "task_requests")) == (0, 0)


def test_a_value_of_another_type_is_refused_with_the_place(app):
    value = share(app)["id"]
    reply = a_job(app, value, of="string")
    assert (reply.status, reply.code, num_rows(app, "jobs")) == (400, "request.invalid", 0)


def test_a_running_task_has_the_values_of_its_job_only(app):
    mine = share(app)["id"]
    run = app.running()
    token = run["api_token"]
    assert app.get(f"/api/v1/values/{mine}/info", token=token).status == 404
    assert app.post(f"/api/v1/values/{mine}/ref", token=token).status == 404
    made = share(app, token=token)["id"]
    shown = app.get(f"/api/v1/values/{made}/info", token=token).json
    assert (shown["groups"], len(shown["jobs"])) == ([], 1)
    assert [one["id"] for one in app.get("/api/v1/values", token=token).json["values"]] == [made]
    body = {"type": "int64", "payload": inline()}
    assert app.post("/api/v1/values", {**body, "group": "default"}, token=token).status == 403
    other = a_job(app, mine).json["job_id"]
    assert app.post("/api/v1/values", {**body, "job": other}, token=token).status == 404
    assert app.post(f"/api/v1/values/{made}/ref", {"job": other}, token=token).status == 404
    assert app.post(f"/api/v1/values/{made}/unref", token=token).json == {"deleted": True}


# ---------------------------------------------------------------- localities


def test_localities_are_added_listed_and_dropped(app):
    value = share(app)["id"]
    path = f"/api/v1/values/{value}/localities"
    assert app.post(path, {"add": ["10.0.0.2", "10.0.0.1", "10.0.0.1"]}).json == {"addresses": ["10.0.0.1", "10.0.0.2"]}
    assert app.post(path, {"drop": ["10.0.0.2", "nobody"]}).json == {"addresses": ["10.0.0.1"]}
    assert app.get(path).json == {"addresses": ["10.0.0.1"]}
    many = {"add": [f"10.0.1.{number}" for number in range(100)]}
    assert app.post(path, many).code == "request.invalid"
    assert app.get(path).json == {"addresses": ["10.0.0.1"]}


def test_an_unknown_value_is_named_as_it_was_written(app):
    reply = app.get(f"/api/v1/values/{NOWHERE}/info")
    assert (reply.status, NOWHERE in reply.json["error"]["message"]) == (404, True)
    assert app.get("/api/v1/values/nonsense/info").status == 404


# ---------------------------------------------------------------- resource groups


def test_a_group_shows_what_it_owns_to_those_who_may_see_it(app):
    share(app, token=app.token("user", "other"))
    app.put(f"/api/v1/files/{sha256(LARGE).hexdigest()}", LARGE, token=app.token("user", "other"))
    assert a_job(app, token=app.token("user", "other")).status == 200
    shown = app.get("/api/v1/groups/other", token=app.token("viewer", "other")).json
    assert (shown["name"], shown["deleting"], shown["jobs"], shown["tasks"]) == (
        "other", False, {"RUNNING": 1}, {"READY": 1},
    )  # fmt: skip
    assert (shown["num_values"], shown["value_bytes"], shown["num_files"], shown["file_bytes"]) == (1, 1, 1, len(LARGE))
    assert app.get("/api/v1/groups/other", token=app.token("viewer")).status == 404
    assert app.get("/api/v1/groups/nobody").status == 404


def test_a_group_is_deleted_with_force_under_its_jobs(app):
    token = app.token("user", "other")
    value = share(app, token=token)["id"]
    a_job(app, value, token=token)
    run = app.running("other")
    refused = app.delete("/api/v1/groups/other")
    assert (refused.status, refused.code) == (409, "wrong_state")
    assert app.delete("/api/v1/groups/other?force=true").status == 200
    app.settle("")
    assert app.get("/api/v1/groups/other").json["deleting"] is True
    app.end_run(run)
    app.settle("")
    assert app.get("/api/v1/groups/other").status == 404
    assert (num_rows(app, "shared_values"), num_rows(app, "jobs")) == (0, 0)
    assert app.get("/api/v1/values", token=token).status == 401
