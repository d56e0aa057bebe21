"""Jobs over HTTP: submit, check, list, show, tasks, graph, outputs, compare, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.server.api import job_tasks
from tests.server.api.graphs import GRAPH, claim, drain, finish, show, submit, work
from tests.server.inside import Inside, inside, pages


@pytest.fixture
def app(tmp_path) -> Iterator[Inside]:
    with inside(tmp_path) as opened:
        opened.meet_bot()
        yield opened


def test_a_graph_runs_in_the_order_of_its_edges_and_ends(app):
    job = submit(app)
    assert set(job["task_ids"]) == set(GRAPH["tasks"])
    order = work(app)
    assert order[0] == "build"
    assert order[-1] == "report"
    told = show(app, job["job_id"])
    assert (told["state"], told["view"], told["progress"], told["counts"]) == (
        "SUCCEEDED", "finished", 1.0, {"SUCCEEDED": 4},
    )  # fmt: skip
    assert told["first_failure"] is None


def test_a_failed_task_blocks_the_job_and_is_named_with_its_reason(app):
    job = submit(app)
    work(app, {"test-2": 3})
    told = show(app, job["job_id"])
    assert (told["state"], told["view"]) == ("FAILED", "blocked")
    assert told["first_failure"]["label"] == "test-2"
    assert told["first_failure"]["exit_code"] == 3


def test_tasks_are_listed_page_by_page_with_what_they_wait_for(app):
    job = submit(app)
    seen, cursor = [], None
    while True:
        query = f"limit=3&cursor={cursor}" if cursor else "limit=3"
        page = app.get(f"/api/v1/jobs/{job['job_id']}/tasks?{query}").json
        seen += page["tasks"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert [task["label"] for task in seen] == sorted(GRAPH["tasks"])
    by_label = {task["label"]: task for task in seen}
    assert by_label["report"]["requires"] == ["test-1", "test-2"]
    assert by_label["report"]["requires_left"] == ["test-1", "test-2"]
    assert by_label["build"]["requires"] == []
    assert (by_label["test-1"]["reruns"], by_label["test-1"]["reruns_left"]) == (1, 1)
    assert by_label["build"]["resolution"] is None
    work(app, {"test-1": 1})
    [failed] = app.get(f"/api/v1/jobs/{job['job_id']}/tasks?state=FAILED").json["tasks"]
    assert (failed["label"], failed["reruns_left"], failed["duration_s"]) == ("test-1", 0, 2.5)
    assert failed["resolution"]["failed"] is True
    assert failed["resolution"]["logsUrl"] == f"/api/v1/tasks/{failed['task_id']}/log"
    tests = app.get(f"/api/v1/jobs/{job['job_id']}/tasks?label=test-*").json["tasks"]
    assert [task["label"] for task in tests] == ["test-1", "test-2"]


def test_numbers_in_labels_are_listed_as_numbers(app):
    labels = [f"work[{number}]" for number in range(12)] + ["work", "a2", "a10", "2", "10", "1x"]
    tasks = {label: {"task": {"payload": {"command": ["x"]}}} for label in sorted(labels)}
    path = f"/api/v1/jobs/{submit(app, {'name': 'many', 'tasks': tasks})['job_id']}/tasks"
    whole = [task["label"] for task in app.get(path).json["tasks"]]
    assert whole == ["1x", "2", "10", "a2", "a10", "work", *(f"work[{number}]" for number in range(12))]
    assert [task["label"] for task in pages(app, f"{path}?limit=5", "tasks")] == whole
    assert [task["label"] for task in pages(app, f"{path}?limit=1&label=work*1*", "tasks")] == [
        "work[1]", "work[10]", "work[11]",
    ]  # fmt: skip


def test_a_list_of_tasks_misses_none_of_a_job_that_becomes_large_meanwhile(app, monkeypatch):
    labels = [f"t{number}" for number in range(12)]
    tasks = {label: {"task": {"payload": {"command": ["x"]}}} for label in labels}
    path = f"/api/v1/jobs/{submit(app, {'name': 'many', 'tasks': tasks})['job_id']}/tasks"
    first = app.get(f"{path}?limit=3").json
    monkeypatch.setattr(job_tasks, "NATURAL_LIMIT", 5)
    rest = app.get(f"{path}?limit=20&cursor={first['cursor']}").json
    assert [task["label"] for task in first["tasks"] + rest["tasks"]] == labels
    assert [task["label"] for task in pages(app, f"{path}?limit=5", "tasks")] == sorted(labels)


def test_the_graph_has_nodes_edges_and_depths(app):
    job = submit(app)
    graph = app.get(f"/api/v1/jobs/{job['job_id']}/graph").json
    labels = [node["label"] for node in graph["nodes"]]
    edges = {(labels[a], labels[b]) for a, b in graph["edges"]}
    assert edges == {("build", "test-1"), ("build", "test-2"), ("test-1", "report"), ("test-2", "report")}
    assert {node["label"]: node["depth"] for node in graph["nodes"]} == {
        "build": 0, "test-1": 1, "test-2": 1, "report": 2,
    }  # fmt: skip


def test_a_large_graph_is_summed_up_by_prefix_and_depth_and_a_group_can_be_expanded(app):
    job = submit(app)
    path = f"/api/v1/jobs/{job['job_id']}/graph"
    graph = app.get(f"{path}?max_nodes=3").json
    assert (graph["nodes"], graph["num_nodes"], graph["num_edges"]) == ([], 4, 4)
    assert [(g["prefix"], g["depth"], g["num_nodes"]) for g in graph["groups"]] == [
        ("build", 0, 1), ("test", 1, 2), ("report", 2, 1),
    ]  # fmt: skip
    assert graph["group_edges"] == [[0, 1, 2], [1, 2, 2]]
    expanded = app.get(f"{path}?max_nodes=3&prefix=test&depth=1").json
    assert [node["label"] for node in expanded["nodes"]] == ["test-1", "test-2"]


def test_put_of_the_same_document_is_the_same_job_and_a_changed_one_is_a_conflict(app):
    first = app.put("/api/v1/jobs/build-42", {"job": GRAPH}).json
    again = app.put("/api/v1/jobs/build-42", {"job": GRAPH}).json
    assert (again["job_id"], again["task_ids"], again["repeated"]) == (first["job_id"], first["task_ids"], True)
    changed = app.put("/api/v1/jobs/build-42", {"job": {**GRAPH, "name": "other"}})
    assert (changed.status, changed.code) == (409, "request.conflict")
    assert show(app, "build-42")["job_id"] == first["job_id"]


def test_parameters_are_given_at_submit_and_missing_or_unknown_ones_are_all_named(app):
    document = {
        "name": "p",
        "parameters": {"arch": None, "level": "2"},
        "tasks": {"a": {"task": {"payload": {"command": ["cc", {"$param": "arch"}, {"$param": "level"}]}}}},
    }
    job = app.post("/api/v1/jobs", {"job": document, "parameters": {"arch": "arm"}}).json
    task = app.get(f"/api/v1/tasks/{job['task_ids']['a']}").json
    assert task["request"]["slices"][0]["properties"]["command"] == ["cc", "arm", "2"]
    reply = app.post("/api/v1/jobs", {"job": document, "parameters": {"nope": 1}})
    assert reply.code == "request.invalid"
    problems = reply.json["error"]["problems"]
    assert {problem["path"] for problem in problems} == {
        "parameters.nope", "tasks.a.task.payload.command[1].$param",
    }  # fmt: skip


def test_all_problems_of_a_document_come_back_at_once_in_the_words_of_the_document(app):
    document = {
        "name": "bad",
        "tasks": {
            "a": {"requires": ["b"], "task": {"payload": {"command": "make", "maxRunTime": -1}}},
            "b": {"requires": ["a", "nope"], "task": {"payload": {"command": ["x"]}}},
        },
    }
    problems = app.post("/api/v1/jobs", {"job": document}).json["error"]["problems"]
    paths = {problem["path"]: problem for problem in problems}
    assert "tasks.a.task.payload.command" in paths
    assert "tasks.a.task.payload.maxRunTime" in paths
    assert any(problem["code"] == "unknown_label" and problem["value"] == "'nope'" for problem in problems)
    [cycle] = [problem for problem in problems if problem["code"] == "cycle"]
    assert cycle["value"] in ("a -> b -> a", "b -> a -> b")
    assert app.get("/api/v1/jobs").json["jobs"] == []


def test_check_tells_which_nodes_could_run_and_stores_nothing(app):
    document = {
        "name": "plan",
        "tasks": {
            "here": {"task": {"payload": {"command": ["x"], "idempotent": True}}},
            "nowhere": {
                "requires": ["here"],
                "task": {"payload": {"command": ["x"], "dimensions": {"os": ["Plan9"]}}},
            },
        },
    }
    first = app.post("/api/v1/jobs/check", {"job": document}).json
    assert [(n["label"], n["live_bots"], n["deduped_from"]) for n in first["nodes"]] == [
        ("here", 1, None), ("nowhere", 0, None),
    ]  # fmt: skip
    assert (first["num_without_bots"], first["depth"], first["num_edges"], first["expected_s"]) == (1, 2, 1, None)
    assert app.get("/api/v1/jobs").json["jobs"] == []
    job = submit(app, document)
    work(app)
    again = app.post("/api/v1/jobs/check", {"job": document}).json
    assert (again["num_deduped"], again["nodes"][0]["deduped_from"]) == (1, job["task_ids"]["here"])


def test_jobs_are_listed_newest_first_with_filters_and_counts(app):
    ids = [submit(app, {**GRAPH, "name": f"job {n % 2}"})["job_id"] for n in range(4)]
    work(app)
    page = app.get("/api/v1/jobs?limit=3").json
    assert [job["job_id"] for job in page["jobs"]] == ids[:0:-1]
    assert page["counts"] == {"SUCCEEDED": 4}
    rest = app.get(f"/api/v1/jobs?limit=3&cursor={page['cursor']}").json
    assert ([job["job_id"] for job in rest["jobs"]], rest["cursor"]) == (ids[:1], None)
    named = app.get("/api/v1/jobs?name=job%201&tag=suite:all&state=SUCCEEDED").json["jobs"]
    assert [job["job_id"] for job in named] == [ids[3], ids[1]]
    assert app.get("/api/v1/jobs?tag=suite:none").json["jobs"] == []


def test_a_job_of_another_group_does_not_exist(app):
    app.post("/api/v1/groups", {"name": "other"})
    job = submit(app, token=app.token("user", "other"))["job_id"]
    stranger = app.token("user")
    for path in ("", "/tasks", "/graph", "/outputs"):
        assert app.get(f"/api/v1/jobs/{job}{path}", token=stranger).code == "not_found"
    for action in ("cancel", "seal", "hold", "rerun"):
        assert app.post(f"/api/v1/jobs/{job}/{action}", token=stranger).code == "not_found"
    assert app.get("/api/v1/jobs", token=stranger).json == {"jobs": [], "counts": {}, "cursor": None}
    assert show(app, job)["group"] == "other"


def test_outputs_are_those_of_the_tasks_without_children(app):
    job = submit(app)["job_id"]
    before = app.get(f"/api/v1/jobs/{job}/outputs").json
    assert (before["ready"], [task["label"] for task in before["tasks"]]) == (False, ["report"])
    work(app)
    after = app.get(f"/api/v1/jobs/{job}/outputs").json
    assert (after["ready"], after["tasks"][0]["exit_code"], after["error"]) == (True, 0, None)


def test_two_jobs_are_compared_by_label(app):
    first = submit(app)["job_id"]
    work(app)
    changed: dict[str, Any] = {**GRAPH["tasks"], "extra": {"task": {"payload": {"command": ["x"]}}}}
    del changed["report"]
    changed["build"] = {"task": {"payload": {"command": ["make", "-k"], "maxRunTime": 60}}}
    second = submit(app, {**GRAPH, "tasks": changed})["job_id"]
    work(app, {"test-2": 1})
    told = app.get(f"/api/v1/jobs/{first}/compare?other={second}").json
    assert {d["label"]: d["what"] for d in told["differences"]} == {
        "build": ["definition"], "extra": ["only_in_second"], "report": ["only_in_first"],
        "test-2": ["state", "exit_code"],
    }  # fmt: skip
    assert told["num_equal"] == 1


def test_an_ended_job_can_be_deleted_and_a_running_one_cannot(app):
    job = submit(app)
    assert app.delete(f"/api/v1/jobs/{job['job_id']}").code == "wrong_state"
    work(app)
    assert app.delete(f"/api/v1/jobs/{job['job_id']}").status == 200
    drain(app)
    assert app.get(f"/api/v1/jobs/{job['job_id']}").code == "not_found"
    assert app.get(f"/api/v1/tasks/{job['task_ids']['build']}").code == "not_found"


def test_a_graph_of_several_chunks_is_stored_whole_and_runs(app):
    tasks: dict[str, Any] = {f"t{n}": {"task": {"payload": {"command": ["x"]}}} for n in range(1500)}
    tasks["last"] = {"requires": list(tasks), "task": {"payload": {"command": ["x"]}}}
    job = submit(app, {"name": "wide", "tasks": tasks})
    drain(app)
    assert show(app, job["job_id"])["counts"] == {"READY": 1500, "WAITING": 1}
    assert app.get(f"/api/v1/jobs/{job['job_id']}/graph").json["num_edges"] == 1500


def test_a_task_that_the_document_puts_past_is_refused(app):
    task = {"deadline": "2001-01-01T00:00:00Z", "payload": {"command": ["x"]}}
    [problem] = app.post("/api/v1/jobs", {"job": {"name": "late", "tasks": {"a": {"task": task}}}}).json["error"][
        "problems"
    ]
    assert (problem["path"], problem["code"]) == ("tasks.a.task.deadline", "range")


def test_tasks_that_have_changed_since_a_time_are_listed_alone(app):
    job = submit(app)
    path = f"/api/v1/jobs/{job['job_id']}/tasks"
    before = max(task["modified_at"] for task in app.get(path).json["tasks"])
    assert app.get(f"{path}?since={before + 1}").json["tasks"] == []
    [build] = claim(app)
    changed = app.get(f"{path}?since={before + 1}").json["tasks"]
    assert [(task["label"], task["state"]) for task in changed] == [("build", "RUNNING")]
    assert app.get(f"{path}?since={before + 1}&state=WAITING").json["tasks"] == []
    finish(app, build)


def test_a_caller_can_list_the_jobs_that_it_has_submitted_itself(app):
    for role in ("admin", "user"):
        job_id = submit(app, token=app.token(role))["job_id"]
        listed = app.get("/api/v1/jobs?mine=true", token=app.token(role)).json["jobs"]
        assert [job["job_id"] for job in listed] == [job_id]
    assert len(app.get("/api/v1/jobs").json["jobs"]) == 2


def test_an_unknown_label_in_a_payload_is_told_once_where_the_document_has_it(app):
    task = {"payload": {"command": ["x", {"$subs": "taskId:nowhere"}], "extra": {"$subs": "taskId:gone"}}}
    refused = app.post("/api/v1/jobs", {"job": {"name": "n", "tasks": {"a": {"task": task}}}}).json["error"]
    assert [problem["path"] for problem in refused["problems"]] == [
        "tasks.a.task.payload.command[1].$subs", "tasks.a.task.payload.extra.$subs",
    ]  # fmt: skip


def test_several_jobs_are_submitted_in_one_call_and_run(app):
    answer = app.post("/api/v1/jobs/batch", {"jobs": [GRAPH, GRAPH]})
    assert answer.status == 200, answer.json
    work(app)
    assert [show(app, job["job_id"])["state"] for job in answer.json["jobs"]] == ["SUCCEEDED", "SUCCEEDED"]


def test_the_problems_of_several_jobs_are_reported_together_and_nothing_is_stored(app):
    cyclic = {"tasks": {"a": {"requires": ["a"], "task": {"payload": {"command": ["true"]}}}}}
    answer = app.post("/api/v1/jobs/batch", {"jobs": [GRAPH, cyclic, {"tasks": {}}]})
    assert answer.status == 400
    assert [problem["path"].partition(".")[0] for problem in answer.json["error"]["problems"]] == ["jobs[1]", "jobs[2]"]
    assert app.get("/api/v1/jobs").json["jobs"] == []
