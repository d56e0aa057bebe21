"""Functions in Spider's shape, which end-to-end tests run on bots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from myrmidon import context
from myrmidon.spider import Data, Double, Float, Int8, Int16, Int32, Int64, TaskContext, chain, group


@dataclass
class Point:
    x: Int32
    name: list[Int8]


def add(_: TaskContext, x: Int8, y: Int8) -> Int8:
    return Int8(x + y)


def double(_: TaskContext, x: Int8) -> Int8:
    return Int8(2 * x)


def swap(_: TaskContext, x: Int8, y: Int8) -> tuple[Int8, Int8]:
    return y, x


def every_type(
    _: TaskContext,
    a: Int8,
    b: Int16,
    c: Int32,
    d: Int64,
    e: Float,
    f: Double,
    g: bool,
    h: bytes,
    i: list[Int8],
    j: dict[Int64, list[Double]],
    k: Point,
) -> tuple[Int8, Int16, Int32, Int64, Float, Double, bool, bytes, list[Int8], dict[Int64, list[Double]], Point]:
    return a, b, c, d, e, f, g, h, i, j, k


def or_seven(_: TaskContext, x: Optional[Int64]) -> Int64:
    return Int64(7) if x is None else x


def fails_twice(_: TaskContext, folder: str) -> Int64:
    path = Path(folder) / "attempts"
    attempts = int(path.read_text()) if path.exists() else 0
    path.write_text(str(attempts + 1))
    if attempts < 2:
        raise ValueError(f"attempt {attempts}")
    return Int64(attempts)


def always_fails(_: TaskContext) -> None:
    raise ValueError("no")


def size_of(_: TaskContext, data: Data) -> Int64:
    return Int64(len(data.value))


def make(task: TaskContext, size: Int64) -> Data:
    assert task.task_id == context().task_id
    return Data.from_value(b"x" * size, ["10.0.0.1"])


def shares(task: TaskContext, size: Int64) -> Int64:
    data = task.create_data(Data.from_value(b"x" * size))
    assert data.id is not None
    table = context().share({"size": int(size)})
    return context().submit(look_up, table)


def look_up(table: dict[str, int]) -> Int64:
    return Int64(table["size"])


def write(_: TaskContext, path: str) -> None:
    Path(path).write_text("written")


def done(_: TaskContext) -> bool:
    return True


AT_THE_TOP = chain(group([add, double]), swap)
"""Bots import this module too."""
