"""Random typed graphs, run for real, give the results of the same calls in plain Python.

A program is a list of steps; each takes earlier results or constants. It runs twice: in a block, where calls return
handles, and outside of one, where they are plain calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myrmidon import Client
from tests.functions import graph_tasks as tasks

Values = dict[str, list[Any]]
"""The results so far, by type."""


class Builder:
    """Makes one program. The same seed makes the same choices, whatever the values are."""

    def __init__(self, seed: int, map_over: Callable[[Any, Any], Any]) -> None:
        self.random = random.Random(seed)
        self.map_over = map_over
        self.values: Values = {"int": [], "str": [], "list": [], "pair": [], "box": []}

    def pick(self, kind: str, constant: Callable[[], Any]) -> Any:
        found = self.values[kind]
        return self.random.choice(found) if found and self.random.random() < 0.8 else constant()

    def number(self) -> Any:
        return self.pick("int", lambda: self.random.randrange(1_000))

    def text(self) -> Any:
        return self.pick("str", lambda: "x" * self.random.choice((0, 3, 2_000)))

    def numbers(self) -> Any:
        """A list of results and constants, or one result that is a list."""
        if self.values["list"] and self.random.random() < 0.4:
            return self.random.choice(self.values["list"])
        return [self.number() for _ in range(self.random.randrange(4))]

    def pair(self) -> Any:
        return self.pick("pair", lambda: (self.number(), self.text()))

    def step(self) -> None:
        kind, made = self.random.choice(STEPS)(self)
        self.values[kind].append(made)

    def halves(self) -> tuple[str, Any]:
        made = tasks.halves(self.number())
        number, text = made
        self.values["int"].append(number)
        self.values["str"].append(text)
        return "pair", made


STEPS: list[Callable[[Builder], tuple[str, Any]]] = [
    lambda b: ("int", tasks.add(b.number(), b.number())),
    lambda b: ("int", tasks.add(b.number())),
    lambda b: ("int", tasks.total(b.numbers())),
    lambda b: ("list", tasks.spread(b.number())),
    lambda b: ("list", b.map_over(tasks.add, b.numbers())),
    lambda b: ("str", tasks.describe(b.pair())),
    lambda b: ("int", tasks.size(b.text())),
    lambda b: ("str", tasks.repeat(b.text(), b.random.choice((None, b.number())))),
    lambda b: ("box", tasks.box(b.text(), b.numbers())),
    lambda b: ("int", tasks.open_box(b.pick("box", lambda: tasks.Box("c", [1])), b.number())),
    lambda b: ("int", tasks.lookup({"a": b.numbers(), "bc": [b.number(), 5]})),
    lambda b: b.halves(),
]


def program(seed: int, steps: int, map_over: Callable[[Any, Any], Any]) -> Values:
    builder = Builder(seed, map_over)
    for _ in range(steps):
        builder.step()
    return builder.values


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1 << 30), steps=st.integers(1, 25))
def test_random_graphs_give_what_plain_python_gives(client: Client, seed: int, steps: int):
    with client.new_job("random") as job:
        handles = program(seed, steps, lambda function, items: job.map(function, items))
    plain = program(seed, steps, lambda function, items: [function(item) for item in items])
    assert job.result(handles) == plain
