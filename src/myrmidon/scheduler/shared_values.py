"""Shared values: create, read, reference and delete them.

A resource group can read only what it references, itself or through its jobs. Dropping the last reference deletes the
value in the same transaction.
"""

from collections.abc import Sequence

from myrmidon.model import type_strings
from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound, Problem
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner, JobOwner, Owner, SharedValue
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import resource_group, shared_value
from myrmidon.store.tables import value as values

_INLINE_LIMIT = 1024
_STORED_LIMIT = 64 << 20
_ADDRESS_LIMIT = 40


def create_value(
    tx: Tx,
    owner: Owner,
    type_string: str,
    payload: Payload,
    *,
    now: Micros,
    ids: IdSource,
    value_id: int | None = None,
) -> SharedValue:
    """Create a shared value with a reference of its owner.

    ``value_id`` must be made before the transaction: a repeated transaction whose first commit has an unknown outcome
    finds the value by it.
    """
    kind = type_strings.show(type_strings.parse(type_string))
    _check_payload(payload)
    _check_owner(tx, owner)
    if value_id is None:
        value_id = ids.next(now)
    elif tx.attempt > 1 and (existing := shared_value.read(tx, [value_id]).get(value_id)):
        return existing
    shared_value.insert(tx, [(value_id, 0, kind, payload, now)])
    _ref(tx, owner, value_id)
    return SharedValue(value_id, kind, payload.inline, payload.digest, payload.size)


def _check_payload(payload: Payload) -> None:
    if payload.inline is not None and (payload.digest is not None or len(payload.inline) > _INLINE_LIMIT):
        allowed = f"at most {_INLINE_LIMIT} bytes inline; upload larger ones and give their digest"
        raise InvalidRequest([Problem("payload", f"{len(payload.inline)} bytes", allowed, "length")])
    if payload.inline is None and payload.digest is None:
        raise InvalidRequest([Problem("payload", "nothing", "bytes, or a digest of uploaded ones", "required")])
    if not 0 <= payload.size <= _STORED_LIMIT or (payload.inline is not None and payload.size != len(payload.inline)):
        raise InvalidRequest([Problem("payload.size", str(payload.size), f"0 to {_STORED_LIMIT}", "range")])


def _check_owner(tx: Tx, owner: Owner, *, lock: bool = True) -> None:
    group = resource_group.read(tx, owner.resource_group_id)
    if group is None or group.deleting:
        raise NotFound("resource group", str(owner.resource_group_id))
    if isinstance(owner, JobOwner):
        job = (jobs.lock if lock else jobs.read)(tx, [owner.job_id]).get(owner.job_id)
        if job is None or job.resource_group_id != owner.resource_group_id:
            raise NotFound("job", show_task(owner.job_id))


def _ref(tx: Tx, owner: Owner, value_id: int) -> None:
    match owner:
        case GroupOwner(resource_group_id=group_id):
            shared_value.ref_by_group(tx, [value_id], group_id)
        case JobOwner(job_id=job_id):
            shared_value.ref_by_job(tx, [value_id], job_id)


def _may_read(tx: Tx, group_id: int, ids: Sequence[int]) -> set[int]:
    return shared_value.referenced_by_group(tx, ids, group_id) | shared_value.referenced_in_group(tx, ids, group_id)


def get_value(tx: Tx, group_id: int, value_id: int) -> SharedValue:
    """A shared value that the group references, itself or through a job; others count as not found."""
    found = shared_value.read(tx, [value_id]).get(value_id)
    if found is None or value_id not in _may_read(tx, group_id, [value_id]):
        raise NotFound("shared value", show_task(value_id))
    return found


def list_values(tx: Tx, owner: Owner, *, after: int = 0, n: int = 200) -> list[SharedValue]:
    """The shared values that an owner references, by id."""
    _check_owner(tx, owner, lock=False)
    match owner:
        case GroupOwner(resource_group_id=group_id):
            found = shared_value.of_group(tx, group_id, after=after, n=n)
        case JobOwner(job_id=job_id):
            found = shared_value.of_job(tx, job_id, after=after, n=n)
    return list(shared_value.read(tx, found).values()) if found else []


def ref_value(tx: Tx, owner: Owner, value_id: int) -> None:
    """Add a reference to a value that the owner's group can read. Idempotent."""
    _check_owner(tx, owner)
    found = shared_value.lock(tx, [value_id])
    if value_id not in found or value_id not in _may_read(tx, owner.resource_group_id, [value_id]):
        raise NotFound("shared value", show_task(value_id))
    _ref(tx, owner, value_id)


def unref_value(tx: Tx, owner: Owner, value_id: int) -> bool:
    """Drop a reference; True if it was the last one, so that the value was deleted.

    The reference of a job to a value that one of its tasks reads or wrote cannot be dropped before the job is deleted.
    """
    _check_owner(tx, owner)
    if value_id not in shared_value.lock(tx, [value_id]):
        return False
    match owner:
        case GroupOwner(resource_group_id=group_id):
            shared_value.unref_by_group(tx, [value_id], group_id)
        case JobOwner(job_id=job_id):
            if values.names_shared_value(tx, job_id, value_id):
                raise Forbidden("a task of this job reads or wrote the value; the reference ends with the job")
            shared_value.unref_by_job(tx, [value_id], job_id)
    return bool(shared_value.delete_unreferenced(tx, [value_id]))


def add_locality(tx: Tx, group_id: int, value_id: int, address: str) -> None:
    """Record that the data of a shared value is at an address; claims prefer bots with that address."""
    if not 0 < len(address) <= _ADDRESS_LIMIT or "\x00" in address:
        raise InvalidRequest([Problem("address", address[:100], f"1 to {_ADDRESS_LIMIT} characters", "length")])
    if value_id not in shared_value.lock(tx, [value_id]) or value_id not in _may_read(tx, group_id, [value_id]):
        raise NotFound("shared value", show_task(value_id))
    shared_value.add_localities(tx, [(value_id, address)])


def drop_locality(tx: Tx, group_id: int, value_id: int, address: str) -> bool:
    """Remove an address of a shared value's data; False if it was not recorded."""
    if value_id not in _may_read(tx, group_id, [value_id]):
        raise NotFound("shared value", show_task(value_id))
    return shared_value.drop_locality(tx, value_id, address)
