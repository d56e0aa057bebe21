"""Store new tasks: request, slices, tags, secret, stdin, values, edges and first state; one statement per table.

Submitting tasks, submitting a job and extending a job all build ``NewTask`` structs and call ``store_new_tasks``.
"""

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

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
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import edge, pool_order, resource_group, task_queues, task_request, task_result
from myrmidon.store.tables.resource_group import ResourceGroup
from myrmidon.store.tables.task_queues import Queue
from myrmidon.store.tables.task_request import WITHOUT_ROWS, RequestRow, SliceRow

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


# ---------------------------------------------------------------- queues


class QueueKey(NamedTuple):
    """What makes a queue of a resource group: the required dimensions as canonical text, and the kind of its tasks."""

    dimensions: str
    of_functions: bool = False

    def hash(self) -> str:
        return dimensions.digest(f"{self.dimensions} functions" if self.of_functions else self.dimensions)


def find_queues(uow: UnitOfWork, group_id: int, wanted: Mapping[QueueKey, str]) -> dict[QueueKey, int]:
    """The id of the queue of each key; ``wanted`` has their hashes. Missing queues are created and matched to bots."""
    hashes = sorted(set(wanted.values()))
    found = _matching(task_queues.find(uow.tx, group_id, hashes), wanted)
    oldest_use = min([queue.used_at for queue in found.values()], default=uow.now)
    if oldest_use < uow.now - _QUEUE_TOUCH_INTERVAL and not _touch(uow, found.values()):
        found = _matching(task_queues.find(uow.tx, group_id, hashes), wanted)
    if len(found) < len(wanted):
        missing = [key for key in sorted(wanted) if key not in found]
        found.update(_make_queues(uow, group_id, {key: wanted[key] for key in missing}))
    ids: dict[QueueKey, int] = {}
    for key, queue in found.items():
        ids[key] = queue.id
        uow.queues[queue.id] = queue
    return ids


def _touch(uow: UnitOfWork, queues: Iterable[Queue]) -> bool:
    """Record that queues are used; False if one of them has just been deleted."""
    stale = [queue.id for queue in queues if queue.used_at < uow.now - _QUEUE_TOUCH_INTERVAL]
    return task_queues.touch(uow.tx, stale, uow.now) == len(stale)


def _matching(queues: Iterable[Queue], wanted: Mapping[QueueKey, str]) -> dict[QueueKey, Queue]:
    """The queues whose keys are in ``wanted``: equal hashes do not prove equal dimensions."""
    found: dict[QueueKey, Queue] = {}
    for queue in queues:
        key = QueueKey(queue.dimensions, bool(queue.shared & OF_FUNCTIONS))
        if key in wanted:
            found[key] = queue
    return found


def _make_queues(uow: UnitOfWork, group_id: int, missing: Mapping[QueueKey, str]) -> dict[QueueKey, Queue]:
    """Create queues under the locks of their pools, so that a bot that connects at the same time is matched too."""
    pools = {key: dimensions.pool_of(key.dimensions) for key in missing}
    pool_order.lock_pools(uow.tx, pools.values())
    known = task_queues.find(uow.tx, group_id, sorted(set(missing.values())))
    made = _matching(known, missing)
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


class _NewRows:
    """The rows of new tasks, to be inserted with one statement per table. Most tables get none."""

    def __init__(self) -> None:
        self.requests: list[RequestRow] = []
        self.slices: list[SliceRow] = []
        self.tags: list[tuple[str, int]] = []
        self.secrets: list[tuple[int, bytes]] = []
        self.stdin: list[tuple[int, bytes]] = []
        self.children: dict[int, int] = {}
        """How many of the tasks each task has triggered."""
        self.edges: list[tuple[int, int]] = []
        self.satisfied: list[tuple[int, int, int | None]] = []

    def insert(self, tx: Tx) -> None:
        for task_id, n in sorted(self.children.items()):
            task_result.count_children(tx, task_id, n)  # check_parents has locked them
        task_request.insert(tx, self.requests, self.slices, self.tags)
        if self.secrets:
            task_request.insert_secrets(tx, self.secrets)
        if self.stdin:
            task_request.insert_stdin(tx, self.stdin)
        if self.edges:
            edge.insert(tx, self.edges)
        if self.satisfied:
            edge.complete(tx, self.satisfied)


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
    keys: list[QueueKey] = []
    hashes: dict[QueueKey, str] = {}
    for new_task in new_tasks:
        of_functions = new_task.request.function is not None
        for task_slice in new_task.request.slices:
            key = QueueKey(dimensions.canonical(task_slice.properties.dimensions), of_functions)
            keys.append(key)
            if key not in hashes:
                hashes[key] = key.hash()
    queues = find_queues(uow, group_id, hashes)
    next_key, rows, tasks = iter(keys), _NewRows(), []
    texts: _Texts = {}
    with_values: list[NewTask] = []
    for new_task in new_tasks:
        slices = _slices(uow, new_task, next_key, queues, texts)
        _add_request(uow, group_id, new_task, slices, rows)
        if new_task.parents:
            rows.edges += [(parent, new_task.task_id) for parent in new_task.parents]
            rows.satisfied += [(parent, new_task.task_id, run) for parent, run in new_task.satisfied]
        has_values = _has_values(new_task.request)
        if has_values and new_task.job_id is not None:
            with_values.append(new_task)
        tasks.append(_waiting_task(uow, group_id, new_task, has_values=has_values))
    rows.insert(uow.tx)
    if len(new_tasks) == 1:
        uow.new_task = new_tasks[0]
    if with_values:
        store_values(uow, with_values[0].job_id or 0, with_values, produced or {})
    if staged:
        task_result.insert_announced(uow.tx, tasks)
    else:
        uow.add(tasks)
    return tasks


def _has_values(request: TaskRequest) -> bool:
    """Whether a request has values or code, which belong to its job."""
    return request.function is not None or bool(request.inputs or request.outputs)


def _add_request(uow: UnitOfWork, group_id: int, new_task: NewTask, slices: list[SliceRow], rows: _NewRows) -> None:
    """Add the row of a request with its slices, tags and contents, and put it into ``uow.requests``."""
    r, first = new_task.request, slices[0]
    new_task.tags = automatic_tags(structs.replace(r, user=new_task.user) if new_task.user else r)
    for tag in new_task.tags:
        if not tag.startswith(WITHOUT_ROWS):
            rows.tags.append((tag, new_task.task_id))
    row = RequestRow(
        id=new_task.task_id,
        resource_group_id=group_id,
        external_id=r.external_id,
        job_id=new_task.job_id,
        task_graph_insertion_id=new_task.insertion,
        package_name=None,
        func_name=None,
        language=None,
        name=r.name,
        created_at=uow.now,
        authenticated=new_task.authenticated,
        user_name=new_task.user or r.user,
        priority=r.priority,
        service_account=r.service_account,
        parent_task_id=r.parent[0] if r.parent else None,
        parent_run=r.parent[1] if r.parent else None,
        root_task_id=new_task.root,
        detached=int(r.detached),
        retries=r.retries,
        max_num_retries=r.reruns,
        max_num_instances=r.max_instances,
        timeout=round(r.soft_timeout_s * SECOND) if r.soft_timeout_s is not None else None,
        lease=r.lease_s * SECOND,
        deadline_at=new_task.deadline_at,
        requires_policy=new_task.policy,
        routing=r.routing,
        tags=_encode(new_task.tags).decode(),
        metadata=_encode(r.metadata).decode() if r.metadata else "{}",
        num_inputs=len(r.inputs),
        num_outputs=len(r.outputs),
        resume_scope=new_task.resume_scope,
        label=new_task.label,
        definition_hash=new_task.definition_hash,
        added_by=new_task.added_by,
        num_slices=len(slices),
        queue=first.queue,
        expiration=first.expiration,
        wait_for_capacity=first.wait_for_capacity,
        idempotent=first.idempotent,
        properties_hash=first.properties_hash,
        properties=first.properties,
    )
    if r.function is not None:
        row = structs.replace(
            row,
            package_name=r.function.package_name,
            func_name=r.function.func_name,
            language=r.function.language,
            code=r.function.code or None,
            signature=r.function.signature or None,
            memory_mb=r.function.memory_mb,
            identity=r.function.identity or None,
            environment=r.function.environment or None,
        )
    rows.requests.append(row)
    rows.slices += slices[1:]
    uow.requests[new_task.task_id] = row
    uow.slices[new_task.task_id] = slices
    if r.secret_bytes is not None:
        rows.secrets.append((new_task.task_id, r.secret_bytes))
    if r.stdin is not None:
        rows.stdin.append((new_task.task_id, r.stdin))
    if r.parent is not None:
        rows.children[r.parent[0]] = rows.children.get(r.parent[0], 0) + 1


_Texts: TypeAlias = dict[tuple[int, int, int], list[tuple[str, str]]]
"""The texts of slices and their digests. Requests that were read once for many calls share them."""


def _slices(
    uow: UnitOfWork, new_task: NewTask, keys: Iterator[QueueKey], queues: Mapping[QueueKey, int], known: _Texts
) -> list[SliceRow]:
    """The slices of a new task. ``keys`` yields the queue of each slice."""
    r = new_task.request
    if r.function is None or r.secret_bytes is not None or r.stdin is not None:
        texts = slice_texts(r, uow.rules)
    else:
        same = id(r.slices), id(r.function), id(r.outputs)
        texts = known[same] = known.get(same) or slice_texts(r, uow.rules)
    own = []
    for number, task_slice in enumerate(r.slices):
        text, digest = texts[number]
        own.append(
            SliceRow(
                task_id=new_task.task_id,
                slice=number,
                queue=queues[next(keys)],
                expiration=task_slice.expiration_s * SECOND,
                wait_for_capacity=int(task_slice.wait_for_capacity),
                idempotent=int(task_slice.properties.idempotent),
                properties_hash=digest,
                properties=text,
            )
        )
    return own


def slice_texts(r: TaskRequest, rules: Rules) -> list[tuple[str, str]]:
    """The stored text of each slice, and its digest, which also covers the secret, stdin and outputs."""
    secret = hmac.digest(rules.secret_key, r.secret_bytes, "sha256") if r.secret_bytes is not None else None
    stdin = hmac.digest(rules.secret_key, r.stdin, "sha256") if r.stdin is not None else None
    types = [f"{output.type} {int(output.shared)}" for output in r.outputs] if r.outputs else ()
    return [
        properties_row(one.properties, secret_hmac=secret, stdin_hmac=stdin, function=r.function, input_digests=types)
        for one in r.slices
    ]


def _waiting_task(uow: UnitOfWork, group_id: int, new_task: NewTask, *, has_values: bool) -> TaskResult:
    """A new task in the state WAITING."""
    r = new_task.request
    usual = not has_values and r.max_instances <= 1 and r.secret_bytes is None and r.stdin is None
    for task_slice in r.slices:
        usual = usual and not task_slice.properties.idempotent
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
        skips_request_lookup=int(usual),
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
