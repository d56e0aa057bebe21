"""The functions that bench/functions.py runs."""

import time

from myrmidon import task


@task
def noop(x: int) -> int:
    return x


MODULUS = 1_000_003
"""Keeps the sums of a graph with many layers within 64 bits."""


@task
def add(a: int, b: int) -> int:
    return (a + b) % MODULUS


@task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@task
def ended_at(seconds: float) -> float:
    """When it has ended, after so many seconds."""
    time.sleep(seconds)
    return time.time()


@task
def megabyte(number: int) -> bytes:
    return bytes([number % 256]) * 1_000_000


@task
def total_size(parts: list[bytes]) -> int:
    return sum(len(part) for part in parts)
