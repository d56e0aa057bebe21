"""Lists of shared values with their sizes and references."""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx


class SharedValueLine(Struct, frozen=True):
    """A shared value; references are those of the group that asks, or all."""

    id: int
    type: str
    size: int
    digest: str | None
    created_at: Micros
    num_groups: int
    num_jobs: int


VALUES = """
    SELECT v.id, v.type, v.size, v.digest, v.created_at,
           (SELECT COUNT(*) FROM resource_group_to_shared_value_ref g WHERE g.id = v.id),
           (SELECT COUNT(*) FROM job_to_shared_value_ref f WHERE f.id = v.id)
      FROM shared_values v WHERE v.id < :before ORDER BY v.id DESC LIMIT :n
"""
_BY_GROUP = """FROM resource_group_to_shared_value_ref g
    WHERE g.id = v.id AND g.resource_group_id = :resource_group"""
_BY_JOBS = """FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
    WHERE f.id = v.id AND j.resource_group_id = :resource_group"""
VALUES_OF_GROUP = f"""
    SELECT v.id, v.type, v.size, v.digest, v.created_at, (SELECT COUNT(*) {_BY_GROUP}), (SELECT COUNT(*) {_BY_JOBS})
      FROM shared_values v
     WHERE v.id < :before AND (EXISTS (SELECT 1 {_BY_GROUP}) OR EXISTS (SELECT 1 {_BY_JOBS}))
     ORDER BY v.id DESC LIMIT :n
"""


VALUES_OF_JOB = """
    SELECT v.id, v.type, v.size, v.digest, v.created_at,
           (SELECT COUNT(*) FROM resource_group_to_shared_value_ref g
             WHERE g.id = v.id AND g.resource_group_id = b.resource_group_id),
           (SELECT COUNT(*) FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
             WHERE f.id = v.id AND j.resource_group_id = b.resource_group_id)
      FROM job_to_shared_value_ref r JOIN shared_values v ON v.id = r.id JOIN jobs b ON b.id = r.job_id
     WHERE r.job_id = :job AND v.id < :before ORDER BY v.id DESC LIMIT :n
"""


def page(tx: Tx, *, group_id: int | None, before: int, n: int, job_id: int | None = None) -> list[SharedValueLine]:
    """The next n shared values, newest first; for a group those that it or one of its jobs references.

    Of a job those that it references, with the references of its group.
    """
    given = {"before": before, "n": n}
    if job_id is not None:
        rows = tx.all(VALUES_OF_JOB, job=job_id, **given)
    elif group_id is not None:
        rows = tx.all(VALUES_OF_GROUP, resource_group=group_id, **given)
    else:
        rows = tx.all(VALUES, **given)
    return [SharedValueLine(*row) for row in rows]


def line(tx: Tx, value_id: int, group_id: int | None) -> SharedValueLine | None:
    """Return one shared value in the form that ``page`` shows."""
    found = page(tx, group_id=group_id, before=value_id + 1, n=1)
    return found[0] if found and found[0].id == value_id else None


REFERENCING_GROUPS = """
    SELECT resource_group_id FROM resource_group_to_shared_value_ref
     WHERE id = :id AND (:any_group = 1 OR resource_group_id = :resource_group) ORDER BY resource_group_id LIMIT :n
"""
REFERENCING_JOBS = """
    SELECT f.job_id FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
     WHERE f.id = :id AND (:any_group = 1 OR j.resource_group_id = :resource_group) ORDER BY f.job_id LIMIT :n
"""


def references(tx: Tx, value_id: int, group_id: int | None, n: int) -> tuple[list[int], list[int]]:
    """Up to n resource groups and jobs that reference a value; for a group only itself and its own jobs."""
    given = {"id": value_id, "any_group": int(group_id is None), "resource_group": group_id or 0, "n": n}
    groups = [row[0] for row in tx.all(REFERENCING_GROUPS, **given)]
    return groups, [row[0] for row in tx.all(REFERENCING_JOBS, **given)]


TOTALS = """
    SELECT g.resource_group_id, COUNT(*), SUM(v.size)
      FROM resource_group_to_shared_value_ref g JOIN shared_values v ON v.id = g.id
     WHERE :any_group = 1 OR g.resource_group_id = :resource_group GROUP BY g.resource_group_id
"""


def totals(tx: Tx, group_id: int | None) -> list[tuple[int, int, int]]:
    """Count the shared values that each group references by itself, and their bytes."""
    rows = tx.all(TOTALS, any_group=int(group_id is None), resource_group=group_id or 0)
    return [(group, int(num), int(size or 0)) for group, num, size in rows]
