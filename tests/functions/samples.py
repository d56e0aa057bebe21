"""Classes that the tests of functions/ use as types of values."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import NamedTuple

import msgspec


class Color(enum.Enum):
    RED = "r"
    GREEN = ("a", "tuple")
    CRIMSON = "r"  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    name: str | None = None
    size: float = dataclasses.field(init=False, default=0.0)


@dataclasses.dataclass(frozen=True)
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)
    colors: dict[str, Color] = dataclasses.field(default_factory=dict)


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Record(msgspec.Struct, frozen=True, rename="camel"):
    first_name: str
    points: tuple[Pair, ...] = ()


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: bytes


@dataclasses.dataclass
class HasPath:
    where: Path


@dataclasses.dataclass
class HasInitVar:
    value: int
    seed: dataclasses.InitVar[int]
