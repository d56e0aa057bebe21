"""Resource groups: the owners of jobs, tasks and shared values."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_ROWS = Insert("resource_groups", "id, external_id, created_at, deleting")
FIND = "SELECT id, external_id, created_at, deleting FROM resource_groups WHERE external_id = :external_id"
READ = "SELECT id, external_id, created_at, deleting FROM resource_groups WHERE id = :id"
LOCK_SHARED = "SELECT id, external_id, created_at, deleting FROM resource_groups WHERE id = :id {for_share}"
LOCK = "SELECT id, external_id, created_at, deleting FROM resource_groups WHERE id = :id {for_update}"
PAGE = """
    SELECT id, external_id, created_at, deleting FROM resource_groups
     WHERE external_id > :after ORDER BY external_id LIMIT :n
"""
MARK_DELETING = "UPDATE resource_groups SET deleting = 1 WHERE id = :id"
DELETE = "DELETE FROM resource_groups WHERE id = :id"


class ResourceGroup(Struct, frozen=True):
    """One resource group; ``deleting`` is 1 once its deletion has begun."""

    id: int
    external_id: str
    created_at: Micros
    deleting: int


def insert(tx: Tx, group: ResourceGroup) -> bool:
    """Add a resource group; False when the name is taken."""
    return tx.insert_new(_ROWS, [(group.id, group.external_id, group.created_at, 0)]) == 1


def find(tx: Tx, external_id: str) -> ResourceGroup | None:
    """The group with this name."""
    row = tx.one(FIND, external_id=external_id)
    return ResourceGroup(*row) if row else None


def read(tx: Tx, group_id: int) -> ResourceGroup | None:
    row = tx.one(READ, id=group_id)
    return ResourceGroup(*row) if row else None


def lock_shared(tx: Tx, group_id: int) -> ResourceGroup | None:
    """A group with a shared lock: a transaction that deletes the group waits, and then sees what was added to it."""
    row = tx.one(LOCK_SHARED, id=group_id)
    return ResourceGroup(*row) if row else None


def lock(tx: Tx, group_id: int) -> ResourceGroup | None:
    row = tx.one(LOCK, id=group_id)
    return ResourceGroup(*row) if row else None


def page(tx: Tx, *, after: str = "", n: int = 200) -> list[ResourceGroup]:
    """The next n groups by name."""
    return [ResourceGroup(*row) for row in tx.all(PAGE, after=after, n=n)]


NAMES = "SELECT id, external_id FROM resource_groups WHERE id {in:ids}"


def names(tx: Tx, ids: Sequence[int]) -> dict[int, str]:
    """The name of each of these groups."""
    return dict(tx.all(NAMES, ids=ids)) if ids else {}


def mark_deleting(tx: Tx, group_id: int) -> None:
    """Begin to delete a group: from now on nothing can be added to it."""
    tx.run(MARK_DELETING, id=group_id)


def delete(tx: Tx, group_id: int) -> None:
    tx.run(DELETE, id=group_id)
