"""Values of jobs, and the inputs and outputs of tasks."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from myrmidon.model.task_request import Payload
from myrmidon.model.value import Value
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, Row, RowUpdate

_VALUES = Insert('"values"', "id, owner_job_id, type, payload, digest, size")
_INPUTS = Insert("task_inputs", "task_id, position, type, value_id, shared_value_id, num_parts")
_PARTS = Insert("task_input_parts", "task_id, position, part, value_id, shared_value_id")
_OUTPUTS = Insert("task_outputs", "task_id, position, type, value_id, shared_value_id")

VALUE = "VALUE"
SHARED = "SHARED_VALUE"

InputRow: TypeAlias = tuple[int, int, str, int | None, int | None, int | None]
"""An input as it is stored: task, position, kind, value, shared value, and the number of parts if it is gathered."""
PartRow: TypeAlias = tuple[int, int, int, int, int | None]
"""A part of a gathered input as it is stored: task, position, number, value, and the shared value once produced."""
OutputRow: TypeAlias = tuple[str, int, int | None, str]
"""An output of a task: kind, value, shared value once produced, type string."""


def insert(tx: Tx, rows: Sequence[tuple[int, int, str, bytes | None, str | None, int | None]]) -> None:
    """Add values (id, job, type, payload, digest, size); size is None until they are produced."""
    tx.insert(_VALUES, rows)


def insert_inputs(tx: Tx, rows: Sequence[InputRow]) -> None:
    tx.insert(_INPUTS, rows)


def insert_parts(tx: Tx, rows: Sequence[PartRow]) -> None:
    tx.insert(_PARTS, rows)


def insert_outputs(tx: Tx, rows: Sequence[tuple[int, int, str, int | None, int | None]]) -> None:
    tx.insert(_OUTPUTS, rows)


INPUTS = """
    SELECT i.task_id, i.position, i.num_parts, v.id, v.type, v.payload, v.digest, v.size
      FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id {in:ids} AND i.type = 'VALUE'
     UNION ALL
    SELECT i.task_id, i.position, i.num_parts, COALESCE(v.id, 0), COALESCE(v.type, ''), v.payload, v.digest, v.size
      FROM task_inputs i LEFT JOIN shared_values v ON v.id = i.shared_value_id
     WHERE i.task_id {in:ids} AND i.type = 'SHARED_VALUE'
"""
# A part that is an output of its producer and shared has both: an empty value and the shared value.
PARTS = """
    SELECT p.task_id, p.position, p.part, v.id, v.type, v.payload, v.digest, v.size
      FROM task_input_parts p JOIN "values" v ON v.id = p.value_id
     WHERE p.task_id {in:ids} AND p.shared_value_id IS NULL
     UNION ALL
    SELECT p.task_id, p.position, p.part, v.id, v.type, v.payload, v.digest, v.size
      FROM task_input_parts p JOIN shared_values v ON v.id = p.shared_value_id
     WHERE p.task_id {in:ids} AND p.shared_value_id IS NOT NULL
"""


def inputs(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[Value]]:
    """The input values of each task, by position."""
    rows = sorted(tx.all(INPUTS, ids=task_ids), key=_place)
    gathered = sorted({row[0] for row in rows if row[2] is not None})
    parts = _parts(tx, gathered) if gathered else {}
    found: dict[int, list[Value]] = {}
    for task_id, position, num_parts, *value in rows:
        several = parts.get((task_id, position), []) if num_parts is not None else None
        found.setdefault(task_id, []).append(_value(*value, parts=several))
    return found


def _parts(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], list[Value]]:
    """The parts of gathered inputs by task and position, in order."""
    rows = sorted(tx.all(PARTS, ids=task_ids), key=_place)
    found: dict[tuple[int, int], list[Value]] = {}
    for task_id, position, _part, *value in rows:
        found.setdefault((task_id, position), []).append(_value(*value))
    return found


def _place(row: Row) -> Row:
    """Task and position of an input, or task, position and number of a part; the third of an input may be None."""
    return row[0], row[1], row[2] or 0


def _value(
    value_id: int,
    kind: str,
    payload: bytes | None,
    digest: str | None,
    size: int | None,
    *,
    parts: Sequence[Value] | None = None,
) -> Value:
    return Value(value_id, kind, bytes(payload) if payload is not None else None, digest, size, parts)


# PostgreSQL joins the few shared values by reading all of them; a subquery for each row uses their key.
SIZES_OF_INPUTS = """
    SELECT i.task_id, COUNT(*) + COALESCE(SUM(i.num_parts), 0),
           COALESCE(SUM(COALESCE((SELECT s.size FROM shared_values s WHERE s.id = i.shared_value_id), v.size)), 0)
      FROM task_inputs i LEFT JOIN "values" v ON v.id = i.value_id WHERE i.task_id {in:ids} GROUP BY i.task_id
"""


def sizes_of_inputs(tx: Tx, task_ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """How many values each of the tasks reads, a part of a gathered input counting as one, and the bytes of all others.

    Tasks that read nothing are left out.
    """
    return {row[0]: (int(row[1]), int(row[2])) for row in tx.all(SIZES_OF_INPUTS, ids=task_ids)}


class GatheredInput(Struct, frozen=True):
    """A gathered input: how many parts it has, and the size of its shape; 0 for a list of the parts."""

    num_parts: int
    size: int


GATHERED_INPUTS = """
    SELECT i.task_id, i.position, i.num_parts, v.size FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id {in:ids} AND i.num_parts IS NOT NULL
"""
PART_VALUES = "SELECT task_id, position, value_id FROM task_input_parts WHERE task_id {in:ids}"
_SET_NUM_PARTS = RowUpdate("task_inputs", key="task_id, position", sets="num_parts", types="bigint, int, int")


def gathered_inputs(tx: Tx, task_ids: Sequence[int]) -> dict[tuple[int, int], GatheredInput]:
    """The gathered inputs of these tasks, by task and position."""
    return {(row[0], row[1]): GatheredInput(*row[2:]) for row in tx.all(GATHERED_INPUTS, ids=task_ids)}


def part_values(tx: Tx, task_ids: Sequence[int]) -> set[tuple[int, int, int]]:
    """(task, position, value) of the parts of these tasks."""
    return {(row[0], row[1], row[2]) for row in tx.all(PART_VALUES, ids=task_ids)}


def set_num_parts(tx: Tx, rows: Sequence[tuple[int, int, int]]) -> None:
    """Set the number of parts (task, position, number) after some were added."""
    tx.update_rows(_SET_NUM_PARTS, rows)


READS_SHARED = "SELECT DISTINCT task_id FROM task_inputs WHERE task_id {in:ids} AND type = 'SHARED_VALUE'"


def reads_shared(tx: Tx, task_ids: Sequence[int]) -> set[int]:
    """Those of the tasks that read a shared value; for them it may matter on which bot they run."""
    return {row[0] for row in tx.all(READS_SHARED, ids=task_ids)} if task_ids else set()


UNWRITTEN = """
    SELECT i.position FROM task_inputs i LEFT JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id = :task
       AND ((i.type = 'VALUE' AND v.size IS NULL) OR (i.type = 'SHARED_VALUE' AND i.shared_value_id IS NULL))
     LIMIT 1
"""
UNWRITTEN_PART = """
    SELECT p.part FROM task_input_parts p LEFT JOIN "values" v ON v.id = p.value_id
     WHERE p.task_id = :task AND p.shared_value_id IS NULL AND v.size IS NULL
     LIMIT 1
"""


def lacks_input(tx: Tx, task_id: int) -> bool:
    """Whether some input of the task, or a part of one, has not been produced."""
    return any(tx.one(text, task=task_id) is not None for text in (UNWRITTEN, UNWRITTEN_PART))


OUTPUTS = """
    SELECT o.task_id, o.position, o.type, o.value_id, o.shared_value_id, v.type
      FROM task_outputs o JOIN "values" v ON v.id = o.value_id
     WHERE o.task_id {in:ids} ORDER BY o.task_id, o.position
"""


def outputs(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[OutputRow]]:
    """The outputs of each task by position."""
    found: dict[int, list[OutputRow]] = {}
    for row in tx.all(OUTPUTS, ids=task_ids):
        found.setdefault(row[0], []).append((row[2], row[3], row[4], row[5]))
    return found


READ = 'SELECT id, type, payload, digest, size FROM "values" WHERE id {in:ids} ORDER BY id'


def read(tx: Tx, ids: Sequence[int]) -> dict[int, Value]:
    return {row[0]: _value(*row) for row in tx.all(READ, ids=ids)}


_WRITE = RowUpdate('"values"', key="id", sets="payload, digest, size", types="bigint, blob, text, bigint")


def write(tx: Tx, written: Mapping[int, Payload]) -> None:
    """Store the contents of values; they replace what an earlier generation of their task has written."""
    tx.update_rows(_WRITE, [(i, given.inline, given.digest, given.size) for i, given in written.items()])


ERASE = """
    UPDATE "values" SET payload = NULL, digest = NULL, size = NULL WHERE id {in:ids}
"""
_LINK = RowUpdate("task_outputs", key="task_id, position", sets="shared_value_id", types="bigint, int, bigint")
_LINK_INPUTS = RowUpdate("task_inputs", key="task_id, position", sets="shared_value_id", types="bigint, int, bigint")
_LINK_PARTS = RowUpdate(
    "task_input_parts", key="task_id, position, part", sets="shared_value_id", types="bigint, int, int, bigint"
)


def erase(tx: Tx, value_ids: Sequence[int]) -> None:
    """Remove the content of values, because their task runs again."""
    tx.run(ERASE, ids=value_ids)


def link_output(tx: Tx, task_id: int, position: int, shared_value_id: int | None) -> None:
    """Set the shared value that an output has produced."""
    tx.update_rows(_LINK, [(task_id, position, shared_value_id)])


# Children are read first, and their inputs by chunks of them. With a join instead, PostgreSQL reads all of task_inputs
# if a producer has many children.
CHILDREN = "SELECT child FROM task_edges WHERE parent = :producer AND child > :after ORDER BY child LIMIT :n"
INPUTS_OF = "SELECT task_id, position FROM task_inputs WHERE task_id {in:tasks} AND value_id = :value"
PARTS_OF = "SELECT task_id, position, part FROM task_input_parts WHERE task_id {in:tasks} AND value_id = :value"
_CHILDREN = 200


def link_consumers(tx: Tx, producer: int, value_id: int, shared_value_id: int | None) -> None:
    """Set the shared value in every input, and in every part of one, that reads this output of the producer."""
    after = 0
    while children := [row[0] for row in tx.all(CHILDREN, producer=producer, after=after, n=_CHILDREN)]:
        readers = tx.all(INPUTS_OF, tasks=children, value=value_id)
        tx.update_rows(_LINK_INPUTS, [(*reader, shared_value_id) for reader in readers])
        parts = tx.all(PARTS_OF, tasks=children, value=value_id)
        tx.update_rows(_LINK_PARTS, [(*part, shared_value_id) for part in parts])
        after = children[-1]


DELETES = (
    "DELETE FROM task_inputs WHERE task_id {in:ids}",
    "DELETE FROM task_input_parts WHERE task_id {in:ids}",
    "DELETE FROM task_outputs WHERE task_id {in:ids}",
)
VALUES_OF_JOB = 'SELECT id FROM "values" WHERE owner_job_id = :job ORDER BY id LIMIT :n'
DELETE_VALUES = 'DELETE FROM "values" WHERE id {in:ids}'


def delete_of_tasks(tx: Tx, task_ids: Sequence[int]) -> None:
    for text in DELETES:
        tx.run(text, ids=task_ids)


def delete_of_job(tx: Tx, job_id: int, n: int) -> int:
    """Delete up to n values of a job whose tasks are deleted; how many."""
    ids = [row[0] for row in tx.all(VALUES_OF_JOB, job=job_id, n=n)]
    if ids:
        tx.run(DELETE_VALUES, ids=ids)
    return len(ids)


SHARED_VALUES_NAMED = """
    SELECT o.shared_value_id FROM task_results r JOIN task_outputs o ON o.task_id = r.id
     WHERE r.job_id = :job AND o.shared_value_id {in:ids}
     UNION
    SELECT i.shared_value_id FROM task_results r JOIN task_inputs i ON i.task_id = r.id
     WHERE r.job_id = :job AND i.shared_value_id {in:ids}
     UNION
    SELECT p.shared_value_id FROM task_results r JOIN task_input_parts p ON p.task_id = r.id
     WHERE r.job_id = :job AND p.shared_value_id {in:ids}
"""


def shared_values_named(tx: Tx, job_id: int, shared_ids: Sequence[int]) -> set[int]:
    """Which of these shared values some input or output of the job refers to."""
    return {row[0] for row in tx.all(SHARED_VALUES_NAMED, job=job_id, ids=shared_ids)}
