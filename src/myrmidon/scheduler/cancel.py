"""Cancelling: tasks, whole jobs, and everything with certain tags.

What has not started ends at once. What runs is asked to stop: its bot learns of
it with its next word and reports the end, or is given up when it stays silent.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import IdSource, Micros, first_id_at, show_task
from myrmidon.model.states import JobState, TaskState
from myrmidon.scheduler.idempotency import claim_request_key
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import CancelArgs, cancel_or_kill, propagate
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, task_request
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork
from myrmidon.store.tables.job import Job


class Canceled(Struct, frozen=True):
    """The answer for one task; not ``ok`` when it had ended, or runs and was not to be killed."""

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
    reason: str = "canceled",
    rules: Rules = DEFAULT_RULES,
) -> list[Canceled]:
    """Cancel tasks, in order of the ids given; cancelling twice is the same as once."""
    uow = UnitOfWork(tx, now, ids, rules)
    answers = _cancel(uow, task_ids, kill_running=kill_running, reason=reason)
    propagate(uow)
    return answers


def _cancel(uow: UnitOfWork, task_ids: Sequence[int], *, kill_running: bool, reason: str) -> list[Canceled]:
    tasks = uow.lock(task_ids)
    answers = []
    for task_id in task_ids:
        task = tasks.get(task_id)
        if task is None or uow.is_staged(task):
            answers.append(Canceled(task_id, ok=False, was_running=False, found=False))
            continue
        running = task.state == TaskState.RUNNING
        ok = not task.final and (kill_running or not running)
        if ok:
            cancel_or_kill(uow, task, reason)
        answers.append(Canceled(task_id, ok=ok, was_running=running))
    return answers


def cancel_job(
    tx: Tx,
    job_id: int,
    *,
    now: Micros,
    ids: IdSource,
    group_id: int | None = None,
    rules: Rules = DEFAULT_RULES,
) -> Job:
    """Cancel a job with everything in it; a job that has ended stays as it is."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged or (group_id is not None and job.resource_group_id != group_id):
        raise NotFound("job", show_task(job_id))
    if job.state in (JobState.RUNNING, JobState.PENDING_RETRY):
        uow.move_job(job, JobState.CANCELLED, "cancelled")
        uow.start_chunked_work(
            chunked_work.CANCEL, job.id, job=job, args=json.encode(CancelArgs("job_canceled")).decode()
        )
        propagate(uow)
    return job


class TagSelection(Struct, frozen=True, kw_only=True):
    """Which tasks a mass cancel means: all that carry the tags and were created in the time given."""

    tags: list[str]
    until: int
    group_id: int
    kill_running: bool = False
    orders: bool = False
    """Also those that tell a bot to end."""


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
    orders: bool = False,
    request_key: str | None = None,
    rules: Rules = DEFAULT_RULES,
) -> ChunkedWork | None:
    """Cancel all tasks that carry all these tags; those created later than now are not meant.

    A bot that was told to end stays told, unless ``orders`` are meant too.
    Said again with the same request key it does not mean what was created meanwhile: None.
    """
    if not tags:
        raise InvalidRequest([Problem("tags", "[]", "at least one tag, so that nobody cancels everything", "required")])
    asked = (sorted(set(tags)), start, end, kill_running)
    if request_key is not None and not claim_request_key(tx, "cancel", request_key, asked, group_id=group_id, now=now):
        return None
    uow = UnitOfWork(tx, now, ids, rules)
    until = first_id_at(min(end, now) if end is not None else now) + (1 << 20)
    meant = TagSelection(
        tags=sorted(set(tags)), until=until, group_id=group_id, kill_running=kill_running, orders=orders
    )
    work = uow.start_chunked_work(chunked_work.TAGGED, 0, args=json.encode(meant).decode())
    if start is not None:
        work.position = first_id_at(start) - 1
        chunked_work.advance(tx, work)
    return work


def cancel_tagged_chunk(uow: UnitOfWork, work: ChunkedWork) -> None:
    """The next chunk of a mass cancel. A task that has started meanwhile is killed only if that was asked for."""
    meant = json.decode(work.args, type=TagSelection)
    found, cursor = task_request.tagged(uow.tx, meant.tags, after=work.position, until=meant.until, n=CHUNK)
    requests = task_request.read(uow.tx, found) if found else {}
    mine = [i for i in found if requests[i].resource_group_id == meant.group_id]
    spared = set() if meant.orders else task_request.terminate_tasks(uow.tx, mine)
    mine = [i for i in mine if i not in spared]
    _cancel(uow, mine, kill_running=meant.kill_running, reason="canceled")
    _advance(uow, work, cursor)


def cancel_children_chunk(uow: UnitOfWork, work: ChunkedWork) -> None:
    """The next chunk of the tasks that an ended task had triggered; detached ones go on."""
    found = task_request.children(uow.tx, work.subject, after=work.position, n=CHUNK)
    requests = task_request.read(uow.tx, found) if found else {}
    _cancel(uow, [i for i in found if not requests[i].detached], kill_running=True, reason="parent_ended")
    _advance(uow, work, found[-1] if len(found) == CHUNK else None)


def _advance(uow: UnitOfWork, work: ChunkedWork, cursor: int | None) -> None:
    if cursor is None:
        uow.finish_chunked_work(work)
        return
    work.position = cursor
    chunked_work.advance(uow.tx, work)
