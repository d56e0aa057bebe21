"""Functions that wait for a test, so that it can end their process, bot or server in the middle of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from myrmidon import context, task


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def _note(path: str, text: str) -> int:
    """Append a line to a file; the number of its lines."""
    with open(path, "a+") as file:
        file.write(f"{text}\n")
        file.flush()
        file.seek(0)
        return len(file.readlines())


@task
def gate(x: int, path: str) -> int:
    """Runs until there is such a file. The process is in a file beside it, which has the label and the run."""
    if not context().is_local:
        beside = Path(f"{path}.{context().label}.{context().run}")
        beside.with_suffix(f"{beside.suffix}.new").write_text(str(os.getpid()))
        beside.with_suffix(f"{beside.suffix}.new").rename(beside)
    _wait_for(path)
    return x


@task
def who(path: str, size: int) -> str:
    """Runs until there is such a file; a text of this size that depends on the bot."""
    _note(f"{path}.runs", context().bot_id)
    _wait_for(path)
    return (f"{context().bot_id} " * size)[:size]


@task
def first_word(text: str) -> str:
    return text.split(" ", 1)[0]


@task
def fails_at_first(x: int, path: str, times: int) -> int:
    """Fails so many times; a file has a line for each call."""
    if _note(path, context().label) <= times:
        raise RuntimeError(f"failed in run {context().run}")
    return x


@task
def up_to(n: int) -> list[int]:
    return list(range(n))


@task
def noted(x: int, path: str) -> int:
    """Leaves a line with its argument."""
    _note(path, str(x))
    return 2 * x


@task
def total(parts: list[int]) -> int:
    return sum(parts)


@task
def delegates(x: int, path: str, times: int) -> int:
    """Its result is that of a call which fails so many times."""
    return context().submit(fails_at_first, x, path, times)


@task
def sized(text: str, size: int) -> str:
    return text * size
