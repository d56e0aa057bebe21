"""The columns of a SELECT and the struct that a row becomes, from one declaration: a new field is added once.

The types of ``wire.fields`` say how a column is shown: ids as hexadecimal digits, stored JSON as it is. So a view
returns what a client gets, and no layer above it copies fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Raw, Struct, json

from myrmidon.model.ids import EPOCH_MS, show_run, show_task
from myrmidon.store.engine.db import Row, Tx
from myrmidon.wire.fields import Form

T = TypeVar("T", bound=Struct)

GROUP_NAME = "COALESCE((SELECT n.external_id FROM resource_groups n WHERE n.id = {}.resource_group_id), '')"
"""The name of the resource group of a row. Not a join: databases would plan the rest of the statement around it."""

CREATED_AT = f"(({{}} >> 20) + {EPOCH_MS}) * 1000"
"""The time when the object with an id was made, as ``model.ids.created_ms``."""


def in_group(group_id: int | None) -> dict[str, int]:
    """Return what ``:any_group = 1 OR resource_group_id = :resource_group`` needs; None stands for all groups."""
    return {"any_group": int(group_id is None), "resource_group": group_id or 0}


def stored_json(text: str) -> Any:
    """A stored JSON text as the value of a field: it is sent as it is, without decoding it first."""
    return Raw(text.encode())


def decode_stored(value: Any) -> Any:
    """The value of a field that was read as stored JSON."""
    return json.decode(value)


def show_hex(number: int) -> str:
    """The text form of ids that are neither of a task nor of a job."""
    return f"{number:x}"


_FORMS: dict[Form, Callable[[Any], Any]] = {
    Form.TASK: show_task,
    Form.HEX: show_hex,
    Form.SECONDS: lambda micros: micros / 1_000_000,
}


class Selection(Generic[T]):
    """What is read of each row: ``width`` ``columns`` of the SELECT; call it with a row to get the struct.

    A field is the column of ``table`` with its name, unless ``columns`` names another expression; the id of a run has
    two, its task and its number, and is null if one of them is. The fields ``left_out``, which are the last ones of the
    struct, are given in the call.
    """

    def __init__(
        self, record: type[T], table: str, *, left_out: Sequence[str] = (), **columns: str | tuple[str, str]
    ) -> None:
        self._shown: list[tuple[int, Callable[[Any], Any]]] = []
        fields = [name for name in record.__struct_fields__ if name not in left_out]
        hints = get_type_hints(record, include_extras=True)
        selected, tasks = list[str](), dict[int, str]()
        for position, name in enumerate(fields):
            column = columns.pop(name, f"{table}.{name}")
            if isinstance(column, tuple):
                tasks[position], column = column
            elif show := _form_of(hints[name]):
                self._shown.append((position, show))
            selected.append(column)
        if columns:
            raise ValueError(f"{record.__name__} has no fields {', '.join(columns)}")
        selected += sorted(set(tasks.values()) - set(selected))
        self._runs = [(position, selected.index(task)) for position, task in tasks.items()]
        self._num_fields = len(fields)
        self.columns, self.width = ", ".join(selected), len(selected)
        self._make: Callable[..., T] = record
        if any(one.kind is one.KEYWORD_ONLY for one in signature(record).parameters.values()):  # four times as slow
            names = record.__struct_fields__
            self._make = lambda *values: record(**dict(zip(names, values, strict=False)))

    def __call__(self, row: Row, *left_out: object) -> T:
        """The struct of a row; further columns at the end of the row are not read."""
        values = list(row)
        del values[self._num_fields :]
        for position, show in self._shown:
            value = values[position]
            if value is not None:
                values[position] = show(value)
        for position, task in self._runs:
            number, task_id = values[position], row[task]
            values[position] = show_run(task_id, number) if number is not None and task_id is not None else None
        return self._make(*values, *left_out)

    def read(self, tx: Tx, text: str, **given: object) -> list[T]:
        return [self(row) for row in tx.all(text, **given)]


def _form_of(hint: Any) -> Callable[[Any], Any] | None:
    """How the value of a column becomes that of a field with this type; None if it stays as it is."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(one for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) is Annotated:
        form = next((one for one in get_args(hint) if isinstance(one, Form)), None)
        return _FORMS[form] if form else None
    if get_origin(hint) in (list, dict):
        return stored_json
    return bool if hint is bool else None
