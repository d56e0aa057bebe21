"""Plans: tasks on their way into the store.

Whatever brings tasks into being, alone, in a job or by extending one, makes
new_tasks and lets ``store_plans`` write them: request, slices, tags, secret, values,
edges and the first state, each table in one go.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, json, structs

from myrmidon.model import dimensions
from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import Micros, show_task
from myrmidon.model.job import RequiresPolicy
from myrmidon.model.states import TaskState
from myrmidon.model.task_request import (
    Constant,
    OutputOf,
    Shared,
    TaskRequest,
    automatic_tags,
    properties_row,
)
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.sql import Row
from myrmidon.store.tables import edge, pool_order, resource_group, shared_value, task_queues, task_request, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import value as values
from myrmidon.store.tables.resource_group import ResourceGroup
from myrmidon.store.tables.task_queues import Queue
from myrmidon.store.tables.task_request import RequestRow, SliceRow

_TOUCH_AFTER: Micros = 3600 * SECOND
_encode = json.Encoder().encode


class NewTask(Struct, kw_only=True, gc=False):
    """One task to be stored. ``parents`` are its distinct parents, ``satisfied`` those already done."""

    task_id: int
    request: TaskRequest
    authenticated: str
    deadline_at: Micros
    job_id: int | None = None
    insertion: int | None = None
    label: str | None = None
    definition_hash: str = ""
    parents: Sequence[int] = ()
    satisfied: Sequence[tuple[int, int | None]] = ()
    policy: RequiresPolicy = RequiresPolicy.ALL_SUCCEEDED
    hold: bool = False
    user: str = ""
    root: int | None = None
    tags: Sequence[str] = ()


class OutputSlot(Struct, frozen=True):
    """One output position of a task: the value it writes, whether that is shared, and as what once it is."""

    value_id: int
    shared: bool
    shared_value_id: int | None = None


def open_group(uow: UnitOfWork, group_id: int) -> ResourceGroup:
    """The resource group that new things enter; it must exist and stay."""
    group = resource_group.lock_shared(uow.tx, group_id)
    if group is None:
        raise NotFound("resource group", str(group_id))
    if group.deleting:
        raise WrongState(f"the resource group {group.external_id} is being deleted; use another one")
    return group


def check_parents(uow: UnitOfWork, group_id: int, new_tasks: Iterable[NewTask]) -> dict[int, NotFound | WrongState]:
    """Tie tasks to the running tasks that triggered them; which of them cannot be, and why.

    Another group's task is not there for this one: nobody takes over its user, nor learns that it runs.
    """
    triggered = [new_task for new_task in new_tasks if new_task.request.parent is not None]
    if not triggered:
        return {}
    wanted = sorted({new_task.request.parent[0] for new_task in triggered if new_task.request.parent})
    parents = task_result.lock(uow.tx, wanted)
    requests = task_request.read(uow.tx, wanted)
    refused: dict[int, NotFound | WrongState] = {}
    for new_task in triggered:
        task_id, run = new_task.request.parent or (0, 0)
        parent = parents.get(task_id)
        if parent is None or parent.resource_group_id != group_id:
            refused[new_task.task_id] = NotFound("parent task", show_task(task_id))
        elif parent.state != TaskState.RUNNING or not 0 < run <= parent.run_number:
            refused[new_task.task_id] = WrongState(
                f"the parent task {show_task(task_id)} is not running (it is {parent.state}); only a running task "
                "can trigger others"
            )
        else:
            new_task.user = requests[task_id].user_name
            new_task.root = requests[task_id].root_task_id or task_id
    return refused


def _count_children(uow: UnitOfWork, new_tasks: Iterable[NewTask]) -> None:
    """Tell the tasks that triggered these how many they have; ``check_parents`` has locked them."""
    born: dict[int, int] = {}
    for new_task in new_tasks:
        if new_task.request.parent is not None:
            born[new_task.request.parent[0]] = born.get(new_task.request.parent[0], 0) + 1
    for task_id, n in sorted(born.items()):
        task_result.count_children(uow.tx, task_id, n)


def check_shared(uow: UnitOfWork, group_id: int, new_tasks: Iterable[NewTask]) -> dict[int, Forbidden | InvalidRequest]:
    """See that shared inputs may be read by this group and have the types the tasks expect."""
    wanted = [
        (new_task, given) for new_task in new_tasks for given in new_task.request.inputs if isinstance(given, Shared)
    ]
    if not wanted:
        return {}
    ids = sorted({given.shared_value_id for _, given in wanted})
    found = shared_value.lock(uow.tx, ids)
    allowed = shared_value.referenced_by_group(uow.tx, ids, group_id) | shared_value.referenced_in_group(
        uow.tx, ids, group_id
    )
    refused: dict[int, Forbidden | InvalidRequest] = {}
    for new_task, given in wanted:
        value = found.get(given.shared_value_id)
        if value is None or value.id not in allowed:
            refused[new_task.task_id] = Forbidden(
                f"this resource group does not reference the shared value {given.shared_value_id}; reference it first"
            )
        elif value.type != given.type:
            problem = Problem("inputs", given.type, f"{value.type}, the type of the shared value", "type")
            refused[new_task.task_id] = InvalidRequest([problem])
    return refused


# ---------------------------------------------------------------- queues


def find_queues(uow: UnitOfWork, group_id: int, wanted: Iterable[str]) -> dict[str, int]:
    """The queue of each set of dimensions; a new set gets one, matched to the living bots at once."""
    sets = sorted(set(wanted))
    hashes = {text: dimensions.digest(text) for text in sets}
    found = _equal(task_queues.find(uow.tx, group_id, sorted(set(hashes.values()))), hashes)
    stale = [q.id for q in found.values() if q.used_at < uow.now - _TOUCH_AFTER]
    if stale and task_queues.touch(uow.tx, stale, uow.now) != len(stale):
        found = _equal(task_queues.find(uow.tx, group_id, sorted(set(hashes.values()))), hashes)
    missing = [text for text in sets if text not in found]
    if missing:
        found.update(_make_queues(uow, group_id, {text: hashes[text] for text in missing}))
    uow.keep_queues(found.values())
    return {text: queue.id for text, queue in found.items()}


def _equal(queues: Sequence[Queue], wanted: Mapping[str, str]) -> dict[str, Queue]:
    """Queues whose full set is wanted: a hash proves nothing."""
    return {queue.dimensions: queue for queue in queues if queue.dimensions in wanted}


def _make_queues(uow: UnitOfWork, group_id: int, missing: Mapping[str, str]) -> dict[str, Queue]:
    """Make queues under their pools' locks, so that a bot on its way in sees them or is seen by them."""
    pools = {text: dimensions.pool_of(text) for text in missing}
    pool_order.lock_pools(uow.tx, pools.values())
    known = task_queues.find(uow.tx, group_id, sorted(set(missing.values())))
    made = _equal(known, missing)
    for text, hashed in missing.items():
        if text in made:
            continue
        probe = 1 + max((q.probe for q in known if q.hash == hashed), default=-1)
        queue = Queue(uow.new_id(), hashed, probe, group_id, pools[text], text, uow.now)
        task_queues.insert(uow.tx, queue)
        task_queues.match_queue(uow.tx, queue)
        known.append(queue)
        made[text] = queue
    return made


# ---------------------------------------------------------------- storing


def store_new_tasks(
    uow: UnitOfWork,
    group_id: int,
    new_tasks: Sequence[NewTask],
    *,
    produced: Mapping[str, Sequence[OutputSlot]] | None = None,
    staged: bool = False,
) -> list[TaskResult]:
    """Write everything about new tasks but their fate: they are WAITING, and the caller lets them go on.

    ``produced`` are the outputs of tasks that the job already has, by label.
    """
    wants = {p.task_id: [dimensions.canonical(s.properties.dimensions) for s in p.request.slices] for p in new_tasks}
    queues = find_queues(uow, group_id, (text for texts in wants.values() for text in texts))
    requests: list[Row] = []
    task_slices: list[Row] = []
    for new_task in new_tasks:
        texts = wants[new_task.task_id]
        requests.append(_request_row(uow, group_id, new_task))
        task_slices += _slice_rows(uow, new_task, [queues[text] for text in texts])
    _count_children(uow, new_tasks)
    _store_requests(uow, new_tasks, requests, task_slices)
    _store_values(uow, new_tasks, dict(produced or {}))
    _store_edges(uow, new_tasks)
    tasks = [_waiting_task(uow, group_id, new_task) for new_task in new_tasks]
    if staged:
        task_result.insert_staged(uow.tx, tasks)
        return tasks
    for task in tasks:
        uow.add(task)
    return tasks


def _request_row(uow: UnitOfWork, group_id: int, new_task: NewTask) -> Row:
    """The row of a request; the rest of the uow knows it as well."""
    r = new_task.request
    new_task.tags = automatic_tags(structs.replace(r, user=new_task.user) if new_task.user else r)
    function = r.function
    row = (
        new_task.task_id,
        group_id,
        r.external_id,
        new_task.job_id,
        new_task.insertion,
        function.package_name if function else None,
        function.func_name if function else None,
        function.language if function else None,
        r.name,
        uow.now,
        new_task.authenticated,
        new_task.user or r.user,
        r.priority,
        r.service_account,
        r.parent[0] if r.parent else None,
        r.parent[1] if r.parent else None,
        new_task.root,
        int(r.detached),
        r.retries,
        r.reruns,
        r.max_instances,
        r.soft_timeout_s * SECOND if r.soft_timeout_s is not None else None,
        r.lease_s * SECOND,
        new_task.deadline_at,
        new_task.policy,
        r.routing,
        _encode(new_task.tags).decode(),
        _encode(r.metadata).decode() if r.metadata else "{}",
    )
    uow.requests[new_task.task_id] = RequestRow(*row)
    return row


def _slice_rows(uow: UnitOfWork, new_task: NewTask, queues: Sequence[int]) -> list[Row]:
    """The rows of its slices, likewise."""
    r = new_task.request
    promised = [f"{output.type} {int(output.shared)}" for output in r.outputs] if r.outputs else ()
    secret = hmac.digest(uow.rules.secret_key, r.secret_bytes, "sha256") if r.secret_bytes is not None else None
    rows: list[Row] = []
    for number, (task_slice, queue) in enumerate(zip(r.slices, queues, strict=True)):
        text, digest = properties_row(
            task_slice.properties, secret_hmac=secret, function=r.function, input_digests=promised
        )
        waits, idempotent = int(task_slice.wait_for_capacity), int(task_slice.properties.idempotent)
        rows.append(
            (new_task.task_id, number, queue, task_slice.expiration_s * SECOND, waits, idempotent, digest, text)
        )
    uow.slices[new_task.task_id] = [SliceRow(*row) for row in rows]
    return rows


def _store_requests(
    uow: UnitOfWork, new_tasks: Sequence[NewTask], requests: Sequence[Row], task_slices: Sequence[Row]
) -> None:
    task_request.insert(uow.tx, requests)
    task_request.insert_slices(uow.tx, task_slices)
    task_request.insert_tags(uow.tx, [(tag, new_task.task_id) for new_task in new_tasks for tag in new_task.tags])
    secrets = [(p.task_id, p.request.secret_bytes) for p in new_tasks if p.request.secret_bytes is not None]
    if secrets:
        task_request.insert_secrets(uow.tx, secrets)


def _store_edges(uow: UnitOfWork, new_tasks: Sequence[NewTask]) -> None:
    edges = [(parent, new_task.task_id) for new_task in new_tasks for parent in new_task.parents]
    if edges:
        edge.insert(uow.tx, edges)
    met = [(parent, new_task.task_id, run) for new_task in new_tasks for parent, run in new_task.satisfied]
    if met:
        edge.complete(uow.tx, met)
    labels = [(p.job_id, p.label, p.task_id, p.definition_hash) for p in new_tasks if p.job_id and p.label is not None]
    if labels:
        jobs.insert_labels(uow.tx, labels)


def _waiting_task(uow: UnitOfWork, group_id: int, new_task: NewTask) -> TaskResult:
    """A task that waits."""
    return TaskResult(
        id=new_task.task_id,
        job_id=new_task.job_id,
        resource_group_id=group_id,
        state=TaskState.WAITING,
        seq=0,
        generation=1,
        held=int(new_task.hold),
        killing=0,
        forced=0,
        resolves_all=int(new_task.policy == RequiresPolicy.ALL_RESOLVED),
        plain=_is_plain(new_task.request),
        num_parents=len(new_task.parents),
        num_succeeded_parents=len(new_task.satisfied),
        num_children=0,
        num_retries=0,
        num_reruns=0,
        run_number=0,
        instance_id=None,
        current_task_slice=0,
        bot_id=None,
        reason="",
        deduped_from=None,
        deduped_run=None,
        cost_saved_usd=None,
        ready_at=None,
        started_at=None,
        completed_at=None,
        abandoned_at=None,
        modified_at=uow.now,
        alarm_at=new_task.deadline_at,
    )


def _is_plain(request: TaskRequest) -> int:
    if request.function is not None or request.max_instances > 1 or request.secret_bytes is not None:
        return 0
    for task_slice in request.slices:
        if task_slice.properties.idempotent:
            return 0
    return 1


# ---------------------------------------------------------------- values


def _store_values(uow: UnitOfWork, new_tasks: Sequence[NewTask], produced: dict[str, Sequence[OutputSlot]]) -> None:
    """Allocate a value for every output and constant, and point inputs to the values they read."""
    functions = [
        new_task for new_task in new_tasks if new_task.request.function is not None and new_task.job_id is not None
    ]
    if not functions:
        return
    job_id = functions[0].job_id or 0
    writer = _ValueWriter(uow, job_id)
    for new_task in functions:
        made = writer.outputs(new_task)
        if new_task.label is not None:
            produced[new_task.label] = made
    for new_task in functions:
        writer.inputs(new_task, produced)
    writer.store()


class _ValueWriter:
    """Gathers the rows of many tasks' values."""

    def __init__(self, uow: UnitOfWork, job_id: int) -> None:
        self.uow = uow
        self.job_id = job_id
        self.next_data_id = values.last_data_id(uow.tx, job_id) + 1
        self.rows: list[tuple[int, int, int, str, bytes | None, str | None, int | None]] = []
        self.given: list[tuple[int, int, str, int | None, int | None]] = []
        self.made: list[tuple[int, int, str, int | None, int | None]] = []
        self.refs: set[int] = set()

    def outputs(self, new_task: NewTask) -> list[OutputSlot]:
        produced = []
        for position, output in enumerate(new_task.request.outputs):
            value_id = self._value(output.type, None, None, None)
            kind = values.SHARED if output.shared else values.VALUE
            self.made.append((new_task.task_id, position, kind, value_id, None))
            produced.append(OutputSlot(value_id, output.shared))
        return produced

    def inputs(self, new_task: NewTask, produced: Mapping[str, Sequence[OutputSlot]]) -> None:
        for position, given in enumerate(new_task.request.inputs):
            match given:
                case Constant(type=kind, payload=payload):
                    value_id = self._value(kind, payload.inline, payload.digest, payload.size)
                    self.given.append((new_task.task_id, position, values.VALUE, value_id, None))
                case Shared(shared_value_id=shared):
                    self.given.append((new_task.task_id, position, values.SHARED, None, shared))
                    self.refs.add(shared)
                case OutputOf(label=label, position=at):
                    source = produced[label][at]
                    kind = values.SHARED if source.shared else values.VALUE
                    self.given.append((new_task.task_id, position, kind, source.value_id, source.shared_value_id))

    def _value(self, kind: str, payload: bytes | None, digest: str | None, size: int | None) -> int:
        value_id = self.uow.new_id()
        self.rows.append((value_id, self.next_data_id, self.job_id, kind, payload, digest, size))
        self.next_data_id += 1
        return value_id

    def store(self) -> None:
        values.insert(self.uow.tx, self.rows)
        values.insert_inputs(self.uow.tx, self.given)
        values.insert_outputs(self.uow.tx, self.made)
        if self.refs:
            shared_value.ref_by_job(self.uow.tx, sorted(self.refs), self.job_id)


def digest_of(raw: object, key: bytes) -> str:
    """A keyed digest of a document, so that equal requests can be told from different ones.

    Keyed because the document may carry a secret that nobody shall guess from it.
    """
    try:
        text = json.encode(raw, order="sorted")
    except (RecursionError, OverflowError, TypeError, ValueError) as wrong:
        problem = Problem("", str(wrong), "JSON of a sensible depth, with numbers of at most 64 bits", "json")
        raise InvalidRequest([problem]) from wrong
    return hmac.new(key, text, "sha256").hexdigest()
