"""Functions that random graphs are made of; each takes and returns one of a few types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from myrmidon import context, task


@dataclass
class Box:
    label: str
    content: list[int]


@task
def add(x: int, y: int = 1) -> int:
    return (x + y) % 1_000_003


@task
def total(xs: list[int]) -> int:
    return sum(xs) % 1_000_003


@task
def spread(x: int) -> list[int]:
    return [x + step for step in range(x % 4)]


@task
def halves(x: int) -> tuple[int, str]:
    return x // 2, "odd" if x % 2 else "even"


@task
def describe(pair: tuple[int, str]) -> str:
    return f"{pair[1]}:{pair[0]}"


@task
def size(text: str) -> int:
    return len(text)


@task
def repeat(text: str, times: Optional[int]) -> str:
    return text * ((times or 0) % 5)


@task
def box(label: str, content: list[int]) -> Box:
    return Box(label, content)


@task
def open_box(given: Box, scale: float) -> int:
    return int(len(given.label) * scale) + sum(given.content)


@task
def lookup(table: dict[str, list[int]]) -> int:
    return sum(len(name) * sum(items) for name, items in sorted(table.items())) % 1_000_003


@task
def countdown(n: int) -> int:
    """Extends its own job a few times, and returns the result of the last of these calls."""
    return add(n, 7) if n % 4 == 0 else context().submit(countdown, n - 1)


@task
def fan(n: int) -> list[int]:
    """Maps over a result of its own call, and returns the list that comes of it."""
    return context().map(add, context().submit(spread, n))
