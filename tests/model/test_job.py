from __future__ import annotations

import json
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model.dag import ExistingTask, build_dag, topological_order
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.job import FailurePolicy, Graph, RequiresPolicy, composed_routing
from myrmidon.model.job_document import labels_of, parse_graph, substitute
from myrmidon.model.limits import Limits
from myrmidon.model.validation import MAX_PROBLEMS
from tests.model.encoding import encode_graph
from tests.model.requests import (
    a_function,
    a_graph,
    a_node,
    a_task,
    constant,
    graph_problems,
    nested,
    one_slice,
    output_of,
    paths_of,
    with_properties,
)


def wired(raw, known=None):
    return build_dag(parse_graph(raw), known)


def feeding(*labels, outputs=("int64",), **given):
    """A function node that takes the first output of each label."""
    return {"task": a_function([output_of(label) for label in labels], outputs), **given}


# -- the document --------------------------------------------------------------------------------------------


def test_an_unknown_field_is_answered_with_all_fields_that_a_document_may_have():
    with pytest.raises(InvalidRequest, match=r"surprise: got .*one of .*name, parameters, routing, tags, tasks"):
        parse_graph(a_graph({"a": a_node()}, surprise="x"))


def test_a_graph_is_read_with_the_defaults_of_a_document():
    graph = parse_graph({"tasks": {"build": {"task": {"slices": [one_slice()]}}}})
    assert (graph.name, graph.external_id, graph.routing, graph.deadline_s) == ("", None, "", None)
    assert (graph.failure_policy, graph.max_num_retries) == (FailurePolicy.CONTINUE, 0)
    (node,) = graph.nodes
    assert (node.label, node.requires, node.hold) == ("build", [], False)
    assert node.policy is RequiresPolicy.ALL_SUCCEEDED
    assert node.request.name == "build"


def test_every_field_of_a_graph_is_read():
    raw = a_graph(
        {"a": a_node(), "b": a_node("a", requires_policy="all-resolved", hold=True, reruns=3)},
        external_id="G1",
        routing="nightly",
        failure_policy="fail-fast",
        max_num_retries=5,
        deadline_s=60,
        metadata={"owner": "joe"},
        tags=["b:1", "a:1"],
    )
    graph = parse_graph(raw)
    assert (graph.external_id, graph.routing, graph.deadline_s) == ("G1", "nightly", 60)
    assert (graph.failure_policy, graph.max_num_retries) == (FailurePolicy.FAIL_FAST, 5)
    assert (graph.metadata, graph.tags) == ({"owner": "joe"}, ["a:1", "b:1"])
    node = graph.nodes[1]
    assert (node.requires, node.hold, node.request.reruns) == (["a"], True, 3)
    assert node.policy is RequiresPolicy.ALL_RESOLVED


def test_tasks_may_come_as_a_list():
    raw = a_graph([{"label": "a", **a_node()}, {"label": "b", **a_node("a")}])
    assert parse_graph(raw) == parse_graph(a_graph({"a": a_node(), "b": a_node("a")}))
    assert labels_of(raw) == ["a", "b"]


def test_a_graph_survives_encoding():
    graph = parse_graph(a_graph({"a": a_node(), "b": feeding("c"), "c": feeding()}, routing="r", deadline_s=5))
    again = parse_graph(json.loads(json.dumps(encode_graph(graph))))
    assert again == graph


def test_secrets_of_a_graph_are_not_encoded_nor_shown():
    raw = a_graph({"a": {"task": a_task(secret_bytes="aHVudGVyMg==")}})
    graph = parse_graph(raw)
    assert graph.nodes[0].request.secret_bytes == b"hunter2"
    for shown in (repr(graph), repr(encode_graph(graph))):
        assert "hunter2" not in shown
        assert "aHVudGVyMg" not in shown


@pytest.mark.parametrize(
    ("raw", "labels"),
    [
        ({"tasks": {"a": 1, "b": 2}}, ["a", "b"]),
        ({"tasks": {1: {}, "b": {}}}, ["b"]),
        ({"tasks": [{"label": "a"}, {}, 3, {"label": 4}, {"label": "a"}]}, ["a"]),
        ({"tasks": None}, []),
        ({}, []),
        ([], []),
        (nested(10_000), []),
    ],
    ids=range(7),
)
def test_labels_are_listed_without_judging_the_document(raw, labels):
    assert labels_of(raw) == labels


REFUSED = [
    # (what is wrong, document, paths of all problems)
    ("not an object", [], [""]),
    ("no tasks", {"name": "x"}, ["tasks"]),
    ("an empty graph", a_graph({}), ["tasks"]),
    ("an empty list", a_graph([]), ["tasks"]),
    ("tasks of a wrong type", a_graph("build"), ["tasks"]),
    ("an unknown field", a_graph({"a": a_node()}, state="frozen"), ["state"]),
    ("an unknown field of a node", a_graph({"a": a_node(rerun=1)}), ["tasks.a.rerun"]),
    ("a label in an object's node", a_graph({"a": a_node(label="a")}), ["tasks.a.label"]),
    ("a node that is no object", a_graph({"a": 3}), ["tasks.a", "tasks.a.task"]),
    ("a listed node that is no object", a_graph([{"label": "a", **a_node()}, 3]), ["tasks[1]"]),
    ("a node without a task", a_graph({"a": {}}), ["tasks.a.task"]),
    ("an empty label", a_graph({"": a_node()}), ["tasks['']"]),
    ("a listed node without a label", a_graph([a_node()]), ["tasks[0].label"]),
    ("a label with NUL", a_graph({"a\0": a_node()}), ["tasks['a\\x00']"]),
    ("a label with a lone surrogate", a_graph({"\ud800": a_node()}), ["tasks['\\ud800']"]),
    ("a label that is a number", a_graph({1: a_node()}), ["tasks"]),
    (
        "a label twice",
        a_graph([{"label": "a", **a_node()}, {"label": "b", **a_node()}, {"label": "a", **a_node()}]),
        ["tasks[2].label"],
    ),
    ("requires of a wrong type", a_graph({"a": a_node(requires="b")}), ["tasks.a.requires"]),
    ("requires of numbers", a_graph({"a": a_node(3)}), ["tasks.a.requires[0]"]),
    ("an unknown label", a_graph({"a": a_node("b")}), ["tasks.a.requires[0]"]),
    ("a label required twice", a_graph({"a": a_node(), "b": a_node("a", "a")}), ["tasks.b.requires[1]"]),
    ("a task that waits for itself", a_graph({"a": a_node("a")}), ["tasks.a.requires[0]"]),
    ("a task that feeds itself", a_graph({"a": feeding("a")}), ["tasks.a.task.inputs[0].label"]),
    ("data of an unknown label", a_graph({"a": feeding("x")}), ["tasks.a.task.inputs[0].label"]),
    ("a policy of another name", a_graph({"a": a_node()}, failure_policy="panic"), ["failure_policy"]),
    (
        "a requires policy of another name",
        a_graph({"a": a_node(requires_policy="any")}),
        ["tasks.a.requires_policy"],
    ),
    ("reruns below zero", a_graph({"a": a_node(reruns=-1)}), ["tasks.a.reruns"]),
    ("reruns past 100", a_graph({"a": a_node(reruns=101)}), ["tasks.a.reruns"]),
    (
        "reruns that contradict the task's",
        a_graph({"a": a_node(reruns=1, task=a_task(reruns=2))}),
        ["tasks.a.reruns"],
    ),
    (
        "evaluate_only inside",
        a_graph({"a": a_node(task=a_task(evaluate_only=True))}),
        ["tasks.a.task.evaluate_only"],
    ),
    (
        "an external id twice",
        a_graph({k: a_node(task=a_task(external_id="e")) for k in "ab"}),
        ["tasks.b.task.external_id"],
    ),
    ("a routing of 11", a_graph({"a": a_node()}, routing="x" * 11), ["routing"]),
    (
        "a task's routing of 11",
        a_graph({"a": a_node(task=a_task(routing="x" * 11))}),
        ["tasks.a.task.routing"],
    ),
    ("a deadline past 30 days", a_graph({"a": a_node()}, deadline_s=30 * 86_400 + 1), ["deadline_s"]),
    ("too many job retries", a_graph({"a": a_node()}, max_num_retries=101), ["max_num_retries"]),
    (
        "a wrong property deep inside",
        a_graph({"build": a_node(task=with_properties(env={"A": 1}))}),
        ["tasks.build.task.slices[0].properties.env.A"],
    ),
    (
        "a wrong type string",
        a_graph({"a": {"task": a_function(outputs=["List"])}, "b": feeding("a")}),
        ["tasks.a.task.outputs[0].type"],
    ),
]


@pytest.mark.parametrize(("raw", "paths"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_graph_is_refused_for(raw, paths):
    assert paths_of(graph_problems(raw)) == paths


def test_labels_have_at_most_255_characters():
    parse_graph(a_graph({"x" * 255: a_node()}))
    assert len(graph_problems(a_graph({"x" * 256: a_node()}))) == 1


def test_the_number_of_nodes_is_limited():
    limits = Limits(nodes=2)
    parse_graph(a_graph({k: a_node() for k in "ab"}), limits)
    for tasks in ({k: a_node() for k in "abc"}, [{"label": k, **a_node()} for k in "abc"]):
        (problem,) = graph_problems(a_graph(tasks), limits=limits)
        assert problem.allowed == "1..2 tasks"
    with pytest.raises(InvalidRequest):
        build_dag(parse_graph(a_graph({k: a_node() for k in "abc"})), limits=limits)


def test_an_empty_graph_cannot_be_wired():
    with pytest.raises(InvalidRequest, match=r"1\.\.100000 tasks"):
        build_dag(Graph(name="", nodes=[]))


def test_a_node_has_at_most_10000_parents():
    tasks = {f"p{i}": a_node() for i in range(10_001)}
    full = {**tasks, "c": a_node(*list(tasks)[:10_000])}
    assert len(wired(a_graph(full)).parents[-1]) == 10_000
    (problem,) = graph_problems(a_graph({**tasks, "c": a_node(*tasks)}))
    assert problem.path == "tasks.c.requires"


def test_parents_by_data_and_by_name_count_together():
    limits = Limits(parents=2)
    tasks = {"a": feeding(), "b": feeding(), "c": feeding("a", "b", requires=["a", "b"])}
    assert build_dag(parse_graph(a_graph(tasks), limits), limits=limits).parents[2] == [0, 1]
    tasks = {"a": feeding(), "b": feeding(), "c": a_node(), "d": feeding("a", "b", requires=["c"])}
    with pytest.raises(InvalidRequest, match="3 parents"):
        build_dag(parse_graph(a_graph(tasks), limits), limits=limits)


def test_all_problems_of_a_graph_come_back_at_once():
    raw = a_graph(
        {
            "a": a_node("x", "b", task=a_task(priority=999)),
            "b": a_node("a"),
            "c": a_node("c", reruns="many"),
            "d": feeding("e"),
            "e": {"task": a_function(outputs=["bool"])},
        },
        colour="blue",
    )
    with pytest.raises(InvalidRequest) as refused:
        parse_graph(raw, existing={})
    assert paths_of(refused.value.problems) == [
        "colour",
        "tasks.a.task.priority",
        "tasks.c.reruns",
        "tasks.a.requires[0]",
        "tasks.c.requires[0]",
        "tasks.d.task.inputs[0].type",
        "tasks.a.requires",
    ]


def test_without_known_tasks_parsing_calls_no_label_unknown():
    with pytest.raises(InvalidRequest) as refused:
        parse_graph(a_graph({"a": a_node("x", colour="blue")}))
    assert paths_of(refused.value.problems) == ["tasks.a.colour"]


def test_a_flood_of_problems_is_cut():
    raw = a_graph({f"t{i}": a_node(*(f"x{j}" for j in range(100))) for i in range(100)})
    assert len(graph_problems(raw)) == MAX_PROBLEMS + 1


# -- routing keys --------------------------------------------------------------------------------------------


def test_an_empty_routing_keeps_its_dot():
    key = composed_routing(deployment="farm", graph_id="G", graph_routing="", task_routing="t.1")
    assert key == "farm.G..t.1"


def test_the_composed_routing_key_has_at_most_255_bytes():
    # 107 bytes for task, run and bot; then deployment.graph.routing.routing
    room = 255 - 107 - len("myrmidon..0123456789.")
    node = a_node(task=a_task(routing="0123456789"))
    parse_graph(a_graph({"a": node}, external_id="g" * (room - 10), routing="0123456789"))
    (problem,) = graph_problems(a_graph({"a": node}, external_id="g" * (room - 9), routing="0123456789"))
    assert problem.path == "tasks.a.task.routing"
    assert "255" in problem.allowed


def test_the_routing_key_is_measured_in_bytes():
    raw = a_graph({"a": a_node(task=a_task(routing="ж" * 10))}, external_id="g" * 110, routing="0123456789")
    assert paths_of(graph_problems(raw)) == ["tasks.a.task.routing"]


# -- edges ---------------------------------------------------------------------------------------------------


def test_parents_are_distinct_and_sorted_and_come_first_in_the_order():
    raw = a_graph({"c": feeding("b", "a", requires=["a"]), "a": feeding(), "b": feeding("a")})
    wiring = wired(raw)
    assert wiring.parents == [[1, 2], [], [1]]
    assert wiring.order == [1, 2, 0]
    assert wiring.existing_parents == [[], [], []]


def test_two_data_edges_between_a_pair_are_one_parent():
    two = a_function([output_of("a", 0), output_of("a", 1, "bool")])
    wiring = wired(a_graph({"a": {"task": a_function(outputs=["int", "bool"])}, "b": {"task": two}}))
    assert wiring.parents == [[], [0]]


def test_constants_may_be_mixed_with_outputs_of_others():
    both = a_function([constant(), output_of("a")])
    assert wired(a_graph({"a": feeding(), "b": {"task": both}})).parents == [[], [0]]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (output_of("a", 0, "bool"), "type"),
        (output_of("a", 0, "List<int64>"), "type"),
        (output_of("a", 1), "position"),
        (output_of("a", 1023), "position"),
    ],
)
def test_an_edge_whose_ends_differ_is_refused(given, path):
    raw = a_graph({"a": feeding(), "b": {"task": a_function([given])}})
    assert paths_of(graph_problems(raw)) == [f"tasks.b.task.inputs[0].{path}"]


def test_types_of_an_edge_are_compared_in_canonical_form():
    raw = {
        "a": {"task": a_function(outputs=[" List< int >"])},
        "b": {"task": a_function([output_of("a", 0, "List<int64>")])},
    }
    assert wired(a_graph(raw)).parents == [[], [0]]


def test_a_command_has_no_outputs_to_feed_from():
    (problem,) = graph_problems(a_graph({"a": a_node(), "b": feeding("a")}))
    assert problem.allowed == "a position of a, which declares 0 outputs in its field `outputs`"


def test_edges_from_tasks_the_job_already_has_are_kept_apart():
    known = {"old": ExistingTask(["int64"]), "older": ExistingTask([])}
    raw = a_graph({"a": a_node("older", "old"), "b": feeding("old", requires=["a"])})
    wiring = wired(raw, known)
    assert wiring.parents == [[], [0]]
    assert wiring.existing_parents == [["old", "older"], ["old"]]


@pytest.mark.parametrize(
    ("known", "path"),
    [
        ({"old": ExistingTask(["bool"])}, "tasks.b.task.inputs[0].type"),
        ({"old": ExistingTask([])}, "tasks.b.task.inputs[0].position"),
        ({"other": ExistingTask(["int64"])}, "tasks.b.task.inputs[0].label"),
    ],
)
def test_edges_from_known_tasks_are_checked_too(known, path):
    assert paths_of(graph_problems(a_graph({"b": feeding("old")}), existing=known)) == [path]


def test_a_cycle_is_shown_as_a_path():
    raw = a_graph(
        {"start": a_node(), "a": a_node("start", "c"), "b": a_node("a"), "c": a_node("b"), "end": a_node("c")}
    )
    (problem,) = graph_problems(raw)
    assert problem.value == "a -> c -> b -> a"
    assert problem.code == "cycle"


def test_cycles_apart_from_each_other_are_all_shown():
    raw = a_graph({"a": a_node("b"), "b": a_node("a"), "c": feeding("d"), "d": feeding("c")})
    assert [p.value for p in graph_problems(raw)] == ["a -> b -> a", "c -> d -> c"]


def test_a_long_cycle_is_shortened():
    n = 1000
    raw = a_graph({f"t{i}": a_node(f"t{(i + 1) % n}") for i in range(n)})
    (problem,) = graph_problems(raw)
    assert problem.value.startswith("t0 -> t1 -> t2 -> ")
    assert problem.value.endswith("t11 -> (988 more) -> t0")


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
def test_an_order_exists_exactly_when_there_is_no_cycle(edges):
    requires = {i: sorted({p for c, p in edges if c == i and p != i}) for i in range(12)}
    raw = a_graph({f"t{i}": a_node(*(f"t{p}" for p in ps)) for i, ps in requires.items()})
    try:
        wiring = wired(raw)
    except InvalidRequest as refused:
        for problem in refused.problems:
            path = [int(label[1:]) for label in problem.value.split(" -> ")]
            assert path[0] == path[-1]
            assert all(b in requires[a] for a, b in pairwise(path))
        return
    place = {node: at for at, node in enumerate(wiring.order)}
    assert sorted(place) == list(range(12))
    assert all(place[p] < place[c] for c, ps in requires.items() for p in ps)


# -- size ----------------------------------------------------------------------------------------------------


def chain(n):
    parsed = parse_graph(a_graph({"first": a_node()})).nodes[0]
    request = parsed.request
    nodes = [type(parsed)(label=f"t{i}", request=request, requires=[f"t{i - 1}"] if i else []) for i in range(n)]
    return Graph(name="chain", nodes=nodes[::-1])


def steps(work):
    """How many lines of Python a call runs through: what it costs, on a busy machine as on an idle one."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.untraced  # it traces the code itself
def test_a_chain_of_100000_is_wired_without_recursion_and_in_linear_time():
    assert build_dag(chain(100_000)).order == list(range(99_999, -1, -1))
    small, large = chain(1000), chain(5000)
    assert steps(lambda: build_dag(large)) < 6 * steps(lambda: build_dag(small))


@pytest.mark.untraced  # it traces the code itself
def test_a_fan_of_100000_is_ordered_in_linear_time():
    def fan(n):
        return [[], *([0] for _ in range(n - 2)), list(range(n - 1))]

    assert topological_order(fan(100_000))[-1] == 99_999
    small, large = fan(1000), fan(5000)
    assert steps(lambda: topological_order(large)) < 6 * steps(lambda: topological_order(small))


def test_a_cycle_of_100000_is_found():
    nodes = chain(100_000).nodes
    last = nodes[-1]
    closed = [*nodes[:-1], type(last)(label=last.label, request=last.request, requires=["t99999"])]
    with pytest.raises(InvalidRequest, match="99988 more"):
        build_dag(Graph(name="ring", nodes=closed))


@pytest.mark.untraced  # it traces the code itself
def test_parsing_a_graph_is_linear():
    def document(n):
        return a_graph({f"t{i}": a_node(*([f"t{i - 1}"] if i else [])) for i in range(n)})

    small, large = document(200), document(1000)
    assert steps(lambda: parse_graph(large)) < 6 * steps(lambda: parse_graph(small))


# -- $subs ---------------------------------------------------------------------------------------------------

IDS = {"build": "aaa100", "test": "bbb100"}


def subs(label):
    return {"$subs": f"taskId:{label}"}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (subs("build"), "aaa100"),
        ({"env": {"A": subs("build"), "B": "x"}}, {"env": {"A": "aaa100", "B": "x"}}),
        (["x", subs("test"), [subs("build")]], ["x", "bbb100", ["aaa100"]]),
        ({"a": [{"b": [{"c": subs("build")}]}]}, {"a": [{"b": [{"c": "aaa100"}]}]}),
        ({"$subs": "taskId:build", "more": 1}, {"$subs": "taskId:build", "more": 1}),
        ({"$subs": {"$subs": "taskId:build"}}, {"$subs": "aaa100"}),
        ({"$subs": "jobId:build"}, {"$subs": "jobId:build"}),
        ({"$subs": 3}, {"$subs": 3}),
        ({"taskId:build": "$subs"}, {"taskId:build": "$subs"}),
        ("taskId:build", "taskId:build"),
        ({}, {}),
        (None, None),
    ],
)
def test_subs_are_replaced_at_any_depth_and_nothing_else_is(tree, expected):
    before = json.dumps(tree)
    assert substitute(tree, IDS) == expected
    assert json.dumps(tree) == before


def test_what_has_no_subs_is_returned_as_it_is():
    tree = {"env": {"A": "x"}, "command": ["a", {"b": []}]}
    assert substitute(tree, IDS) is tree


def test_unknown_labels_in_subs_are_all_reported():
    with pytest.raises(InvalidRequest) as refused:
        substitute({"env": {"A": subs("x")}, "command": [subs("y"), subs("build")]}, IDS)
    assert [(p.path, p.value) for p in refused.value.problems] == [
        ("env.A.$subs", "'x'"),
        ("command[0].$subs", "'y'"),
    ]


def test_subs_in_properties_become_ids_and_no_dependency():
    node = a_node(task=with_properties(command=["run", subs("build")], env={"BUILD": subs("build")}))
    graph = parse_graph(a_graph({"build": a_node(), "test": node}), subs=IDS)
    found = graph.nodes[1].request.slices[0].properties
    assert found.command == ["run", "aaa100"]
    assert found.env == {"BUILD": "aaa100"}
    assert build_dag(graph).parents == [[], []]


def test_subs_outside_properties_are_not_replaced():
    raw = a_graph({"a": a_node(task=a_task(name=subs("build")))})
    assert paths_of(graph_problems(raw, subs=IDS)) == ["tasks.a.task.name"]


def test_an_unknown_label_in_subs_has_its_path_in_the_document():
    raw = a_graph({"a": a_node(task=with_properties(env={"A": subs("gone")}))})
    assert paths_of(graph_problems(raw, subs=IDS)) == ["tasks.a.task.slices[0].properties.env.A.$subs"]


def test_without_ids_subs_are_refused_where_text_is_wanted():
    raw = a_graph({"a": a_node(task=with_properties(env={"A": subs("a")}))})
    assert paths_of(graph_problems(raw)) == ["tasks.a.task.slices[0].properties.env.A"]
