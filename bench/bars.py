"""Bars: figures with a limit each, in lines that a script can read: `bar NAME VALUE LIMIT ok|short|missing`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tests.servers import CannotStart


class Missing(Exception):
    """What a bar compares with is not installed."""


class Bar(NamedTuple):
    """A figure and what it must reach; at most the limit, or at least it."""

    name: str
    limit: str
    measure: Callable[[Any], float]
    at_least: bool = False

    def line(self, value: float) -> str:
        limit = float(self.limit)
        good = value >= limit if self.at_least else value <= limit
        return f"bar {self.name} {value:.2f} {self.limit} {'ok' if good else 'short'}"


def chosen(bars: Sequence[Bar], only: str) -> list[Bar]:
    """Those that were asked for by name, with commas between; all when none were.

    A name that no bar has stands for all bars that begin with it: ``efficiency`` for ``efficiency-1`` and so on.
    """
    names = {bar.name for bar in bars}
    asked = [name for name in only.split(",") if name]
    wanted = {one for name in asked for one in _meant(name, names)} if asked else names
    if unknown := wanted - names:
        known = ", ".join(bar.name for bar in bars)
        print(f"there is no {', '.join(sorted(unknown))}; there are {known}", file=sys.stderr)
        raise SystemExit(2)
    return [bar for bar in bars if bar.name in wanted]


def _meant(name: str, names: Collection[str]) -> set[str]:
    family = {one for one in names if one.startswith(f"{name}-")}
    return family if name not in names and family else {name}


def measure_each(bars: Sequence[Bar], subject: object) -> None:
    """Measure the bars one after another, and print the line of each when it is known; each gets ``subject``."""
    for bar in bars:
        print(bar.name, flush=True)
        try:
            line = bar.line(bar.measure(subject))
        except (Missing, CannotStart) as why:
            note(str(why), "-")
            line = f"bar {bar.name} missing {bar.limit} missing"
        print(line, flush=True)


def note(what: str, figure: str) -> None:
    """A line with a figure that a bar is made of."""
    print(f"  {what:<58} {figure:>24}", flush=True)
