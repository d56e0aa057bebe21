"""How answers of MariaDB are read: PyMySQL, but for its innermost loops.

PyMySQL makes an object of every packet, and every column and every row is one. Hot statements read hundreds of rows
with dozens of columns; here they are read straight out of what the socket brought (docs/decisions/0015). Whatever
is not a table (an OK, an error, the handshake) is still PyMySQL's to read.

Measured with and without it: 10 to 13 % more lives of tasks, 7 to 12 % more single submits (docs/decisions/0024).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

import pymysql
from pymysql.connections import TEXT_TYPES, Connection, MySQLResult
from pymysql.constants import CR, FIELD_TYPE, SERVER_STATUS
from pymysql.converters import conversions
from pymysql.protocol import FieldDescriptorPacket

from myrmidon.store.engine.sql import Row

Read = Callable[[bytes], Any]

PIECE = 1 << 16
HEAD = 4
FULL = 0xFFFFFF
"""A packet of this length goes on in the next one."""
END, ERROR = 0xFE, 0xFF
END_LENGTH = 9
"""An END that is this long or longer is a row whose first value is huge."""
NULL = 251
WIDE = {252: 2, 253: 3, 254: 8}
BINARY = 63


class Feed:
    """What the socket has brought and nobody has read yet."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self.data = b""
        self.at = 0

    def read(self, n: int) -> bytes:
        """For PyMySQL, in place of a file: fewer bytes mean that the server is gone."""
        while len(self.data) - self.at < n:
            if not self._more():
                break
        start, self.at = self.at, self.at + n
        return self.data[start : self.at]

    def ensure(self, n: int) -> None:
        """Have the next n bytes at hand; `data` and `at` may be others afterwards."""
        while len(self.data) - self.at < n:
            if not self._more():
                raise ConnectionResetError("the server closed the connection")

    def packet(self) -> bytes:
        """The next packet, together with its continuations."""
        parts = []
        length = FULL
        while length == FULL:
            self.ensure(HEAD)
            length = int.from_bytes(self.data[self.at : self.at + 3], "little")
            self.ensure(HEAD + length)
            self.at += HEAD
            parts.append(self.data[self.at : self.at + length])
            self.at += length
        return b"".join(parts)

    def close(self) -> None:
        self.data = b""

    def _more(self) -> bool:
        piece = self._receive(PIECE)
        self.data = self.data[self.at :] + piece
        self.at = 0
        return bool(piece)


class Wire(Connection):
    """A connection whose tables are read from a Feed."""

    _sock: Any
    _force_close: Callable[[], None]

    def connect(self, sock: Any = None) -> None:
        super().connect(sock)
        self._rfile = Feed(self._sock.recv)

    def _read_query_result(self, unbuffered: bool = False) -> Any:  # noqa: ARG002 - as in PyMySQL
        self._result = None
        result = _Result(self)
        try:
            result.read()
        except pymysql.err.Error:
            raise
        except OSError as error:
            self._force_close()
            raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"The connection was lost ({error}).") from error
        except BaseException:
            self._force_close()  # an answer read by half would be taken for the next one
            raise
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows


class _Result(MySQLResult):
    def _get_descriptions(self) -> None:
        self._feed = cast("Feed", cast("Any", self.connection)._rfile)  # noqa: SLF001
        self._plan = _columns(self._feed, self.field_count or 0)
        self.description = ()

    def _read_rowdata_packet(self) -> None:
        """Each value is a length and so many bytes; a length of 251 stands for NULL."""
        feed, plan = self._feed, self._plan
        rows: list[Row] = []
        while True:
            data, at = feed.data, feed.at
            size = int.from_bytes(data[at : at + 3], "little") + HEAD
            if len(data) - at < size or size == HEAD:
                feed.ensure(HEAD + 1)  # a row may lie in several pieces, and each piece begins anywhere
                size = int.from_bytes(feed.data[feed.at : feed.at + 3], "little") + HEAD
                feed.ensure(size)
                data, at = feed.data, feed.at
            if size == HEAD + FULL:
                rows.append(_row(feed.packet(), 0, plan))
                continue
            feed.at = at + size
            at += HEAD
            first = data[at]
            if first >= END and (first == ERROR or size < HEAD + END_LENGTH):
                self._ended(data[at : feed.at], rows)
                return
            rows.append(_row(data, at, plan))

    def _ended(self, packet: bytes, rows: list[Row]) -> None:
        if packet[0] == ERROR:
            pymysql.err.raise_mysql_exception(packet)
        self.warning_count = int.from_bytes(packet[1:3], "little")
        self.server_status = int.from_bytes(packet[3:5], "little")
        self.has_next = bool(self.server_status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        self.rows = rows
        self.affected_rows = len(rows)


def _row(data: bytes, at: int, plan: tuple[Read, ...]) -> Row:
    row: list[Any] = []
    for read in plan:
        length = data[at]
        at += 1
        if length == NULL:
            row.append(None)
            continue
        if length > NULL:
            wide = WIDE[length]
            length = int.from_bytes(data[at : at + wide], "little")
            at += wide
        end = at + length
        row.append(read(data[at:end]))
        at = end
    return tuple(row)


# --- What the columns are ---

_known: dict[tuple[int, bytes], list[tuple[bytes, tuple[Read, ...]]]] = {}
MOST_KNOWN = 4096


def _columns(feed: Feed, n: int) -> tuple[Read, ...]:
    """A statement's columns are told in the same bytes every time, so they are understood once."""
    feed.ensure(HEAD)
    size = int.from_bytes(feed.data[feed.at : feed.at + 3], "little") + HEAD
    feed.ensure(size)
    data, at = feed.data, feed.at
    key = n, data[at : at + size]
    for told, plan in _known.get(key, ()):
        if data.startswith(told, at):
            feed.at += len(told)
            return plan
    return _learned(feed, n, key)


def _learned(feed: Feed, n: int, key: tuple[int, bytes]) -> tuple[Read, ...]:
    """The packets one by one, and their bytes kept, with the packet that ends them."""
    told, plan = [], []
    for _ in range(n):
        told.append(_whole(feed))
        plan.append(_column(told[-1][HEAD:]))
    told.append(_whole(feed))
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known.setdefault(key, []).append((b"".join(told), tuple(plan)))
    return tuple(plan)


def _whole(feed: Feed) -> bytes:
    feed.ensure(HEAD)
    size = int.from_bytes(feed.data[feed.at : feed.at + 3], "little") + HEAD
    feed.ensure(size)
    feed.at += size
    return feed.data[feed.at - size : feed.at]


@lru_cache(maxsize=4096)
def _column(described: bytes) -> Read:
    """How to read the values of a column: numbers come as ASCII digits, which int and float take as they are."""
    field: Any = FieldDescriptorPacket(described, "utf8")
    converter = CONVERSIONS.get(field.type_code)
    if converter in (int, float):
        return cast("Read", converter)
    if field.type_code in TEXT_TYPES:
        return bytes if field.charsetnr == BINARY else bytes.decode
    if converter is None:
        return bytes.decode
    return lambda value: converter(value.decode())


def _number(text: str) -> int | float:
    """Sums are DECIMAL here; callers get the int or float they get elsewhere."""
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else float(value)


CONVERSIONS: dict[Any, Any] = {**conversions, FIELD_TYPE.DECIMAL: _number, FIELD_TYPE.NEWDECIMAL: _number}
