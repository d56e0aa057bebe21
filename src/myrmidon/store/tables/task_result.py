"""The current state of each task.

`save` is the only way to change the state of a task: it increments the task's seq and writes the event of the change in
the same transaction. Columns that users do not see, such as the counts of parents and children, and the due time of a
task whose job is still staged, are written without an event.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import structs

from myrmidon.model.errors import BrokenPromise
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import TaskResult
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.records import columns_of, insert_of, update_of
from myrmidon.store.engine.sql import Row, RowUpdate
from myrmidon.store.tables import outbox

_COLUMNS = columns_of(TaskResult)
_ROWS = insert_of("task_results", TaskResult)

READ = f"SELECT {_COLUMNS} FROM task_results WHERE id {{in:ids}} ORDER BY id"
LOCK = f"SELECT {_COLUMNS} FROM task_results WHERE id {{in:ids}} ORDER BY id {{for_update}}"
LOCK_UNLOCKED = f"SELECT {_COLUMNS} FROM task_results WHERE id {{in:ids}} ORDER BY id {{skip_locked}}"


def read(tx: Tx, ids: Sequence[int]) -> dict[int, TaskResult]:
    return {row[0]: TaskResult(*row) for row in tx.all(READ, ids=ids)}


def lock(tx: Tx, ids: Sequence[int]) -> dict[int, TaskResult]:
    """Lock tasks by ascending id; lock their jobs first."""
    return {row[0]: TaskResult(*row) for row in tx.all(LOCK, ids=ids)}


def lock_unlocked(tx: Tx, ids: Sequence[int]) -> dict[int, TaskResult]:
    """Lock those of the tasks that no other transaction has locked.

    A claim has locked rows of task_to_run and must not wait: a cancel has locked the task and waits for those rows.
    """
    return {row[0]: TaskResult(*row) for row in tx.all(LOCK_UNLOCKED, ids=ids)}


JOBS_OF = "SELECT id, job_id FROM task_results WHERE id {in:ids} AND job_id IS NOT NULL"


def jobs_of(tx: Tx, ids: Sequence[int]) -> dict[int, int]:
    """The job of each task that has one. It never changes, so it may be read before locking."""
    return dict(tx.all(JOBS_OF, ids=ids))


GROUPS_AND_STATES = "SELECT id, resource_group_id, state FROM task_results WHERE id {in:ids}"


def groups_and_states(tx: Tx, ids: Sequence[int]) -> dict[int, tuple[int, str]]:
    """The resource group and the state of each task, for clients that wait for many tasks."""
    return {row[0]: (row[1], row[2]) for row in tx.all(GROUPS_AND_STATES, ids=ids)}


GROUPS_OF = "SELECT id, resource_group_id FROM task_results WHERE id {in:ids}"


def groups_of(tx: Tx, ids: Sequence[int]) -> dict[int, int]:
    """The resource group of each task."""
    return dict(tx.all(GROUPS_OF, ids=ids)) if ids else {}


def insert(tx: Tx, tasks: Sequence[TaskResult]) -> None:
    """Add tasks, with their first event."""
    rows, events = [], []
    for task in tasks:
        task.seq = 1
        rows.append(structs.astuple(task))
        events.append(_event(task))
    tx.insert(_ROWS, rows)
    outbox.write(tx, events)


def announce(tx: Tx, task: TaskResult, now: Micros) -> None:
    """Write the event of a change of a task; its row is written later in this transaction."""
    task.modified_at = now
    task.seq += 1
    outbox.write(tx, [_event(task)])


def insert_announced(tx: Tx, tasks: Sequence[TaskResult]) -> None:
    """Add tasks whose events are written, or tasks of a staged job, which have none before the job is started."""
    tx.insert(_ROWS, [structs.astuple(task) for task in tasks])


def _event(t: TaskResult) -> tuple[int, int, Micros, str, str, str]:
    body = _body(t.generation, t.reason, t.job_id, t.run_number, t.bot_id, t.current_task_slice, t.held, t.killing)
    return (t.id, t.seq, t.modified_at, outbox.TASK, t.state, body)


@lru_cache(maxsize=4096)
def _body(*fields: Any) -> str:
    """The body of a task's event. Cached, because many tasks have equal ones."""
    return outbox.body_of(outbox.TaskBody(*fields))


_NEVER_CHANGE = {"id", "job_id", "resource_group_id", "resolves_all", "skips_request_lookup", "num_parents"}
_SAVED_NAMES = [name for name in TaskResult.__struct_fields__ if name not in _NEVER_CHANGE | {"seq"}]
_STARTED_NAMES = ["state", "reason", "run_number", "bot_id", "started_at", "modified_at"]


class Change(NamedTuple):
    """Which columns a change of a task writes: one statement for single tasks, and one for tasks with equal values."""

    update: RowUpdate
    row: Callable[[TaskResult], Row]
    alike: str
    names: list[str]


def _change(columns: list[str], alike: str) -> Change:
    update, row = update_of("task_results", TaskResult, key="id, seq", sets=", ".join([*columns, "seq = seq + 1"]))
    return Change(update, row, alike, columns)


_SAVED_SETS = ", ".join(f"{name} = :{name}" for name in _SAVED_NAMES)
SAVE_ALIKE = f"UPDATE task_results SET {_SAVED_SETS}, seq = seq + 1 WHERE id {{in:ids}} AND seq = :seq"
_STARTED_SETS = ", ".join(f"{name} = :{name}" for name in _STARTED_NAMES)
SAVE_STARTED_ALIKE = f"UPDATE task_results SET {_STARTED_SETS}, seq = seq + 1 WHERE id {{in:ids}} AND seq = :seq"
ANY, STARTED = _change(_SAVED_NAMES, SAVE_ALIKE), _change(_STARTED_NAMES, SAVE_STARTED_ALIKE)
"""All that a change may write, and what the start of a run changes: not ``due_at``, which has an index."""
_SAVE_TWICE = update_of("task_results", TaskResult, key="id, seq", sets=", ".join([*_SAVED_NAMES, "seq = seq + 2"]))[0]
_MIN_ALIKE = 4
"""From this number of tasks with equal new values on, one statement with their ids is cheaper."""


def save(tx: Tx, tasks: Sequence[TaskResult], now: Micros, change: Change = ANY) -> None:
    """Write changed tasks, with one event each. The caller has locked them. ``change``: what may have changed.

    BrokenPromise, which rolls the transaction back, when a row was changed by somebody else in spite of the lock.
    """
    rows, events = [], []
    for t in tasks:
        t.modified_at = now
        rows.append(change.row(t))
        t.seq += 1
        events.append(_event(t))
    if _update(tx, rows, change) != len(tasks):
        raise BrokenPromise(f"a locked task was changed by another transaction: {[(t.id, t.seq) for t in tasks][:10]}")
    outbox.write(tx, events)


def save_announced(tx: Tx, task: TaskResult, num_events: int) -> None:
    """Write a task that was changed once or twice since it was locked, and whose events are written."""
    task_id, seq, *values = ANY.row(task)
    if tx.update_rows(ANY.update if num_events == 1 else _SAVE_TWICE, [(task_id, seq - num_events, *values)]) != 1:
        raise BrokenPromise(f"a locked task was changed by another transaction: {(task.id, task.seq)}")


def _update(tx: Tx, rows: Sequence[Row], change: Change) -> int:
    """Write tasks; how many rows matched. After a batch many tasks have equal new values."""
    if len(rows) < _MIN_ALIKE:
        return tx.update_rows(change.update, rows)
    alike: dict[Row, list[int]] = {}
    for task_id, *values in rows:
        alike.setdefault(tuple(values), []).append(task_id)
    matched = 0
    single: list[Row] = []
    for (seq, *values), ids in alike.items():
        if len(ids) < _MIN_ALIKE:
            single += [(task_id, seq, *values) for task_id in ids]
        else:
            params = dict(zip(change.names, values, strict=True))
            matched += tx.run(change.alike, ids=ids, seq=seq, **params)
    return matched + tx.update_rows(change.update, single) if single else matched


ADD_SATISFIED_PARENTS = """
    UPDATE task_results SET num_succeeded_parents = num_succeeded_parents + :n WHERE id {in:ids}
"""


def add_satisfied_parents(tx: Tx, ids: Sequence[int], n: int) -> None:
    """Increase the number of satisfied parents of these locked tasks by n; not a state change."""
    tx.run(ADD_SATISFIED_PARENTS, ids=ids, n=n)


_SET_PARENTS = RowUpdate(
    "task_results",
    key="id",
    sets="num_parents, num_succeeded_parents",
    types="bigint, int, int",
)


def set_parents(tx: Tx, rows: Sequence[tuple[int, int, int]]) -> None:
    """Write (task, number of parents, number of satisfied ones) of locked tasks; not a state change."""
    tx.update_rows(_SET_PARENTS, rows)


COUNT_CHILD = "UPDATE task_results SET num_children = num_children + :n WHERE id = :id"


def count_children(tx: Tx, task_id: int, n: int) -> None:
    """Record that a locked running task has started n more tasks."""
    tx.run(COUNT_CHILD, id=task_id, n=n)


WAITS_FOR_JOB = """
    SELECT id FROM task_results
     WHERE job_id = :job AND state = 'WAITING' AND held = 0 AND (forced = 1 OR num_succeeded_parents >= num_parents)
       AND id <> :excluding
     LIMIT 1
"""


def waits_for_job(tx: Tx, job_id: int, *, excluding: int) -> bool:
    """Whether another task of an ended job could start if the job were running."""
    return tx.one(WAITS_FOR_JOB, job=job_id, excluding=excluding) is not None


OF_JOB = f"""
    SELECT {_COLUMNS} FROM task_results WHERE job_id = :job AND id > :after ORDER BY id LIMIT :n {{for_update}}
"""


def lock_of_job(tx: Tx, job_id: int, *, after: int, n: int) -> list[TaskResult]:
    """Lock the next n tasks of a locked job."""
    return [TaskResult(*row) for row in tx.all(OF_JOB, job=job_id, after=after, n=n)]


DUE = "SELECT id FROM task_results WHERE due_at <= :now ORDER BY due_at LIMIT :n"


def due(tx: Tx, now: Micros, n: int) -> list[int]:
    """Unfinished tasks past their deadline, and ended tasks past their retention."""
    return [row[0] for row in tx.all(DUE, now=now, n=n)]


DUE_UNFINISHED = """
    SELECT id FROM task_results WHERE due_at <= :now AND state IN ('WAITING', 'READY', 'RUNNING')
     ORDER BY due_at LIMIT :n
"""


def due_unfinished(tx: Tx, now: Micros, n: int) -> list[int]:
    """Unfinished tasks past their deadline."""
    return [row[0] for row in tx.all(DUE_UNFINISHED, now=now, n=n)]


POSTPONE = "UPDATE task_results SET due_at = :alarm WHERE id = :id"


def postpone(tx: Tx, task_id: int, due_at: Micros) -> None:
    """Check a staged task later. No event: the task is not visible yet."""
    tx.run(POSTPONE, id=task_id, alarm=due_at)


CANNOT_SUCCEED = """
    SELECT r.id FROM task_results r JOIN task_requests q ON q.id = r.id
     WHERE r.job_id = :job AND r.state NOT IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED')
       AND (q.deadline_at <= :now OR (r.state IN ('CANCELLED', 'KILLED') AND r.reason = 'cancelled')) LIMIT 1
"""


def cannot_succeed(tx: Tx, job_id: int, now: Micros) -> bool:
    """Whether no retry can complete this job: a failed task was cancelled by a user, or is past its deadline."""
    return tx.one(CANNOT_SUCCEED, job=job_id, now=now) is not None


MAY_RUN_AGAIN = """
    SELECT r.id FROM task_results r JOIN task_requests q ON q.id = r.id
     WHERE r.job_id = :job AND r.state NOT IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED') AND q.deadline_at > :now
     LIMIT 1
"""


def may_run_again(tx: Tx, job_id: int, now: Micros) -> bool:
    """Whether a failed task of this job is not past its deadline."""
    return tx.one(MAY_RUN_AGAIN, job=job_id, now=now) is not None


FIRST_FAILED = f"""
    SELECT {_COLUMNS} FROM task_results
     WHERE job_id = :job AND state NOT IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED') ORDER BY id LIMIT 1
"""


def first_failed(tx: Tx, job_id: int) -> TaskResult | None:
    """Some task of the job that has ended without success."""
    row = tx.one(FIRST_FAILED, job=job_id)
    return TaskResult(*row) if row else None


UNFINISHED_OF_GROUP = """
    SELECT r.id FROM task_requests q JOIN task_results r ON r.id = q.id
     WHERE q.resource_group_id = :resource_group AND r.state IN ('WAITING', 'READY', 'RUNNING') LIMIT 1
"""
UNFINISHED_AFTER = """
    SELECT r.id FROM task_requests q JOIN task_results r ON r.id = q.id
     WHERE q.resource_group_id = :resource_group AND r.state IN ('WAITING', 'READY', 'RUNNING') AND r.id > :after
     ORDER BY r.id LIMIT :n
"""


def unfinished_after(tx: Tx, resource_group_id: int, *, after: int, n: int) -> list[int]:
    """Tasks of the group that have not ended, by id."""
    return [row[0] for row in tx.all(UNFINISHED_AFTER, resource_group=resource_group_id, after=after, n=n)]


def unfinished_of_group(tx: Tx, resource_group_id: int) -> int | None:
    """Some task of the group that has not ended."""
    row = tx.one(UNFINISHED_OF_GROUP, resource_group=resource_group_id)
    return row[0] if row else None


DELETES = tuple(
    f"DELETE FROM {table} WHERE {column} {{in:ids}}"
    for table, column in (
        ("task_to_run", "task_id"),
        ("dedupe_sources", "task_id"),
        ("performance_stats", "task_id"),
        ("task_runs", "task_id"),
        ("task_results", "id"),
    )
)


def delete(tx: Tx, ids: Sequence[int]) -> None:
    """Delete tasks with their runs."""
    for text in DELETES:
        tx.run(text, ids=ids)
