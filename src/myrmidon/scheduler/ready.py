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
from myrmidon.scheduler.unit_of_work import Turn
from myrmidon.store.tables import shared_value, task_queues, task_result
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RequestRow, SliceRow


def make_ready(turn: Turn, tasks: Sequence[TaskResult], *, avoid: Mapping[int, str] | None = None) -> None:
    """Let tasks run: each becomes READY with a row in its queue, or ends here.

    ``avoid`` names for a task the bot that lost it, which should not get it again
    while another one can.
    """
    turn.know(task.id for task in tasks)
    due = [task for task in tasks if not _past_deadline(turn, task)]
    hits = _dedupe_sources(turn, due)
    wanted = [task for task in due if task.id not in hits]
    served = task_queues.served(turn.tx, _queues_needing_bots(turn, wanted))
    shared = values.reads_shared(turn.tx, [t.id for t in wanted if turn.requests[t.id].func_name is not None])
    for task in due:
        if task.id in hits:
            _apply_dedupe(turn, task, hits[task.id])
            continue
        number = choose_slice(turn.slices[task.id], task.current_task_slice, served)
        if number is None:
            _end_without_bots(turn, task)
            continue
        lost_by = avoid.get(task.id) if avoid else None
        _enqueue(turn, task, number, shared=task.id in shared, lost_by=lost_by)


def _past_deadline(turn: Turn, task: TaskResult) -> bool:
    if turn.requests[task.id].deadline_at > turn.now:
        return False
    late = TaskState.TIMED_OUT if task.state == RUNNING else TaskState.EXPIRED
    turn.move(task, TaskState.BOT_DIED if _is_retry(task) else late, "deadline")
    return True


def _is_retry(task: TaskResult) -> bool:
    """Whether the end of waiting is the end of a retry; one that somebody holds just waits."""
    return bool(task.num_retries) and task.state != WAITING


def _queues_needing_bots(turn: Turn, tasks: Iterable[TaskResult]) -> set[int]:
    """The queues whose capacity matters, because a task would not wait for it."""
    return {s.queue for task in tasks for s in turn.slices[task.id] if not s.wait_for_capacity}


def _end_without_bots(turn: Turn, task: TaskResult) -> None:
    """No bot can run any slice that is left; for a task that was at work, they are gone."""
    if _is_retry(task) or task.state == RUNNING:
        turn.move(task, TaskState.BOT_DIED, "no_resource")
    else:
        turn.move(task, TaskState.NO_RESOURCE, "no_resource")


def _enqueue(turn: Turn, task: TaskResult, number: int, *, shared: bool, lost_by: str | None) -> None:
    turned = "next_slice" if task.state == READY else task.reason if task.reason in _KEPT_REASONS else ""
    turn.move(task, READY, turned)
    task.current_task_slice = number
    task.ready_at = turn.now
    turn.enqueue(new_task_to_run(turn, task, 0, shared=shared, avoid_bot=_bot_to_avoid(turn, task, lost_by)))


_KEPT_REASONS = frozenset({"retry", "rerun", "given_back", "job_retry"})


def new_task_to_run(turn: Turn, task: TaskResult, instance: int, *, shared: bool, avoid_bot: str | None) -> TaskToRun:
    """The right to start one run of the task's current slice, with a fresh expiry inside its deadline."""
    request = turn.requests[task.id]
    piece = turn.slices[task.id][task.current_task_slice]
    order = turn.order_in(piece.queue)
    expires_at = turn.now + piece.expiration
    if expires_at > request.deadline_at:
        expires_at = request.deadline_at
    place = rank(request.priority, request.created_at, order)
    return TaskToRun(
        task.id, instance, piece.queue, place, expires_at, piece.slice, piece.wait_for_capacity, int(shared), avoid_bot
    )  # fmt: skip


def _bot_to_avoid(turn: Turn, task: TaskResult, lost_by: str | None) -> str | None:
    """Keep a retry away from the bot that lost it, unless nobody else is there to take it."""
    if lost_by is None:
        return None
    queue = turn.slices[task.id][task.current_task_slice].queue
    return lost_by if task_queues.served(turn.tx, [queue], excluding=lost_by) else None


# ---------------------------------------------------------------- dedupe


class DedupeSource:
    """Whose result answers a task, and what that run had cost."""

    __slots__ = ("cost_usd", "run", "task_id")

    def __init__(self, task_id: int, run: int, cost_usd: float) -> None:
        self.task_id = task_id
        self.run = run
        self.cost_usd = cost_usd


def _dedupe_sources(turn: Turn, tasks: Sequence[TaskResult]) -> dict[int, DedupeSource]:
    """Equal earlier results, by task. A task that somebody ran again wants a run, not an answer.

    One that is READY was not answered before, and only moves to another slice: it keeps its turn.
    """
    fresh = [t for t in tasks if t.run_number == 0 and t.generation == 1 and t.state == WAITING]
    asked = [task for task in fresh if _is_idempotent(turn, task)]
    if not asked:
        return {}
    keys = dedupe_keys(turn, [task.id for task in asked])
    wanted = sorted({key for found in keys.values() for key in found.values()})
    known = task_result.donors(turn.tx, wanted, turn.now - turn.rules.dedupe_window)
    hits = {}
    for task in asked:
        for key in keys[task.id].values():
            if key in known:
                hits[task.id] = DedupeSource(*known[key])
                break
    return hits


def _is_idempotent(turn: Turn, task: TaskResult) -> bool:
    pieces = turn.slices[task.id]
    return bool(pieces[0].idempotent) if len(pieces) == 1 else any(piece.idempotent for piece in pieces)


def dedupe_keys(turn: Turn, task_ids: Sequence[int]) -> dict[int, dict[int, str]]:
    """The dedupe key of each idempotent slice of each task.

    A function's key covers the bytes of its inputs, so it is known only when its
    parents are done; that is why dedupe happens here and not at the door.
    """
    turn.know(task_ids)
    functions = [i for i in task_ids if turn.requests[i].func_name is not None]
    given = values.inputs(turn.tx, functions) if functions else {}
    return {
        task_id: {
            piece.slice: _dedupe_key(turn, turn.requests[task_id], piece, given.get(task_id, []))
            for piece in turn.slices[task_id]
            if piece.idempotent
        }
        for task_id in task_ids
    }


def _dedupe_key(turn: Turn, request: RequestRow, piece: SliceRow, given: Sequence[Value]) -> str:
    content = piece.properties_hash
    if given:
        digest = sha256(content.encode())
        for value in given:
            payload = value.digest or sha256(value.payload or b"").hexdigest()
            digest.update(f"\n{value.type}\n{payload}".encode())
        content = digest.hexdigest()
    queue = turn.queue(piece.queue)
    return dedupe_key(content, request.resource_group_id, queue.pool if queue else "", request.service_account)


def _apply_dedupe(turn: Turn, task: TaskResult, donor: DedupeSource) -> None:
    """Succeed without a run: the donor's result is this task's result."""
    task.deduped_from = donor.task_id
    task.deduped_run = donor.run
    task.cost_saved_usd = donor.cost_usd
    _copy_outputs(turn, task, donor)
    turn.move(task, SUCCEEDED, "deduped")


def _copy_outputs(turn: Turn, task: TaskResult, donor: DedupeSource) -> None:
    if turn.requests[task.id].func_name is None:
        return
    both = values.outputs(turn.tx, [task.id, donor.task_id])
    theirs = both.get(donor.task_id, [])
    produced = values.read(turn.tx, [value_id for _, value_id, _, _ in theirs])
    for position, (mine, given) in enumerate(zip(both.get(task.id, []), theirs, strict=True)):
        if given[2] is not None:
            share_output(turn, task, position, value_id=mine[1], shared_value_id=given[2])
            continue
        value = produced[given[1]]
        values.write(turn.tx, mine[1], Payload(inline=value.payload, digest=value.digest, size=value.size or 0))


def share_output(turn: Turn, task: TaskResult, position: int, *, value_id: int, shared_value_id: int) -> None:
    """Let an output position, and whoever reads it, name a shared value; the job keeps it alive."""
    if task.job_id is None:
        return
    shared_value.ref_by_job(turn.tx, [shared_value_id], task.job_id)
    values.link_output(turn.tx, task.id, position, shared_value_id)
    values.link_consumers(turn.tx, task.id, value_id, shared_value_id)
