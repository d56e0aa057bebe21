"""Types, values, MessagePack and signatures do on Python 3.8, which bots may have, what they do here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from myrmidon.functions.values import encode
from tests.bot.bots import SOURCE, python38
from tests.functions import old_python
from tests.functions.old_python import Colour, Pair, Tree


def lines_of(python: str, values: str = "") -> list[list[str]]:
    """What the program prints on an interpreter."""
    program = [python, "-I", str(Path(old_python.__file__)), str(SOURCE.parent)]
    done = subprocess.run(program, input=values, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def old() -> str:
    found = python38()
    if found is None:
        pytest.skip("there is no Python 3.8 here")
    return found


def test_every_case_has_the_outcome_that_it_has_here(old: str):
    ours, theirs = lines_of(sys.executable), lines_of(old)
    assert len(ours) == len(old_python.cases())
    different = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    assert not different


TIMES = st.datetimes(timezones=st.just(old_python.UTC)).map(lambda time: time.replace(fold=0))
TREES = st.recursive(
    st.builds(Tree, st.integers(-5, 1 << 62), colours=st.dictionaries(st.text(max_size=4), st.sampled_from(Colour))),
    lambda inner: st.builds(Tree, st.integers(0, 300), st.lists(inner, max_size=3)),
    max_leaves=6,
)
TYPED = st.one_of(
    st.tuples(st.just("tree"), TREES),
    st.tuples(st.just("dict"), st.dictionaries(st.text(), st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))),
    st.tuples(st.just("lists"), st.lists(st.lists(st.text()))),
    st.tuples(st.just("many"), st.lists(st.floats(allow_nan=False)).map(tuple)),
    st.tuples(st.just("named"), st.builds(Pair, st.integers(0, 9), st.text())),
    st.tuples(st.just("bytes"), st.binary()),
    st.tuples(st.just("time"), TIMES),
)


@settings(max_examples=5, derandomize=True, phases=[Phase.generate])
@given(typed=st.lists(TYPED, min_size=20, max_size=200))
def test_values_that_are_written_here_are_read_there(old: str, typed: list[tuple[str, object]]):
    given_values = [f"{name} {encode(value, old_python.TYPES[name]).hex()}" for name, value in typed]
    found = [line for line in lines_of(old, "\n".join(given_values)) if line[0].startswith("given ")]
    assert found == [[f"given {name}", f"{value!a} True"] for name, value in typed]
