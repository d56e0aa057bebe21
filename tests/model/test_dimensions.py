from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model import dimensions
from myrmidon.model.dimensions import (
    bot_dimensions,
    canonical,
    digest,
    expand,
    flat,
    matches,
    task_dimensions,
)
from myrmidon.model.validation import Checker
from tests.model.requests import nested


def read(raw, reader=task_dimensions):
    check = Checker()
    return reader(check, raw, ("dimensions",)), check.problems


def wanted(**dims):
    return {"pool": ["ci"], **dims}


def test_the_canonical_form_sorts_keys_values_and_alternatives():
    dims = {"pool": ["ci"], "os": ["Linux", "Ubuntu|Debian|Ubuntu"], "a": ["2", "1"]}
    assert canonical(dims) == '{"a":["1","2"],"os":["Debian|Ubuntu","Linux"],"pool":["ci"]}'


def test_equal_sets_have_one_text_whatever_their_order():
    one = {"os": ["b", "a"], "pool": ["ci"]}
    other = {"pool": ["ci"], "os": ("a", "b")}
    assert canonical(one) == canonical(other) == canonical(one)


def test_the_digest_is_the_first_128_bits_of_sha256():
    assert digest("{}") == "44136fa355b3678a1146ad16f7e8649e"


AMBIGUOUS = [
    {"a": ["b"], "c": ["d"]},
    {"a": ["b", "c"], "d": ["x"]},
    {"a": ["b", "c", "d"]},
    {"a": ["b,c"]},
    {"a": ['b","c']},
    {"a": ["b|c"]},
    {"a": ['b"],"c":["d']},
    {"ab": ["c"]},
    {"a": ["bc"]},
    {"a": ["b:c"]},
    {"a:b": ["c"]},
    {"a": ["b\\"]},
    {"a": ["b c"]},
]


def test_the_digest_does_not_confuse_keys_and_values():
    assert len({digest(canonical(dims)) for dims in AMBIGUOUS}) == len(AMBIGUOUS)


def test_a_set_too_long_for_the_cache_is_the_same():
    dims = {f"k{i:02}": [f"{'v' * 250}{j}" for j in (2, 1)] for i in range(32)}
    text = canonical(dims)
    assert text == canonical(dict(reversed(dims.items())))
    assert matches(text, dims)
    assert not matches(text, {**dims, "k31": ["x"]})


BOT = {"pool": ["ci"], "os": ["Linux", "Debian", "Debian-12"], "id": {"b1"}, "cores": ("8",)}


@pytest.mark.parametrize(
    ("dims", "fits"),
    [
        ({"pool": ["ci"]}, True),
        ({"pool": ["ci"], "os": ["Linux", "Debian"]}, True),
        ({"pool": ["ci"], "os": ["Linux", "Windows"]}, False),
        ({"pool": ["ci"], "os": ["Windows|Linux"]}, True),
        ({"pool": ["ci"], "os": ["Windows|Linux", "Debian|Ubuntu"]}, True),
        ({"pool": ["ci"], "os": ["Windows|Mac"]}, False),
        ({"pool": ["ci"], "gpu": ["none"]}, False),
        ({"pool": ["c"]}, False),
        ({"pool": ["ci"], "cores": ["8"], "id": ["b1"]}, True),
        ({"pool": ["ci"], "id": ["b2"]}, False),
    ],
)
def test_a_bot_matches_when_it_has_every_value_or_an_alternative_of_it(dims, fits):
    assert matches(canonical(dims), BOT) is fits
    assert any(set(one) <= set(flat(BOT)) for one in expand(canonical(dims))) is fits


def test_expand_gives_each_combination_of_alternatives():
    text = canonical({"os": ["b|a", "Linux"], "pool": ["ci"], "gpu": ["1|2"]})
    assert expand(text) == [[f"gpu:{gpu}", "os:Linux", f"os:{os}", "pool:ci"] for gpu, os in product("12", "ab")]


def test_flat_lists_what_a_bot_has():
    assert flat({"os": ["b", "a"], "id": ["x"]}) == ["id:x", "os:a", "os:b"]


GOOD = [
    wanted(),
    wanted(**{f"k{i}": ["v"] for i in range(31)}),
    wanted(os=[f"v{i}" for i in range(16)]),
    wanted(**{"k" * 64: ["v"]}),
    wanted(**{"-_.x9": ["v"]}),
    wanted(os=["v" * 256]),
    wanted(os=["a b", "жук", "a\tb"]),
    wanted(id=["bot-1"]),
    wanted(id=["bot-1|bot-2"]),
    wanted(os=["1|2|3|4|5|6|7|8"]),
    wanted(os=["1|2", "3|4"], gpu=["5|6"]),
    wanted(os=["|".join("v" * 255 + c for c in "abcdefgh")]),
    wanted(os=["a|a|a|a|a|a|a|a|a|a"]),
]


@pytest.mark.parametrize("raw", GOOD, ids=lambda r: str(r)[:50])
def test_dimensions_at_their_limits_are_accepted(raw):
    dims, problems = read(raw)
    assert problems == []
    assert canonical(dims) == canonical(raw)
    assert len(expand(canonical(dims))) <= 8


BAD = [
    ("dimensions", None),
    ("dimensions", []),
    ("dimensions", {}),
    ("dimensions", "pool:ci"),
    ("dimensions", {1: ["x"]}),
    ("dimensions", wanted(**{f"k{i}": ["v"] for i in range(32)})),
    ("dimensions.pool", {"os": ["Linux"]}),
    ("dimensions.pool", {"pool": ["a", "b"]}),
    ("dimensions.pool", {"pool": ["a|b"]}),
    ("dimensions.pool", {"pool": []}),
    ("dimensions.id", wanted(id=["a", "b"])),
    ("dimensions.os", wanted(os=[f"v{i}" for i in range(17)])),
    ("dimensions.os", wanted(os="Linux")),
    ("dimensions.os", wanted(os=[])),
    ("dimensions.os", wanted(os=None)),
    ("dimensions.os", wanted(os={"a": 1})),
    ("dimensions.os", wanted(os=["a", "a"])),
    ("dimensions.os", wanted(os=["a|b", "b|a"])),
    ("dimensions.os[0]", wanted(os=[1])),
    ("dimensions.os[1]", wanted(os=["a", None])),
    ("dimensions.os[0]", wanted(os=[nested(10_000)])),
    ("dimensions.os[0]", wanted(os=[""])),
    ("dimensions.os[0]", wanted(os=["v" * 257])),
    ("dimensions.os[0]", wanted(os=[" a"])),
    ("dimensions.os[0]", wanted(os=["a\n"])),
    ("dimensions.os[0]", wanted(os=["a| b"])),
    ("dimensions.os[0]", wanted(os=["a|"])),
    ("dimensions.os[0]", wanted(os=["|"])),
    ("dimensions.os[0]", wanted(os=["a||b"])),
    ("dimensions.os[0]", wanted(os=["a\0"])),
    ("dimensions.os[0]", wanted(os=["\ud800"])),
    ("dimensions.os[0]", wanted(os=["a|\udfff"])),
    ("dimensions.os[0]", wanted(os=["|".join(map(str, range(100_000)))])),
    ("dimensions", wanted(os=["1|2|3|4|5|6|7|8|9"])),
    ("dimensions", wanted(os=["1|2", "3|4"], gpu=["5|6|7"])),
    ("dimensions.9os", wanted(**{"9os": ["v"]})),
    ("dimensions['']", wanted(**{"": ["v"]})),
    ("dimensions['a b']", wanted(**{"a b": ["v"]})),
    ("dimensions['a\\x00']", wanted(**{"a\0": ["v"]})),
    ("dimensions['os\\n']", wanted(**{"os\n": ["v"]})),
    ("dimensions." + "k" * 65, wanted(**{"k" * 65: ["v"]})),
]


@pytest.mark.parametrize(("path", "raw"), BAD, ids=[path for path, _ in BAD])
def test_dimensions_past_their_limits_are_refused(path, raw):
    assert [p.path for p in read(raw)[1]] == [path]


def test_a_dimension_bomb_is_refused():
    """Before its combinations are put together: there are more of them than any machine could hold."""
    bomb = wanted(**{f"k{i}": ["|".join(f"{i}.{j}.{a}" for a in range(8)) for j in range(16)] for i in range(31)})
    _, (problem,) = read(bomb)
    assert problem.value == "too many combinations of alternatives"


def test_all_problems_of_a_set_come_back_at_once():
    raw = {"id": ["a", "b"], "os": [" x", 1], "9": ["v"], "gpu": ["1|2|3", "4|5|6"]}
    assert {p.path for p in read(raw)[1]} == {
        "dimensions.pool",
        "dimensions.id",
        "dimensions.os[0]",
        "dimensions.os[1]",
        "dimensions.9",
        "dimensions",
    }


def test_a_bot_has_one_id_and_any_number_of_pools():
    dims, problems = read({"id": ["b1"], "pool": ["b", "a"], "os": ["Linux"]}, bot_dimensions)
    assert problems == []
    assert list(dims) == ["id", "os", "pool"]
    assert dims["pool"] == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"pool": ["ci"]}, "dimensions.id"),
        ({"id": ["a", "b"], "pool": ["ci"]}, "dimensions.id"),
        ({"id": ["a"]}, "dimensions.pool"),
        ({"id": ["a"], "pool": ["a|b"]}, "dimensions.pool[0]"),
        ({"id": ["a"], "pool": ["ci"], "os": [" x"]}, "dimensions.os[0]"),
        ({"id": ["a"], "pool": ["ci"], "os": ["x\0"]}, "dimensions.os[0]"),
        ({"id": ["a"], "pool": ["ci"], "os": [3]}, "dimensions.os[0]"),
        ([], "dimensions"),
    ],
)
def test_a_bot_with_wrong_dimensions_is_refused(raw, path):
    assert [p.path for p in read(raw, bot_dimensions)[1]] == [path]


rough = st.text("ab |~{\0é\t", max_size=3)


@given(st.dictionaries(st.one_of(st.just("pool"), st.just("id"), rough), st.lists(rough, max_size=2), max_size=3))
def test_the_quick_look_accepts_nothing_that_the_close_look_refuses(raw):
    check = Checker()
    closely = dimensions._checked_dimensions(check, raw, ())
    quickly = dimensions._usual_dimensions(raw, check.limits)
    if quickly is not None:
        assert check.problems == []
        assert list(quickly.items()) == list(closely.items())


names = st.sampled_from(["a", "b", "ab", "os", "x.y"])
values = st.lists(st.text("abc|", min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.dictionaries(names, values, min_size=1, max_size=4), st.dictionaries(names, values, max_size=4))
def test_a_bot_matches_exactly_when_one_expansion_is_contained_in_what_it_has(dims, bot):
    text = canonical(dims)
    assert canonical(dims) == text
    assert matches(text, bot) is any(set(one) <= set(flat(bot)) for one in expand(text))
