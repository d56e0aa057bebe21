"""Calls of functions without annotations: plain objects by msgpack, functions by name."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from myrmidon.functions.dynamic_call import call, name_of, pack_plain, unpack_plain
from tests.functions import tasks


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -5, 1 << 63, 1 << 200, -(1 << 200), 1.5, "ä", b"\x00", [], (), {}, [1, (2, [3])], {"a": (1,)},
        {1: "a", (2, 3): None}, {1, 2}, frozenset({"x"}), [{"k": {(): []}}],
    ],
)  # fmt: skip
def test_plain_objects_come_back_as_they_were(value: Any):
    back = unpack_plain(pack_plain(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [object(), [object()], {"a": lambda: 1}, tasks.Point(1), 1 + 2j])
def test_other_objects_are_refused(value: Any):
    with pytest.raises(TypeError, match="plain objects"):
        pack_plain(value)


def test_a_value_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="nested too deeply"):
        pack_plain(loop)


def test_a_function_is_called_by_its_name():
    assert unpack_plain(call("builtins", "pow", pack_plain([(2, 5), {}]))) == 32
    assert unpack_plain(call("builtins", "str.upper", pack_plain([("a",), {}]))) == "A"
    assert unpack_plain(call("builtins", "sorted", pack_plain([([2, 1],), {"reverse": True}]))) == [2, 1]


def untyped(x):
    return x


async def untyped_coroutine(x):
    return x + 1


def test_coroutines_are_run():
    assert unpack_plain(call(__name__, "untyped_coroutine", pack_plain([(1,), {}]))) == 2


def test_names_must_lead_back_to_the_function():
    assert name_of(pow) == ("builtins", "pow")
    assert name_of(untyped) == (__name__, "untyped")
    assert name_of(operator.mul) == ("_operator", "mul")
    for wrong in (lambda: 1, "abc".upper, object()):
        with pytest.raises(TypeError, match="a bot c"):
            name_of(wrong)
