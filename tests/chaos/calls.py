"""The functions that a storm calls, on bots and in plain Python, where they leave no line in the ledger."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from myrmidon import context, task

TRIES: dict[str, Any] = {"retries": 50, "reruns": 3}
"""Machines are lost all the time. A process of functions that is killed is a failure of its function."""


def _note(ledger: str, word: str) -> None:
    if not context().is_local:
        with open(ledger, "a") as file:
            file.write(f"{context().task_id[:-2]}{context().run:02x} {word}\n")


@task
def mixed(ledger: str, number: int, words: list[str]) -> dict[str, int]:
    """A small value of some structure."""
    _note(ledger, "start")
    answer = {word: number * (place + 1) for place, word in enumerate(words)}
    _note(ledger, "end")
    return answer


@task
def stretched(ledger: str, data: bytes, times: int) -> bytes:
    """Bytes that are too many for the database: their bytes are in a file."""
    _note(ledger, "start")
    answer = b"".join(hashlib.sha512(data + bytes([place % 256])).digest() for place in range(times))
    _note(ledger, "end")
    return answer


@task
def slow(ledger: str, number: int, seconds: float) -> int:
    _note(ledger, "start")
    time.sleep(seconds)
    _note(ledger, "end")
    return number * number


@task
def refused(ledger: str, number: int) -> int:
    """Always raises."""
    _note(ledger, "start")
    raise KeyError(f"no {number}")


@task
def total(ledger: str, parts: list[int]) -> int:
    _note(ledger, "start")
    _note(ledger, "end")
    return sum(parts)


@task
def grown(ledger: str, count: int) -> int:
    """Adds calls to its job, and their total is its result."""
    _note(ledger, "start")
    parts = [context().submit(slow.options(**TRIES), ledger, number, 0.0) for number in range(count)]
    answer = context().submit(total.options(**TRIES), ledger, parts)
    _note(ledger, "end")
    return answer
