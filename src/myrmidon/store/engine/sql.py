"""Translates SQL statements for the three databases: parameters, fragments, inserts and updates of many rows.

This file only converts text; it uses no connection. A statement is written once, as a constant, with ``:name``
parameters and these fragments:

    {for_update} {for_share} {skip_locked}   row locks; empty on SQLite, which has one writer
    {in:name} {in_text:name}     membership in a list of integers or strings: ``WHERE id {in:ids}``
    {each:name} {each_text:name} the list as a table with one column ``value``; it may have an alias
    {blob} {longtext} {text_key} {id} {table} {clustered}     for CREATE TABLE only
    {instr}                      the function that finds a text in another: ``{instr}(a, b) > 0`` if a contains b
    {view}                       for CREATE only: a view that may exist already
    {add_column}                 for ALTER TABLE only

Translations are cached, so that a repeated statement costs one dictionary lookup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, json

Row: TypeAlias = tuple[Any, ...]


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MARIADB = "mariadb"


class Bind(NamedTuple):
    """One parameter, in the order of the text. ``kind`` is ``value``, or the fragment that takes a list."""

    name: str
    kind: str


class Statement(NamedTuple):
    """A text for one database, and its parameters."""

    text: str
    binds: tuple[Bind, ...]


MARIADB_TABLE = " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin"
MARIADB_TEXT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"

FIXED: dict[str, tuple[str, str, str]] = {
    # name: SQLite, PostgreSQL, MariaDB
    "for_update": ("", "FOR UPDATE", "FOR UPDATE"),
    # Blocks transactions that lock the row with for_update; many transactions can hold it at once.
    "for_share": ("", "FOR KEY SHARE", "LOCK IN SHARE MODE"),
    "skip_locked": ("", "FOR UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED"),
    "blob": ("BLOB", "BYTEA", "LONGBLOB"),
    "longtext": ("TEXT", "TEXT", "LONGTEXT"),
    # Short enough that two of them fit into one index of InnoDB (3,072 bytes).
    "text_key": ("TEXT", 'TEXT COLLATE "C"', "VARCHAR(350)"),
    # SQLite: with exactly this spelling the key is the rowid and needs no second index.
    "id": ("INTEGER NOT NULL PRIMARY KEY", "BIGINT NOT NULL PRIMARY KEY", "BIGINT NOT NULL PRIMARY KEY"),
    "table": ("", "", MARIADB_TABLE),
    "clustered": (" WITHOUT ROWID", "", MARIADB_TABLE),
    "instr": ("instr", "strpos", "instr"),
    "view": ("VIEW IF NOT EXISTS", "OR REPLACE VIEW", "OR REPLACE SQL SECURITY INVOKER VIEW"),
    # SQLite has no IF NOT EXISTS here and needs none: there a migration is applied completely or not at all.
    "add_column": ("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", "ADD COLUMN IF NOT EXISTS"),
}

# {place} is the parameter, {alias} the name of the table. For MariaDB lists are written into the text of every call:
# its one-table UPDATE and DELETE use no index with IN (SELECT ... JSON_TABLE).
LISTS: dict[str, tuple[str, str, str]] = {
    "in": ("IN (SELECT value FROM json_each({place}))", "= ANY({place}::bigint[])", "IN ({place})"),
    "in_text": ("IN (SELECT value FROM json_each({place}))", "= ANY({place}::text[])", "IN ({place})"),
    "each": (
        "(SELECT value FROM json_each({place})) AS {alias}",
        "unnest({place}::bigint[]) AS {alias}(value)",
        "JSON_TABLE({place}, '$[*]' COLUMNS (value BIGINT PATH '$')) AS {alias}",
    ),
    "each_text": (
        "(SELECT value FROM json_each({place})) AS {alias}",
        "unnest({place}::text[]) AS {alias}(value)",
        f"JSON_TABLE({{place}}, '$[*]' COLUMNS (value {MARIADB_TEXT} PATH '$')) AS {{alias}}",
    ),
}

_COLUMN_OF = {Dialect.SQLITE: 0, Dialect.POSTGRESQL: 1, Dialect.MARIADB: 2}
_NOT_AN_ALIAS = "AS|CROSS|FOR|GROUP|HAVING|INNER|JOIN|LEFT|LIMIT|NATURAL|ON|ORDER|RIGHT|UNION|WHERE"
_TOKEN = re.compile(
    rf"""
      (?P<literal> '(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<cast> :: )
    | :(?P<name> [A-Za-z_]\w* )
    | \{{ (?P<fragment> [a-z_]+ ) (?: :(?P<of> [A-Za-z_]\w* ) )? \}}
      (?: \s+ (?:AS\s+)? (?!(?:{_NOT_AN_ALIAS})\b) (?P<alias> (?<=\s) [A-Za-z_]\w* ) )?
    | (?P<each> \beach(?=\.value\b) )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def compiled(dialect: Dialect, text: str) -> Statement:
    """The statement for one database. ValueError for an unknown fragment."""
    return _Compiler(dialect).compile(text)


class _Compiler:
    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.column = _COLUMN_OF[dialect]
        self.binds: list[Bind] = []

    def compile(self, text: str) -> Statement:
        parts: list[str] = []
        end = 0
        for token in _TOKEN.finditer(text):
            parts += self._plain(text[end : token.start()]), self._token(token)
            end = token.end()
        parts.append(self._plain(text[end:]))
        return Statement("".join(parts).strip(), tuple(self.binds))

    def _plain(self, text: str) -> str:
        """Values are inserted into MariaDB's texts with ``%``, so other percent signs are doubled."""
        return text.replace("%", "%%") if self.dialect is Dialect.MARIADB else text

    def _token(self, token: re.Match[str]) -> str:
        match token.lastgroup:
            case "literal" if self.dialect is Dialect.MARIADB:
                # In MariaDB a backslash in a literal is an escape; in our texts it is a backslash, as elsewhere.
                return self._plain(token[0].replace("\\", "\\\\"))
            case "literal" | "quoted" | "cast":
                return self._plain(token[0])
            case "comment":
                return " "
            case "name":
                return self._place(token["name"], "value")
            case "each":
                return self._alias("each")
            case _:
                return self._fragment(token)

    def _fragment(self, token: re.Match[str]) -> str:
        fragment, of, alias = token["fragment"], token["of"], token["alias"]
        if of is None and fragment in FIXED:
            rest = token[0].partition("}")[2]
            return FIXED[fragment][self.column] + rest
        if of is None or fragment not in LISTS:
            raise ValueError(f"no such fragment: {token[0]}")
        place = self._place(of, fragment)
        if not fragment.startswith("each"):
            return LISTS[fragment][self.column].format(place=place) + token[0].partition("}")[2]
        return LISTS[fragment][self.column].format(place=place, alias=self._alias(alias or "each"))

    def _alias(self, alias: str) -> str:
        """EACH is a reserved word in MariaDB."""
        return f'"{alias}"' if self.dialect is Dialect.MARIADB and alias.lower() == "each" else alias

    def _place(self, name: str, kind: str) -> str:
        """The placeholder. On PostgreSQL every use of a name is a separate parameter, with the type of its context."""
        self.binds.append(Bind(name, kind))
        match self.dialect:
            case Dialect.SQLITE:
                return f":{name}"
            case Dialect.POSTGRESQL:
                return f"${len(self.binds)}"
            case Dialect.MARIADB:
                return "%s"


def json_text(values: Iterable[Any]) -> str:
    """A list as JSON text; not bytes, which SQLite would take for its binary JSON."""
    return json.encode(list(values)).decode()


# --- Many rows in one statement ---


class Insert(Struct, frozen=True):
    """An INSERT without its rows: a module-level constant beside the function that uses it."""

    table: str
    columns: str

    @property
    def width(self) -> int:
        return len(names(self.columns))


class RowUpdate(Struct, frozen=True):
    """An UPDATE with separate values for every row: ``UPDATE table SET sets WHERE key AND (where)``.

    A row is the key columns, then the set columns. An item of ``sets`` with an equals sign, such as ``seq = seq + 1``,
    is used unchanged and takes no value. ``types`` names the type of each key and set column in order (bigint, int,
    text, double, blob; default: all bigint). The keys of one call must be distinct. Rows are locked in no defined
    order: lock them first where that matters.
    """

    table: str
    key: str
    sets: str
    where: str = ""
    types: str = ""

    def __post_init__(self) -> None:
        unknown = set(self.type_names) - TYPES.keys()
        if unknown or len(self.type_names) != len(self.keys) + len(self.columns):
            raise ValueError(f"{self.table}: types must name {', '.join(TYPES)} for each key and set column")

    @property
    def keys(self) -> list[str]:
        return names(self.key)

    @property
    def columns(self) -> list[str]:
        return [item for item in names(self.sets) if "=" not in item]

    @property
    def type_names(self) -> list[str]:
        return names(self.types) or ["bigint"] * (len(self.keys) + len(self.columns))


class RowDelete(Struct, frozen=True):
    """A DELETE of single rows by their complete key. ``types`` names the type of each key column in order."""

    table: str
    key: str
    types: str

    @property
    def keys(self) -> list[str]:
        return names(self.key)

    @property
    def type_names(self) -> list[str]:
        return names(self.types)


# PostgreSQL's names of the column types; the others need none.
TYPES = {"bigint": "bigint", "int": "int", "text": "text", "double": "double precision", "blob": "bytea"}


def names(listed: str) -> list[str]:
    """The items of a comma-separated list; a comma inside parentheses does not separate."""
    return [item.strip() for item in re.split(r",(?![^()]*\))", listed) if item.strip()]


@lru_cache(maxsize=4096)
def insert_head(statement: Insert) -> str:
    return f"INSERT INTO {statement.table} ({statement.columns}) VALUES "


@lru_cache(maxsize=4096)
def insert_text(dialect: Dialect, statement: Insert, rows: int, *, only_new: bool) -> str:
    """Multi-row VALUES with placeholders, for SQLite and PostgreSQL."""
    if dialect is Dialect.SQLITE:
        one = "(" + ", ".join("?" * statement.width) + ")"
        values = ", ".join([one] * rows)
    else:
        width = statement.width
        values = ", ".join(
            "(" + ", ".join(f"${row * width + column}" for column in range(1, width + 1)) + ")" for row in range(rows)
        )
    return insert_head(statement) + values + (" ON CONFLICT DO NOTHING" if only_new else "")


@lru_cache(maxsize=1024)
def row_update_text(dialect: Dialect, update: RowUpdate) -> str:
    """The UPDATE of one row with its values as parameters; at least twice as fast as the join of `rows_update_text`."""
    value: Callable[[int], str]
    match dialect:
        case Dialect.SQLITE:
            # Numbered, because the row and the text have the values in different orders.
            value = "?{}".format
        case Dialect.POSTGRESQL:
            value = partial(_typed_place, update)
        case Dialect.MARIADB:
            value = "{{{}}}".format  # for str.format with one unused value before the row
    return f"UPDATE {update.table} SET {_sets(dialect, update, value)} WHERE {_matches(update, value)}"


def _typed_place(update: RowUpdate, number: int) -> str:
    return f"${number}::{TYPES[update.type_names[number - 1]]}"


@lru_cache(maxsize=1024)
def rows_update_text(dialect: Dialect, update: RowUpdate) -> str:
    """The UPDATE of many rows, joined with a table of their values; for PostgreSQL and MariaDB."""
    value = "v.c{}".format
    if dialect is Dialect.POSTGRESQL:
        head, source = f"UPDATE {update.table} SET ", f" FROM {_unnest(update)} WHERE "
    else:
        # STRAIGHT_JOIN: with the other order MariaDB would read and lock the whole table.
        head, source = f"UPDATE (%s) AS v STRAIGHT_JOIN {update.table} SET ", " WHERE "
    return head + _sets(dialect, update, value) + source + _matches(update, value)


@lru_cache(maxsize=1024)
def rows_delete_text(dialect: Dialect, delete: RowDelete) -> str:
    """The DELETE of one row on SQLite, and of many rows by a join elsewhere; see `rows_update_text`."""
    match dialect:
        case Dialect.SQLITE:
            return f"DELETE FROM {delete.table} WHERE {_matches(delete, '?{}'.format)}"
        case Dialect.POSTGRESQL:
            return f"DELETE FROM {delete.table} USING {_unnest(delete)} WHERE {_matches(delete, 'v.c{}'.format)}"
        case Dialect.MARIADB:
            joined = f"(%s) AS v STRAIGHT_JOIN {delete.table}"
            return f"DELETE {delete.table} FROM {joined} WHERE {_matches(delete, 'v.c{}'.format)}"


def _sets(dialect: Dialect, update: RowUpdate, value: Callable[[int], str]) -> str:
    prefix = f"{update.table}." if dialect is Dialect.MARIADB else ""
    number = len(update.keys)
    sets = []
    for item in names(update.sets):
        if "=" in item:
            sets.append(item)
            continue
        number += 1
        sets.append(f"{prefix}{item} = {value(number)}")
    return ", ".join(sets)


def _matches(change: RowUpdate | RowDelete, value: Callable[[int], str]) -> str:
    keys = [f"{change.table}.{key} = {value(number)}" for number, key in enumerate(change.keys, 1)]
    return " AND ".join([*keys, f"({change.where})"] if isinstance(change, RowUpdate) and change.where else keys)


def _unnest(change: RowUpdate | RowDelete) -> str:
    arrays = [f"${n}::{TYPES[name]}[]" for n, name in enumerate(change.type_names, 1)]
    return f"unnest({', '.join(arrays)}) AS v({', '.join(f'c{n}' for n in range(1, len(arrays) + 1))})"
