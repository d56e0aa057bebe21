"""Parameters of graph documents: what they are replaced by, and which are refused."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.parameters import apply_parameters


def problems(document, given):
    with pytest.raises(InvalidRequest) as refused:
        apply_parameters(document, given)
    return {(problem.path, problem.code) for problem in refused.value.problems}


def test_parameters_are_replaced_everywhere_and_defaults_apply():
    raw = {"parameters": {"a": 1, "b": None}, "tasks": [{"$param": "a"}, {"x": {"$param": "b"}}, {"$param": 5}]}
    assert apply_parameters(raw, {"b": [2]}) == {"tasks": [1, {"x": [2]}, {"$param": 5}]}


def test_unknown_and_missing_parameters_are_all_named():
    raw = {"parameters": {"a": None}, "tasks": [{"$param": "a"}, {"$param": "zz"}]}
    assert problems(raw, {"nope": 1}) == {
        ("parameters.nope", "unknown_parameter"), ("tasks[0].$param", "unknown_parameter"),
        ("tasks[1].$param", "unknown_parameter"),
    }  # fmt: skip
    assert problems({"parameters": []}, {}) == {("parameters", "type")}


def test_a_large_parameter_that_is_used_often_is_refused():
    """A document of 1 MiB could else become one of many GiB."""

    def raw(uses: int) -> dict[str, object]:
        return {"parameters": {"a": "x" * (1 << 20)}, "tasks": [{"$param": "a"}] * uses}

    assert apply_parameters(raw(63), {}) == {"tasks": ["x" * (1 << 20)] * 63}
    assert problems(raw(64), {}) == {("parameters.a", "too_large")}
