"""Resource groups: owners of jobs, tasks and references to shared values."""

from msgspec import json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.scheduler.group_deletion import CANCEL_JOBS, DELETE, DeletionArgs
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, resource_group, task_result
from myrmidon.store.tables.resource_group import ResourceGroup

_NAME_LIMIT = 256

NAME = f"1 to {_NAME_LIMIT} characters without spaces at the ends"


def is_name(text: str) -> bool:
    """Whether a text can be the name of a resource group."""
    return 0 < len(text) <= _NAME_LIMIT and "\x00" not in text and text == text.strip()


def create_group(tx: Tx, external_id: str, *, now: Micros, ids: IdSource, group_id: int | None = None) -> ResourceGroup:
    """Create a resource group; raises Conflict if the name is in use.

    A call that is repeated with the same ``group_id`` returns the group that it created.
    """
    if not is_name(external_id):
        raise InvalidRequest([Problem("external_id", external_id[:100], NAME, "length")])
    group = ResourceGroup(ids.next(now) if group_id is None else group_id, external_id, now, 0)
    if not resource_group.insert(tx, group):
        known = resource_group.find(tx, external_id)
        if known is not None and (known.id == group_id or (tx.attempt > 1 and known.created_at == now)):
            return known
        raise Conflict(f"a resource group named {external_id} already exists; choose another name")
    return group


def ensure_group(tx: Tx, external_id: str, *, now: Micros, ids: IdSource) -> ResourceGroup:
    """The resource group of this name, created if it does not exist. Idempotent, and safe under concurrent calls."""
    known = resource_group.find(tx, external_id)
    if known is not None:
        return known
    try:
        return create_group(tx, external_id, now=now, ids=ids)
    except Conflict:
        return get_group(tx, external_id)


def get_group(tx: Tx, external_id: str) -> ResourceGroup:
    group = resource_group.find(tx, external_id)
    if group is None:
        raise NotFound("resource group", external_id)
    return group


def list_groups(tx: Tx, *, after: str = "", n: int = 200) -> list[ResourceGroup]:
    return resource_group.page(tx, after=after, n=n)


def delete_group(
    tx: Tx, group_id: int, *, now: Micros, ids: IdSource, force: bool = False, rules: Rules = DEFAULT_RULES
) -> None:
    """Start deleting a group with its jobs, tasks and references.

    All its tasks must have ended. With ``force`` they are cancelled first, and the group is deleted when the running
    ones have ended. Nothing can be added to the group from now on.
    """
    group = resource_group.lock(tx, group_id)
    if group is None:
        raise NotFound("resource group", str(group_id))
    if group.deleting:
        return
    busy = task_result.unfinished_of_group(tx, group_id)
    if busy is not None and not force:
        raise WrongState(
            f"task {show_task(busy)} of this resource group has not ended; cancel its work first, or delete with force"
        )
    resource_group.mark_deleting(tx, group_id)
    args = DeletionArgs(step=CANCEL_JOBS if busy is not None else DELETE)
    uow = UnitOfWork(tx, now, ids, rules)
    uow.start_chunked_work(chunked_work.DELETE_GROUP, group_id, args=json.encode(args).decode())
