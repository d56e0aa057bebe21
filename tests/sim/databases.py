"""Where a seed's empty database comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from myrmidon.store.engine.db import Db, open_db
from myrmidon.store.engine.migrate import migrate
from tests import databases, servers
from tests.sim.world import START

Fresh = Callable[[], AbstractContextManager[list[Db]]]


@contextlib.contextmanager
def databases_for(kind: str) -> Iterator[Fresh]:
    """A way to get a fresh database per seed; starts and stops the server that it needs."""
    if kind == "sqlite":
        yield in_memory
        return
    server = servers.start_all([kind])[kind]
    if not isinstance(server, servers.Server):
        raise SystemExit(f"{kind} cannot be started: {server}")
    try:
        database = databases.ServerDatabase(server.url)
        yield lambda: on_server(database)
        database.close()
    finally:
        server.stop()


@contextlib.contextmanager
def in_memory() -> Iterator[list[Db]]:
    """SQLite serves one process: the simulated servers share its one writer, in memory."""
    db = open_db("sqlite:///:memory:", durable=False)
    try:
        _template().backup(_connection(db))
        yield [db]
    finally:
        db.close()


@contextlib.contextmanager
def on_server(database: databases.ServerDatabase, n: int = 3) -> Iterator[list[Db]]:
    """A Db, with connections of its own, per simulated server; the connections serve one seed after another."""
    database.emptied()
    dbs = [database.stock().open() for _ in range(n)]
    try:
        yield dbs
    finally:
        for db in dbs:
            db.close()


_kept: list[Db] = []


def _template() -> Any:
    if not _kept:
        db = open_db("sqlite:///:memory:", durable=False)
        migrate(db, START)
        _kept.append(db)
    return _connection(_kept[0])


def _connection(db: Db) -> Any:
    link = db._writers.borrow()
    db._writers.give_back(link)
    return link.connection  # type: ignore[attr-defined]
