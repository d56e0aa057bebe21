"""How many statements one call of a function costs: on a database server each is a round trip.

And how many rows are read by what concerns few tasks of many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.scheduler import extend, rerun
from myrmidon.store.engine.db import open_db
from myrmidon.store.engine.migrate import migrate
from tests.conftest import START
from tests.world import World, a_node, a_task, constant, finish, output_of

MANY = 500


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

    def rows_read(self, verb: Callable[[World], object]) -> int:
        """How many rows the database answers with while another server does something."""
        counter = RowCounter(self.db)
        verb(self.world.beside(counter, slot=2))
        return counter.rows


class RowCounter:
    """A Db, and a link of its transactions, which counts the rows of answers."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.link: Any = None
        self.rows = 0

    def write(self, verb: Callable[[Any], object]) -> object:
        def counting(tx: Any) -> object:
            self.link, tx._link = tx._link, self
            try:
                return verb(tx)
            finally:
                tx._link = self.link

        return self.db.write(counting)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)

    def all(self, sql: str, params: dict[str, Any]) -> Any:
        found = self.link.all(sql, params)
        self.rows += len(found)
        return found


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


def test_an_extension_reads_only_the_labels_that_it_names(counted: Counted):
    w = counted.world
    job = w.job({f"n{number}": a_node() for number in range(MANY)})
    more = {"tasks": {"x": a_node("n1")}}
    assert counted.rows_read(lambda other: other.do(extend.extend, job.job_id, more, group_id=w.group)) < MANY / 10


def test_a_rerun_with_all_that_depends_on_it_reads_only_the_edges_below(counted: Counted):
    w = counted.world
    job = w.job({"a": a_node(), **{f"n{number}": a_node("a") for number in range(MANY)}, "z": a_node("n1")})
    while runs := w.claim(n=200):
        w.report(*map(finish, runs))
    again = job.task_ids["n1"]
    assert counted.rows_read(lambda other: other.do(rerun.rerun, again, force=True, cascade=True)) < MANY / 10
    assert w.state(job.task_ids["z"]) == "WAITING"


def test_a_handshake_reads_no_queues_that_need_another_bot(counted: Counted):
    w = counted.world
    w.submit(*(a_task(dims={"id": [f"other-{number}"]}) for number in range(MANY)), a_task(dims={"id": ["b2"]}))
    assert counted.rows_read(lambda other: other.bot("b2")) < MANY / 10
    assert w.claim("b2")
