"""Every pair of calls that may race, through the interleavings of their statements, on both servers.

For n statements of one side: it takes i of them, the other side runs to its end, the first goes on; for all
i, both ways round; then random mixtures. After each, the pair's own promise and all invariants hold.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import pytest

from tests import invariants
from tests.races.pairs import PAIRS, Outcome, Pair
from tests.races.stepper import TO_ITS_END, Order, Stepper, mixed, one_inside_the_other
from tests.snapshot import Rows, Snapshot, named
from tests.world import World

RANDOM = 20
SOAK_RANDOM = 1000

pytestmark = pytest.mark.untraced


@pytest.fixture
def stepper(db_url: str, dialect: str, open_db: Callable[..., Any]) -> Iterator[Stepper]:
    if dialect == "sqlite":
        pytest.skip("SQLite has one writer: its transactions never interleave")
    made = Stepper(db_url, open_db)
    yield made
    made.close()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_race_has_one_outcome_that_keeps_every_promise(
    db: Any, db_url: str, stepper: Stepper, pair: Pair, record_property: Any
) -> None:
    with closing(Race(db, db_url, stepper, pair)) as race:
        race.through(RANDOM)
    record_property("interleavings", race.count)


@pytest.mark.soak
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_race_survives_a_thousand_random_interleavings(db: Any, db_url: str, stepper: Stepper, pair: Pair) -> None:
    with closing(Race(db, db_url, stepper, pair)) as race:
        race.through(SOAK_RANDOM)


class Race:
    """One pair on one database, run again and again from the same moment."""

    def __init__(self, db: Any, url: str, stepper: Stepper, pair: Pair) -> None:
        self.pair, self.stepper = pair, stepper
        self.world = World(db).found()
        self.facts = pair.prepare(self.world)
        self.shot = Snapshot(url)
        self.shot.keep()
        self.count = 0
        self.sound: list[Rows] = []

    def close(self) -> None:
        self.shot.close()

    def check_invariants(self) -> None:
        """Most interleavings end alike: tables that differ in nothing but the ids need not be checked again."""
        rows = named(self.shot.rows())
        if rows not in self.sound:
            invariants.check(self.world.db)
            self.sound.append(rows)

    def through(self, random: int) -> None:
        self.run(iter([(0, TO_ITS_END)]), "A alone first")
        a, b = (len(side.statements) for side in self.stepper.sides)
        orders = [one_inside_the_other(0, a)]
        if not self.pair.symmetric:
            orders.append(one_inside_the_other(1, b))
        orders.append(mixed(zlib.crc32(self.pair.name.encode()), random))
        for number, order in enumerate(chain(*orders)):
            self.run(order, f"interleaving {number}")

    def run(self, order: Order, name: str) -> None:
        w, pair, facts = self.world, self.pair, self.facts
        taken = self.stepper.run(
            [
                lambda db: pair.a(w.beside(db, slot=2), facts),
                lambda db: pair.b(w.beside(db, slot=3), facts),
            ],
            order,
        )
        a, b = self.stepper.sides
        self.count += 1
        told = f"{pair.name}, {name}:\n{taken}"
        for side in (a, b):
            if side.error is not None and not isinstance(side.error, pair.loses):
                raise AssertionError(f"{side.name} failed. {told}") from side.error
            assert pair.may_retry or not side.retries, f"{side.name} was retried. {told}"
        after = w.beside(w.db, slot=4)
        try:
            self.check_invariants()
            pair.check(after, facts, Outcome(a.result, b.result, a.error, b.error))
        except Exception as wrong:
            raise AssertionError(told) from wrong
        self.shot.restore()
