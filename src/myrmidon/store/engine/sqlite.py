"""The SQLite driver: one file, one server, one writer.

All writes and checkpoints use one connection, because releases before 3.51.3 can corrupt a WAL that two connections
reset at once. Readers are read-only. A second server on the same file is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from myrmidon.model.errors import StoreRefused, StoreUnavailable
from myrmidon.model.job import FailurePolicy, RequiresPolicy
from myrmidon.model.states import JobState, RunState, TaskState
from myrmidon.model.task_request import Language
from myrmidon.store.engine.driver import ConnectionLost, DbErrorKind
from myrmidon.store.engine.sql import (
    Dialect,
    Insert,
    Row,
    RowDelete,
    RowUpdate,
    compiled,
    insert_text,
    json_text,
    row_update_text,
    rows_delete_text,
)

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:
        import sqlite3

log = logging.getLogger(__name__)

# The driver adapts every value that is not exactly a number or a string, and its search for an adapter of None or an
# enumeration is slow. With registered adapters the insert of a wide row is three times as fast.
sqlite3.register_adapter(type(None), dict[None, None]().get)
for _enumeration in (TaskState, RunState, JobState, RequiresPolicy, FailurePolicy, Language):
    sqlite3.register_adapter(_enumeration, str.__str__)

MIN_VERSION = (3, 35, 0)
WITHOUT_WAL_RACE = (3, 51, 3)
MIN_FREE_BYTES = 8 << 20
"""A disk with less free space counts as full: SQLite needs some for its journal to delete anything."""
BUSY_TIMEOUT_S = 5.0
PRIVATE_MODE = 0o600
WRITER_CACHE_KIB = 16 << 10
"""Large enough for the first rows of a thousand deep queues, which a claim reads."""
BULK_PAGE = 16 << 10
"""Page size of a file with large values: a megabyte costs half of what it does with 4 KiB, a line no more."""
BULK_CHECKPOINT = 256
"""In pages: the same number of bytes as for other files, because commits wait for a checkpoint."""
ROWS_PER_INSERT = (64, 16, 4, 3, 2, 1)
"""A few fixed sizes, because each is a separate prepared statement."""

_ERROR_KINDS = {
    sqlite3.SQLITE_BUSY: DbErrorKind.BUSY,
    sqlite3.SQLITE_LOCKED: DbErrorKind.BUSY,
    sqlite3.SQLITE_FULL: DbErrorKind.FULL,
    sqlite3.SQLITE_IOERR: DbErrorKind.BROKEN,
    sqlite3.SQLITE_CORRUPT: DbErrorKind.BROKEN,
    sqlite3.SQLITE_NOTADB: DbErrorKind.BROKEN,
}


class Sqlite:
    """The file at ``path``, or a database in memory that exists as long as this object.

    ``bulk`` matters only when the file is created: it is then made for large values.
    """

    dialect = Dialect.SQLITE
    writers = 1
    clock_sql = ""

    def __init__(
        self, path: str, *, durable: bool = True, exclusive: bool = True, readers: int = 30, bulk: bool = False
    ) -> None:
        _check_version()
        self.path = path
        self.durable = durable
        self.bulk = bulk
        self.readers = 0 if path == ":memory:" else readers
        self._lock = lock(path) if exclusive and self.readers else None

    def connect(self, *, writer: bool) -> SqliteLink:
        mode = "rwc" if writer else "ro"
        file = Path(self.path).absolute().as_uri()
        target = f"{file}?mode={mode}" if self.readers else self.path
        if writer and self.readers:
            make_private(Path(self.path))
        try:
            connection = sqlite3.connect(
                target,
                uri=target != self.path,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=1024,
            )
            self._prepare(connection, writer=writer)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"SQLite cannot open {self.path}: {error}.") from error
        return SqliteLink(connection, self, begin="BEGIN IMMEDIATE" if writer else "BEGIN")

    def disk_is_full(self) -> bool:
        return bool(self.readers) and shutil.disk_usage(Path(self.path).parent).free < MIN_FREE_BYTES

    def close(self) -> None:
        """Unlock the file. Called after the links are closed: closing the last one checkpoints."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def _prepare(self, connection: sqlite3.Connection, *, writer: bool) -> None:
        if writer and self.bulk:
            connection.execute(f"PRAGMA page_size = {BULK_PAGE}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {BULK_CHECKPOINT}").fetchall()
        if writer:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.durable else 'OFF'}")
            connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
        else:
            connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA foreign_keys = ON")


class SqliteLink:
    reusable_after_error = True

    def __init__(self, connection: sqlite3.Connection, file: Sqlite, *, begin: str) -> None:
        self.connection = connection
        self._file = file
        self.execute = connection.execute
        self.begin = partial(connection.execute, begin)
        self.commit = partial(connection.execute, "COMMIT")

    def wait_briefly_for_locks(self) -> None:
        """There is one writer, and no row is locked."""

    def rollback(self) -> None:
        """Some errors end the transaction; then there is nothing to roll back."""
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def error_kind(self, error: BaseException) -> DbErrorKind | None:
        """On a full disk SQLite reports an I/O error where it extends the index of the WAL, for example.

        It says more than that in an extended code, which pysqlite3 does not pass on, so the disk is asked.
        """
        if isinstance(error, ConnectionLost):
            return DbErrorKind.LOST
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_IOERR and self._file.disk_is_full():
            return DbErrorKind.FULL
        return _ERROR_KINDS.get(code)

    # Statements without lists, most of them, go to the driver in one call.

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        text, lists, _ = _prepared(sql)
        return self.execute(bind(sql, params) if lists else text, params).fetchall()

    def one(self, sql: str, /, **params: Any) -> Row | None:
        text, lists, _ = _prepared(sql)
        row: Row | None = self.execute(bind(sql, params) if lists else text, params).fetchone()
        return row

    def run(self, sql: str, /, **params: Any) -> int:
        text, lists, _ = _prepared(sql)
        return max(self.execute(bind(sql, params) if lists else text, params).rowcount, 0)

    def insert(self, statement: Insert, rows: Sequence[Row], *, only_new: bool = False) -> int:
        done = inserted = 0
        for size in ROWS_PER_INSERT:
            while len(rows) - done >= size:
                text = insert_text(Dialect.SQLITE, statement, size, only_new=only_new)
                values = rows[done] if size == 1 else tuple(chain.from_iterable(rows[done : done + size]))
                inserted += self.execute(text, values).rowcount
                done += size
        return inserted

    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int:
        return self.insert(statement, rows, only_new=True)

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        return self.connection.executemany(row_update_text(Dialect.SQLITE, statement), rows).rowcount

    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int:
        return self.connection.executemany(rows_delete_text(Dialect.SQLITE, statement), rows).rowcount if rows else 0


_LIMIT = re.compile(r"\bLIMIT :\w+")
_IN_LIST = re.compile(r"\bIN \(SELECT value FROM json_each\((:\w+)\)\)")


def bind(sql: str, params: dict[str, Any]) -> str:
    """The text that is executed with these parameters, in which lists are replaced by what the text expects."""
    text, lists, text_of_one = _prepared(sql)
    for name in lists:
        values = list(params[name])
        if text_of_one and len(values) == 1:
            params[name] = values[0]
            return text_of_one
        params[name] = json_text(values)
    return text


@lru_cache(maxsize=4096)
def _prepared(sql: str) -> tuple[str, frozenset[str], str]:
    """The text, the names of its lists, which are passed as JSON, and the text for a list of one value.

    The last one compares with the value itself, which costs half as much. It is empty if there are several lists, or
    if the list is used as a table.

    SQLite plans by the value of a bare ``LIMIT :n``, and prepares the statement again whenever it is bound: 17 us of 23
    for a claim. In an expression such as ``:n + 0`` it ignores the value.
    """
    text, binds = compiled(Dialect.SQLITE, sql)
    text = _LIMIT.sub(r"\g<0> + 0", text)
    lists = [(name, kind) for name, kind in binds if kind != "value"]
    names = frozenset(name for name, _ in lists)
    has_text_of_one = len(names) == 1 and all(kind.startswith("in") for _, kind in lists)
    return text, names, _IN_LIST.sub(r"= \1", text) if has_text_of_one else ""


def _check_version() -> None:
    if sqlite3.sqlite_version_info < MIN_VERSION:
        raise StoreRefused(f"SQLite {sqlite3.sqlite_version} is too old; install the package pysqlite3.")
    if sqlite3.sqlite_version_info < WITHOUT_WAL_RACE:
        log.warning(
            "SQLite %s can corrupt a database file during checkpoints; install pysqlite3",
            sqlite3.sqlite_version,
        )


def lock(path: str) -> IO[bytes]:
    """Lock a database file, which need not exist, until the returned file is closed or this process ends."""
    try:
        held = os.fdopen(os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT, PRIVATE_MODE), "ab")
    except OSError as error:
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}.") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise StoreRefused(
            f"Another server uses {path}. SQLite supports one server only: stop the other one, use another file,"
            " or use PostgreSQL or MariaDB."
        ) from error
    return held


def make_private(path: Path) -> None:
    """Create an empty file that only its owner can read, because it will contain keys. SQLite copies the permissions.

    An existing file is not opened: closing it would release the locks that SQLite has on it.
    """
    with suppress(OSError):  # SQLite will report the error
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))


def backup_file(path: str, to: Path) -> None:
    """Copy a consistent state of a file while it is in use; writers do not wait.

    All pages in one step: a copy in several steps would restart after every write.
    """
    make_private(to)
    try:
        with closing(_open_read_only(Path(path))) as source, closing(sqlite3.connect(to)) as copy:
            source.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite cannot copy {path}: {error}.") from error


def check_file(path: Path) -> None:
    """Raise StoreRefused when a file is not an intact database."""
    try:
        with closing(_open_read_only(path)) as connection:
            found = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error as error:
        raise StoreRefused(f"{path} is not an intact database: {error}.") from error
    if found != ("ok",):
        raise StoreRefused(f"{path} is not an intact database: {found[0]}.")


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
