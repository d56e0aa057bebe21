"""Shared values, their references, and the addresses where their data is stored.

A shared value exists exactly while something references it. Its row is locked before its references change, so that the
later of two simultaneous unrefs sees that it is the last.
"""

from collections.abc import Mapping, Sequence

from myrmidon.model.ids import Micros
from myrmidon.model.task_request import Payload
from myrmidon.model.value import SharedValue
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables.request_key import NO_SUBJECT

_ROWS = Insert("shared_values", "id, task_graph_data_id, type, payload, digest, size, created_at")
_GROUP_REFS = Insert("resource_group_to_shared_value_ref", "id, resource_group_id")
_JOB_REFS = Insert("job_to_shared_value_ref", "id, job_id")
_LOCALITIES = Insert("shared_value_localities", "id, address")


def insert(tx: Tx, rows: Sequence[tuple[int, int, str, Payload, Micros]]) -> None:
    """Add shared values (id, graph data id, type, payload, time); the data id is 0 for one that no graph has made."""
    tx.insert(_ROWS, [(i, g, t, p.inline, p.digest, p.size, at) for i, g, t, p, at in rows])


LOCK = "SELECT id, type, payload, digest, size FROM shared_values WHERE id {in:ids} ORDER BY id {for_update}"
READ = "SELECT id, type, payload, digest, size FROM shared_values WHERE id {in:ids} ORDER BY id"


def _from_row(row: tuple[int, str, bytes | None, str | None, int]) -> SharedValue:
    return SharedValue(row[0], row[1], bytes(row[2]) if row[2] is not None else None, row[3], row[4])


def lock(tx: Tx, ids: Sequence[int]) -> dict[int, SharedValue]:
    """Lock shared values by ascending id; after the locks of jobs and tasks."""
    return {row[0]: _from_row(row) for row in tx.all(LOCK, ids=ids)}


def read(tx: Tx, ids: Sequence[int]) -> dict[int, SharedValue]:
    return {row[0]: _from_row(row) for row in tx.all(READ, ids=ids)}


REFERENCED_BY_GROUP = """
    SELECT id FROM resource_group_to_shared_value_ref WHERE id {in:ids} AND resource_group_id = :owner
"""
REFERENCED_IN_GROUP = """
    SELECT f.id FROM job_to_shared_value_ref f JOIN jobs j ON j.id = f.job_id
     WHERE f.id {in:ids} AND j.resource_group_id = :owner
"""
LIST_OF_GROUP = """
    SELECT id FROM resource_group_to_shared_value_ref
     WHERE resource_group_id = :owner AND id > :after ORDER BY id LIMIT :n
"""
LIST_OF_JOB = "SELECT id FROM job_to_shared_value_ref WHERE job_id = :owner AND id > :after ORDER BY id LIMIT :n"


def referenced_by_group(tx: Tx, ids: Sequence[int], group_id: int) -> set[int]:
    """Those of the values that the group itself references."""
    return {row[0] for row in tx.all(REFERENCED_BY_GROUP, ids=ids, owner=group_id)}


def referenced_in_group(tx: Tx, ids: Sequence[int], group_id: int) -> set[int]:
    """Those of the values that some job of the group references."""
    return {row[0] for row in tx.all(REFERENCED_IN_GROUP, ids=ids, owner=group_id)}


def of_group(tx: Tx, group_id: int, *, after: int = 0, n: int = 1000) -> list[int]:
    return [row[0] for row in tx.all(LIST_OF_GROUP, owner=group_id, after=after, n=n)]


def of_job(tx: Tx, job_id: int, *, after: int = 0, n: int = 1000) -> list[int]:
    return [row[0] for row in tx.all(LIST_OF_JOB, owner=job_id, after=after, n=n)]


def ref_by_group(tx: Tx, ids: Sequence[int], group_id: int) -> int:
    """Add references of a group to locked values; repeating one changes nothing."""
    return tx.insert_new(_GROUP_REFS, [(i, group_id) for i in ids])


def ref_by_job(tx: Tx, ids: Sequence[int], job_id: int) -> int:
    return tx.insert_new(_JOB_REFS, [(i, job_id) for i in ids])


UNREF_GROUP = "DELETE FROM resource_group_to_shared_value_ref WHERE id {in:ids} AND resource_group_id = :owner"
UNREF_JOB = "DELETE FROM job_to_shared_value_ref WHERE id {in:ids} AND job_id = :owner"
UNREFERENCED = """
    SELECT v.id FROM shared_values v
     WHERE v.id {in:ids}
       AND NOT EXISTS (SELECT 1 FROM resource_group_to_shared_value_ref g WHERE g.id = v.id)
       AND NOT EXISTS (SELECT 1 FROM job_to_shared_value_ref j WHERE j.id = v.id)
"""
DELETE = "DELETE FROM shared_values WHERE id {in:ids}"
DELETE_LOCALITIES = "DELETE FROM shared_value_localities WHERE id {in:ids}"
FREE_KEYS = "UPDATE request_keys SET subject = :none WHERE subject {in:ids}"


def unref_by_group(tx: Tx, ids: Sequence[int], group_id: int) -> int:
    return tx.run(UNREF_GROUP, ids=ids, owner=group_id)


def unref_by_job(tx: Tx, ids: Sequence[int], job_id: int) -> int:
    return tx.run(UNREF_JOB, ids=ids, owner=job_id)


def delete_unreferenced(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Delete those of the locked values that nothing references; which they were.

    Their request keys stay as long as those of calls that create nothing: a repeated call must not create a second one.
    """
    unreferenced = [row[0] for row in tx.all(UNREFERENCED, ids=ids)]
    if unreferenced:
        tx.run(DELETE_LOCALITIES, ids=unreferenced)
        tx.run(FREE_KEYS, none=NO_SUBJECT, ids=unreferenced)
        tx.run(DELETE, ids=unreferenced)
    return unreferenced


ADDRESSES = "SELECT id, address FROM shared_value_localities WHERE id {in:ids} ORDER BY id, address"
LOCAL_TASKS = """
    SELECT DISTINCT i.task_id FROM task_inputs i JOIN shared_value_localities l ON l.id = i.shared_value_id
     WHERE i.task_id {in:ids} AND i.type = 'SHARED_VALUE' AND l.address = :address
"""
DROP_LOCALITY = "DELETE FROM shared_value_localities WHERE id = :id AND address = :address"


def add_localities(tx: Tx, rows: Sequence[tuple[int, str]]) -> int:
    """Record the addresses (value, address) at which the data of shared values is stored."""
    return tx.insert_new(_LOCALITIES, rows)


def drop_locality(tx: Tx, value_id: int, address: str) -> bool:
    return tx.run(DROP_LOCALITY, id=value_id, address=address) == 1


def localities(tx: Tx, ids: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for value_id, address in tx.all(ADDRESSES, ids=ids):
        found.setdefault(value_id, []).append(address)
    return found


def local_tasks(tx: Tx, task_ids: Sequence[int], address: str) -> set[int]:
    """Those of the tasks that read a shared value whose data is at this address."""
    return {row[0] for row in tx.all(LOCAL_TASKS, ids=task_ids, address=address)}


ADDRESSES_OF_TASKS = """
    SELECT DISTINCT i.task_id, l.address FROM task_inputs i JOIN shared_value_localities l ON l.id = i.shared_value_id
     WHERE i.task_id {in:ids} AND i.type = 'SHARED_VALUE'
"""


def localities_of_tasks(tx: Tx, queues: Mapping[int, int]) -> dict[int, tuple[int, frozenset[str]]]:
    """Of those of the tasks whose data has localities: the queue that is given for it, and the addresses."""
    found: dict[int, set[str]] = {}
    for task_id, address in tx.all(ADDRESSES_OF_TASKS, ids=sorted(queues)):
        found.setdefault(task_id, set()).add(address)
    return {task_id: (queues[task_id], frozenset(addresses)) for task_id, addresses in found.items()}
