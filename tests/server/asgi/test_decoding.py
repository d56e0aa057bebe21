"""What callers are told about bodies and queries that cannot be decoded."""

from __future__ import annotations

import tracemalloc
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from myrmidon.model import json_bounds
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.struct_problems import problems_of
from myrmidon.server.asgi import decoding
from myrmidon.server.asgi.decoding import body_decoder, query_decoder
from myrmidon.server.calls import StreamedBody
from myrmidon.server.facades import every_route


class Item(Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(le=64)] = 0


class Fields(Struct, forbid_unknown_fields=True):
    kind: Literal["task", "job"] = "task"
    wait_s: int = 0
    items: list[Item] = []


class Required(Struct):
    name: str


def problem(kind: type[Struct], fields: dict[str, list[str]]) -> str:
    with pytest.raises(InvalidRequest) as error:
        query_decoder(kind)(fields)
    [found] = error.value.problems
    return str(found)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"kind": ["tusk"]}, "kind: got 'tusk'; allowed: one of job, task"),
        ({"wait_s": ["soon"]}, "wait_s: got text of 4 characters; allowed: a whole number"),
        ({"waits": ["1"]}, "waits: got text of 1 character; allowed: `wait_s` (did you mean that?)"),
        ({"other": ["1"]}, "other: got text of 1 character; allowed: one of items, kind, wait_s"),
    ],
)
def test_a_problem_says_what_was_given_and_what_is_allowed(fields, told):
    assert problem(Fields, fields) == told


def test_a_missing_field_is_named():
    assert problem(Required, {}) == "name: got nothing; allowed: text"


def test_all_problems_are_listed_with_their_paths():
    told = [
        str(problem)
        for _, problem in problems_of({"kind": 5, "wait_s": None, "items": [{"size": 65}, {"sise": 1}, 7]}, Fields)
    ]
    assert told == [
        "kind: got 5; allowed: one of job, task",
        "wait_s: got nothing; allowed: a whole number",
        "items[0].size: got 65; allowed: a whole number of at most 64",
        "items[1].sise: got a number; allowed: `size` (did you mean that?)",
        "items[2]: got 7; allowed: an object",
    ]


def refusal_of(path: str, body: bytes) -> InvalidRequest:
    """Why the body is refused, for little memory."""
    route = next(line for line in every_route() if (line.path, line.body is None) == (path, False))
    decode = body_decoder(route)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as refused:
            decode(body)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(body)
    finally:
        tracemalloc.stop()
    return refused.value


def nested(depth: int, leaves: bytes) -> bytes:
    return b'{"x":' * depth + leaves + b"}" * depth


@pytest.mark.parametrize(
    "path", sorted({line.path for line in every_route() if line.body not in (None, bytes, StreamedBody)})
)
def test_every_route_refuses_a_deep_body_before_it_is_decoded(path):
    """200 kB with a NUL at a depth of 900 took 770 MiB: a walk made a path for each value."""
    error = refusal_of(path, nested(900, b"[" + b"0," * 100_000 + b'"\\u0000"]'))
    assert [str(problem) for problem in error.problems] == ["body: got deeper nesting; allowed: at most 32 levels"]


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/v1/task-graph/{id}", "/api/v1/tasks/wait"])
def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(path, monkeypatch):
    """30 MiB of empty lists took 2.4 GiB and half a minute."""
    monkeypatch.setattr(json_bounds, "MAX_VALUES", 1000)
    monkeypatch.setattr(decoding, "MAX_VALUES", 1000)
    error = refusal_of(path, b'{"x":[' + b"[[]]," * 100_000 + b"0]}")
    assert [str(problem) for problem in error.problems] == ["body: got more values; allowed: at most 1000 values"]


def test_places_of_nul_among_many_values_are_found_with_little_memory():
    error = refusal_of("/api/v1/tasks", b'{"tasks":[' + nested(28, b"[" + b"0," * 100_000 + b'"\\u0000"]') + b"]}")
    assert [problem.path for problem in error.problems] == [f"tasks[0].{'x.' * 27}x[100000]"]
