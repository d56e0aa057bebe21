"""Lost capacity: tasks in queues whose last bot is gone, and that do not wait for another one."""

from collections.abc import Sequence

from myrmidon.model.states import TaskState
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import task_queues, task_to_run
from myrmidon.store.tables.chunked_work import CHUNK, ChunkedWork


def handle_lost_capacity(turn: Turn, queues: Sequence[int]) -> None:
    """Queues that have lost a bot: have those looked at that may have lost their last."""
    for queue, left in sorted(task_queues.count_serving(turn.tx, queues).items()):
        if left == 1:
            task_to_run.clear_avoid_bot(turn.tx, queue)
        if not left and not drains.exists(turn.tx, drains.CAPACITY, queue):
            turn.drain(drains.CAPACITY, queue)


def lost_capacity_chunk(turn: Turn, drain: ChunkedWork) -> None:
    """The next chunk of a queue without bots: tasks that would not wait go to their next slice, or end."""
    if task_queues.served(turn.tx, [drain.subject]):
        turn.drained(drain)
        return
    found = task_to_run.unserved(turn.tx, drain.subject, after=drain.position, n=CHUNK)
    tasks = turn.lock(found)
    queued = {row.task_id for row in task_to_run.of_tasks(turn.tx, found)} if found else set()
    moving = [t for t in tasks.values() if t.state == TaskState.READY and t.id in queued]
    make_ready(turn, moving)
    if len(found) < CHUNK:
        turn.drained(drain)
        return
    drain.position = found[-1]
    drains.advance(turn.tx, drain)
