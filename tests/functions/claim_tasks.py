"""Functions with every kind of type and every way to define a function."""

from __future__ import annotations

import datetime as dt
import functools
import os
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Optional

import msgspec
import numpy as np
import numpy.typing as npt

from myrmidon import Int8, context, task


class Colour(Enum):
    RED = "r"


class Pair(NamedTuple):
    left: int
    right: str


class Record(msgspec.Struct):
    name: str
    sizes: list[float]


@dataclass
class Everything:
    number: int
    small: Int8
    real: float
    text: str
    data: bytes
    flag: bool
    maybe: Optional[int]
    pair: tuple[int, str]
    many: tuple[float, ...]
    named: Pair
    record: Record
    colour: Colour
    time: dt.datetime
    table: dict[str, list[Optional[int]]] = field(default_factory=dict)


@task
def same(given: Everything) -> Everything:
    return given


@task
def transposed(array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return array.T * 2


class Tools:
    @task
    @staticmethod
    def double(x: int) -> int:
        return 2 * x


@task
async def tripled(x: int) -> int:
    return 3 * x


@task
def scaled(x: int, by: int, plus: int = 0) -> int:
    return x * by + plus


tenfold = functools.partial(scaled, by=10)


@task
def with_default(who: str = "bot" if "MYRMIDON_EXECUTOR" in os.environ else "submitter") -> str:
    assert with_default.signature.parameters[0].default == "bot"
    return who


@task
def version(x: int) -> tuple[int, str]:
    return x, context().label


@task
def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task
def waits_for_a_submitted_call(x: int) -> int:
    return context().submit(scaled, x, 2) + 1


@task
def gives_none() -> Optional[int]:
    return None
