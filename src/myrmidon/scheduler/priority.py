"""Change the order of waiting tasks: the priority of a task or of all tasks of a job, or the order of a pool.

The priority is a column of the request. Rows of task_to_run have it in their rank, so those that wait are ranked again;
later ones, of retries and reruns too, are made with the new priority. Tags keep the priority that was requested.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.errors import InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import JobState
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import FIFO, LIFO, Order, rank
from myrmidon.scheduler.policy import DAY, DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, pool_order, task_request, task_to_run
from myrmidon.store.tables.chunked_work import ChunkedWork
from myrmidon.store.tables.job import Job


class PriorityArgs(Struct, frozen=True):
    """The arguments of changing the priority of a job's tasks."""

    priority: int


def set_priority(
    tx: Tx, task_id: int, priority: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """Change the priority of a task that has not ended."""
    uow = UnitOfWork(tx, now, ids, rules)
    task = uow.lock([task_id]).get(task_id)
    if task is None or uow.is_staged(task):
        raise NotFound("task", show_task(task_id))
    if task.final:
        raise WrongState(f"the task has ended ({task.state}); its priority has no meaning any more")
    _set(uow, [task_id], priority)


def set_job_priority(
    tx: Tx, job_id: int, priority: int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> Job:
    """Start changing the priority of all tasks of a running job that have not ended."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.staged:
        raise NotFound("job", show_task(job_id))
    if job.state != JobState.RUNNING:
        raise WrongState(f"only the priority of a running job can be changed; this one is {job.state}")
    uow.start_chunked_work(chunked_work.PRIORITY, job.id, job=job, args=json.encode(PriorityArgs(priority)).decode())
    propagate(uow)
    return job


def set_priority_page(uow: UnitOfWork, work: ChunkedWork, page: list[TaskResult]) -> None:
    """Change the priority of the next tasks of a job."""
    _set(uow, [task.id for task in page if not task.final], json.decode(work.args, type=PriorityArgs).priority)


def _set(uow: UnitOfWork, task_ids: Sequence[int], priority: int) -> None:
    """Write the priority of locked tasks, and rank those again that wait for a bot."""
    if not task_ids:
        return
    task_request.set_priority(uow.tx, task_ids, priority)
    waiting = task_to_run.of_tasks(uow.tx, task_ids)
    requests = task_request.read(uow.tx, sorted({row.task_id for row in waiting})) if waiting else {}
    ranked = [
        (row.task_id, row.instance, rank(priority, requests[row.task_id].created_at, uow.order_in(row.queue)))
        for row in waiting
    ]
    if ranked:
        task_to_run.set_ranks(uow.tx, ranked)


# ---------------------------------------------------------------- orders of pools


_MAX_AGEING: Micros = 30 * DAY


class Rerank(Struct, frozen=True):
    """The arguments of ranking the tasks of a pool again."""

    pool: str


def set_pool_order(tx: Tx, pool: str, order: Order, *, now: Micros, ids: IdSource) -> None:
    """Set how a pool orders its tasks. Tasks that wait already are ranked again, chunk by chunk.

    Ageing prefers the oldest tasks and LIFO the newest, so they cannot be combined.
    """
    _check(order)
    pool_order.lock_pools(tx, [pool])
    if pool_order.of_pool(tx, pool) == order:
        return
    pool_order.set_order(tx, pool, order)
    UnitOfWork(tx, now, ids).start_chunked_work(chunked_work.RERANK, 0, args=json.encode(Rerank(pool)).decode())


def _check(order: Order) -> None:
    problems = []
    if order.task_order not in (FIFO, LIFO):
        problems.append(Problem("task_order", order.task_order, f"{FIFO} or {LIFO}", "choice"))
    if not 0 <= order.ageing <= _MAX_AGEING:
        problems.append(Problem("ageing", str(order.ageing), f"0 (none) to {_MAX_AGEING} microseconds", "range"))
    if order.ageing and order.task_order == LIFO:
        problems.append(
            Problem("ageing", str(order.ageing), "0 with lifo: ageing serves the oldest first", "contradiction")
        )
    if problems:
        raise InvalidRequest(problems)


def rerank_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Give the next waiting tasks of a pool the rank of its present order.

    This runs after the change was committed, so tasks that become ready meanwhile have the new rank already.
    """
    pool = json.decode(work.args, type=Rerank).pool
    order = pool_order.of_pool(uow.tx, pool)
    page = task_to_run.of_pool(uow.tx, pool, after=work.position, n=n)
    ranked = [(task, instance, old, rank(priority, created, order)) for task, instance, old, priority, created in page]
    task_to_run.set_ranks(uow.tx, [(task, instance, new) for task, instance, old, new in ranked if new != old])
    return page[-1][0] if len(page) == n else None
