"""Type strings of annotations, and which output fits which input."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, Union

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.functions import types
from myrmidon.functions.types import Int8, Int16, Int32, Int64, TypeProblem, fits, output_types, type_string
from myrmidon.model import type_strings
from tests.functions import samples

UserId = typing.NewType("UserId", int)
HERE = samples.__name__
STRINGS = [
    (int, "int64"), (float, "double"), (str, "string"), (bytes, "bytes"), (bool, "bool"),
    (Int8, "int8"), (Int16, "int16"), (Int32, "int32"), (Int64, "int64"), (UserId, "int64"),
    (Annotated[int, "of something"], "int64"),
    (list[str], "List<string>"), (typing.List[int], "List<int64>"), (tuple[int, ...], "List<int64>"),
    (dict[str, int], "Map<string,int64>"), (dict[int, list[bytes]], "Map<int64,List<bytes>>"),
    (Optional[int], "Optional<int64>"), (int | None, "Optional<int64>"), (Union[None, str], "Optional<string>"),
    (tuple[int, str], "Tuple<int64,string>"), (list[tuple[int]], "List<Tuple<int64>>"),
    (dt.datetime, "datetime.datetime"), (np.ndarray, "numpy.ndarray"), (npt.NDArray[np.float64], "numpy.ndarray"),
    (samples.Color, f"{HERE}.Color"), (samples.Point, f"{HERE}.Point"), (samples.Pair, f"{HERE}.Pair"),
    (samples.Record, f"{HERE}.Record"), (list[samples.Outer.Inner], f"List<{HERE}.Outer.Inner>"),
]  # fmt: skip
REFUSED = [
    (Path, "files are not values"), (list, r"write list\[...\]"), (dict, "types of keys and values"),
    (tuple, "types of its items"), (set[int], "use a dataclass"), (set, r"use list"), (None, "use a dataclass"),
    (type(None), "Optional"), (Any, "name the type"), (object, "name the class"), (complex, "tuple"),
    (Union[int, str], "only Optional"), (int | str | None, "only Optional"), (dict[float, int], "a key is"),
    (dict[tuple[int, int], int], "a key is"), (Sequence[int], "use a dataclass"), (typing.TypeVar("T"), "dataclass"),
    (dt.date, "datetime.datetime"), (bytearray, "use bytes"), (3, "use a dataclass"), ([int], "use a dataclass"),
    (type("Own", (), {}), "use a dataclass"), (tuple[()], "use a dataclass"), (list[Path], "files are not values"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "text"), STRINGS, ids=str)
def test_every_type_has_a_string_that_the_server_takes(annotation, text):
    assert type_string(annotation) == text
    assert type_strings.canonical(text) == text


@pytest.mark.parametrize(("annotation", "hint"), REFUSED, ids=str)
def test_what_is_not_a_type_of_values_is_refused_with_a_hint(annotation, hint):
    with pytest.raises(TypeProblem, match=hint):
        type_string(annotation)


def test_a_class_inside_a_function_is_refused():
    @dataclasses.dataclass
    class Local:
        x: int

    with pytest.raises(TypeProblem, match="top level of its module"):
        type_string(Local)


@pytest.mark.parametrize(
    ("returns", "outputs"),
    [
        (None, []), (type(None), []), (int, [int]), (tuple[int, str], [int, str]), (list[int], [list[int]]),
        (tuple[int, ...], [tuple[int, ...]]), (samples.Pair, [samples.Pair]), (Optional[int], [Optional[int]]),
        (tuple[int], [int]),
    ],
    ids=str,
)  # fmt: skip
def test_a_tuple_of_a_known_length_is_several_outputs(returns, outputs):
    assert output_types(returns) == outputs


@pytest.mark.parametrize("cls", [Int8, Int16, Int32, Int64])
def test_narrow_integers_are_checked_when_they_are_made(cls):
    largest = (1 << (cls.bits - 1)) - 1
    assert cls(largest) == largest
    assert cls(-largest - 1) == -largest - 1
    for value in (largest + 1, -largest - 2):
        with pytest.raises(ValueError, match="does not fit"):
            cls(value)


@pytest.mark.parametrize(
    ("given_type", "wanted"),
    [
        ("int64", "int64"), ("int64", "Optional<int64>"), ("int64", "double"), ("int64", "Optional<double>"),
        ("List<int64>", "List<double>"), ("Map<string,int64>", "Map<string,double>"),
        ("Optional<int64>", "Optional<double>"), ("Tuple<int64,string>", "Tuple<double,Optional<string>>"),
        ("List<List<int64>>", "Optional<List<Optional<List<double>>>>"), ("a.B", "Optional<a.B>"),
    ],
)  # fmt: skip
def test_an_output_fits(given_type, wanted):
    assert fits(given_type, wanted)


@pytest.mark.parametrize(
    ("given_type", "wanted"),
    [
        ("double", "int64"), ("Optional<int64>", "int64"), ("string", "bytes"), ("List<int64>", "int64"),
        ("Map<int64,string>", "Map<double,string>"), ("Tuple<int64>", "Tuple<int64,int64>"), ("a.B", "a.C"),
        ("int32", "int64"), ("List<string>", "List<int64>"), ("Optional<string>", "Optional<int64>"),
    ],
)  # fmt: skip
def test_an_output_does_not_fit(given_type, wanted):
    assert not fits(given_type, wanted)


TREES = st.recursive(
    st.sampled_from(["int64", "double", "string", "a.B"]),
    lambda inner: st.one_of(
        inner.map("List<{}>".format),
        inner.map("Optional<{}>".format),
        inner.map("Map<string,{}>".format),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: f"Tuple<{','.join(items)}>"),
    ),
    max_leaves=8,
)


@given(TREES)
def test_a_type_fits_itself_its_optional_and_itself_with_doubles(text):
    assert fits(text, text)
    assert fits(text, f"Optional<{text}>")
    assert fits(text, text.replace("int64", "double"))
    assert fits(text.replace("double", "int64"), text)


def test_classes_of_a_script_have_the_name_under_which_it_is_shipped(monkeypatch):
    """`__main__` is another module on a bot."""
    monkeypatch.setattr(samples.Point, "__module__", "__main__")
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "/some/word-count.py", raising=False)
    monkeypatch.setattr(types, "_STRINGS", {})
    assert type_string(list[samples.Point]) == "List<main_word_count.Point>"
