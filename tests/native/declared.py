"""Declarations of the functions in tests/native/libraries, as a program would write them."""

from __future__ import annotations

import datetime as dt

import numpy as np

from myrmidon import task
from tests.native.building import DECLARED
from tests.native.shapes import Color, Pair, Point, Record, Rights, Tree

SUMS = DECLARED / "libsums.so"
TYPES = DECLARED / "libtypes.so"
TYPES_RUST = DECLARED / "libtypes_rust.so"
FAULTS = DECLARED / "libfaults.so"
FAULTS_RUST = DECLARED / "libfaults_rust.so"


@task(library=SUMS)
def add(a: int, b: int) -> int:
    raise NotImplementedError


@task(library=TYPES, name="echo_record")
def cpp_record(value: Record) -> Record:
    raise NotImplementedError


@task(library=TYPES_RUST, language="rust", name="echo_record")
def rust_record(value: Record) -> Record:
    raise NotImplementedError


@task(library=TYPES, name="echo_three")
def cpp_three(
    value: tuple[Color, dict[str, bool], tuple[float, bool]],
) -> tuple[Color, dict[str, bool], tuple[float, bool]]:
    raise NotImplementedError


@task(library=TYPES_RUST, language="rust", name="echo_three")
def rust_three(
    value: tuple[Color, dict[str, bool], tuple[float, bool]],
) -> tuple[Color, dict[str, bool], tuple[float, bool]]:
    raise NotImplementedError


@task(library=TYPES, name="echo_tree")
def cpp_tree(value: Tree) -> Tree:
    raise NotImplementedError


@task(library=TYPES_RUST, language="rust", name="doubled")
def doubled(array: np.ndarray) -> np.ndarray:
    raise NotImplementedError


@task(library=TYPES, name="echo_integers")
def cpp_integers(value: list[int]) -> list[int]:
    raise NotImplementedError


@task(library=TYPES_RUST, language="rust", name="echo_integer")
def rust_integer(value: int) -> int:
    raise NotImplementedError


@task(library=TYPES, name="echo_real")
def cpp_real(value: float) -> float:
    raise NotImplementedError


@task(library=TYPES, name="echo_both")
def cpp_both(value: tuple[int, str]) -> tuple[int, str]:
    raise NotImplementedError


@task(library=FAULTS)
def at(index: int) -> str:
    raise NotImplementedError


@task(library=FAULTS)
def prints(text: str) -> None:
    raise NotImplementedError


@task(library=FAULTS)
def segfault() -> None:
    raise NotImplementedError


@task(library=FAULTS)
def exits(code: int) -> None:
    raise NotImplementedError


@task(library=FAULTS, name="at")
def wrongly_declared(index: str) -> str:
    raise NotImplementedError


@task(library=FAULTS_RUST, language="rust")
def panics(index: int) -> int:
    raise NotImplementedError


@task(library="libinstalled.so")
def installed(a: int, b: int) -> int:
    raise NotImplementedError


@task(library="./liblost.so")
def lost(a: int) -> int:
    raise NotImplementedError


A_RECORD = Record(
    first_name="né",
    points=[Point(1.5, name="p")],
    pair=Pair(-1, "r"),
    at=dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
    rights=Rights.READ | Rights.WRITE,
    data=b"\0\1",
)
