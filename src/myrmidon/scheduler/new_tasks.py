"""Store new tasks: request, slices, tags, secret, stdin, values, edges and first state; one statement per table.

Submitting tasks, submitting a job and extending a job all build ``NewTask`` structs and call ``store_new_tasks``.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import json, structs

from myrmidon.model import dimensions
from myrmidon.model.errors import InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import Micros, show_task
from myrmidon.model.job import RequiresPolicy
from myrmidon.model.states import TaskState
from myrmidon.model.task_request import (
    TaskRequest,
    automatic_tags,
    properties_row,
)
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import OF_FUNCTIONS
from myrmidon.scheduler.new_task import NewTask, OutputSlot
from myrmidon.scheduler.new_values import store_values
from myrmidon.scheduler.policy import SECOND, Rules
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.sql import Row
from myrmidon.store.tables import edge, pool_order, resource_group, task_queues, task_request, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.resource_group import ResourceGroup
from myrmidon.store.tables.task_queues import Queue
from myrmidon.store.tables.task_request import RequestRow, SliceRow

_QUEUE_TOUCH_INTERVAL: Micros = 3600 * SECOND
_encode = json.Encoder().encode


def open_group(uow: UnitOfWork, group_id: int) -> ResourceGroup:
    """Lock a resource group against deletion; raises NotFound or WrongState if nothing may be added to it."""
    group = resource_group.lock_shared(uow.tx, group_id)
    if group is None:
        raise NotFound("resource group", str(group_id))
    if group.deleting:
        raise WrongState(f"the resource group {group.external_id} is being deleted; use another one")
    return group


def check_parents(uow: UnitOfWork, group_id: int, new_tasks: Iterable[NewTask]) -> dict[int, NotFound | WrongState]:
    """Check that the tasks that triggered these are running, and take over their user; returns errors by task id.

    A task of another group counts as not found: otherwise one could take over its user, or learn that it runs.
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
                "can trigger others, so submit it without a parent"
            )
        else:
            new_task.user = requests[task_id].user_name
            new_task.root = requests[task_id].root_task_id or task_id
    return refused


def _count_children(uow: UnitOfWork, new_tasks: Iterable[NewTask]) -> None:
    """Add to ``num_children`` of the tasks that triggered these; ``check_parents`` has locked them."""
    counts: dict[int, int] = {}
    for new_task in new_tasks:
        if new_task.request.parent is not None:
            counts[new_task.request.parent[0]] = counts.get(new_task.request.parent[0], 0) + 1
    for task_id, n in sorted(counts.items()):
        task_result.count_children(uow.tx, task_id, n)


# ---------------------------------------------------------------- queues


class QueueKey(NamedTuple):
    """What makes a queue of a resource group: the required dimensions as canonical text, and the kind of its tasks."""

    dimensions: str
    of_functions: bool = False

    def hash(self) -> str:
        return dimensions.digest(f"{self.dimensions} functions" if self.of_functions else self.dimensions)


def find_queues(uow: UnitOfWork, group_id: int, wanted: Iterable[QueueKey]) -> dict[QueueKey, int]:
    """The id of the queue of each key. Missing queues are created and matched to bots."""
    keys = sorted(set(wanted))
    hashes = {key: key.hash() for key in keys}
    found = _by_key(task_queues.find(uow.tx, group_id, sorted(set(hashes.values()))), hashes)
    stale = [q.id for q in found.values() if q.used_at < uow.now - _QUEUE_TOUCH_INTERVAL]
    if stale and task_queues.touch(uow.tx, stale, uow.now) != len(stale):
        found = _by_key(task_queues.find(uow.tx, group_id, sorted(set(hashes.values()))), hashes)
    missing = [key for key in keys if key not in found]
    if missing:
        found.update(_make_queues(uow, group_id, {key: hashes[key] for key in missing}))
    uow.keep_queues(found.values())
    return {key: queue.id for key, queue in found.items()}


def _by_key(queues: Sequence[Queue], wanted: Mapping[QueueKey, str]) -> dict[QueueKey, Queue]:
    """The queues whose keys are in ``wanted``: equal hashes do not prove equal dimensions."""
    found = {QueueKey(queue.dimensions, queue.of_functions): queue for queue in queues}
    return {key: queue for key, queue in found.items() if key in wanted}


def _make_queues(uow: UnitOfWork, group_id: int, missing: Mapping[QueueKey, str]) -> dict[QueueKey, Queue]:
    """Create queues under the locks of their pools, so that a bot that connects at the same time is matched too."""
    pools = {key: dimensions.pool_of(key.dimensions) for key in missing}
    pool_order.lock_pools(uow.tx, pools.values())
    known = task_queues.find(uow.tx, group_id, sorted(set(missing.values())))
    made = _by_key(known, missing)
    for key, hashed in missing.items():
        if key in made:
            continue
        probe = 1 + max((q.probe for q in known if q.hash == hashed), default=-1)
        kind = OF_FUNCTIONS if key.of_functions else 0
        order = pool_order.of_pool(uow.tx, pools[key])
        queue = Queue(uow.new_id(), hashed, probe, group_id, pools[key], key.dimensions, uow.now, kind, order)
        task_queues.insert(uow.tx, queue)
        task_queues.match_queue(uow.tx, queue)
        known.append(queue)
        made[key] = queue
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
    """Store new tasks in the state WAITING; the caller makes them ready.

    ``produced`` are the outputs of tasks that the job already has, by label.
    """
    keys_by_task = {
        p.task_id: [
            QueueKey(dimensions.canonical(s.properties.dimensions), p.request.function is not None)
            for s in p.request.slices
        ]
        for p in new_tasks
    }
    queues = find_queues(uow, group_id, (key for keys in keys_by_task.values() for key in keys))
    requests: list[Row] = []
    task_slices: list[Row] = []
    stored_texts = _Texts(uow.rules)
    for new_task in new_tasks:
        keys = keys_by_task[new_task.task_id]
        requests.append(_request_row(uow, group_id, new_task))
        task_slices += _slice_rows(uow, new_task, [queues[key] for key in keys], stored_texts)
    _count_children(uow, new_tasks)
    _store_requests(uow, new_tasks, requests, task_slices)
    with_values = [p for p in new_tasks if p.job_id is not None and _has_values(p.request)]
    if with_values:
        store_values(uow, with_values[0].job_id or 0, with_values, produced or {})
    _store_edges(uow, new_tasks)
    tasks = [_waiting_task(uow, group_id, new_task) for new_task in new_tasks]
    if staged:
        task_result.insert_staged(uow.tx, tasks)
        return tasks
    for task in tasks:
        uow.add(task)
    return tasks


def _has_values(request: TaskRequest) -> bool:
    """Whether a request has values or code, which belong to its job."""
    return request.function is not None or bool(request.inputs or request.outputs)


def _request_row(uow: UnitOfWork, group_id: int, new_task: NewTask) -> Row:
    """The row of a request, which is also put into ``uow.requests``."""
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
        round(r.soft_timeout_s * SECOND) if r.soft_timeout_s is not None else None,
        r.lease_s * SECOND,
        new_task.deadline_at,
        new_task.policy,
        r.routing,
        _encode(new_task.tags).decode(),
        _encode(r.metadata).decode() if r.metadata else "{}",
        (function.code or None) if function else None,
        (function.signature or None) if function else None,
        function.memory_mb if function else None,
        len(r.inputs),
        len(r.outputs),
        (function.identity or None) if function else None,
        new_task.resume_scope,
        (function.environment or None) if function else None,
    )
    uow.requests[new_task.task_id] = RequestRow(*row)
    return row


def secret_hmac(content: bytes | None, rules: Rules) -> bytes | None:
    """What the properties' digest covers of a secret or of stdin; None without one."""
    return hmac.digest(rules.secret_key, content, "sha256") if content is not None else None


def output_texts(request: TaskRequest) -> Sequence[str]:
    """What the properties' digest covers of the outputs."""
    return [f"{output.type} {int(output.shared)}" for output in request.outputs] if request.outputs else ()


class _Texts:
    """The stored texts of slices and their digests. Requests that were read once for many calls share them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: dict[tuple[int, int, int], list[tuple[str, str]]] = {}

    def of(self, r: TaskRequest) -> list[tuple[str, str]]:
        if r.secret_bytes is not None or r.stdin is not None or r.function is None:
            return self._make(r)
        same = id(r.slices), id(r.function), id(r.outputs)
        found = self._known.get(same)
        if found is None:
            found = self._known[same] = self._make(r)
        return found

    def _make(self, r: TaskRequest) -> list[tuple[str, str]]:
        secret, stdin = secret_hmac(r.secret_bytes, self._rules), secret_hmac(r.stdin, self._rules)
        types = output_texts(r)
        return [
            properties_row(
                one.properties, secret_hmac=secret, stdin_hmac=stdin, function=r.function, input_digests=types
            )
            for one in r.slices
        ]


def _slice_rows(uow: UnitOfWork, new_task: NewTask, queues: Sequence[int], texts: _Texts) -> list[Row]:
    """The rows of the slices, which are also put into ``uow.slices``."""
    r = new_task.request
    rows: list[Row] = []
    for number, (task_slice, queue, (text, digest)) in enumerate(zip(r.slices, queues, texts.of(r), strict=True)):
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
    stdin = [(p.task_id, p.request.stdin) for p in new_tasks if p.request.stdin is not None]
    if stdin:
        task_request.insert_stdin(uow.tx, stdin)


def _store_edges(uow: UnitOfWork, new_tasks: Sequence[NewTask]) -> None:
    edges = [(parent, new_task.task_id) for new_task in new_tasks for parent in new_task.parents]
    if edges:
        edge.insert(uow.tx, edges)
    met = [(parent, new_task.task_id, run) for new_task in new_tasks for parent, run in new_task.satisfied]
    if met:
        edge.complete(uow.tx, met)
    labels = [
        (p.job_id, p.label, p.task_id, p.definition_hash, p.added_by)
        for p in new_tasks
        if p.job_id and p.label is not None
    ]
    if labels:
        jobs.insert_labels(uow.tx, labels)


def _waiting_task(uow: UnitOfWork, group_id: int, new_task: NewTask) -> TaskResult:
    """A new task in the state WAITING."""
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
        skips_request_lookup=_skips_request_lookup(new_task.request),
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
        due_at=new_task.deadline_at,
    )


def _skips_request_lookup(request: TaskRequest) -> int:
    if request.max_instances > 1 or _has_values(request):
        return 0
    if request.secret_bytes is not None or request.stdin is not None:
        return 0
    for task_slice in request.slices:
        if task_slice.properties.idempotent:
            return 0
    return 1


def digest_of(raw: object, key: bytes) -> str:
    """A keyed digest of a document, for recognising a repeated request.

    Keyed because the document may contain a secret that could be guessed from a plain digest.
    """
    try:
        text = json.encode(raw, order="sorted")
    except (RecursionError, OverflowError, TypeError, ValueError) as wrong:
        problem = Problem("", str(wrong), "JSON that is not nested too deeply, with numbers of at most 64 bits", "json")
        raise InvalidRequest([problem]) from wrong
    return hmac.new(key, text, "sha256").hexdigest()
