"""Delegates: tasks that write the outputs of the task that has added them to its job."""

from collections.abc import Sequence

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_DELEGATES = Insert("task_delegates", "task_id, delegate")


def insert(tx: Tx, rows: Sequence[tuple[int, int]]) -> None:
    """Store (task, delegate); rows that exist are skipped."""
    tx.insert_new(_DELEGATES, rows)


OF_TASKS = "SELECT task_id, delegate FROM task_delegates WHERE task_id {in:ids} ORDER BY task_id, delegate"


def of_tasks(tx: Tx, task_ids: Sequence[int]) -> dict[int, list[int]]:
    """The delegates of each task that has some, those of its delegates included."""
    found: dict[int, list[int]] = {}
    for task_id, delegate in tx.all(OF_TASKS, ids=task_ids):
        found.setdefault(task_id, []).append(delegate)
    return found


DELEGATED_BY = "SELECT task_id FROM task_delegates WHERE delegate = :delegate ORDER BY task_id"


def delegated_by(tx: Tx, delegate: int) -> list[int]:
    """The tasks whose outputs this one writes."""
    return [row[0] for row in tx.all(DELEGATED_BY, delegate=delegate)]


DELEGATED_BY_EACH = "SELECT delegate, task_id FROM task_delegates WHERE delegate {in:ids}"


def delegators(tx: Tx, task_ids: Sequence[int]) -> dict[int, int]:
    """For those of the tasks that are delegates, the task for which the first of them was added."""
    found = tx.all(DELEGATED_BY_EACH, ids=task_ids) if task_ids else []
    if not found:
        return {}
    delegates = {row[0] for row in tx.all(DELEGATED_BY_EACH, ids=sorted({row[1] for row in found}))}
    return {delegate: task_id for delegate, task_id in found if task_id not in delegates}


DELETES = (
    "DELETE FROM task_delegates WHERE task_id {in:ids}",
    "DELETE FROM task_delegates WHERE delegate {in:ids}",
)


def delete_of_tasks(tx: Tx, task_ids: Sequence[int]) -> None:
    for text in DELETES:
        tx.run(text, ids=task_ids)
