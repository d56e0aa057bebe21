"""References to outputs of other tasks in commands: how they are read, and what is wrong with them."""

from __future__ import annotations

import json

import msgspec
import pytest

from myrmidon.model.dag import build_dag
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.job_document import labels_read, parse_graph
from myrmidon.model.task_request import OutputOf, properties_hash
from myrmidon.model.task_validation import parse_task
from tests.model.encoding import encode_graph

A0, A1 = {"$output": "a:0"}, {"$output": "a:1"}


def a_slice(**properties):
    return {"properties": {"dimensions": {"pool": ["default"]}, "command": ["true"], **properties}}


def a_graph(*slices, **task):
    producer = {"slices": [a_slice()], "outputs": [{"type": "int64"}, {"type": "string"}]}
    return {"tasks": {"a": {"task": producer}, "b": {"task": {"slices": list(slices), **task}}}}


def read(*slices, **task):
    return parse_graph(a_graph(*slices, **task)).nodes[1].request


def refs(request, number=0):
    return [(ref.path, ref.input) for ref in request.slices[number].properties.output_refs]


def test_references_in_command_environment_and_payload_are_found_and_each_output_is_one_input():
    request = read(
        a_slice(command=["run", A1, "x", A0], env={"N": A0, "M": "plain"}, payload={"deep": [{"n": A1}], "s": "x"})
    )
    assert [(source.label, source.position) for source in request.inputs] == [("a", 1), ("a", 0)]
    assert refs(request) == [
        (["command", 1], 0),
        (["command", 3], 1),
        (["env", "N"], 1),
        (["payload", "deep", 0, "n"], 0),
    ]
    properties = request.slices[0].properties
    assert properties.command == ["run", '{"$output":"a:1"}', "x", '{"$output":"a:0"}']
    assert json.loads(properties.payload)["deep"] == [{"n": A1}]


def test_the_slices_of_a_task_share_their_inputs():
    request = read(a_slice(command=["run", A0]), a_slice(command=["other", A1, A0]))
    assert [(source.label, source.position) for source in request.inputs] == [("a", 0), ("a", 1)]
    assert (refs(request, 0), refs(request, 1)) == ([(["command", 1], 0)], [(["command", 1], 1), (["command", 2], 0)])


def test_a_reference_makes_an_edge():
    graph = parse_graph(a_graph(a_slice(env={"N": A0})))
    assert build_dag(graph).parents == [[], [0]]


def test_a_label_may_have_colons():
    raw = a_graph(a_slice(command=["run", {"$output": "x:y:0"}]))
    raw["tasks"]["x:y"] = raw["tasks"].pop("a")
    assert build_dag(parse_graph(raw)).parents == [[1], []]


def test_what_only_looks_like_a_reference_is_left_alone():
    payload = {"a": {"$output": "a:0", "more": 1}, "b": {"$output": 7}, "c": "$output"}
    request = read(a_slice(payload=payload))
    assert (request.inputs, refs(request)) == ([], [])
    assert json.loads(request.slices[0].properties.payload) == payload


def test_a_request_with_references_can_be_written_and_read_again():
    graph = parse_graph(a_graph(a_slice(command=["run", A1], env={"N": A0}, payload={"p": A0})))
    again = parse_graph(json.loads(msgspec.json.encode(encode_graph(graph))))
    assert again.nodes[1].request.inputs == graph.nodes[1].request.inputs
    assert again == graph


def test_the_labels_that_a_document_reads_include_references():
    assert labels_read(a_graph(a_slice(command=["run", A0], payload={"x": [{"$output": "z:1"}]}))) == {"a", "z"}


def test_other_places_are_other_work():
    hashes = {
        properties_hash(read(a_slice(**given)).slices[0].properties)
        for given in ({"command": ["run", A0, "x"]}, {"command": ["run", "x", A0]}, {"command": ["run", A1, "x"]})
    }
    assert len(hashes) == 3


@pytest.mark.parametrize("text", ["", "a", "a:", ":0", "a:x", "a:-1", "a:99999", "0"])
def test_a_reference_that_is_no_label_and_position_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        read(a_slice(command=["run", {"$output": text}]))
    assert [(p.path, p.code) for p in refused.value.problems] == [
        ("tasks.b.task.slices[0].properties.command[1].$output", "output")
    ]


@pytest.mark.parametrize(
    ("given", "code"),
    [({"$output": "z:0"}, "unknown_label"), ({"$output": "b:0"}, "self_dependency"), ({"$output": "a:2"}, "position")],
)
def test_a_reference_to_an_output_that_does_not_exist_is_refused(given, code):
    graph = parse_graph(a_graph(a_slice(command=["run", given])))
    with pytest.raises(InvalidRequest) as refused:
        build_dag(graph)
    [problem] = refused.value.problems
    assert (problem.path.startswith("tasks.b.task.$output"), problem.code) == (True, code)


def test_a_function_reads_inputs_and_no_references():
    function = {"package_name": "p", "func_name": "f"}
    properties = {"dimensions": {"pool": ["default"]}, "env": {"N": A0}}
    with pytest.raises(InvalidRequest, match="use inputs"):
        read({"properties": properties}, function=function)


def test_a_task_outside_of_a_job_has_neither_references_nor_outputs():
    for wrong in ({"slices": [a_slice(command=["run", A0])]}, {"slices": [a_slice()], "outputs": [{"type": "int64"}]}):
        with pytest.raises(InvalidRequest, match="job"):
            parse_task({"name": "t", **wrong})


def test_a_command_that_reads_outputs_may_start_after_failures():
    raw = a_graph(a_slice(command=["run", A0]))
    raw["tasks"]["b"]["requires_policy"] = "all-resolved"
    assert [node.policy for node in parse_graph(raw).nodes] == ["all-succeeded", "all-resolved"]


def test_users_cannot_say_where_values_go():
    with pytest.raises(InvalidRequest) as refused:
        read(a_slice(output_refs=[{"path": ["command", 0], "input": 0}]))
    assert [problem.code for problem in refused.value.problems] == ["unknown"]


def test_references_of_a_request_are_outputs_of_tasks():
    assert all(isinstance(source, OutputOf) and source.type == "" for source in read(a_slice(env={"N": A0})).inputs)
