"""How deep JSON may be nested and how many values it may have, and what it costs to find out."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myrmidon.model import json_bounds
from myrmidon.model.json_bounds import MAX_DEPTH, has_too_many_values, is_too_deep

TEXTS = st.text(alphabet='[]{}"\\, \u00e9\0', max_size=8)
TREES = st.recursive(
    TEXTS | st.integers() | st.none(), lambda below: st.lists(below) | st.dictionaries(TEXTS, below), max_leaves=60
)


def depth_of(tree: object) -> int:
    if not isinstance(tree, (dict, list)):
        return 0
    return 1 + max(map(depth_of, tree.values() if isinstance(tree, dict) else tree), default=0)


def num_values(tree: object, empty: int = 1) -> int:
    """How many values there are, where an empty list or object counts as ``empty``."""
    if not isinstance(tree, (dict, list)):
        return 1
    parts = tree.values() if isinstance(tree, dict) else tree
    return 1 + sum(num_values(part, empty) for part in parts) if parts else empty


@settings(max_examples=60)
@given(tree=TREES, wrap=st.integers(0, MAX_DEPTH + 2), piece=st.integers(1, 50))
def test_the_answer_is_that_of_a_walk_however_the_text_is_cut(tree, wrap, piece):
    for level in range(wrap):
        tree = [tree] if level % 2 else {"]": tree, "[": 0}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_bounds, "_PIECE", piece)
        assert is_too_deep(json.dumps(tree).encode()) is (depth_of(tree) > MAX_DEPTH)


@settings(max_examples=60)
@given(tree=TREES, piece=st.integers(1, 50))
def test_every_value_is_counted_and_nothing_inside_of_a_text(tree, piece):
    text = json.dumps(tree).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_bounds, "_PIECE", piece)
        for most, too_many in ((num_values(tree, empty=2), False), (num_values(tree) - 2, True)):
            patched.setattr(json_bounds, "MAX_VALUES", most)
            assert has_too_many_values(text) is too_many


@pytest.mark.parametrize(
    "text", [b"", b"]" * 100, b'"' * 100 + b"[" * 100, b"[" * 20 + b"]" * 100, b"\\" * 99 + b"[" * 40]
)
def test_a_text_that_is_no_json_is_left_to_the_decoder(text):
    is_too_deep(text)


@pytest.mark.parametrize("part", [b'"",', b"[],", b"0,", b'"\\\\",', b"{}", b"[[]],"])
def test_the_memory_is_a_small_multiple_of_the_text(part):
    text = b"[" + part * ((1 << 20) // len(part)) + b"0]"
    tracemalloc.start()
    try:
        assert not is_too_deep(text)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()
