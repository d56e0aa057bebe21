"""Values of jobs, and the inputs and outputs of tasks."""

from collections.abc import Sequence
from typing import TypeAlias

from myrmidon.model.task_request import Payload
from myrmidon.model.value import Value
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate

_VALUES = Insert('"values"', "id, task_graph_data_id, owner_job_id, type, payload, digest, size")
_INPUTS = Insert("task_inputs", "task_id, position, type, value_id, shared_value_id")
_OUTPUTS = Insert("task_outputs", "task_id, position, type, value_id, shared_value_id")

VALUE = "VALUE"
SHARED = "SHARED_VALUE"

OutputRow: TypeAlias = tuple[str, int, int | None, str]
"""An output of a task: kind, value, shared value once produced, type string."""


def insert(tx: Tx, rows: Sequence[tuple[int, int, int, str, bytes | None, str | None, int | None]]) -> None:
    """Add values (id, graph data id, job, type, payload, digest, size); size is None until they are produced."""
    tx.insert(_VALUES, rows)


def insert_inputs(tx: Tx, rows: Sequence[tuple[int, int, str, int | None, int | None]]) -> None:
    tx.insert(_INPUTS, rows)


def insert_outputs(tx: Tx, rows: Sequence[tuple[int, int, str, int | None, int | None]]) -> None:
    tx.insert(_OUTPUTS, rows)


LAST_DATA_ID = 'SELECT COALESCE(MAX(task_graph_data_id), -1) FROM "values" WHERE owner_job_id = :job'


def last_data_id(tx: Tx, job_id: int) -> int:
    """The greatest graph data id of this job's values; -1 when it has none."""
    row = tx.one(LAST_DATA_ID, job=job_id)
    return int(row[0]) if row else -1


INPUTS = """
    SELECT i.task_id, i.position, i.type, v.id, v.type, v.payload, v.digest, v.size
      FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id {in:ids} AND i.type = 'VALUE'
"""
SHARED_INPUTS = """
    SELECT i.task_id, i.position, i.type, v.id, v.type, v.payload, v.digest, v.size
      FROM task_inputs i JOIN shared_values v ON v.id = i.shared_value_id
     WHERE i.task_id {in:ids} AND i.type = 'SHARED_VALUE'
"""


def inputs(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[Value]]:
    """The input values of each task, by position."""
    rows = sorted(tx.all(INPUTS, ids=task_ids) + tx.all(SHARED_INPUTS, ids=task_ids), key=lambda row: row[:2])
    found: dict[int, list[Value]] = {}
    for task_id, _position, _kind, value_id, kind, payload, digest, size in rows:
        content = bytes(payload) if payload is not None else None
        found.setdefault(task_id, []).append(Value(value_id, kind, content, digest, size))
    return found


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


def lacks_input(tx: Tx, task_id: int) -> bool:
    """Whether some input of the task has not been produced."""
    return tx.one(UNWRITTEN, task=task_id) is not None


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


DATA_ID = 'SELECT task_graph_data_id FROM "values" WHERE id = :id'


def data_id(tx: Tx, value_id: int) -> int:
    """The number of a value in the graph of its job."""
    row = tx.one(DATA_ID, id=value_id)
    return int(row[0]) if row else 0


READ = 'SELECT id, type, payload, digest, size FROM "values" WHERE id {in:ids} ORDER BY id'


def read(tx: Tx, ids: Sequence[int]) -> dict[int, Value]:
    return {
        row[0]: Value(row[0], row[1], bytes(row[2]) if row[2] is not None else None, row[3], row[4])
        for row in tx.all(READ, ids=ids)
    }


WRITE = 'UPDATE "values" SET payload = :payload, digest = :digest, size = :size WHERE id = :id'


def write(tx: Tx, value_id: int, payload: Payload) -> None:
    """Store the content of a value; it replaces the content that an earlier generation of its task has written."""
    tx.run(WRITE, id=value_id, payload=payload.inline, digest=payload.digest, size=payload.size)


ERASE = """
    UPDATE "values" SET payload = NULL, digest = NULL, size = NULL WHERE id {in:ids}
"""
_LINK = RowUpdate("task_outputs", key="task_id, position", sets="shared_value_id", types="bigint, int, bigint")
_LINK_INPUTS = RowUpdate("task_inputs", key="task_id, position", sets="shared_value_id", types="bigint, int, bigint")


def erase(tx: Tx, value_ids: Sequence[int]) -> None:
    """Remove the content of values, because their task runs again."""
    tx.run(ERASE, ids=value_ids)


def link_output(tx: Tx, task_id: int, position: int, shared_value_id: int | None) -> None:
    """Set the shared value that an output has produced."""
    tx.update_rows(_LINK, [(task_id, position, shared_value_id)])


INPUTS_OF = """
    SELECT i.task_id, i.position FROM task_edges e JOIN task_inputs i ON i.task_id = e.child
     WHERE e.parent = :producer AND i.value_id = :value
"""


def link_consumers(tx: Tx, producer: int, value_id: int, shared_value_id: int | None) -> None:
    """Set the shared value in every input that reads this output of the producer."""
    rows = [
        (task, position, shared_value_id) for task, position in tx.all(INPUTS_OF, producer=producer, value=value_id)
    ]
    tx.update_rows(_LINK_INPUTS, rows)


DELETES = (
    "DELETE FROM task_inputs WHERE task_id {in:ids}",
    "DELETE FROM task_outputs WHERE task_id {in:ids}",
)
DELETE_VALUES = 'DELETE FROM "values" WHERE owner_job_id = :job'


def delete_of_tasks(tx: Tx, task_ids: Sequence[int]) -> None:
    for text in DELETES:
        tx.run(text, ids=task_ids)


def delete_of_job(tx: Tx, job_id: int) -> None:
    tx.run(DELETE_VALUES, job=job_id)


OUTPUT_NAMING = """
    SELECT r.id FROM task_results r JOIN task_outputs o ON o.task_id = r.id
     WHERE r.job_id = :job AND o.shared_value_id = :shared LIMIT 1
"""
INPUT_NAMING = """
    SELECT r.id FROM task_results r JOIN task_inputs i ON i.task_id = r.id
     WHERE r.job_id = :job AND i.shared_value_id = :shared LIMIT 1
"""


def names_shared_value(tx: Tx, job_id: int, shared_value_id: int) -> bool:
    """Whether some input or output of the job refers to the shared value."""
    return any(tx.one(text, job=job_id, shared=shared_value_id) is not None for text in (OUTPUT_NAMING, INPUT_NAMING))
