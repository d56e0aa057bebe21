"""Summaries that tasks show with themselves, and small texts that the tasks of a job share."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Annotation(Struct, frozen=True):
    """The summary of a task. ``run`` is the run that wrote it; 0 for a person."""

    task_id: int
    run: int
    written_at: Micros
    content: str


_ANNOTATIONS = Insert("task_annotations", "task_id, run, written_at, content")
READ = "SELECT task_id, run, written_at, content FROM task_annotations WHERE task_id = :id"
DELETE = "DELETE FROM task_annotations WHERE task_id {in:ids}"


def read(tx: Tx, task_id: int) -> Annotation | None:
    row = tx.one(READ, id=task_id)
    return Annotation(*row) if row else None


def replace(tx: Tx, annotation: Annotation) -> None:
    """Store the summary of a locked task in place of an earlier one; an empty one deletes it."""
    delete_of_tasks(tx, [annotation.task_id])
    if annotation.content:
        row = (annotation.task_id, annotation.run, annotation.written_at, annotation.content)
        tx.insert(_ANNOTATIONS, [row])


def delete_of_tasks(tx: Tx, ids: Sequence[int]) -> None:
    tx.run(DELETE, ids=ids)


_META = Insert("job_meta", "job_id, name, value, written_at")
META = "SELECT name, value FROM job_meta WHERE job_id = :job ORDER BY name"
DELETE_META = "DELETE FROM job_meta WHERE job_id = :job AND name = :name"


def meta(tx: Tx, job_id: int) -> dict[str, str]:
    """The texts of a job by name."""
    return dict(tx.all(META, job=job_id))


def set_meta(tx: Tx, job_id: int, name: str, value: str | None, now: Micros) -> None:
    """Store a text of a locked job in place of an earlier one; None deletes it."""
    tx.run(DELETE_META, job=job_id, name=name)
    if value is not None:
        tx.insert(_META, [(job_id, name, value, now)])
