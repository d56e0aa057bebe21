"""Cancel tasks, jobs, and all tasks with given tags.

A task that has not started ends at once. For a running one a kill is requested: its bot gets the request with the next
exchange or heartbeat and reports the end; if the bot is silent, the run ends when its lease expires.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import IdSource, Micros, first_id_at, show_task
from myrmidon.model.states import JobState, TaskState
from myrmidon.scheduler.idempotency import claim_request_key, number_of_key
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import CancelArgs, cancel_or_kill, propagate
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, task_request
from myrmidon.store.tables.chunked_work import ChunkedWork
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.request_key import for_number
from myrmidon.store.views.task_search import TaskSearch, count_by_state


class Cancelled(Struct, frozen=True):
    """The result for one task; not ``ok`` if it had ended, or is running and ``kill_running`` was false."""

    task_id: int
    ok: bool
    was_running: bool
    found: bool = True


def cancel(
    tx: Tx,
    task_ids: Sequence[int],
    *,
    now: Micros,
    ids: IdSource,
    kill_running: bool = True,
    reason: str = "cancelled",
    rules: Rules = DEFAULT_RULES,
) -> list[Cancelled]:
    """Cancel tasks; one result each, in the given order. Idempotent."""
    uow = UnitOfWork(tx, now, ids, rules)
    results = cancel_locked(uow, task_ids, kill_running=kill_running, reason=reason)
    propagate(uow)
    return results


def cancel_locked(uow: UnitOfWork, task_ids: Sequence[int], *, kill_running: bool, reason: str) -> list[Cancelled]:
    """Lock tasks and cancel them; the caller propagates their ends."""
    tasks = uow.lock(task_ids)
    results = []
    for task_id in task_ids:
        task = tasks.get(task_id)
        if task is None or uow.is_staged(task):
            results.append(Cancelled(task_id, ok=False, was_running=False, found=False))
            continue
        running = task.state == TaskState.RUNNING
        ok = not task.final and (kill_running or not running)
        if ok:
            cancel_or_kill(uow, task, reason)
        results.append(Cancelled(task_id, ok=ok, was_running=running))
    return results


def cancel_job(
    tx: Tx,
    job_id: int,
    *,
    now: Micros,
    ids: IdSource,
    group_id: int | None = None,
    rules: Rules = DEFAULT_RULES,
) -> Job:
    """Cancel a job and all its tasks; a job that has ended is left unchanged."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged or (group_id is not None and job.resource_group_id != group_id):
        raise NotFound("job", show_task(job_id))
    if begin_cancel(uow, job, "job_cancelled"):
        propagate(uow)
    return job


def begin_cancel(uow: UnitOfWork, job: Job, reason: str) -> bool:
    """Cancel a locked job that has not ended; its tasks end with ``propagate`` and after it. Whether it did."""
    if job.state not in (JobState.RUNNING, JobState.PENDING_RETRY):
        return False
    uow.move_job(job, JobState.CANCELLED, "cancelled")
    uow.start_chunked_work(chunked_work.CANCEL, job.id, job=job, args=json.encode(CancelArgs(reason)).decode())
    return True


class TagSelection(Struct, frozen=True, kw_only=True):
    """The arguments of cancelling by tags: tasks of a group that have all the tags and an id below ``until``."""

    tags: list[str]
    until: int
    group_id: int
    kill_running: bool = False
    terminate_tasks: bool = False
    """Also cancel tasks that terminate a bot."""


class TaggedCancel(Struct, frozen=True):
    """How many tasks a mass cancel is about, and the work that cancels them; None for a repeated call.

    Not ``complete`` if there may be more such tasks among older ones, which were not counted.
    """

    num_tasks: int
    complete: bool
    work: ChunkedWork | None


def cancel_tagged(
    tx: Tx,
    tags: Sequence[str],
    *,
    group_id: int,
    now: Micros,
    ids: IdSource,
    start: Micros | None = None,
    end: Micros | None = None,
    kill_running: bool = False,
    terminate_tasks: bool = False,
    request_key: str | None = None,
    rules: Rules = DEFAULT_RULES,
) -> TaggedCancel:
    """Start cancelling all unfinished tasks that have all these tags and were created until now.

    Tasks that terminate a bot are excluded unless ``terminate_tasks`` is true. A repetition with the same request key
    does nothing and returns the same number, so that it does not cancel tasks created since.
    """
    if not tags:
        raise InvalidRequest([Problem("tags", "[]", "at least one tag, so that nobody cancels everything", "required")])
    selection = TagSelection(
        tags=sorted(set(tags)),
        until=first_id_at(min(end, now) if end is not None else now) + (1 << 20),
        group_id=group_id,
        kill_running=kill_running,
        terminate_tasks=terminate_tasks,
    )
    after = first_id_at(start) - 1 if start is not None else 0
    num_tasks, complete = _count_selected(tx, selection, after)
    body = (selection.tags, start, end, kill_running)
    if request_key is not None and not claim_request_key(
        tx, "cancel", request_key, body, group_id=group_id, now=now, subject=for_number(2 * num_tasks + complete)
    ):
        answer = number_of_key(tx, "cancel", request_key, group_id=group_id)
        return TaggedCancel(answer // 2, answer % 2 == 1, None)
    uow = UnitOfWork(tx, now, ids, rules)
    work = uow.start_chunked_work(chunked_work.TAGGED, 0, args=json.encode(selection).decode())
    if after:
        uow.advance_chunked_work(work, after)
    return TaggedCancel(num_tasks, complete, work)


def _count_selected(tx: Tx, selection: TagSelection, after: int) -> tuple[int, bool]:
    """How many unfinished tasks a mass cancel will find, and whether all tasks were looked at."""
    running = [TaskState.RUNNING] if selection.kill_running else []
    search = TaskSearch(
        group_id=selection.group_id,
        states=[TaskState.WAITING, TaskState.READY, *running],
        terms=[[tag] for tag in selection.tags],
        low=after + 1,
        high=selection.until + 1,
    )
    counts, complete = count_by_state(tx, search)
    return counts.total(), complete


def cancel_tagged_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Cancel the next tasks with the tags; running ones only if ``kill_running`` is set."""
    selection = json.decode(work.args, type=TagSelection)
    tagged, cursor = task_request.tagged(uow.tx, selection.tags, after=work.position, until=selection.until, n=n)
    requests = task_request.read(uow.tx, tagged) if tagged else {}
    selected = [i for i in tagged if requests[i].resource_group_id == selection.group_id]
    excluded = set() if selection.terminate_tasks else task_request.terminate_tasks(uow.tx, selected)
    selected = [i for i in selected if i not in excluded]
    cancel_locked(uow, selected, kill_running=selection.kill_running, reason="cancelled")
    return cursor


def cancel_children_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Cancel the next tasks that an ended task had triggered, except detached ones."""
    children = task_request.children(uow.tx, work.subject, after=work.position, n=n)
    requests = task_request.read(uow.tx, children) if children else {}
    cancel_locked(uow, [i for i in children if not requests[i].detached], kill_running=True, reason="parent_ended")
    return children[-1] if len(children) == n else None
