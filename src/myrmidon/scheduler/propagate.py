"""Settling: what the end of a task means for its children, its job and the tasks it triggered.

``settle`` closes every turn that may have ended a task. It works through a list,
since an answered child may end at once and feed children of its own, and it
stops feeding at one chunk: the rest is drained in transactions of its own, so
that no fan-out makes a giant one.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.ids import show_task
from myrmidon.model.job import FailurePolicy
from myrmidon.model.states import RUNNING, SUCCEEDED, JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.ready import dedupe_keys, make_ready
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import edge, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork
from myrmidon.store.tables.job import Job


def settle(turn: Turn) -> None:
    """Carry out everything that follows from this turn, then see which jobs have ended."""
    turn.flush()
    budget = CHUNK
    _cancel_first_chunks(turn)
    while turn.ended or turn.ready:
        ended, turn.ended = turn.ended, []
        budget = _propagate_ends(turn, ended, budget)
        if turn.ready:
            ready, turn.ready = turn.ready, []
            make_ready(turn, ready)
        turn.flush()
        _cancel_first_chunks(turn)
    for job in turn.jobs.values():
        _end_job_if_done(turn, job)
    jobs.save(turn.tx, turn.jobs.values())


def _propagate_ends(turn: Turn, ended: Sequence[TaskResult], budget: int) -> int:
    """Pass on the end of these tasks; returns how many more edges this transaction may feed."""
    _store_dedupe_sources(turn, [t for t in ended if t.state == SUCCEEDED and t.instance_id is not None])
    for task in ended:
        if task.num_children:
            turn.drain(drains.CHILDREN, task.id)
    members = [task for task in ended if task.job_id is not None]
    if not members:
        return budget
    for task in members:
        if task.state != SUCCEEDED:
            _block_job(turn, task)
    return _propagate_to_children(turn, members, budget)


def _store_dedupe_sources(turn: Turn, succeeded: Sequence[TaskResult]) -> None:
    """Remember idempotent results for equal tasks to come."""
    asked = [task for task in succeeded if not task.plain]
    turn.know_briefly(task.id for task in asked)
    givers = [task for task in asked if turn.brief(task.id).idempotent]
    turn.know(task.id for task in givers)
    givers = [task for task in givers if turn.slices[task.id][task.current_task_slice].idempotent]
    if not givers:
        return
    keys = dedupe_keys(turn, [task.id for task in givers])
    rows = [
        (keys[t.id][t.current_task_slice], t.id, t.instance_id or 0, turn.requests[t.id].created_at) for t in givers
    ]
    task_result.add_donors(turn.tx, rows)


# ---------------------------------------------------------------- children


def _propagate_to_children(turn: Turn, ended: Sequence[TaskResult], budget: int) -> int:
    """Tell children that a parent is done, up to the budget; the rest goes into drains."""
    parents = {task.id: task for task in ended if turn.jobs[task.job_id or 0].state != JobState.CANCELLED}
    if not parents:
        return budget
    edges = edge.unsatisfied_of(turn.tx, sorted(parents), budget + 1)
    if len(edges) > budget:
        full = {parent for parent, _ in edges[budget:]}
        behind = {p for p in parents if p >= min(full)}
        for parent in sorted(behind):
            turn.drain(drains.FEED, parent, job=turn.job_of(parents[parent]))
        edges = edges[:budget]
    _satisfy_edges(turn, parents, edges)
    return budget - len(edges)


def _satisfy_edges(turn: Turn, parents: dict[int, TaskResult], edges: Sequence[tuple[int, int]]) -> None:
    """Count satisfied edges into children and pick those that nothing holds back any more.

    In a job that has ended they are only counted: what waits there starts if somebody reopens the job.
    A parent that did not succeed satisfies only children that wait for any end.
    """
    if not edges:
        return
    children = task_result.lock(turn.tx, sorted({child for _, child in edges}))
    met: list[tuple[int, int, int | None]] = []
    fed: dict[int, int] = {}
    for parent, child in edges:
        task = parents[parent]
        if task.state == SUCCEEDED or children[child].resolves_all:
            met.append((parent, child, task.instance_id))
            fed[child] = fed.get(child, 0) + 1
    if not met:
        return
    edge.complete(turn.tx, met)
    by_count: dict[int, list[int]] = {}
    for child, n in fed.items():
        by_count.setdefault(n, []).append(child)
    for n, ids in sorted(by_count.items()):
        task_result.feed(turn.tx, sorted(ids), n)
    able = task_result.now_ready(turn.tx, sorted(fed))
    turn.ready.extend(t for t in able if turn.jobs[t.job_id or 0].state == JobState.RUNNING)


def propagate_chunk(turn: Turn, drain: ChunkedWork) -> None:
    """One more chunk of a fan-out that was too wide for the transaction that ended its parent."""
    parents = task_result.read(turn.tx, [drain.subject])
    parent = parents.get(drain.subject)
    if parent is None or not parent.final or drain.job_id not in turn.jobs:
        turn.drained(drain)
        return
    children = edge.unsatisfied(turn.tx, parent.id, after=drain.position, n=CHUNK)
    _satisfy_edges(turn, parents, [(parent.id, child) for child in children])
    if len(children) < CHUNK:
        turn.drained(drain)
        return
    drain.position = children[-1]
    drains.advance(turn.tx, drain)


# ---------------------------------------------------------------- calling off


class CancelArgs(Struct, frozen=True):
    """Why the rest of a job is called off."""

    reason: str


def _cancel_first_chunks(turn: Turn) -> None:
    """Jobs that this turn has called off: their first chunk ends with it."""
    found = [drain for drain in turn.begun if drain.kind == drains.CANCEL]
    turn.begun = [drain for drain in turn.begun if drain.kind != drains.CANCEL]
    for drain in found:
        cancel_job_chunk(turn, drain)
        turn.flush()


def cancel_job_chunk(turn: Turn, drain: ChunkedWork) -> None:
    """Cancel the next chunk of a job: what has not started ends at once, what runs is told to stop."""
    reason = json.decode(drain.args, type=CancelArgs).reason
    page = task_result.lock_of_job(turn.tx, drain.subject, after=drain.position, n=CHUNK)
    for task in page:
        cancel_or_kill(turn, task, reason)
    if len(page) < CHUNK:
        turn.drained(drain)
        return
    drain.position = page[-1].id
    drains.advance(turn.tx, drain)


def cancel_or_kill(turn: Turn, task: TaskResult, reason: str) -> None:
    """End a locked task that has not started; ask the bot of a running one to stop it."""
    if task.state == RUNNING:
        if not task.killing:
            task.killing = 1
            task.reason = reason
            task.abandoned_at = turn.now
            turn.touch(task)
    elif not task.final:
        turn.move(task, TaskState.CANCELED, reason)


# ---------------------------------------------------------------- jobs


def _block_job(turn: Turn, task: TaskResult) -> None:
    """A task has failed for good: its job is blocked, and under fail-fast the rest is called off."""
    job = turn.jobs[task.job_id or 0]
    if job.state != JobState.RUNNING or job.blocked_by is not None:
        return
    job.blocked_by = task.id
    job.error = job.error or f"task {show_task(task.id)} ended {task.state} ({task.reason})"
    jobs.add_event(turn.tx, job, "blocked", turn.now)
    if job.failure_policy == FailurePolicy.FAIL_FAST:
        turn.drain(drains.CANCEL, job.id, job=job, args=json.encode(CancelArgs("fail_fast")).decode())


def _end_job_if_done(turn: Turn, job: Job) -> None:
    """End a job in which nothing can run any more.

    No task is ready, running or held and no drain is open, so every task that
    still waits does so for a parent that has failed.
    """
    if job.state != JobState.RUNNING or job.staged or job.num_active or job.num_draining:
        return
    if job.num_succeeded == job.num_tasks:
        job.blocked_by = None
        turn.move_job(job, JobState.SUCCEEDED, "finished")
    elif _may_retry(turn, job):
        turn.move_job(job, JobState.PENDING_RETRY, "pending_retry")
    else:
        turn.move_job(job, JobState.FAILED, "failed")


def _may_retry(turn: Turn, job: Job) -> bool:
    if job.num_retries >= job.max_num_retries or job.deadline_at <= turn.now:
        return False
    return not task_result.canceled_by_user(turn.tx, job.id)
