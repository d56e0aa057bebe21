"""Add parents to tasks that wait: how a fan-out whose width is known only at run time gets its fan-in.

    {"tasks": {"part-1": {...}, "part-2": {...}}, "requires": {"join": ["part-1", "part-2"]}}

Only a task that waits for a running one gets parents. The end of a run needs the lock of its job, which the extension
holds, so such a task cannot start meanwhile. Edges that the job already has are skipped: an extension may be repeated.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model.dag import find_cycles, show_cycle, topological_order
from myrmidon.model.errors import WrongState
from myrmidon.model.limits import Limits
from myrmidon.model.states import SUCCEEDED, WAITING
from myrmidon.model.task_result import TaskResult
from myrmidon.model.validation import Checker
from myrmidon.scheduler.new_task import NewTask
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import edge, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.chunked_work import WHOLE


class AddedParents(Struct, frozen=True):
    """The edges that an extension adds to existing tasks, as (label of the parent, label of the child)."""

    edges: list[tuple[str, str]]

    parts_of: list[str] = []
    """Labels of tasks that get further parts of their inputs, perhaps without a new edge."""

    @property
    def children(self) -> list[str]:
        return sorted({*self.parts_of, *(child for _, child in self.edges)})


def read_added_parents(
    check: Checker, raw: object, existing: Mapping[str, tuple[int, str]], new_labels: Sequence[str]
) -> dict[str, list[str]]:
    """The field ``requires`` of an extension, by label of the child; problems are noted."""
    if not isinstance(raw, dict) or raw.get("requires") is None:
        return {}
    known = {*existing, *new_labels}
    given = check.mapping(raw, "requires", (), WHOLE)
    requires: dict[str, list[str]] = {}
    for child in given:
        path = ("requires", child)
        if child not in existing:
            check.note(path, child, "the label of a task that the job already has", "unknown_label")
            continue
        labels = check.texts(given, child, ("requires",), check.limits.parents, chars=check.limits.label_chars)
        for position, label in enumerate(labels):
            if label == child:
                check.note((*path, position), label, "another task: a task cannot wait for itself", "self_dependency")
            elif label not in known:
                check.note((*path, position), label, "the label of a task of this job", "unknown_label")
        requires[child] = labels
    return requires


def find_new_edges(
    uow: UnitOfWork, wanted: Sequence[tuple[str, str]], existing: Mapping[str, tuple[int, str]]
) -> list[tuple[str, str]]:
    """Those of the wanted edges (label of the parent, label of the child) that the job does not have yet."""
    if not wanted:
        return []
    has = set(edge.parents(uow.tx, sorted({existing[child][0] for _, child in wanted})))
    return [
        (parent, child)
        for parent, child in dict.fromkeys(wanted)
        if parent not in existing or (existing[parent][0], existing[child][0]) not in has
    ]


def store_added_parents(
    uow: UnitOfWork,
    job_id: int,
    added: AddedParents,
    *,
    ids: Mapping[str, int],
    new_tasks: Sequence[NewTask],
    limits: Limits,
    by: int | None,
) -> None:
    """Check and store the edges of an extension whose new tasks are stored.

    ``by``: the running task that asks for it, which must be one of those that the children wait for; None for a caller
    that is no task.
    """
    if not added.children:
        return
    children = {ids[label]: label for label in added.children}
    new = {new_task.task_id for new_task in new_tasks}
    edges = [(ids[parent], ids[child]) for parent, child in added.edges]
    locked = task_result.lock(uow.tx, sorted({*children, *(parent for parent, _ in edges if parent not in new)}))
    _check_waiting(uow, children, locked, by)
    _check_count(edges, children, locked, limits)
    if _may_close_a_cycle(edges, new_tasks, by):
        _check_cycles(uow, job_id, edges, ids, new_tasks)
    if edges:
        _store(uow, edges, locked)


def _check_waiting(
    uow: UnitOfWork, children: Mapping[int, str], locked: Mapping[int, TaskResult], by: int | None
) -> None:
    """Raise WrongState for tasks that might have started, or that do not wait for the task that asks."""
    running = edge.running_parents(uow.tx, sorted(children))
    waiting = {child for parent, child in running if by is None or parent == by}
    for task_id, label in children.items():
        if locked[task_id].state != WAITING:
            state = locked[task_id].state
            raise WrongState(f"the task {label} is {state}; only a task that is WAITING can get parents")
        if task_id not in waiting:
            whom = "a running task" if by is None else "this task"
            raise WrongState(f"the task {label} does not wait for {whom}; it might start at any time")


def _check_count(
    edges: Sequence[tuple[int, int]], children: Mapping[int, str], locked: Mapping[int, TaskResult], limits: Limits
) -> None:
    check = Checker(limits)
    num_new = Counter(child for _, child in edges)
    for task_id, label in children.items():
        count = locked[task_id].num_parents + num_new[task_id]
        if count > limits.parents:
            check.note_shown(("requires", label), f"{count} parents", f"at most {limits.parents}", "too_many")
    check.finish()


def _may_close_a_cycle(edges: Sequence[tuple[int, int]], new_tasks: Sequence[NewTask], by: int | None) -> bool:
    """Whether a new parent could be a descendant of its child. If so, all edges of the job have to be read.

    New parents that depend on new tasks and on ``by`` only cannot be: every child waits for ``by``.
    """
    new = {new_task.task_id for new_task in new_tasks}
    of_new_tasks = {parent for new_task in new_tasks for parent in new_task.parents}
    return not new.issuperset(parent for parent, _ in edges) or not of_new_tasks <= new | {by}


def _check_cycles(
    uow: UnitOfWork,
    job_id: int,
    edges: Sequence[tuple[int, int]],
    ids: Mapping[str, int],
    new_tasks: Sequence[NewTask],
) -> None:
    """Raise InvalidRequest if a new parent is a descendant of its child."""
    of_new_tasks = [(parent, new_task.task_id) for new_task in new_tasks for parent in new_task.parents]
    nodes = sorted({**jobs.labels(uow.tx, job_id), **ids}.items(), key=lambda item: item[1])
    index = {task_id: i for i, (_, task_id) in enumerate(nodes)}
    parents: list[set[int]] = [set() for _ in nodes]
    for parent, child in (*edge.of_job(uow.tx, job_id), *of_new_tasks, *edges):
        parents[index[child]].add(index[parent])
    ordered = [sorted(own) for own in parents]
    order = topological_order(ordered)
    if len(order) == len(nodes):
        return
    check = Checker()
    for cycle in find_cycles(ordered, order):
        labels = [nodes[i][0] for i in cycle]
        check.note_shown(("requires",), show_cycle(labels), "no cycle; each of these waits for the next", "cycle")
    check.finish()


def _store(uow: UnitOfWork, edges: Sequence[tuple[int, int]], locked: Mapping[int, TaskResult]) -> None:
    satisfied = [
        (parent, child, locked[parent].instance_id)
        for parent, child in edges
        if parent in locked and satisfies(locked[parent], resolves_all=bool(locked[child].resolves_all))
    ]
    edge.insert(uow.tx, edges)
    if satisfied:
        edge.complete(uow.tx, satisfied)
    num_new = Counter(child for _, child in edges)
    num_satisfied = Counter(child for _, child, _ in satisfied)
    task_result.set_parents(
        uow.tx,
        [
            (child, locked[child].num_parents + n, locked[child].num_succeeded_parents + num_satisfied[child])
            for child, n in sorted(num_new.items())
        ],
    )


def satisfies(parent: TaskResult, *, resolves_all: bool) -> bool:
    """Whether a parent in this state satisfies the edge to a child with this policy."""
    return parent.final if resolves_all else parent.state == SUCCEEDED
