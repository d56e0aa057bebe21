"""Changing jobs over HTTP: extend, seal, cancel, rerun, hold, release, wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.server.api.graphs import claim, drain, finish, show, states, submit, work
from tests.server.inside import Inside, inside

MORE = {"tasks": {"deploy": {"requires": ["build"], "task": {"payload": {"command": ["deploy"]}}}}}


@pytest.fixture
def app(tmp_path) -> Iterator[Inside]:
    with inside(tmp_path) as opened:
        opened.meet_bot()
        yield opened


def test_a_job_grows_while_it_runs_and_the_same_extension_again_adds_nothing(app):
    job = submit(app)["job_id"]
    first = app.post(f"/api/v1/jobs/{job}/extend", {"job": MORE}).json
    again = app.post(f"/api/v1/jobs/{job}/extend", {"job": MORE}).json
    assert (first["num_new"], again["num_new"], first["task_ids"]) == (1, 0, again["task_ids"])
    assert "deploy" in work(app)
    assert show(app, job)["counts"] == {"SUCCEEDED": 5}


def test_an_extension_whose_parent_has_succeeded_starts_at_once(app):
    job = submit(app)["job_id"]
    [build] = claim(app)
    finish(app, build)
    app.post(f"/api/v1/jobs/{job}/extend", {"job": MORE})
    assert states(app, job)["deploy"] == "READY"


def test_a_label_that_the_job_has_with_another_definition_is_refused(app):
    job = submit(app)["job_id"]
    other = {"tasks": {"build": {"task": {"payload": {"command": ["other"]}}}}}
    reply = app.post(f"/api/v1/jobs/{job}/extend", {"job": other})
    assert (reply.status, reply.code) == (409, "request.conflict")


def test_problems_of_an_extension_are_in_the_words_of_the_document(app):
    job = submit(app)["job_id"]
    wrong = {"tasks": {"x": {"requires": ["nope"], "task": {"payload": {"command": 7}}}}}
    problems = app.post(f"/api/v1/jobs/{job}/extend", {"job": wrong}).json["error"]["problems"]
    assert {problem["path"] for problem in problems} == {"tasks.x.task.payload.command", "tasks.x.requires[0]"}
    assert show(app, job)["num_tasks"] == 4


def test_a_sealed_or_ended_job_takes_no_more_tasks(app):
    job = submit(app)["job_id"]
    assert app.post(f"/api/v1/jobs/{job}/seal").json["state"] == "RUNNING"
    assert show(app, job)["sealed"] is True
    assert app.post(f"/api/v1/jobs/{job}/extend", {"job": MORE}).code == "wrong_state"
    other = submit(app)["job_id"]
    work(app)
    assert app.post(f"/api/v1/jobs/{other}/extend", {"job": MORE}).code == "wrong_state"


def test_a_cancelled_job_ends_all_its_tasks(app):
    job = submit(app)["job_id"]
    [build] = claim(app)
    assert app.post(f"/api/v1/jobs/{job}/cancel").json["state"] == "CANCELLED"
    drain(app)
    left = states(app, job)
    assert (left["build"], left["report"]) == ("RUNNING", "CANCELLED")
    assert app.get(f"/api/v1/jobs/{job}/tasks?state=RUNNING").json["tasks"][0]["killing"] is True
    finish(app, build, -9)
    assert work(app) == []
    assert app.post(f"/api/v1/jobs/{job}/cancel").status == 200


def test_the_failed_part_of_a_job_runs_again_after_a_dry_run_that_names_it(app):
    job = submit(app)["job_id"]
    work(app, {"test-2": 1})
    path = f"/api/v1/jobs/{job}/rerun"
    before = app.post(path, {"dry_run": True}).json
    assert (before["num_tasks"], before["labels"], before["state"]) == (1, ["test-2"], "FAILED")
    assert show(app, job)["state"] == "FAILED"
    assert app.post(path).json["state"] == "RUNNING"
    drain(app)
    assert work(app) == ["test-2", "report"]
    assert show(app, job)["state"] == "SUCCEEDED"


def test_one_task_runs_again_with_all_that_depends_on_it(app):
    job = submit(app)["job_id"]
    work(app)
    path = f"/api/v1/jobs/{job}/rerun"
    assert app.post(path, {"task": "test-1"}).code == "wrong_state"
    body = {"task": "test-1", "force": True, "cascade": True}
    assert app.post(path, {**body, "dry_run": True}).json["labels"] == ["report", "test-1"]
    assert app.post(path, body).json["state"] == "RUNNING"
    drain(app)
    assert work(app) == ["test-1", "report"]
    assert app.post(path, {"task": "nope"}).code == "request.invalid"


def test_a_held_task_and_a_held_job_start_only_after_their_release(app):
    job = submit(app)["job_id"]
    app.post(f"/api/v1/jobs/{job}/hold", {"task": "build"})
    assert work(app) == []
    app.post(f"/api/v1/jobs/{job}/release", {"task": "build"})
    [build] = claim(app)
    app.post(f"/api/v1/jobs/{job}/hold")
    drain(app)
    finish(app, build)
    assert work(app) == []
    assert {task["held"] for task in app.get(f"/api/v1/jobs/{job}/tasks?state=WAITING").json["tasks"]} == {True}
    app.post(f"/api/v1/jobs/{job}/release")
    drain(app)
    assert sorted(work(app)) == ["report", "test-1", "test-2"]


def test_a_call_that_waits_is_answered_when_the_job_ends(app):
    job = submit(app)["job_id"]
    waiting = app.post(f"/api/v1/jobs/{job}/wait", {"wait_s": 0}).json
    assert (waiting["done"], waiting["job"]["state"]) == (False, "RUNNING")

    async def wait_and_cancel():
        call = asyncio.ensure_future(app.ask("POST", f"/api/v1/jobs/{job}/wait", {"wait_s": 1000}))
        while not app.context.hub._updates.waiters:  # noqa: ASYNC110 - the hub has no event for that
            await asyncio.sleep(0)
        await app.ask("POST", f"/api/v1/jobs/{job}/cancel", {})
        return await call

    answered = app.run(wait_and_cancel()).json
    assert (answered["done"], answered["job"]["state"]) == (True, "CANCELLED")
    assert answered["seq"] > waiting["seq"]
    unchanged = app.post(f"/api/v1/jobs/{job}/wait", {"wait_s": 0, "seq": answered["seq"]}).json
    assert unchanged["seq"] == answered["seq"]


def test_the_payload_reaches_the_bot_with_ids_in_place_of_labels(app):
    tasks = {
        "build": {"task": {"payload": {"command": ["make"]}}},
        "test": {
            "requires": ["build"],
            "task": {"payload": {"command": ["t"], "extra": [{"deep": {"$subs": "taskId:build"}}]}},
        },
    }
    job = submit(app, {"name": "payload", "tasks": tasks})
    [build] = claim(app)
    finish(app, build)
    [test] = claim(app)
    assert job["task_ids"]["build"] in test["payload"]
    assert '"extra":[{"deep":"' in test["payload"]
