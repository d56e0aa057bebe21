"""Task-graphs in both forms: created, extended and inspected to their end, in exactly the shapes that clients know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from myrmidon.relays.messages import build
from myrmidon.server.background import loop
from myrmidon.store.tables import outbox
from tests.server.api.graphs import claim, finish, work
from tests.server.contexts import sweep
from tests.server.inside import Inside, inside
from tests.server.taskcluster.scheduler_client import (
    METADATA,
    TASK_FIELDS,
    Scheduler,
    a_graph,
    a_node,
    meet_worker,
    slug,
    soon,
)

SEED: dict[str, Any] = {
    "routing": "nightly",
    "tasks": {
        "build": {"requires": [], "reruns": 1, "task": {"routing": "b", "payload": {"command": ["make"]}}},
        "test-1": {
            "requires": ["build"],
            "reruns": 5,
            "task": {
                "routing": "t.1",
                "deadline": soon(),
                "payload": {"command": ["run"], "env": {"BUILD": {"$subs": "taskId:build"}}},
            },
        },
    },
}


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        meet_worker(opened)
        yield opened


@pytest.fixture
def scheduler(app: Inside) -> Scheduler:
    return Scheduler(app)


def test_ping_needs_no_token(app):
    status, answer = Scheduler(app, token="").call("GET", "/ping")
    assert (status, answer["alive"], set(answer)) == (200, True, {"alive", "uptime"})
    assert answer["uptime"] >= 0


def test_a_graph_by_label_is_created_and_runs_to_its_end(app, scheduler):
    status, answer = scheduler.create("G1", SEED)
    running = {"taskGraphId": "G1", "schedulerId": "myrmidon", "state": "running"}
    assert (status, answer) == (200, {"status": {**running, "routing": "nightly"}})
    assert scheduler.get("G1", "status") == {"status": running}
    shown = scheduler.get("G1", "inspect")
    build, test = shown["tasks"]
    assert build == {
        "taskId": build["taskId"], "name": "build", "requires": [], "requiresLeft": [], "reruns": 1, "rerunsLeft": 1,
        "state": "scheduled", "satisfied": False, "dependents": [test["taskId"]],
    }  # fmt: skip
    assert test == {
        "taskId": test["taskId"], "name": "test-1", "requires": [build["taskId"]], "requiresLeft": [build["taskId"]],
        "reruns": 5, "rerunsLeft": 5, "state": "unscheduled", "satisfied": False, "dependents": [],
    }  # fmt: skip
    [task] = claim(app)
    finish(app, task)
    [task] = claim(app)
    request = app.get(f"/api/v1/tasks/{test['taskId']}").json["request"]
    assert request["slices"][0]["properties"]["env"] == {"BUILD": build["taskId"]}
    after = scheduler.get("G1", f"inspect/{test['taskId']}")
    assert (after["requires"], after["requiresLeft"], after["state"]) == ([build["taskId"]], [], "scheduled")
    finish(app, task)
    assert scheduler.states("G1") == {"build": "completed", "test-1": "completed"}
    assert scheduler.get("G1", "status")["status"]["state"] == "finished"


def test_a_listed_graph_keeps_the_ids_that_its_client_chose(app, scheduler):
    build = a_node("build")
    tests = [a_node(f"test-{i}", build, reruns=2) for i in (1, 2)]
    document = a_graph(*tests, build, tags={"suite": "all"}, scopes=["queue:*"], routes=["index.nightly"])
    graph = slug()
    status, answer = scheduler.create(graph, document)
    told = {"taskGraphId": graph, "schedulerId": "myrmidon", "state": "running"}
    assert (status, answer) == (200, {"status": told})
    assert scheduler.get(graph, "info") == {"status": told, "metadata": METADATA, "tags": {"suite": "all"}}
    shown = scheduler.get(graph, "inspect")
    assert set(shown) == {"status", "tasks", "metadata", "tags", "scopes"}
    assert (shown["scopes"], shown["metadata"], shown["tags"]) == (["queue:*"], METADATA, {"suite": "all"})
    tasks = {task["taskId"]: task for task in shown["tasks"]}
    assert set(tasks) == {build["taskId"], *(node["taskId"] for node in tests)}
    assert all(set(task) == TASK_FIELDS for task in tasks.values())
    assert [tasks[node["taskId"]]["name"] for node in (build, *tests)] == ["build", "test-1", "test-2"]
    assert sorted(tasks[build["taskId"]]["dependents"]) == sorted(node["taskId"] for node in tests)
    assert scheduler.get(graph, f"inspect/{build['taskId']}") == tasks[build["taskId"]]
    assert work(app) == ["build", "test-1", "test-2"]
    assert scheduler.get(graph, "status")["status"]["state"] == "finished"


def test_it_is_an_ordinary_job_elsewhere(app, scheduler):
    build = a_node("build", task={"priority": "high", "tags": {"a": "b"}, "routes": ["x.y"], "retries": 0})
    scheduler.create("G1", a_graph(build, tags={"suite": "all"}, routes=["index.nightly"]))
    job = app.get("/api/v1/jobs/G1").json
    assert (job["name"], job["external_id"]) == ("nightly", "G1")
    assert job["tags"] == ["route:index.nightly", "suite:all"]
    [task] = app.get("/api/v1/jobs/G1/tasks").json["tasks"]
    request = app.get(f"/api/v1/tasks/{task['task_id']}").json["request"]
    assert (request["external_id"], request["priority"], request["retries"]) == (build["taskId"], 60, 0)
    assert {"a:b", "route:x.y"} <= set(request["tags"])
    [piece] = request["slices"]
    assert piece["properties"]["dimensions"] == {"pool": ["default"], "worker_type": ["small"]}
    assert json.loads(piece["properties"]["payload"]) == build["task"]["payload"]


def test_a_job_of_the_other_api_is_shown_too(app, scheduler):
    document = {"name": "j", "tags": ["a:b"], "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}
    job = app.post("/api/v1/jobs", {"job": document}).json["job_id"]
    info = scheduler.get(job, "info")
    assert info["status"]["taskGraphId"] == job
    assert info["metadata"] == {"name": "j", "description": "", "owner": "", "source": ""}
    assert (info["tags"], scheduler.get(job, "inspect")["scopes"]) == ({"a": "b"}, [])


def test_fields_of_workers_without_effect_are_named_in_a_header(app, scheduler):
    """The body has no place for them: clients check it by a schema."""
    task = {"expires": soon(), "extra": {"treeherder": 1}, "scopes": ["queue:x"]}
    reply = app.call("PUT", "/v1/task-graph/W1", a_graph(a_node("build", task=task)))
    assert reply.status == 200
    warned = [one.removeprefix("tasks.build.task.") for one in reply.headers["myrmidon-warning"].split("; ")]
    assert [one.split()[0] for one in warned] == ["payload.image", "expires", "scopes", "extra"]
    plain = a_node("test", task={"payload": {"command": ["x"], "artifacts": {}, "features": {}}})
    reply = app.call("POST", "/v1/task-graph/W1/extend", {"tasks": [plain]})
    assert (reply.status, "myrmidon-warning" in reply.headers) == (200, False)


# ---------------------------------------------------------------- repeated calls


@pytest.mark.parametrize("form", ["listed", "by label"])
def test_the_same_content_again_is_the_same_graph_and_other_content_a_conflict(app, scheduler, form):
    document = a_graph(a_node("build")) if form == "listed" else SEED
    other = {**document, "scopes": ["a"]}
    first = scheduler.create("G1", document)
    assert first[0] == 200
    assert scheduler.create("G1", document) == first
    status, error = scheduler.create("G1", other)
    assert (status, error["error"]["code"]) == (409, "request.conflict")
    assert "G1" in error["message"]
    work(app)
    assert scheduler.create("G1", document)[1]["status"]["state"] == "finished"


def test_the_same_content_is_the_same_graph_after_its_deadline(app, scheduler, monkeypatch):
    document = a_graph(a_node("build"))
    scheduler.create("G1", document)
    later = app.context.now() + 2 * 86_400 * 1_000_000
    monkeypatch.setattr(app.context, "now", lambda: later)
    assert scheduler.create("G1", document)[0] == 200
    status, error = scheduler.create("G2", a_graph(a_node("old", task={"deadline": "2020-01-01T00:00:00Z"})))
    assert (status, "future" in error["message"]) == (400, True)


def test_a_task_id_of_another_graph_is_a_conflict(scheduler):
    node = a_node("build")
    scheduler.create("G1", a_graph(node))
    status, error = scheduler.create("G2", a_graph(node))
    assert (status, node["taskId"] in error["message"]) == (409, True)


# ---------------------------------------------------------------- extend


def test_an_extension_requires_old_and_new_tasks_by_their_ids(app, scheduler):
    build = a_node("build")
    scheduler.create("G1", a_graph(build))
    [task] = claim(app)
    test = a_node("test", build)
    report = a_node("report", test, build)
    status, answer = scheduler.extend("G1", report, test)
    assert (status, answer) == (200, {"status": {"taskGraphId": "G1", "schedulerId": "myrmidon", "state": "running"}})
    assert scheduler.extend("G1", report, test) == (status, answer)
    assert len(scheduler.get("G1", "inspect")["tasks"]) == 3
    finish(app, task)
    assert work(app) == ["test", "report"]
    assert scheduler.states("G1") == dict.fromkeys(["build", "test", "report"], "completed")
    assert scheduler.get("G1", "status")["status"]["state"] == "finished"


def test_a_changed_task_and_an_ended_graph_refuse_an_extension(app, scheduler):
    build = a_node("build")
    scheduler.create("G1", a_graph(build))
    changed = {**build, "reruns": 3}
    assert scheduler.extend("G1", changed)[0] == 409
    work(app)
    status, error = scheduler.extend("G1", a_node("late", build))
    assert (status, error["error"]["code"]) == (409, "wrong_state")


def test_tasks_of_the_same_name_get_different_labels(app, scheduler):
    first, second, third = a_node("test"), a_node("test"), a_node("test")
    scheduler.create("G1", a_graph(first, second))
    names = [task["name"] for task in scheduler.get("G1", "inspect")["tasks"]]
    assert names == ["test", f"test ({second['taskId']})"]
    assert scheduler.extend("G1", third)[0] == 200
    assert scheduler.extend("G1", first, second, third)[0] == 200
    assert scheduler.get("G1", f"inspect/{third['taskId']}")["name"] == f"test ({third['taskId']})"
    assert work(app) == ["test", "test", "test"]


def test_a_graph_by_label_is_extended_by_label_and_by_id(app, scheduler):
    scheduler.create("G1", SEED)
    more = {"deploy": {"requires": ["test-1"], "task": {"payload": {"command": ["deploy"]}}}}
    assert scheduler.call("POST", "/task-graph/G1/extend", {"tasks": more})[0] == 200
    deploy = next(task for task in scheduler.get("G1", "inspect")["tasks"] if task["name"] == "deploy")
    notify = a_node("notify", {"taskId": deploy["taskId"]})
    assert scheduler.extend("G1", notify)[0] == 200
    assert work(app) == ["build", "test-1", "deploy", "notify"]


# ---------------------------------------------------------------- states


def test_a_failed_task_is_rerun_and_then_blocks_the_graph(app, scheduler):
    build = a_node("build", reruns=1)
    other = a_node("other")
    scheduler.create("G1", a_graph(build, other, a_node("test", build)))
    assert sorted(work(app, {"build": 1})) == ["build", "build", "other"]
    assert scheduler.states("G1") == {"build": "failed", "other": "completed", "test": "unscheduled"}
    shown = scheduler.get("G1", f"inspect/{build['taskId']}")
    assert (shown["reruns"], shown["rerunsLeft"], shown["satisfied"]) == (1, 0, False)
    assert scheduler.get("G1", f"inspect/{other['taskId']}")["satisfied"]
    assert scheduler.get("G1", "status")["status"]["state"] == "blocked"


def test_a_cancelled_graph_is_blocked_by_exceptions(app, scheduler):
    scheduler.create("G1", a_graph(a_node("build")))
    app.post("/api/v1/jobs/G1/cancel")
    app.run(sweep(loop.BackgroundWork(app.context), timed=False))
    assert scheduler.states("G1") == {"build": "exception"}
    assert scheduler.get("G1", "status")["status"]["state"] == "blocked"


def test_a_running_task_whose_deadline_has_passed_is_an_exception_here_as_in_its_message(app, scheduler):
    scheduler.create("G1", a_graph(a_node("build")))
    claim(app)
    app.context.db.engine.write(lambda tx: tx.run("UPDATE task_results SET due_at = 1"))
    app.run(sweep(loop.BackgroundWork(app.context)))
    events = app.context.db.engine.read(lambda tx: outbox.after(tx, 0, 100))
    messages = app.context.db.engine.read(lambda tx: build(tx, events))
    assert "task-exception" in {one.kind for one in messages}
    [shown] = scheduler.get("G1", "inspect")["tasks"]
    assert shown["state"] == "exception"
    assert scheduler.get("G1", f"inspect/{shown['taskId']}")["state"] == "exception"


def test_it_is_the_same_on_every_database(db_url, tmp_path):
    with inside(tmp_path, db_url) as app:
        meet_worker(app)
        scheduler, build = Scheduler(app), a_node("build")
        graph = slug()
        test = a_node("test", build)
        assert scheduler.create(graph, a_graph(build, test))[0] == 200
        [task] = claim(app)
        report = a_node("report", test, build)
        assert scheduler.extend(graph, report)[0] == 200
        finish(app, task)
        shown = scheduler.get(graph, f"inspect/{report['taskId']}")
        assert shown["requiresLeft"] == [test["taskId"]]
        assert sorted(shown["requires"]) == sorted([build["taskId"], test["taskId"]])
        assert scheduler.get(graph, f"inspect/{build['taskId']}")["dependents"] == [test["taskId"], report["taskId"]]
        work(app)
        assert set(scheduler.states(graph).values()) == {"completed"}
        assert scheduler.create(graph, a_graph(build, test))[1]["status"]["state"] == "finished"


def test_calls_at_the_same_time_create_one_graph_and_add_every_task_once(db_url, tmp_path):
    with inside(tmp_path, db_url) as app:
        graph, build = slug(), a_node("build")
        extensions = [a_node("test", build) for _ in range(3)]
        calls = [("PUT", "", a_graph(build))] * 3
        more = [("POST", "/extend", {"tasks": [node]}) for node in [*extensions, *extensions]]

        async def at_once(asked: Any) -> list[int]:
            path = f"/v1/task-graph/{graph}"
            replies = await asyncio.gather(*(app.ask(method, path + rest, body) for method, rest, body in asked))
            return [reply.status for reply in replies]

        assert app.run(at_once(calls)) == [200] * 3
        assert app.run(at_once(more)) == [200] * 6
        tasks = Scheduler(app).get(graph, "inspect")["tasks"]
        assert sorted(task["taskId"] for task in tasks) == sorted(node["taskId"] for node in (build, *extensions))
        assert len({task["name"] for task in tasks}) == 4
