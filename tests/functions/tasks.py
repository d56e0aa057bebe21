"""Task functions for tests: at the top of a module, as a bot needs them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple, Optional

from myrmidon import task


@dataclass
class Point:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


@task(cache="7d")
def shards(url: str) -> list[str]:
    return url.split("/")


@task(reruns=2, timeout="10m", dimensions={"os": "Linux"})
def count(text: str, top: int = 10) -> dict[str, int]:
    return {text: top}


@task
def merge(parts: list[dict[str, int]]) -> dict[str, int]:
    return {key: sum(part.get(key, 0) for part in parts) for part in parts for key in part}


@task
def two(x: int) -> tuple[int, str]:
    return x, str(x)


@task
def one_tuple(x: int) -> tuple[int]:
    return (x,)


@task
def numbers(n: int) -> tuple[int, ...]:
    return tuple(range(n))


@task
def pair(x: int) -> Pair:
    return Pair(x, str(x))


@task
def whole(both: tuple[int, str]) -> str:
    return f"{both}"


@task
def half(x: float) -> float:
    return x / 2


@task
def maybe(x: Optional[int] = None) -> Optional[int]:
    return x


@task
def move(point: Point, by: int) -> Point:
    return Point(point.x + by, point.y)


@task
def nested(deep: dict[str, list[tuple[int, str]]]) -> int:
    return len(deep)


@task
def nothing(x: int) -> None:
    del x


@task
def big(data: bytes) -> int:
    return len(data)


@task
async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


class Group:
    @task
    @staticmethod
    def inner(x: int) -> int:
        return x * 2

    @staticmethod
    @task
    def outer(x: int) -> int:
        return x * 3


@task
def forward(x: Defined) -> int:
    return x.value


@dataclass
class Defined:
    value: int
