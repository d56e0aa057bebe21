"""Make tasks ready that no longer wait for parents: dedupe, enqueue or end them.

An idempotent task with an equal earlier result takes over that result. Others are enqueued in their first slice that a
bot serves or that may wait for a bot; if there is none, the task ends. ``make_ready`` is the only way to do this: at
submission, when the last parent has ended, after a lost bot and on a rerun.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from myrmidon.model.states import READY, RUNNING, SUCCEEDED, WAITING, TaskState
from myrmidon.model.task_request import Payload, dedupe_key
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import TaskToRun, rank
from myrmidon.model.value import Value
from myrmidon.scheduler.policy import choose_slice
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import dedupe, shared_value, task_queues
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RequestRow, SliceRow


def make_ready(uow: UnitOfWork, tasks: Sequence[TaskResult], *, avoid: Mapping[int, str] | None = None) -> None:
    """Move each task to READY with a row in its queue, or end it.

    ``avoid`` maps tasks to the bot that lost them: that bot does not get the task while another one can take it.
    """
    uow.load_requests(task.id for task in tasks)
    due = [task for task in tasks if not _past_deadline(uow, task)]
    hits = _dedupe_sources(uow, due)
    to_queue = [task for task in due if task.id not in hits]
    served = task_queues.served(uow.tx, _queues_needing_bots(uow, to_queue))
    shared = values.reads_shared(uow.tx, [t.id for t in to_queue if uow.requests[t.id].func_name is not None])
    for task in due:
        if task.id in hits:
            _apply_dedupe(uow, task, hits[task.id])
            continue
        number = choose_slice(uow.slices[task.id], task.current_task_slice, served)
        if number is None:
            _end_without_bots(uow, task)
            continue
        lost_by = avoid.get(task.id) if avoid else None
        _enqueue(uow, task, number, shared=task.id in shared, lost_by=lost_by)


def _past_deadline(uow: UnitOfWork, task: TaskResult) -> bool:
    if uow.requests[task.id].deadline_at > uow.now:
        return False
    late = TaskState.TIMED_OUT if task.state == RUNNING else TaskState.EXPIRED
    uow.move(task, TaskState.BOT_DIED if _is_retry(task) else late, "deadline")
    return True


def _is_retry(task: TaskResult) -> bool:
    """Whether a task that ends now without a run ends as a failed retry. A held task (WAITING) does not."""
    return bool(task.num_retries) and task.state != WAITING


def _queues_needing_bots(uow: UnitOfWork, tasks: Iterable[TaskResult]) -> set[int]:
    """The queues of slices that do not wait for capacity: whether bots serve them must be known."""
    return {s.queue for task in tasks for s in uow.slices[task.id] if not s.wait_for_capacity}


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
    uow.enqueue(new_task_to_run(uow, task, 0, shared=shared, avoid_bot=_bot_to_avoid(uow, task, lost_by)))


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
        shared=int(shared),
        avoid_bot=avoid_bot,
    )


def _bot_to_avoid(uow: UnitOfWork, task: TaskResult, lost_by: str | None) -> str | None:
    """The bot that lost the task, if another bot serves its queue; else None, so that the same bot may retry it."""
    if lost_by is None:
        return None
    queue = uow.slices[task.id][task.current_task_slice].queue
    return lost_by if task_queues.served(uow.tx, [queue], excluding=lost_by) else None


# ---------------------------------------------------------------- dedupe


class DedupeSource:
    """An earlier run whose result a task takes over, and its cost."""

    __slots__ = ("cost_usd", "run", "task_id")

    def __init__(self, task_id: int, run: int, cost_usd: float) -> None:
        self.task_id = task_id
        self.run = run
        self.cost_usd = cost_usd


def _dedupe_sources(uow: UnitOfWork, tasks: Sequence[TaskResult]) -> dict[int, DedupeSource]:
    """Equal earlier results by task, for tasks in their first generation that have not run.

    A rerun must run again. A READY task only moves to another slice: it was looked up when it became ready.
    """
    fresh = [t for t in tasks if t.run_number == 0 and t.generation == 1 and t.state == WAITING]
    idempotent = [task for task in fresh if _is_idempotent(uow, task)]
    if not idempotent:
        return {}
    keys = dedupe_keys(uow, [task.id for task in idempotent])
    every_key = sorted({key for by_slice in keys.values() for key in by_slice.values()})
    sources = dedupe.find(uow.tx, every_key, uow.now - uow.rules.dedupe_window)
    hits = {}
    for task in idempotent:
        for key in keys[task.id].values():
            if key in sources:
                hits[task.id] = DedupeSource(*sources[key])
                break
    return hits


def _is_idempotent(uow: UnitOfWork, task: TaskResult) -> bool:
    task_slices = uow.slices[task.id]
    return (
        bool(task_slices[0].idempotent)
        if len(task_slices) == 1
        else any(task_slice.idempotent for task_slice in task_slices)
    )


def dedupe_keys(uow: UnitOfWork, task_ids: Sequence[int]) -> dict[int, dict[int, str]]:
    """The dedupe key of each idempotent slice of each task.

    A function's key covers the bytes of its inputs, so it is known only when its
    parents have succeeded; that is why dedupe happens here and not at submission.
    """
    uow.load_requests(task_ids)
    functions = [i for i in task_ids if uow.requests[i].func_name is not None]
    inputs = values.inputs(uow.tx, functions) if functions else {}
    return {
        task_id: {
            task_slice.slice: _dedupe_key(uow, uow.requests[task_id], task_slice, inputs.get(task_id, []))
            for task_slice in uow.slices[task_id]
            if task_slice.idempotent
        }
        for task_id in task_ids
    }


def _dedupe_key(uow: UnitOfWork, request: RequestRow, task_slice: SliceRow, inputs: Sequence[Value]) -> str:
    content = task_slice.properties_hash
    if inputs:
        digest = sha256(content.encode())
        for value in inputs:
            payload = value.digest or sha256(value.payload or b"").hexdigest()
            digest.update(f"\n{value.type}\n{payload}".encode())
        content = digest.hexdigest()
    queue = uow.queue(task_slice.queue)
    return dedupe_key(content, request.resource_group_id, queue.pool if queue else "", request.service_account)


def _apply_dedupe(uow: UnitOfWork, task: TaskResult, source: DedupeSource) -> None:
    """Let the task succeed without a run, with the result of an earlier task."""
    task.deduped_from = source.task_id
    task.deduped_run = source.run
    task.cost_saved_usd = source.cost_usd
    _copy_outputs(uow, task, source)
    uow.move(task, SUCCEEDED, "deduped")


def _copy_outputs(uow: UnitOfWork, task: TaskResult, source: DedupeSource) -> None:
    if uow.requests[task.id].func_name is None:
        return
    outputs = values.outputs(uow.tx, [task.id, source.task_id])
    earlier = outputs.get(source.task_id, [])
    earlier_values = values.read(uow.tx, [value_id for _, value_id, _, _ in earlier])
    pairs = zip(outputs.get(task.id, []), earlier, strict=True)
    for position, ((_, value_id, _, _), (_, earlier_id, shared_id, _)) in enumerate(pairs):
        if shared_id is not None:
            share_output(uow, task, position, value_id=value_id, shared_value_id=shared_id)
            continue
        value = earlier_values[earlier_id]
        values.write(uow.tx, value_id, Payload(inline=value.payload, digest=value.digest, size=value.size or 0))


def share_output(uow: UnitOfWork, task: TaskResult, position: int, *, value_id: int, shared_value_id: int) -> None:
    """Link an output position and its consumers to a shared value, and let the job reference the value."""
    if task.job_id is None:
        return
    shared_value.ref_by_job(uow.tx, [shared_value_id], task.job_id)
    values.link_output(uow.tx, task.id, position, shared_value_id)
    values.link_consumers(uow.tx, task.id, value_id, shared_value_id)
