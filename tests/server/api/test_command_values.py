"""Commands with values: outputs of other tasks in their arguments, and outputs of their own."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from tests.server.api.graphs import claim, drain, exchange, states, submit
from tests.server.inside import Inside, inside


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        opened.meet_bot()
        yield opened


def a_command(*words: Any, outputs: tuple[str, ...] = (), **payload: Any) -> dict[str, Any]:
    task: dict[str, Any] = {"payload": {"command": list(words), **payload}}
    return {"task": {**task, "outputs": [{"type": one} for one in outputs]}}


def report(app: Inside, run: dict[str, Any], **given: Any) -> None:
    exchange(app, reports=[{"type": "finish", "run": run["run"], "token": run["token"], "exit_code": 0, **given}])


def packed(*values: tuple[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": kind, "payload": {"inline": b64encode(msgspec.msgpack.encode(value)).decode()}}
        for kind, value in values
    ]


def test_values_are_put_into_command_environment_and_payload_when_a_bot_claims(app):
    use = a_command(
        "use",
        {"$output": "make:0"},
        {"$output": "make:1"},
        env={"NUMBERS": {"$output": "make:1"}},
        extra={"nested": [{"$output": "make:1"}, {"$output": "make:0"}]},
    )
    answer = submit(app, {"tasks": {"make": a_command("make", outputs=("string", "List<int64>")), "use": use}})
    [make] = claim(app)
    assert (make["command"], make["output_types"]) == (["make"], ["string", "List<int64>"])
    report(app, make, outputs=packed(("string", "a b"), ("List<int64>", [1, 2])))
    [run] = claim(app)
    assert run["command"] == ["use", "a b", "[1,2]"]
    assert run["env"]["NUMBERS"] == "[1,2]"
    assert json.loads(run["payload"])["extra"] == {"nested": [[1, 2], "a b"]}
    assert json.loads(run["payload"])["command"] == ["use", "a b", [1, 2]]
    assert ("inputs" in run, "problem" in run) == (False, False)
    report(app, run)
    assert set(states(app, answer["job_id"]).values()) == {"SUCCEEDED"}


def test_the_stored_request_shows_the_reference_not_the_value(app):
    tasks = {"make": a_command("make", outputs=("string",)), "use": a_command("use", {"$output": "make:0"})}
    answer = submit(app, {"tasks": tasks})
    task = app.get(f"/api/v1/tasks/{answer['task_ids']['use']}").json
    assert task["request"]["slices"][0]["properties"]["command"] == ["use", '{"$output":"make:0"}']


def test_a_function_and_a_command_pass_values_to_each_other(app):
    function = {
        "function": {"package_name": "p", "func_name": "f"},
        "inputs": [{"kind": "output_of", "type": "int64", "label": "make", "position": 0}],
        "outputs": [{"type": "double"}],
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}],
    }
    tasks = {
        "make": a_command("make", outputs=("int64",)),
        "f": {"task": function},
        "show": a_command("show", {"$output": "f:0"}),
    }
    submit(app, {"tasks": tasks})
    report(app, claim(app)[0], outputs=packed(("int64", 7)))
    report(app, claim(app)[0], outputs=packed(("double", 0.5)))
    assert claim(app)[0]["command"] == ["show", "0.5"]


def test_equal_values_answer_an_idempotent_command_and_others_do_not(app):
    def run_with(number: int) -> str:
        tasks = {
            "make": a_command("make", str(number), outputs=("int64",)),
            "use": a_command("use", {"$output": "make:0"}, idempotent=True, outputs=("int64",)),
        }
        answer = submit(app, {"tasks": tasks})
        report(app, claim(app)[0], outputs=packed(("int64", number)))
        for run in claim(app):
            report(app, run, outputs=packed(("int64", number + 1)))
        [use] = [
            task for task in app.get(f"/api/v1/jobs/{answer['job_id']}/tasks").json["tasks"] if task["label"] == "use"
        ]
        assert use["state"] == "SUCCEEDED"
        return str(use["reason"])

    assert [run_with(1), run_with(1), run_with(2)] == ["", "deduped", ""]


def test_a_command_without_requested_outputs_that_returns_some_fails(app):
    answer = submit(app, {"tasks": {"make": a_command("make")}})
    report(app, claim(app)[0], outputs=packed(("int64", 1)))
    assert states(app, answer["job_id"]) == {"make": "FAILED"}


def test_a_value_that_no_argument_can_hold_is_said_to_the_bot(app):
    tasks = {"make": a_command("make", outputs=("string",)), "use": a_command("use", {"$output": "make:0"})}
    answer = submit(app, {"tasks": tasks})
    report(app, claim(app)[0], outputs=packed(("string", "a\0b")))
    [run] = claim(app)
    assert "character" in run["problem"]
    fault = {"type": "fault", "run": run["run"], "token": run["token"], "kind": "client_error"}
    exchange(app, reports=[{**fault, "message": run["problem"]}])
    assert states(app, answer["job_id"])["use"] == "CLIENT_ERROR"


def test_a_value_in_a_file_is_read_and_one_that_is_too_large_is_said_to_the_bot(app):
    tasks = {"make": a_command("make", outputs=("string", "string"))}
    tasks |= {f"use-{n}": a_command("use", {"$output": f"make:{n}"}) for n in range(2)}
    submit(app, {"tasks": tasks})
    outputs = []
    for size in (5_000, 200_000):
        data = msgspec.msgpack.encode("x" * size)
        digest = sha256(data).hexdigest()
        assert app.call("PUT", f"/api/v1/files/{digest}", data).status == 200
        outputs.append({"type": "string", "payload": {"digest": digest, "size": len(data)}})
    report(app, claim(app)[0], outputs=outputs)
    runs = {run["name"]: run for _ in range(2) for run in claim(app)}
    assert runs["use-0"]["command"] == ["use", "x" * 5_000]
    assert "at most 131072" in runs["use-1"]["problem"]


def test_what_a_failed_command_has_written_is_kept_for_a_child_that_waits_for_any_end(app):
    use = a_command("use", {"$output": "test:0"}, {"$output": "test:1"}, extra={"all": [{"$output": "test:1"}]})
    use["requires_policy"] = "all-resolved"
    tests = a_command("test", outputs=("string", "List<int64>"))
    answer = submit(app, {"tasks": {"test": tests, "use": use}})
    written = packed(("string", "3 of 7 failed"))
    unwritten = {"type": "List<int64>", "payload": {}}
    report(app, claim(app)[0], exit_code=1, outputs=[*written, unwritten])
    [run] = claim(app)
    assert run["command"] == ["use", "3 of 7 failed", "null"]
    assert json.loads(run["payload"])["extra"] == {"all": [None]}
    report(app, run)
    assert states(app, answer["job_id"]) == {"test": "FAILED", "use": "SUCCEEDED"}
    shown = app.get(f"/api/v1/tasks/{answer['task_ids']['test']}/values").json["outputs"]
    assert [output["size"] is not None for output in shown] == [True, False]


def test_outputs_of_a_failed_run_are_not_kept_when_the_task_runs_again(app):
    tests = a_command("test", outputs=("string",))
    tests["reruns"] = 1
    use = a_command("use", {"$output": "test:0"})
    use["requires_policy"] = "all-resolved"
    answer = submit(app, {"tasks": {"test": tests, "use": use}})
    report(app, claim(app)[0], exit_code=1, outputs=packed(("string", "first")))
    report(app, claim(app)[0], exit_code=1)
    [run] = claim(app)
    assert run["command"] == ["use", "null"]
    report(app, run, exit_code=1)
    assert app.post(f"/api/v1/jobs/{answer['job_id']}/rerun", {}).status == 200
    drain(app)
    report(app, claim(app)[0], exit_code=1, outputs=packed(("string", "third")))
    report(app, claim(app)[0], exit_code=1, outputs=packed(("string", "fourth")))
    assert claim(app)[0]["command"] == ["use", "fourth"]


def test_a_job_that_runs_again_forgets_what_its_failed_tasks_have_written(app):
    tests, use = a_command("test", outputs=("string",)), a_command("use", {"$output": "test:0"})
    use["requires_policy"] = "all-resolved"
    answer = submit(app, {"tasks": {"test": tests, "use": use}})
    report(app, claim(app)[0], exit_code=1, outputs=packed(("string", "first")))
    report(app, claim(app)[0], exit_code=1)
    assert app.post(f"/api/v1/jobs/{answer['job_id']}/rerun", {}).status == 200
    drain(app)
    report(app, claim(app)[0], exit_code=1)
    assert claim(app)[0]["command"] == ["use", "null"]


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_a_large_value_fits_into_the_payload_and_the_stdin(app, size):
    tasks = {"make": a_command("make", outputs=("string",)), "use": a_command("use", extra={"$output": "make:0"})}
    tasks["use"]["task"]["stdin"] = {"$output": "make:0"}
    answer = submit(app, {"tasks": tasks})
    data = msgspec.msgpack.encode("x" * size)
    digest = sha256(data).hexdigest()
    assert app.call("PUT", f"/api/v1/files/{digest}", data).status == 200
    report(app, claim(app)[0], outputs=[{"type": "string", "payload": {"digest": digest, "size": len(data)}}])
    [run] = claim(app)
    assert "problem" not in run
    assert json.loads(run["payload"])["extra"] == "x" * size
    assert b64decode(run["stdin"]) == b"x" * size
    assert "stdin" not in app.get(f"/api/v1/tasks/{answer['task_ids']['use']}").json["request"]


def test_a_large_value_in_the_stdin_of_a_function_is_refused(app):
    task = {
        "function": {"package_name": "p", "func_name": "f"},
        "outputs": [],
        "stdin": {"$output": "make:0"},
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}],
    }
    tasks = {"make": a_command("make", outputs=("string",)), "f": {"task": task}}
    refused = app.post("/api/v1/jobs", {"job": {"name": "j", "tasks": tasks}})
    assert (refused.status, refused.code) == (400, "request.invalid")


def test_an_extension_may_refer_to_outputs_of_tasks_that_the_job_has(app):
    tasks = {"make": a_command("make", outputs=("string",)), "wait": a_command("wait")}
    answer = submit(app, {"tasks": tasks})
    runs = {run["name"]: run for _ in range(2) for run in claim(app)}
    report(app, runs["make"], outputs=packed(("string", "x")))
    more = {"tasks": {"use": a_command("use", {"$output": "make:0"})}}
    assert app.post(f"/api/v1/jobs/{answer['job_id']}/extend", {"job": more}).status == 200
    assert claim(app)[0]["command"] == ["use", "x"]
