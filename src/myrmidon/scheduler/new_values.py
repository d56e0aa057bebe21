"""The values of new tasks: their constants, the outputs that they will write, and which outputs they read.

An input that another task produces names the same value as the output, so that nothing is copied. A gathered input has
a value of its own, its shape, and its parts name the values of the outputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from hmac import compare_digest

from myrmidon.model.errors import InvalidRequest, Problem, UnknownFile, UnknownValue
from myrmidon.model.ids import Micros, show_task
from myrmidon.model.keyed_hash import token_hash
from myrmidon.model.task_request import (
    Constant,
    Function,
    Gathered,
    Input,
    OutputOf,
    Part,
    Payload,
    Shared,
    TaskRequest,
    stored_environment,
)
from myrmidon.scheduler.new_task import NewTask, OutputSlot
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job_code, shared_value, stored_file, task_run
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import WHOLE

_NO_SHAPE = Payload(inline=b"", size=0)
"""The shape of a gathered input that is a list of its parts. It is no msgpack, so no shape is equal to it."""


# ---------------------------------------------------------------- checking


def check_shared(
    uow: UnitOfWork, group_id: int, new_tasks: Iterable[NewTask]
) -> dict[int, UnknownValue | InvalidRequest]:
    """Check that this group may read the shared inputs and that their types match; returns errors by task id."""
    wanted = [
        (new_task.task_id, given)
        for new_task in new_tasks
        for given in new_task.request.inputs
        if isinstance(given, Shared)
    ]
    if not wanted:
        return {}
    ids = sorted({given.shared_value_id for _, given in wanted})
    found = shared_value.lock(uow.tx, ids)
    allowed = shared_value.referenced_by_group(uow.tx, ids, group_id) | shared_value.referenced_in_group(
        uow.tx, ids, group_id
    )
    refused: dict[int, UnknownValue | InvalidRequest] = {}
    for task_id, given in wanted:
        value = found.get(given.shared_value_id)
        if value is None or value.id not in allowed:
            refused[task_id] = UnknownValue([show_task(given.shared_value_id)])
        elif value.type != given.type:
            problem = Problem("inputs", given.type, f"{value.type}, the type of the shared value", "type")
            refused[task_id] = InvalidRequest([problem])
    return refused


def missing_files(
    uow: UnitOfWork, group_id: int, requests: Iterable[TaskRequest], further: Iterable[str] = ()
) -> list[str]:
    """The digests of files that requests need and that their group has not stored, and of ``further`` ones.

    These are the code and the environments of functions, and constants and shapes that are too large to be inline.
    """
    codes: set[str] = set(further)
    sizes: dict[str, int] = {}
    for request in requests:
        codes.update(_files_of(request.function))
        for given in request.inputs:
            payload = _payload_of(given)
            if payload is not None and payload.digest is not None:
                sizes[payload.digest] = payload.size
    if not codes and not sizes:
        return []
    return check_files(uow.tx, group_id, codes | sizes.keys(), now=uow.now, sizes=sizes)


def require_files(uow: UnitOfWork, group_id: int, requests: Iterable[TaskRequest], further: Iterable[str] = ()) -> None:
    """Raise UnknownFile if the group has not stored a file that these requests need, or one of ``further``."""
    missing = missing_files(uow, group_id, requests, further)
    if missing:
        raise UnknownFile(missing)


def check_lone_functions(uow: UnitOfWork, group_id: int, new_tasks: Iterable[NewTask]) -> dict[int, UnknownFile]:
    """Check that the files of functions exist, one by one; returns errors by task id."""
    functions = [new_task for new_task in new_tasks if new_task.request.function is not None]
    missing = {new_task.task_id: missing_files(uow, group_id, [new_task.request]) for new_task in functions}
    return {task_id: UnknownFile(digests) for task_id, digests in missing.items() if digests}


def _files_of(function: Function | None) -> list[str]:
    """The digests of the code and of the environment of a function."""
    if function is None:
        return []
    return [digest for digest in (function.code, stored_environment(function)) if digest]


def _payload_of(given: Input) -> Payload | None:
    if isinstance(given, Constant):
        return given.payload
    return given.shape if isinstance(given, Gathered) else None


# ---------------------------------------------------------------- storing


def store_values(
    uow: UnitOfWork, job_id: int, tasks: Sequence[NewTask], produced: Mapping[str, Sequence[OutputSlot]]
) -> None:
    """Create a value for every output and constant of new tasks of a job, and link inputs to the values they read.

    ``produced`` are the outputs of tasks that the job already has, by label.
    """
    codes = {digest for task in tasks for digest in _files_of(task.request.function)}
    if codes:
        job_code.insert(uow.tx, job_id, codes)
    writer = _ValueWriter(uow, job_id, dict(produced))
    for task in tasks:
        writer.add_outputs(task)
    for task in tasks:
        writer.add_inputs(task)
    writer.store()
    readers = {row[0] for row in writer.input_rows if row[2] == values.SHARED}
    uow.keep_shared_readers([task.task_id for task in tasks], readers)


class _ValueWriter:
    """Collects the value rows of many tasks, to be inserted together."""

    def __init__(self, uow: UnitOfWork, job_id: int, produced: dict[str, Sequence[OutputSlot]]) -> None:
        self.uow = uow
        self.job_id = job_id
        self.produced = produced
        self.rows: list[tuple[int, int, str, bytes | None, str | None, int | None]] = []
        self.input_rows: list[values.InputRow] = []
        self.part_rows: list[values.PartRow] = []
        self.output_rows: list[tuple[int, int, str, int | None, int | None]] = []
        self.refs: set[int] = set()

    def add_outputs(self, task: NewTask) -> None:
        slots = task.writes_for
        if slots is None:
            slots = [OutputSlot(self._value(output.type, None), output.shared) for output in task.request.outputs]
        for position, slot in enumerate(slots):
            kind = values.SHARED if slot.shared else values.VALUE
            self.output_rows.append((task.task_id, position, kind, slot.value_id, None))
        if task.label is not None:
            self.produced[task.label] = slots

    def add_inputs(self, task: NewTask) -> None:
        for position, given in enumerate(task.request.inputs):
            match given:
                case Constant(type=kind, payload=payload):
                    self._add_input(task, position, self._value(kind, payload))
                case Shared(shared_value_id=shared):
                    self.input_rows.append((task.task_id, position, values.SHARED, None, shared, None))
                    self.refs.add(shared)
                case OutputOf(label=label, position=at):
                    source = self.produced[label][at]
                    kind = values.SHARED if source.shared else values.VALUE
                    row = (task.task_id, position, kind, source.value_id, source.shared_value_id, None)
                    self.input_rows.append(row)
                case Gathered(type=kind, parts=parts, shape=shape):
                    self._add_input(task, position, self._value(kind, shape or _NO_SHAPE), len(parts))
                    self.part_rows += part_rows(task.task_id, position, 0, parts, self.produced)

    def _add_input(self, task: NewTask, position: int, value_id: int, num_parts: int | None = None) -> None:
        self.input_rows.append((task.task_id, position, values.VALUE, value_id, None, num_parts))

    def _value(self, kind: str, content: Payload | None) -> int:
        value_id = self.uow.new_id()
        stored = (content.inline, content.digest, content.size) if content is not None else (None, None, None)
        self.rows.append((value_id, self.job_id, kind, *stored))
        return value_id

    def store(self) -> None:
        if self.rows:
            values.insert(self.uow.tx, self.rows)
        if self.input_rows:
            values.insert_inputs(self.uow.tx, self.input_rows)
        if self.output_rows:
            values.insert_outputs(self.uow.tx, self.output_rows)
        if self.part_rows:
            values.insert_parts(self.uow.tx, self.part_rows)
        if self.refs:
            shared_value.ref_by_job(self.uow.tx, sorted(self.refs), self.job_id)


def part_rows(
    task_id: int, position: int, first: int, parts: Sequence[Part], produced: Mapping[str, Sequence[OutputSlot]]
) -> list[values.PartRow]:
    """The rows of parts of a gathered input, numbered from ``first`` on."""
    slots = [produced[part.label][part.position] for part in parts]
    return [
        (task_id, position, number, slot.value_id, slot.shared_value_id) for number, slot in enumerate(slots, first)
    ]


# ---------------------------------------------------------------- files


def check_files(
    tx: Tx, group_id: int, digests: Iterable[str], *, now: Micros, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Those of the digests that the group has not stored, sorted. The others are renewed.

    ``sizes`` are what a request says of some of them: a file of another size counts as not stored. To be called in the
    transaction that stores the references: otherwise the files may be deleted before it commits.
    """
    wanted = sorted(set(digests))
    found: dict[str, int] = {}
    for start in range(0, len(wanted), WHOLE):
        found.update(stored_file.renew(tx, wanted[start : start + WHOLE], group_id, now=now))
    said = sizes or {}
    return [digest for digest in wanted if digest not in found or said.get(digest, found[digest]) != found[digest]]


def group_of_live_run(tx: Tx, bot_id: str, task_id: int, run: int, *, token: str) -> int | None:
    """The resource group of a run that has not ended; None if it has, or is not this bot's, or has another token."""
    for found in task_run.read(tx, [task_id]):
        if found.run == run and found.bot_id == bot_id and found.ended_at is None:
            return found.resource_group_id if compare_digest(found.token_hash, token_hash(token)) else None
    return None
