"""Calls as a graph document: inputs, edges, labels, and the errors of wrong wiring."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import time
from typing import Any

import pytest

from myrmidon import GraphError, WiringError
from myrmidon.functions import msgpack
from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.node_inputs import contains_handle
from myrmidon.functions.task_options import BUILTIN_RERUNS, TaskOptions
from myrmidon.functions.values import decode, decode_gathered, encode
from tests.functions import tasks
from tests.functions.tasks import Pair, Point


def tasks_of(builder: GraphBuilder, code: str = "") -> dict[str, Any]:
    document = json.loads(builder.document({"name": "n"}, lambda _: code).text)
    assert document["name"] == "n"
    return document["tasks"]


def inputs_of(builder: GraphBuilder, label: str) -> list[dict[str, Any]]:
    return tasks_of(builder)[label]["task"]["inputs"]


def constant(given: dict[str, Any], annotation: Any) -> Any:
    assert given["kind"] == "constant"
    return decode(base64.b64decode(given["payload"]["inline"]), annotation)


@pytest.fixture
def builder() -> GraphBuilder:
    return GraphBuilder()


def test_a_call_is_a_node_with_its_function_and_its_arguments_as_constants(builder):
    builder.call(tasks.count, ("abc",))
    node = tasks_of(builder, "c0de")["count"]
    request = node["task"]
    assert request["function"] == {
        "package_name": "tests.functions.tasks",
        "func_name": "count",
        "language": "PYTHON",
        "code": "c0de",
        "signature": "count(text:string,top:int64)->Map<string,int64>",
    }
    assert request["outputs"] == [{"type": "Map<string,int64>"}]
    assert request["reruns"] == 2
    assert request["slices"][0]["properties"]["execution_timeout_s"] == 600
    text, top = request["inputs"]
    assert (constant(text, str), constant(top, int)) == ("abc", 10)
    assert (text["type"], top["type"]) == ("string", "int64")
    assert "requires" not in node


def test_the_defaults_of_the_submitter_and_keywords_are_bound(builder):
    builder.call(tasks.count, (), {"top": 3, "text": "t"})
    assert [constant(one, kind) for one, kind in zip(inputs_of(builder, "count"), (str, int), strict=True)] == ["t", 3]


def test_a_result_as_an_argument_is_an_edge(builder):
    found = builder.call(tasks.shards, ("a/b",))
    builder.map(tasks.count, ["x"])
    builder.call(tasks.merge, ([],))
    half = builder.call(tasks.half, (2,))
    builder.call(tasks.half.options(label="second"), (half,))
    assert inputs_of(builder, "second") == [{"kind": "output_of", "type": "double", "label": "half", "position": 0}]
    assert repr(found) == "<handle of shards, List<string>>"


def test_a_list_of_results_is_one_gathered_input(builder):
    builder.call(tasks.merge, (builder.map(tasks.count, ["a", "b"]),))
    assert inputs_of(builder, "merge") == [
        {
            "kind": "gathered",
            "type": "List<Map<string,int64>>",
            "parts": [
                {"label": "count[0]", "position": 0, "type": "Map<string,int64>"},
                {"label": "count[1]", "position": 0, "type": "Map<string,int64>"},
            ],
        }
    ]


def test_results_and_values_may_be_mixed_at_any_depth(builder):
    both = builder.call(tasks.two, (7,))
    number, text = both
    deep = {"a": [both, (1, text)], "b": [(number, "x")], "c": []}
    builder.call(tasks.nested, (deep,))
    (given,) = inputs_of(builder, "nested")
    parts = [encode(7, int), encode("7", str), encode("7", str), encode(7, int)]
    assert [(part["label"], part["position"]) for part in given["parts"]] == [
        ("two", 0),
        ("two", 1),
        ("two", 1),
        ("two", 0),
    ]
    shape = base64.b64decode(given["shape"]["inline"])
    assert decode_gathered(shape, parts, dict[str, list[tuple[int, str]]]) == {
        "a": [(7, "7"), (1, "7")],
        "b": [(7, "x")],
        "c": [],
    }


def test_two_outputs_may_be_passed_as_a_whole_or_apart(builder):
    both = builder.call(tasks.two, (1,))
    number, text = both
    builder.call(tasks.whole, (both,))
    builder.call(tasks.whole.options(label="apart"), ((number, text),))
    assert inputs_of(builder, "whole") == inputs_of(builder, "apart")
    assert tasks_of(builder)["two"]["task"]["outputs"] == [{"type": "int64"}, {"type": "string"}]


def test_tuples_of_any_length_and_named_tuples_are_one_output(builder):
    builder.call(tasks.numbers, (3,))
    builder.call(tasks.pair, (3,))
    builder.call(tasks.one_tuple, (3,))
    nodes = tasks_of(builder)
    assert nodes["numbers"]["task"]["outputs"] == [{"type": "List<int64>"}]
    assert nodes["pair"]["task"]["outputs"] == [{"type": "tests.functions.tasks.Pair"}]
    assert nodes["one_tuple"]["task"]["outputs"] == [{"type": "int64"}]


def test_a_function_without_output_orders_by_after(builder):
    first = builder.call(tasks.nothing, (1,))
    builder.call(tasks.nothing.options(after=[first]), (2,))
    many = builder.map(tasks.nothing, [3, 4])
    builder.call(tasks.nothing.options(after=[many, first]), (5,))
    nodes = tasks_of(builder)
    assert nodes["nothing"]["task"]["outputs"] == []
    assert nodes["nothing-2"]["requires"] == ["nothing"]
    assert nodes["nothing-4"]["requires"] == ["nothing-3[0]", "nothing-3[1]", "nothing"]


def test_an_int_fits_a_float_and_a_value_its_optional(builder):
    number, _ = builder.call(tasks.two, (1,))
    builder.call(tasks.half, (number,))
    builder.call(tasks.maybe, (number,))
    builder.call(tasks.maybe, ())
    assert inputs_of(builder, "half")[0]["type"] == "double"
    assert inputs_of(builder, "maybe")[0]["type"] == "Optional<int64>"
    assert constant(inputs_of(builder, "maybe-2")[0], int | None) is None


def wrong_calls(builder: GraphBuilder) -> list[tuple[Any, str]]:
    number, text = builder.call(tasks.two, (1,))
    done = builder.call(tasks.nothing, (1,))
    other = GraphBuilder().call(tasks.half, (1.0,))
    call = builder.call
    return [
        (lambda: call(tasks.count, (3,)), r"count\(\): argument text: expected str, given int"),
        (lambda: call(tasks.count, ("a", "b")), r"count\(\): argument top: expected int, given str"),
        (lambda: call(tasks.merge, ([{"a": 1}, {"a": "x"}],)), r"merge\(\): argument parts\[1\]\['a'\]: expected int"),
        (lambda: call(tasks.count, (number,)), r"argument text: expected string, given the result of two, int64"),
        (
            lambda: call(tasks.merge, ([text],)),
            r"argument parts\[0\]: expected Map<string,int64>, given .* two",
        ),
        (lambda: call(tasks.whole, ((text, number),)), r"argument both\[0\]: expected int64"),
        (lambda: call(tasks.half, (done,)), r"nothing returns nothing; to run after it, use .options\(after="),
        (lambda: call(tasks.half, (other,)), r"belongs to another job"),
        (lambda: call(tasks.merge, ([other],)), r"argument parts\[0\]: .* belongs to another job"),
        (lambda: call(tasks.count, ()), r"count\(\) missing a required argument: 'text'"),
        (lambda: call(tasks.count, ("a", 1, 2)), r"count\(\) too many positional arguments"),
        (lambda: call(tasks.count, ("a",), {"bottom": 1}), r"count\(\) got an unexpected keyword argument 'bottom'"),
        (lambda: call(tasks.move, (Point(1), 1 << 70)), r"argument by: "),
        (lambda: call(tasks.pair, (Pair(1, "a"),)), r"argument x: expected int"),
        (lambda: call(tasks.count, ("x" * (65 << 20),)), r"argument text: the value has 65.0 MiB; at most 64 MiB"),
        (lambda: builder.map(tasks.count, ["a", 3]), r"argument text: expected str, given int"),
        (
            lambda: builder.map(tasks.count, number),
            r"map\(count\): items for text: expected List<string>, given",
        ),
        (lambda: builder.map(tasks.two, call(tasks.shards, ("a",))), r"two\(\) has 2 outputs"),
    ]


@pytest.mark.parametrize("number", range(18))
def test_wrong_wiring_names_the_line_the_argument_and_both_types(builder, number):
    wrong, problem = wrong_calls(builder)[number]
    with pytest.raises(WiringError, match=problem) as caught:
        wrong()
    assert str(caught.value).startswith("tests/functions/test_graph_builder.py:"), caught.value
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, GraphError)


def test_all_wrong_calls_are_tested(builder):
    assert len(wrong_calls(builder)) == 18


def test_after_takes_results_of_this_job_only(builder):
    with pytest.raises(GraphError, match="takes results of calls of this job, not 'x'"):
        builder.call(tasks.half.options(after=["x"]), (1.0,))
    with pytest.raises(GraphError, match="belongs to another job"):
        builder.call(tasks.half.options(after=GraphBuilder().call(tasks.half, (1.0,))), (1.0,))


def test_labels_are_the_names_of_functions_with_numbers_where_they_repeat(builder):
    builder.call(tasks.half, (1.0,))
    builder.call(tasks.half, (1.0,))
    builder.call(tasks.half.options(label="half-3"), (1.0,))
    builder.call(tasks.half, (1.0,))
    builder.call(tasks.half.options(label="mine"), (1.0,))
    builder.map(tasks.half, [1.0, 2.0])
    builder.map(tasks.half.options(label="mine"), [1.0])
    assert list(tasks_of(builder)) == [
        "half", "half-2", "half-3", "half-4", "mine", "half-5[0]", "half-5[1]", "mine-2[0]",
    ]  # fmt: skip


def test_a_large_constant_is_named_by_its_digest_and_uploaded_once(builder):
    data = b"x" * 5_000
    encoded = encode(data, bytes)
    builder.map(tasks.big, [data, data, b"small"])
    document = builder.document({}, lambda _: "")
    digest = hashlib.sha256(encoded).hexdigest()
    assert document.uploads == {digest: encoded}
    nodes = json.loads(document.text)["tasks"]
    for label in ("big[0]", "big[1]"):
        assert nodes[label]["task"]["inputs"][0]["payload"] == {"digest": digest, "size": len(encoded)}
    assert "inline" in nodes["big[2]"]["task"]["inputs"][0]["payload"]


def test_map_binds_the_item_to_the_first_free_parameter(builder):
    builder.map(tasks.count, ["a"], (), {"top": 2})
    builder.map(functools.partial(tasks.count, "text"), [5])
    builder.map(functools.partial(tasks.move, by=3), [Point(1)])
    assert [constant(one, kind) for one, kind in zip(inputs_of(builder, "count[0]"), (str, int), strict=True)] == [
        "a",
        2,
    ]
    assert constant(inputs_of(builder, "count-2[0]")[1], int) == 5
    assert constant(inputs_of(builder, "move[0]")[0], Point) == Point(1)


def test_map_over_nothing_is_an_empty_list(builder):
    assert builder.map(tasks.count, []) == []
    builder.call(tasks.merge, ([],))
    assert inputs_of(builder, "merge")[0]["kind"] == "constant"


def test_map_over_a_result_adds_a_node_that_expands_and_one_that_joins(builder):
    top = builder.call(tasks.maybe.options(label="top"), (1,))
    texts = builder.call(tasks.shards, ("a/b",))
    mapped = builder.map(tasks.count.options(label="c", after=[top]), texts, (), {"top": 5})
    builder.call(tasks.merge, (mapped,))
    nodes = tasks_of(builder, "c0de")
    assert repr(mapped) == "<handle of c, List<Map<string,int64>>>"
    assert nodes["c"]["requires"] == ["c/expand"]
    assert nodes["c"]["task"]["inputs"] == [{"kind": "gathered", "type": "List<Map<string,int64>>", "parts": []}]
    assert nodes["c"]["task"]["function"]["func_name"] == "join"
    assert nodes["c"]["task"]["outputs"] == [{"type": "List<Map<string,int64>>"}]
    items, plan = nodes["c/expand"]["task"]["inputs"]
    assert items == {"kind": "output_of", "type": "List<string>", "label": "shards", "position": 0}
    assert nodes["c/expand"]["task"]["slices"][0]["properties"]["api"] == "job"
    assert nodes["c/expand"]["requires"] == ["top"]
    given = json.loads(constant(plan, str))
    assert (given["join"], given["item_type"]) == ("c", "string")
    assert given["inputs"][0] is None
    assert constant(given["inputs"][1], int) == 5
    assert given["node"]["requires"] == ["top"]
    assert given["node"]["task"]["function"]["code"] == "c0de"
    assert given["node"]["task"]["inputs"] == []
    assert [function.__name__ for function in builder.functions()].count("count") == 1


def test_the_nodes_of_a_map_run_where_its_function_runs_but_not_with_its_times(builder):
    mapped = tasks.count.options(
        label="c", dimensions={"gpu": "1"}, timeout=1, soft_timeout=0.5, reruns=0, retries=3, priority=7, memory_mb=9,
        env={"A": "b"}, cache=True,
    )  # fmt: skip
    builder.map(mapped, builder.call(tasks.shards, ("a/b",)))
    nodes = tasks_of(builder)
    for label in ("c", "c/expand"):
        task = nodes[label]["task"]
        properties = task["slices"][0]["properties"]
        assert properties["dimensions"]["gpu"] == ["1"]
        assert not {"execution_timeout_s", "idempotent", "env"} & set(properties)
        assert not {"soft_timeout_s", "max_instances"} & set(task)
        assert (task["retries"], task["priority"], task["reruns"]) == (3, 7, BUILTIN_RERUNS)
        assert "memory_mb" not in task["function"]


def test_reduce_combines_in_layers(builder):
    parts = builder.map(tasks.count, [str(number) for number in range(250)])
    builder.reduce(tasks.merge, parts, fan_in=100)
    nodes = tasks_of(builder)
    sizes = [len(nodes[label]["task"]["inputs"][0]["parts"]) for label in nodes if label.startswith("merge")]
    assert sizes == [100, 100, 50, 3]
    small = GraphBuilder()
    small.reduce(tasks.merge, small.map(tasks.count, ["a"]))
    assert [label for label in tasks_of(small) if label.startswith("merge")] == ["merge"]
    with pytest.raises(GraphError, match="fan_in is 1"):
        builder.reduce(tasks.merge, parts, fan_in=1)


def test_reduce_of_a_list_that_is_not_known_yet_is_one_call(builder):
    mapped = builder.map(tasks.count, builder.call(tasks.shards, ("a",)))
    builder.reduce(tasks.merge, mapped)
    assert inputs_of(builder, "merge")[0]["kind"] == "output_of"


def test_commands_stand_in_the_same_graph(builder):
    made = builder.command(["make", "corpus"], TaskOptions().changed(timeout=60))
    number, _ = builder.call(tasks.two.options(after=made), (1,))
    text = builder.command(["./run", number, 5], TaskOptions().changed(label="run"), returns=str)
    builder.call(tasks.count, (text,))
    nodes = tasks_of(builder)
    assert nodes["make"]["task"]["slices"][0]["properties"] == {
        "dimensions": {"pool": ["default"]},
        "execution_timeout_s": 60,
        "command": ["make", "corpus"],
    }
    assert nodes["two"]["requires"] == ["make"]
    assert nodes["run"]["task"]["slices"][0]["properties"]["command"] == ["./run", {"$output": "two:0"}, "5"]
    assert nodes["run"]["task"]["outputs"] == [{"type": "string"}]
    assert inputs_of(builder, "count")[0] == {"kind": "output_of", "type": "string", "label": "run", "position": 0}
    with pytest.raises(GraphError, match="a list of words"):
        builder.command("make all", TaskOptions())
    with pytest.raises(WiringError, match="a word of a command: make returns nothing"):
        builder.command(["echo", made], TaskOptions())


def test_only_containers_are_searched_for_handles(builder):
    handle = builder.call(tasks.half, (1.0,))
    loop: list[Any] = []
    loop.append(loop)
    for has in (handle, [handle], ([1], {"a": (handle,)}), {1: [handle]}):
        assert contains_handle(has)
    for has_not in (1, "x", [1, 2], {"a": [1]}, loop, Point(1), ["x"] * 1000):
        assert not contains_handle(has_not)


def test_the_shape_is_messagepack_with_part_numbers(builder):
    number, _ = builder.call(tasks.two, (1,))
    builder.call(tasks.whole, ((number, "x"),))
    (given,) = inputs_of(builder, "whole")
    assert msgpack.unpack(base64.b64decode(given["shape"]["inline"])) == [msgpack.Ext(1, b"\0\0\0\0"), "x"]


@pytest.mark.untraced
def test_ten_thousand_nodes_cost_less_than_fifty_microseconds_each(builder):
    """Processor time, not seconds on the clock; about 3 us on a machine of 2026, and linear in the number of nodes."""
    start = time.process_time()
    builder.map(tasks.count, [f"text {number}" for number in range(10_000)])
    document = builder.document({}, lambda _: "")
    assert (time.process_time() - start) / 10_000 < 50e-6
    assert len(json.loads(document.text)["tasks"]) == 10_000
