"""Lost capacity: tasks in queues whose last bot is gone, and that do not wait for another one."""

from collections.abc import Sequence

from myrmidon.model.states import TaskState
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import chunked_work, task_queues, task_to_run
from myrmidon.store.tables.chunked_work import ChunkedWork


def handle_lost_capacity(uow: UnitOfWork, queues: Sequence[int]) -> None:
    """React to queues that lost a bot.

    With one bot left, tasks no longer avoid the bot that lost them. With none left, chunked work moves the tasks that
    do not wait for capacity.
    """
    for queue, left in sorted(task_queues.count_serving(uow.tx, queues).items()):
        if left == 1:
            task_to_run.clear_avoid_bot(uow.tx, queue)
        if not left and not chunked_work.exists(uow.tx, chunked_work.CAPACITY, queue):
            uow.start_chunked_work(chunked_work.CAPACITY, queue)


def lost_capacity_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Process the next tasks of a queue without bots: those that do not wait move to their next slice, or end."""
    if task_queues.served(uow.tx, [work.subject]):
        return None
    task_ids = task_to_run.unserved(uow.tx, work.subject, after=work.position, n=n)
    tasks = uow.lock(task_ids)
    queued = {row.task_id for row in task_to_run.of_tasks(uow.tx, task_ids)} if task_ids else set()
    make_ready(uow, [t for t in tasks.values() if t.state == TaskState.READY and t.id in queued])
    return task_ids[-1] if len(task_ids) == n else None
