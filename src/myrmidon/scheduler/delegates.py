"""Delegates: a running task lets a task that it adds to its job write its outputs.

    {"tasks": {"more": {...}}, "delegates": {"more": "self"}}

The outputs of both tasks are the same values, so nothing is copied. The delegate starts when the task that has added it
has succeeded, and every task that waits for that one waits for the delegate too. A task which is added later and reads
those outputs gets the delegates as parents.
"""

from collections.abc import Mapping, Sequence

from myrmidon.model.ids import show_task
from myrmidon.model.task_request import TaskRequest, labels_of_inputs
from myrmidon.model.validation import Checker
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import delegate
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import WHOLE
from myrmidon.store.tables.value import OutputRow


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
