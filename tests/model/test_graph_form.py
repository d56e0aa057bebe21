"""The short form of tasks and parameters: what they become, and how their problems are named."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.graph_form import apply_parameters, expand_tasks, rename_problems

NOW = 1_800_000_000_000_000


def expand(task, **node) -> tuple[Any, frozenset[str | int]]:
    document: Any
    document, short = expand_tasks({"tasks": {"a": {"task": task, **node}}}, default_pool="p", now=NOW)
    return document["tasks"]["a"]["task"], short


def problems(call, *args, **given):
    with pytest.raises(InvalidRequest) as refused:
        call(*args, **given)
    return {(problem.path, problem.code) for problem in refused.value.problems}


def test_a_payload_becomes_one_slice_and_stays_whole_for_the_command():
    payload = {"command": ["x"], "env": {"A": "1"}, "maxRunTime": 5, "mine": [1]}
    task, short = expand({"payload": payload, "priority": 7})
    assert task == {
        "priority": 7,
        "slices": [
            {
                "properties": {
                    "command": ["x"], "env": {"A": "1"}, "execution_timeout_s": 5, "dimensions": {"pool": ["p"]},
                    "payload": payload,
                }
            }
        ],
    }  # fmt: skip
    assert short == {"a"}


def test_numbers_in_a_command_and_in_variables_are_text():
    task, _ = expand({"payload": {"command": ["sleep", 5, True], "env": {"N": 1.5}}})
    properties = task["slices"][0]["properties"]
    assert (properties["command"], properties["env"]) == (["sleep", "5", True], {"N": "1.5"})


def test_provisioner_and_worker_type_are_dimensions_and_the_payload_wins():
    task, _ = expand({"provisionerId": "aws", "workerType": "big", "payload": {"command": ["x"]}})
    assert task["slices"][0]["properties"]["dimensions"] == {"pool": ["aws"], "worker_type": ["big"]}
    task, _ = expand({"provisionerId": "aws", "payload": {"command": ["x"], "dimensions": {"pool": "own"}}})
    assert task["slices"][0]["properties"]["dimensions"] == {"pool": ["own"]}


def test_a_deadline_is_counted_from_now():
    task, _ = expand({"deadline": "2027-01-15T08:01:00Z", "payload": {"command": ["x"]}})
    assert task["deadline_s"] == 60
    late = {"tasks": {"a": {"task": {"deadline": "2001-01-01", "payload": {}}}}}
    assert problems(expand_tasks, late, default_pool="p", now=NOW) == {("tasks.a.task.deadline", "range")}
    odd = {"tasks": [{"label": "a", "task": {"deadline": 5, "payload": 7}}]}
    assert problems(expand_tasks, odd, default_pool="p", now=NOW) == {
        ("tasks[0].task.deadline", "type"), ("tasks[0].task.payload", "type"),
    }  # fmt: skip


@pytest.mark.parametrize("raw", [None, 7, [], {"tasks": 7}, {"tasks": {"a": 7}}, {"tasks": [{"task": {"slices": []}}]}])
def test_what_is_no_short_task_is_left_for_validation(raw):
    assert expand_tasks(raw, default_pool="p", now=NOW) == (raw, frozenset())


def test_parameters_are_replaced_everywhere_and_defaults_apply():
    raw = {"parameters": {"a": 1, "b": None}, "tasks": [{"$param": "a"}, {"x": {"$param": "b"}}, {"$param": 5}]}
    assert apply_parameters(raw, {"b": [2]}) == {"tasks": [1, {"x": [2]}, {"$param": 5}]}


def test_unknown_and_missing_parameters_are_all_named():
    raw = {"parameters": {"a": None}, "tasks": [{"$param": "a"}, {"$param": "zz"}]}
    assert problems(apply_parameters, raw, {"nope": 1}) == {
        ("parameters.nope", "unknown_parameter"), ("tasks[0].$param", "unknown_parameter"),
        ("tasks[1].$param", "unknown_parameter"),
    }  # fmt: skip
    assert problems(apply_parameters, {"parameters": []}, {}) == {("parameters", "type")}


def test_a_large_parameter_that_is_used_often_is_refused():
    """A document of 1 MiB could else become one of many GiB."""

    def raw(uses: int) -> dict[str, object]:
        return {"parameters": {"a": "x" * (1 << 20)}, "tasks": [{"$param": "a"}] * uses}

    assert apply_parameters(raw(63), {}) == {"tasks": ["x" * (1 << 20)] * 63}
    assert problems(apply_parameters, raw(64), {}) == {("parameters.a", "too_large")}


def test_problems_are_named_as_the_document_has_them():
    found = [Problem("tasks.a.task.slices[0].properties.execution_timeout_s", "1", "2", "c")]
    assert (
        rename_problems(InvalidRequest(found), frozenset({"a"})).problems[0].path == "tasks.a.task.payload.maxRunTime"
    )
    assert rename_problems(InvalidRequest(found), frozenset()).problems == found
