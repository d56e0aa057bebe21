"""The functions that every bot has: the expansion of a map over a list, and the join of its results."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from myrmidon.executor import builtins
from myrmidon.functions import msgpack
from tests.executor.processes import Raw

PACKAGE = builtins.__name__
NODE = {"reruns": 2, "requires": ["other"], "task": {"name": "count", "outputs": [{"type": "int64"}]}}
TOP = {"kind": "constant", "type": "int64", "payload": {"inline": "BQ=="}}
PLAN = {"join": "words", "node": NODE, "inputs": [None, TOP], "item_type": "string"}


def expand(executor, server, items: Any, **more: Any) -> dict[str, Any]:
    frame = {"package": PACKAGE, "server": server.url, "token": "myu_x", **more}
    answer: dict[str, Any] = executor.run("expand_map", items, json.dumps(PLAN), **frame)
    return answer


def test_join_gives_the_list_of_the_parts(start_on):
    executor = start_on("")
    path = executor.folder / "part"
    path.write_bytes(msgpack.pack("b" * 2000))
    parts = [{"data": msgpack.pack("a")}, {"path": str(path)}]
    answer = executor.run("join", Raw(parts=parts), package=PACKAGE, output_types=["List<string>"])
    (output,) = answer["outputs"]
    assert output["type"] == "List<string>"
    assert executor.result("join", Raw(parts=parts), package=PACKAGE) == ["a", "b" * 2000]
    assert executor.result("join", Raw(data=b"", parts=[]), package=PACKAGE) == []
    assert executor.result("join", Raw(parts=parts[:1] * 1000), package=PACKAGE) == ["a"] * 1000


def test_expand_map_adds_a_task_for_each_item_and_its_output_to_the_join(start_on, job_server):
    answer = expand(start_on(""), job_server, ["a", "b"])
    assert (answer["op"], answer["outputs"]) == ("done", [])
    (extension,) = job_server.extensions
    assert list(extension["tasks"]) == ["words[0]", "words[1]"]
    node = extension["tasks"]["words[1]"]
    assert node["reruns"] == 2
    assert node["requires"] == ["other"]
    item, top = node["task"]["inputs"]
    assert (item["kind"], item["type"], top) == ("constant", "string", TOP)
    assert msgpack.unpack(base64.b64decode(item["payload"]["inline"])) == "b"
    part = {"label": "words[0]", "position": 0, "type": "int64"}
    assert extension["parts"] == {"words": {"0": [part, {**part, "label": "words[1]"}]}}
    assert job_server.tokens == {"Bearer myu_x"}
    assert job_server.paths == {"/api/v1/jobs/j1/extend"}


def test_expand_map_uploads_large_items_once(start, job_server):
    large, other = "x" * 5000, "y" * 5000
    job_server.files[hashlib.sha256(msgpack.pack(other)).hexdigest()] = b"known"
    expand(start(""), job_server, [large, "small", large, other])
    digest = hashlib.sha256(msgpack.pack(large)).hexdigest()
    assert job_server.files[digest] == msgpack.pack(large)
    assert b"known" in job_server.files.values()
    inputs = [node["task"]["inputs"][0]["payload"] for node in job_server.extensions[0]["tasks"].values()]
    assert inputs[0] == inputs[2] == {"digest": digest, "size": 5003}
    assert "inline" in inputs[1]


def test_expand_map_extends_in_calls_of_at_most_1000_tasks(start, job_server):
    expand(start(""), job_server, [str(n) for n in range(2_500)])
    assert [len(one["tasks"]) for one in job_server.extensions] == [1000, 1000, 500]
    labels = [label for one in job_server.extensions for label in one["tasks"]]
    assert labels == [f"words[{n}]" for n in range(2_500)]


def test_expand_map_of_an_empty_list_adds_nothing(start, job_server):
    assert expand(start(""), job_server, [])["op"] == "done"
    assert job_server.extensions == []


def test_expand_map_repeats_calls_while_the_server_is_away(start, job_server):
    job_server.refusals = [(503, "unavailable", "busy"), (500, "internal", "broken")]
    assert expand(start(""), job_server, ["a"])["op"] == "done"
    assert len(job_server.extensions) == 1


@pytest.mark.parametrize(
    ("items", "more", "reason"),
    [
        (["a"], {"token": ""}, "may not extend its job"),
        (["a"], {"job_id": ""}, "may not extend its job"),
        ("no list", {}, "expected a list"),
    ],
)
def test_an_expansion_that_is_not_possible_fails_with_the_reason(start, job_server, items, more, reason):
    answer = expand(start(""), job_server, items, **more)
    assert reason in answer["error"]["message"]
    assert job_server.extensions == []


def test_a_refusal_of_the_server_is_the_reason_of_the_failure(start, job_server):
    job_server.refusals = [(409, "wrong_state", "the job is sealed; submit another one")]
    answer = expand(start(""), job_server, ["a"])
    assert "the job is sealed" in answer["error"]["message"]
    assert answer["error"]["type"] == "myrmidon.CallRefused"


def test_a_builtin_that_this_bot_does_not_have_is_named(start):
    error = start("").error("of_the_future", package=PACKAGE)
    assert error["kind"] == "import"
    assert "no builtin function of_the_future" in error["summary"]
