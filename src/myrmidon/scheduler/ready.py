"""Make tasks ready that no longer wait for parents: dedupe, enqueue or end them.

An idempotent task with an equal earlier result takes over that result. Others are enqueued in their first slice that a
bot serves or that may wait for a bot; if there is none, the task ends. ``make_ready`` is the only way to do this: at
submission, when the last parent has ended, after a lost bot and on a rerun.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from myrmidon.model.states import READY, RUNNING, WAITING, JobState, TaskState
from myrmidon.model.task_request import uses_caches
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import READS_SHARED, USES_CACHES, TaskToRun, rank
from myrmidon.scheduler.dedupe import find_sources, take_over
from myrmidon.scheduler.policy import choose_slice
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import chunked_work, shared_value, task_queues, task_to_run
from myrmidon.store.tables.chunked_work import ChunkedWork


def make_ready(uow: UnitOfWork, tasks: Sequence[TaskResult], *, avoid: Mapping[int, str] | None = None) -> None:
    """Move each task to READY with a row in its queue, or end it, as those of a job that is being cancelled.

    ``avoid`` maps tasks to the bot that lost them: that bot does not get the task while another one can take it.
    """
    due: list[TaskResult] = []
    special: list[TaskResult] = []
    uow.load_requests([task.id for task in tasks])
    for task in tasks:
        if (job := uow.job_of(task)) is not None and job.state == JobState.CANCELLED:
            uow.move(task, TaskState.CANCELLED, "job_cancelled")
            continue
        if uow.requests[task.id].deadline_at <= uow.now:
            _end_late(uow, task)
            continue
        due.append(task)
        if not task.skips_request_lookup:
            special.append(task)
    hits = find_sources(uow, special) if special else {}
    served = _served(uow, due, hits)
    readers = [task.id for task in special if uow.requests[task.id].num_inputs and task.id not in hits]
    shared = uow.shared_readers(readers) if readers else set()
    near: dict[int, int] = {}
    for task in due:
        if task.id in hits:
            take_over(uow, task, hits[task.id])
            continue
        number = choose_slice(uow.slices[task.id], task.current_task_slice, served)
        if number is None:
            _end_without_bots(uow, task)
            continue
        lost_by = avoid.get(task.id) if avoid else None
        _enqueue(uow, task, number, shared=task.id in shared, lost_by=lost_by)
        if task.id in shared and lost_by is None:
            near[task.id] = uow.slices[task.id][number].queue
    if near:
        uow.tx.effects.localities.update(shared_value.localities_of_tasks(uow.tx, near))


def _served(uow: UnitOfWork, due: Iterable[TaskResult], hits: Collection[int]) -> set[int]:
    """Those of the queues of the tasks that bots serve. Queues of slices that may wait for capacity do not matter."""
    queues: set[int] = set()
    for task in due:
        if task.id not in hits:
            for one in uow.slices[task.id]:
                if not one.wait_for_capacity:
                    queues.add(one.queue)
    return task_queues.served(uow.tx, queues) if queues else queues


def _end_late(uow: UnitOfWork, task: TaskResult) -> None:
    """End a task whose deadline is over."""
    late = TaskState.TIMED_OUT if task.state == RUNNING else TaskState.EXPIRED
    uow.move(task, TaskState.BOT_DIED if _is_retry(task) else late, "deadline")


def _is_retry(task: TaskResult) -> bool:
    """Whether a task that ends now without a run ends as a failed retry. A held task (WAITING) does not."""
    return bool(task.num_retries) and task.state != WAITING


def _end_without_bots(uow: UnitOfWork, task: TaskResult) -> None:
    """End a task that no bot can run in any remaining slice: BOT_DIED if it ran before, else NO_RESOURCE."""
    if _is_retry(task) or task.state == RUNNING:
        uow.move(task, TaskState.BOT_DIED, "no_resource")
    else:
        uow.move(task, TaskState.NO_RESOURCE, "no_resource")


def _enqueue(uow: UnitOfWork, task: TaskResult, number: int, *, shared: bool, lost_by: str | None) -> None:
    reason = "next_slice" if task.state == READY else task.reason if task.reason in _KEPT_REASONS else ""
    uow.move(task, READY, reason)
    task.current_task_slice = number
    task.ready_at = uow.now
    avoid_bot = _bot_to_avoid(uow, task, lost_by) if lost_by is not None else None
    uow.enqueue(new_task_to_run(uow, task, 0, shared=shared, avoid_bot=avoid_bot))


_KEPT_REASONS = frozenset({"retry", "rerun", "given_back", "job_retry"})


def new_task_to_run(
    uow: UnitOfWork, task: TaskResult, instance: int, *, shared: bool, avoid_bot: str | None
) -> TaskToRun:
    """A row that permits one run of the task's current slice; it expires with the slice or the task's deadline."""
    request = uow.requests[task.id]
    task_slice = uow.slices[task.id][task.current_task_slice]
    order = uow.order_in(task_slice.queue)
    expires_at = uow.now + task_slice.expiration
    if expires_at > request.deadline_at:
        expires_at = request.deadline_at
    return TaskToRun(
        task_id=task.id,
        instance=instance,
        queue=task_slice.queue,
        task_rank=rank(request.priority, request.created_at, order),
        expires_at=expires_at,
        slice=task_slice.slice,
        wait_for_capacity=task_slice.wait_for_capacity,
        shared=READS_SHARED * shared | USES_CACHES * uses_caches(task_slice.properties),
        avoid_bot=avoid_bot,
    )


def _bot_to_avoid(uow: UnitOfWork, task: TaskResult, lost_by: str) -> str | None:
    """The bot that lost the task, if another bot serves its queue; else None, so that the same bot may retry it."""
    queue = uow.slices[task.id][task.current_task_slice].queue
    return lost_by if task_queues.served(uow.tx, [queue], excluding=lost_by) else None


# ---------------------------------------------------------------- lost capacity


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
