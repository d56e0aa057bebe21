"""Propagate the end of tasks to their children, their job and the tasks they triggered.

Every operation that may end a task calls ``propagate`` last. It loops, since a deduped child ends at once and may have
children of its own. One transaction satisfies at most WHOLE edges; the rest becomes chunked work, so that a large
fan-out does not make a large transaction.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.ids import show_task
from myrmidon.model.job import FailurePolicy
from myrmidon.model.states import RUNNING, SUCCEEDED, JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.dedupe import store_sources
from myrmidon.scheduler.policy import PARENT_RERUN
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import chunked_work, edge, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import WHOLE, ChunkedWork
from myrmidon.store.tables.job import Job


def propagate(uow: UnitOfWork) -> None:
    """Apply and write all consequences of the changes in this unit of work, then end jobs that are done."""
    uow.flush(may_keep=not (uow.ended or uow.ready or uow.started_work))
    budget = WHOLE
    if uow.started_work:
        _cancel_first_chunks(uow)
    while uow.ended or uow.ready:
        ended, uow.ended = uow.ended, []
        budget = _propagate_ends(uow, ended, budget)
        if uow.ready:
            ready, uow.ready = uow.ready, []
            make_ready(uow, ready)
        uow.flush(may_keep=not (uow.ended or uow.ready or uow.started_work))
        if uow.started_work:
            _cancel_first_chunks(uow)
    if uow.jobs:
        for job in uow.jobs.values():
            _end_job_if_done(uow, job)
        uow.save_jobs()


def _propagate_ends(uow: UnitOfWork, ended: Sequence[TaskResult], budget: int) -> int:
    """Propagate the end of these tasks; returns how many more edges this transaction may satisfy."""
    sources: list[TaskResult] = []
    members: list[TaskResult] = []
    for task in ended:
        # What a task with resolves_all has read of a failed parent may have been replaced or erased since.
        has_result = task.state == SUCCEEDED and task.instance_id is not None
        if has_result and not (task.skips_request_lookup or task.resolves_all):
            sources.append(task)
        if task.num_children:
            uow.start_chunked_work(chunked_work.CHILDREN, task.id)
        if task.job_id is not None:
            members.append(task)
    if sources:
        store_sources(uow, sources)
    for task in members:
        if task.state != SUCCEEDED:
            block_job(uow, task)
    return _propagate_to_children(uow, members, budget) if members else budget


# ---------------------------------------------------------------- children


def _propagate_to_children(uow: UnitOfWork, ended: Sequence[TaskResult], budget: int) -> int:
    """Satisfy the edges to children of ended tasks, up to the budget; the rest becomes chunked work."""
    parents: dict[int, TaskResult] = {}
    for task in ended:
        job = uow.jobs[task.job_id or 0]
        if job.num_tasks > 1 and job.state != JobState.CANCELLED:
            parents[task.id] = task
    if not parents:
        return budget
    edges = edge.unsatisfied_of(uow.tx, sorted(parents), budget + 1)
    if len(edges) > budget:
        first_incomplete = min(parent for parent, _ in edges[budget:])  # edges are ordered by parent
        by_job: dict[int, list[int]] = {}
        for parent in sorted(p for p in parents if p >= first_incomplete):
            by_job.setdefault(parents[parent].job_id or 0, []).append(parent)
        for job_id, several in by_job.items():
            uow.start_several(chunked_work.FEED, several, job=uow.jobs[job_id])
        edges = edges[:budget]
    _satisfy_edges(uow, parents, edges)
    return budget - len(edges)


def _satisfy_edges(uow: UnitOfWork, parents: dict[int, TaskResult], edges: Sequence[tuple[int, int]]) -> None:
    """Complete edges, count them in the children, and collect the children that are ready now.

    In a job that has ended the edges are only counted: its waiting tasks start if the job is reopened. A parent that
    did not succeed satisfies only children with the policy all-resolved.
    """
    if not edges:
        return
    children = task_result.lock(uow.tx, sorted({child for _, child in edges}))
    satisfied: list[tuple[int, int, int | None]] = []
    counts: dict[int, int] = {}
    for parent, child in edges:
        task = parents[parent]
        if task.state == SUCCEEDED or children[child].resolves_all:
            satisfied.append((parent, child, task.instance_id))
            counts[child] = counts.get(child, 0) + 1
    if not satisfied:
        return
    edge.complete(uow.tx, satisfied)
    still_waiting: dict[int, list[int]] = {}
    for child, n in sorted(counts.items()):
        task = children[child]
        task.num_succeeded_parents += n
        if _may_start(uow, task):
            uow.ready.append(task)  # written with its next state
        else:
            still_waiting.setdefault(n, []).append(child)
    for n, ids in sorted(still_waiting.items()):
        task_result.add_satisfied_parents(uow.tx, ids, n)


def _may_start(uow: UnitOfWork, task: TaskResult) -> bool:
    return (
        task.state == TaskState.WAITING
        and not task.held
        and task.satisfied
        and uow.jobs[task.job_id or 0].state == JobState.RUNNING
    )


def propagate_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Satisfy the next edges of a task whose fan-out exceeded the transaction that ended it.

    Further such tasks of the job are taken along while there is room: a job of which thousands of tasks are answered at
    once has one piece of work for each.
    """
    several = chunked_work.lock_of_job(uow.tx, chunked_work.FEED, work.job_id or 0, n)
    parents = task_result.read(uow.tx, sorted({one.subject for one in several} | {work.subject}))
    parent = parents.get(work.subject)
    if parent is not None and parent.final and parent.state != SUCCEEDED:
        # It satisfies only some of its children, so the position is kept.
        children = edge.unsatisfied(uow.tx, parent.id, after=work.position, n=n)
        _satisfy_edges(uow, {parent.id: parent}, [(parent.id, child) for child in children])
        return children[-1] if len(children) == n else None
    over = [one for one in several if one.subject not in parents or not parents[one.subject].final]
    live = {i: task for i, task in parents.items() if task.state == SUCCEEDED}
    edges = edge.unsatisfied_of(uow.tx, sorted(live), n + 1) if live else []
    first_incomplete = min((parent for parent, _ in edges[n:]), default=None)  # edges are ordered by parent
    _satisfy_edges(uow, live, edges[:n])
    over += [one for one in several if one.subject in live and _is_before(one.subject, first_incomplete)]
    uow.finish_chunked_work(*(one for one in over if one.id != work.id))
    return None if any(one.id == work.id for one in over) else work.position


def _is_before(parent: int, first_incomplete: int | None) -> bool:
    """Whether all edges of a parent are satisfied."""
    return first_incomplete is None or parent < first_incomplete


# ---------------------------------------------------------------- cancelling


class CancelArgs(Struct, frozen=True):
    """The arguments of cancelling a job: the reason of its tasks."""

    reason: str


def _cancel_first_chunks(uow: UnitOfWork) -> None:
    """Cancel the first tasks of every job whose cancellation was started in this unit of work.

    Other work of the job that could start tasks again, behind the cancellation, is dropped.
    """
    started = [work for work in uow.started_work if work.kind == chunked_work.CANCEL]
    uow.started_work = [work for work in uow.started_work if work.kind != chunked_work.CANCEL]
    for work in started:
        uow.finish_chunked_work(*chunked_work.lock_of_kinds(uow.tx, work.subject, chunked_work.STOPPED_BY_CANCEL))
        page = task_result.lock_of_job(uow.tx, work.subject, after=0, n=WHOLE)
        cancel_page(uow, work, page)
        uow.advance_chunked_work(work, page[-1].id if len(page) == WHOLE else None)
        uow.flush()


def cancel_page(uow: UnitOfWork, work: ChunkedWork, page: list[TaskResult]) -> None:
    """Cancel the next tasks of a job."""
    reason = json.decode(work.args, type=CancelArgs).reason
    for task in page:
        cancel_or_kill(uow, task, reason)


def cancel_or_kill(uow: UnitOfWork, task: TaskResult, reason: str) -> None:
    """Cancel a locked task that has not started; request a kill of one that is running."""
    if task.state == RUNNING:
        if not task.killing or task.reason == PARENT_RERUN:
            task.killing = 1
            task.reason = reason
            task.abandoned_at = uow.now
            uow.touch(task)
    elif not task.final:
        uow.move(task, TaskState.CANCELLED, reason)


# ---------------------------------------------------------------- jobs


def block_job(uow: UnitOfWork, task: TaskResult) -> None:
    """Record that a task failed for good as the reason why its job is blocked; with fail-fast, cancel the rest."""
    job = uow.jobs[task.job_id or 0]
    if job.state != JobState.RUNNING or job.blocked_by is not None:
        return
    _set_blocker(uow, job, task)
    if job.failure_policy == FailurePolicy.FAIL_FAST:
        uow.start_chunked_work(chunked_work.CANCEL, job.id, job=job, args=json.encode(CancelArgs("fail_fast")).decode())


def name_blocker(uow: UnitOfWork, job: Job) -> None:
    """Let a running job name a task that has failed for good, or none if it has none; some tasks run again."""
    blocker = _failed_task(uow, job) if job.num_failed else None
    if job.blocked_by != (blocker.id if blocker is not None else None):
        _set_blocker(uow, job, blocker)


def _failed_task(uow: UnitOfWork, job: Job) -> TaskResult | None:
    """A failed task of the job: the one that it names, if that has not run again."""
    named = task_result.read(uow.tx, [job.blocked_by]).get(job.blocked_by) if job.blocked_by is not None else None
    return named if named is not None and named.failed else task_result.first_failed(uow.tx, job.id)


def _set_blocker(uow: UnitOfWork, job: Job, task: TaskResult | None) -> None:
    job.blocked_by = task.id if task is not None else None
    job.error = f"task {show_task(task.id)} ended {task.state} ({task.reason})" if task is not None else None
    jobs.add_event(uow.tx, job, "blocked" if task is not None else "running", uow.now)


def _end_job_if_done(uow: UnitOfWork, job: Job) -> None:
    """End a job in which nothing can run any more.

    No task is ready, running or held and no chunked work is pending, so every task that still waits has a parent that
    failed.
    """
    if job.state != JobState.RUNNING or job.staged or job.num_active or job.num_chunked_work:
        return
    if job.num_succeeded == job.num_tasks:
        job.blocked_by = job.error = None
        uow.move_job(job, JobState.SUCCEEDED, "finished")
    elif _may_retry(uow, job):
        uow.move_job(job, JobState.PENDING_RETRY, "pending_retry")
    else:
        uow.move_job(job, JobState.FAILED, "failed")


def _may_retry(uow: UnitOfWork, job: Job) -> bool:
    if job.num_retries >= job.max_num_retries or job.deadline_at <= uow.now:
        return False
    return not task_result.cannot_succeed(uow.tx, job.id, uow.now)
