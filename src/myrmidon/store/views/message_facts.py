"""What messages about tasks and jobs contain besides their events."""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import resource_group

_tags = json.Decoder(list[str]).decode


class TaskFacts(Struct, frozen=True):
    """A task as messages describe it; ``dimensions`` by slice, as (pool, canonical text)."""

    resource_group_id: int
    resource_group: str
    external_id: str | None
    job_id: int | None
    name: str
    routing: str
    tags: list[str]
    label: str | None
    dimensions: dict[int, tuple[str, str]]


class JobFacts(Struct, frozen=True):
    """A job as messages describe it."""

    resource_group_id: int
    resource_group: str
    external_id: str | None
    name: str
    routing: str
    tags: list[str]


TASKS = """
    SELECT id, resource_group_id, external_id, job_id, name, routing, tags, label
      FROM task_requests WHERE id {in:ids}
"""
# Without the properties of the slices, which can be large.
DIMENSIONS = """
    SELECT r.id, 0, d.pool, d.dimensions FROM task_requests r JOIN task_dimensions d ON d.id = r.queue
     WHERE r.id {in:ids}
     UNION ALL
    SELECT s.task_id, s.slice, d.pool, d.dimensions FROM further_slices s JOIN task_dimensions d ON d.id = s.queue
     WHERE s.task_id {in:ids}
"""


def tasks(tx: Tx, ids: Sequence[int]) -> dict[int, TaskFacts]:
    """The facts of those of the tasks that are still stored."""
    if not ids:
        return {}
    rows = tx.all(TASKS, ids=ids)
    groups = resource_group.names(tx, sorted({row[1] for row in rows}))
    dimensions: dict[int, dict[int, tuple[str, str]]] = {}
    for task_id, number, pool, canonical in tx.all(DIMENSIONS, ids=ids):
        dimensions.setdefault(task_id, {})[number] = (pool, canonical)
    return {
        id_: TaskFacts(
            group, groups.get(group, ""), external_id, job_id, name, routing, _tags(tags), label,
            dimensions.get(id_, {}),
        )
        for id_, group, external_id, job_id, name, routing, tags, label in rows
    }  # fmt: skip


JOBS = "SELECT id, resource_group_id, external_id, name, routing, tags FROM jobs WHERE id {in:ids}"


def jobs(tx: Tx, ids: Sequence[int]) -> dict[int, JobFacts]:
    """The facts of those of the jobs that are still stored."""
    if not ids:
        return {}
    rows = tx.all(JOBS, ids=ids)
    groups = resource_group.names(tx, sorted({row[1] for row in rows}))
    return {
        id_: JobFacts(group, groups.get(group, ""), external_id, name, routing, _tags(tags))
        for id_, group, external_id, name, routing, tags in rows
    }
