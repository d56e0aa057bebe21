"""A task with ``api: "job"`` calls the server: what its token is good for, and until when."""

from __future__ import annotations

import pytest

from myrmidon.server.auth import run_tokens
from myrmidon.server.calls import Role
from tests.server.contexts import a_task
from tests.server.inside import Inside, inside

PLAIN = {"task": {"payload": {"command": ["true"], "dimensions": {"pool": "runs"}}}}


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        yield opened


def the_run(app: Inside, token: str) -> tuple[int, str]:
    """What a call with this token gets that any running task may make: the status, and the code of an error."""
    reply = app.get("/api/v1/jobs/x", token=token)
    return reply.status, reply.code


def test_it_reads_and_extends_its_own_job(app):
    run = app.running(tasks={"join": {"requires": ["caller"], **PLAIN}})
    token, job = run["api_token"], run["job_id"]
    document = {"tasks": {"part": PLAIN}, "requires": {"join": ["part"]}}
    reply = app.post(f"/api/v1/jobs/{job}/extend", {"job": document}, token=token)
    assert (reply.status, reply.json["num_new"]) == (200, 1)
    assert app.get(f"/api/v1/jobs/{job}", token=token).json["num_tasks"] == 3
    shown = {
        task["label"]: task["requires"] for task in app.get(f"/api/v1/jobs/{job}/tasks", token=token).json["tasks"]
    }
    assert shown == {"caller": [], "join": ["caller", "part"], "part": []}


def test_what_it_adds_is_the_submitters(app):
    payload = {"command": ["true"], "api": "job", "dimensions": {"pool": "runs"}}
    job = {"tasks": {"caller": {"task": {"payload": payload}}}}
    app.post("/api/v1/jobs", {"job": job}, token=app.token("user"))
    run = app.claim_run()
    added = app.post(f"/api/v1/jobs/{run['job_id']}/extend", {"job": {"tasks": {"b": PLAIN}}}, token=run["api_token"])
    task = app.get(f"/api/v1/tasks/{added.json['task_ids']['b']}").json
    assert task["request"]["authenticated"] == "a user"


def test_other_jobs_do_not_exist_for_it(app):
    token = app.running()["api_token"]
    other = app.post("/api/v1/jobs", {"job": {"tasks": {"a": PLAIN}}}).json["job_id"]
    more = {"job": {"tasks": {"b": PLAIN}}}
    for job in (other, "0123456789abcdef00"):
        for reply in (
            app.get(f"/api/v1/jobs/{job}", token=token),
            app.get(f"/api/v1/jobs/{job}/tasks", token=token),
            app.get(f"/api/v1/jobs/{job}/meta", token=token),
            app.post(f"/api/v1/jobs/{job}/extend", more, token=token),
            app.post(f"/api/v1/jobs/{job}/meta", {"name": "x", "value": "y"}, token=token),
            app.post(f"/api/v1/jobs/{job}/wait", {"wait_s": 0}, token=token),
        ):
            assert (reply.status, reply.code) == (404, "not_found")


def test_it_cancels_what_it_added_and_nothing_else(app):
    run = app.running(tasks={"other": PLAIN})
    token, job = run["api_token"], run["job_id"]
    added = app.post(f"/api/v1/jobs/{job}/extend", {"job": {"tasks": {"b": PLAIN}}}, token=token).json["task_ids"]["b"]
    (other,) = (t["task_id"] for t in app.get(f"/api/v1/jobs/{job}/tasks").json["tasks"] if t["label"] == "other")
    (lone,) = app.submit(a_task())
    for task in (other, lone, run["task_id"]):
        assert app.post(f"/api/v1/tasks/{task}/cancel", token=token).status == 404
    assert app.post(f"/api/v1/tasks/{added}/cancel", token=token).json["state"] == "CANCELLED"
    assert app.get(f"/api/v1/tasks/{other}").json["result"]["state"] == "READY"


def test_the_route_table_lets_it_do_nothing_else(app):
    open_to_runs = {f"{line.method} {line.path}" for line in app.routes if Role.RUN in line.who - {Role.NOBODY}}
    public = {f"{line.method} {line.path}" for line in app.routes if Role.NOBODY in line.who}
    assert open_to_runs - public == {
        "GET /api/v1/jobs/{id}", "GET /api/v1/jobs/{id}/tasks", "GET /api/v1/jobs/{id}/graph",
        "GET /api/v1/jobs/{id}/outputs", "GET /api/v1/jobs/{id}/meta", "POST /api/v1/jobs/{id}/meta",
        "POST /api/v1/jobs/{id}/extend", "POST /api/v1/jobs/{id}/wait", "POST /api/v1/tasks/{id}/cancel",
        "PUT /api/v1/tasks/{id}/annotation", "GET /api/v1/jobs/{id}/values", "GET /api/v1/values/{id}",
        "GET /api/v1/values", "POST /api/v1/values", "GET /api/v1/values/{id}/info", "POST /api/v1/values/{id}/ref",
        "POST /api/v1/values/{id}/unref", "GET /api/v1/values/{id}/localities", "POST /api/v1/values/{id}/localities",
        "POST /api/v1/files/missing", "PUT /api/v1/files/{digest}",
    }  # fmt: skip


def test_it_may_not_use_reserved_priorities_although_its_submitter_may(app):
    run = app.running()
    urgent = {"tasks": {"b": {"task": {**PLAIN["task"], "priority": 5}}}}
    refused = app.post(f"/api/v1/jobs/{run['job_id']}/extend", {"job": urgent}, token=run["api_token"])
    assert (refused.status, refused.code) == (403, "forbidden")
    assert app.post(f"/api/v1/jobs/{run['job_id']}/extend", {"job": urgent}).status == 200


def test_it_ends_with_its_run(app):
    run = app.running()
    assert the_run(app, run["api_token"]) == (404, "not_found")
    app.end_run(run)
    app.guard._cache.clear()  # two seconds later
    assert the_run(app, run["api_token"])[0] == 401


def test_it_is_remembered_for_two_seconds_at_most(app, monkeypatch):
    run = app.running()
    now = app.context.now()
    monkeypatch.setattr(app.context, "now", lambda: now)
    assert the_run(app, run["api_token"])[0] == 404
    (cached,) = (one for one in app.guard._cache.values() if one.identity.role is Role.RUN)
    assert cached.valid_until == now + 2_000_000


def test_a_token_of_the_first_run_is_nothing_to_the_second(app):
    first = app.running()
    app.end_run(first)
    app.post(f"/api/v1/tasks/{first['task_id']}/rerun", {"force": True})
    second = app.claim_run()
    assert (second["task_id"], second["run"][-2:]) == (first["task_id"], "02")
    app.guard._cache.clear()
    assert the_run(app, first["api_token"])[0] == 401
    assert the_run(app, second["api_token"])[0] == 404


def test_a_forged_token_is_refused(app):
    run = app.running()
    token, other = run["api_token"], app.running()["api_token"]
    head, _, mac = token.rpartition("_")
    flipped = f"{head}_{'0' if mac[0] != '0' else '1'}{mac[1:]}"
    foreign = f"{head}_{other.rpartition('_')[2]}"
    unknown = f"myu_{'f' * 16}_1_{mac}"
    for forged in (flipped, foreign, unknown, f"{head}_", f"{head}_{mac}00", "myu_", "myu_0_1_"):
        assert the_run(app, forged)[0] == 401


def test_the_token_depends_on_task_run_job_group_and_nonce():
    facts = {"task_id": 1, "run": 1, "job_id": 2, "group_id": 3, "nonce": 4}
    made = {run_tokens.run_token(b"key", **{**facts, name: 9}).rpartition("_")[2] for name in facts}
    made |= {run_tokens.run_token(key, **facts).rpartition("_")[2] for key in (b"key", b"other")}
    assert len(made) == len(facts) + 2


def test_a_repeated_claim_gets_the_same_token(app):
    run = app.running()
    ask = {"session": 1, "nonce": app._nonce, "n": 1, "wait_s": 0}
    again = app.post("/bot/v1/exchange", ask, token=app.credential("runner")).json["tasks"][0]
    assert again["api_token"] == run["api_token"]


def test_a_task_that_does_not_ask_gets_no_token(app):
    app.post("/api/v1/jobs", {"job": {"tasks": {"a": PLAIN}}})
    run = app.claim_run()
    assert "api_token" not in run
    assert "job_id" not in run


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"api": "everything"}, "tasks.a.task.payload.api"),
        ({"api": 5}, "tasks.a.task.payload.api"),
        ({"api": "job", "idempotent": True}, "tasks.a.task.payload.api"),
    ],
)
def test_a_wrong_api_is_refused(app, payload, path):
    job = {"tasks": {"a": {"task": {"payload": {"command": ["true"], **payload}}}}}
    reply = app.post("/api/v1/jobs", {"job": job})
    assert (reply.status, [problem["path"] for problem in reply.json["error"]["problems"]]) == (400, [path])


def test_a_task_without_a_job_cannot_ask(app):
    task = a_task()
    task["slices"][0]["properties"]["api"] = "job"
    (answer,) = app.post("/api/v1/tasks", {"tasks": [task]}).json["tasks"]
    assert [problem["path"] for problem in answer["error"]["problems"]] == ["slices[0].properties.api"]


# ---------------------------------------------------------------- summaries and texts


def test_a_run_annotates_its_own_task_only(app):
    run = app.running()
    (lone,) = app.submit(a_task())
    body = {"content": "# 3 passed"}
    assert app.put(f"/api/v1/tasks/{run['run']}/annotation", body, token=run["api_token"]).status == 200
    assert app.put(f"/api/v1/tasks/{lone}/annotation", body, token=run["api_token"]).status == 404
    shown = app.get(f"/api/v1/tasks/{run['task_id']}").json["annotation"]
    assert (shown["content"], shown["run"]) == ("# 3 passed", run["run"])
    app.put(f"/api/v1/tasks/{lone}/annotation", body)
    assert app.get(f"/api/v1/tasks/{lone}").json["annotation"]["run"] is None
    app.put(f"/api/v1/tasks/{lone}/annotation", {"content": ""})
    assert app.get(f"/api/v1/tasks/{lone}").json["annotation"] is None


def test_the_secret_of_a_task_is_masked_in_its_summary(app):
    (task,) = app.submit({**a_task(), "secret_bytes": "b3BlbiBzZXNhbWU="})
    app.put(f"/api/v1/tasks/{task}/annotation", {"content": "it is open sesame"})
    assert "sesame" not in app.get(f"/api/v1/tasks/{task}").json["annotation"]["content"]


def test_the_texts_of_a_job_are_set_replaced_and_deleted(app):
    run = app.running()
    path, token = f"/api/v1/jobs/{run['job_id']}/meta", run["api_token"]
    assert app.get(path, token=token).json == {"values": {}}
    app.post(path, {"name": "version", "value": "1"}, token=token)
    assert app.post(path, {"name": "version", "value": "2"}, token=token).json == {"values": {"version": "2"}}
    assert app.post(path, {"name": "version", "value": None}, token=token).json == {"values": {}}


def test_the_texts_of_a_job_are_bounded(app):
    run = app.running()
    path = f"/api/v1/jobs/{run['job_id']}/meta"
    for i in range(100):
        assert app.post(path, {"name": f"n{i}", "value": "x" * 4096}).status == 200
    assert app.post(path, {"name": "n100", "value": ""}).status == 400
    assert app.post(path, {"name": "n99", "value": "y"}).status == 200
    wrong_names = ({"name": name, "value": ""} for name in ("", "a/b", "x" * 65, "a\n"))
    wrong_values = ({"name": "n1", "value": value} for value in ("x" * 4097, "\0", 5))
    for wrong in (*wrong_names, *wrong_values):
        assert app.post(path, wrong).status == 400, wrong
    assert app.put(f"/api/v1/tasks/{run['task_id']}/annotation", {"content": "x" * 65_537}).status == 400


def test_summaries_and_texts_are_deleted_with_the_job(app):
    run = app.running()
    app.put(f"/api/v1/tasks/{run['task_id']}/annotation", {"content": "x"})
    app.post(f"/api/v1/jobs/{run['job_id']}/meta", {"name": "n", "value": "v"})
    app.end_run(run)
    assert app.delete(f"/api/v1/jobs/{run['job_id']}").status == 200
    app.settle(run["job_id"])
    count = "SELECT (SELECT COUNT(*) FROM task_annotations) + (SELECT COUNT(*) FROM job_meta)"
    assert app.context.db.engine.read(lambda tx: tx.all(count)) == [(0,)]
