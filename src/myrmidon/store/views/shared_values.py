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


def page(tx: Tx, *, group_id: int | None, before: int, n: int) -> list[SharedValueLine]:
    """The next n shared values, newest first; for a group those that it or one of its jobs references."""
    given = {"before": before, "n": n}
    rows = tx.all(VALUES, **given) if group_id is None else tx.all(VALUES_OF_GROUP, resource_group=group_id, **given)
    return [SharedValueLine(*row) for row in rows]


TOTALS = """
    SELECT g.resource_group_id, COUNT(*), SUM(v.size)
      FROM resource_group_to_shared_value_ref g JOIN shared_values v ON v.id = g.id
     WHERE :any_group = 1 OR g.resource_group_id = :resource_group GROUP BY g.resource_group_id
"""


def totals(tx: Tx, group_id: int | None) -> list[tuple[int, int, int]]:
    """Of each group: the number of shared values that it references by itself, and their bytes."""
    rows = tx.all(TOTALS, any_group=int(group_id is None), resource_group=group_id or 0)
    return [(group, int(num), int(size or 0)) for group, num, size in rows]
