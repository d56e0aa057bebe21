"""Finds primes in Rust on all bots: python primes.py LIBRARY LAST (after `cargo build --release`)."""

from __future__ import annotations

import sys
from pathlib import Path

from myrmidon import Client, task

LIBRARY = Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/libprimes.so").resolve()


@task(library=LIBRARY, language="rust")
def primes(first: int, last: int) -> list[int]:
    raise NotImplementedError  # it is in src/lib.rs


@task(library=LIBRARY, language="rust")
def summary(parts: list[list[int]]) -> tuple[int, int | None]:
    raise NotImplementedError


def main(last: int) -> None:
    with Client() as client:
        with client.new_job("primes") as job:
            parts = [primes(first, min(first + 999, last)) for first in range(1, last + 1, 1_000)]
            number, largest = summary(parts)
        print(f"{job.result(number)} primes up to {last}, the largest is {job.result(largest)}")


if __name__ == "__main__":
    main(int(sys.argv[2]))
