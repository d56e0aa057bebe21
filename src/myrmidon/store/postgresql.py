"""PostgreSQL through psycopg 3: READ COMMITTED, prepared statements, COPY for many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.types.numeric import Int8BinaryDumper, IntDumper, NumericBinaryLoader

from myrmidon.model.errors import BrokenPromise, StoreRefused, StoreUnavailable
from myrmidon.store.link import ConnectionLost, Trouble
from myrmidon.store.sql import Dialect, Insert, Row, RowUpdate, compiled, insert_text, row_update_text

COPY_FROM = 16
"""From how many rows on COPY beats one multi-row VALUES."""
ROWS_PER_INSERT_NEW = (64, 16, 4, 1)
CONNECT_TIMEOUT_S = 10
MOST_PREPARED = 1000

# random_page_cost: the rows in use are in memory; with the default a few dozen keys would mean a whole scan.
SESSION = (
    "SET synchronous_commit = on; SET lock_timeout = '10s'; SET random_page_cost = 1.1;"
    " SET idle_in_transaction_session_timeout = '60s'; SET client_encoding = 'UTF8';"
    " SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = {};"
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

    def __init__(self, url: str, *, durable: bool = True, links: int = 16) -> None:
        self.url = url
        self.durable = durable
        self.writers = self.readers = links

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
            )
            _prepare(connection, writer=writer)
            settings = connection.execute(SETTINGS).fetchone()
        except psycopg.Error as error:
            raise StoreUnavailable(f"PostgreSQL does not answer: {str(error).strip()}.") from error
        if settings and (why := why_refused(*settings, durable=self.durable)):
            connection.close()
            raise StoreRefused(why)
        return PostgresqlLink(connection, writer=writer)

    def close(self) -> None:
        pass


def why_refused(fsync: str, full_pages: str, encoding: str, standby: object, *, durable: bool) -> str | None:
    """Why this server must not be used; None when it may."""
    if encoding != "UTF8":
        return f"The database's encoding is {encoding}; create it with ENCODING 'UTF8'."
    if standby:
        return "This PostgreSQL is a standby; connect to the primary."
    if durable and "off" in (fsync, full_pages):
        return f"PostgreSQL runs with fsync = {fsync} and full_page_writes = {full_pages}; both must be on."
    return None


class PostgresqlLink:
    """The connection is in autocommit mode: BEGIN and COMMIT are sent here, plainly, and cheaper."""

    survives = False

    def __init__(self, connection: psycopg.Connection[Row], *, writer: bool) -> None:
        self.connection = connection
        self.cursor = connection.cursor(binary=True)
        self._writer = writer

    def begin(self) -> None:
        """A reader sees each statement's own moment either way, so it saves the round trip."""
        if self._writer:
            self._say(b"BEGIN", expect=b"BEGIN")

    def commit(self) -> None:
        self._say(b"COMMIT", expect=b"COMMIT")

    def rollback(self) -> None:
        if self.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self._say(b"ROLLBACK", expect=b"ROLLBACK")

    def close(self) -> None:
        self.connection.close()

    def trouble(self, error: BaseException) -> Trouble | None:
        if isinstance(error, ConnectionLost):
            return Trouble.LOST
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        if state in _BUSY:
            return Trouble.BUSY
        if self.connection.closed or state in _LOST or state.startswith("08"):
            return Trouble.LOST
        return Trouble.FULL if state == "53100" else None

    def all(self, sql: str, params: dict[str, Any]) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def one(self, sql: str, params: dict[str, Any]) -> Row | None:
        return self._execute(sql, params).fetchone()

    def run(self, sql: str, params: dict[str, Any]) -> int:
        return max(self._execute(sql, params).rowcount, 0)

    def insert(self, statement: Insert, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if len(rows) < COPY_FROM:
            text = insert_text(Dialect.POSTGRESQL, statement, len(rows), only_new=False)
            self.cursor.execute(text.encode(), tuple(chain.from_iterable(rows)))
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
                inserted += self.cursor.execute(text.encode(), values).rowcount
                done += size
        return inserted

    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        text, encoders = _row_update(statement)
        columns = zip(*rows, strict=True)
        arrays = tuple(encode(column) for encode, column in zip(encoders, columns, strict=True))
        return self.cursor.execute(text, arrays).rowcount

    def _execute(self, sql: str, params: dict[str, Any]) -> psycopg.Cursor[Row]:
        text, values = _prepared(sql)
        return self.cursor.execute(text, values(params) if values else None)

    def _say(self, command: bytes, *, expect: bytes) -> None:
        result = self.connection.pgconn.exec_(command)
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
        if result.command_status != expect:
            # A failed statement was swallowed; PostgreSQL answers COMMIT with a rollback and no error.
            raise BrokenPromise("A transaction went on after a statement in it had failed.")


def _prepare(connection: psycopg.Connection[Row], *, writer: bool) -> None:
    connection.prepared_max = MOST_PREPARED
    connection.execute(SESSION.format("off" if writer else "on").encode())
    # One type for integers of every size: else each mix of sizes is a statement of its own to prepare.
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(bool, _Bit)
    connection.adapters.register_loader("numeric", _Number)


class _Bit(IntDumper):
    """Tables hold 0 and 1, as they do on the other two."""

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


class _Number(NumericBinaryLoader):
    """Sums of bigint are numeric here; callers get the int or float they get elsewhere."""

    def load(self, data: Buffer) -> Any:
        value: Decimal = super().load(data)
        return int(value) if value == value.to_integral_value() else float(value)


Values = Callable[[dict[str, Any]], tuple[Any, ...]]


@lru_cache(maxsize=4096)
def _prepared(sql: str) -> tuple[bytes, Values | None]:
    """The text and how to pick its values from the parameters."""
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


@lru_cache(maxsize=1024)
def _row_update(statement: RowUpdate) -> tuple[bytes, list[Callable[[Iterable[Any]], str]]]:
    encoders: list[Callable[[Iterable[Any]], str]]
    encoders = [_text_array if name == "text" else _array for name in statement.type_names]
    return row_update_text(Dialect.POSTGRESQL, statement).encode(), encoders


# Arrays go as text: several times cheaper to make than psycopg's, and one type whatever is in them.


def _int_array(values: Iterable[int]) -> str:
    return "{" + ",".join(map(int.__repr__, values)) + "}"


def _array(values: Iterable[float | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else repr(value + 0) for value in values]) + "}"


def _text_array(values: Iterable[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_LISTS: dict[str, Callable[[Any], str]] = {
    "in": _int_array,
    "each": _int_array,
    "in_text": _text_array,
    "each_text": _text_array,
}
