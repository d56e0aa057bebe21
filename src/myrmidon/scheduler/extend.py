"""Extend a running job with more tasks, and seal jobs.

The job is locked, so that concurrent changes are safe: a parent that ended before is read as ended here, and one that
ends later finds its new children. A job that has ended or was sealed accepts no more tasks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from myrmidon.model.dag import Dag, ExistingTask, build_dag
from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import IdSource, Micros, show_task
from myrmidon.model.job import Graph, RequiresPolicy
from myrmidon.model.job_document import GROWTH_KEYS, labels_named, labels_of, labels_read, parse_graph
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.states import RUNNING, JobState
from myrmidon.model.task_result import TaskResult
from myrmidon.model.validation import Checker
from myrmidon.scheduler.added_parents import satisfies
from myrmidon.scheduler.dedupe import withdraw
from myrmidon.scheduler.growth import (
    Growth,
    check_growth,
    further_parents,
    read_growth,
    store_growth,
)
from myrmidon.scheduler.job_codes import with_submitted_code
from myrmidon.scheduler.job_draft import definitions_of
from myrmidon.scheduler.new_task import NewTask, OutputSlot
from myrmidon.scheduler.new_tasks import open_group, store_new_tasks
from myrmidon.scheduler.new_values import require_files
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.resume import scope_of_added
from myrmidon.scheduler.submit_job import check_named, output_slots
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, edge, task_result
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import WHOLE
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.value import OutputRow
from myrmidon.store.views import job_details


class Extended(Struct, frozen=True, kw_only=True):
    """The result of an extension: the ids of all labels in the document, and how many of them are new."""

    job_id: int
    state: JobState
    task_ids: dict[str, int]
    num_new: int
    queues_to_wake: list[int] = []


def extend(
    tx: Tx,
    job_id: int,
    raw: object,
    *,
    group_id: int,
    now: Micros,
    ids: IdSource,
    authenticated: str = "",
    limits: Limits = DEFAULT_LIMITS,
    rules: Rules = DEFAULT_RULES,
    original: object = None,
    check_graph: Callable[[Graph], None] | None = None,
    by: int | None = None,
) -> Extended:
    """Add the tasks of a graph document to a job, and parents to tasks that wait (see added_parents).

    Idempotent: a label that the job already has with the same definition is skipped. One with a different definition is
    refused. One call adds at most WHOLE tasks, because it is one transaction; a client sends more in several calls.
    ``original`` is the document as the caller sent it, if ``raw`` was made from it; ``check_graph`` may refuse what is
    valid but not wanted here; ``by`` is the running task that asks for the extension, if one does.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    open_group(uow, group_id)
    job = _open_job(uow, job_id, group_id)
    existing = _existing(tx, job_id, raw, by)
    if by is not None:
        raw, original = with_submitted_code(tx, job_id, raw, original)
    definitions = definitions_of(raw if original is None else original, rules)
    new_labels = [label for label in labels_of(raw) if label not in existing]
    _compare(existing, definitions, by)
    _check_size(new_labels)
    check = Checker(limits)
    growth = read_growth(uow, check, raw, existing, new_labels, by)
    adds_no_tasks = _has_only_known_tasks(raw, definitions, new_labels) and bool(definitions or growth.wanted)
    if adds_no_tasks and growth.is_empty and not check.problems:
        return Extended(job_id=job_id, state=job.state, task_ids=_ids(existing, definitions), num_new=0)
    _check_open(uow, job)
    task_ids = dict(zip(new_labels, ids.block(len(new_labels), now), strict=True))
    ids_by_label = {**{label: task_id for label, (task_id, _) in existing.items()}, **task_ids}
    outputs = _outputs_read(uow, {*labels_read(raw), *growth.labels_read}, existing)
    graph, dag = _read(raw, existing, ids_by_label, outputs, check=check, is_empty=adds_no_tasks)
    if check_graph is not None:
        check_graph(graph)
    check_growth(uow, check, growth, graph, ids=ids_by_label, outputs=outputs)
    extension = _Extension(graph, dag, ids_by_label, definitions, authenticated, by)
    new_tasks = _new_tasks(uow, job, extension, growth, outputs)
    _check(uow, group_id, new_tasks)
    tasks = store_new_tasks(uow, job.resource_group_id, new_tasks, produced=output_slots(outputs))
    store_growth(uow, job_id, growth, ids=ids_by_label, new_tasks=new_tasks, limits=limits)
    make_ready(uow, [t for t in tasks if t.satisfied and not t.held])
    if by is not None:
        withdraw(uow, by)  # its result would come without the tasks that it has added
    jobs.add_event(tx, job, "extended", now)
    propagate(uow)
    chosen = {label: ids_by_label[label] for label in definitions}
    return Extended(
        job_id=job_id,
        state=job.state,
        task_ids=chosen,
        num_new=len(new_tasks),
        queues_to_wake=sorted(uow.queues_to_wake),
    )


def _open_job(uow: UnitOfWork, job_id: int, group_id: int) -> Job:
    uow.lock_jobs([job_id])
    job = uow.jobs.get(job_id)
    if job is None or job.resource_group_id != group_id or job.staged:
        raise NotFound("job", show_task(job_id))
    return job


def _existing(tx: Tx, job_id: int, raw: object, by: int | None) -> dict[str, tuple[int, str]]:
    """Of the labels that matter here those that the job has, with task and digest; a large job has many others.

    Those that the document names, and if it has delegates, the caller's own and those of the tasks that wait for it.
    """
    wanted = labels_named(raw)
    if by is not None and isinstance(raw, dict) and raw.get("delegates"):
        wanted.update(job_details.labels_of(tx, [by, *edge.waiting_children(tx, by)]).values())
    return jobs.named(tx, job_id, sorted(wanted))


def _check_open(uow: UnitOfWork, job: Job) -> None:
    """Raise WrongState if the job accepts no tasks.

    While a job is being reset chunk by chunk, it is not determined which parents still count as succeeded.
    """
    if job.state == JobState.PENDING_RETRY:
        raise WrongState("the job is being reset for another run; try again in a moment")
    if job.state != JobState.RUNNING:
        raise WrongState(f"the job has ended ({job.state}) and accepts no more tasks; submit a new job")
    if job.sealed_at is not None:
        raise WrongState("the job is sealed and accepts no more tasks; submit a new job")
    if job.num_chunked_work and chunked_work.exists(uow.tx, chunked_work.RESET, job.id):
        raise WrongState("the job is being reset for another run; try again in a moment")


def _compare(existing: Mapping[str, tuple[int, str]], definitions: Mapping[str, str], by: int | None) -> None:
    changed = sorted(label for label in definitions if label in existing and existing[label][1] != definitions[label])
    if not changed:
        return
    shown = ", ".join(changed[:10])
    if by is None:
        raise Conflict(f"the job already has other tasks with these labels: {shown}; rename them")
    raise Conflict(
        f"an earlier run has added other tasks with these labels: {shown}; "
        "a task that runs again must add the same ones, such as the items of the same list; submit a new job"
    )


def _check_size(new_labels: Sequence[str]) -> None:
    if len(new_labels) > WHOLE:
        allowed = f"at most {WHOLE} new tasks in one call; send the others in further calls"
        raise InvalidRequest([Problem("tasks", f"{len(new_labels)} new tasks", allowed, "too_many")])


def _ids(existing: Mapping[str, tuple[int, str]], labels: Mapping[str, str]) -> dict[str, int]:
    return {label: existing[label][0] for label in labels}


class _Extension:
    """A parsed extension: its new nodes, their edges, and the ids of all tasks by label."""

    def __init__(
        self,
        graph: Graph,
        dag: Dag,
        ids: dict[str, int],
        definitions: dict[str, str],
        authenticated: str,
        by: int | None,
    ) -> None:
        self.graph = graph
        self.dag = dag
        self.ids = ids
        self.definitions = definitions
        self.authenticated = authenticated
        self.by = by


def _outputs_read(
    uow: UnitOfWork, labels: Iterable[str], existing: Mapping[str, tuple[int, str]]
) -> dict[str, list[OutputRow]]:
    """The outputs of those of the labels that the job has."""
    tasks = {label: existing[label][0] for label in labels if label in existing}
    found = values.outputs(uow.tx, sorted(tasks.values())) if tasks else {}
    return {label: found.get(task_id, []) for label, task_id in tasks.items()}


def _has_only_known_tasks(raw: object, definitions: Mapping[str, str], new_labels: Sequence[str]) -> bool:
    """Whether a document has no tasks but those of the job; what is no task is reported by parse_graph."""
    tasks = raw.get("tasks") if isinstance(raw, dict) else 0
    if isinstance(tasks, (dict, list)):
        return len(definitions) == len(tasks) and not new_labels
    return tasks is None


def _read(
    raw: object,
    existing: Mapping[str, tuple[int, str]],
    ids_by_label: Mapping[str, int],
    outputs: Mapping[str, Sequence[OutputRow]],
    *,
    check: Checker,
    is_empty: bool,
) -> tuple[Graph, Dag]:
    """The new nodes, validated together with the existing tasks of the job; ``check`` has the problems found so far.

    ``is_empty``: the document only adds parents to tasks that the job has.
    """
    if is_empty:
        check.finish()
        return Graph(name="", nodes=[]), Dag(parents=[], order=[], existing_parents=[])
    shown = {label: show_task(task_id) for label, task_id in ids_by_label.items()}
    tasks = {label: ExistingTask([kind for _, _, _, kind in outputs.get(label, ())]) for label in existing}
    try:
        graph = parse_graph(_new_nodes(raw, existing), check.limits, shown, tasks)
        dag = build_dag(graph, tasks)
    except InvalidRequest as error:
        raise InvalidRequest([*error.problems, *check.problems]) from None
    check.finish()
    return graph, dag


def _new_nodes(raw: object, existing: Mapping[str, object]) -> object:
    """The document without what is read here: parents of existing tasks, and tasks that the job already has."""
    document = {key: value for key, value in raw.items() if key not in GROWTH_KEYS} if isinstance(raw, dict) else raw
    return without_existing(document, existing)


def without_existing(raw: object, existing: Mapping[str, object]) -> object:
    """The document without the nodes that the job already has."""
    if not isinstance(raw, dict):
        return raw
    tasks = raw.get("tasks")
    if isinstance(tasks, dict):
        return {**raw, "tasks": {label: node for label, node in tasks.items() if label not in existing}}
    if isinstance(tasks, list):
        return {**raw, "tasks": [node for node in tasks if _label_of(node) not in existing]}
    return raw


def _label_of(node: object) -> str | None:
    """The label of a node in a list, or None; parse_graph reports labels that are wrong."""
    label = node.get("label") if isinstance(node, dict) else None
    return label if isinstance(label, str) else None


def _new_tasks(
    uow: UnitOfWork, job: Job, e: _Extension, growth: Growth, outputs: Mapping[str, Sequence[OutputRow]]
) -> list[NewTask]:
    old = {
        node.label: {e.ids[label] for label in labels}
        for node, labels in zip(e.graph.nodes, e.dag.existing_parents, strict=True)
    }
    more = further_parents(uow, growth, e.graph, ids=e.ids, read=outputs)
    new_ids = {e.ids[node.label] for node in e.graph.nodes}
    for label, several in more.items():
        old[label] |= several - new_ids
    ids = sorted({parent for several in old.values() for parent in several})
    parents = task_result.lock(uow.tx, ids) if ids else {}
    new_tasks = []
    for index in e.dag.order:
        label = e.graph.nodes[index].label
        own = {e.ids[e.graph.nodes[i].label] for i in e.dag.parents[index]} | (more.get(label, set()) & new_ids)
        new_tasks.append(_new_task(uow, job, e, index=index, new=own, old={i: parents[i] for i in sorted(old[label])}))
    if growth.delegator is not None:
        _delegate_outputs(growth, new_tasks, parents, output_slots(outputs)[growth.delegator])
    return new_tasks


def _delegate_outputs(
    growth: Growth, new_tasks: Sequence[NewTask], parents: Mapping[int, TaskResult], slots: Sequence[OutputSlot]
) -> None:
    """Let delegates write the outputs of the task that adds them."""
    if parents[growth.by or 0].state != RUNNING:
        raise WrongState("the task that calls is not running any more; only a running task can delegate its outputs")
    for new_task in new_tasks:
        if new_task.label in growth.delegates:
            new_task.writes_for = slots
            new_task.resume_scope = None


def _new_task(
    uow: UnitOfWork, job: Job, e: _Extension, *, index: int, new: set[int], old: Mapping[int, TaskResult]
) -> NewTask:
    node = e.graph.nodes[index]
    done = [
        (i, parent.instance_id)
        for i, parent in old.items()
        if satisfies(parent, resolves_all=node.policy == RequiresPolicy.ALL_RESOLVED)
    ]
    allowed = node.request.deadline_s
    return NewTask(
        task_id=e.ids[node.label],
        request=node.request,
        authenticated=e.authenticated,
        deadline_at=job.deadline_at if allowed is None else min(job.deadline_at, uow.now + allowed * SECOND),
        job_id=job.id,
        insertion=job.num_tasks + index,
        label=node.label,
        definition_hash=e.definitions[node.label],
        parents=sorted({*new, *old}),
        satisfied=done,
        policy=node.policy,
        hold=node.hold,
        added_by=e.by,
        resume_scope=scope_of_added(job, node),
    )


def _check(uow: UnitOfWork, group_id: int, new_tasks: Sequence[NewTask]) -> None:
    check_named(uow, group_id, new_tasks)
    require_files(uow, group_id, [new_task.request for new_task in new_tasks])


def seal(tx: Tx, job_id: int, *, group_id: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Job:
    """Refuse extensions of the job from now on. Idempotent."""
    uow = UnitOfWork(tx, now, ids, rules)
    job = _open_job(uow, job_id, group_id)
    if job.sealed_at is None:
        job.sealed_at = now
        jobs.add_event(tx, job, "sealed", now)
        jobs.save(tx, [job])
    return job
