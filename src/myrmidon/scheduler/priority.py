"""Change the priority of one task, or of all tasks of a job chunk by chunk.

The priority is a column of the request. Rows of task_to_run have it in their rank, so those that wait are ranked again;
later ones, of retries and reruns too, are made with the new priority. Tags keep the priority that was requested.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.states import JobState
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import rank
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, task_request, task_to_run
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
