"""Let all descendants of a task that runs again wait for its new result.

The descendants are divided into pages, children before their parents, so that outputs are erased after their readers
were reset. One page is processed at once. Several are chunked work, and the job is PENDING_RETRY meanwhile, so that no
task becomes ready by a result that is about to be replaced. A running descendant keeps its run, but that run belongs to
the last generation: when it ends, the task waits again.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, json

from myrmidon.model.states import RUNNING, WAITING, JobState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.outputs import erase_outputs
from myrmidon.scheduler.policy import PARENT_RERUN
from myrmidon.scheduler.propagate import block_job, name_blocker
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import chunked_work, edge, task_result
from myrmidon.store.tables.chunked_work import CHUNK, WHOLE, ChunkedWork
from myrmidon.store.tables.job import Job


class Page(Struct, frozen=True):
    """Descendants that are processed together, and those of their parents that run again."""

    tasks: list[int]
    parents: list[int]
    kill: bool = False


def cascade(uow: UnitOfWork, task: TaskResult, job: Job, *, kill: bool) -> bool:
    """Reset the descendants of a locked task, which has started its new generation; False if that goes on later."""
    edges = edge.below(uow.tx, task.id)
    pages = plan_pages(edges, task.id, WHOLE, kill=kill)
    if len(pages) > 1:
        pages = plan_pages(edges, task.id, CHUNK, kill=kill)
        uow.move_job(job, JobState.PENDING_RETRY, "pending_retry")
        job.due_at = None  # not a retry that waits for a sweep
        for page in pages:
            uow.start_chunked_work(chunked_work.CASCADE, task.id, job=job, args=json.encode(page).decode())
        return False
    for page in pages:
        _reset_page(uow, job, page)
    erase_outputs(uow, job.id, [task.id])
    return True


def plan_pages(edges: Sequence[tuple[int, int]], root: int, size: int, *, kill: bool = False) -> list[Page]:
    """The descendants of ``root`` in pages of up to ``size`` tasks and about as many edges, children before parents.

    ``edges`` are those from ``root`` and its descendants.
    """
    children: dict[int, list[int]] = {}
    parents: dict[int, list[int]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
        parents.setdefault(child, []).append(parent)
    pages: list[Page] = []
    tasks: list[int] = []
    num_edges = 0
    for task_id in _children_first(children, parents, root):
        if tasks and (len(tasks) == size or num_edges + len(parents[task_id]) > size):
            pages.append(_page(tasks, parents, kill=kill))
            tasks, num_edges = [], 0
        tasks.append(task_id)
        num_edges += len(parents[task_id])
    if tasks:
        pages.append(_page(tasks, parents, kill=kill))
    return pages


def _page(tasks: list[int], parents: Mapping[int, Sequence[int]], *, kill: bool) -> Page:
    return Page(sorted(tasks), sorted({parent for task_id in tasks for parent in parents[task_id]}), kill)


def _children_first(
    children: Mapping[int, Sequence[int]], parents: Mapping[int, Sequence[int]], root: int
) -> Iterable[int]:
    """The descendants of ``root`` so that each comes before its parents."""
    waits_for = {task_id: len(several) for task_id, several in parents.items()}
    order = [root]
    for task_id in order:  # grows while it is read
        for child in children.get(task_id, ()):
            waits_for[child] -= 1
            if not waits_for[child]:
                order.append(child)
    return reversed(order[1:])


def cascade_chunk(uow: UnitOfWork, work: ChunkedWork, _n: int) -> None:
    """Process one page of a cascade; each page is a piece of work of its own, and the oldest is first."""
    _reset_page(uow, uow.jobs[work.job_id or 0], json.decode(work.args, type=Page))


def finish_cascade(uow: UnitOfWork, work: ChunkedWork) -> None:
    """Let the job go on after the last page; its first task and others that wait for nothing start."""
    job = uow.jobs[work.job_id or 0]
    if chunked_work.lock_of_job(uow.tx, chunked_work.CASCADE, job.id, 1):
        return
    erase_outputs(uow, job.id, [work.subject])
    uow.move_job(job, JobState.RUNNING, "running")
    if job.blocked_by is not None:
        name_blocker(uow, job)
    elif job.num_failed and (failed := task_result.first_failed(uow.tx, job.id)):
        block_job(uow, failed)
    uow.start_chunked_work(chunked_work.START, job.id, job=job)


def _reset_page(uow: UnitOfWork, job: Job, page: Page) -> None:
    """Let the tasks of a page wait, with exact counters.

    Edges from the page are reopened too: a task that ended after its children were reset has satisfied them again.
    """
    tasks = task_result.lock(uow.tx, page.tasks)
    uow.load_requests(tasks)
    for task in tasks.values():
        _let_wait(uow, task, kill=page.kill)
    uow.flush()
    reopen_edges(uow, edge.completed_between(uow.tx, page.parents, page.tasks))
    reopen_edges(uow, edge.completed_by(uow.tx, page.tasks))
    erase_outputs(uow, job.id, page.tasks)


def _let_wait(uow: UnitOfWork, task: TaskResult, *, kill: bool) -> None:
    if task.state == RUNNING:
        uow.outdate_runs(task)
        task.forced = 0
        if kill or task.killing:
            task.killing = 1
            task.reason = PARENT_RERUN
    elif task.state != WAITING:
        start_generation(uow, task, PARENT_RERUN)
    elif task.forced:
        task.forced = 0
        uow.touch(task)


# ---------------------------------------------------------------- generations


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
