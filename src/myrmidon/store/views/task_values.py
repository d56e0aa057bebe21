"""The inputs and outputs of one task with their sources, and the values that pass along edges of a graph."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.store.engine.db import Tx


class InputLine(Struct, frozen=True):
    """An input of a task, or a part of one. ``value_id`` is that of the shared value, if it is one."""

    position: int
    part: int | None
    type: str
    value_id: int
    shared: int
    size: int | None
    num_parts: int | None
    written_as: int | None
    """The value of the job behind it, which its producer has as an output."""


class Source(Struct, frozen=True):
    """The output of a task that a value is."""

    task_id: int
    label: str
    position: int


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


def inputs(tx: Tx, task_id: int, *, max_parts: int) -> list[InputLine]:
    """The inputs of a task by position, and the first parts of those that are gathered."""
    whole = [InputLine(*row) for row in tx.all(INPUTS, task=task_id)]
    gathered = any(line.num_parts is not None for line in whole)
    return whole + [InputLine(*row) for row in tx.all(PARTS, task=task_id, n=max_parts)] if gathered else whole


def outputs(tx: Tx, task_id: int) -> list[InputLine]:
    return [InputLine(*row) for row in tx.all(OUTPUTS, task=task_id)]


def sources(tx: Tx, task_id: int, value_ids: Sequence[int]) -> dict[int, Source]:
    """Return which output of which parent has produced each of these values. Delegates write the same values."""
    rows = tx.all(SOURCES, task=task_id, values=list(value_ids)) if value_ids else ()
    found: dict[int, Source] = {}
    for value_id, *rest in rows:
        found.setdefault(value_id, Source(*rest))
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
