"""Counts words in C++ and shows the most frequent ones: python count.py FILE... (after `make`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from myrmidon import Client, task


@dataclass
class Summary:
    words: int
    longest: str | None


@task(library="./libcount.so", language="cpp")
def count(text: str) -> dict[str, int]:
    raise NotImplementedError  # it is in count.cpp


@task(library="./libcount.so", language="cpp")
def merge(parts: list[dict[str, int]]) -> dict[str, int]:
    raise NotImplementedError


@task(library="./libcount.so", language="cpp")
def summarize(counts: dict[str, int]) -> Summary:
    raise NotImplementedError


@task
def top(counts: dict[str, int], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def main() -> None:
    texts = [Path(name).read_text() for name in sys.argv[1:]]
    with Client() as client:
        with client.new_job("count in C++") as job:
            total = merge(job.map(count, texts))
            summary, words = summarize(total), top(total, 3)
        found = job.result(summary)
        print(f"{found.words} words, the longest is {found.longest}")
        for word, number in job.result(words):
            print(number, word)


if __name__ == "__main__":
    main()
