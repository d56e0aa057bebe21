"""A server that is stopped in mid-transaction holds up the others for a bounded time, and its own write counts once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from myrmidon.model.errors import StoreBusy
from myrmidon.store.engine import driver, mariadb, postgresql
from myrmidon.store.engine.db import Db, Dialect, Tx, open_db
from myrmidon.store.engine.driver import Limits
from tests.deadline import HANG_S

CREATE = "CREATE TABLE item (id {id}, n BIGINT){table}"
ADD = "UPDATE item SET n = n + 1 WHERE id = :id"
FREEZE = """
import os, signal, sys
from myrmidon.store.engine.db import Db, Insert
from tests.store.engine.test_frozen_server import ADD, backend

url, event = sys.argv[1:]
statements = []

def probe(seen, sql):
    statements.append(seen)
    if seen == event and statements.count(event) == (2 if event == "statement" else 1):
        os.kill(os.getpid(), signal.SIGSTOP)

def add_once(tx):
    if tx.insert_new(Insert("item", "id, n"), [(2, tx.attempt)]):
        tx.run(ADD, id=1)

Db(backend(url), probe=probe).write(add_once)
"""


def backend(url: str, statement_s: int = 30) -> driver.Backend:
    kind = postgresql.Postgresql if url.startswith("postgresql") else mariadb.Mariadb
    return kind(url, durable=False, limits=Limits(idle_s=1, statement_s=statement_s, read_s=statement_s))


@pytest.fixture
def url(dialect: str, new_db_url: str) -> str:
    if dialect == "sqlite":
        pytest.skip("SQLite has one server")
    return new_db_url


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    db = Db(backend(url))
    db.write(lambda tx: (tx.run(CREATE), tx.run("INSERT INTO item (id, n) VALUES (1, 0)")))
    yield db
    db.close()


def n(db: Db) -> int:
    return int(db.read(lambda tx: tx.all("SELECT n FROM item WHERE id = 1"))[0][0])


@pytest.mark.parametrize("event", ["statement", "commit"])
def test_a_server_that_is_frozen_in_a_transaction_holds_up_no_other_for_long(url: str, db: Db, event: str) -> None:
    frozen = subprocess.Popen([sys.executable, "-c", FREEZE, url, event])
    try:
        assert os.WIFSTOPPED(os.waitpid(frozen.pid, os.WUNTRACED)[1])
        db.write(lambda tx: tx.run("UPDATE item SET n = n + 10 WHERE id = 1"))
        assert n(db) == 10
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(HANG_S) == 0
        assert n(db) == 11
    finally:
        frozen.kill()
        frozen.wait()


SLEEP = {Dialect.POSTGRESQL: "SELECT pg_sleep(600)", Dialect.MARIADB: "SELECT SLEEP(600)"}


@pytest.mark.parametrize("call", [Db.read, Db.write])
def test_a_statement_that_takes_too_long_is_ended_and_not_repeated(url: str, call: Callable[..., object]) -> None:
    runs: list[int] = []
    db = Db(backend(url, statement_s=1))

    def sleep(tx: Tx) -> None:
        runs.append(1)
        tx.one(SLEEP[tx.dialect])

    with pytest.raises(StoreBusy, match="too long"):
        call(db, sleep)
    db.close()
    assert runs == [1]


SETTINGS = {
    Dialect.POSTGRESQL: """
        SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')
    """,
    Dialect.MARIADB: "SELECT CONCAT(@@idle_transaction_timeout, 's'), CONCAT(ROUND(@@max_statement_time), 's')",
}


@pytest.mark.parametrize(
    ("role", "write", "read"),
    [("server", ("10s", "30s"), ("10s", "20s")), ("tool", ("1min", "0"), ("1min", "0"))],
)
def test_connections_of_servers_are_limited_and_those_of_migrations_and_copies_are_not(
    url: str, role: str, write: tuple[str, str], read: tuple[str, str]
) -> None:
    db = open_db(url, durable=False, role=role)
    settings = SETTINGS[db.dialect]
    found = [db.write(lambda tx: tx.one(settings)), db.read(lambda tx: tx.one(settings))]
    db.close()
    shown = {"60s": "1min", "0s": "0"}
    assert [tuple(shown.get(limit, limit) for limit in row or ()) for row in found] == [write, read]
