"""The inputs and outputs of one task with their sources, and the values that pass along edges of a graph."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model.ids import show_task
from myrmidon.store.engine.db import Row, Tx
from myrmidon.wire.values import TaskValue, ValueSource

_VALUE = "COALESCE(s.id, v.id), CASE WHEN s.id IS NULL THEN 0 ELSE 1 END, COALESCE(s.size, v.size)"
INPUTS = f"""
    SELECT i.position, NULL, COALESCE(v.type, s.type), {_VALUE}, i.num_parts, i.value_id
      FROM task_inputs i LEFT JOIN "values" v ON v.id = i.value_id LEFT JOIN shared_values s ON s.id = i.shared_value_id
     WHERE i.task_id = :task ORDER BY i.position
"""
PARTS = f"""
    SELECT p.position, p.part, v.type, {_VALUE}, NULL, p.value_id
      FROM task_input_parts p JOIN "values" v ON v.id = p.value_id LEFT JOIN shared_values s ON s.id = p.shared_value_id
     WHERE p.task_id = :task ORDER BY p.position, p.part LIMIT :n
"""
SOURCES = """
    SELECT o.value_id, o.task_id, l.label, o.position
      FROM task_edges e JOIN task_outputs o ON o.task_id = e.parent JOIN task_labels l ON l.task_id = o.task_id
     WHERE e.child = :task AND o.value_id {in:values}
"""
OUTPUTS = f"""
    SELECT o.position, NULL, v.type, {_VALUE}, NULL, o.value_id
      FROM task_outputs o JOIN "values" v ON v.id = o.value_id LEFT JOIN shared_values s ON s.id = o.shared_value_id
     WHERE o.task_id = :task ORDER BY o.position
"""


def inputs(tx: Tx, task_id: int, *, max_parts: int) -> list[TaskValue]:
    """The inputs of a task by position with their sources, and the first parts of those that are gathered."""
    whole = tx.all(INPUTS, task=task_id)
    parts = tx.all(PARTS, task=task_id, n=max_parts) if any(row[-2] is not None for row in whole) else []
    known = {row[-1] for row in (*whole, *parts) if row[-1] is not None}
    sources = _sources(tx, task_id, sorted(known))
    return [
        _value(row, row[0], sources, [_value(part, part[1], sources) for part in parts if part[0] == row[0]])
        for row in whole
    ]


def outputs(tx: Tx, task_id: int) -> list[TaskValue]:
    return [_value(row, row[0], {}) for row in tx.all(OUTPUTS, task=task_id)]


def _value(row: Row, position: int, sources: Mapping[int, ValueSource], parts: Sequence[TaskValue] = ()) -> TaskValue:
    """An input or output, or a part; ``written_as`` is the value of the job, which its producer has as an output."""
    _, _, kind, value_id, shared, size, num_parts, written_as = row
    return TaskValue(
        position=position,
        type=kind,
        value_id=show_task(value_id),
        size=size,
        shared=bool(shared),
        source=sources.get(written_as),
        num_parts=num_parts,
        parts=list(parts) if num_parts is not None else [],
    )


def _sources(tx: Tx, task_id: int, value_ids: Sequence[int]) -> dict[int, ValueSource]:
    """Of the values that parents of the task produce: which output of which one. Delegates write the same values."""
    found: dict[int, ValueSource] = {}
    for value_id, producer, label, position in tx.all(SOURCES, task=task_id, values=value_ids) if value_ids else ():
        found.setdefault(value_id, ValueSource(show_task(producer), label, position))
    return found


# ---------------------------------------------------------------- along edges


class EdgeValue(Struct, frozen=True):
    """A value that a parent produces and a child reads; no size until it is written."""

    parent: int
    child: int
    type: str
    size: int | None


_READ = """task_edges e JOIN task_outputs o ON o.task_id = e.parent JOIN "values" v ON v.id = o.value_id
    LEFT JOIN shared_values s ON s.id = o.shared_value_id"""
# The tasks are named twice: PostgreSQL would read all inputs otherwise.
EDGE_VALUES = f"""
    SELECT e.parent, e.child, v.type, COALESCE(s.size, v.size)
      FROM {_READ} JOIN task_inputs i ON i.task_id = e.child AND i.value_id = o.value_id
     WHERE e.child {{in:ids}} AND i.task_id {{in:ids}} ORDER BY e.parent, e.child, o.position
"""
EDGE_PARTS = f"""
    SELECT DISTINCT e.parent, e.child, v.type, COALESCE(s.size, v.size), o.position
      FROM {_READ} JOIN task_input_parts p ON p.task_id = e.child AND p.value_id = o.value_id
     WHERE e.child {{in:ids}} AND p.task_id {{in:ids}} ORDER BY e.parent, e.child, o.position
"""


def on_edges(tx: Tx, task_ids: Sequence[int]) -> list[EdgeValue]:
    """The values on the edges to these tasks."""
    given = list(task_ids)
    return [EdgeValue(*row[:4]) for sql in (EDGE_VALUES, EDGE_PARTS) for row in tx.all(sql, ids=given)] if given else []
