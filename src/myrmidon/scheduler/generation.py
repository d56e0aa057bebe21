"""Start a new generation of a task: its result is cleared, and its children wait for it again."""

from collections.abc import Sequence

from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import edge, task_result


def start_generation(uow: UnitOfWork, task: TaskResult, reason: str) -> None:
    """Start a new generation: clear the result and the counters of the last one."""
    if task.final:
        uow.move(task, TaskState.WAITING, reason, new_generation=True)
    elif task.state == TaskState.READY:
        uow.move(task, TaskState.WAITING, reason)
    uow.hold(task, held=False)
    task.forced = 0
    task.num_retries = 0
    task.killing = 0
    task.instance_id = None
    task.current_task_slice = 0
    task.bot_id = None
    task.deduped_from = task.deduped_run = task.cost_saved_usd = None
    task.started_at = task.completed_at = task.abandoned_at = None
    task.due_at = uow.requests[task.id].deadline_at


def reopen_edges(uow: UnitOfWork, edges: Sequence[tuple[int, int]]) -> None:
    """Reopen satisfied edges (parent, child), and subtract them from the counters of the children."""
    if not edges:
        return
    edge.reopen(uow.tx, edges)
    counts: dict[int, int] = {}
    for _, child in edges:
        counts[child] = counts.get(child, 0) + 1
    by_count: dict[int, list[int]] = {}
    for child, n in counts.items():
        by_count.setdefault(n, []).append(child)
    for n, children in sorted(by_count.items()):
        task_result.add_satisfied_parents(uow.tx, sorted(children), -n)
