"""What is refused: every problem of a document at once, in the shape {message, error}, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.server.calls import Role
from myrmidon.server.facades import every_route
from myrmidon.server.taskcluster.routes import STYLE
from tests.server.inside import inside
from tests.server.taskcluster.scheduler_client import METADATA, Scheduler, a_graph, a_node, check_shape, slug

TABLE = tuple(line for line in every_route() if line.style is STYLE)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("taskcluster")) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


@pytest.fixture
def scheduler(app) -> Scheduler:
    return Scheduler(app)


def without(node: dict[str, Any], field: str) -> dict[str, Any]:
    return {**node, "task": {key: value for key, value in node["task"].items() if key != field}}


def paths(error: Any) -> list[str]:
    return [problem["path"] for problem in error["error"]["problems"]]


@pytest.mark.parametrize("field", ["provisionerId", "workerType", "created", "deadline", "payload", "metadata"])
def test_a_listed_task_must_have_its_fields(scheduler, field):
    status, error = scheduler.create(slug(), a_graph(without(a_node("build"), field)))
    assert (status, f"tasks[0].task.{field}" in paths(error)) == (400, True)


BUILD = a_node("build")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], ""),
        ({}, "tasks"),
        ({"tasks": 1}, "tasks"),
        (a_graph(), "tasks"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": [BUILD]}, "metadata"),
        ({"tasks": [BUILD], "metadata": {"name": "x"}}, "metadata.owner"),
        ({"tasks": [BUILD], "metadata": {**METADATA, "more": "x"}}, "metadata.more"),
        (a_graph(BUILD, nope=1), "nope"),
        (a_graph(BUILD, routes=["r"] * 11), "routes"),
        (a_graph(BUILD, routes=["r" * 250]), "routes[0]"),
        (a_graph(BUILD, scopes="x"), "scopes"),
        (a_graph(BUILD, tags={"a": 1}), "tags.a"),
        (a_graph(BUILD, tags={str(i): "x" * 4096 for i in range(9)}), "tags"),
        (a_graph(BUILD, BUILD), "tasks[1].taskId"),
        (a_graph({**BUILD, "taskId": "short"}), "tasks[0].taskId"),
        (a_graph({**BUILD, "taskId": "." * 22}), "tasks[0].taskId"),
        (a_graph({**BUILD, "requires": ["x" * 22]}), "tasks.build.requires[0]"),
        (a_graph({**BUILD, "requires": "x"}), "tasks.build.requires"),
        (a_graph({**BUILD, "reruns": 101}), "tasks.build.reruns"),
        (a_graph(BUILD, 7), "tasks[1]"),
        (a_graph({"taskId": slug()}), "tasks[0].task"),
        (a_graph(a_node("a", task={"nope": 1})), "tasks[0].task.nope"),
        (a_graph(a_node("a", task={"priority": "urgent"})), "tasks.a.task.priority"),
        (a_graph(a_node("a", task={"schedulerId": "other"})), "tasks[0].task.schedulerId"),
        (a_graph(a_node("a", task={"taskGroupId": "other"})), "tasks[0].task.taskGroupId"),
        (a_graph(a_node("a", task={"deadline": "tomorrow"})), "tasks[0].task.deadline"),
        (a_graph(a_node("a", task={"deadline": "2020-01-01T00:00:00Z"})), "tasks.a.task.deadline"),
        (a_graph(a_node("a", task={"payload": {}})), "tasks.a.task.payload.command"),
        (a_graph({**BUILD, "dependencies": []}), "tasks[0].dependencies"),
        (a_graph(a_node("a", task={"payload": {"command": ["x"], "artifacts": {"public/x": {}}}})),
         "tasks.a.task.payload.artifacts"),
        (a_graph(a_node("a", task={"payload": {"command": ["x"], "capabilities": {"privileged": True}}})),
         "tasks.a.task.payload.capabilities"),
        (a_graph(a_node("a", task={"payload": {"comand": ["x"]}})), "tasks.a.task.payload.comand"),
        ({"tasks": {"a": {"task": {"payload": {"command": ["x"], "mounts": [1]}}}}}, "tasks.a.task.payload.mounts"),
        ({"routing": "more than ten", "tasks": {"a": {"task": {"payload": {"command": ["x"]}}}}}, "routing"),
        ({"tasks": {"a": {"requires": ["b"], "task": {"payload": {"command": ["x"]}}}}}, "tasks.a.requires[0]"),
        ({"tasks": {"a": {"task": {"payload": {"command": ["x"]}, "tags": {"a": 1}}}}}, "tasks.a.task.tags.a"),
        ({"tasks": {"a": {"task": {"payload": {"command": [{"$subs": "taskId:b"}]}}}}},
         "tasks.a.task.payload.command[0].$subs"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused_with_the_path_of_its_problem(scheduler, document, path):
    graph = slug()
    status, error = scheduler.create(graph, document)
    assert (status, error["error"]["code"], path in paths(error)) == (400, "request.invalid", True), paths(error)
    assert scheduler.call("GET", f"/task-graph/{graph}/status")[0] == 404


def test_all_problems_come_at_once(scheduler):
    one, two = a_node("one", task={"payload": {}}), a_node("two")
    one["requires"] = [two["taskId"], two["taskId"]]
    two["requires"] = [one["taskId"], "y" * 22]
    status, error = scheduler.create(slug(), a_graph(one, two, nope=1))
    assert status == 400
    found = paths(error)
    assert {"nope", "tasks.two.requires[1]", "tasks.one.task.payload.command", "tasks.one.requires[1]"} <= set(found)
    assert "one -> two -> one" in error["message"]
    assert len(found) == len(set(found)) == 5


def test_an_extension_takes_tasks_only(scheduler):
    build = a_node("build")
    graph = slug()
    scheduler.create(graph, a_graph(build))
    status, error = scheduler.call("POST", f"/task-graph/{graph}/extend", {"tasks": [a_node("a")], "scopes": []})
    assert (status, paths(error)) == (400, ["scopes"])
    status, error = scheduler.extend(graph, {**a_node("a"), "requires": ["z" * 22]})
    assert (status, paths(error)) == (400, ["tasks.a.requires[0]"])
    assert len(scheduler.get(graph, "inspect")["tasks"]) == 1


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"\xff", b'"x"', b"[" * 5000, b'{"tasks":[{"taskId":"\\u0000"}]}']
)
def test_what_is_no_document_is_refused(app, body):
    reply = app.call("PUT", f"/v1/task-graph/{slug()}", body)
    check_shape(reply)
    assert reply.status == 400


@pytest.mark.parametrize("graph", ["a" * 23, "a.b", "a%20b"])
def test_the_id_of_a_graph_is_a_word_of_a_routing_key(scheduler, graph):
    assert scheduler.create(graph, a_graph(a_node("a")))[0] == 400


@pytest.mark.parametrize(
    "path",
    ["/task-graph/none/status", "/task-graph/none/info", "/task-graph/none/inspect", "/task-graph/none/inspect/x"],
)
def test_what_does_not_exist_is_not_found(scheduler, path):
    status, error = scheduler.call("GET", path)
    assert (status, error["error"]["code"]) == (404, "not_found")


def test_a_task_is_found_in_its_own_graph_only(scheduler):
    one, two = slug(), slug()
    node = a_node("a")
    scheduler.create(one, a_graph(node))
    scheduler.create(two, a_graph(a_node("b")))
    assert scheduler.call("GET", f"/task-graph/{two}/inspect/{node['taskId']}")[0] == 404
    assert scheduler.call("GET", f"/task-graph/{one}/inspect/{'x' * 22}")[0] == 404


def test_an_unknown_path_or_method_has_the_same_shape(scheduler):
    assert scheduler.call("GET", "/nope")[0] == 404
    assert scheduler.call("DELETE", "/task-graph/x")[0] == 405


@pytest.mark.parametrize("route", TABLE, ids=lambda line: f"{line.method} {line.path}")
def test_only_those_in_the_table_may_call(app, route):
    for role in Role:
        node, graph = a_node("a"), slug()
        owner = Scheduler(app, token=app.token("user"))
        if route.method != "PUT":
            owner.create(graph, a_graph(node))
        path = route.path.format(id=graph, task=node["taskId"])
        bodies = {"PUT": a_graph(node), "POST": {"tasks": [a_node("b")]}}
        reply = app.call(route.method, path, bodies.get(route.method), token=app.token(role))
        check_shape(reply)
        refused = 401 if role is Role.NOBODY or role is Role.BOT else 403
        assert reply.status == (200 if role in route.who else refused), (role, reply)


def test_a_graph_of_another_group_does_not_exist(app):
    node, graph = a_node("a"), slug()
    Scheduler(app, token=app.token("user", "other")).create(graph, a_graph(node))
    mine = Scheduler(app, token=app.token("user"))
    for path in ("status", "info", "inspect", f"inspect/{node['taskId']}"):
        assert mine.call("GET", f"/task-graph/{graph}/{path}")[0] == 404
    assert mine.extend(graph, a_node("b"))[0] == 404
    assert mine.create(graph, a_graph(a_node("c")))[0] == 200  # ids are those of a group
