"""The quick way of reading a task: it is taken by ordinary requests, and never differs from the thorough way."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, UserDict
from enum import IntEnum, StrEnum
from hashlib import sha256
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.task_parsing import _plain_task, _PlainProperties, _PlainSlice, _PlainTask, parse_task
from myrmidon.model.task_request import (
    Function,
    Properties,
    Slice,
    TaskRequest,
    encode_task,
    properties_hash,
    properties_json,
    properties_row,
)
from myrmidon.model.task_validation import _TASK_KEYS, checked_task
from myrmidon.model.validation import _STEP, DEFAULT_LIMITS, Checker, Limits, is_clean, is_relative, is_usual_path
from tests.model.requests import (
    DIGEST,
    a_function,
    a_task,
    constant,
    one_slice,
    output_of,
    problems_of,
    with_dimensions,
    with_properties,
)
from tests.model.test_fuzz import COMMAND, FUNCTION, mutated, trees

LIMITS = DEFAULT_LIMITS


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Number(IntEnum):
    SEVEN = 7


class Word(StrEnum):
    NAME = "name"
    A = "a"


def quick(raw: object, label: str = "") -> TaskRequest | None:
    return _plain_task(raw, DEFAULT_LIMITS, label)


def thorough(raw: object, label: str = "") -> TaskRequest:
    check = Checker(DEFAULT_LIMITS)
    request = checked_task(check, raw, (), label)
    check.finish()
    return request


def check_agreement(raw: object, label: str = "") -> None:
    """What is taken the quick way is also taken the thorough way, and is the same to the last byte."""
    before = repr(raw)
    found = quick(raw, label)
    assert repr(raw) == before
    if found is None:
        return
    same = thorough(raw, label)
    assert found == same
    assert msgspec.json.encode(found, enc_hook=str) == msgspec.json.encode(same, enc_hook=str)
    assert found.secret_bytes == same.secret_bytes


# -- ordinary requests take it ------------------------------------------------------------------------------

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
        external_id="x-1",
        routing="a.b",
        metadata={"a": "b"},
    ),
    "null for nothing": a_task(parent=None, soft_timeout_s=None, function=None, metadata=None, inputs=None),
    "a function": FUNCTION,
    "a function of another task's output": a_function([output_of("a")], name="f"),
    "everything": COMMAND,
}


@pytest.mark.parametrize("raw", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_requests_are_read_the_quick_way(raw):
    raw = json.loads(json.dumps(raw))
    assert quick(raw) == thorough(raw)


@pytest.mark.parametrize("raw", ORDINARY.values(), ids=ORDINARY)
def test_what_is_read_shares_no_list_and_no_object_with_what_was_given(raw):
    raw = copy.deepcopy(raw)
    found = quick(raw)
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


def test_a_request_that_was_read_and_written_is_read_the_quick_way_again():
    task = parse_task(COMMAND)
    assert quick(encode_task(task, secret=True)) == task
    assert quick(json.loads(msgspec.json.encode(encode_task(task, secret=True)))) == task


@pytest.mark.parametrize("raw", [{"slices": [one_slice()]}, a_function(), a_task(name=None)])
def test_a_task_of_a_graph_is_named_by_its_label(raw):
    found = quick(raw, "here")
    assert found is not None
    assert found == thorough(raw, "here")
    assert found.name == "here"


def test_the_name_of_the_deployment_is_no_limit_of_a_task():
    elsewhere = Limits(deployment="elsewhere")
    assert _plain_task(a_task(), elsewhere) == parse_task(a_task(), elsewhere) == thorough(a_task())


def test_other_limits_are_left_to_the_thorough_way():
    strict = Limits(priority_max=10, priority_default=3)
    assert _plain_task(a_task(), strict) is None
    assert parse_task(a_task(), strict).priority == 3
    assert [p.path for p in problems_of(a_task(priority=11), limits=strict)] == ["priority"]


def test_the_quick_structs_have_every_field_and_the_same_defaults():
    smallest, function = thorough(a_task()), thorough(a_function())
    for plain, full in ((_PlainTask, TaskRequest), (_PlainSlice, Slice), (_PlainProperties, Properties)):
        assert set(plain.__struct_fields__) == set(full.__struct_fields__)
    assert set(_PlainTask.__struct_fields__) == _TASK_KEYS
    assert quick(a_task()) == smallest
    assert quick(a_function()) == function
    assert smallest.slices[0].properties.execution_timeout_s == LIMITS.execution_timeout_default_s
    assert function.slices[0].properties.execution_timeout_s == LIMITS.function_timeout_default_s


# -- what is doubtful does not ------------------------------------------------------------------------------

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
    a_task(priority=Number.SEVEN),
    a_task(priority=Whole(7)),
    a_task(detached=1),
    a_task(tags=["a"]),
    a_task(tags=["a:b\0"]),
    a_task(tags=["a:" + "b" * 320]),
    a_task(tags={"a:b"}),
    a_task(user="\udfff"),
    a_task(soft_timeout_s=3_600),
    a_task(inputs=[constant()]),
    a_task(outputs=[{"type": "int"}]),
    a_task(service_account="x"),
    a_task(parent="5cee4880088100"),
    a_task(secret_bytes="?"),
    a_task(external_id="a.b"),
    a_task(routing="a b"),
    a_task(metadata={"": "a"}),
    a_task(slices=[]),
    a_task(slices=[one_slice()] * 2),
    a_task(slices=[one_slice(command=[str(i)]) for i in range(9)]),
    a_task(slices=[one_slice(), one_slice(dimensions={"pool": ["other"]})]),
    a_task(slices=[{**one_slice(), "expiration_s": Whole(5)}]),
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
    with_properties(command={"a"}),
    with_properties(command=["a"] * 129),
    with_properties(command="a"),
    with_properties(env={"1": "a"}),
    with_properties(env={"": "a"}),
    with_properties(env={"\u00e4": "a"}),
    with_properties(env={"A": "\ud800"}),
    with_properties(env={"A": "x" * 1025}),
    with_properties(env={"A" * 65: ""}),
    with_properties(env={f"A{i}": "" for i in range(65)}),
    with_properties(env=MappingProxyType({"A": "a"})),
    with_properties(caches=[{"name": "A", "path": "a"}]),
    with_properties(caches=[{"name": "a\n", "path": "a"}]),
    with_properties(caches=[{"name": "a", "path": ""}]),
    with_properties(caches=[{"name": "a", "path": "../a"}]),
    with_properties(caches=[{"name": "a", "path": "a/../b"}]),
    with_properties(caches=[{"name": "a", "path": "/a"}]),
    with_properties(caches=[{"name": "a"}]),
    with_properties(caches=[{"name": "a", "path": "a", "more": 1}]),
    with_properties(caches=[{"name": "a", "path": "a"}, {"name": "a", "path": "b"}]),
    with_properties(caches=[{"name": "a", "path": "a"}, {"name": "b", "path": "a"}]),
    with_properties(caches=[MappingProxyType({"name": "a", "path": "a"})]),
    with_properties(relative_cwd=".."),
    with_properties(relative_cwd="c:a"),
    with_properties(io_timeout_s=Whole(5)),
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
def test_what_the_thorough_way_refuses_the_quick_way_does_not_take(raw):
    with pytest.raises(InvalidRequest):
        thorough(raw)
    assert quick(raw) is None


STRANGE = [
    OrderedDict(a_task()),
    a_task(name=Text("a"), tags=[Text("a:b")]),
    {Text("name"): "a", "slices": [one_slice()]},
    {Word.NAME: Word.A, "slices": [one_slice()]},
    a_task(slices=(one_slice(),)),
    a_task(priority=None, tags=None),
    with_properties(command=("a", Text("b")), env={Text("A"): Text("b")}),
    with_properties(command=[Word.A], caches=[{"name": Word.A, "path": Text("a")}]),
    with_properties(relative_cwd="a\n"),
    with_properties(relative_cwd="a b", caches=[{"name": "a", "path": "\u00e4"}]),
    with_dimensions(os=(Text("Linux"),), cpu=[Word.A]),
]


@pytest.mark.parametrize("raw", STRANGE, ids=str)
def test_what_is_right_but_strange_is_read_the_same_by_both(raw):
    assert parse_task(raw) == thorough(raw)
    check_agreement(raw)


# -- and neither does anything else -------------------------------------------------------------------------


def near(least: int, most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([least, most]), st.integers(least, most))


def several(item: st.SearchStrategy, *, least: int = 0, most: int = 3) -> st.SearchStrategy[list]:
    return st.lists(item, min_size=least, max_size=most)


words = st.text(st.sampled_from("ab:|._- /\n\u00e4\U0001f41c"), min_size=1, max_size=5)
keys = st.sampled_from(["A", "_1", "PATH", "b"])
paths = st.sampled_from(["a", "a/b", ".git", "a.b/c-d", ".", "..a", "a b", "\u00e4", "a\n", "a+b"])
caches = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["c", "b", "a_1", "9"]), "path": paths}),
    max_size=3,
    unique_by=(lambda c: c["name"], lambda c: c["path"]),
)
values = st.lists(st.sampled_from(["Linux", "Debian|Arch", "x y", "\u00e4"]), min_size=1, max_size=3, unique=True)
properties: dict[str, st.SearchStrategy] = {
    "relative_cwd": st.one_of(st.just(""), paths),
    "env": st.dictionaries(keys, st.one_of(st.just(""), words), max_size=3),
    "env_prefixes": st.dictionaries(keys, several(paths), max_size=2),
    "caches": caches,
    "inputs": st.sampled_from([None, {"digest": DIGEST, "size": 1}]),
    "outputs": several(paths),
    "execution_timeout_s": near(100, 604_800),
    "io_timeout_s": near(0, 604_800),
    "grace_period_s": near(0, 3_600),
    "idempotent": st.booleans(),
}
dimensions = st.fixed_dictionaries(
    {"pool": st.just(["ci"])}, optional={"os": values, "a.b-c": values, "id": st.just(["bot"])}
)
task: dict[str, st.SearchStrategy] = {
    "priority": near(0, 255),
    "tags": several(words.map("k:{}".format)),
    "user": words,
    "service_account": st.sampled_from(["", "none", "bot", "a@b"]),
    "parent": st.just("5cee4880088101"),
    "detached": st.booleans(),
    "retries": near(0, 100),
    "reruns": near(0, 100),
    "max_instances": near(1, 16),
    "soft_timeout_s": near(1, 99),
    "lease_s": near(30, 3_600),
    "deadline_s": near(1, 2_592_000),
    "secret_bytes": st.sampled_from(["AQ==", "AR==", "", b"a"]),
    "evaluate_only": st.booleans(),
    "external_id": st.just("a-b"),
    "routing": st.sampled_from(["", "a.b"]),
    "metadata": st.dictionaries(words, words, max_size=2),
}
functions: dict[str, st.SearchStrategy] = {
    "function": st.sampled_from([{"package_name": "a", "func_name": "b"}]),
    "inputs": st.sampled_from([None, [], [constant()], [output_of("a")]]),
    "outputs": st.sampled_from([None, [], [{"type": "int"}], [{"type": "int", "shared": True}]]),
}


def slices(**required: st.SearchStrategy) -> st.SearchStrategy[list]:
    wanted = st.fixed_dictionaries({"dimensions": dimensions, **required}, optional=properties)
    one = st.fixed_dictionaries(
        {"properties": wanted}, optional={"expiration_s": near(1, 604_800), "wait_for_capacity": st.booleans()}
    )
    return st.lists(one, min_size=1, max_size=2, unique_by=repr)


commands = st.fixed_dictionaries({"name": words, "slices": slices(command=several(words, least=1))}, optional=task)
calls = st.fixed_dictionaries({**functions, "slices": slices()}, optional={"name": words, **task})
nearly_valid = st.one_of(commands, commands, calls)

SPOILERS: list[object] = [
    *(None, True, 1, 0, -1, 1.0, 1 << 70, b"a", "", " ", "a", "\0", "\ud800", "\n", "a|b", "..", "/a"),
    *((), [], {}, set(), frozenset({"a:b"}), {"a": "b"}, ["a"], [["a"]], Text("a"), Word.A, Whole(40), Number.SEVEN),
]


@st.composite
def spoilt(draw, tree):
    """The tree with one place replaced by something strange, or by what only looks the same."""
    if isinstance(tree, (dict, list)) and tree and draw(st.integers(0, 7)):
        if isinstance(tree, dict):
            key = draw(st.sampled_from(list(tree)))
            if draw(st.integers(0, 19)) == 0:
                return {
                    (
                        draw(st.sampled_from([None, 1, "", "a", "1", "\0", "\ud800", Text("a"), Text(key)]))
                        if k == key
                        else k
                    ): v
                    for k, v in tree.items()
                }
            return {**tree, key: draw(spoilt(tree[key]))}
        at = draw(st.integers(0, len(tree) - 1))
        return [*tree[:at], draw(spoilt(tree[at])), *tree[at + 1 :]]
    alike: list[object] = []
    match tree:
        case dict():
            alike = [MappingProxyType(tree), OrderedDict(tree), UserDict(tree), {Text(k): v for k, v in tree.items()}]
        case list():
            alike = [tuple(tree), [*tree, *tree], iter(tree), *([set(tree)] if all_texts(tree) else [])]
        case bool():
            alike = [int(tree), str(tree)]
        case int():
            alike = [Whole(tree), float(tree), str(tree), -tree, tree * 1000]
        case str():
            alike = [Text(tree), tree + "\0", "\ud800" + tree, tree * 1000, tree + " ", tree.encode(), [tree]]
    return draw(st.sampled_from([*alike, *alike, *SPOILERS]))


def all_texts(values: list) -> bool:
    return all(isinstance(value, str) for value in values)


@given(nearly_valid)
@settings(max_examples=200, deadline=None)
def test_generated_requests_are_read_the_same_by_both(raw):
    check_agreement(raw)


@given(st.one_of(st.sampled_from(list(ORDINARY.values())), nearly_valid).flatmap(spoilt))
@settings(max_examples=500, deadline=None)
def test_generated_and_spoilt_requests_are_read_the_same_by_both(raw):
    check_agreement(raw)


@given(st.one_of(mutated(COMMAND), mutated(FUNCTION), *(mutated(raw) for raw in ORDINARY.values())))
@settings(max_examples=500, deadline=None)
def test_mutated_requests_are_read_the_same_by_both(raw):
    check_agreement(raw)
    check_agreement(raw, "label")


@given(trees)
@settings(max_examples=300, deadline=None)
def test_any_tree_is_read_the_same_by_both(raw):
    check_agreement(raw)


@given(st.one_of(st.text("ab./\\:-+ \n\0", max_size=8), st.text(max_size=8)))
@example("a\n")
@settings(max_examples=1000, deadline=None)
def test_a_usual_path_is_relative_clean_and_not_empty(path):
    assert is_relative(path) == (path == "." or not _STEP.search(path))
    if is_usual_path(path):
        assert path
        assert is_clean(path)
        assert not _STEP.search(path)


@pytest.mark.parametrize("secret", [None, b"hidden"])
@pytest.mark.parametrize("function", [None, Function(package_name="a", func_name="b")])
@pytest.mark.parametrize("digests", [(), [], ["int64 0"]])
def test_the_row_of_properties_is_their_json_and_their_hash(secret, function, digests):
    one = parse_task(COMMAND).slices[0].properties
    more = {"secret_hmac": secret, "function": function, "input_digests": digests}
    whole = [one, None if secret is None else secret.hex(), function, digests]
    digest = sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()
    assert properties_row(one, **more) == (properties_json(one), digest)
    assert properties_hash(one, **more) == digest
