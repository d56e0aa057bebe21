"""The outputs of tasks: written by the run that wins, copied by dedupe, erased before a task runs again.

An output is a value row that exists from submission on, with content once it is produced. A shared output also links a
shared value, which the job references. Every function here expects the job and the task to be locked.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Finish, TaskResult
from myrmidon.model.value import SharedValue, Value
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import delegate, shared_value, stored_file
from myrmidon.store.tables import value as values

_INLINE_LIMIT = 1024


class Produced(Struct, frozen=True):
    """The content of one output of an ended task: a shared value, or bytes of its own."""

    shared_value_id: int | None
    payload: Payload


class ReportedOutputs:
    """Checks and stores what the runs of one report have returned; the declared outputs are read once for all."""

    def __init__(self, uow: UnitOfWork, finished: Sequence[tuple[TaskResult, Finish]]) -> None:
        ids = sorted({task.id for task, _ in finished if uow.run_policy(task.id).num_outputs})
        delegated = sorted({task.id for task, item in finished if item.delegated})
        self.uow = uow
        self.stored = _stored_sizes(uow, finished)
        self.declared = values.outputs(uow.tx, ids) if ids else {}
        self.delegates = delegate.of_tasks(uow.tx, delegated) if delegated else {}

    def write(self, task: TaskResult, item: Finish) -> str:
        """Store the outputs of the winning run of a task; what is wrong with them, or an empty text.

        A task that runs again replaces the outputs of its last run: its children kept reading those until now.
        """
        declared = self.declared.get(task.id, [])
        problem = self._problem(task, item, declared)
        if not problem and not item.delegated:
            self._store(task, item, range(len(declared)))
        return problem

    def write_some(self, task: TaskResult, item: Finish) -> None:
        """Store the valid outputs of a run that has failed its task: a report about failed tests, for example.

        Children with the policy all-resolved read them. Outputs that the run has not written stay as they are.
        """
        stored = self.stored.get(task.resource_group_id, {})
        pairs = zip(self.declared.get(task.id, []), item.outputs, strict=False)
        valid = [
            position
            for position, (row, output) in enumerate(pairs)
            if row[3] == output.type and _is_valid(output.payload, stored)
        ]
        self._store(task, item, valid)

    def _store(self, task: TaskResult, item: Finish, positions: Iterable[int]) -> None:
        replaced = []
        for position in positions:
            kind, value_id, shared_id, type_string = self.declared[task.id][position]
            payload = item.outputs[position].payload
            if kind == values.SHARED:
                self._share(task, position, value_id, type_string, payload)
                replaced += [shared_id] if shared_id is not None else []
            else:
                self.uow.write_value(value_id, payload)
        if replaced and task.job_id is not None:
            _drop_references(self.uow, task.job_id, replaced)

    def _problem(self, task: TaskResult, item: Finish, declared: Sequence[values.OutputRow]) -> str:
        if item.delegated:
            if item.outputs:
                return "the run returned outputs although it has delegated them"
            return (
                "" if task.id in self.delegates or not declared else "no task of the job writes the delegated outputs"
            )
        wanted = [type_string for _, _, _, type_string in declared]
        given = [output.type for output in item.outputs]
        if wanted != given:
            return f"the run returned {_show_types(given)}, not {_show_types(wanted)}"
        stored = self.stored.get(task.resource_group_id, {})
        wrong = [number for number, output in enumerate(item.outputs) if not _is_valid(output.payload, stored)]
        return f"the output {wrong[0]} is neither at most {_INLINE_LIMIT} bytes nor a stored file" if wrong else ""

    def _share(self, task: TaskResult, position: int, value_id: int, type_string: str, payload: Payload) -> None:
        new_id = self.uow.new_id()
        shared_value.insert(self.uow.tx, [(new_id, value_id, type_string, payload, self.uow.now)])
        share_output(self.uow, task, position, value_id=value_id, shared_value_id=new_id)


def _stored_sizes(uow: UnitOfWork, finished: Sequence[tuple[TaskResult, Finish]]) -> dict[int, Mapping[str, int]]:
    """By resource group the sizes of those of the reported files that it has: bots store them first.

    Others must not be named: the outputs could show files of other groups to all who know their digests.
    """
    wanted: dict[int, set[str]] = {}
    for task, item in finished:
        for output in item.outputs:
            if output.payload.digest is not None:
                wanted.setdefault(task.resource_group_id, set()).add(output.payload.digest)
    return {
        group_id: stored_file.renew(uow.tx, sorted(digests), group_id, now=uow.now)
        for group_id, digests in sorted(wanted.items())
    }


def _show_types(types: Sequence[str]) -> str:
    return ", ".join(types)[:1000] or "nothing"


def _is_valid(payload: Payload, stored: Mapping[str, int]) -> bool:
    """Whether a payload is either inline and small, or a stored file with its size; not both and not neither."""
    if payload.inline is not None:
        return payload.digest is None and payload.size == len(payload.inline) and payload.size <= _INLINE_LIMIT
    return payload.digest is not None and stored.get(payload.digest) == payload.size


def share_output(uow: UnitOfWork, task: TaskResult, position: int, *, value_id: int, shared_value_id: int) -> None:
    """Link an output position and its consumers to a shared value, and let the job reference the value."""
    if task.job_id is None:
        return
    shared_value.ref_by_job(uow.tx, [shared_value_id], task.job_id)
    values.link_output(uow.tx, task.id, position, shared_value_id)
    values.link_consumers(uow.tx, task.id, value_id, shared_value_id)


def _drop_references(uow: UnitOfWork, job_id: int, shared_ids: Iterable[int]) -> None:
    """Drop the job's references to shared values that none of its inputs and outputs names any more."""
    ids = sorted(set(shared_ids))
    shared_value.lock(uow.tx, ids)
    if not ids:
        return
    named = values.shared_values_named(uow.tx, job_id, ids)
    if unnamed := [i for i in ids if i not in named]:
        shared_value.unref_by_job(uow.tx, unnamed, job_id)
        shared_value.delete_unreferenced(uow.tx, unnamed)


# ---------------------------------------------------------------- dedupe


def read_produced(uow: UnitOfWork, task_ids: Iterable[int]) -> dict[int, list[Produced]]:
    """The outputs of ended tasks, as far as they are complete; a task without outputs has an empty list.

    The tasks may belong to other jobs and are not locked: one of them may be deleted or run again meanwhile, and is
    missing then. Shared values are locked and files are renewed, so that the caller may reference them.
    """
    ids = sorted(set(task_ids))
    outputs = values.outputs(uow.tx, ids)
    shared_ids = sorted({shared_id for rows in outputs.values() for _, _, shared_id, _ in rows if shared_id})
    shared = shared_value.lock(uow.tx, shared_ids) if shared_ids else {}
    own_ids = sorted({value_id for rows in outputs.values() for kind, value_id, _, _ in rows if kind == values.VALUE})
    own = values.read(uow.tx, own_ids) if own_ids else {}
    kept = _renew_files(uow, [*shared.values(), *own.values()])
    found: dict[int, list[Produced]] = {}
    for task_id in ids:
        produced = [_produced(row, own, shared) for row in outputs.get(task_id, [])]
        complete = [one for one in produced if one is not None and one.payload.digest in kept]
        if len(complete) == len(produced):
            found[task_id] = complete
    return found


def _renew_files(uow: UnitOfWork, several: Iterable[Value | SharedValue]) -> set[str | None]:
    """Keep the files of values from being deleted with their jobs; the digests that are kept, and None for no file."""
    digests = sorted({value.digest for value in several if value.digest is not None})
    return {None, *(stored_file.renew_for_all(uow.tx, digests, now=uow.now) if digests else ())}


def _produced(
    row: values.OutputRow,
    own: Mapping[int, Value],
    shared: Mapping[int, SharedValue],
) -> Produced | None:
    kind, value_id, shared_id, _ = row
    value = shared.get(shared_id or 0) if kind == values.SHARED else own.get(value_id)
    if value is None or value.size is None:
        return None
    payload = Payload(inline=value.payload, digest=value.digest, size=value.size)
    return Produced(shared_id if kind == values.SHARED else None, payload)


def copy_outputs(
    uow: UnitOfWork, task: TaskResult, own: Sequence[values.OutputRow], produced: Sequence[Produced]
) -> None:
    """Give a task the outputs of an equal one; ``own`` are the outputs that it declares."""
    for position, ((_, value_id, _, _), earlier) in enumerate(zip(own, produced, strict=True)):
        if earlier.shared_value_id is not None:
            share_output(uow, task, position, value_id=value_id, shared_value_id=earlier.shared_value_id)
        else:
            uow.write_value(value_id, earlier.payload)


# ---------------------------------------------------------------- running again


def erase_outputs(uow: UnitOfWork, job_id: int, task_ids: Sequence[int]) -> None:
    """Erase the outputs of tasks of a job; shared values lose the reference of the job."""
    outputs_by_task = values.outputs(uow.tx, task_ids)
    unshared = [value_id for rows in outputs_by_task.values() for kind, value_id, _, _ in rows if kind == values.VALUE]
    if unshared:
        values.erase(uow.tx, unshared)
    unlinked = []
    for task_id, rows in outputs_by_task.items():
        for position, (_, value_id, shared_id, _) in enumerate(rows):
            if shared_id is not None:
                values.link_output(uow.tx, task_id, position, None)
                values.link_consumers(uow.tx, task_id, value_id, None)
                unlinked.append(shared_id)
    if unlinked:
        _drop_references(uow, job_id, unlinked)
