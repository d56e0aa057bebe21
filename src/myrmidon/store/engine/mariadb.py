"""The MariaDB driver, with PyMySQL: READ COMMITTED, strict mode, values are written into the statement."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT

from myrmidon.model.errors import StoreRefused, StoreUnavailable
from myrmidon.store.engine.driver import (
    LOCK_LIMIT_S,
    SERVER_LIMITS,
    SHORT_LOCK_LIMIT_S,
    ConnectionLost,
    DbErrorKind,
    Limits,
)
from myrmidon.store.engine.mariadb_wire import CONVERSIONS, FastConnection
from myrmidon.store.engine.sql import (
    Dialect,
    Insert,
    Row,
    RowDelete,
    RowUpdate,
    compiled,
    insert_head,
    json_text,
    names,
    row_update_text,
    rows_delete_text,
    rows_update_text,
)

CONNECT_TIMEOUT_S = 10
RESPONSE_MARGIN_S = 15
"""A response that takes so much longer than its statement may: the connection counts as lost."""
CHARS_PER_INSERT = 256 * 1024
"""A character has at most four bytes, so a packet stays within 1 MiB, unless a single row is larger."""

# SIMULTANEOUS_ASSIGNMENT: in `SET a = 1, b = a` b gets the old value of a, as in the other databases.
# in_predicate_conversion_threshold: by default a long IN list is converted into a subquery, for which UPDATE and DELETE
# use no index.
# max_recursive_iterations: by default a recursive query returns less, without an error, after 1,000 steps.
SESSION = """
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,\
NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO,ANSI_QUOTES,PIPES_AS_CONCAT,SIMULTANEOUS_ASSIGNMENT',
        SESSION tx_isolation = 'READ-COMMITTED', SESSION in_predicate_conversion_threshold = 0,
        SESSION max_recursive_iterations = 4294967295,
        SESSION innodb_lock_wait_timeout = {lock}, SESSION lock_wait_timeout = {lock},
        SESSION idle_transaction_timeout = {idle}, SESSION max_statement_time = {statement},
        SESSION net_read_timeout = {idle}, SESSION net_write_timeout = {idle}, SESSION tx_read_only = {read_only}
"""
SETTINGS = """
    SHOW GLOBAL VARIABLES
     WHERE Variable_name IN ('version', 'wsrep_on', 'innodb_flush_log_at_trx_commit')
"""

_DUPLICATE = 1062
_TOO_SLOW = 1969
_BUSY = frozenset((1205, 1213, 1020))
_LOST = frozenset((0, 1053, 1152, 1927, 2006, 2013, 2014, 2055))
_FULL = frozenset((1021, 1114))
_DUPLICATES = re.compile(rb"Duplicates: (\d+)")


class Mariadb:
    dialect = Dialect.MARIADB
    clock_sql = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS INTEGER)"
    writers = 20
    readers = 30

    def __init__(self, url: str, *, durable: bool = True, limits: Limits = SERVER_LIMITS) -> None:
        self._target = _connect_args(url)
        self.durable = durable
        self.limits = limits

    def connect(self, *, writer: bool) -> MariadbLink:
        statement_s = self.limits.statement_s if writer else self.limits.read_s
        response_timeout_s = statement_s + RESPONSE_MARGIN_S if statement_s else None
        try:
            connection = FastConnection(
                **self._target,
                charset="utf8mb4",
                collation="utf8mb4_nopad_bin",
                client_flag=CLIENT.FOUND_ROWS,
                autocommit=not writer,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=response_timeout_s,
                write_timeout=response_timeout_s,
                conv=CONVERSIONS,
            )
            link = MariadbLink(connection, writer=writer)
            settings: dict[str, str] = dict(link.query(SETTINGS).rows)
            if why := why_refused(settings, durable=self.durable):
                link.close()
                raise StoreRefused(why)
            session = SESSION.format(
                lock=LOCK_LIMIT_S, idle=self.limits.idle_s, statement=statement_s, read_only=0 if writer else 1
            )
            link.query(session)
        except (pymysql.err.Error, OSError) as error:
            raise StoreUnavailable(f"MariaDB cannot be reached: {error}.") from error
        return link

    def disk_is_full(self) -> bool:
        return False

    def close(self) -> None:
        pass


def why_refused(settings: Mapping[str, str], *, durable: bool) -> str | None:
    """Why a server with these variables must not be used; None when it may be used."""
    version = settings.get("version", "")
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if "mariadb" not in version.lower() or number < (10, 6):
        return f"The server is {version or 'unknown'}; MariaDB 10.6 or later is needed."
    if settings.get("wsrep_on", "OFF") in ("ON", "1"):
        return "This server is part of a Galera cluster (wsrep_on), which can lose committed writes."
    flush = settings.get("innodb_flush_log_at_trx_commit", "1")
    if durable and flush != "1":
        return f"innodb_flush_log_at_trx_commit is {flush}: commits could be lost; it must be 1."
    return None


class MariadbLink:
    """One connection. With autocommit off the first statement begins a transaction."""

    reusable_after_error = False

    def __init__(self, connection: Any, *, writer: bool) -> None:
        self.connection = connection
        self._writer = writer
        self._lock_limit_s = LOCK_LIMIT_S

    def begin(self) -> None:
        if self._lock_limit_s != LOCK_LIMIT_S:
            self._limit_lock_waits(LOCK_LIMIT_S)

    def wait_briefly_for_locks(self) -> None:
        """The limit belongs to the connection, so the next transaction sets it back."""
        self._limit_lock_waits(SHORT_LOCK_LIMIT_S)

    def _limit_lock_waits(self, seconds: int) -> None:
        self.query(f"SET SESSION innodb_lock_wait_timeout = {seconds}")
        self._lock_limit_s = seconds

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        """Nothing to do for a reader: each of its statements is a transaction of its own."""
        if self._writer:
            self.connection.rollback()

    def close(self) -> None:
        if self.connection.open:
            self.connection.close()

    def in_transaction(self) -> bool:
        return True

    def error_kind(self, error: BaseException) -> DbErrorKind | None:
        if isinstance(error, ConnectionLost):
            return DbErrorKind.LOST
        if not isinstance(error, pymysql.err.Error):
            return None
        code = error.args[0] if error.args else 0
        if code in _BUSY:
            return DbErrorKind.BUSY
        if code in _LOST or not self.connection.open:
            return DbErrorKind.LOST
        if code == _TOO_SLOW:
            return DbErrorKind.SLOW
        return DbErrorKind.FULL if code in _FULL else None

    def query(self, text: str) -> Any:
        """Send a statement; the result with rows, or with the number of matched rows. Cheaper than a cursor."""
        self.connection.query(text)
        return self.connection._result  # noqa: SLF001 - a cursor offers the same, slower

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        rows: list[Row] = self.query(_rendered(sql, params)).rows
        return rows

    def one(self, sql: str, /, **params: Any) -> Row | None:
        rows: list[Row] = self.query(_rendered(sql, params)).rows
        return rows[0] if rows else None

    def run(self, sql: str, /, **params: Any) -> int:
        return int(self.query(_rendered(sql, params)).affected_rows or 0)

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        head = insert_head(statement)
        for chunk in _chunks(rows):
            self.query(head + ",".join(chunk))

    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int:
        """INSERT IGNORE is not used: it would also ignore values that do not fit.

        With FOUND_ROWS an existing row counts as one row, as an inserted one does, so the count is taken from the
        message of the server: "Records: 3  Duplicates: 1  Warnings: 0".
        """
        head, tail = insert_head(statement), _keep_existing(statement)
        inserted = 0
        for chunk in _chunks(rows):
            if len(chunk) == 1:
                inserted += self._insert_one(head + chunk[0])
                continue
            inserted += len(chunk) - _duplicates(self.query(head + ",".join(chunk) + tail).message)
        return inserted

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        """Many rows are joined as a derived table; JSON_TABLE takes twice as long."""
        if len(rows) == 1:
            text = row_update_text(Dialect.MARIADB, statement).format(None, *map(_literal, rows[0]))
            return int(self.query(text).affected_rows)
        return self._joined(rows_update_text(Dialect.MARIADB, statement), rows)

    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int:
        return self._joined(rows_delete_text(Dialect.MARIADB, statement), rows)

    def _joined(self, template: str, rows: Sequence[Row]) -> int:
        """Run a statement that joins the rows as a table; how many rows of the other table matched."""
        matched = 0
        for chunk in _chunks(rows):
            matched += int(self.query(template % _table_of(chunk, len(rows[0]))).affected_rows)
        return matched

    def _insert_one(self, text: str) -> int:
        """For one row the server sends no message. An error rolls back this statement only."""
        try:
            self.query(text)
        except pymysql.err.IntegrityError as error:
            if error.args[0] != _DUPLICATE:
                raise
            return 0
        return 1


def _duplicates(message: bytes | None) -> int:
    found = _DUPLICATES.search(message or b"")
    if found is None:
        raise pymysql.err.InternalError("MariaDB did not report the number of duplicates")
    return int(found[1])


@lru_cache(maxsize=1024)
def _keep_existing(statement: Insert) -> str:
    first = names(statement.columns)[0]
    return f" ON DUPLICATE KEY UPDATE {first} = {first}"


def _connect_args(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    target: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.removeprefix("/")),
    }
    if socket := options.pop("unix_socket", None):
        target["unix_socket"] = socket
    if ca := options.pop("ssl_ca", None):
        target["ssl"] = ssl.create_default_context(cafile=ca)
    else:
        # By default the driver would load all certificates of the machine for every connection, without verifying.
        target["ssl_disabled"] = True
    if options:
        raise StoreRefused(f"The database URL has unknown options: {', '.join(sorted(options))}.")
    return target


# --- Values in statements ---


@lru_cache(maxsize=4096)
def _template(sql: str) -> tuple[str, tuple[tuple[str, Callable[[Any], str]], ...]]:
    text, binds = compiled(Dialect.MARIADB, sql)
    return text, tuple((name, _RENDER[kind]) for name, kind in binds)


def _rendered(sql: str, params: dict[str, Any]) -> str:
    template, binds = _template(sql)
    return template % tuple([render(params[name]) for name, render in binds])


def _chunks(rows: Sequence[Row]) -> Iterator[list[str]]:
    chunk: list[str] = []
    room = CHARS_PER_INSERT
    for row in rows:
        text = "(" + ",".join([_LITERAL[type(value)](value) for value in row]) + ")"
        room -= len(text) + 1
        if room < 0 and chunk:
            yield chunk
            chunk, room = [], CHARS_PER_INSERT - len(text)
        chunk.append(text)
    if chunk:
        yield chunk


def _table_of(chunk: Sequence[str], width: int) -> str:
    """Rendered rows as a table with the columns c1, c2, ...; the empty SELECT defines the names."""
    named = ", ".join([f"NULL AS c{n}" for n in range(1, width + 1)])
    return f"SELECT {named} FROM DUAL WHERE 1 = 0 UNION ALL VALUES {','.join(chunk)}"


def _quoted(text: str) -> str:
    """Inside quotes only these two characters are special, as long as NO_BACKSLASH_ESCAPES is off."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _hex(blob: bytes) -> str:
    return f"x'{blob.hex()}'"


def _double(value: float) -> str:
    """With an exponent: without one MariaDB would take the number as a DECIMAL."""
    if not isfinite(value):
        raise ValueError("MariaDB cannot store infinity or NaN")
    text = float.__repr__(value)
    return text if "e" in text else text + "e0"


class _Literals(dict[type, Callable[[Any], str]]):
    """How to write a value of a type; subclasses such as enums are written like their base."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        for base in kind.__mro__:
            if base in self:
                self[kind] = self[base]
                return self[kind]
        raise TypeError(f"values of type {kind.__name__} cannot be stored")


_LITERAL = _Literals(
    {
        int: int.__repr__,
        str: _quoted,
        float: _double,
        bytes: _hex,
        bytearray: _hex,
        memoryview: _hex,
        type(None): lambda _: "NULL",
    }
)


def _literal(value: Any) -> str:
    return _LITERAL[type(value)](value)


def _ints(values: Iterable[int]) -> str:
    """A list of numbers. An empty list becomes one number that is not an id, so that it matches nothing."""
    return ",".join(map(int.__repr__, values)) or "-9223372036854775808"


def _texts(values: Iterable[str]) -> str:
    """A list of strings. An empty list becomes a character that is never stored; see `_ints`."""
    return ",".join(map(_quoted, values)) or "'\\0'"


def _json(values: Iterable[Any]) -> str:
    return _quoted(json_text(values))


_RENDER: dict[str, Callable[[Any], str]] = {
    "value": _literal,
    "in": _ints,
    "in_text": _texts,
    "each": _json,
    "each_text": _json,
}
