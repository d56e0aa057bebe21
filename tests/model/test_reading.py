"""The one reader of task requests: what it takes, what it refuses, and what it leaves at the default."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, UserDict
from enum import IntEnum, StrEnum
from hashlib import sha256
from types import MappingProxyType

import msgspec
import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.limits import Limits
from myrmidon.model.slice_validation import GivenProperties
from myrmidon.model.task_request import Function, properties_hash, properties_json, properties_row
from myrmidon.model.task_validation import _NOT_DECLARED, TASK_KEYS, parse_task
from tests.model.encoding import encode_task
from tests.model.requests import (
    DIGEST,
    a_function,
    a_task,
    constant,
    one_slice,
    problems_of,
    with_dimensions,
    with_properties,
)
from tests.model.test_fuzz import COMMAND, FUNCTION


class Text(str):
    __slots__ = ()


class Number(IntEnum):
    SEVEN = 7


class Word(StrEnum):
    NAME = "name"
    A = "a"


ORDINARY = {
    "the smallest": a_task(),
    "all of the task's own numbers": a_task(
        priority=0, retries=100, reruns=100, max_instances=16, lease_s=30, deadline_s=1, soft_timeout_s=3_599
    ),
    "flags": a_task(detached=True, evaluate_only=True, user="somebody"),
    "tags": a_task(tags=["b:2", "a:1", "b:2"]),
    "env": with_properties(env={"PATH": "/bin", "_1": "", "a": "ä"}),
    "caches": with_properties(caches=[{"name": "z", "path": ".npm/z"}, {"name": "a", "path": "a-b/c.d"}]),
    "timeouts": with_properties(execution_timeout_s=1, io_timeout_s=5, grace_period_s=0),
    "no io timeout": with_properties(io_timeout_s=0),
    "a folder": with_properties(relative_cwd="src/main"),
    "idempotent": with_properties(idempotent=True),
    "two slices": a_task(slices=[{**one_slice(), "expiration_s": 60}, one_slice(command=["other"])]),
    "no waiting": a_task(slices=[{**one_slice(), "wait_for_capacity": False}]),
    "several values": with_dimensions(os=["Linux", "Debian"]),
    "alternatives": with_dimensions(os=["Debian|Arch"]),
    "text of any language": a_task(name="\u00e4\U0001f41c", slices=[one_slice(command=["sh", "-c", "a\nb \u00e9"])]),
    "an empty argument": with_properties(command=["a", ""]),
    "files": with_properties(inputs={"digest": DIGEST, "size": 1}, outputs=["b", "a"], env_prefixes={"PATH": ["bin"]}),
    "the rest of the task": a_task(
        service_account="bot",
        parent="5cee4880088101",
        secret_bytes="AQ==",
        stdin="AA==",
        external_id="x-1",
        routing="a.b",
        metadata={"a": "b"},
    ),
    "null for nothing": a_task(parent=None, soft_timeout_s=None, function=None, metadata=None, inputs=None),
    "a function": FUNCTION,
    "everything": COMMAND,
}


@pytest.mark.parametrize("raw", ORDINARY.values(), ids=ORDINARY)
def test_a_request_that_was_read_and_written_reads_the_same_again(raw):
    task = parse_task(json.loads(json.dumps(raw)))
    assert parse_task(json.loads(msgspec.json.encode(encode_task(task, secret=True)))) == task


@pytest.mark.parametrize("raw", ORDINARY.values(), ids=ORDINARY)
def test_what_is_read_shares_no_list_and_no_object_with_what_was_given(raw):
    raw = copy.deepcopy(raw)
    found = parse_task(raw)
    before = msgspec.json.encode(found)
    clear(raw)
    assert msgspec.json.encode(found) == before


def clear(tree: object) -> None:
    if isinstance(tree, dict):
        for value in tree.values():
            clear(value)
        tree.clear()
    elif isinstance(tree, list):
        for value in tree:
            clear(value)
        tree.clear()


def test_null_is_the_same_as_absent():
    slices = [{"properties": dict.fromkeys(GivenProperties.__struct_fields__) | one_slice()["properties"]}]
    assert parse_task({**dict.fromkeys(TASK_KEYS), "name": a_task()["name"], "slices": slices}) == parse_task(a_task())


def test_every_optional_field_is_one_of_the_request():
    assert _NOT_DECLARED.keys() < TASK_KEYS


def test_a_command_and_a_function_may_take_an_hour_unless_the_request_says_otherwise():
    command, function = parse_task(a_task()), parse_task(a_function(name="f"))
    assert command.slices[0].properties.execution_timeout_s == 3_600
    assert function.slices[0].properties.execution_timeout_s == 3_600


def test_limits_and_defaults_can_be_others():
    others = Limits(lease_min_s=60, lease_default_s=90)
    assert parse_task(a_task(), others).lease_s == 90
    assert [(p.path, p.code) for p in problems_of(a_task(lease_s=59), limits=others)] == [("lease_s", "range")]


REFUSED = [
    {},
    None,
    [],
    a_task(name=""),
    a_task(name="\0"),
    a_task(name="\ud800"),
    a_task(name="x" * 1025),
    {"slices": [one_slice()]},
    a_task(nmae="x"),
    {**a_task(), 1: 2},
    {**a_task(), "\ud800": 2},
    a_task(priority=True),
    a_task(priority=1.0),
    a_task(priority="1"),
    a_task(priority=256),
    a_task(priority=-1),
    a_task(priority=1 << 300),
    a_task(detached=1),
    a_task(tags=["a"]),
    a_task(tags=["a:b\0"]),
    a_task(tags=["a:" + "b" * 320]),
    a_task(user="\udfff"),
    a_task(soft_timeout_s=3_600),
    a_task(inputs=[constant()]),
    a_task(outputs=[{"type": "int"}]),
    a_task(service_account="x"),
    a_task(parent="5cee4880088100"),
    a_task(secret_bytes="?"),
    a_task(stdin="?"),
    a_task(external_id="a.b"),
    a_task(routing="a b"),
    a_task(metadata={"": "a"}),
    a_task(slices=[]),
    a_task(slices=[one_slice()] * 2),
    a_task(slices=[one_slice(command=[str(i)]) for i in range(9)]),
    a_task(slices=[one_slice(), one_slice(dimensions={"pool": ["other"]})]),
    a_task(slices=[{**one_slice(), "expiration_s": 0}]),
    a_task(slices=[MappingProxyType(one_slice())]),
    a_task(slices=[UserDict(one_slice())]),
    a_task(slices=[{"properties": MappingProxyType(one_slice()["properties"])}]),
    MappingProxyType(a_task()),
    with_properties(command=[]),
    with_properties(command=[""]),
    with_properties(command=["a", "b\0"]),
    with_properties(command=["a", 1]),
    with_properties(command=["a", b"b"]),
    with_properties(command=["a"] * 32_769),
    with_properties(command="a"),
    with_properties(env={"1": "a"}),
    with_properties(env={"": "a"}),
    with_properties(env={"\u00e4": "a"}),
    with_properties(env={"A": "\ud800"}),
    with_properties(env={"A": "x" * 1025}),
    with_properties(env={"A" * 65: ""}),
    with_properties(env={f"A{i}": "" for i in range(65)}),
    with_properties(caches=[{"name": "A", "path": "a"}]),
    with_properties(caches=[{"name": "a\n", "path": "a"}]),
    with_properties(caches=[{"name": "a", "path": ""}]),
    with_properties(caches=[{"name": "a", "path": "../a"}]),
    with_properties(caches=[{"name": "a", "path": "a/../b"}]),
    with_properties(caches=[{"name": "a", "path": "/a"}]),
    with_properties(caches=[{"name": "a", "path": "."}]),
    with_properties(caches=[{"name": "a", "path": "a"}, {"name": "b", "path": "a/b"}]),
    with_properties(caches=[{"name": "a"}]),
    with_properties(caches=[{"name": "a", "path": "a", "more": 1}]),
    with_properties(caches=[{"name": "a", "path": "a"}, {"name": "a", "path": "b"}]),
    with_properties(caches=[{"name": "a", "path": "a"}, {"name": "b", "path": "a"}]),
    with_properties(relative_cwd=".."),
    with_properties(relative_cwd="c:a"),
    with_properties(grace_period_s=3_601),
    with_properties(execution_timeout_s=0),
    with_properties(idempotent=None, outputs=["/a"]),
    with_properties(inputs={"digest": "a", "size": 1}),
    with_properties(env_prefixes={"PATH": [".."]}),
    with_properties(dimensions={}),
    with_properties(dimensions={"os": ["Linux"]}),
    with_properties(dimensions={"pool": ["a", "b"]}),
    with_properties(dimensions={"pool": ["a|b"]}),
    with_properties(dimensions={"pool": {"a"}}),
    with_properties(dimensions={"pool": [" a"]}),
    with_properties(dimensions={"pool": ["a\n"]}),
    with_properties(dimensions={"pool": ["a"], "1": ["a"]}),
    with_properties(dimensions={"pool": ["a"], 1: ["a"]}),
    with_properties(dimensions={"pool": ["a"], None: ["a"]}),
    with_properties(dimensions={"pool": [1]}),
    a_function(slices=[one_slice()]),
    a_function([constant(inline="x" * 4000)]),
    a_function(["int"]),
    a_function(function={"package_name": "a"}),
    a_function(function=1, name="a"),
]


@pytest.mark.parametrize("raw", REFUSED, ids=str)
def test_what_is_wrong_is_refused(raw):
    with pytest.raises(InvalidRequest):
        parse_task(raw)


STRANGE = [
    OrderedDict(a_task()),
    a_task(slices=(one_slice(),)),
    a_task(priority=None, tags=None),
    with_properties(command=("a", Text("b")), env={Text("A"): Text("b")}),
    with_properties(command=[Word.A], caches=[{"name": Word.A, "path": Text("a")}]),
    with_properties(relative_cwd="a\n"),
    with_properties(relative_cwd="a b", caches=[{"name": "a", "path": "\u00e4"}]),
    with_dimensions(os=(Text("Linux"),), cpu=[Word.A]),
]


@pytest.mark.parametrize("raw", STRANGE, ids=str)
def test_what_is_right_but_strange_is_read(raw):
    assert parse_task(raw).slices


@pytest.mark.parametrize("secret", [None, b"hidden"])
@pytest.mark.parametrize("stdin", [None, b"typed"])
@pytest.mark.parametrize("function", [None, Function(package_name="a", func_name="b")])
@pytest.mark.parametrize("digests", [(), [], ["int64 0"]])
def test_the_row_of_properties_is_their_json_and_their_hash(secret, stdin, function, digests):
    one = parse_task(COMMAND).slices[0].properties
    more = {"secret_hmac": secret, "stdin_hmac": stdin, "function": function, "input_digests": digests}
    whole = [one, None if secret is None else secret.hex(), function, digests]
    whole += [] if stdin is None else [stdin.hex()]
    digest = sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()
    assert properties_row(one, **more) == (properties_json(one), digest)
    assert properties_hash(one, **more) == digest
