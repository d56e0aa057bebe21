from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.shown_input import kind_of, show_path, show_value
from myrmidon.model.validation import MAX_PROBLEMS, NO_RECORD, Checker, is_clean
from tests.model.requests import nested


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ((), ""),
        (("name",), "name"),
        (
            ("tasks", "build", "task", "slices", 0, "properties", "env", "A"),
            "tasks.build.task.slices[0].properties.env.A",
        ),
        (("tasks", "a b"), "tasks['a b']"),
        (("tasks", "\ud800\0"), "tasks['\\ud800\\x00']"),
        (("env", ""), "env['']"),
    ],
)
def test_a_path_is_shown_the_way_one_would_write_it(path, shown):
    assert show_path(path) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "nothing"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (math.nan, "nan"),
        ("hi", "'hi'"),
        (1 << 100_000, "a number of 100001 bits"),
        (b"abc", "3 bytes"),
        ({"secret": "hunter2"}, "an object of 1 key"),
        (["hunter2"], "a list of 1 item"),
        (nested(10_000), "a list of 1 item"),
        ({1}, "a value of type set"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_value_is_shown_without_what_is_inside_it(value, shown):
    assert show_value(value) == shown


@given(st.text())
def test_a_text_is_shown_in_at_most_100_characters_that_any_database_can_hold(text):
    shown = show_value(text)
    assert len(shown) <= 100
    assert is_clean(shown)


def test_a_long_text_is_cut_visibly():
    assert show_value("x" * 5000) == "'" + "x" * 95 + "...'"
    assert kind_of("x" * 5000) == "text of 5000 characters"


READS = {
    "text": lambda check, raw: check.text(raw, "x", (), 3, minimum=1, default="d"),
    "required text": lambda check, raw: check.text(raw, "x", (), 3, minimum=1),
    "pattern": lambda check, raw: check.text(raw, "x", (), 3, pattern=re.compile("[a-z]*"), default=""),
    "integer": lambda check, raw: check.integer(raw, "x", (), 1, 3, default=2),
    "required integer": lambda check, raw: check.integer(raw, "x", (), 1, 3),
    "maybe integer": lambda check, raw: check.optional_integer(raw, "x", (), 1, 3),
    "boolean": lambda check, raw: check.boolean(raw, "x", (), default=True),
    "texts": lambda check, raw: check.texts(raw, "x", (), 2, chars=3),
    "listing": lambda check, raw: check.listing(raw, "x", (), 2),
    "mapping": lambda check, raw: check.mapping(raw, "x", (), 2),
    "choice": lambda check, raw: check.choice(raw, "x", (), {"a": "A", "b": "B"}, "A"),
}
GOOD: list[tuple[str, Any, Any]] = [
    ("text", "abc", "abc"),
    ("text", None, "d"),
    ("pattern", "abc", "abc"),
    ("integer", 1, 1),
    ("integer", 3, 3),
    ("integer", None, 2),
    ("maybe integer", None, None),
    ("maybe integer", 3, 3),
    ("boolean", False, False),
    ("boolean", None, True),
    ("texts", ["abc", ""], ["abc", ""]),
    ("texts", None, []),
    ("texts", ("a",), ["a"]),
    ("listing", [1, nested(5)], [1, nested(5)]),
    ("mapping", {"a": 1, "b": 2}, {"a": 1, "b": 2}),
    ("mapping", None, {}),
    ("choice", "b", "B"),
    ("choice", None, "A"),
]
BAD: dict[str, list[Any]] = {
    "text": ["", "abcd", "\0", "\ud800", 1, True, 1.5, [], {}, b"a", nested(10_000)],
    "required text": [None],
    "pattern": ["aB"],
    "integer": [0, 4, -1, 1 << 63, 1 << 9999, True, 2.0, math.nan, math.inf, "2", [], {}],
    "required integer": [None],
    "maybe integer": [0],
    "boolean": [0, 1, "true", [], 1.0],
    "texts": [["a"] * 3, "abc", {"a": 1}, 1, [1], ["abcd"], [None], ["\0"], [["a"]], nested(10_000)],
    "listing": [[1, 2, 3], "ab", {}, 1],
    "mapping": [[], "ab", {"a": 1, "b": 2, "c": 3}, {1: 2}, {None: 1}],
    "choice": ["A", "", 1, ["a"], {"a": 1}],
}
WRONG = [(read, value) for read, values in BAD.items() for value in values]


@pytest.mark.parametrize(("read", "value", "expected"), GOOD, ids=str)
def test_a_good_field_is_read(read, value, expected):
    check = Checker()
    assert READS[read](check, {"x": value}) == expected
    check.finish()
    if value is None:
        assert READS[read](check, {}) == expected


@pytest.mark.parametrize(("read", "value"), WRONG, ids=[f"{i}-{read}" for i, (read, _) in enumerate(WRONG)])
def test_a_bad_field_is_noted_with_its_path_and_what_is_allowed(read, value):
    check = Checker()
    READS[read](check, {"x": value})
    with pytest.raises(InvalidRequest) as refused:
        check.finish()
    (problem,) = refused.value.problems
    assert re.match(r"x(\[\d\])?$", problem.path)
    assert problem.allowed
    assert len(problem.value) <= 100


def test_reading_goes_on_after_a_problem():
    check = Checker()
    check.integer({"a": "x"}, "a", (), 1, 2)
    check.text({}, "b", ("deep",), 3)
    with pytest.raises(InvalidRequest) as refused:
        check.finish()
    assert [p.path for p in refused.value.problems] == ["a", "deep.b"]


def test_an_unknown_key_is_a_problem_whose_value_is_not_shown():
    check = Checker()
    check.unknown_keys({"name": "x", "secret_byte": "hunter2"}, frozenset({"name", "secret_bytes"}), ())
    (problem,) = check.problems
    assert problem.path == "secret_byte"
    assert problem.value == "text of 7 characters"
    assert problem.allowed == "`secret_bytes` (did you mean that?)"


def test_a_wrong_object_reads_as_nothing():
    check = Checker()
    assert check.record([1], ("x",)) is NO_RECORD
    assert check.record({1: 2}, ("x",)) is NO_RECORD
    assert check.count == 2


def test_a_flood_of_problems_is_listed_up_to_a_thousand_and_counted_beyond():
    check = Checker()
    for i in range(MAX_PROBLEMS + 500):
        check.note(("x", i), i, "nothing")
    assert check.count == MAX_PROBLEMS + 500
    with pytest.raises(InvalidRequest) as refused:
        check.finish()
    assert len(refused.value.problems) == MAX_PROBLEMS + 1
    assert refused.value.problems[-1].value == "500 more problems"
