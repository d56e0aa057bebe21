"""Shared values: create, read, reference and delete them.

A resource group can read only what it references, itself or through its jobs. Dropping the last reference deletes the
value in the same transaction.
"""

from collections.abc import Sequence

from myrmidon.model import type_strings
from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound, Problem, UnknownFile
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner, JobOwner, Owner, SharedValue
from myrmidon.scheduler.new_values import check_files
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import resource_group, shared_value
from myrmidon.store.tables import value as values

_INLINE_LIMIT = 1024
_STORED_LIMIT = 64 << 20
_ADDRESS_LIMIT = 40
_ADDRESSES = 100


def create_value(
    tx: Tx,
    owner: Owner,
    type_string: str,
    payload: Payload,
    *,
    now: Micros,
    ids: IdSource,
    value_id: int | None = None,
    addresses: Sequence[str] = (),
) -> SharedValue:
    """Create a shared value with a reference of its owner; its data is at these addresses.

    ``value_id`` must be made before the transaction: a repeated transaction whose first commit has an unknown outcome
    finds the value by it.
    """
    kind = type_strings.show(type_strings.parse(type_string))
    _check_payload(payload)
    _check_addresses("localities", addresses)
    _check_owner(tx, owner)
    _check_file(tx, owner, payload, now)
    if value_id is None:
        value_id = ids.next(now)
    elif tx.attempt > 1 and (existing := shared_value.read(tx, [value_id]).get(value_id)):
        return existing
    shared_value.insert(tx, [(value_id, 0, kind, payload, now)])
    _ref(tx, owner, value_id)
    shared_value.add_localities(tx, [(value_id, address) for address in sorted(set(addresses))])
    return SharedValue(value_id, kind, payload.inline, payload.digest, payload.size)


def _check_file(tx: Tx, owner: Owner, payload: Payload, now: Micros) -> None:
    """Raise UnknownFile if the payload is a file that the owner's group has not stored."""
    if payload.digest is None:
        return
    sizes = {payload.digest: payload.size}
    if missing := check_files(tx, owner.resource_group_id, sizes, now=now, sizes=sizes):
        raise UnknownFile(missing)


def _check_payload(payload: Payload) -> None:
    if payload.inline is not None and (payload.digest is not None or len(payload.inline) > _INLINE_LIMIT):
        allowed = f"at most {_INLINE_LIMIT} bytes inline; upload larger ones and give their digest"
        raise InvalidRequest([Problem("payload", f"{len(payload.inline)} bytes", allowed, "length")])
    if payload.inline is None and payload.digest is None:
        raise InvalidRequest([Problem("payload", "nothing", "bytes, or a digest of uploaded ones", "required")])
    if not 0 <= payload.size <= _STORED_LIMIT or (payload.inline is not None and payload.size != len(payload.inline)):
        raise InvalidRequest([Problem("payload.size", str(payload.size), f"0 to {_STORED_LIMIT}", "range")])


def _check_owner(tx: Tx, owner: Owner, *, lock: bool = True) -> None:
    """Raise NotFound unless the owner exists. A lock keeps its group from being deleted before the commit."""
    group = (resource_group.lock_shared if lock else resource_group.read)(tx, owner.resource_group_id)
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


def ref_value(tx: Tx, owner: Owner, value_id: int, *, for_any_group: bool = False) -> None:
    """Add a reference to a value that the owner's group can read. Idempotent.

    ``for_any_group``: the group gets the right to read the value with this reference.
    """
    _check_owner(tx, owner)
    found = shared_value.lock(tx, [value_id])
    may_read = for_any_group or value_id in _may_read(tx, owner.resource_group_id, [value_id])
    if value_id not in found or not may_read:
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
            if values.shared_values_named(tx, job_id, [value_id]):
                raise Forbidden("a task of this job reads or wrote the value; the reference ends with the job")
            shared_value.unref_by_job(tx, [value_id], job_id)
    return bool(shared_value.delete_unreferenced(tx, [value_id]))


def change_localities(tx: Tx, value_id: int, *, add: Sequence[str] = (), drop: Sequence[str] = ()) -> list[str]:
    """Add and remove addresses of a value that the caller may read; all that it has afterwards.

    The value is locked, so that none is recorded for a value which is being deleted.
    """
    _check_addresses("add", add)
    if value_id not in shared_value.lock(tx, [value_id]):
        raise NotFound("shared value", show_task(value_id))
    for address in drop:
        shared_value.drop_locality(tx, value_id, address)
    shared_value.add_localities(tx, [(value_id, address) for address in sorted(set(add))])
    found = shared_value.localities(tx, [value_id]).get(value_id, [])
    if len(found) > _ADDRESSES:
        raise InvalidRequest([Problem("add", f"{len(found)} addresses", f"at most {_ADDRESSES} of a value", "length")])
    return found


def _check_addresses(path: str, addresses: Sequence[str]) -> None:
    allowed = f"1 to {_ADDRESS_LIMIT} characters"
    problems = [
        Problem(f"{path}[{number}]", address[:100], allowed, "length")
        for number, address in enumerate(addresses)
        if not 0 < len(address) <= _ADDRESS_LIMIT or "\x00" in address
    ]
    if problems:
        raise InvalidRequest(problems)
