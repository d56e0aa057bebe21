"""Becoming ready: a task that nothing holds back is answered, queued or given up.

Answered by an equal earlier result when it is idempotent, queued in the first of
its slices that a bot can run, given up when there is none. This happens at
submission, when the last parent is done, after a lost bot and on a rerun, always
through ``make_ready``.
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
from myrmidon.store.tables import shared_value, task_queues, task_result
from myrmidon.store.tables import dedupe
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RequestRow, SliceRow


def make_ready(uow: UnitOfWork, tasks: Sequence[TaskResult], *, avoid: Mapping[int, str] | None = None) -> None:
    """Let tasks run: each becomes READY with a row in its queue, or ends here.

    ``avoid`` names for a task the bot that lost it, which should not get it again
    while another one can.
    """
    uow.load_requests(task.id for task in tasks)
    due = [task for task in tasks if not _past_deadline(uow, task)]
    hits = _dedupe_sources(uow, due)
    wanted = [task for task in due if task.id not in hits]
    served = task_queues.served(uow.tx, _queues_needing_bots(uow, wanted))
    shared = values.reads_shared(uow.tx, [t.id for t in wanted if uow.requests[t.id].func_name is not None])
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
    """Whether the end of waiting is the end of a retry; one that somebody holds just waits."""
    return bool(task.num_retries) and task.state != WAITING


def _queues_needing_bots(uow: UnitOfWork, tasks: Iterable[TaskResult]) -> set[int]:
    """The queues whose capacity matters, because a task would not wait for it."""
    return {s.queue for task in tasks for s in uow.slices[task.id] if not s.wait_for_capacity}


def _end_without_bots(uow: UnitOfWork, task: TaskResult) -> None:
    """No bot can run any slice that is left; for a task that was at work, they are gone."""
    if _is_retry(task) or task.state == RUNNING:
        uow.move(task, TaskState.BOT_DIED, "no_resource")
    else:
        uow.move(task, TaskState.NO_RESOURCE, "no_resource")


def _enqueue(uow: UnitOfWork, task: TaskResult, number: int, *, shared: bool, lost_by: str | None) -> None:
    turned = "next_slice" if task.state == READY else task.reason if task.reason in _KEPT_REASONS else ""
    uow.move(task, READY, turned)
    task.current_task_slice = number
    task.ready_at = uow.now
    uow.enqueue(new_task_to_run(uow, task, 0, shared=shared, avoid_bot=_bot_to_avoid(uow, task, lost_by)))


_KEPT_REASONS = frozenset({"retry", "rerun", "given_back", "job_retry"})


def new_task_to_run(
    uow: UnitOfWork, task: TaskResult, instance: int, *, shared: bool, avoid_bot: str | None
) -> TaskToRun:
    """The right to start one run of the task's current slice, with a fresh expiry inside its deadline."""
    request = uow.requests[task.id]
    piece = uow.slices[task.id][task.current_task_slice]
    order = uow.order_in(piece.queue)
    expires_at = uow.now + piece.expiration
    if expires_at > request.deadline_at:
        expires_at = request.deadline_at
    place = rank(request.priority, request.created_at, order)
    return TaskToRun(
        task.id, instance, piece.queue, place, expires_at, piece.slice, piece.wait_for_capacity, int(shared), avoid_bot
    )  # fmt: skip


def _bot_to_avoid(uow: UnitOfWork, task: TaskResult, lost_by: str | None) -> str | None:
    """Keep a retry away from the bot that lost it, unless nobody else is there to take it."""
    if lost_by is None:
        return None
    queue = uow.slices[task.id][task.current_task_slice].queue
    return lost_by if task_queues.served(uow.tx, [queue], excluding=lost_by) else None


# ---------------------------------------------------------------- dedupe


class DedupeSource:
    """Whose result answers a task, and what that run had cost."""

    __slots__ = ("cost_usd", "run", "task_id")

    def __init__(self, task_id: int, run: int, cost_usd: float) -> None:
        self.task_id = task_id
        self.run = run
        self.cost_usd = cost_usd


def _dedupe_sources(uow: UnitOfWork, tasks: Sequence[TaskResult]) -> dict[int, DedupeSource]:
    """Equal earlier results, by task. A task that somebody ran again wants a run, not an answer.

    One that is READY was not answered before, and only moves to another slice: it keeps its uow.
    """
    fresh = [t for t in tasks if t.run_number == 0 and t.generation == 1 and t.state == WAITING]
    asked = [task for task in fresh if _is_idempotent(uow, task)]
    if not asked:
        return {}
    keys = dedupe_keys(uow, [task.id for task in asked])
    wanted = sorted({key for found in keys.values() for key in found.values()})
    known = dedupe.donors(uow.tx, wanted, uow.now - uow.rules.dedupe_window)
    hits = {}
    for task in asked:
        for key in keys[task.id].values():
            if key in known:
                hits[task.id] = DedupeSource(*known[key])
                break
    return hits


def _is_idempotent(uow: UnitOfWork, task: TaskResult) -> bool:
    pieces = uow.slices[task.id]
    return bool(pieces[0].idempotent) if len(pieces) == 1 else any(piece.idempotent for piece in pieces)


def dedupe_keys(uow: UnitOfWork, task_ids: Sequence[int]) -> dict[int, dict[int, str]]:
    """The dedupe key of each idempotent slice of each task.

    A function's key covers the bytes of its inputs, so it is known only when its
    parents are done; that is why dedupe happens here and not at the door.
    """
    uow.load_requests(task_ids)
    functions = [i for i in task_ids if uow.requests[i].func_name is not None]
    given = values.inputs(uow.tx, functions) if functions else {}
    return {
        task_id: {
            piece.slice: _dedupe_key(uow, uow.requests[task_id], piece, given.get(task_id, []))
            for piece in uow.slices[task_id]
            if piece.idempotent
        }
        for task_id in task_ids
    }


def _dedupe_key(uow: UnitOfWork, request: RequestRow, piece: SliceRow, given: Sequence[Value]) -> str:
    content = piece.properties_hash
    if given:
        digest = sha256(content.encode())
        for value in given:
            payload = value.digest or sha256(value.payload or b"").hexdigest()
            digest.update(f"\n{value.type}\n{payload}".encode())
        content = digest.hexdigest()
    queue = uow.queue(piece.queue)
    return dedupe_key(content, request.resource_group_id, queue.pool if queue else "", request.service_account)


def _apply_dedupe(uow: UnitOfWork, task: TaskResult, donor: DedupeSource) -> None:
    """Succeed without a run: the donor's result is this task's result."""
    task.deduped_from = donor.task_id
    task.deduped_run = donor.run
    task.cost_saved_usd = donor.cost_usd
    _copy_outputs(uow, task, donor)
    uow.move(task, SUCCEEDED, "deduped")


def _copy_outputs(uow: UnitOfWork, task: TaskResult, donor: DedupeSource) -> None:
    if uow.requests[task.id].func_name is None:
        return
    both = values.outputs(uow.tx, [task.id, donor.task_id])
    theirs = both.get(donor.task_id, [])
    produced = values.read(uow.tx, [value_id for _, value_id, _, _ in theirs])
    for position, (mine, given) in enumerate(zip(both.get(task.id, []), theirs, strict=True)):
        if given[2] is not None:
            share_output(uow, task, position, value_id=mine[1], shared_value_id=given[2])
            continue
        value = produced[given[1]]
        values.write(uow.tx, mine[1], Payload(inline=value.payload, digest=value.digest, size=value.size or 0))


def share_output(uow: UnitOfWork, task: TaskResult, position: int, *, value_id: int, shared_value_id: int) -> None:
    """Let an output position, and whoever reads it, name a shared value; the job keeps it alive."""
    if task.job_id is None:
        return
    shared_value.ref_by_job(uow.tx, [shared_value_id], task.job_id)
    values.link_output(uow.tx, task.id, position, shared_value_id)
    values.link_consumers(uow.tx, task.id, value_id, shared_value_id)
