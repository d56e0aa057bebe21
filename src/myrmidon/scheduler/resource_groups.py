"""Resource groups own jobs, tasks and references to shared values. One is deleted chunk by chunk with all it has.

With force its jobs and tasks are cancelled first. A running task ends when its bot has reported that, or when its lease
expires; until then the deletion waits. Nothing can be added meanwhile, because the group is marked as being deleted.
"""

from typing import Final

from msgspec import Struct, json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.scheduler.cancel import begin_cancel, cancel_locked
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.retention import begin_deletion, delete_of_job, delete_tasks
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import (
    chunked_work,
    group_turn,
    resource_group,
    shared_value,
    stored_file,
    task_queues,
    task_request,
    task_result,
    task_run,
    webhook,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import WAITS, ChunkedWork
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


# ---------------------------------------------------------------- deletion


CANCEL_JOBS: Final = "cancel_jobs"
CANCEL_TASKS: Final = "cancel_tasks"
WAIT: Final = "wait"
DELETE: Final = "delete"
_REASON: Final = "group_deleted"
_MAX_JOBS: Final = 100


class DeletionArgs(Struct, frozen=True):
    """The arguments of deleting a group: which step it is at. Without force it begins with the last one."""

    step: str = DELETE


def delete_group_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Do the next part of a deletion; WAITS while tasks run."""
    step = json.decode(work.args, type=DeletionArgs).step
    if step == CANCEL_JOBS:
        return _cancel_jobs(uow, work, n)
    if step == CANCEL_TASKS:
        return _cancel_tasks(uow, work, n)
    if step == WAIT:
        return _wait(uow, work)
    return _delete(uow, work, n)


def _go_to(work: ChunkedWork, step: str) -> int:
    work.args = json.encode(DeletionArgs(step)).decode()
    return 0


# ---------------------------------------------------------------- cancel


def _cancel_jobs(uow: UnitOfWork, work: ChunkedWork, n: int) -> int:
    """Cancel the next jobs, together about n tasks, so that none of them starts or retries tasks."""
    found = jobs.live_of_group(uow.tx, work.subject, after=work.position, n=_MAX_JOBS)
    if not found:
        return _go_to(work, CANCEL_TASKS)
    uow.lock_jobs(found)
    num_tasks = position = 0
    for position in found:
        job = uow.jobs.get(position)
        if job is None:
            continue
        if job.staged:
            begin_deletion(uow, job)  # nobody has seen it, and its other parts cannot be stored any more
        else:
            begin_cancel(uow, job, _REASON)
        num_tasks += job.num_tasks
        if num_tasks >= n:
            break
    return position


def _cancel_tasks(uow: UnitOfWork, work: ChunkedWork, n: int) -> int:
    """Cancel the next tasks that have not ended: those without a job, and those that wait in jobs that have failed."""
    found = task_result.unfinished_after(uow.tx, work.subject, after=work.position, n=n)
    cancel_locked(uow, found, kill_running=True, reason=_REASON)
    return found[-1] if len(found) == n else _go_to(work, WAIT)


def _wait(uow: UnitOfWork, work: ChunkedWork) -> int:
    """Wait while tasks of the group run; then the next step begins."""
    if task_run.any_live_of_group(uow.tx, work.subject):
        return WAITS
    if task_result.unfinished_of_group(uow.tx, work.subject) is not None:
        return _go_to(work, CANCEL_JOBS)  # a task was queued again after its cancellation had been passed by
    return _go_to(work, DELETE)


# ---------------------------------------------------------------- delete


def _delete(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Delete the next rows: of a job, then tasks without a job, references, and at last the group."""
    group_id = work.subject
    job_ids = jobs.of_group(uow.tx, group_id, 1)
    if job_ids:
        uow.lock_jobs(job_ids)
        delete_of_job(uow, job_ids[0], n)
        return 0
    task_ids = task_request.of_group(uow.tx, group_id, n)
    if task_ids:
        uow.lock(task_ids)
        delete_tasks(uow, task_ids)
        return 0
    refs = shared_value.of_group(uow.tx, group_id, n=n)
    if refs:
        shared_value.lock(uow.tx, refs)
        shared_value.unref_by_group(uow.tx, refs, group_id)
        shared_value.delete_unreferenced(uow.tx, refs)
        return 0
    task_queues.delete_of_group(uow.tx, group_id)
    webhook.delete_of_group(uow.tx, group_id)
    stored_file.delete_of_group(uow.tx, group_id)
    group_turn.delete(uow.tx, group_id)
    resource_group.delete(uow.tx, group_id)
    return None
