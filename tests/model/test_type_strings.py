from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.type_strings import (
    ALIASES,
    MAX_CHARS,
    PRIMITIVES,
    ClassName,
    ListOf,
    MapOf,
    OptionalOf,
    Primitive,
    TupleOf,
    canonical,
    fits,
    parse,
    show,
)

I8 = Primitive("int8")

READ = {
    "int8": I8,
    "bytes": Primitive("bytes"),
    "int": Primitive("int64"),
    "float": Primitive("double"),
    "str": Primitive("string"),
    "List<int8>": ListOf(I8),
    " List < \t int8 >\r\n": ListOf(I8),
    "Map<string,List<bool>>": MapOf(Primitive("string"), ListOf(Primitive("bool"))),
    "Map<List<int8>,int8>": MapOf(ListOf(I8), I8),
    "Map<bytes,int8>": MapOf(Primitive("bytes"), I8),
    "Map<int,int8>": MapOf(Primitive("int64"), I8),
    "Optional<lib.shapes.Circle>": OptionalOf(ClassName("lib.shapes.Circle")),
    "Tuple<int8>": TupleOf((I8,)),
    "Tuple< int8 , string , List<double> >": TupleOf((I8, Primitive("string"), ListOf(Primitive("double")))),
    "_private.Thing2": ClassName("_private.Thing2"),
    "Point": ClassName("Point"),
    "lib.int65": ClassName("lib.int65"),
}


@pytest.mark.parametrize("text", READ)
def test_a_type_string_is_read_and_shown_canonically(text):
    assert parse(text) == READ[text]
    assert parse(show(parse(text))) == READ[text]
    assert " " not in canonical(text)


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_are_normalised_at_every_depth(alias):
    assert canonical(f"Map<{'int' if alias == 'float' else alias},List<{alias}>>").endswith(f"List<{ALIASES[alias]}>>")


def test_types_are_the_same_when_their_canonical_texts_are():
    assert parse("List<int>") == parse(" List<int64> ")
    assert parse("List<int8>") != parse("string")


FITS = [
    ("int64", "int64"),
    ("int64", "double"),
    ("int64", "Optional<int64>"),
    ("int64", "Optional<double>"),
    ("Optional<int64>", "Optional<double>"),
    ("List<int64>", "List<double>"),
    ("List<int64>", "Optional<List<Optional<double>>>"),
    ("Map<string,int64>", "Map<string,double>"),
    ("Tuple<int64,string>", "Tuple<double,Optional<string>>"),
    ("lib.Shape", "Optional<lib.Shape>"),
]


@pytest.mark.parametrize(("output", "given"), FITS)
def test_a_type_fits_its_optional_and_whole_numbers_fit_double_at_every_depth(output, given):
    assert fits(output, given)


@pytest.mark.parametrize(
    ("output", "given"),
    [
        ("double", "int64"),
        ("Optional<int64>", "int64"),
        ("int32", "double"),
        ("string", "bytes"),
        ("Map<int64,string>", "Map<string,string>"),
        ("Tuple<int64>", "Tuple<int64,int64>"),
        ("List<int64>", "Tuple<int64>"),
        ("lib.Shape", "lib.Circle"),
    ],
)
def test_other_types_do_not_fit(output, given):
    assert not fits(output, given)


MISSPELT = [
    ("int65", "int64"),
    ("Int8", "int8"),
    ("String", "string"),
    ("boolean", "bool"),
    ("float32", "float"),
    ("Optional<doubel>", "double"),
    ("Map<strng,int>", "string"),
    ("datetime", "datetime.datetime"),
    ("void", "one of bool, bytes"),
]


@pytest.mark.parametrize(("text", "meant"), MISSPELT)
def test_a_name_that_may_be_a_misspelt_type_is_refused_with_the_nearest_one(text, meant):
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    [problem] = refused.value.problems
    assert problem.allowed.startswith(meant)
    assert problem.allowed.endswith("; a class is written module.Class")


def test_the_brackets_of_python_are_refused_with_those_of_type_strings():
    with pytest.raises(InvalidRequest, match=r"at character 5: List<int>, not List\[int\]"):
        parse("List[int]")


REFUSED = [
    "",
    " ",
    "List",
    "Map",
    "Tuple",
    "Optional",
    "List<>",
    "Tuple<>",
    "List<int8",
    "List<int8>>",
    "List<int8,int8>",
    "List int8",
    "Map<int8>",
    "Map<int8,int8,int8>",
    "Map<double,int8>",
    "Map<bool,int8>",
    "Map<List<int16>,int8>",
    "Map<lib.Key,int8>",
    "Map<Optional<int8>,int8>",
    "Optional<int8,int8>",
    "int8<int8>",
    "lib.Box<int8>",
    "in t8",
    "lib..Box",
    ".lib",
    "lib.",
    "lib. Box",
    "1nt",
    "int8,",
    ",",
    "<int8>",
    "List<int8>x",
    "int-8",
    "int8\0",
    "\ud800",
    "жук",
    None,
    8,
    ["int8"],
    b"int8",
]


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_what_is_not_a_type_is_refused_with_what_is_allowed(text):
    with pytest.raises(InvalidRequest) as refused:
        parse(text, "inputs[0].type")
    (problem,) = refused.value.problems
    assert problem.path == "inputs[0].type"
    assert problem.allowed


def test_depth_is_limited_to_32():
    def deep(n):
        return "List<" * (n - 1) + "int8" + ">" * (n - 1)

    assert show(parse(deep(32))) == deep(32)
    with pytest.raises(InvalidRequest, match="32 levels"):
        parse(deep(33))
    with pytest.raises(InvalidRequest, match="characters"):
        parse(deep(100_000))


def test_length_is_limited_also_once_aliases_are_written_out():
    def wide(n):
        return "Tuple<" + ",".join(["X" * (n - 12), "bool"]) + ">"

    assert len(wide(MAX_CHARS)) == MAX_CHARS
    parse(wide(MAX_CHARS))
    with pytest.raises(InvalidRequest, match="characters"):
        parse(wide(MAX_CHARS + 1))
    with pytest.raises(InvalidRequest, match="became int64"):
        parse("Tuple<" + ",".join(["int"] * 250) + ">")


keys = st.sampled_from(["int8", "int64", "string", "bytes", "List<int8>"])
type_strings = st.recursive(
    st.sampled_from([*PRIMITIVES, *ALIASES, "lib.Thing"]),
    lambda inner: st.one_of(
        inner.map(lambda t: f"List<{t}>"),
        inner.map(lambda t: f" Optional <{t} > "),
        st.tuples(keys, inner).map(lambda kv: f"Map<{kv[0]}, {kv[1]}>"),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: f"Tuple<{','.join(ts)}>"),
    ),
    max_leaves=8,
)


@given(type_strings)
def test_showing_what_was_parsed_and_parsing_it_again_changes_nothing(text):
    once = canonical(text)
    assert canonical(once) == once
    assert parse(once) == parse(text)


@given(st.text(alphabet="LMOTistapune<>,. int8\0é", max_size=40))
def test_any_text_is_a_type_or_an_invalid_request(text):
    with contextlib.suppress(InvalidRequest):
        assert parse(show(parse(text))) == parse(text)
