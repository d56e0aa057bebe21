"""Applies schema migrations; safe to kill at any point.

A migration is ``schema/NNNN_name.sql``. Its first line is ``-- oldest code: N``: the oldest code version that can run
on the resulting schema. A statement ends with a line that ends in ``;``; after a line ``-- only postgresql:`` the next
statement is for that database only. MariaDB commits every CREATE and ALTER, so every statement must be repeatable (IF
NOT EXISTS, ``{add_column}``); on the others a file is applied completely or not at all. Progress is recorded after each
file. Released files never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files

from msgspec import Struct

from myrmidon.model.errors import BrokenPromise, StoreBusy, StoreRefused
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.engine.sql import Dialect, Insert

CODE_VERSION = 1
"""Compared with ``oldest code`` of the files; incremented with every release that changes the schema."""

LOCK_WAIT_S = 60


class Migration(Struct, frozen=True):
    version: int
    oldest_code: int
    name: str
    text: str

    def statements(self, dialect: Dialect) -> list[str]:
        """The statements for one database, with their fragments."""
        found: list[str] = []
        lines: list[str] = []
        only = ""
        for line in self.text.splitlines():
            if line.lstrip().startswith("--"):
                only = _only_for(line) or only
                continue
            lines.append(line)
            if line.rstrip().endswith(";"):
                if only in ("", dialect):
                    found.append(_with_binary_collation(dialect, "\n".join(lines).strip().removesuffix(";")))
                lines, only = [], ""
        if "".join(lines).strip():
            raise BrokenPromise(f"{self.name}: the last statement does not end with ';'.")
        return found


def _with_binary_collation(dialect: Dialect, statement: str) -> str:
    """Strings are compared by their bytes. PostgreSQL needs that for each column; the others have it by table."""
    return re.sub(r"VARCHAR\(\d+\)", r'\g<0> COLLATE "C"', statement) if dialect is Dialect.POSTGRESQL else statement


def shipped() -> list[Migration]:
    """The migrations of this package, oldest first."""
    folder = files("myrmidon.store.engine") / "schema"
    found = [parse(file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda migration: migration.version)


def parse(name: str, text: str) -> Migration:
    number = re.match(r"(\d{4})_\w+\.sql$", name)
    oldest = re.match(r"-- oldest code: (\d+)\n", text)
    if number is None or oldest is None:
        raise BrokenPromise(f"{name}: must be named NNNN_name.sql and start with '-- oldest code: N'.")
    return Migration(int(number[1]), int(oldest[1]), name, text)


def migrate(
    db: Db, now: Micros, *, migrations: Iterable[Migration] | None = None, code: int = CODE_VERSION
) -> list[str]:
    """Apply missing migrations; the names of the applied files. Safe under concurrent calls of several servers.

    A newer schema is accepted when it allows this code version; else StoreRefused, and nothing is changed.
    """
    chosen = shipped() if migrations is None else migrations
    return [it.name for it in chosen if db.write(partial(_apply, migration=it, now=now, code=code))]


def verify(db: Db, *, migrations: Iterable[Migration] | None = None, code: int = CODE_VERSION) -> list[str]:
    """The names of the missing migrations; changes nothing. StoreRefused when this code is too old."""
    chosen = shipped() if migrations is None else migrations
    newest = db.read(lambda tx: _newest(tx, code) if tx.one(TABLE_EXISTS[tx.dialect]) else 0)
    return [it.name for it in chosen if it.version > newest]


CREATE = """
    CREATE TABLE IF NOT EXISTS schema_version (
        version INT NOT NULL PRIMARY KEY,
        oldest_code INT NOT NULL,
        applied_at BIGINT NOT NULL,
        name VARCHAR(255) NOT NULL
    ){table}
"""
_VERSIONS = Insert("schema_version", "version, oldest_code, applied_at, name")
NEWEST = "SELECT version, oldest_code, name FROM schema_version ORDER BY version DESC LIMIT 1"

# Each database has its own catalogue of tables.
TABLE_EXISTS = {
    Dialect.SQLITE: "SELECT 1 FROM sqlite_master WHERE name = 'schema_version'",
    Dialect.POSTGRESQL: "SELECT 1 WHERE to_regclass('schema_version') IS NOT NULL",
    Dialect.MARIADB: """
        SELECT 1 FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_name = 'schema_version'
    """,
}


def _apply(tx: Tx, migration: Migration, now: Micros, code: int) -> bool:
    with _exclusive(tx):
        tx.run(CREATE)
        if _newest(tx, code) >= migration.version:
            return False
        for statement in migration.statements(tx.dialect):
            tx.run(statement)
        tx.insert_new(_VERSIONS, [(migration.version, migration.oldest_code, now, migration.name)])
        return True


def _newest(tx: Tx, code: int) -> int:
    row = tx.one(NEWEST)
    if row is None:
        return 0
    version, oldest_code, name = row
    if code < oldest_code:
        raise StoreRefused(
            f"The schema is newer than this code ({code}): {name} needs code {oldest_code} or later."
            " Install a newer release, or restore the backup made before the upgrade."
        )
    return int(version)


# PostgreSQL's lock ends with the transaction. MariaDB's lock belongs to the connection, and its name is global to the
# server. SQLite has one writer.
LOCK_POSTGRESQL = "SELECT pg_advisory_xact_lock(7164093285)"
LOCK_MARIADB = "SELECT GET_LOCK(CONCAT('myrmidon_migrate_', DATABASE()), :seconds)"
COMMIT_MARIADB = "COMMIT"  # before the lock is released: the next holder must see which file was applied
UNLOCK_MARIADB = "SELECT RELEASE_LOCK(CONCAT('myrmidon_migrate_', DATABASE()))"


@contextmanager
def _exclusive(tx: Tx) -> Iterator[None]:
    if tx.dialect is Dialect.POSTGRESQL:
        tx.one(LOCK_POSTGRESQL)
    if tx.dialect is not Dialect.MARIADB:
        yield
        return
    if tx.one(LOCK_MARIADB, seconds=LOCK_WAIT_S) != (1,):
        raise StoreBusy("Another server is still applying migrations.")
    try:
        yield
        tx.run(COMMIT_MARIADB)
    finally:
        with suppress(Exception):  # a lost connection has released the lock
            tx.one(UNLOCK_MARIADB)


def _only_for(line: str) -> str:
    found = re.fullmatch(r"\s*-- only (\w+):\s*", line)
    return str(Dialect(found[1])) if found else ""
