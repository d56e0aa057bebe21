"""Random typed programs: the same choices make a graph of calls in a block, and plain calls outside of one.

A program is a list of steps; each takes earlier results or constants.

    with client.new_job() as job:
        handles = program(seed, steps, job.map)
    assert job.result(handles) == program(seed, steps, plain_map)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.functions import fault_tasks
from tests.functions import graph_tasks as tasks

Values = dict[str, list[Any]]
"""The results so far, by type."""
MapOver = Callable[[Any, Any], Any]


def plain_map(function: Any, items: Any) -> Any:
    return [function(item) for item in items]


class Builder:
    """Makes one program. The same seed makes the same choices, whatever the values are."""

    def __init__(self, seed: int, map_over: MapOver) -> None:
        self.random = random.Random(seed)
        self.map_over = map_over
        self.values: Values = {"int": [], "str": [], "list": [], "pair": [], "box": []}
        self.values["int"].append(tasks.add(self.random.randrange(1_000)))  # a map over nothing adds no task to a job

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
    lambda b: ("int", tasks.countdown(b.number())),
    lambda b: ("list", tasks.fan(b.number())),
    lambda b: b.halves(),
]


def program(seed: int, steps: int, map_over: MapOver) -> Values:
    builder = Builder(seed, map_over)
    for _ in range(steps):
        builder.step()
    return builder.values


def gated_program(seed: int, steps: int, map_over: MapOver, gate: str, *, gates: int = 3, **options: Any) -> Values:
    """A program with calls in its middle that wait for a file; all numbers of the second half depend on them."""
    builder = Builder(seed, map_over)
    for _ in range(steps // 2):
        builder.step()
    wait = fault_tasks.gate.options(**options)
    builder.values["int"] = [wait(builder.number(), gate) for _ in range(gates)]
    for _ in range(steps - steps // 2):
        builder.step()
    return builder.values
