"""The files that resource groups have stored, by digest. The bytes are in the folder of the files.

A row says that the group has sent these bytes, so that it may refer to them: a digest alone gives no right to a file. A
row that nothing refers to is deleted some time after its last use. A transaction that adds a reference renews the row,
too: a deletion that runs at the same time then waits, and finds the row in use.
"""

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_ROWS = Insert("stored_files", "digest, resource_group_id, size, created_at, used_at")

RENEW_AFTER: Micros = 3_600 * 1_000_000
"""A row that was used less than this ago is not renewed: most references then cost no write. Rows are deleted only
after a multiple of it."""

RENEW = """
    UPDATE stored_files SET used_at = :now
     WHERE digest {in_text:digests} AND resource_group_id = :owner AND used_at < :before
"""
SIZES = "SELECT digest, size, used_at FROM stored_files WHERE digest {in_text:digests} AND resource_group_id = :owner"


def insert(tx: Tx, digest: str, group_id: int, *, size: int, now: Micros) -> None:
    """Record that a group has a file, or that it has sent it again."""
    if not tx.insert_new(_ROWS, [(digest, group_id, size, now, now)]):
        tx.run(RENEW, digests=[digest], owner=group_id, now=now, before=now)


def is_in_use(tx: Tx, digest: str, group_id: int, *, size: int, now: Micros) -> bool:
    """Whether a group has a file of this size, and its row need not be renewed yet."""
    rows = tx.all(SIZES, digests=[digest], owner=group_id)
    return any(stored == size and used_at >= now - RENEW_AFTER for _, stored, used_at in rows)


def renew(tx: Tx, digests: Sequence[str], group_id: int, *, now: Micros) -> dict[str, int]:
    """Renew those of the files that the group has; their sizes by digest."""
    if not digests:
        return {}
    rows = tx.all(SIZES, digests=digests, owner=group_id)
    before = now - RENEW_AFTER
    if any(used_at < before for _, _, used_at in rows):
        tx.run(RENEW, digests=digests, owner=group_id, now=now, before=before)
        rows = tx.all(SIZES, digests=digests, owner=group_id)  # some may have been deleted before they were renewed
    return {digest: size for digest, size, _ in rows}


def sizes(tx: Tx, digests: Sequence[str], group_id: int) -> dict[str, int]:
    """The sizes of those of the files that the group has."""
    return {digest: size for digest, size, _ in tx.all(SIZES, digests=digests, owner=group_id)}


BYTES_OF_GROUP = "SELECT SUM(size) FROM stored_files WHERE resource_group_id = :owner"


def bytes_of_group(tx: Tx, group_id: int) -> int:
    """The sum of the sizes of all files of a group."""
    row = tx.one(BYTES_OF_GROUP, owner=group_id)
    return int(row[0] or 0) if row else 0


RENEW_FOR_ALL = "UPDATE stored_files SET used_at = :now WHERE digest {in_text:digests} AND used_at < :before"
KNOWN = "SELECT DISTINCT digest FROM stored_files WHERE digest {in_text:digests}"


def renew_for_all(tx: Tx, digests: Sequence[str], *, now: Micros) -> set[str]:
    """Renew files for all groups that have them; those of the digests that some group has."""
    tx.run(RENEW_FOR_ALL, digests=digests, now=now, before=now - RENEW_AFTER)
    return known(tx, digests)


def known(tx: Tx, digests: Sequence[str]) -> set[str]:
    """Those of the files that some group has."""
    return {row[0] for row in tx.all(KNOWN, digests=digests)}


DELETE_OF_GROUP = "DELETE FROM stored_files WHERE resource_group_id = :owner"


def delete_of_group(tx: Tx, group_id: int) -> None:
    tx.run(DELETE_OF_GROUP, owner=group_id)


_UNUSED = """used_at < :before
       AND NOT EXISTS (SELECT 1 FROM "values" v WHERE v.digest = stored_files.digest)
       AND NOT EXISTS (SELECT 1 FROM shared_values s WHERE s.digest = stored_files.digest)
       AND NOT EXISTS (SELECT 1 FROM job_codes c WHERE c.code = stored_files.digest)
       AND NOT EXISTS (SELECT 1 FROM job_codes c WHERE c.runs_as = stored_files.digest)"""
FIND_UNUSED = f"""
    SELECT DISTINCT digest FROM stored_files
     WHERE digest >= :low AND digest < :high AND {_UNUSED}
     ORDER BY digest LIMIT :n
"""
DELETE_UNUSED = f"DELETE FROM stored_files WHERE digest {{in_text:digests}} AND {_UNUSED}"


def unused(tx: Tx, prefix: str, *, before: Micros, n: int) -> list[str]:
    """Digests that begin with ``prefix`` of files that nothing refers to and that were last used before a time."""
    high = f"{prefix}g"  # greater than all digests that begin so: their digits end with f
    return [row[0] for row in tx.all(FIND_UNUSED, low=prefix, high=high, before=before, n=n)]


def delete_unused(tx: Tx, digests: Sequence[str], *, before: Micros) -> int:
    """Delete the rows of those of the files that are still unused; how many rows were deleted."""
    return tx.run(DELETE_UNUSED, digests=digests, before=before)


ANY = "SELECT 1 FROM stored_files LIMIT 1"


def any_stored(tx: Tx) -> bool:
    """Whether some group has stored a file."""
    return tx.one(ANY) is not None
