"""What the three databases have in common: a link (one connection), and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Protocol

from myrmidon.store.engine.sql import Dialect, Insert, Row, RowDelete, RowUpdate


class ConnectionLost(Exception):
    """A test's probe raises it to cut the connection at a chosen point."""


class LostRace(Exception):
    """Another transaction was faster with the same name; the next try will see it and know what to answer."""


class Trouble(Enum):
    """What an error means for the transaction it came from."""

    BUSY = auto()
    """Others were in the way; rolled back, and worth another try."""
    LOST = auto()
    """The connection is gone. Before COMMIT nothing happened; during COMMIT nobody knows."""
    FULL = auto()
    """No room left; rolled back, and a retry would not help."""
    BROKEN = auto()
    """The disk failed under us: what is on it is no longer known, so nothing more may be written."""


class Link(Protocol):
    """One connection. Not for two threads at once."""

    survives: bool
    """Whether the link can be used again after an error that would end a network connection."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def trouble(self, error: BaseException) -> Trouble | None:
        """None: an error like any other, not the link's."""

    def all(self, sql: str, params: dict[str, Any]) -> list[Row]: ...
    def one(self, sql: str, params: dict[str, Any]) -> Row | None: ...
    def run(self, sql: str, params: dict[str, Any]) -> int: ...
    def insert(self, statement: Insert, rows: Sequence[Row]) -> None: ...
    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int: ...
    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int: ...
    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int: ...


class Backend(Protocol):
    """One database: makes links to it."""

    dialect: Dialect
    writers: int
    """How many may write at once."""
    readers: int
    """How many may read at once; 0 when readers share the writer's link."""
    clock_sql: str
    """How to ask for the database's time in microseconds; empty where it has no clock of its own."""

    def connect(self, *, writer: bool) -> Link:
        """Raises StoreUnavailable when it cannot be reached, StoreRefused when it must not be used."""

    def close(self) -> None: ...
