"""The interface of the database drivers: a backend, its links (connections), and kinds of errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from myrmidon.store.engine.sql import Dialect, Insert, Row, RowDelete, RowUpdate

LOCK_LIMIT_S = 10
"""How long a statement waits for a lock before its transaction is tried again."""
SHORT_LOCK_LIMIT_S = 1
"""The same for a transaction that others do not wait for, and that may be left for later."""


@dataclass(frozen=True)
class Limits:
    """What the database ends, in whole seconds; 0 for no limit.

    A server that is frozen in mid-transaction holds its locks until the database ends its connection, and other servers
    wait for them so long. Hence the limits of servers are far below a lease.
    """

    idle_s: int
    """How long a transaction may pause between two statements. It is run again on another connection: see Db.write."""
    statement_s: int
    read_s: int
    """How long a statement of a connection that only reads may take."""


SERVER_LIMITS = Limits(idle_s=10, statement_s=30, read_s=20)
"""After ``read_s`` the caller has given up."""
TOOL_LIMITS = Limits(idle_s=60, statement_s=0, read_s=0)
"""For migrations, backups and copies."""


class ConnectionLost(Exception):
    """Raised by a test's probe to simulate a lost connection."""


class LostRace(Exception):
    """Another transaction has stored the same unique name first; the next try will see its row."""


class DbErrorKind(Enum):
    """What an error means for its transaction."""

    BUSY = auto()
    """A conflict with another transaction; rolled back, and to be retried."""
    LOST = auto()
    """The connection is lost. Before COMMIT nothing was committed; during COMMIT the outcome is unknown."""
    SLOW = auto()
    """A statement took longer than it may; rolled back, and another try would take as long."""
    FULL = auto()
    """No space left; rolled back. A retry at once would not help, a later write may succeed."""
    BROKEN = auto()
    """The disk failed. Its content is unknown, so nothing more may be written until the file is opened again."""


class Link(Protocol):
    """One connection; used by one thread at a time."""

    reusable_after_error: bool
    """Whether the link can be used again after an error that would end a network connection."""

    def begin(self) -> object: ...
    def wait_briefly_for_locks(self) -> None:
        """Let the statements of the transaction that was begun wait for a lock for SHORT_LOCK_LIMIT_S only."""

    def commit(self) -> object: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
    def in_transaction(self) -> bool:
        """False if an error has ended the transaction that was begun, with all its savepoints."""

    def error_kind(self, error: BaseException) -> DbErrorKind | None:
        """The kind of an error; None for any other one, such as a violated constraint or a bug."""

    def all(self, sql: str, /, **params: Any) -> list[Row]: ...
    def one(self, sql: str, /, **params: Any) -> Row | None: ...
    def run(self, sql: str, /, **params: Any) -> int: ...
    def insert(self, statement: Insert, rows: Sequence[Row]) -> object: ...
    def insert_new(self, statement: Insert, rows: Sequence[Row]) -> int: ...
    def update_rows(self, statement: RowUpdate, rows: Sequence[Row]) -> int: ...
    def delete_rows(self, statement: RowDelete, rows: Sequence[Row]) -> int: ...


class Backend(Protocol):
    """One database; opens links to it."""

    dialect: Dialect
    writers: int
    """The number of links for writing."""
    readers: int
    """The number of links for reading; 0 when reads use the writer's link."""
    clock_sql: str
    """The statement for the database's time in microseconds; empty when it has no clock of its own."""

    def connect(self, *, writer: bool) -> Link:
        """Raises StoreUnavailable when it cannot be reached, StoreRefused when its settings are unsafe."""

    def disk_is_full(self) -> bool:
        """Whether the disk of the database has hardly any space; False if this machine cannot tell."""

    def close(self) -> None: ...
