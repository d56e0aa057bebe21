"""Every type of values goes from Python through C++ and Rust and back, in both orders, and stays what it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myrmidon import Int8, Int16, Int32, Int64
from myrmidon.functions import msgpack, values
from myrmidon.functions.native_errors import NativeTypeError
from myrmidon.functions.native_library import NativeLibrary
from myrmidon.functions.native_signature import mismatch
from myrmidon.functions.signature import signature_of
from myrmidon.functions.types import kind_of
from tests.native import building
from tests.native.shapes import Color, Link, Pair, Point, Record, Rights, Tree


class Case(NamedTuple):
    name: str
    annotation: Any
    values: st.SearchStrategy[Any]


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


text = st.text(st.characters(exclude_categories=["Cs"]))
around = [2**n + d for n in (7, 8, 15, 16, 31, 32) for d in (-1, 0, 1)]
edges = st.sampled_from([*around, *(-one for one in around), -32, -33, 2**63 - 1, -(2**63)])
sizes = st.sampled_from([0, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
colors, rights = st.sampled_from(Color), st.sampled_from([Rights(n) for n in range(4)])
points = st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False), st.none() | text)
pairs = st.builds(Pair, ints(64), text)
moments = st.datetimes(timezones=st.none() | st.just(dt.UTC)).map(lambda one: one.replace(fold=0))  # not in the text
trees = st.recursive(
    st.builds(Tree, ints(64), st.just([]), st.dictionaries(text, colors, max_size=2)),
    lambda below: st.builds(Tree, ints(64), st.lists(below, max_size=3), st.just({})),
    max_leaves=8,
)
records = st.builds(Record, text, st.lists(points, max_size=3), pairs, moments, rights, st.binary())


def link(numbers: Sequence[int]) -> Link:
    made = Link(0)
    for number in numbers:
        made = Link(number, made)
    return made


CASES = [
    Case("int8", Int8, ints(8).map(Int8)),
    Case("int16", Int16, ints(16).map(Int16)),
    Case("int32", Int32, ints(32).map(Int32)),
    Case("int64", Int64, ints(64).map(Int64)),
    Case("integer", int, ints(64) | edges),
    Case("real", float, st.floats() | st.integers(-(2**53), 2**53).map(float)),
    Case("boolean", bool, st.booleans()),
    Case("binary", bytes, st.binary() | sizes.map(bytes)),
    Case("text", str, text | sizes.map(lambda size: "x" * size)),
    Case("integers", list[int], st.lists(ints(64) | edges) | sizes.map(lambda size: [1] * size)),
    Case("small_integers", list[Int8], st.lists(ints(8).map(Int8))),
    Case("reals", list[float], st.lists(st.floats())),
    Case("booleans", list[bool], st.lists(st.booleans())),
    Case("texts", tuple[str, ...], st.lists(text).map(tuple)),
    Case("binaries", list[bytes], st.lists(st.binary())),
    Case("deep", list[list[float | None]], st.lists(st.lists(st.none() | st.floats(allow_nan=False)))),
    Case("counts", dict[str, int], st.dictionaries(text, ints(64))),
    Case("by_number", dict[int, list[str]], st.dictionaries(ints(64), st.lists(text, max_size=3), max_size=20)),
    Case("by_small_number", dict[Int16, float], st.dictionaries(ints(16).map(Int16), st.floats(allow_nan=False))),
    Case("by_binary", dict[bytes, bool], st.dictionaries(st.binary(), st.booleans())),
    Case("maybe_integer", int | None, st.none() | ints(64)),
    Case("maybe_texts", list[str] | None, st.none() | st.lists(text)),
    Case("pairs", list[tuple[int, str]], st.lists(st.tuples(ints(64), text))),
    Case("both", tuple[int, str], st.tuples(ints(64), text)),
    Case("one", tuple[float], st.tuples(st.floats(allow_nan=False))),
    Case(
        "three",
        tuple[Color, dict[str, bool], tuple[float, bool]],
        st.tuples(colors, st.dictionaries(text, st.booleans()), st.tuples(st.floats(allow_nan=False), st.booleans())),
    ),
    Case("color", Color, colors),
    Case("rights", Rights, rights),
    Case("point", Point, points),
    Case("tree", Tree, trees),
    Case("link", Link, st.lists(ints(64), max_size=20).map(link)),
    Case("pair", Pair, pairs),
    Case("record", Record, records),
    Case("moment", dt.datetime, moments),
    Case("array", np.ndarray, st.sampled_from(["<f8", "<i4", "|b1", "<c16"]).map(lambda kind: np.ones((3, 2), kind))),
]


@pytest.fixture(scope="module")
def libraries() -> tuple[NativeLibrary, NativeLibrary]:
    cpp = building.cpp(building.SOURCES / "types.cpp", "-O0")
    rust = building.rust(building.SOURCES / "types_rust.rs")
    return NativeLibrary(str(cpp)), NativeLibrary(str(rust))


def through(library: NativeLibrary, case: Case, data: bytes) -> bytes:
    """The encoded value that an echo function returns; the outputs of a tuple as one value again."""
    outputs = library.function(f"echo_{case.name}").call([data])
    is_tuple = kind_of(case.annotation).name == "tuple"
    return msgpack.pack_packed(outputs) if is_tuple else outputs[0]


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@given(data=st.data())
def test_a_value_is_the_same_after_python_cpp_rust_python_and_back(libraries, case: Case, data):
    cpp, rust = libraries
    value = data.draw(case.values)
    sent = values.encode(value, case.annotation)
    for first, second in ((cpp, rust), (rust, cpp)):
        between = through(first, case, sent)
        received = values.decode(through(second, case, between), case.annotation)
        if case.annotation is np.ndarray:
            assert received.dtype == value.dtype
            assert np.array_equal(received, value)
        else:
            assert repr(normal(received)) == repr(normal(value))  # repr: NaN is not equal to itself, -0.0 is to 0.0


def normal(value: Any) -> Any:
    """The value with maps in one order: that of C++ and Rust is another one."""
    if type(value) is dict:
        return {key: normal(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, Tree):
        return Tree(value.value, [normal(one) for one in value.children], normal(value.colors))
    if type(value) is list:
        return [normal(one) for one in value]
    return tuple(normal(one) for one in value) if type(value) is tuple else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_compilers_derive_the_signature_that_python_has(libraries, case: Case):
    def echo(value): ...

    echo.__annotations__ = {"value": case.annotation, "return": case.annotation}
    wanted = signature_of(echo)
    for library in libraries:
        function = library.function(f"echo_{case.name}")
        assert mismatch(library.name, function.name, function.signature, wanted.text, wanted.output_types) == ""


@pytest.mark.parametrize("library", [0, 1], ids=["cpp", "rust"])
def test_an_integer_may_be_passed_for_a_double_and_arrays_have_typed_items(libraries, library: int):
    def call(name: str, value: Any) -> Any:
        return msgpack.unpack(libraries[library].function(name).call([msgpack.pack(value)])[0])

    assert call("echo_real", 3) == 3.0
    assert call("echo_real", 2**64 - 1) == float(2**64 - 1)
    assert call("length", "né") == 3.0
    doubled = libraries[library].function("doubled").call([values.encode(np.ones((2, 2)), np.ndarray)])[0]
    assert np.array_equal(values.decode(doubled, np.ndarray), 2 * np.ones((2, 2)))


def test_two_cpp_libraries_in_one_process_keep_their_functions_apart(libraries):
    sums = NativeLibrary(str(building.cpp(building.SOURCES / "sums.cpp")))
    assert list(sums.functions) == ["add"]
    assert "add" not in libraries[0].functions


@pytest.mark.full
@pytest.mark.parametrize("library", [0, 1], ids=["cpp", "rust"])
@settings(max_examples=300)
@given(data=st.data())
def test_any_bytes_are_a_value_or_a_type_error(libraries, library: int, data):
    case = data.draw(st.sampled_from(CASES))
    sent = bytearray(values.encode(data.draw(case.values), case.annotation))
    for _ in range(data.draw(st.integers(0, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    given = bytes(sent[: data.draw(st.integers(0, len(sent)))]) if data.draw(st.booleans()) else bytes(sent)
    try:
        returned = through(libraries[library], case, given)
    except NativeTypeError as error:
        assert "argument value" in str(error) or "follow the value" in str(error)  # noqa: PT017 - either is right
    else:
        msgpack.unpack(returned, lambda code, content: None)


@pytest.mark.parametrize("library", [0, 1], ids=["cpp", "rust"])
def test_a_value_that_is_nested_too_deeply_does_not_overflow_the_stack(libraries, library: int):
    depth = 100_000
    links = (b"\x82\xa5value\x01\xa4next" * depth) + b"\xc0"
    with pytest.raises(NativeTypeError, match="nested too deeply"):
        libraries[library].function("echo_link").call([links])
    with pytest.raises(NativeTypeError, match="ends too early"):
        libraries[library].function("echo_integers").call([b"\xdd\xff\xff\xff\xff"])
