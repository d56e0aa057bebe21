"""Handles: any use as a value raises and names the line."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import Any

import pytest

from myrmidon import HandleMisuse
from myrmidon.functions.graph_builder import GraphBuilder
from tests.functions import tasks


@pytest.fixture
def handle() -> Any:
    return GraphBuilder().call(tasks.half, (1.0,))


USES = [
    ("if", lambda handle: 1 if handle else 2, "used as a condition"),
    ("not", lambda handle: not handle, "used as a condition"),
    ("for", lambda handle: [x + 1 for x in handle], r"iterated over.*use job\.map"),
    ("unpack", lambda handle: [*handle], "iterated over"),
    ("+", lambda handle: handle + 1, "arithmetic"),
    ("r+", lambda handle: 1 + handle, "arithmetic"),
    ("sum", lambda handle: sum([handle]), "arithmetic"),
    ("f-string", lambda handle: f"{handle}", "formatted as text"),
    ("str", str, "converted to text"),
    ("print", lambda handle: "".join([str(handle)]), "converted to text"),
    ("==", lambda handle: handle == 1, "compared"),
    ("!=", lambda handle: handle != 1, "compared"),
    ("<", lambda handle: handle < 1, "compared"),
    ("in", lambda handle: 1 in handle, "`in` was used"),
    ("item", lambda handle: handle[0], "an item of it was read"),
    ("len", len, "length"),
    ("int", int, "number"),
    ("float", float, "number"),
    ("round", round, "arithmetic"),
    ("abs", abs, "arithmetic"),
    ("math", math.floor, "number"),
    ("range", range, "number"),
    ("call", lambda handle: handle(), "called"),
    ("attribute", lambda handle: handle.upper, "attribute upper"),
    ("method", lambda handle: handle.items(), "attribute items"),
    ("neg", lambda handle: -handle, "arithmetic"),
]


@pytest.mark.parametrize(("use", "problem"), [use[1:] for use in USES], ids=[use[0] for use in USES])
def test_a_handle_used_as_a_value_raises_and_names_the_line(handle, use, problem):
    with pytest.raises(HandleMisuse, match=problem) as caught:
        use(handle)
    assert str(caught.value).startswith("tests/functions/test_handles.py:"), caught.value
    assert "<handle of half, double>" in str(caught.value)


def test_awaiting_a_handle_raises(handle):
    async def program() -> None:
        await handle

    with pytest.raises(HandleMisuse, match="awaited"):
        asyncio.run(program())


def test_it_can_be_shown_hashed_and_looked_at_by_tools(handle):
    assert repr(handle) == "<handle of half, double>"
    assert {handle: 1}[handle] == 1
    assert not hasattr(handle, "_repr_html_")
    assert copy.copy(handle) is not None


def test_after_the_block_the_message_names_result(handle):
    builder = GraphBuilder()
    made = builder.call(tasks.half, (1.0,))
    builder.is_building = False
    with pytest.raises(HandleMisuse, match=r"use job\.result\(handle\)"):
        bool(made)


def test_a_tuple_of_outputs_can_be_unpacked_and_nothing_else():
    made = GraphBuilder().call(tasks.two, (1,))
    left, right = made
    assert (repr(left), repr(right)) == ("<handle of two, int64>", "<handle of two, string>")
    assert made[1] is right
    assert len(made) == 2
    for use in (bool, str, lambda handle: handle + handle):
        with pytest.raises(HandleMisuse):
            use(made)


def test_a_handle_passed_to_a_plain_call_raises(handle):
    with pytest.raises(HandleMisuse, match=r"test_handles\.py:\d+: <handle.*outside of the block of its job"):
        tasks.half(handle)
