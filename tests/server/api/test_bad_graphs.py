"""Graph documents that nobody should send: a clear error, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.store.engine.db import Tx
from tests.server.api.graphs import GRAPH, show, submit
from tests.server.inside import Inside, inside

TABLES = ("jobs", "task_requests", "task_results", "further_slices", "task_edges", "request_keys", "outbox")
NODE = {"task": {"payload": {"command": ["x"]}}}
ENVELOPE = len(b'{"job":}')


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("bad")) as opened:
        opened.meet_bot()
        for group in ("other", "strangers"):
            opened.post("/api/v1/groups", {"name": group})
        submit(opened)
        yield opened


@pytest.fixture
def app(server) -> Iterator[Inside]:
    """Whatever a test sends, no row comes of it, and the server goes on."""
    before = rows(server)
    yield server
    assert rows(server) == before
    assert server.get("/api/v1/jobs").status == 200


def rows(app: Inside) -> dict[str, int]:
    def count(tx: Tx) -> dict[str, int]:
        return {name: int((tx.one(f"SELECT COUNT(*) FROM {name}") or [0])[0]) for name in TABLES}

    return app.context.db.engine.read(count)


def problems(app: Inside, document: object, *, status: int = 400) -> list[dict[str, Any]]:
    """The problems of a document, the same from submitting and from checking it."""
    submitted, checked = (app.post(path, {"job": document}) for path in ("/api/v1/jobs", "/api/v1/jobs/check"))
    assert (submitted.status, checked.status) == (status, status), submitted.body[:1000]
    found: list[dict[str, Any]] = submitted.json["error"]["problems"]
    assert checked.json["error"]["problems"] == found
    return found


def test_unknown_labels_are_all_named_with_their_paths(app):
    tasks = {"a": {"requires": ["b", "nope"], **NODE}, "b": {"requires": ["neither"], **NODE}}
    found = problems(app, {"name": "x", "tasks": tasks})
    assert [(one["path"], one["code"]) for one in found] == [
        ("tasks.a.requires[1]", "unknown_label"), ("tasks.b.requires[0]", "unknown_label"),
    ]  # fmt: skip
    assert "nope" in found[0]["value"]


def test_a_cycle_is_shown_as_a_path(app):
    edges = {"a": ["c"], "b": ["a"], "c": ["b"], "d": ["a"], "e": ["e"]}
    found = problems(app, {"name": "x", "tasks": {label: {"requires": r, **NODE} for label, r in edges.items()}})
    assert {one["code"] for one in found} == {"cycle", "self_dependency"}
    [cycle] = [one["value"] for one in found if one["code"] == "cycle"]
    assert cycle == "a -> c -> b -> a"


@pytest.mark.full
def test_a_long_cycle_is_found_and_shown_in_short(app):
    tasks = {f"n{i}": {"requires": [f"n{(i + 1) % 50_000}"], **NODE} for i in range(50_000)}
    [found] = problems(app, {"name": "x", "tasks": tasks})
    assert found["code"] == "cycle"
    assert len(found["value"]) < 1000


@pytest.mark.parametrize("tasks", [{}, []])
def test_a_graph_without_tasks_is_refused(app, tasks):
    assert [one["code"] for one in problems(app, {"name": "x", "tasks": tasks})] == ["empty"]


@pytest.mark.parametrize("document", [{"name": "x"}, {"tasks": 7}, {"tasks": None}, [], 7, None, "x"])
def test_what_is_no_graph_is_refused(app, document):
    assert problems(app, document)


def test_a_graph_of_100001_tasks_is_refused(app):
    node: dict[str, Any] = {"task": {"slices": []}}
    found = problems(app, {"name": "x", "tasks": dict.fromkeys(map(str, range(100_001)), node)})
    assert [(one["path"], one["code"]) for one in found] == [("tasks", "too_many")]
    assert "100000" in found[0]["allowed"]


def test_ids_of_labels_that_do_not_exist_are_refused_at_any_depth(app):
    deep = {"command": ["x", {"$subs": "taskId:nope"}], "extra": [{"x": {"$subs": "taskId:neither"}}]}
    tasks = {"a": {"task": {"payload": deep}}, "b": NODE}
    found = problems(app, {"name": "x", "tasks": tasks})
    assert {one["code"] for one in found} >= {"unknown_label"}
    assert any("neither" in one["value"] for one in found)


def test_a_task_with_10001_parents_is_refused_and_one_with_10000_is_not(app):
    parents = [f"p{i}" for i in range(10_001)]
    tasks: dict[str, Any] = dict.fromkeys(parents, NODE)
    found = problems(app, {"name": "x", "tasks": {**tasks, "all": {"requires": parents, **NODE}}})
    assert [(one["path"], one["code"]) for one in found] == [("tasks.all.requires", "too_many")]
    fits = {"name": "x", "tasks": {**tasks, "all": {"requires": parents[1:], **NODE}}}
    assert app.post("/api/v1/jobs/check", {"job": fits}).status == 200


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/check"])
def test_a_document_one_byte_above_64_mib_is_refused_before_it_is_read(app, path):
    size = (64 << 20) + 1
    announced = app.call("POST", path, b"", headers={"content-length": str(size + ENVELOPE)})
    assert (announced.status, announced.code) == (413, "request.too_large")
    sent = app.run(app.ask("POST", path, pieces=[b"x" * (1 << 20)] * 65 + [b""]))
    assert (sent.status, sent.code) == (413, "request.too_large")


@pytest.mark.parametrize("depth", [60, 500, 100_000])
@pytest.mark.parametrize("where", ["payload", "env", "requires", "tasks", "parameters"])
def test_deep_nesting_is_refused_and_not_followed(app, where, depth):
    deep = "[" * depth + "]" * depth
    texts = {
        "payload": f'{{"tasks": {{"a": {{"task": {{"payload": {{"command": ["x"], "extra": {deep}}}}}}}}}}}',
        "env": f'{{"tasks": {{"a": {{"task": {{"payload": {{"command": ["x"], "env": {{"A": {deep}}}}}}}}}}}}}',
        "requires": f'{{"tasks": {{"a": {{"requires": {deep}, "task": {{"payload": {{"command": ["x"]}}}}}}}}}}',
        "tasks": f'{{"tasks": {deep}}}',
        "parameters": f'{{"parameters": {{"p": {deep}}}, "tasks": {{"a": {{"task": {{"$param": "p"}}}}}}}}',
    }
    for path in ("/api/v1/jobs", "/api/v1/jobs/check"):
        reply = app.post(path, f'{{"job": {texts[where]}}}'.encode())
        assert (reply.status, reply.code) == (400, "request.invalid"), reply
        assert reply.json["error"]["problems"]
        assert len(reply.body) < 10_000


def test_texts_with_nul_are_refused_also_in_large_documents(app):
    large = {"name": "x", "tasks": {f"n{i}": {**NODE, "x": "y" * 100} for i in range(10_000)} | {"nul\0": NODE}}
    for document in (large, {"name": "x\0", "tasks": {"a": NODE}}):
        assert all(one["code"] == "text" for one in problems(app, document))


def test_a_graph_for_another_resource_group_is_forbidden(app):
    token = app.token("user")
    for path in ("/api/v1/jobs", "/api/v1/jobs/check"):
        reply = app.post(path, {"job": GRAPH, "group": "other"}, token=token)
        assert (reply.status, reply.code) == (403, "forbidden")


def test_a_job_of_another_resource_group_can_be_neither_seen_nor_changed(app):
    job_id = app.get("/api/v1/jobs").json["jobs"][0]["job_id"]
    before = show(app, job_id)
    stranger = app.token("user", "strangers")
    assert app.get("/api/v1/jobs", token=stranger).json["jobs"] == []
    for page in ("", "/tasks", "/graph", "/outputs"):
        assert app.get(f"/api/v1/jobs/{job_id}{page}", token=stranger).status == 404
    extension = {"job": {"tasks": {"x": NODE}}}
    for action, body in (
        ("extend", extension),
        ("seal", {}),
        ("cancel", {}),
        ("rerun", {}),
        ("hold", {}),
        ("wait", {}),
    ):
        reply = app.post(f"/api/v1/jobs/{job_id}/{action}", body, token=stranger)
        assert reply.status == 404, (action, reply)
    assert app.delete(f"/api/v1/jobs/{job_id}", token=stranger).status == 404
    assert show(app, job_id) == before


def test_an_external_id_that_differs_from_the_path_is_refused(app):
    document = {"name": "x", "external_id": "other", "tasks": {"a": NODE}}
    reply = app.put("/api/v1/jobs/mine", {"job": document})
    assert (reply.status, reply.code) == (400, "request.invalid")
