"""Whatever comes in, out comes a struct or an InvalidRequest: never another error, never a half."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from myrmidon.model.dag import build_dag
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.job import Graph
from myrmidon.model.job_document import labels_of, parse_graph
from myrmidon.model.task_request import (
    TaskRequest,
    automatic_tags,
    properties_from_json,
    properties_hash,
    properties_json,
)
from myrmidon.model.task_validation import parse_task
from myrmidon.model.validation import is_clean
from tests.model.encoding import encode_graph, encode_task
from tests.model.requests import DIGEST, a_function, a_graph, a_node, a_task, constant, one_slice, output_of

# fmt: off
FIELDS = [
    "tasks", "task", "label", "requires", "requires_policy", "properties", "dimensions", "command",
    "env", "caches", "path", "digest", "size", "nodes", "inline", "payload", "kind", "type",
    "shared_value_id", "position", "package_name", "func_name", "language", "io_timeout_s", "$subs",
    "pool", "os", "id", *TaskRequest.__struct_fields__, *Graph.__struct_fields__,
]
# fmt: on
texts = st.one_of(
    st.text(st.characters(), max_size=8),
    st.sampled_from(["", "\0", "\ud800", "a:b", "a|b", "..", "a/b", "int", "List<int8>", "constant", "taskId:a"]),
    st.sampled_from([DIGEST, "AQ==", "none", "a", "b", "CONTINUE", "all-resolved", "x" * 300]),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), texts, st.binary(max_size=4), st.just(1 << 300)
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(FIELDS), texts), inner, max_size=5),
        st.dictionaries(st.one_of(st.integers(), st.none()), inner, max_size=2),
    ),
    max_leaves=20,
)
COMMAND = a_task(
    slices=[
        one_slice(
            env={"A": "b"},
            env_prefixes={"PATH": ["bin"]},
            caches=[{"name": "c", "path": "p"}],
            inputs={"digest": DIGEST, "size": 1},
            outputs=["o"],
            io_timeout_s=5,
        ),
        one_slice(dimensions={"pool": ["ci"], "os": ["Mac|Linux"]}),
    ],
    tags=["a:b"],
    priority=3,
    soft_timeout_s=4,
    secret_bytes="AQ==",
    stdin="Ag==",
    metadata={"a": "b"},
)
FUNCTION = a_function(
    [
        constant(),
        {"kind": "shared", "type": "bool", "shared_value_id": 3},
        {"kind": "constant", "type": "bytes", "payload": {"digest": DIGEST, "size": 9}},
    ],
    ["int", "Map<string,List<bool>>"],
)
GRAPH = a_graph(
    {
        "a": {"task": FUNCTION},
        "b": {"task": a_function([output_of("a")]), "requires": ["a", "c"], "hold": True},
        "c": a_node(task=COMMAND, reruns=2),
    },
    routing="r",
)


@st.composite
def mutated(draw, tree):
    """The tree with one place, found by walking down at random, replaced, removed or doubled."""
    if not isinstance(tree, (dict, list)) or not tree or draw(st.integers(0, 3)) == 0:
        return draw(trees)
    if isinstance(tree, dict):
        key = draw(st.sampled_from(sorted(tree)))
        match draw(st.integers(0, 9)):
            case 0:
                return {k: v for k, v in tree.items() if k != key}
            case 1:
                return {**tree, draw(st.sampled_from(FIELDS)): draw(trees)}
        return {**tree, key: draw(mutated(tree[key]))}
    at = draw(st.integers(0, len(tree) - 1))
    if draw(st.integers(0, 5)) == 0:
        return [*tree, tree[at]]
    return [*tree[:at], draw(mutated(tree[at])), *tree[at + 1 :]]


def check_refusal(refused: InvalidRequest) -> None:
    assert refused.problems
    for problem in refused.problems:
        assert problem.allowed
        assert is_clean(problem.path + problem.value + problem.allowed)
        assert len(problem.value) <= 1000
    msgspec.json.encode(refused.as_dict())


def check_task(raw: object) -> None:
    try:
        task = parse_task(raw)
    except InvalidRequest as refused:
        check_refusal(refused)
        return
    again = parse_task(json.loads(msgspec.json.encode(encode_task(task, secret=True))))
    assert again == task
    for tag in automatic_tags(task):
        assert is_clean(tag)
    for one in task.slices:
        stored = properties_from_json(properties_json(one.properties))
        assert properties_hash(stored) == properties_hash(one.properties)


def check_graph(raw: object) -> None:
    ids = dict.fromkeys(labels_of(raw), "1100")
    for subs in (None, ids):
        try:
            graph = parse_graph(raw, subs=subs, existing={})
            wiring = build_dag(graph)
        except InvalidRequest as refused:
            check_refusal(refused)
            continue
        again = parse_graph(json.loads(msgspec.json.encode(encode_graph(graph))))
        assert encode_graph(again) == encode_graph(graph)
        assert sorted(wiring.order) == list(range(len(graph.nodes)))


@given(trees)
@settings(max_examples=300)
def test_any_tree_is_a_task_or_an_invalid_request(raw):
    check_task(raw)


@given(trees)
@settings(max_examples=300)
def test_any_tree_is_a_graph_or_an_invalid_request(raw):
    check_graph(raw)


@given(st.one_of(mutated(COMMAND), mutated(FUNCTION)))
@settings(max_examples=600)
def test_a_mutated_task_is_valid_or_an_invalid_request(raw):
    check_task(raw)


@given(mutated(GRAPH))
@settings(max_examples=400)
def test_a_mutated_graph_is_valid_or_an_invalid_request(raw):
    check_graph(raw)


def test_what_is_mutated_is_valid_before():
    check_task(COMMAND)
    parse_task(COMMAND)
    parse_task(FUNCTION)
    build_dag(parse_graph(GRAPH))
