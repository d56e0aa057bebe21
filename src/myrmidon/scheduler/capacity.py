"""Lost capacity: tasks in queues whose last bot is gone, and that do not wait for another one."""

from collections.abc import Sequence

from myrmidon.model.states import TaskState
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import chunked_work, task_queues, task_to_run
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork


def handle_lost_capacity(uow: UnitOfWork, queues: Sequence[int]) -> None:
    """Queues that have lost a bot: have those looked at that may have lost their last."""
    for queue, left in sorted(task_queues.count_serving(uow.tx, queues).items()):
        if left == 1:
            task_to_run.clear_avoid_bot(uow.tx, queue)
        if not left and not chunked_work.exists(uow.tx, chunked_work.CAPACITY, queue):
            uow.start_chunked_work(chunked_work.CAPACITY, queue)


def lost_capacity_chunk(uow: UnitOfWork, work: ChunkedWork) -> None:
    """The next chunk of a queue without bots: tasks that would not wait go to their next slice, or end."""
    if task_queues.served(uow.tx, [work.subject]):
        uow.finish_chunked_work(work)
        return
    found = task_to_run.unserved(uow.tx, work.subject, after=work.position, n=CHUNK)
    tasks = uow.lock(found)
    queued = {row.task_id for row in task_to_run.of_tasks(uow.tx, found)} if found else set()
    moving = [t for t in tasks.values() if t.state == TaskState.READY and t.id in queued]
    make_ready(uow, moving)
    if len(found) < CHUNK:
        uow.finish_chunked_work(work)
        return
    work.position = found[-1]
    chunked_work.advance(uow.tx, work)
