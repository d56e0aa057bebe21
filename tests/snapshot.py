"""All rows of a database: as text to compare, and kept inside the database to go back to.

    shot = Snapshot(url)
    before = shot.rows()      # {table: sorted rows, each one text}
    shot.keep()               # remember this moment
    shot.restore()            # undo everything since

One round trip each, so that a test can go back hundreds of times. ``named`` replaces ids by their order: two
runs that did the same with other ids are then equal.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql
from pymysql.constants import CLIENT

from myrmidon.store.engine import sqlite
from tests.deadline import HANG_S

sqlite3: Any = vars(sqlite)["sqlite3"]  # the module that was chosen there
Rows = dict[str, list[str]]
_ID = re.compile(r"(?<![0-9a-f.])(?:\d{17,19}|[0-9a-f]{15}1[0-9a-f]{0,2})(?![0-9a-f.])")


class Snapshot:
    """A way into one database beside the code under test."""

    def __init__(self, url: str) -> None:
        self._link = _link(url)
        self.tables = self._link.columns()
        self._query = " UNION ALL ".join(
            f"SELECT '{table}', {self._link.row_text(table, columns)} FROM {_quoted(table)}"
            for table, columns in self.tables.items()
        )
        self._kept: Rows = {}

    def rows(self) -> Rows:
        """Every row of every table that has any."""
        found: Rows = {}
        for table, text in self._link.all(self._query):
            found.setdefault(table, []).append(text)
        return {table: sorted(found[table]) for table in sorted(found)}

    def keep(self) -> Rows:
        """Remember this moment; its rows."""
        self._kept = self.rows()
        if self._kept:
            self._link.script([self._link.keep(table) for table in self._kept])
        return self._kept

    def restore(self, now: Rows | None = None) -> None:
        """Back to the moment kept; ``now`` is what is there, when the caller knows it."""
        current = self.rows() if now is None else now
        changed = [t for t in self.tables if current.get(t) != self._kept.get(t)]
        steps = [f"DELETE FROM {_quoted(t)}" for t in changed]
        steps += [f"INSERT INTO {_quoted(t)} SELECT * FROM {self._link.kept(t)}" for t in changed if t in self._kept]
        if steps:
            self._link.script(steps)

    def close(self) -> None:
        self._link.close()


def named(rows: Rows) -> Rows:
    """The rows with every id replaced by its place in the order of all ids."""
    numbers: set[int] = set()
    for texts in rows.values():
        for text in texts:
            numbers.update(_number(found[0]) for found in _ID.finditer(text))
    names = {number: f"#{place}" for place, number in enumerate(sorted(numbers))}
    return {
        table: sorted(_ID.sub(lambda found: names[_number(found[0])], text) for text in texts)
        for table, texts in rows.items()
    }


def _number(text: str) -> int:
    """An id as it is stored, or as users see it: hex with one byte more."""
    if text.isdigit() and len(text) > 16:
        return int(text)
    return int(text, 16) >> 8 if len(text) > 16 else int(text, 16)


def difference(before: Rows, after: Rows) -> str:
    """What changed, for a message; empty when nothing did."""
    lines = []
    for table in sorted(before.keys() | after.keys()):
        old, new = before.get(table, []), after.get(table, [])
        lines += [f"  - {table}: {row}" for row in old if row not in new or old.count(row) > new.count(row)]
        lines += [f"  + {table}: {row}" for row in new if row not in old or new.count(row) > old.count(row)]
    return "\n".join(lines[:40])


def _quoted(table: str) -> str:
    return f'"{table}"'


# --- The three databases ---


class _Sqlite:
    def __init__(self, url: str) -> None:
        self._db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=HANG_S)

    def columns(self) -> dict[str, list[tuple[str, str]]]:
        found = self.all("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY 1")
        return {name: [(row[1], row[2]) for row in self.all(f'PRAGMA table_info("{name}")')] for (name,) in found}

    def row_text(self, table: str, columns: list[tuple[str, str]]) -> str:
        return " || '|' || ".join(f"quote({name})" for name, _ in columns)

    def all(self, sql: str) -> list[Any]:
        return self._db.execute(sql).fetchall()

    def keep(self, table: str) -> str:
        return f'DROP TABLE IF EXISTS temp."kept_{table}"; CREATE TEMP TABLE "kept_{table}" AS SELECT * FROM "{table}"'

    def kept(self, table: str) -> str:
        return f'temp."kept_{table}"'

    def script(self, steps: list[str]) -> None:
        self._db.executescript("BEGIN IMMEDIATE; " + "; ".join(steps) + "; COMMIT")

    def close(self) -> None:
        self._db.close()


class _Postgresql:
    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(
            url,
            autocommit=True,
            options=f"-c session_replication_role=replica -c lock_timeout={HANG_S:.0f}s -c jit=off",
        )
        self._db.execute(b"CREATE SCHEMA IF NOT EXISTS kept_rows")

    def columns(self) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for table, name, kind in self.all(
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            " JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position"
        ):
            found.setdefault(table, []).append((name, kind))
        return found

    def row_text(self, table: str, columns: list[tuple[str, str]]) -> str:
        return f'"{table}"::text'

    def all(self, sql: str) -> list[Any]:
        return self._db.execute(sql.encode(), prepare=True).fetchall()

    def keep(self, table: str) -> str:
        return f'DROP TABLE IF EXISTS kept_rows."{table}"; CREATE TABLE kept_rows."{table}" AS SELECT * FROM "{table}"'

    def kept(self, table: str) -> str:
        return f'kept_rows."{table}"'

    def script(self, steps: list[str]) -> None:
        self._db.execute(("BEGIN; " + "; ".join(steps) + "; COMMIT").encode())

    def close(self) -> None:
        self._db.close()


class _Mariadb:
    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._name = unquote(at.path[1:])
        self._db = pymysql.connect(
            host=at.hostname, port=at.port or 0, user=at.username, database=self._name, autocommit=True,
            ssl_disabled=True, client_flag=CLIENT.MULTI_STATEMENTS, charset="utf8mb4", init_command=(
                "SET SESSION sql_mode = 'ANSI_QUOTES', foreign_key_checks = 0,"
                f" innodb_lock_wait_timeout = {HANG_S:.0f}, lock_wait_timeout = {HANG_S:.0f}"
            ),
        )  # fmt: skip

    def columns(self) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for table, name, kind in self.all(
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            " JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY table_name, ordinal_position"
        ):
            if not table.startswith("kept_"):
                found.setdefault(table, []).append((name, kind))
        return found

    def row_text(self, table: str, columns: list[tuple[str, str]]) -> str:
        parts = [f'QUOTE(HEX("{name}"))' if "blob" in kind else f'QUOTE("{name}")' for name, kind in columns]
        return f"CAST(CONCAT_WS('|', {', '.join(parts)}) AS CHAR CHARACTER SET utf8mb4)"

    def all(self, sql: str) -> list[Any]:
        with self._db.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def keep(self, table: str) -> str:
        drop = f'DROP TEMPORARY TABLE IF EXISTS "kept_{table}"'
        return f'{drop}; CREATE TEMPORARY TABLE "kept_{table}" AS SELECT * FROM "{table}"'

    def kept(self, table: str) -> str:
        return f'"kept_{table}"'

    def script(self, steps: list[str]) -> None:
        with self._db.cursor() as cursor:
            cursor.execute("BEGIN; " + "; ".join(steps) + "; COMMIT")
            while cursor.nextset():
                pass

    def close(self) -> None:
        self._db.close()


def _link(url: str) -> Any:
    kinds = {"sqlite": _Sqlite, "postgresql": _Postgresql, "mysql": _Mariadb}
    return kinds[url.partition(":")[0]](url)
