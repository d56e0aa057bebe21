"""The priority of a job and of its tasks over HTTP: the same right as at submit."""

from __future__ import annotations

import pytest

from tests.server.inside import Inside, inside

JOB = {"tasks": {label: {"task": {"payload": {"command": ["true"]}}} for label in "ab"}}


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        yield opened


def priorities(app: Inside, job: str) -> list[int]:
    return [task["priority"] for task in app.get(f"/api/v1/jobs/{job}/tasks").json["tasks"]]


def test_one_task_or_the_whole_job(app):
    job = app.post("/api/v1/jobs", {"job": JOB}).json["job_id"]
    assert app.post(f"/api/v1/jobs/{job}/priority", {"priority": 50, "task": "b"}).status == 200
    assert priorities(app, job) == [100, 50]
    assert app.post(f"/api/v1/jobs/{job}/priority", {"priority": 30}).json["busy"]
    app.settle(job)
    assert priorities(app, job) == [30, 30]


def test_reserved_priorities_need_the_right_that_a_submit_needs(app):
    job = app.post("/api/v1/jobs", {"job": JOB}, token=app.token("user")).json["job_id"]
    for body in ({"priority": 19}, {"priority": 0, "task": "a"}):
        refused = app.post(f"/api/v1/jobs/{job}/priority", body, token=app.token("user"))
        assert (refused.status, refused.code) == (403, "forbidden")
    assert (
        app.post(f"/api/v1/jobs/{job}/priority", {"priority": 20, "task": "a"}, token=app.token("user")).status == 200
    )
    assert app.post(f"/api/v1/jobs/{job}/priority", {"priority": 5, "task": "b"}).status == 200
    assert priorities(app, job) == [20, 5]


def test_wrong_priorities_and_labels_are_refused(app):
    job = app.post("/api/v1/jobs", {"job": JOB}).json["job_id"]
    for body in ({}, {"priority": -1}, {"priority": 256}, {"priority": "5"}, {"priority": 50, "task": "nobody"}):
        assert app.post(f"/api/v1/jobs/{job}/priority", body).status == 400, body
    assert priorities(app, job) == [100, 100]
