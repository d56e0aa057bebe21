"""Structs of rows agree with the schema, so that the statements which are made from them are right."""

from __future__ import annotations

import importlib
import pkgutil
from typing import get_type_hints

from msgspec import Struct

from myrmidon.store import tables
from myrmidon.store.engine.db import Db
from myrmidon.store.engine.records import DERIVED, _type_of, insert_of, update_of
from myrmidon.store.engine.sql import Row

for found in pkgutil.iter_modules(tables.__path__):
    importlib.import_module(f"{tables.__name__}.{found.name}")

COLUMN_TYPES = {"bigint": ("BIGINT", "INT"), "text": ("TEXT", "VARCHAR"), "double": ("DOUBLE",), "blob": ("BLOB",)}


class Thing(Struct):
    id: int
    name: str
    share: float | None
    content: bytes | None
    seq: int = 0


def test_every_struct_names_columns_of_its_table_with_their_types(sqlite_db: Db) -> None:
    """The schema is one text for all databases."""
    assert DERIVED
    for table, record in DERIVED:
        columns = {row[1]: row[2] for row in _columns(sqlite_db, table)}
        types = get_type_hints(record)
        for name in record.__struct_fields__:
            assert name in columns, f"{table} has no column {name}"
            assert columns[name].startswith(COLUMN_TYPES[_type_of(types[name])]), f"{table}.{name} is {columns[name]}"


def _columns(db: Db, table: str) -> list[Row]:
    return db.read(lambda tx: tx.all(f"PRAGMA table_info({table})"))


def test_an_insert_has_the_columns_of_its_struct_and_further_ones() -> None:
    assert insert_of("things", Thing, "owner").columns == "id, name, share, content, seq, owner"
    DERIVED.pop()


def test_an_update_has_the_types_of_its_columns_and_takes_their_values() -> None:
    update, values = update_of("things", Thing, key="id, seq", sets="content, share, seq = seq + 1", where="share > 0")
    DERIVED.pop()
    assert update.type_names == ["bigint", "bigint", "blob", "double"]
    assert values(Thing(5, "a", 0.5, b"x", 2)) == (5, 2, b"x", 0.5)
