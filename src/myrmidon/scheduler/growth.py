"""What an extension changes on tasks that its job already has: parents, parts of inputs, and who writes outputs.

See added_parents.py and added_parts.py. Everything here is one transaction with the new tasks.

A running task may let tasks that it adds to its job, its delegates, write its outputs:

    {"tasks": {"more": {...}}, "delegates": {"more": "self"}}

The outputs of both tasks are the same values, so nothing is copied. The delegate starts when the task that has added it
has succeeded, and every task that waits for that one waits for the delegate too. A task which is added later and reads
those outputs gets the delegates as parents.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model.ids import show_task
from myrmidon.model.job import Graph
from myrmidon.model.limits import Limits
from myrmidon.model.task_request import TaskRequest, labels_of_inputs
from myrmidon.model.validation import Checker
from myrmidon.scheduler.added_parents import AddedParents, find_new_edges, read_added_parents, store_added_parents
from myrmidon.scheduler.added_parts import AddedPart, check_parts, find_new_parts, read_added_parts, store_parts
from myrmidon.scheduler.new_task import NewTask
from myrmidon.scheduler.submit_job import output_slots
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import delegate, edge
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import WHOLE
from myrmidon.store.tables.value import OutputRow


class Growth(Struct, frozen=True, kw_only=True):
    """The changes that the job does not have yet. ``wanted``: whether the document asks for any."""

    wanted: bool
    edges: list[tuple[str, str]] = []
    parts: list[AddedPart] = []
    delegates: list[str] = []
    by: int | None = None
    delegator: str | None = None
    """The label of ``by``, if it delegates its outputs."""

    @property
    def is_empty(self) -> bool:
        return not (self.edges or self.parts or self.delegates)

    @property
    def labels_read(self) -> set[str]:
        """The labels of tasks whose outputs must be known."""
        own = [self.delegator] if self.delegator is not None else []
        return {*own, *(one.part.label for one in self.parts)}


def read_growth(
    uow: UnitOfWork,
    check: Checker,
    raw: object,
    existing: Mapping[str, tuple[int, str]],
    new_labels: Sequence[str],
    by: int | None,
) -> Growth:
    """Read the fields of an extension that change existing tasks, and leave out what the job has; problems are noted.

    ``by``: the running task that asks for the extension; None for a caller that is no task.
    """
    requires = read_added_parents(check, raw, existing, new_labels)
    parts = read_added_parts(check, raw, existing, new_labels)
    delegates = read_delegates(check, raw, existing, new_labels, by)
    wanted = bool(requires or parts or delegates)
    if check.problems or not wanted:
        return Growth(wanted=wanted)
    new_delegates = find_new_delegates(uow, check, delegates, existing, by)
    edges = [(parent, child) for child, parents in requires.items() for parent in parents]
    edges += [(one.part.label, one.child) for one in parts]
    if new_delegates and by is not None:
        waiting = set(edge.waiting_children(uow.tx, by))
        children = [label for label, (task_id, _) in existing.items() if task_id in waiting]
        edges += [(label, child) for label in new_delegates for child in children]
    return Growth(
        wanted=True,
        edges=find_new_edges(uow, edges, existing),
        parts=find_new_parts(uow, parts, existing),
        delegates=new_delegates,
        by=by,
        delegator=next(label for label, (i, _) in existing.items() if i == by) if new_delegates else None,
    )


def check_growth(
    uow: UnitOfWork,
    check: Checker,
    growth: Growth,
    graph: Graph,
    *,
    ids: Mapping[str, int],
    outputs: Mapping[str, Sequence[OutputRow]],
) -> None:
    """Raise InvalidRequest for parts and delegates of wrong types. ``outputs`` are those of existing tasks."""
    types: dict[str, list[str]] = {label: [kind for _, _, _, kind in rows] for label, rows in outputs.items()}
    requests = {node.label: node.request for node in graph.nodes}
    types.update({label: [output.type for output in request.outputs] for label, request in requests.items()})
    check_parts(uow, check, growth.parts, ids=ids, output_types=types)
    if growth.delegator is not None:
        check_types(check, growth.delegates, requests, outputs[growth.delegator])
    check.finish()


def further_parents(
    uow: UnitOfWork, growth: Growth, graph: Graph, *, ids: Mapping[str, int], read: Mapping[str, object]
) -> dict[str, set[int]]:
    """By label of a new task the parents that it has besides those in the document.

    A delegate starts after the task that it writes for. A task that reads outputs waits for all who may write them.
    """
    requests = [(node.label, node.request) for node in graph.nodes]
    found = {
        label: set(parents)
        for label, parents in delegates_read(uow, {label: ids[label] for label in read}, requests).items()
        if parents
    }
    for label in growth.delegates:
        found.setdefault(label, set()).add(growth.by or 0)
    new = {ids[label] for label in growth.delegates}
    for label, request in requests:
        if new and label not in growth.delegates and growth.delegator in labels_of_inputs(request):
            found.setdefault(label, set()).update(new)
    return found


def store_growth(
    uow: UnitOfWork,
    job_id: int,
    growth: Growth,
    *,
    ids: Mapping[str, int],
    new_tasks: Sequence[NewTask],
    limits: Limits,
) -> None:
    """Check and store the changes of existing tasks; the new tasks are stored."""
    added = AddedParents(growth.edges, [one.child for one in growth.parts])
    store_added_parents(uow, job_id, added, ids=ids, new_tasks=new_tasks, limits=limits, by=growth.by)
    if growth.parts:
        producers = {one.part.label: ids[one.part.label] for one in growth.parts}
        outputs = values.outputs(uow.tx, sorted(set(producers.values())))
        slots = output_slots({label: outputs.get(task_id, []) for label, task_id in producers.items()})
        store_parts(uow, growth.parts, ids=ids, produced=slots)
    if growth.by is not None:
        store_delegates(uow, growth.by, [ids[label] for label in growth.delegates])


# ---------------------------------------------------------------- delegates


def read_delegates(
    check: Checker,
    raw: object,
    existing: Mapping[str, tuple[int, str]],
    new_labels: Sequence[str],
    by: int | None,
) -> list[str]:
    """The labels in the field ``delegates`` of an extension; problems are noted. ``by``: the task that asks for it."""
    if not isinstance(raw, dict) or raw.get("delegates") is None:
        return []
    given = check.mapping(raw, "delegates", (), WHOLE)
    for label, own in given.items():
        path = ("delegates", label)
        if label not in existing and label not in new_labels:
            check.note(path, label, "the label of a task that this call adds", "unknown_label")
        elif by is None:
            check.note(path, own, "nothing: only a running task can delegate its outputs", "no_run")
        elif not isinstance(own, str) or own not in existing or existing[own][0] != by:
            check.note(path, own, f"the label of the task that calls, {show_task(by)}", "not_own")
    return list(given)


def find_new_delegates(
    uow: UnitOfWork, check: Checker, wanted: Sequence[str], existing: Mapping[str, tuple[int, str]], by: int | None
) -> list[str]:
    """Those of the delegates that the task ``by`` does not have yet; they must be tasks that this call adds."""
    if not wanted or by is None:
        return []
    has = delegate.of_tasks(uow.tx, [by]).get(by, [])
    found = [label for label in wanted if label not in existing or existing[label][0] not in has]
    for label in found:
        if label in existing:
            check.note(("delegates", label), label, "a task that this call adds; the job has it already", "not_new")
    return found


def check_types(
    check: Checker, delegates: Sequence[str], requests: Mapping[str, TaskRequest], own: Sequence[OutputRow]
) -> None:
    """Note delegates whose outputs are not those of the task that delegates."""
    wanted = [type_string for _, _, _, type_string in own]
    for label in delegates:
        path = ("delegates", label)
        given = [output.type for output in requests[label].outputs]
        if given != wanted:
            rule = f"the outputs of the task that calls: {', '.join(wanted) or 'none'}"
            check.note_shown(path, ", ".join(given) or "no outputs", rule, "type_mismatch")
        elif any(kind == values.SHARED for kind, _, _, _ in own):
            check.note_shown(path, "shared outputs", "outputs that are not shared", "shared")


def store_delegates(uow: UnitOfWork, by: int, delegates: Sequence[int]) -> None:
    """Store who writes the outputs of ``by``, and of the tasks whose delegate it is itself."""
    if delegates:
        tasks = [by, *delegate.delegated_by(uow.tx, by)]
        delegate.insert(uow.tx, [(task_id, new) for task_id in tasks for new in delegates])


def delegates_read(
    uow: UnitOfWork, labels: Mapping[str, int], requests: Sequence[tuple[str, TaskRequest]]
) -> dict[str, list[int]]:
    """By label of a new task the delegates that it has to wait for, because it reads outputs that they write."""
    written = delegate.of_tasks(uow.tx, sorted(set(labels.values()))) if labels else {}
    if not written:
        return {}
    return {
        label: sorted(
            {one for read in labels_of_inputs(request) if read in labels for one in written.get(labels[read], ())}
        )
        for label, request in requests
    }
