"""Transactions with retries, on any of the databases.

    db.write(fn)   runs fn(tx) in a transaction and commits; fn may be run several times, so it must have no
                   effects but through tx
    db.read(fn)    runs fn(tx) on a read-only connection

Retried are deadlocks, lock timeouts and lost connections. When the connection is lost *during* COMMIT, the outcome is
unknown: fn is run again with a greater ``tx.attempt``, and then has to check first whether its work was committed. Any
exception of fn rolls back and is raised to the caller.

The drivers are in sqlite.py, postgresql.py and mariadb.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

from myrmidon.model.errors import StoreBusy, StoreError, StoreFull, StoreRefused, StoreUnavailable
from myrmidon.model.ids import Micros
from myrmidon.store.engine.driver import (
    SERVER_LIMITS,
    TOOL_LIMITS,
    Backend,
    ConnectionLost,
    DbErrorKind,
    Link,
    LostRace,
)
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.engine.pool import Pool
from myrmidon.store.engine.sql import Dialect, Insert, Row, RowDelete, RowUpdate

__all__ = [
    "open_db",
    "Db",
    "Transactions",
    "Tx",
    "Dialect",
    "Insert",
    "Row",
    "RowDelete",
    "RowUpdate",
    "Probe",
    "ConnectionLost",
    "LostRace",
    "LostReply",
]

T = TypeVar("T")

Probe = Callable[[str, str], None]
"""probe(event, sql), for tests: "statement" before each one, "commit" before and "committed" after COMMIT.

It may raise. Before COMMIT the transaction is rolled back; at "committed" the work stays committed and only the caller
gets the error, as when a reply is lost. ``ConnectionLost`` is treated as a lost connection.
"""

MAX_TRIES = 10
FIRST_PAUSE_S = 0.004
MAX_PAUSE_S = 0.5
RETRIED_KINDS = (DbErrorKind.BUSY, DbErrorKind.LOST)


class LostReply(Exception):
    """Raised by a probe to simulate a reply that is lost after the commit."""


def open_db(
    url: str,
    *,
    probe: Probe | None = None,
    sleep: Callable[[float], None] = time.sleep,
    durable: bool = True,
    role: str = "server",
    bulk: bool = False,
) -> Db:
    """Open ``sqlite:///path``, ``sqlite:///:memory:``, ``postgresql://...`` or ``mysql://user@host:port/name``.

    Creates nothing but an empty SQLite file. ``durable=False`` accepts servers that may lose commits; only tests use
    it. ``role="reader"`` never writes, and so may open an SQLite file that a server uses. With ``role="tool"``
    statements may take as long as they need, as in migrations. ``bulk``: if the SQLite file is created, it is created
    for large values, such as logs.
    """
    backend = _backend(url, durable=durable, role=role, bulk=bulk)
    db = Db(backend, probe=probe, sleep=sleep, read_only=role == "reader")
    try:
        db.connect()
    except BaseException:
        db.close()
        raise
    return db


def _backend(url: str, *, durable: bool, role: str, bulk: bool = False) -> Backend:
    scheme = url.partition(":")[0]
    limits = TOOL_LIMITS if role == "tool" else SERVER_LIMITS
    if scheme == "sqlite":
        from myrmidon.store.engine.sqlite import Sqlite

        return Sqlite(url.removeprefix("sqlite:///"), durable=durable, exclusive=role != "reader", bulk=bulk)
    if scheme in ("postgresql", "postgres"):
        from myrmidon.store.engine.postgresql import Postgresql

        return Postgresql(url, durable=durable, limits=limits)
    if scheme in ("mysql", "mariadb"):
        from myrmidon.store.engine.mariadb import Mariadb

        return Mariadb(url, durable=durable, limits=limits)
    raise StoreRefused(f"A database URL must start with sqlite:///, postgresql:// or mysql://, not {scheme}:.")


class Transactions(Protocol):
    """What work of many transactions needs of a database."""

    def write(self, fn: Callable[[Tx], T], *, patient: bool = True) -> T: ...
    def read(self, fn: Callable[[Tx], T]) -> T: ...
    def clock(self) -> Micros: ...


class Db:
    """One database; safe to use from many threads."""

    def __init__(
        self,
        backend: Backend,
        *,
        probe: Probe | None = None,
        sleep: Callable[[float], None] = time.sleep,
        read_only: bool = False,
    ) -> None:
        self.dialect = backend.dialect
        self._backend = backend
        self._probe = probe
        self._sleep = sleep
        self._read_only = read_only
        self._disk_error = ""
        self.on_disk_error: Callable[[str], None] | None = None
        """Called once, on the thread that wrote, when nothing more can be written until the process is restarted."""
        self._is_full = False
        self._writers = Pool(lambda: backend.connect(writer=True), backend.writers)
        self._readers = (
            Pool(lambda: backend.connect(writer=False), backend.readers) if backend.readers else self._writers
        )

    def connect(self) -> None:
        """Connect once, so that a wrong URL or an unsafe server is reported at the start."""
        pool = self._readers if self._read_only else self._writers
        pool.give_back(pool.borrow())

    def write(self, fn: Callable[[Tx], T], *, patient: bool = True) -> T:
        """Run fn in a transaction and commit; returns its result after the commit.

        Raises StoreBusy, StoreFull or StoreUnavailable after the last try. Must not be called from within fn. If it is
        not ``patient``, a conflict raises StoreBusy at once, and a lock is waited for only briefly.
        """
        attempt = 1
        if self._read_only:
            raise StoreRefused("This database was opened read-only.")
        for tries in range(1, MAX_TRIES + 1):
            link = self._writers.borrow()
            if self._disk_error:  # looked at after the wait for a link, because the disk may fail meanwhile
                self._writers.give_back(link)
                raise StoreUnavailable(f"The disk failed ({self._disk_error}); the server must be restarted.")
            tx = Tx(link, self.dialect, attempt, self._probe)
            try:
                link.begin()
                if not patient:
                    link.wait_briefly_for_locks()
                result = fn(tx)
                tx.write_deferred()
                if self._probe:
                    self._probe("commit", "")
                tx.committing = True
                link.commit()
                tx.committed = True
                if self._probe:
                    self._probe("committed", "")
            except BaseException as error:
                kind = DbErrorKind.BUSY if isinstance(error, LostRace) else link.error_kind(error)
                if kind is DbErrorKind.BROKEN:
                    self._record_disk_error(str(error))
                self._is_full = self._is_full or kind is DbErrorKind.FULL
                _roll_back(self._writers, link, error)
                if kind is None:
                    raise
                gives_up = tries == MAX_TRIES or (kind is DbErrorKind.BUSY and not patient)
                if gives_up or kind not in RETRIED_KINDS:
                    raise _final_error(kind, error, tries) from error
                attempt += tx.committing and kind is DbErrorKind.LOST
            else:
                self._writers.give_back(link)
                self._is_full = False
                return result
            self._pause(tries)
        raise AssertionError

    def read(self, fn: Callable[[Tx], T]) -> T:
        """Run fn on a read-only connection.

        On SQLite fn sees one snapshot; on the others each statement sees the latest committed state.
        """
        for tries in range(1, MAX_TRIES + 1):
            link = self._readers.borrow()
            try:
                link.begin()
                result = fn(Tx(link, self.dialect, 1, self._probe))
                link.rollback()
            except BaseException as error:
                kind = link.error_kind(error)
                _roll_back(self._readers, link, error)
                if kind is None:
                    raise
                if tries == MAX_TRIES or kind not in RETRIED_KINDS:
                    raise _final_error(kind, error, tries) from error
            else:
                self._readers.give_back(link)
                return result
            self._pause(tries)
        raise AssertionError

    def clock(self) -> Micros:
        """The time of the database, which all servers share; on SQLite, with one server, that of this process."""
        if not self._backend.clock_sql:
            return time.time_ns() // 1000
        row = self.read(lambda tx: tx.one(self._backend.clock_sql))
        return int(row[0]) if row else 0

    @property
    def disk_error(self) -> str:
        """How the disk failed; empty while no failure is known."""
        return self._disk_error

    def disk_is_full(self) -> bool:
        """Whether the last write failed for lack of space, or hardly any is left where this machine can tell."""
        return self._is_full or self._backend.disk_is_full()

    def close(self) -> None:
        """Close idle connections now and the others when they are returned. Readers first, see Sqlite.close."""
        self._readers.close()
        self._writers.close()
        self._backend.close()

    def _record_disk_error(self, error: str) -> None:
        is_first, self._disk_error = not self._disk_error, error
        if is_first and self.on_disk_error:
            self.on_disk_error(error)

    def _pause(self, tries: int) -> None:
        """Sleep with exponential backoff and full jitter, so that two conflicting transactions do not meet again."""
        longest = min(FIRST_PAUSE_S * 2**tries, MAX_PAUSE_S)
        self._sleep(random.uniform(0, longest))  # noqa: S311 - not used for security


class Tx:
    """A transaction, as passed to the function that runs in it.

    Its statements are those of the link itself, so that each costs one call:

        all(sql, **params)            the rows
        one(sql, **params)            the first row, or None
        run(sql, **params)            the number of rows that matched, whether or not they changed
        insert(statement, rows)
        insert_new(statement, rows)   inserts the rows whose keys do not exist yet; how many were inserted
        update_rows(statement, rows)  updates single rows by their keys; how many matched key and guard
        delete_rows(statement, rows)  deletes single rows by their keys; how many were deleted
    """

    __slots__ = (
        "_deferred",
        "_depth",
        "_link",
        "_probe",
        "all",
        "attempt",
        "committed",
        "committing",
        "delete_rows",
        "dialect",
        "effects",
        "insert",
        "insert_new",
        "one",
        "run",
        "update_rows",
    )

    def __init__(self, link: Link, dialect: Dialect, attempt: int, probe: Probe | None) -> None:
        self._probe = probe
        self._depth = 0
        self._deferred: dict[Callable[[Tx, list[Any]], None], list[Any]] = {}
        self.dialect = dialect
        self.attempt = attempt
        """1, or more when an earlier run of fn may have been committed."""
        self.effects = CommitEffects()
        """What this attempt has written that others wait for."""
        self.committing = False
        self.committed = False
        if probe is not None:
            link = cast("Link", ProbedLink(link, probe))
        self._link = link
        self.all = link.all
        self.one = link.one
        self.run = link.run
        self.insert = link.insert
        self.insert_new = link.insert_new
        self.update_rows = link.update_rows
        self.delete_rows = link.delete_rows

    def defer(self, write: Callable[[Tx, list[Any]], None], rows: Sequence[Any]) -> None:
        """Call ``write`` with these rows and all others deferred to it, at the end of the transaction or savepoint.

        For rows that many steps of a transaction add one by one, and that are cheaper to write together.
        """
        self._deferred.setdefault(write, []).extend(rows)

    def deferred(self, write: Callable[[Tx, list[Any]], None]) -> list[Any]:
        """What is deferred to ``write`` so far; the caller may take some of it."""
        return self._deferred.get(write) or []

    def write_deferred(self) -> None:
        """Write deferred rows now, because a statement that follows reads or deletes them."""
        deferred, self._deferred = self._deferred, {}
        for write, rows in deferred.items():
            write(self, rows)

    def savepoint(self, fn: Callable[[Tx], T]) -> T:
        """Run fn in a savepoint; if it raises, only its own statements are rolled back."""
        outer, self._deferred = self._deferred, {}
        self._depth += 1
        name = f"part_{self._depth}"  # MariaDB drops a savepoint when its name is used again
        self._link.run(f"SAVEPOINT {name}")
        try:
            result = fn(self)
            self.write_deferred()
        except BaseException as error:
            if not self.ends_transaction(error):  # else the savepoint may be gone too
                self._link.run(f"ROLLBACK TO SAVEPOINT {name}")
                self._link.run(f"RELEASE SAVEPOINT {name}")
            raise
        else:
            self._link.run(f"RELEASE SAVEPOINT {name}")
            return result
        finally:
            self._deferred = outer
            self._depth -= 1

    def ends_transaction(self, error: BaseException) -> bool:
        """Whether an error ended the whole transaction, so that no further statement may run in it."""
        return self._link.error_kind(error) is not None or not self._link.in_transaction()


class ProbedLink:
    """A link whose statements are told to a probe first. Savepoints are not."""

    def __init__(self, link: Link, probe: Probe) -> None:
        self._link = link
        self._probe = probe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        self._probe("statement", sql)
        return self._link.all(sql, **params)

    def one(self, sql: str, /, **params: Any) -> Row | None:
        self._probe("statement", sql)
        return self._link.one(sql, **params)

    def run(self, sql: str, /, **params: Any) -> int:
        if "SAVEPOINT" not in sql:
            self._probe("statement", sql)
        return self._link.run(sql, **params)

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        self._probe("statement", f"INSERT INTO {statement.table}")
        self._link.insert(statement, rows)

    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int:
        self._probe("statement", f"INSERT INTO {statement.table}")
        return self._link.insert_new(statement, rows)

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        self._probe("statement", f"UPDATE {statement.table}")
        return self._link.update_rows(statement, rows)

    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int:
        self._probe("statement", f"DELETE FROM {statement.table}")
        return self._link.delete_rows(statement, rows)


def _roll_back(pool: Pool, link: Link, error: BaseException) -> None:
    """Roll back and return the link to the pool, or close it where a rollback is not safe."""
    lost = link.error_kind(error) is DbErrorKind.LOST
    if not link.reusable_after_error and (lost or not isinstance(error, Exception)):
        pool.discard(link)
        if lost:
            pool.close_idle()
        return
    try:
        link.rollback()
    except Exception:  # noqa: BLE001 - after any error here the link is unusable
        pool.discard(link)
    else:
        pool.give_back(link)


def _final_error(kind: DbErrorKind, error: BaseException, tries: int) -> StoreError:
    if kind is DbErrorKind.BUSY:
        return StoreBusy(f"The transaction conflicted with others {tries} times in a row ({error}).")
    if kind is DbErrorKind.SLOW:
        return StoreBusy(f"A statement took too long ({error}).")
    if kind is DbErrorKind.FULL:
        return StoreFull(f"The disk of the database is full ({error}).")
    return StoreUnavailable(f"The database failed ({error}).")
