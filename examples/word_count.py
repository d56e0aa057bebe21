"""Count the words of some texts on bots: a map over a list whose length is known only at run time, and a merge.

myrmidon up                          # in another terminal
python examples/word_count.py README.md docs
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from myrmidon import Client, TaskFailed, context, task


@task
def paragraphs(text: str, size: int = 20_000) -> list[str]:
    """The text in pieces of at least ``size`` characters that end with a paragraph."""
    pieces, piece = [], ""
    for paragraph in text.split("\n\n"):
        piece += f"{paragraph}\n\n"
        if len(piece) >= size:
            pieces.append(piece)
            piece = ""
    return [*pieces, piece] if piece.strip() else pieces


@task(reruns=2, timeout="10m")
def count(text: str, top: int = 1_000) -> dict[str, int]:
    words = Counter(re.findall(r"[a-z]+", text.lower()))
    context().progress(0.9)
    print(f"{len(words)} different words")  # a function's prints are the log of its task
    return dict(words.most_common(top))


@task
def merge(parts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def read(paths: list[Path]) -> str:
    files = [file for path in paths for file in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    return "\n\n".join(file.read_text() for file in files)


def main() -> None:
    text = read([Path(argument) for argument in sys.argv[1:] or ["README.md"]])
    with Client() as client:
        with client.new_job("word count") as job:  # calls in the block build the graph; it is submitted at its end
            total = merge(job.map(count, paragraphs(text)))
        try:
            words = job.result(total)
        except TaskFailed as failure:
            sys.exit(f"{failure}\n{failure.log_tail}")
    for word, number in sorted(words.items(), key=lambda item: -item[1])[:10]:
        print(f"{number:6} {word}")


if __name__ == "__main__":
    main()
