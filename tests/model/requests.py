"""Builders of raw requests, valid unless a test says otherwise."""

from __future__ import annotations

import pytest

from myrmidon.model.dag import build_dag
from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.job_document import parse_graph
from myrmidon.model.task_validation import parse_task

DIGEST = "ab" * 32


def properties(**given):
    return {"dimensions": {"pool": ["ci"], "os": ["Linux"]}, "command": ["echo", "hello"], **given}


def one_slice(**given):
    return {"properties": properties(**given)}


def a_task(**given):
    return {"name": "hello", "slices": [one_slice()], **given}


def with_properties(**given):
    return a_task(slices=[one_slice(**given)])


def with_dimensions(**given):
    return with_properties(dimensions={"pool": ["ci"], **given})


def a_function(inputs=(), outputs=(), **given):
    return {
        "function": {"package_name": "lib", "func_name": "lib.add"},
        "slices": [{"properties": {"dimensions": {"pool": ["ci"]}}}],
        "inputs": list(inputs),
        "outputs": [{"type": t} for t in outputs],
        **given,
    }


def constant(of="int64", inline="AQ==", **given):
    return {"kind": "constant", "type": of, "payload": {"inline": inline}, **given}


def output_of(label, position=0, of="int64"):
    return {"kind": "output_of", "type": of, "label": label, "position": position}


def a_node(*requires, **given):
    return {"requires": list(requires), "task": a_task(), **given}


def a_graph(tasks, **given):
    return {"name": "nightly", "tasks": tasks, **given}


def problems_of(raw, **more) -> list[Problem]:
    with pytest.raises(InvalidRequest) as refused:
        parse_task(raw, **more)
    return refused.value.problems


def graph_problems(raw, **more) -> list[Problem]:
    """What parsing or, when that is fine, wiring has against a document."""
    with pytest.raises(InvalidRequest) as refused:
        build_dag(parse_graph(raw, **more), more.get("existing"))
    return refused.value.problems


def paths_of(problems) -> list[str]:
    return [p.path for p in problems]


def nested(depth: int) -> list[object]:
    """A list in a list in a list, as deep as asked for."""
    tree: list[object] = []
    for _ in range(depth):
        tree = [tree]
    return tree
