"""How many statements one call of a function costs: on a database server each is a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from myrmidon.store.engine.db import open_db
from myrmidon.store.engine.migrate import migrate
from tests.conftest import START
from tests.world import World, constant, finish, output_of


class Counted:
    """A world that counts the statements of its transactions."""

    def __init__(self, folder: Path) -> None:
        self.statements: list[str] = []
        self.db = open_db(f"sqlite:///{folder}/statements.db", probe=self._probe, durable=False)
        migrate(self.db, START)
        self.world = World(self.db).found()
        self.world.bot()

    def _probe(self, event: str, sql: str) -> None:
        if event == "statement":
            self.statements.append(sql)

    def count(self, verb: Callable[[], object]) -> int:
        self.statements.clear()
        verb()
        return len(self.statements)


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    found = Counted(tmp_path)
    yield found
    found.db.close()


def test_one_call_of_a_function_costs_few_statements(counted: Counted):
    w = counted.world
    node = w.call_of(constant())
    w.job({"f": node}, key="the first one creates the queue")
    w.report(*(finish(run, b"\x01") for run in w.claim()))
    assert counted.count(lambda: w.job({"f": node}, key="k")) <= 20
    assert counted.count(lambda: w.claim()) <= 15
    runs = w.claim(nonce=w.nonces["b1"])
    assert counted.count(lambda: w.report(finish(runs[0], b"\x01"))) <= 15


def test_one_step_of_a_chain_costs_few_statements(counted: Counted):
    w = counted.world
    w.job({"a": w.call_of(constant()), "b": w.call_of(output_of("a")), "c": w.call_of(output_of("b"))})
    w.report(finish(w.claim()[0], b"\x01"))
    runs = w.claim()
    assert counted.count(lambda: w.report(finish(runs[0], b"\x01"))) <= 23
    assert counted.count(lambda: w.claim()) <= 15


def test_all_events_of_a_transaction_are_stored_with_one_statement(counted: Counted):
    counted.count(lambda: counted.world.job({name: counted.world.call_of(constant()) for name in "abc"}))
    assert sum("outbox " in f"{sql} " for sql in counted.statements) == 1
