"""Copies all tables of a database to another one, of the same or of another kind.

The source is read in one snapshot; the target must be empty, and is compared with the source at the end. The statements
are built from the names of tables and columns in the schema files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from myrmidon.model.errors import BrokenPromise, StoreRefused
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.engine.migrate import shipped
from myrmidon.store.engine.sql import Dialect, Insert

LOG_TABLES = frozenset({"task_logs", "log_chunks", "log_times"})
"""On SQLite these are in the second file."""
NOT_COPIED = frozenset({"schedulers", "release_backers"})
"""The servers of the source are not servers of the copy."""
ROWS = 2_000
ROWS_WITH_BLOBS = 64


class Table(Struct, frozen=True):
    """One table of the schema."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    blob: str | None


class CopiedTable(Struct, frozen=True):
    """How much of a table was copied."""

    rows: int
    num_bytes: int


_TABLE = re.compile(r'CREATE TABLE IF NOT EXISTS ("?\w+"?) \(\n(.*?)\n\)\{\w+\};', re.DOTALL)
_ADDED = re.compile(r"ALTER TABLE (\w+) \{add_column\} (\w+)")
_KEY = re.compile(r"PRIMARY KEY \(([\w, ]+)\)")
_CONSTRAINTS = ("PRIMARY KEY", "UNIQUE", "CHECK", "FOREIGN KEY")


def tables() -> list[Table]:
    """All tables to copy, in an order that satisfies foreign keys."""
    text = "".join(file.text for file in shipped())
    added: dict[str, list[str]] = {}
    for name, column in _ADDED.findall(text):
        added.setdefault(name, []).append(column)
    found = [_table(name, body, added.get(name, ())) for name, body in _TABLE.findall(text)]
    return [table for table in found if table.name not in NOT_COPIED]


def _table(name: str, body: str, added: Sequence[str]) -> Table:
    lines = [line.strip() for line in re.sub(r"\n\s{8,}", " ", body).split("\n")]
    columns = [line for line in lines if line and not line.startswith(("--", *_CONSTRAINTS))]
    composite = _KEY.search(body)
    inline = [line.split()[0] for line in columns if "{id}" in line or "PRIMARY KEY" in line]
    key = tuple(part.strip() for part in composite[1].split(",")) if composite else tuple(inline)
    blob = next((line.split()[0] for line in columns if "{blob}" in line), None)
    return Table(name, (*(line.split()[0] for line in columns), *added), key, blob)


def copy(source: Db, target: Db, *, logs: bool) -> dict[str, CopiedTable]:
    """Copy the tables of the logs, or all others; StoreRefused when the target is not empty.

    At the end the number of rows and bytes of each table is compared with the source.
    """
    tables_to_copy = _tables_to_copy(logs=logs)
    check_empty(target, logs=logs)

    def copy_all(tx: Tx) -> dict[str, CopiedTable]:
        begin_snapshot(tx)
        return {table.name: _copy_table(tx, target, table) for table in tables_to_copy}

    done = source.read(copy_all)
    for table in tables_to_copy:
        copied = target.read(lambda tx, table=table: _count(tx, table))  # type: ignore[misc]
        if copied != done[table.name]:
            raise BrokenPromise(f"{table.name}: the source has {done[table.name]}, the copy {copied}.")
    return done


# On PostgreSQL and MariaDB each statement sees the latest state; a copy needs one snapshot. SQLite has one anyway.
BEGIN_SNAPSHOT = {
    Dialect.POSTGRESQL: ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
    Dialect.MARIADB: (
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    ),
    Dialect.SQLITE: (),
}


def begin_snapshot(tx: Tx) -> None:
    """From now on this transaction reads one snapshot. It must not have read anything yet."""
    for statement in BEGIN_SNAPSHOT[tx.dialect]:
        tx.run(statement)


def check_empty(target: Db, *, logs: bool) -> None:
    """Raise StoreRefused when a table to copy to has rows."""
    target.read(lambda tx: _check_empty(tx, _tables_to_copy(logs=logs)))


def _tables_to_copy(*, logs: bool) -> list[Table]:
    """The tables of the logs, or all others."""
    return [table for table in tables() if (table.name in LOG_TABLES) == logs]


def _check_empty(tx: Tx, targets: list[Table]) -> None:
    for table in targets:
        if tx.one(f"SELECT 1 FROM {table.name} LIMIT 1") is not None:
            raise StoreRefused(f"The target is not empty: {table.name} has rows. Use a new database.")


def _copy_table(tx: Tx, target: Db, table: Table) -> CopiedTable:
    insert = Insert(table.name, ", ".join(table.columns))
    for rows in _pages(tx, table):
        target.write(lambda into, rows=rows: into.insert(insert, rows))  # type: ignore[misc]
    return _count(tx, table)


def _pages(tx: Tx, table: Table) -> Iterator[list[tuple[object, ...]]]:
    """All rows by key, in pages."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    n = ROWS_WITH_BLOBS if table.blob else ROWS
    head = f"SELECT {columns} FROM {table.name}"
    tail = f"ORDER BY {key} LIMIT :n"
    page = tx.all(f"{head} {tail}", n=n)
    indexes = [table.columns.index(name) for name in table.key]
    while page:
        yield page
        if len(page) < n:
            return
        last = {f"k{number}": page[-1][index] for number, index in enumerate(indexes)}
        page = tx.all(f"{head} WHERE {_after_key(tx.dialect, table.key)} {tail}", n=n, **last)


def _after_key(dialect: Dialect, key: tuple[str, ...]) -> str:
    """The condition for rows after a key. MariaDB uses no index for a comparison of tuples, so it is written out."""
    if dialect is not Dialect.MARIADB:
        return f"({', '.join(key)}) > ({', '.join(f':k{number}' for number in range(len(key)))})"
    alternatives = []
    for number, name in enumerate(key):
        same = [f"{key[before]} = :k{before}" for before in range(number)]
        alternatives.append(" AND ".join([*same, f"{name} > :k{number}"]))
    return f"{key[0]} >= :k0 AND (({') OR ('.join(alternatives)}))"


def _count(tx: Tx, table: Table) -> CopiedTable:
    size = f"SUM(LENGTH({table.blob}))" if table.blob else "0"
    rows, num_bytes = tx.all(f"SELECT COUNT(*), {size} FROM {table.name}")[0]
    return CopiedTable(int(rows), int(num_bytes or 0))
