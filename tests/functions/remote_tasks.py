"""Functions that end-to-end tests run on bots."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Optional

from myrmidon import context, task


class Refused(Exception):
    """An exception class of a program, with an argument that is not its message."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"refused with code {self.code}"


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Item:
    name: str
    colour: Colour
    sizes: list[float]


@task
def split(text: str) -> list[str]:
    return text.split("|")


@task
def count(text: str, top: int = 10) -> dict[str, int]:
    context().progress(0.5)
    words = text.split()
    print(f"counting {len(words)} words")
    return {word: words.count(word) for word in sorted(set(words))[:top]}


@task
def merge(parts: list[dict[str, int]]) -> dict[str, int]:
    return {key: sum(part.get(key, 0) for part in parts) for key in sorted({key for part in parts for key in part})}


@task
def two(x: int) -> tuple[int, str]:
    return x + 1, f"<{x}>"


@task
def joined(both: tuple[int, str], more: Optional[dict[str, list[int]]] = None) -> str:
    return f"{both} {more}"


@task
def half(x: float) -> float:
    return x / 2


@task
def paint(item: Item, colour: Colour) -> Item:
    return Item(item.name, colour, [size * 2 for size in item.sizes])


@task
def size_of(data: bytes) -> int:
    return len(data)


@task
def make(size: int) -> bytes:
    return b"x" * size


@task
def fails(x: int) -> int:
    print("about to fail")
    raise ValueError(f"bad {x}")


@task
def refuses(code: int) -> int:
    raise Refused(code)


@task
def wrong_type(x: int) -> int:
    return str(x)  # type: ignore[return-value]


@task
def touches(path: str) -> None:
    Path(path).write_text("done")


@task
def exists(path: str) -> bool:
    return Path(path).exists()


@task
def needs(path: str) -> str:
    """Fails until there is such a file."""
    return Path(path).read_text()


@task
async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


@task
def factorial(n: int) -> int:
    """Extends its own job and returns the handle of another call."""
    return product(n, 1) if n <= 1 else context().submit(product, n, 2)


@task
def product(n: int, step: int) -> int:
    return n * step


@task
def held(path: str) -> str:
    """Runs until there is such a file."""
    while not Path(path).exists():
        time.sleep(0.01)
    return context().bot_id


@task
def kills_itself(x: int) -> int:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)
    return x


def mul(x, y):
    return x * y


def capture(*args, **kwargs):
    return args, kwargs


def raise_after(path, text):
    while not Path(path).exists():
        time.sleep(0.01)
    raise RuntimeError(text)


def wait_for_file(path, started="/dev/null"):
    Path(started).touch()
    while not Path(path).exists():
        time.sleep(0.01)


@task
def look_up(word: str, table: dict[str, int]) -> int:
    return table[word]


@task
def total_of(numbers: list[float], more: Optional[list[int]] = None) -> float:
    return sum(numbers) + sum(more or [])


@task(shared=True)
def make_table(size: int) -> dict[str, int]:
    return {f"word {number}": number for number in range(size)}


def gives_an_object():
    return object()


@task
def half_done(path: str) -> None:
    context().progress(0.5)
    while not Path(path).exists():
        time.sleep(0.01)


@task
def slow_look_up(word: str, table: dict[str, int]) -> int:
    time.sleep(0.02)
    return table[word]


@task(retries=0)
def wait_for_ever(table: dict[str, int]) -> int:
    while True:
        time.sleep(0.05)
        context().progress(0.5)


@task
def plus(a: int, b: int) -> int:
    return a + b


@task
def leaves_to_one_that_fails(x: int) -> int:
    """The result is that of a call which waits for a call that fails."""
    return context().submit(plus, context().submit(fails, x), 1)


@task
def down(depth: int) -> int:
    """Submits itself until the depth is used up."""
    return depth if depth == 0 else context().submit(down, depth - 1)
