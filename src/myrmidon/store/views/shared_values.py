"""Lists of shared values with their sizes and references."""

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import shared_value
from myrmidon.store.views.selection import GROUP_NAME, Selection, in_group
from myrmidon.wire.shared_values import GroupValues, SharedValueInfo

_OF_ANY = {
    "num_groups": "(SELECT COUNT(*) FROM resource_group_to_shared_value_ref g WHERE g.id = v.id)",
    "num_jobs": "(SELECT COUNT(*) FROM job_to_shared_value_ref f WHERE f.id = v.id)",
}
VALUE = Selection(SharedValueInfo, "v", left_out=["localities"], **_OF_ANY)
VALUES = f"SELECT {VALUE.columns} FROM shared_values v WHERE v.id < :before ORDER BY v.id DESC LIMIT :n"
_BY_GROUP = """FROM resource_group_to_shared_value_ref g
    WHERE g.id = v.id AND g.resource_group_id = :resource_group"""
_BY_JOBS = """FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
    WHERE f.id = v.id AND j.resource_group_id = :resource_group"""
_OF_GROUP = {"num_groups": f"(SELECT COUNT(*) {_BY_GROUP})", "num_jobs": f"(SELECT COUNT(*) {_BY_JOBS})"}
VALUE_OF_GROUP = Selection(SharedValueInfo, "v", left_out=["localities"], **_OF_GROUP)
VALUES_OF_GROUP = f"""
    SELECT {VALUE_OF_GROUP.columns}
      FROM shared_values v
     WHERE v.id < :before AND (EXISTS (SELECT 1 {_BY_GROUP}) OR EXISTS (SELECT 1 {_BY_JOBS}))
     ORDER BY v.id DESC LIMIT :n
"""
VALUE_OF_JOB = Selection(
    SharedValueInfo,
    "v",
    left_out=["localities"],
    num_groups="""(SELECT COUNT(*) FROM resource_group_to_shared_value_ref g
        WHERE g.id = v.id AND g.resource_group_id = b.resource_group_id)""",
    num_jobs="""(SELECT COUNT(*) FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
        WHERE f.id = v.id AND j.resource_group_id = b.resource_group_id)""",
)
VALUES_OF_JOB = f"""
    SELECT {VALUE_OF_JOB.columns}
      FROM job_to_shared_value_ref r JOIN shared_values v ON v.id = r.id JOIN jobs b ON b.id = r.job_id
     WHERE r.job_id = :job AND v.id < :before ORDER BY v.id DESC LIMIT :n
"""


def page(
    tx: Tx, *, group_id: int | None, before: int, n: int, job_id: int | None = None
) -> tuple[list[SharedValueInfo], int]:
    """The next n shared values, newest first; for a group those that it or one of its jobs references; the last id.

    Of a job those that it references, with the references of its group.
    """
    given = {"before": before, "n": n}
    if job_id is not None:
        rows = tx.all(VALUES_OF_JOB, job=job_id, **given)
    elif group_id is not None:
        rows = tx.all(VALUES_OF_GROUP, resource_group=group_id, **given)
    else:
        rows = tx.all(VALUES, **given)
    localities = shared_value.localities(tx, [row[0] for row in rows]) if rows else {}
    return [VALUE(row, localities.get(row[0], [])) for row in rows], rows[-1][0] if rows else 0


def one(tx: Tx, value_id: int, group_id: int | None) -> SharedValueInfo | None:
    """Return one shared value in the form that ``page`` shows."""
    found, last = page(tx, group_id=group_id, before=value_id + 1, n=1)
    return found[0] if last == value_id else None


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
    given = {"id": value_id, **in_group(group_id), "n": n}
    groups = [row[0] for row in tx.all(REFERENCING_GROUPS, **given)]
    return groups, [row[0] for row in tx.all(REFERENCING_JOBS, **given)]


TOTALS = f"""
    SELECT {GROUP_NAME.format("g")}, COUNT(*), SUM(v.size)
      FROM resource_group_to_shared_value_ref g JOIN shared_values v ON v.id = g.id
     WHERE :any_group = 1 OR g.resource_group_id = :resource_group GROUP BY g.resource_group_id
"""


def totals(tx: Tx, group_id: int | None) -> list[GroupValues]:
    """Count the shared values that each group references by itself, and their bytes."""
    rows = tx.all(TOTALS, **in_group(group_id))
    return [GroupValues(group=group, num_values=int(num), num_bytes=int(size or 0)) for group, num, size in rows]
