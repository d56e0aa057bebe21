"""Values as clients see them: those of a job with their producers, and the results of many tasks at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from myrmidon.model.ids import show_task
from myrmidon.model.value import Value
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Row
from myrmidon.wire.values import ValueInfo

# ---------------------------------------------------------------- results


class TaskEnd(Struct, frozen=True, gc=False):
    """The state of a task, and its decisive run of the present generation."""

    task_id: int
    resource_group_id: int
    state: str
    reason: str
    run: int | None
    exit_code: int | None
    bot_id: str | None
    error: str | None
    job_id: int | None


ENDS = """
    SELECT t.id, t.resource_group_id, t.state, t.reason, r.run, r.exit_code, r.bot_id, r.error, t.job_id
      FROM task_results t
      LEFT JOIN task_runs r ON r.task_id = t.id AND r.run = COALESCE(t.instance_id, t.run_number)
                           AND r.generation = t.generation
     WHERE t.id {in:ids}
"""


def ends(tx: Tx, task_ids: Sequence[int]) -> dict[int, TaskEnd]:
    """The states of tasks with one statement."""
    return {row[0]: TaskEnd(*row) for row in tx.all(ENDS, ids=task_ids)}


# A job that will be retried runs its failed tasks again.
IN_FAILED_JOBS = """
    SELECT t.id FROM task_results t JOIN jobs j ON j.id = t.job_id
     WHERE t.id {in:ids} AND t.state = 'WAITING' AND j.num_failed > 0
       AND (j.state IN ('FAILED', 'CANCELLED') OR (j.state = 'RUNNING' AND j.num_retries >= j.max_num_retries))
"""
# A parent that waits itself may wait for ever.
STUCK_PARENTS = """
    SELECT e.child, e.parent, p.state
      FROM task_edges e JOIN task_results t ON t.id = e.child JOIN task_results p ON p.id = e.parent
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.child {in:ids} AND c.parent IS NULL
       AND (p.state = 'WAITING' OR (t.resolves_all = 0 AND p.state NOT IN ('READY', 'RUNNING', 'SUCCEEDED')))
     ORDER BY e.child, e.parent
"""


def causes_of_waiting(tx: Tx, task_ids: Sequence[int]) -> dict[int, int]:
    """For those of the waiting tasks that can never start, a task before them that has failed for good."""
    causes: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    level = [row[0] for row in tx.all(IN_FAILED_JOBS, ids=task_ids)]
    seen = set(level)
    while level:
        edges = tx.all(STUCK_PARENTS, ids=level)
        level = []
        for child, parent, state in edges:
            if state == "WAITING":
                children.setdefault(parent, []).append(child)
                if parent not in seen:
                    seen.add(parent)
                    level.append(parent)
                elif parent in causes:
                    _spread(causes, children, child, causes[parent])
            else:
                _spread(causes, children, child, parent)
    return {task_id: causes[task_id] for task_id in task_ids if task_id in causes}


def _spread(causes: dict[int, int], children: Mapping[int, Sequence[int]], task_id: int, cause: int) -> None:
    """A task cannot start, so neither can its children."""
    left = [task_id]
    while left:
        if (one := left.pop()) not in causes:
            causes[one] = cause
            left += children.get(one, ())


# A shared output has both: an empty value, and the shared value once it is produced.
OUTPUTS = """
    SELECT o.task_id, COALESCE(s.id, v.id), v.type, COALESCE(s.payload, v.payload), COALESCE(s.digest, v.digest),
           COALESCE(s.size, v.size)
      FROM task_outputs o JOIN "values" v ON v.id = o.value_id LEFT JOIN shared_values s ON s.id = o.shared_value_id
     WHERE o.task_id {in:ids} ORDER BY o.task_id, o.position
"""


def outputs(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[Value]]:
    """The outputs of tasks by position, with one statement; a shared one has the id of the shared value."""
    found: dict[int, list[Value]] = {}
    for task_id, *rest in tx.all(OUTPUTS, ids=task_ids) if task_ids else ():
        found.setdefault(task_id, []).append(_value(rest))
    return found


def _value(row: Sequence[Any]) -> Value:
    value_id, kind, payload, digest, size = row
    return Value(value_id, kind, bytes(payload) if payload is not None else None, digest, size)


# ---------------------------------------------------------------- the values of a job


TASKS = """
    SELECT l.task_id, l.label FROM task_results t JOIN task_labels l ON l.task_id = t.id AND l.job_id = t.job_id
     WHERE t.job_id = :job AND t.id > :after ORDER BY t.id LIMIT :n
"""
PRODUCED = """
    SELECT o.task_id, o.position, v.id, s.id, v.type, COALESCE(s.digest, v.digest), COALESCE(s.size, v.size)
      FROM task_outputs o JOIN "values" v ON v.id = o.value_id LEFT JOIN shared_values s ON s.id = o.shared_value_id
     WHERE o.task_id {in:ids} ORDER BY o.task_id, o.position
"""
READ_BY_CHILDREN = """
    SELECT i.value_id FROM (SELECT DISTINCT child FROM task_edges WHERE parent {in:ids}) c
      JOIN task_inputs i ON i.task_id = c.child
     WHERE i.value_id {in:values}
"""
PARTS_OF_CHILDREN = """
    SELECT p.value_id FROM (SELECT DISTINCT child FROM task_edges WHERE parent {in:ids}) c
      JOIN task_input_parts p ON p.task_id = c.child
     WHERE p.value_id {in:values}
"""
# The value of a gathered input is only the shape in which its parts are placed.
OWN_INPUTS = """
    SELECT i.task_id, i.position, v.id, v.type, v.digest, v.size
      FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id {in:ids} AND i.type = 'VALUE' AND i.num_parts IS NULL ORDER BY i.task_id, i.position
"""
OUTPUTS_OF_PARENTS = """
    SELECT DISTINCT o.value_id FROM task_edges e JOIN task_outputs o ON o.task_id = e.parent
     WHERE e.child {in:ids}
"""


def of_job(tx: Tx, job_id: int, *, after: int, n: int) -> tuple[list[ValueInfo], int | None]:
    """The constants and outputs of the next n tasks of a job, by id, and the task to continue after; None at the end.

    A page consists of tasks, because values have no index of their producers: it would slow every submit.
    """
    labels = {row[0]: row[1] for row in tx.all(TASKS, job=job_id, after=after, n=n)}
    ids = sorted(labels)
    if not ids:
        return [], None
    found = [*_constants(tx, ids), *_produced(tx, labels)]
    found.sort(key=itemgetter(0))
    return [value for _, value in found], ids[-1] if len(ids) == n else None


def _constants(tx: Tx, ids: Sequence[int]) -> list[tuple[int, ValueInfo]]:
    """The inputs of tasks that no parent produces, by id."""
    from_parents = {row[0] for row in tx.all(OUTPUTS_OF_PARENTS, ids=ids)}
    rows = [row for row in tx.all(OWN_INPUTS, ids=ids) if row[2] not in from_parents]
    readers = Counter(row[2] for row in rows)
    values = {row[2]: row[3:] for row in rows}
    return [(id_, _info(id_, *row, shared=False, num_consumers=readers[id_])) for id_, row in values.items()]


def _produced(tx: Tx, labels: dict[int, str]) -> list[tuple[int, ValueInfo]]:
    rows: list[Row] = tx.all(PRODUCED, ids=sorted(labels))
    if not rows:
        return []
    values = sorted({row[2] for row in rows})
    readers = Counter(
        row[0]
        for text in (READ_BY_CHILDREN, PARTS_OF_CHILDREN)
        for row in tx.all(text, ids=sorted(labels), values=values)
    )
    found = []
    for task_id, position, value_id, shared_id, *row in rows:
        id_, consumers = shared_id or value_id, readers[value_id]
        info = _info(id_, *row, shared=shared_id is not None, num_consumers=consumers)
        found.append((id_, replace(info, producer=labels[task_id], position=position)))
    return found


def _info(value_id: int, kind: str, digest: str | None, size: int | None, **known: Any) -> ValueInfo:
    return ValueInfo(
        value_id=show_task(value_id),
        type=kind,
        written=size is not None,
        size=size,
        digest=digest,
        producer=None,
        position=None,
        **known,
    )


# ---------------------------------------------------------------- one value


class OwnedValue(Struct, frozen=True):
    """A value with the job that it belongs to, and the job's resource group; no job for a shared value."""

    value: Value
    job_id: int | None
    resource_group_id: int | None


READ = """
    SELECT v.id, v.type, v.payload, v.digest, v.size, v.owner_job_id, j.resource_group_id
      FROM "values" v JOIN jobs j ON j.id = v.owner_job_id
     WHERE v.id = :id AND j.staged = 0
"""
READ_SHARED = "SELECT id, type, payload, digest, size FROM shared_values WHERE id = :id"
JOB_REFERENCES = "SELECT 1 FROM job_to_shared_value_ref WHERE id = :id AND job_id = :job"


def read(tx: Tx, value_id: int) -> OwnedValue | None:
    """A value of a job, or a shared value."""
    if (row := tx.one(READ, id=value_id)) is not None:
        return OwnedValue(_value(row[:5]), row[5], row[6])
    row = tx.one(READ_SHARED, id=value_id)
    return OwnedValue(_value(row), None, None) if row is not None else None


def job_references(tx: Tx, value_id: int, job_id: int) -> bool:
    """Whether the job references the shared value."""
    return tx.one(JOB_REFERENCES, id=value_id, job=job_id) is not None
