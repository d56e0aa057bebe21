"""Values by their annotations: round trips, checks, and where a wrong value is."""

from __future__ import annotations

import datetime as dt
import math
from fractions import Fraction
from typing import Any, Optional

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from myrmidon.functions.types import Int8, Int16, Int32, Int64, TypeProblem
from myrmidon.functions.values import decode, decode_gathered, encode, encode_gathered
from tests.functions.samples import Color, HasInitVar, HasPath, Level, Outer, Pair, Point, Record, Rights, Tree

OFFSETS = st.integers(-86399, 86399).map(lambda n: dt.timezone(dt.timedelta(seconds=n)))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False)
POINTS = st.builds(Point, FLOATS, FLOATS, st.none() | st.text())
PAIRS = st.builds(Pair, INT64, st.text())
COLORS = st.sampled_from(Color)
TREES = st.recursive(
    st.builds(Tree, INT64),
    lambda inner: st.builds(Tree, INT64, st.lists(inner, max_size=3), st.dictionaries(st.text(), COLORS, max_size=3)),
    max_leaves=6,
)
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INT64),
    (float, FLOATS),
    (str, st.text()),
    (bytes, st.binary()),
    (bool, st.booleans()),
    *((cls, st.integers(-(1 << (cls.bits - 1)), (1 << (cls.bits - 1)) - 1).map(cls)) for cls in (Int8, Int16, Int32)),
    (Int64, INT64.map(Int64)),
    (dt.datetime, st.datetimes(timezones=st.none() | OFFSETS)),
    (Color, COLORS),
    (Level, st.sampled_from(Level)),
    (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE, Rights(0)])),
    (Point, POINTS),
    (Tree, TREES),
    (Pair, PAIRS),
    (Record, st.builds(Record, st.text(), st.lists(PAIRS, max_size=3).map(tuple))),
    (Outer.Inner, st.builds(Outer.Inner, st.binary())),
]
KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [(int, INT64), (str, st.text()), (bytes, st.binary())]


def containers(inner):
    """Annotations of a list, a tuple, a dict or an optional of other annotations, each with its values."""
    a_list: Any = list
    a_tuple: Any = tuple
    a_dict: Any = dict
    an_optional: Any = Optional
    return st.one_of(
        inner.map(lambda of: (a_list[of[0]], st.lists(of[1], max_size=4))),
        inner.map(lambda of: (a_tuple[of[0], ...], st.lists(of[1], max_size=4).map(tuple))),
        inner.map(lambda of: (an_optional[of[0]], st.none() | of[1])),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda of: (a_dict[of[0][0], of[1][0]], st.dictionaries(of[0][1], of[1][1], max_size=4))
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda of: (a_tuple[tuple(one[0] for one in of)], st.tuples(*(one[1] for one in of)))
        ),
    )


TYPED = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=5).flatmap(
    lambda of: st.tuples(st.just(of[0]), of[1])
)


@given(TYPED)
def test_every_type_makes_the_round_trip(typed):
    annotation, value = typed
    data = encode(value, annotation)
    back = decode(data, annotation)
    assert back == value
    assert type(back) is type(value)
    assert msgspec.msgpack.decode(data, strict=False) is not None or value is None


@given(st.data())
def test_a_gathered_value_is_the_one_whose_parts_were_encoded_alone(data):
    annotation = dict[str, tuple[list[int], Point | None]]
    points = st.none() | POINTS
    value = data.draw(
        st.dictionaries(st.text(), st.tuples(st.lists(INT64, max_size=3), points), max_size=3), label="value"
    )
    chosen = st.booleans()
    parts: list[bytes] = []

    def place(one: Any, of: Any) -> int | None:
        if type(one) is dict or one is None or not data.draw(chosen):
            return None
        parts.append(encode(one, of))
        return len(parts) - 1

    shape = encode_gathered(value, annotation, place)
    assert decode_gathered(shape, parts, annotation) == value


def test_without_a_shape_the_parts_are_the_items():
    assert decode_gathered(None, [encode(n, int) for n in (3, 4)], list[int]) == [3, 4]
    assert decode_gathered(None, [], tuple[int, ...]) == ()


def test_a_problem_of_a_part_says_where_it_would_be():
    def place(one: Any, of: Any) -> int | None:
        if one == "here":
            raise TypeProblem("refused")
        return None

    with pytest.raises(TypeProblem) as caught:
        encode_gathered({"k": [1, "here"]}, dict[str, list[int]], place)
    assert caught.value.path == "['k'][1]"
    assert str(caught.value.inside("parts")) == "parts['k'][1]: refused"


@pytest.mark.parametrize("shape", [b"\xd6\x01\x00\x00\x00\x05", b"\xd6\x02\x00\x00\x00\x00", b"\xd4\x01\x00"])
def test_a_shape_with_unknown_parts_is_damaged(shape):
    with pytest.raises(TypeProblem, match="damaged"):
        decode_gathered(shape, [encode(1, int)], int)


@pytest.mark.parametrize(
    ("value", "annotation", "path", "reason"),
    [
        ("a", int, "", "expected int, given str ('a')"),
        (True, int, "", "expected int, given bool (True)"),
        (1.0, int, "", "expected int, given float (1.0)"),
        (
            1 << 63,
            int,
            "",
            "9223372036854775807), given int (9223372036854775808)",
        ),
        (1 << 20_000, int, "", "given an integer of 20001 bits"),
        (128, Int8, "", "given int (128)"),
        (True, float, "", "expected float, given bool"),
        (Fraction(1, 2), float, "", "expected float, given fractions.Fraction"),
        (1 << 2000, float, "", "expected float, given an integer of 2001 bits"),
        (b"a", str, "", "expected str, given bytes"),
        (None, str, "", "expected str, given None"),
        ("\ud800", str, "", "not Unicode"),
        ((1,), list[int], "", "expected list[int], given tuple"),
        ([1], tuple[int, ...], "", "expected tuple[int, ...], given list"),
        ([1, "b"], list[int], "[1]", "expected int"),
        ([1, 1 << 63], list[int], "[1]", "expected int64"),
        ([None, 1 << 63], list[int | None], "[1]", "expected int64"),
        ((1, 2, 3), tuple[int, int], "", "given 3 items"),
        ((1, "x"), tuple[int, int], "[1]", "expected int"),
        ({"a": 1, 2: 2}, dict[str, int], "[2]", "expected str"),
        ({"a": "b"}, dict[str, int], "['a']", "expected int"),
        ([Point(1.0, "y")], list[Point], "[0].y", "expected float"),  # type: ignore[arg-type]
        (Tree(1, [Tree("x")]), Tree, ".children[0].value", "expected int"),  # type: ignore[arg-type]
        ({"x": 1.0}, Point, "", "expected tests.functions.samples.Point, given dict"),
        ("RED", Color, "", "expected tests.functions.samples.Color"),
        (Level.LOW, Color, "", "expected tests.functions.samples.Color"),
        ("2020-01-01", dt.datetime, "", "expected datetime.datetime"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, int) or value < 1 << 70 else "huge",
)
def test_a_wrong_value_is_refused_and_named(value, annotation, path, reason):
    with pytest.raises(TypeProblem) as caught:
        encode(value, annotation)
    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("data", "annotation", "reason"),
    [
        (encode("a", str), int, "expected int"),
        (encode(1 << 40, int), Int32, "expected int32"),
        (encode([1], list[int]), tuple[int, int], "given 1 items"),
        (encode({"a": 1}, dict[str, int]), Point, "no field 'a'"),
        (encode({}, dict[str, int]), Point, "cannot make a"),
        (encode("PINK", str), Color, "expected tests.functions.samples.Color"),
        (encode("READ", str), Rights, "expected tests.functions.samples.Rights"),
        (encode("yesterday", str), dt.datetime, "expected datetime.datetime"),
        (encode(1, int), list[int], r"expected list\[int\]"),
        (b"\xc1", int, "damaged"),
        (b"", int, "damaged"),
    ],
)
def test_a_stored_value_of_another_type_is_refused(data, annotation, reason):
    with pytest.raises(TypeProblem, match=reason):
        decode(data, annotation)


def test_an_object_that_contains_itself_is_refused():
    tree = Tree(1)
    tree.children.append(tree)
    with pytest.raises(TypeProblem, match="contains itself"):
        encode(tree, Tree)


@pytest.mark.parametrize("annotation", [HasPath, HasInitVar, list[HasPath]])
def test_a_class_with_a_field_that_is_not_a_value_is_refused_every_time(annotation):
    for _ in range(2):
        with pytest.raises(TypeProblem, match=r"HasPath\.where|InitVar"):
            encode(None, annotation)


def test_an_integer_is_a_float_where_one_is_expected():
    assert decode(encode(3, int), float) == 3.0
    assert type(decode(encode([3, 1.5], list[float]), list[float])[0]) is float
    assert decode(encode({"a": [1]}, dict[str, list[int]]), dict[str, list[float]]) == {"a": [1.0]}


def test_values_that_are_not_numbers_are_kept():
    assert math.isnan(decode(encode(math.nan, float), float))
    assert decode(encode([-0.0, math.inf], list[float]), list[float]) == [0.0, math.inf]


def test_subclasses_of_plain_classes_become_plain():
    class Text(str):
        __slots__ = ()

    assert type(decode(encode(Text("a"), str), str)) is str
    assert decode(encode(Level.HIGH, int), int) == 2
    assert encode([Text("a")], list[str]) == encode(["a"], list[str])


def test_fields_that_the_constructor_does_not_take_are_kept():
    point = Point(1.0)
    point.size = 7.0
    assert decode(encode(point, Point), Point).size == 7.0


def test_fields_that_are_missing_get_their_defaults():
    """A value that was stored before the class got the field."""
    assert decode(encode({"x": 1.0}, dict[str, float]), Point) == Point(1.0)


@given(
    of_numpy.arrays(
        st.one_of(
            of_numpy.integer_dtypes(endianness="?"),
            of_numpy.floating_dtypes(endianness="?"),
            of_numpy.boolean_dtypes(),
            of_numpy.complex_number_dtypes(),
            of_numpy.datetime64_dtypes(endianness="<"),
            of_numpy.unicode_string_dtypes(endianness="<"),
        ),
        of_numpy.array_shapes(min_dims=0, min_side=0),
    )
)
def test_arrays_of_numpy_make_the_round_trip(array):
    back = decode(encode(array, np.ndarray), np.ndarray)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    assert back.flags.writeable


def test_arrays_in_another_order_are_equal_after_the_round_trip():
    array = np.arange(12.0).reshape(3, 4).T[::2]
    assert (decode(encode(array, npt.NDArray[np.float64]), npt.NDArray[np.float64]) == array).all()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]), np.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), [1.0],
        np.ma.masked_array([1, 2], [True, False]), np.arange(3),
    ],
    ids=["objects", "records", "a list", "masked", "integers"],
)  # fmt: skip
def test_arrays_that_cannot_be_stored_as_a_buffer_or_have_another_dtype_are_refused(value):
    with pytest.raises(TypeProblem):
        encode(value, npt.NDArray[np.float64])


def test_an_array_with_objects_is_never_read():
    stored = msgspec.msgpack.encode({"dtype": "|O", "shape": [1], "data": b"\0" * 8})
    with pytest.raises(TypeProblem):
        decode(stored, np.ndarray)


def test_scalars_of_numpy_are_numbers():
    assert decode(encode(np.int32(5), int), int) == 5
    assert decode(encode(np.float32(0.5), float), float) == 0.5
    assert decode(encode([np.float64(0.5), 1.0], list[float]), list[float]) == [0.5, 1.0]
    assert decode(encode(np.bool_(True), bool), bool) is True
    with pytest.raises(TypeProblem):
        encode(np.array([5]), int)
