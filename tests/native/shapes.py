"""Classes of values that the libraries of the tests have too."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import NamedTuple

import msgspec


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Tree:
    value: int
    children: list[Tree]
    colors: dict[str, Color]


@dataclasses.dataclass
class Link:
    value: int
    next: Link | None = None


class Pair(NamedTuple):
    left: int
    right: str


class Record(msgspec.Struct, frozen=True):
    first_name: str
    points: list[Point]
    pair: Pair
    at: dt.datetime
    rights: Rights
    data: bytes
