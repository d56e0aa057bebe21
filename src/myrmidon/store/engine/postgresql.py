"""The PostgreSQL driver, with psycopg 3: READ COMMITTED, prepared statements, COPY for many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, count
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int8BinaryDumper, IntDumper, NumericBinaryLoader

from myrmidon.model.errors import BrokenPromise, StoreRefused, StoreUnavailable
from myrmidon.store.engine.driver import (
    LOCK_LIMIT_S,
    SERVER_LIMITS,
    SHORT_LOCK_LIMIT_S,
    ConnectionLost,
    DbErrorKind,
    Limits,
)
from myrmidon.store.engine.sql import (
    Dialect,
    Insert,
    Row,
    RowDelete,
    RowUpdate,
    compiled,
    insert_text,
    row_update_text,
    rows_delete_text,
    rows_update_text,
)

COPY_MIN_ROWS = 16
"""From this number of rows on COPY is faster than a multi-row VALUES."""
ROWS_PER_INSERT_NEW = (64, 16, 4, 1)
CONNECT_TIMEOUT_S = 10
TCP_USER_TIMEOUT_MS = 30_000
"""How long sent data may stay unacknowledged before the connection counts as lost."""
MAX_PREPARED = 1000
"""Prepared statements of a connection; beyond this number all are deallocated."""

# tcp_user_timeout: also a client that takes no results is gone after a while.
# random_page_cost: the rows in use are in memory; with the default a few dozen keys would cause a full scan.
SESSION = (
    "SET synchronous_commit = on; SET lock_timeout = '{lock}s'; SET random_page_cost = 1.1;"
    " SET idle_in_transaction_session_timeout = '{idle}s'; SET statement_timeout = '{statement}s';"
    " SET tcp_user_timeout = '{idle}s'; SET client_encoding = 'UTF8';"
    " SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = {read_only};"
)
SETTINGS = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('server_encoding'),
           pg_is_in_recovery()
"""

_BUSY = frozenset(("40001", "40P01", "55P03"))
_LOST = frozenset(("57P01", "57P02", "57P03", "25P03"))


class Postgresql:
    dialect = Dialect.POSTGRESQL
    clock_sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    writers = 20
    readers = 30

    def __init__(self, url: str, *, durable: bool = True, limits: Limits = SERVER_LIMITS) -> None:
        self.url = url
        self.durable = durable
        self.limits = limits

    def connect(self, *, writer: bool) -> PostgresqlLink:
        try:
            connection = psycopg.Connection[Row].connect(
                self.url,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                cursor_factory=psycopg.RawCursor[Row],
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=4,
                tcp_user_timeout=TCP_USER_TIMEOUT_MS,
            )
            _prepare(connection, self.limits, writer=writer)
            settings = connection.execute(SETTINGS).fetchone()
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL cannot be reached: {str(error).strip()}.") from error
        if settings and (why := why_refused(*settings, durable=self.durable)):
            connection.close()
            raise StoreRefused(why)
        return PostgresqlLink(connection, writer=writer)

    def disk_is_full(self) -> bool:
        return False

    def close(self) -> None:
        pass


def why_refused(fsync: str, full_pages: str, encoding: str, standby: object, *, durable: bool) -> str | None:
    """Why this server must not be used; None when it may be used."""
    if encoding != "UTF8":
        return f"The database's encoding is {encoding}; create it with ENCODING 'UTF8'."
    if standby:
        return "This PostgreSQL is a standby; connect to the primary."
    if durable and "off" in (fsync, full_pages):
        return f"PostgreSQL runs with fsync = {fsync} and full_page_writes = {full_pages}; both must be on."
    return None


class PostgresqlLink:
    """One connection, in autocommit mode: BEGIN and COMMIT are sent as plain statements, which is cheaper.

    Statements go directly to libpq, without psycopg's cursor, which costs about 65 us per statement; psycopg still
    converts values and rows. COPY uses the cursor. Measured with and without it: 10 to 14 % more task lifecycles per
    second in batches of 100, 20 % and more of single tasks (docs/decisions/0024).
    """

    reusable_after_error = False

    def __init__(self, connection: psycopg.Connection[Row], *, writer: bool) -> None:
        self.connection = connection
        self.cursor = connection.cursor(binary=True)
        self._writer = writer
        self._values = Transformer(connection)
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._numbers = count()

    def begin(self) -> None:
        """Nothing to do for a reader: each of its statements sees the latest state anyway, so a round trip is saved."""
        if self._writer:
            self._run_command(b"BEGIN", expect=b"BEGIN")

    def wait_briefly_for_locks(self) -> None:
        self._run_command(f"SET LOCAL lock_timeout = '{SHORT_LOCK_LIMIT_S}s'".encode(), expect=b"SET")

    def commit(self) -> None:
        self._run_command(b"COMMIT", expect=b"COMMIT")

    def rollback(self) -> None:
        if self.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self._run_command(b"ROLLBACK", expect=b"ROLLBACK")

    def close(self) -> None:
        self.connection.close()

    def in_transaction(self) -> bool:
        return True

    def error_kind(self, error: BaseException) -> DbErrorKind | None:
        if isinstance(error, ConnectionLost):
            return DbErrorKind.LOST
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        if state in _BUSY:
            return DbErrorKind.BUSY
        if self.connection.closed or state in _LOST or state.startswith("08"):
            return DbErrorKind.LOST
        if state == "57014":
            return DbErrorKind.SLOW
        return DbErrorKind.FULL if state == "53100" else None

    def all(self, sql: str, /, **params: Any) -> list[Row]:
        return self._rows(self._execute(sql, params))

    def one(self, sql: str, /, **params: Any) -> Row | None:
        rows = self._rows(self._execute(sql, params))
        return rows[0] if rows else None

    def run(self, sql: str, /, **params: Any) -> int:
        return self._execute(sql, params).command_tuples or 0

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if len(rows) < COPY_MIN_ROWS:
            text = insert_text(Dialect.POSTGRESQL, statement, len(rows), only_new=False)
            self._perform(text.encode(), tuple(chain.from_iterable(rows)))
            return
        with self.cursor.copy(f"COPY {statement.table} ({statement.columns}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int:
        done = inserted = 0
        for size in ROWS_PER_INSERT_NEW:
            while len(rows) - done >= size:
                text = insert_text(Dialect.POSTGRESQL, statement, size, only_new=True)
                values = tuple(chain.from_iterable(rows[done : done + size]))
                inserted += self._perform(text.encode(), values).command_tuples or 0
                done += size
        return inserted

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        if len(rows) == 1:
            return self._perform(*_one_row_update(statement, rows[0])).command_tuples or 0
        text = rows_update_text(Dialect.POSTGRESQL, statement)
        return self._perform(text.encode(), _arrays(statement, rows)).command_tuples or 0

    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        text = rows_delete_text(Dialect.POSTGRESQL, statement)
        return self._perform(text.encode(), _arrays(statement, rows)).command_tuples or 0

    def _execute(self, sql: str, params: dict[str, Any]) -> pq.abc.PGresult:
        text, values = _prepared(sql)
        return self._perform(text, values(params) if values else ())

    def _perform(self, text: bytes, values: Sequence[Any]) -> pq.abc.PGresult:
        """Run a statement. It is prepared at its second use: a statement that is used once is not worth it."""
        pgconn, transformer = self.connection.pgconn, self._values
        data: Any = transformer.dump_sequence(values, _auto_formats(len(values)))
        types, formats = transformer.types or (), transformer.formats
        name = self._names.get((text, types))
        if name is None:
            self._names[text, types] = b""
            return _checked(pgconn.exec_params(text, data, types, formats, pq.Format.BINARY))
        if not name:
            name = self._prepared(text, types)
        return _checked(pgconn.exec_prepared(name, data, formats, pq.Format.BINARY))

    def _prepared(self, text: bytes, types: tuple[int, ...]) -> bytes:
        if len(self._names) > MAX_PREPARED:
            _checked(self.connection.pgconn.exec_(b"DEALLOCATE ALL"))
            self._names.clear()
        name = b"m%d" % next(self._numbers)
        _checked(self.connection.pgconn.prepare(name, text, types))
        self._names[text, types] = name
        return name

    def _rows(self, result: pq.abc.PGresult) -> list[Row]:
        self._values.set_pgresult(result, set_loaders=True, format=pq.Format.BINARY)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _run_command(self, command: bytes, *, expect: bytes) -> None:
        result = _checked(self.connection.pgconn.exec_(command))
        if result.command_status != expect:
            # The error of a statement was ignored: PostgreSQL then answers COMMIT with a rollback and no error.
            raise BrokenPromise("A transaction continued after one of its statements had failed.")


def _checked(result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status not in _SUCCESS:
        raise psycopg.errors.error_from_result(result)
    return result


_SUCCESS = frozenset((pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK))


@lru_cache(maxsize=1024)
def _auto_formats(n: int) -> list[PyFormat]:
    return [PyFormat.AUTO] * n


def _prepare(connection: psycopg.Connection[Row], limits: Limits, *, writer: bool) -> None:
    session = SESSION.format(
        lock=LOCK_LIMIT_S,
        idle=limits.idle_s,
        statement=limits.statement_s if writer else limits.read_s,
        read_only="off" if writer else "on",
    )
    connection.execute(session.encode())
    # One type for integers of all sizes: else every combination of sizes would be prepared separately.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(bool, _BoolDumper)
    connection.adapters.register_loader("numeric", _NumberLoader)


class _BoolDumper(IntDumper):
    """Booleans are stored as 0 and 1, as on the other databases."""

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


class _NumberLoader(NumericBinaryLoader):
    """Sums of bigint are numeric; callers get an int or a float, as on the other databases."""

    def load(self, data: Buffer) -> Any:
        value: Decimal = super().load(data)
        return int(value) if value == value.to_integral_value() else float(value)


Values = Callable[[dict[str, Any]], tuple[Any, ...]]


@lru_cache(maxsize=4096)
def _prepared(sql: str) -> tuple[bytes, Values | None]:
    """The text, and a function that takes its values from the parameters."""
    text, binds = compiled(Dialect.POSTGRESQL, sql)
    if not binds:
        return text.encode(), None
    if any(kind != "value" for _, kind in binds):
        encoders = [(name, _LISTS.get(kind)) for name, kind in binds]
        return text.encode(), lambda params: tuple(
            [encode(params[name]) if encode else params[name] for name, encode in encoders]
        )
    if len(binds) == 1:
        only = binds[0].name
        return text.encode(), lambda params: (params[only],)
    return text.encode(), itemgetter(*(name for name, _ in binds))


def _one_row_update(statement: RowUpdate, row: Row) -> tuple[bytes, list[str | None]]:
    """Values are sent as text, so that one prepared statement serves all combinations of None."""
    text = row_update_text(Dialect.POSTGRESQL, statement).encode()
    return text, [None if value is None else _plain_text(value) for value in row]


def _plain_text(value: str | bytes | float) -> str:
    """Enumerations are sent by their value, True as 1."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return str(value) if isinstance(value, str) else repr(value + 0)


def _arrays(statement: RowUpdate | RowDelete, rows: Sequence[Row]) -> tuple[str, ...]:
    """One array for each column."""
    return tuple([encode(column) for encode, column in zip(_encoders(statement), zip(*rows, strict=True), strict=True)])


@lru_cache(maxsize=1024)
def _encoders(statement: RowUpdate | RowDelete) -> list[Callable[[Iterable[Any]], str]]:
    return [_ARRAYS.get(name, _array) for name in statement.type_names]


# Arrays are sent as text: several times cheaper than psycopg's, and one type whatever they contain.


def _int_array(values: Iterable[int]) -> str:
    return "{" + ",".join(map(int.__repr__, values)) + "}"


def _array(values: Iterable[float | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else repr(value + 0) for value in values]) + "}"


def _text_array(values: Iterable[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _blob_array(values: Iterable[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]) + "}"


_ARRAYS: dict[str, Callable[[Iterable[Any]], str]] = {"text": _text_array, "blob": _blob_array}


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_LISTS: dict[str, Callable[[Any], str]] = {
    "in": _int_array,
    "each": _int_array,
    "in_text": _text_array,
    "each_text": _text_array,
}
