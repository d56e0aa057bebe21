"""Statements that are made from the struct of a row: a new column needs a new field, and nothing else here.

A struct has the columns of its table in the order of its fields, or some of them; tests/store/engine/test_records.py
compares every struct that is used here with the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from myrmidon.store.engine.sql import Insert, Row, RowUpdate, names

RecordType: TypeAlias = type[Struct]

_TYPES = ((int, "bigint"), (float, "double"), (str, "text"), (bytes, "blob"))

DERIVED: list[tuple[str, RecordType]] = []
"""Every table with a struct of its rows, for the test."""


def columns_of(record: RecordType) -> str:
    return ", ".join(record.__struct_fields__)


def insert_of(table: str, record: RecordType, *further: str) -> Insert:
    """The insert of rows ``(*structs.astuple(record), *further)``."""
    DERIVED.append((table, record))
    return Insert(table, ", ".join((*record.__struct_fields__, *further)))


def update_of(
    table: str, record: RecordType, *, key: str, sets: str, where: str = ""
) -> tuple[RowUpdate, Callable[[Any], Row]]:
    """The update of rows by their keys, and a function that takes its values from a record."""
    DERIVED.append((table, record))
    used = [*names(key), *(item for item in names(sets) if "=" not in item)]
    types = get_type_hints(record)
    update = RowUpdate(table, key, sets, where, ", ".join([_type_of(types[name]) for name in used]))
    return update, attrgetter(*used)


def _type_of(hint: Any) -> str:
    """The column type of a field's type, None or not."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = [one for one in get_args(hint) if one is not NoneType]
    return next(name for base, name in _TYPES if issubclass(hint, base))
