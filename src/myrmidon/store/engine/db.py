"""The door to the database: transactions that are run again until they are done.

    db.write(fn)   runs fn(tx) in a transaction and commits; fn may be run several times, so it must do
                   nothing but talk to tx
    db.read(fn)    runs fn(tx) on a reader

What is retried: a deadlock, a lock that did not come, a lost connection. When the connection is lost *during*
COMMIT nobody knows whether it happened; fn is run again with ``tx.attempt`` raised, and a verb then asks
first whether its own work is already there. Everything fn raises rolls back and reaches the caller.

This file knows no driver; sqlite.py, postgresql.py and mariadb.py know one each.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from myrmidon.model.errors import StoreBusy, StoreError, StoreRefused, StoreUnavailable
from myrmidon.model.ids import Micros
from myrmidon.store.engine.driver import Backend, ConnectionLost, Link, LostRace, Trouble
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.engine.pool import Pool
from myrmidon.store.engine.sql import Dialect, Insert, Row, RowDelete, RowUpdate

__all__ = [
    "open_db",
    "Db",
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

It may raise. Before COMMIT the transaction is rolled back; at "committed" the work stays done and only the
caller hears of the error, as when a reply is lost. ``ConnectionLost`` is treated as the real thing.
"""

MOST_TRIES = 10
FIRST_PAUSE_S = 0.004
LONGEST_PAUSE_S = 0.5
RETRIED = (Trouble.BUSY, Trouble.LOST)


class LostReply(Exception):
    """For probes: the commit happened, but the caller never hears of it."""


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

    Nothing is created but an empty SQLite file. ``durable=False`` accepts servers that may lose commits; only
    tests use it. ``role="reader"`` never writes, and so may look into an SQLite file that a server has open.
    ``bulk``: an SQLite file that is yet to be made will hold large values, like the bytes of logs.
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
    if scheme == "sqlite":
        from myrmidon.store.engine.sqlite import Sqlite

        return Sqlite(url.removeprefix("sqlite:///"), durable=durable, exclusive=role == "server", bulk=bulk)
    if scheme in ("postgresql", "postgres"):
        from myrmidon.store.engine.postgresql import Postgresql

        return Postgresql(url, durable=durable)
    if scheme in ("mysql", "mariadb"):
        from myrmidon.store.engine.mariadb import Mariadb

        return Mariadb(url, durable=durable)
    raise StoreRefused(f"A database URL starts with sqlite:///, postgresql:// or mysql://, not {scheme}:.")


class Db:
    """One database, used from many threads."""

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
        self._broken = ""
        self._writers = Pool(lambda: backend.connect(writer=True), backend.writers)
        self._readers = (
            Pool(lambda: backend.connect(writer=False), backend.readers) if backend.readers else self._writers
        )

    def connect(self) -> None:
        """Connect once, so that a wrong URL or an unsafe server is known at the start."""
        pool = self._readers if self._read_only else self._writers
        pool.give_back(pool.borrow())

    def write(self, fn: Callable[[Tx], T]) -> T:
        """Run fn in a transaction and commit; the result is given out only after the commit.

        Raises StoreBusy or StoreUnavailable when all tries are used up. Not to be called from within fn.
        """
        attempt = 1
        for tries in range(1, MOST_TRIES + 1):
            link = self._writer()
            tx = Tx(link, self.dialect, attempt, self._probe)
            try:
                link.begin()
                result = fn(tx)
                tx.commit()
            except BaseException as error:
                trouble = Trouble.BUSY if isinstance(error, LostRace) else link.trouble(error)
                if trouble is Trouble.BROKEN:
                    self._broken = str(error)
                _undo(self._writers, link, error)
                if trouble is None:
                    raise
                if tries == MOST_TRIES or trouble not in RETRIED:
                    raise _gave_up(trouble, error) from error
                attempt += tx.committing and trouble is Trouble.LOST
            else:
                self._writers.give_back(link)
                return result
            self._pause(tries)
        raise AssertionError

    def read(self, fn: Callable[[Tx], T]) -> T:
        """Run fn on a reader, which refuses to write.

        SQLite shows it one moment; the others show each statement the latest committed state.
        """
        for tries in range(1, MOST_TRIES + 1):
            link = self._readers.borrow()
            try:
                link.begin()
                result = fn(Tx(link, self.dialect, 1, self._probe))
                link.rollback()
            except BaseException as error:
                trouble = link.trouble(error)
                _undo(self._readers, link, error)
                if trouble is None:
                    raise
                if tries == MOST_TRIES or trouble not in RETRIED:
                    raise _gave_up(trouble, error) from error
            else:
                self._readers.give_back(link)
                return result
            self._pause(tries)
        raise AssertionError

    def clock(self) -> Micros:
        """The time all servers agree on: the database's own; on SQLite, with one server, the process's."""
        if not self._backend.clock_sql:
            return time.time_ns() // 1000
        row = self.read(lambda tx: tx.one(self._backend.clock_sql))
        return int(row[0]) if row else 0

    @property
    def broken(self) -> str:
        """How the disk failed; empty while nothing is known to be wrong with it."""
        return self._broken

    def close(self) -> None:
        """Close what is idle now, and each link in use when it comes back. Readers first, see Sqlite."""
        self._readers.close()
        self._writers.close()
        self._backend.close()

    def _writer(self) -> Link:
        """A link to write on. Asks whether the disk failed only when its turn has come."""
        if self._read_only:
            raise StoreRefused("This database was opened to read only.")
        link = self._writers.borrow()
        if self._broken:
            self._writers.give_back(link)
            raise StoreUnavailable(f"The disk failed ({self._broken}); restart the server after mending it.")
        return link

    def _pause(self, tries: int) -> None:
        """Full jitter: two that got into each other's way must not meet again."""
        longest = min(FIRST_PAUSE_S * 2**tries, LONGEST_PAUSE_S)
        self._sleep(random.uniform(0, longest))  # noqa: S311 - nothing secret about it


class Tx:
    """A transaction, seen by the function that runs in it."""

    __slots__ = ("_depth", "_link", "_probe", "attempt", "committed", "committing", "dialect", "effects")

    def __init__(self, link: Link, dialect: Dialect, attempt: int, probe: Probe | None) -> None:
        self._link = link
        self._probe = probe
        self._depth = 0
        self.dialect = dialect
        self.attempt = attempt
        """1, or more when an earlier run of fn may have been committed."""
        self.effects = CommitEffects()
        """What this attempt did that others wait for."""
        self.committing = False
        self.committed = False

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        if self._probe:
            self._probe("statement", sql)
        return self._link.all(sql, params)

    def one(self, sql: str, /, **params: Any) -> Row | None:
        """The first row, or None."""
        if self._probe:
            self._probe("statement", sql)
        return self._link.one(sql, params)

    def run(self, sql: str, /, **params: Any) -> int:
        """The number of rows that matched, whether or not they changed."""
        if self._probe:
            self._probe("statement", sql)
        return self._link.run(sql, params)

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        if self._probe:
            self._probe("statement", f"INSERT INTO {statement.table}")
        self._link.insert(statement, rows)

    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int:
        """Insert the rows whose keys are not there yet; how many those were."""
        if self._probe:
            self._probe("statement", f"INSERT INTO {statement.table}")
        return self._link.insert_new(statement, rows)

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        """The number of rows that matched key and guard."""
        if self._probe:
            self._probe("statement", f"UPDATE {statement.table}")
        return self._link.update_rows(statement, rows)

    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int:
        """Delete single rows by their keys; how many were there."""
        if self._probe:
            self._probe("statement", f"DELETE FROM {statement.table}")
        return self._link.delete_rows(statement, rows)

    def savepoint(self, fn: Callable[[Tx], T]) -> T:
        """Run fn; if it raises, only its own work is undone."""
        self._depth += 1
        name = f"part_{self._depth}"  # MariaDB forgets a savepoint when its name is used again
        self._link.run(f"SAVEPOINT {name}", {})
        try:
            return fn(self)
        except BaseException:
            self._link.run(f"ROLLBACK TO SAVEPOINT {name}", {})
            raise
        finally:
            self._depth -= 1
            self._link.run(f"RELEASE SAVEPOINT {name}", {})

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error ended the whole transaction, so that nothing more can be done in it."""
        return self._link.trouble(error) is not None

    def commit(self) -> None:
        """Called by Db.write alone."""
        if self._probe:
            self._probe("commit", "")
        self.committing = True
        self._link.commit()
        self.committed = True
        if self._probe:
            self._probe("committed", "")


def _undo(pool: Pool, link: Link, error: BaseException) -> None:
    """Roll back and return the link, or throw it away where that is not safe."""
    lost = link.trouble(error) is Trouble.LOST
    if not link.survives and (lost or not isinstance(error, Exception)):
        pool.discard(link)
        if lost:
            pool.forget_idle()
        return
    try:
        link.rollback()
    except Exception:  # noqa: BLE001 - whatever it is, the link is of no use any more
        pool.discard(link)
    else:
        pool.give_back(link)


def _gave_up(trouble: Trouble, error: BaseException) -> StoreError:
    if trouble is Trouble.BUSY:
        return StoreBusy(f"Others were in the way {MOST_TRIES} times in a row ({error}).")
    return StoreUnavailable(f"The database failed ({error}).")
