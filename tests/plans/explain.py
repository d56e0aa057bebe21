"""What a database says it will do with a statement, and what is wrong with that.

``Explainer`` stands between a transaction and its link: each statement is explained, with the values it is
given, before it is run. A plan is bad when it reads all of a big table, or sorts although it is asked for the
first few only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from myrmidon.store.engine import mariadb, postgresql, sqlite
from myrmidon.store.engine.sql import Dialect, RowDelete, row_update_text, rows_delete_text, rows_update_text

_TABLE = re.compile(
    r'(?:FROM|JOIN|UPDATE|,)\s+"?(\w+)"?(?:\s+(?:AS\s+)?(?!(?:WHERE|SET|ON|JOIN|LEFT|ORDER|LIMIT|GROUP)\b)(\w+))?',
    re.IGNORECASE,
)


class Explainer:
    """A link that asks before it acts."""

    def __init__(self, link: Any, dialect: Dialect, big: set[str]) -> None:
        self._link, self._dialect, self._big = link, dialect, big
        self.explained: dict[str, list[str]] = {}
        """Every statement seen, with what is wrong with its plan."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def all(self, sql: str, /, **params: Any) -> Any:
        self._look(sql, lambda: self._explain(sql, params))
        return self._link.all(sql, **params)

    def one(self, sql: str, /, **params: Any) -> Any:
        self._look(sql, lambda: self._explain(sql, params))
        return self._link.one(sql, **params)

    def run(self, sql: str, /, **params: Any) -> int:
        self._look(sql, lambda: self._explain(sql, params))
        return int(self._link.run(sql, **params))

    def update_rows(self, statement: Any, rows: Any) -> int:
        text = f"UPDATE {statement.table} SET {' '.join(statement.sets.split())[:60]} by rows"
        if rows:
            self._look(text, lambda: self._explain_rows(statement, rows))
        return int(self._link.update_rows(statement, rows))

    def delete_rows(self, statement: Any, rows: Any) -> int:
        if rows:
            self._look(f"DELETE FROM {statement.table} by rows", lambda: self._explain_rows(statement, rows))
        return int(self._link.delete_rows(statement, rows))

    def _look(self, sql: str, explain: Any) -> None:
        if "SAVEPOINT" in sql:
            return
        text = " ".join(sql.split())
        names = {(alias or table): table for table, alias in _TABLE.findall(text)}
        problems = [] if "INSERT" in text[:6] else list(self._problems(text, names, explain()))
        self.explained[text] = sorted({*self.explained.get(text, []), *problems})

    def _problems(self, text: str, names: dict[str, str], plan: Any) -> Iterator[str]:
        first_few = "LIMIT" in text and "ORDER BY" in text
        find = {Dialect.SQLITE: _sqlite, Dialect.POSTGRESQL: _postgresql, Dialect.MARIADB: _mariadb}[self._dialect]
        for what, table in find(plan):
            if what == "sort":
                if first_few:
                    yield "sorts"
            elif names.get(table, table) in self._big:
                yield f"{what} of {names.get(table, table)}"

    # -- asking

    def _explain(self, sql: str, params: dict[str, Any]) -> Any:
        given = dict(params)
        match self._dialect:
            case Dialect.SQLITE:
                return self._link.execute("EXPLAIN QUERY PLAN " + sqlite.bind(sql, given), given).fetchall()
            case Dialect.POSTGRESQL:
                encoded, values = postgresql._prepared(sql)
                return self._ask_postgresql(encoded, values(given) if values else None)
            case Dialect.MARIADB:
                return self._ask_mariadb(mariadb._rendered(sql, given))

    def _explain_rows(self, statement: Any, rows: Any) -> Any:
        deletes = isinstance(statement, RowDelete)
        match self._dialect:
            case Dialect.SQLITE:
                text = (rows_delete_text if deletes else row_update_text)(Dialect.SQLITE, statement)
                return self._link.execute("EXPLAIN QUERY PLAN " + text, rows[0]).fetchall()
            case Dialect.POSTGRESQL:
                text = (rows_delete_text if deletes else rows_update_text)(Dialect.POSTGRESQL, statement)
                return self._ask_postgresql(text.encode(), postgresql._arrays(statement, rows))
            case Dialect.MARIADB:
                seen: list[str] = []

                def hear(text: str) -> _Nothing:
                    seen.append(text)
                    return _Nothing()

                self._link.query = hear
                try:
                    change = self._link.delete_rows if deletes else self._link.update_rows
                    change(statement, [*rows, *rows])  # joined, as several are
                finally:
                    del self._link.query
                return self._ask_mariadb(seen[0])

    def _ask_postgresql(self, text: bytes, values: Any) -> Any:
        cursor = self._link.connection.cursor()
        found = cursor.execute(b"EXPLAIN (FORMAT JSON) " + text, values).fetchone()
        return found[0] if not isinstance(found[0], str) else json.loads(found[0])

    def _ask_mariadb(self, text: str) -> Any:
        """As a table: with ANSI_QUOTES the JSON form quotes names inside its strings, and is none."""
        return self._link.query("EXPLAIN " + text).rows


class _Nothing:
    """The answer to a statement that was heard, not said."""

    affected_rows = 0


# --- Reading the answers: ("scan", table) and ("sort", "") ---


def _sqlite(plan: Any) -> Iterator[tuple[str, str]]:
    for *_, detail in plan:
        if found := re.match(r"SCAN (\w+)(?! VIRTUAL)", detail):
            yield "scan", found[1]
        if "USE TEMP B-TREE FOR ORDER BY" in detail:
            yield "sort", ""


def _postgresql(plan: Any) -> Iterator[tuple[str, str]]:
    for node in _objects(plan):
        kind = node.get("Node Type", "")
        if kind == "Seq Scan":
            yield "scan", node["Relation Name"]
        if kind in ("Index Scan", "Index Only Scan") and "Index Cond" not in node and "Limit" not in str(plan):
            yield "scan by index", node["Relation Name"]
        if kind == "Sort" and node.get("Plan Rows", 0) > 1000:
            yield "sort", ""


def _mariadb(plan: Any) -> Iterator[tuple[str, str]]:
    for _, _, table, access, *_, extra in plan:
        if "filesort" in (extra or ""):
            yield "sort", ""
        if access in ("ALL", "index") and table:
            yield f"scan ({access})", table


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _objects(branch)
