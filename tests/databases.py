"""Where a test's database comes from: cheap, empty, and of its own.

Servers are started once per test run, by the process that sees the command line; workers learn their URLs
from the environment. Each worker keeps one migrated database per server and empties it between tests. SQLite
tests get a copy of one migrated file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
from pymysql.constants import CLIENT

from tests import servers
from tests.deadline import HANG_S

DIALECTS = ("sqlite", "postgresql", "mariadb")
DEAD_ROWS_BEFORE_VACUUM = 2000


class Unavailable(Exception):
    """This machine or this run has no such server; the message says why."""


def announce(kind: str, server: servers.Server | Exception) -> None:
    """Tell this process and the workers it starts where a server is, or why there is none."""
    found, missing = _variables(kind)
    if isinstance(server, servers.Server):
        os.environ[found] = server.url
    else:
        os.environ[missing] = str(server)


def forget(kind: str) -> None:
    for variable in _variables(kind):
        os.environ.pop(variable, None)


def announced(kind: str) -> bool:
    return any(variable in os.environ for variable in _variables(kind))


def server_url(kind: str) -> str:
    found, missing = _variables(kind)
    if url := os.environ.get(found):
        return url
    raise Unavailable(os.environ.get(missing, f"{kind} was left out of this run"))


def _variables(kind: str) -> tuple[str, str]:
    return f"MYRMIDON_TEST_{kind.upper()}", f"MYRMIDON_TEST_NO_{kind.upper()}"


def scratch_folder() -> Path:
    """In memory where possible: a test's SQLite file need not outlive the machine."""
    base = servers.SHM if os.access(servers.SHM, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="myrmidon-test-", dir=base))


def open_for_test(url: str, **options: Any) -> Any:
    """open_db, told that the test servers do not keep what they promise (their fsync is off)."""
    from myrmidon.store.engine.db import open_db

    return open_db(url, **{"durable": False} | options)


THREAD = "SELECT tid FROM information_schema.processlist WHERE id = CONNECTION_ID()"


def stay_near(server_side: int) -> None:
    """Let the other side of a connection run where this process does.

    The two take turns. On another processor each turn begins with waking that one up, and in a virtual machine
    that takes longer than most statements: a simulated seed takes a third less without. Only root may move
    processes of other users; elsewhere the tests just take longer.
    """
    with contextlib.suppress(OSError):
        os.sched_setaffinity(server_side, os.sched_getaffinity(0))


class Stock:
    """Connections that outlive the Db that used them: each knows its statements, and none has to be prepared again.

    It stands between a Db and its backend. A link that the Db closes is rolled back and kept for the next; what
    the database sees is what it sees when a client goes: the end of the transaction. The tests of the store
    itself, and those that cut connections, take real ones.
    """

    def __init__(self, url: str) -> None:
        from myrmidon.store.engine.db import _backend

        self._backend = _backend(by_socket(url), durable=False, role="server")
        self._kept: dict[bool, list[Any]] = {True: [], False: []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open(self, **options: Any) -> Any:
        from myrmidon.store.engine.db import Db

        return Db(self, **options)

    def connect(self, *, writer: bool) -> Any:
        kept = self._kept[writer]
        if kept:
            return kept.pop()
        link: Any = self._backend.connect(writer=writer)
        if str(self._backend.dialect) == "postgresql":
            link.connection.execute(b"SET plan_cache_mode = force_generic_plan")
            stay_near(link.connection.info.backend_pid)
        else:
            stay_near(link.one(THREAD)[0])
        return _kept_by(self, link, writer=writer)

    def take_back(self, link: Any, end: Callable[[], None], *, writer: bool) -> None:
        try:
            link.rollback()
        except Exception:  # noqa: BLE001 - whatever it is, the link is of no use any more
            end()
        else:
            self._kept[writer].append(link)

    def close(self) -> None:
        """Called by every Db that ends; the connections stay."""

    def end(self) -> None:
        for links in self._kept.values():
            while links:
                links.pop().really_close()


def by_socket(url: str) -> str:
    """The same database without the detour over TCP."""
    link = connect(url)
    try:
        at = link.socket()
    finally:
        link.close()
    return f"{url}?{at}" if at else url


def _kept_by(stock: Stock, link: Any, *, writer: bool) -> Any:
    link.really_close = link.close
    link.close = lambda: stock.take_back(link, link.really_close, writer=writer)
    return link


def migrate_url(url: str) -> None:
    from myrmidon.store.engine.migrate import migrate

    db = open_for_test(url)
    try:
        migrate(db, now=time.time_ns() // 1000)
    finally:
        db.close()


@functools.cache
def _migrated_pair() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """A migrated database of a server, and its logs beside it, made once in a process; the folder goes with that."""
    from myrmidon.store.engine.db import open_db
    from myrmidon.store.engine.migrate import migrate

    folder = tempfile.TemporaryDirectory(prefix="myrmidon-template-")
    file = Path(folder.name) / "main.db"
    for suffix in PAIR:
        with contextlib.closing(open_db(f"sqlite:///{file}{suffix}", durable=False, bulk=bool(suffix))) as db:
            migrate(db, now=time.time_ns() // 1000)
    return folder, file


PAIR = ("", "-logs")


def prepare(url: str) -> None:
    """Give a server that opens this database migrated files where it has none: to copy takes less than to migrate."""
    if not url.startswith("sqlite:"):
        return
    _, template = _migrated_pair()
    for suffix in PAIR:
        file = Path(url.removeprefix("sqlite:///") + suffix)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{template}{suffix}", file)


class SqliteFiles:
    """Migrated, empty SQLite files, each a copy of the first."""

    def __init__(self, folder: Path, migrate: Callable[[str], None] = migrate_url) -> None:
        self._folder = folder
        self._migrate = migrate
        self._numbers = itertools.count(1)
        self._template: Path | None = None

    def new(self) -> str:
        """The URL of a path where no file is yet."""
        return f"sqlite:///{self._next()}"

    def migrated(self) -> str:
        if self._template is None:
            template = self._folder / "template.db"
            self._migrate(f"sqlite:///{template}")
            self._template = template
        file = self._next()
        shutil.copyfile(self._template, file)
        return f"sqlite:///{file}"

    def remove(self, url: str) -> None:
        file = Path(url.removeprefix("sqlite:///"))
        for leftover in file.parent.glob(f"{file.name}*"):
            leftover.unlink(missing_ok=True)

    def _next(self) -> Path:
        return self._folder / f"{next(self._numbers)}.db"


class ServerDatabase:
    """This worker's migrated database in one server, emptied on request.

    Emptying deletes from the tables that have rows, without looking at foreign keys: on both servers that is
    much cheaper than TRUNCATE. Rows that the migrations put in are put back. A database that cannot be
    emptied (a test left a lock behind) is abandoned for a fresh one.
    """

    def __init__(self, server: str, migrate: Callable[[str], None] = migrate_url) -> None:
        self._server = server
        self._migrate = migrate
        self._rows: Rows | None = None
        self._stock: Stock | None = None
        self._url = ""

    def stock(self) -> Stock:
        """Connections to the database of the last ``emptied``."""
        if self._stock is None:
            self._stock = Stock(self._url)
        return self._stock

    def emptied(self) -> str:
        if self._rows is not None and self._emptied_in_place():
            return self._url
        self.close()
        self._url = servers.new_database(self._server)
        self._migrate(self._url)
        self._rows = Rows(connect(self._url))
        return self._url

    def close(self) -> None:
        if self._stock is not None:
            self._stock.end()
            self._stock = None
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _emptied_in_place(self) -> bool:
        assert self._rows is not None
        try:
            self._rows.empty()
        except (psycopg.Error, pymysql.err.Error):
            return False
        return True


class Rows:
    """What a migrated database holds, and how to get back there."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._dead: dict[str, int] = {}
        tables = link.tables()
        self._kept = [table for table in tables if link.rows(f'SELECT 1 FROM "{table}" LIMIT 1')]
        for table in self._kept:
            link.keep(table)
        self._any = " UNION ALL ".join(
            f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM \"{table}\")" for table in tables if table not in self._kept
        )

    def empty(self) -> None:
        filled = [str(table) for (table,) in self._link.rows(self._any)] if self._any else []
        for table, deleted in zip(filled, self._link.delete(filled), strict=True):
            self._dead[table] = self._dead.get(table, 0) + deleted
        self._link.restore([table for table in self._kept if table != "schema_version"])
        for table in [table for table, rows in self._dead.items() if rows >= DEAD_ROWS_BEFORE_VACUUM]:
            self._link.vacuum(table)
            del self._dead[table]

    def close(self) -> None:
        self._link.close()


class PostgreSQLLink:
    """An administrator's connection: looks past foreign keys, and does not wait for ever for a lock."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(
            url, autocommit=True, options=f"-c session_replication_role=replica -c lock_timeout={HANG_S:.0f}s"
        )

    def tables(self) -> list[str]:
        found = self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        return [str(name) for (name,) in found]

    def socket(self) -> str:
        folder = self.rows("SHOW unix_socket_directories")[0][0]
        return f"host={folder}" if folder else ""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(sql.encode()).fetchall()

    def run(self, sql: str) -> None:
        self._db.execute(sql.encode())

    def delete(self, tables: list[str]) -> list[int]:
        with self._db.pipeline():
            done = [self._db.execute(f'DELETE FROM "{table}"'.encode()) for table in tables]
        return [cursor.rowcount for cursor in done]

    def keep(self, table: str) -> None:
        self._db.execute(b"CREATE SCHEMA IF NOT EXISTS kept")
        self._db.execute(f'CREATE TABLE kept."{table}" AS SELECT * FROM "{table}"'.encode())

    def restore(self, tables: list[str]) -> None:
        for table in tables:
            self._db.execute(f'DELETE FROM "{table}"; INSERT INTO "{table}" SELECT * FROM kept."{table}"'.encode())

    def vacuum(self, table: str) -> None:
        self._db.execute(f'VACUUM "{table}"'.encode())

    def close(self) -> None:
        self._db.close()


class MariaDBLink:
    """The same for MariaDB, which cleans up after deletes by itself."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._name = at.path[1:]
        self._db = pymysql.connect(
            host=at.hostname, port=at.port or 0, user=at.username, database=self._name, autocommit=True,
            ssl_disabled=True, client_flag=CLIENT.MULTI_STATEMENTS, charset="utf8mb4", init_command=(
                "SET SESSION sql_mode = 'ANSI_QUOTES', foreign_key_checks = 0,"
                f" innodb_lock_wait_timeout = {HANG_S:.0f}, lock_wait_timeout = {HANG_S:.0f}"
            ),
        )  # fmt: skip

    def tables(self) -> list[str]:
        return [str(name) for name, _ in self.rows("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")]

    def socket(self) -> str:
        return f"unix_socket={self.rows('SELECT @@socket')[0][0]}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._db.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def run(self, sql: str) -> None:
        self.rows(sql)

    def delete(self, tables: list[str]) -> list[int]:
        """All in one transaction and one round trip."""
        if not tables:
            return []
        deletes = "; ".join(f'DELETE FROM "{table}"' for table in tables)
        counts = []
        with self._db.cursor() as cursor:
            cursor.execute(f"BEGIN; {deletes}; COMMIT")
            while cursor.nextset():
                counts.append(cursor.rowcount)
        return counts[: len(tables)]

    def keep(self, table: str) -> None:
        self.rows(f"CREATE DATABASE IF NOT EXISTS {self._name}_kept")
        self.rows(f'CREATE TABLE {self._name}_kept."{table}" AS SELECT * FROM "{table}"')

    def restore(self, tables: list[str]) -> None:
        for table in tables:
            self.delete([table])
            self.rows(f'INSERT INTO "{table}" SELECT * FROM {self._name}_kept."{table}"')

    def vacuum(self, table: str) -> None:
        pass

    def close(self) -> None:
        self._db.close()


Link = PostgreSQLLink | MariaDBLink


def connect(url: str) -> Link:
    return PostgreSQLLink(url) if url.startswith("postgresql:") else MariaDBLink(url)
