"""Functions over HTTP: submitted in a job, claimed by a bot with their inputs, and reported with outputs or errors."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest

from tests.server.api.graphs import drain, exchange, states, submit
from tests.server.inside import Inside, inside

CODE, NEW, NEWER = (sha256(content).hexdigest() for content in (b"zip", b"new zip", b"newer zip"))
SIGNATURE = "count(text:string,top:int64)->Map<string,int64>"


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        opened.meet_bot()
        for content in (b"zip", b"new zip", b"newer zip"):
            put(opened, content)
        yield opened


def put(app: Inside, content: bytes) -> str:
    digest = sha256(content).hexdigest()
    assert app.call("PUT", f"/api/v1/files/{digest}", content).status == 200
    return digest


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def constant(content: bytes, of: str = "string") -> dict[str, Any]:
    return {"kind": "constant", "type": of, "payload": {"inline": encoded(content)}}


def a_function(*inputs: Any, outputs: Sequence[str] = ("int64",), **given: Any) -> dict[str, Any]:
    properties = {"dimensions": {"pool": ["default"]}, **given.pop("properties", {})}
    function = {"package_name": "words", "func_name": "count", **given.pop("function", {})}
    task = {
        "function": function,
        "inputs": list(inputs),
        "outputs": [{"type": one} for one in outputs],
        "slices": [{"properties": properties}],
    }
    return {"task": {**task, **given}}


def claim(app: Inside, n: int = 1) -> list[dict[str, Any]]:
    """The next n runs. One call may bring fewer than it asks for."""
    return [run for _ in range(n) for run in exchange(app, n=1)]


def report(app: Inside, run: dict[str, Any], **given: Any) -> None:
    exchange(app, reports=[{"type": "finish", "run": run["run"], "token": run["token"], "exit_code": 0, **given}])


def returned(*contents: bytes, of: str = "int64") -> list[dict[str, Any]]:
    return [{"type": of, "payload": {"inline": encoded(content)}} for content in contents]


def test_a_bot_gets_the_function_its_inputs_and_the_types_of_its_outputs(app):
    function = {"code": CODE, "signature": SIGNATURE, "memory_mb": 256, "language": "PYTHON"}
    node = a_function(constant(b"\xa1x"), constant(b"\x05", "int64"), outputs=("Map<string,int64>",), function=function)
    answer = submit(app, {"name": "words", "tasks": {"count-0": node}})
    [run] = claim(app)
    assert run["function"] == {"package_name": "words", "func_name": "count", "environment": "", **function}
    assert [(given["type"], b64decode(given["payload"]), given["size"]) for given in run["inputs"]] == [
        ("string", b"\xa1x", 2),
        ("int64", b"\x05", 1),
    ]
    assert (run["output_types"], run["label"], run["job_id"]) == (["Map<string,int64>"], "count-0", answer["job_id"])
    assert run["command"] == []
    assert "terminate" not in run


def test_a_gathered_input_comes_with_its_parts(app):
    gathered: dict[str, Any] = {
        "kind": "gathered",
        "type": "List<int64>",
        "parts": [{"label": "b", "position": 0, "type": "int64"}, {"label": "a", "position": 0, "type": "int64"}],
    }
    shaped: dict[str, Any] = {
        **gathered,
        "shape": {"inline": encoded(b"\x92\xd6\x01\x00\x00\x00\x01\xd6\x01\x00\x00\x00\x00")},
    }
    tasks = {"a": a_function(), "b": a_function(), "join": a_function(gathered, shaped)}
    answer = submit(app, {"tasks": tasks})
    for run in claim(app, 2):
        report(app, run, outputs=returned(run["label"].encode()))
    [run] = claim(app)
    plain, with_shape = run["inputs"]
    assert [b64decode(part["payload"]) for part in plain["parts"]] == [b"b", b"a"]
    assert [part["type"] for part in plain["parts"]] == ["int64", "int64"]
    assert "payload" not in plain
    assert with_shape["payload"] == shaped["shape"]["inline"]
    report(app, run, outputs=returned(b"\x03"))
    assert app.get(f"/api/v1/jobs/{answer['job_id']}").json["state"] == "SUCCEEDED"


def test_commands_and_functions_are_one_graph(app):
    tasks = {"make": {"task": {"payload": {"command": ["make"]}}}, "count": {**a_function(), "requires": ["make"]}}
    answer = submit(app, {"tasks": tasks})
    [command] = claim(app)
    assert (command["command"], command.get("function")) == (["make"], None)
    report(app, command)
    [function] = claim(app)
    assert function["function"]["func_name"] == "count"
    report(app, function, outputs=returned(b"\x01"))
    assert set(states(app, answer["job_id"]).values()) == {"SUCCEEDED"}


def test_outputs_of_other_types_fail_the_run_and_say_which(app):
    answer = submit(app, {"tasks": {"count": a_function()}})
    [run] = claim(app)
    report(app, run, outputs=returned(b"\xa1x", of="string"))
    task = app.get(f"/api/v1/tasks/{answer['task_ids']['count']}").json
    assert (task["result"]["state"], task["result"]["reason"]) == ("FAILED", "bad_outputs")
    assert task["runs"][0]["evidence"]["message"] == "the run returned string, not int64"


ERROR = {
    "type": "words.BadText",
    "message": "no words in 'x'",
    "traceback": "Traceback (most recent call last):\n  ...\nwords.BadText: no words in 'x'",
    "bases": ["builtins.ValueError", "builtins.Exception"],
    "args": ["no words in 'x'", 7],
    "place": "words.py:12 in count",
}


def test_the_exception_of_a_function_is_shown_with_its_run_its_task_and_its_job(app):
    answer = submit(app, {"tasks": {"count": a_function(retries=0)}})
    [run] = claim(app)
    report(app, run, exit_code=1, message="BadText: no words in 'x'", error=ERROR)
    job = answer["job_id"]
    task = app.get(f"/api/v1/tasks/{answer['task_ids']['count']}").json
    [line] = app.get(f"/api/v1/jobs/{job}/tasks").json["tasks"]
    failure = app.get(f"/api/v1/jobs/{job}").json["first_failure"]
    assert task["runs"][0]["error"] == line["error"] == failure["error"] == ERROR
    assert line["message"] == failure["message"] == "BadText: no words in 'x'"
    assert task["runs"][0]["evidence"]["message"] == "BadText: no words in 'x'"


def test_a_huge_error_is_cut_and_keeps_the_end_of_its_traceback(app):
    answer = submit(app, {"tasks": {"count": a_function(retries=0)}})
    [run] = claim(app)
    huge = {**ERROR, "message": "m" * 100_000, "traceback": "t" * 100_000 + "the end", "args": ["a" * 100_000]}
    report(app, run, exit_code=1, error=huge)
    shown = app.get(f"/api/v1/tasks/{answer['task_ids']['count']}").json["runs"][0]["error"]
    assert shown["traceback"].endswith("the end")
    assert (shown["type"], shown["args"]) == (ERROR["type"], None)
    assert len(str(shown)) < 64 << 10


def test_a_secret_in_an_exception_is_masked(app):
    node = a_function(retries=0, secret_bytes=encoded(b"correct horse"))
    answer = submit(app, {"tasks": {"count": node}})
    [run] = claim(app)
    leaking = {**ERROR, "message": "bad correct horse", "traceback": "... correct horse ...", "args": ["correct horse"]}
    report(app, run, exit_code=1, error=leaking, message="BadText: bad correct horse")
    job, task = answer["job_id"], answer["task_ids"]["count"]
    for path in (f"/api/v1/tasks/{task}", f"/api/v1/jobs/{job}/tasks", f"/api/v1/jobs/{job}"):
        assert "words.BadText" in str(app.get(path).body)
        assert "correct horse" not in str(app.get(path).body)


def test_progress_is_shown_while_a_function_runs(app):
    answer = submit(app, {"tasks": {"a": a_function(), "b": a_function()}})
    first, second = claim(app, 2)
    holds = [[run["run"], run["token"]] for run in (first, second)]
    exchange(app, holds=holds, progress={first["run"]: 0.25, second["run"]: 0.5})
    beat = {"session": 1, "holds": holds, "progress": {first["run"]: 0.75, "0000000000000011": 1.0}}
    assert app.post("/bot/v1/heartbeat", beat, token=app.token("bot")).status == 200
    shown = {
        task["label"]: task["progress"] for task in app.get(f"/api/v1/jobs/{answer['job_id']}/tasks").json["tasks"]
    }
    assert shown == {first["label"]: 0.75, second["label"]: 0.5}
    assert app.get(f"/api/v1/tasks/{first['task_id']}").json["runs"][0]["progress"] == 0.75


def test_progress_is_a_change_of_its_task_for_those_who_read_changes(app):
    answer = submit(app, {"tasks": {"a": a_function(), "b": a_function()}})
    first, second = claim(app, 2)
    path = f"/api/v1/jobs/{answer['job_id']}/tasks"
    latest = max(task["modified_at"] for task in app.get(path).json["tasks"])
    assert app.get(f"{path}?since={latest + 1}").json["tasks"] == []
    exchange(app, holds=[[first["run"], first["token"]]], progress={first["run"]: 0.25})
    [changed] = app.get(f"{path}?since={latest + 1}").json["tasks"]
    assert (changed["label"], changed["progress"]) == (first["label"], 0.25)
    assert changed["modified_at"] > latest
    assert second["label"] != first["label"]


def test_the_progress_of_a_run_that_is_not_held_is_ignored(app):
    answer = submit(app, {"tasks": {"a": a_function()}})
    [run] = claim(app)
    exchange(app, holds=[[run["run"], "0" * 64]], progress={run["run"]: 0.5})
    exchange(app, holds=[], progress={run["run"]: 0.5})
    [task] = app.get(f"/api/v1/jobs/{answer['job_id']}/tasks").json["tasks"]
    assert task["progress"] is None


def test_a_running_function_maps_over_what_it_has_read_and_delegates(app):
    join = a_function({"kind": "gathered", "type": "List<int64>", "parts": []})
    caller = a_function(properties={"api": "job"})
    answer = submit(app, {"tasks": {"caller": caller, "join": {**join, "requires": ["caller"]}}})
    [run] = claim(app)
    document = {
        "tasks": {"m[0]": a_function(), "more": a_function()},
        "parts": {"join": {"0": [{"label": "m[0]", "position": 0, "type": "int64"}]}},
        "delegates": {"more": "caller"},
    }
    path = f"/api/v1/jobs/{run['job_id']}/extend"
    for num_new in (2, 0):
        reply = app.post(path, {"job": document}, token=run["api_token"])
        assert (reply.status, reply.json["num_new"]) == (200, num_new), reply
    report(app, run, delegated=True)
    assert states(app, answer["job_id"]) == {
        "caller": "SUCCEEDED",
        "join": "WAITING",
        "m[0]": "READY",
        "more": "READY",
    }
    for one in claim(app, 2):
        report(app, one, outputs=returned(one["label"].encode()))
    [last] = claim(app)
    assert [b64decode(part["payload"]) for part in last["inputs"][0]["parts"]] == [b"m[0]"]


@pytest.mark.parametrize(
    ("function", "path"),
    [
        ({"code": "short"}, "function.code"),
        ({"code": "AB" * 32}, "function.code"),
        ({"signature": "x" * 20_000}, "function.signature"),
        ({"memory_mb": 0}, "function.memory_mb"),
        ({"memory_mb": "much"}, "function.memory_mb"),
        ({"language": "GO"}, "function.language"),
        ({"language": "RUST", "package_name": "../libcount.so"}, "function.package_name"),
        ({"language": "CPP", "package_name": "/lib/libcount.so"}, "function.package_name"),
        ({"language": "CPP", "package_name": ".so"}, "function.package_name"),
        ({"other": 1}, "function.other"),
    ],
)
def test_wrong_functions_are_refused_with_their_path(app, function, path):
    reply = app.post("/api/v1/jobs", {"job": {"tasks": {"count": a_function(function=function)}}})
    assert (reply.status, [problem["path"] for problem in reply.json["error"]["problems"]]) == (
        400,
        [f"tasks.count.task.{path}"],
    )


@pytest.mark.parametrize("language", ["CPP", "RUST", "cpp"])
def test_a_function_of_a_library_reaches_the_bot_with_its_language(app, language):
    function = {"package_name": "libcount-2.so.1", "func_name": "count", "language": language}
    assert app.post("/api/v1/jobs", {"job": {"tasks": {"count": a_function(function=function)}}}).status == 200
    [run] = claim(app)
    assert (run["function"]["language"], run["function"]["package_name"]) == (language.upper(), "libcount-2.so.1")


# ---------------------------------------------------------------- code


def code_of(app: Inside) -> str:
    [run] = claim(app)
    report(app, run, exit_code=1)
    return str(run["function"]["code"])


def rerun(app: Inside, job: str, **body: Any) -> Any:
    reply = app.post(f"/api/v1/jobs/{job}/rerun", body)
    drain(app)
    return reply


def test_a_rerun_may_replace_the_code_of_a_job_and_again(app):
    node = a_function(retries=0, function={"code": CODE, "signature": SIGNATURE})
    job = submit(app, {"tasks": {"count": node}})["job_id"]
    assert code_of(app) == CODE
    assert rerun(app, job).status == 200
    assert code_of(app) == CODE
    assert rerun(app, job, code={CODE: NEW}).status == 200
    assert code_of(app) == NEW
    assert rerun(app, job, task="count").status == 200
    assert code_of(app) == NEW
    assert rerun(app, job, code={NEW: NEWER}).status == 200
    assert code_of(app) == NEWER
    assert rerun(app, job, code={CODE: CODE}).status == 200
    assert code_of(app) == CODE


def test_only_code_that_the_job_has_can_be_replaced(app):
    node = a_function(retries=0, function={"code": CODE})
    job = submit(app, {"tasks": {"count": node}})["job_id"]
    code_of(app)
    assert (rerun(app, job, code={NEW: CODE}).status, rerun(app, job, code={CODE: "no digest"}).status) == (400, 400)
    reply = rerun(app, job, code={CODE: "ab" * 32})
    assert (reply.status, reply.code) == (409, "unknown_file")
    assert rerun(app, job, code={CODE: NEW}).status == 200


def test_results_of_replaced_code_answer_nothing_and_are_answered_by_nothing(app):
    node = a_function(retries=0, function={"code": CODE}, properties={"idempotent": True})
    later = a_function(constant(b"\xa1x"), retries=0, function={"code": CODE}, properties={"idempotent": True})
    first = submit(app, {"tasks": {"x": later}})
    report(app, claim(app)[0], outputs=returned(b"\x01"))
    job = submit(app, {"tasks": {"count": node, "later": {**later, "requires": ["count"]}}})["job_id"]
    code_of(app)
    assert rerun(app, job, code={CODE: NEW}).status == 200
    report(app, claim(app)[0], outputs=returned(b"\x02"))
    [run] = claim(app)
    assert (run["label"], run["function"]["code"]) == ("later", NEW), "it would have been answered by the first job"
    report(app, run, outputs=returned(b"\x03"))
    submit(app, {"tasks": {"count": node}})
    assert code_of(app) == CODE, "the result of the new code does not answer the old one"
    assert states(app, first["job_id"]) == {"x": "SUCCEEDED"}
