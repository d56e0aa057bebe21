"""Submit a graph as a job.

A graph of up to WHOLE tasks is stored in one transaction. A larger one is staged chunk by chunk, invisible to users,
and made visible by the last transaction; if that never comes, what was staged is deleted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TypeAlias, TypeVar

from msgspec import Struct

from myrmidon.model.errors import Conflict, InvalidRequest, Problem, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.job import Graph
from myrmidon.model.states import JobState, TaskState
from myrmidon.model.task_request import Shared
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.idempotency import check_key, claim_request_key, key_conflict
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.new_task import NewTask, OutputSlot
from myrmidon.scheduler.new_tasks import check_parents, open_group, store_new_tasks
from myrmidon.scheduler.new_values import check_shared, require_files
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.resume import Revision, attached, supersede
from myrmidon.scheduler.submit import check_external_ids, new_job
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, job_code, task_request
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables import value as values
from myrmidon.store.tables.chunked_work import STAGED, WHOLE, ChunkedWork
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.value import OutputRow

T = TypeVar("T")
Write: TypeAlias = Callable[[Callable[[Tx], T]], T]


class JobSubmitted(Struct, frozen=True, kw_only=True):
    """The result of submitting a graph."""

    job_id: int
    state: JobState
    task_ids: dict[str, int]
    repeated: bool = False
    revision: int = 1
    superseded: int | None = None
    """The job that had the external id until now."""
    queues_to_wake: list[int] = []


def submit_job(
    write: Write[JobSubmitted],
    group_id: int,
    draft: JobDraft,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> JobSubmitted:
    """Store a graph and start its tasks, in one transaction or in several; ``write`` runs each of them."""
    *staging, commit = submit_steps(group_id, draft, now=now, ids=ids, rules=rules)
    for stage in staging:
        staged = write(stage)
        if staged.repeated:
            return staged
    return write(commit)


def submit_steps(
    group_id: int, draft: JobDraft, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> Iterator[Callable[[Tx], JobSubmitted]]:
    """The transactions that store a graph, in order. If one finds that the job was stored before, the rest is left out.

    The last one makes the job visible; before it nothing is.
    """
    parts = _chunks(draft)
    if len(parts) > 1:
        for number, part in enumerate(parts):
            yield partial(
                _stage, group_id=group_id, draft=draft, number=number, part=part, now=now, ids=ids, rules=rules
            )
    yield lambda tx: _commit_job(UnitOfWork(tx, now, ids, rules), group_id, draft, parts)


def submit_jobs(
    tx: Tx,
    group_id: int,
    drafts: Sequence[JobDraft],
    *,
    request_key: str | None,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> list[JobSubmitted]:
    """Store several graphs of up to WHOLE tasks together and start their tasks: all of them, or none.

    ``request_key`` is that of the whole call. The keys of the drafts are derived from it (see ``batch_keys``).
    """
    num_tasks = sum(len(draft.graph.nodes) for draft in drafts)
    if num_tasks > WHOLE:
        allowed = f"at most {WHOLE} tasks in all jobs together; submit larger jobs one by one"
        raise InvalidRequest([Problem("jobs", f"{num_tasks} tasks", allowed, "too_many")])
    if request_key is not None:
        bodies = [draft.body_hash for draft in drafts]
        claim_request_key(tx, "submit of jobs", request_key, bodies, now=now, group_id=group_id)
    return [_commit_job(UnitOfWork(tx, now, ids, rules), group_id, draft, [draft.dag.order]) for draft in drafts]


def batch_keys(request_key: str | None, num_jobs: int) -> list[str | None]:
    """The request keys of the jobs of one call, so that a repeated call finds each of them."""
    if request_key is None:
        return [None] * num_jobs
    check_key(request_key)
    stem = sha256(request_key.encode()).hexdigest()
    return [f"job {position} of {stem}" for position in range(num_jobs)]


def _chunks(draft: JobDraft) -> list[list[int]]:
    """Node indexes by chunk, parents before children, so that inputs find the values of earlier chunks."""
    order = draft.dag.order
    if len(order) <= WHOLE:
        return [order]
    return [order[start : start + STAGED] for start in range(0, len(order), STAGED)]


def _existing_job(uow: UnitOfWork, group_id: int, draft: JobDraft) -> JobSubmitted | None:
    """The result if this draft was stored before: by its request key, or by an earlier attempt of the transaction.

    Raises Conflict if the key or the external id belongs to another job. The external id is read first: if the same
    request is stored by another transaction between the two, its key is found, and not its external id alone.
    """
    external_id = draft.graph.external_id
    if draft.resume:
        return _attached_job(uow, group_id, draft)
    holder = jobs.by_external(uow.tx, group_id, external_id) if external_id is not None else None
    if draft.request_key is not None:
        found = request_keys.read(uow.tx, group_id, [draft.request_key]).get(draft.request_key)
        if found is not None:
            if found[0] != draft.body_hash:
                same_id = found[1] == holder and external_id is not None
                raise _edited(external_id) if same_id else key_conflict(draft.request_key)
            return _repeated(uow, found[1])
    if _was_committed(uow, draft):
        return _repeated(uow, draft.job_id)
    if holder is not None and holder != draft.job_id:
        raise Conflict(f"the external id {external_id} belongs to another job; choose another one")
    return None


def _edited(external_id: str | None) -> Conflict:
    return Conflict(
        f"the job {external_id} has another document; to go on with the changed one, resume the job"
        " (`myrmidon job submit --resume`), or choose another external id"
    )


def _attached_job(uow: UnitOfWork, group_id: int, draft: JobDraft) -> JobSubmitted | None:
    if _was_committed(uow, draft):
        return _repeated(uow, draft.job_id)
    job_id = attached(uow.tx, group_id, draft.graph.external_id, draft.body_hash, now=uow.now)
    return _repeated(uow, job_id) if job_id is not None else None


def _was_committed(uow: UnitOfWork, draft: JobDraft) -> bool:
    """Whether an earlier attempt of this transaction was committed after all."""
    mine = jobs.read(uow.tx, [draft.job_id]).get(draft.job_id) if uow.tx.attempt > 1 else None
    return mine is not None and not mine.staged


def _repeated(uow: UnitOfWork, job_id: int) -> JobSubmitted:
    job = jobs.read(uow.tx, [job_id]).get(job_id)
    labels = jobs.labels(uow.tx, job_id)
    state, revision = (job.state, job.revision) if job else (JobState.RUNNING, 1)
    return JobSubmitted(job_id=job_id, state=state, task_ids=labels, repeated=True, revision=revision)


def _stage(
    tx: Tx,
    group_id: int,
    draft: JobDraft,
    number: int,
    part: Sequence[int],
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules,
) -> JobSubmitted:
    """Store one chunk of a large graph as staged, unless an earlier attempt of the transaction has done so."""
    uow = UnitOfWork(tx, now, ids, rules)
    staged = JobSubmitted(job_id=draft.job_id, state=JobState.RUNNING, task_ids=draft.task_ids)
    if number == 0:
        open_group(uow, group_id)
        known = _existing_job(uow, group_id, draft)
        if known is not None:
            return known
        if uow.tx.attempt > 1 and jobs.read(uow.tx, [draft.job_id]):
            return staged
        _require_files(uow, group_id, draft.graph)
        job = new_job(uow, group_id, draft.job_id, draft.graph, deadline_at=_deadline(uow, draft), staged=True)
        if draft.resume:
            job.external_id = None  # that of the earlier revision until this one is complete
        jobs.insert(uow.tx, [job])
        _insert_code(uow, job, draft.graph)
    else:
        uow.lock_jobs([draft.job_id])
        if _is_dropped(uow, draft):
            raise WrongState("the job took too long to arrive and was dropped; submit it again")
        first = draft.task_ids[draft.graph.nodes[part[0]].label]
        if uow.tx.attempt > 1 and task_request.existing(uow.tx, [first]):
            return staged
    _store_chunk(uow, group_id, draft, part, staged=True)
    return staged


def _commit_job(uow: UnitOfWork, group_id: int, draft: JobDraft, parts: Sequence[Sequence[int]]) -> JobSubmitted:
    """Store the request key, make the job visible and start its tasks."""
    open_group(uow, group_id)
    has_key = draft.graph.external_id is None and _take_key(uow, group_id, draft)
    known = _existing_job(uow, group_id, draft) if not has_key else None
    if known is not None:
        return known
    revision = _supersede(uow, group_id, draft)
    if draft.request_key is not None and not has_key and not _take_key(uow, group_id, draft):
        again = _existing_job(uow, group_id, draft)
        if again is not None:
            return again
    if len(parts) > 1:
        job = _unstage(uow, draft, revision)
    else:
        _require_files(uow, group_id, draft.graph)
        job = new_job(uow, group_id, draft.job_id, draft.graph, deadline_at=_deadline(uow, draft))
        job.revision = revision.number
        uow.add_job(job)
        _insert_code(uow, job, draft.graph)
        make_ready(uow, [t for t in _store_chunk(uow, group_id, draft, parts[0]) if _may_start(t)])
    propagate(uow)
    return JobSubmitted(
        job_id=job.id,
        state=job.state,
        task_ids=draft.task_ids,
        revision=revision.number,
        superseded=revision.earlier.id if revision.earlier is not None else None,
        queues_to_wake=sorted(uow.queues_to_wake),
    )


def _require_files(uow: UnitOfWork, group_id: int, graph: Graph) -> None:
    require_files(uow, group_id, [node.request for node in graph.nodes], graph.code)


def _insert_code(uow: UnitOfWork, job: Job, graph: Graph) -> None:
    if graph.code:
        job_code.insert(uow.tx, job.id, graph.code)


def _take_key(uow: UnitOfWork, group_id: int, draft: JobDraft) -> bool:
    """Store the request key of a draft; False if it has none, or if a draft with the same key was stored before."""
    if draft.request_key is None:
        return False
    return bool(request_keys.insert(uow.tx, [(group_id, draft.request_key, draft.body_hash, draft.job_id, uow.now)]))


def _supersede(uow: UnitOfWork, group_id: int, draft: JobDraft) -> Revision:
    external_id = draft.graph.external_id
    if not draft.resume or external_id is None:
        return Revision(None, 1)
    revision = supersede(uow, group_id, external_id, draft.body_hash, staged=draft.job_id)
    if revision.earlier is not None and draft.request_key is not None:
        request_keys.delete(uow.tx, group_id, draft.request_key)
    return revision


def _may_start(task: TaskResult) -> bool:
    return task.satisfied and not task.held and task.state == TaskState.WAITING


def _unstage(uow: UnitOfWork, draft: JobDraft, revision: Revision) -> Job:
    """Make a staged job visible; its tasks are started chunk by chunk."""
    uow.lock_jobs([draft.job_id])
    if _is_dropped(uow, draft):
        raise WrongState("the job took too long to arrive and was dropped; submit it again")
    job = uow.jobs[draft.job_id]
    if draft.resume and draft.graph.external_id is not None:
        jobs.name(uow.tx, job, draft.graph.external_id, revision.number)
    job.staged = 0
    job.due_at = None
    job.num_tasks = len(draft.task_ids)
    job.num_active = sum(node.hold for node in draft.graph.nodes)
    jobs.add_event(uow.tx, job, "running", uow.now)
    uow.start_chunked_work(chunked_work.START, job.id, job=job)
    return job


def _is_dropped(uow: UnitOfWork, draft: JobDraft) -> bool:
    """Whether a locked staged job is deleted, or is being deleted: the only work that it can have."""
    job = uow.jobs.get(draft.job_id)
    return job is None or job.num_chunked_work > 0


def _deadline(uow: UnitOfWork, draft: JobDraft) -> Micros:
    allowed = draft.graph.deadline_s
    return uow.now + (allowed * SECOND if allowed is not None else uow.rules.default_deadline)


def _store_chunk(
    uow: UnitOfWork, group_id: int, draft: JobDraft, part: Sequence[int], *, staged: bool = False
) -> list[TaskResult]:
    deadline = _deadline(uow, draft)
    new_tasks = [_new_task(uow, draft, index, deadline) for index in part]
    check_named(uow, group_id, new_tasks)
    produced = _produced(uow, draft, part) if staged else {}
    return store_new_tasks(uow, group_id, new_tasks, produced=produced, staged=staged)


def check_named(uow: UnitOfWork, group_id: int, new_tasks: Sequence[NewTask]) -> None:
    """Raise the first problem with the running tasks, the shared values and the external ids that requests name."""
    naming: list[NewTask] = []
    for new_task in new_tasks:
        request = new_task.request
        names = request.parent is not None or request.external_id is not None
        for given in request.inputs:
            names = names or isinstance(given, Shared)
        if names:
            naming.append(new_task)
    if not naming:
        return
    for check in (check_parents, check_shared, check_external_ids):
        for error in check(uow, group_id, naming).values():
            raise error


def _new_task(uow: UnitOfWork, draft: JobDraft, index: int, deadline: Micros) -> NewTask:
    node = draft.graph.nodes[index]
    allowed = node.request.deadline_s
    return NewTask(
        task_id=draft.task_ids[node.label],
        request=node.request,
        authenticated=draft.authenticated,
        deadline_at=deadline if allowed is None else min(deadline, uow.now + allowed * SECOND),
        job_id=draft.job_id,
        insertion=index,
        label=node.label,
        definition_hash=draft.definitions[node.label],
        parents=[draft.task_ids[draft.graph.nodes[p].label] for p in draft.dag.parents[index]],
        policy=node.policy,
        hold=node.hold,
        resume_scope=draft.scopes[index],
    )


def _produced(uow: UnitOfWork, draft: JobDraft, part: Sequence[int]) -> dict[str, list[OutputSlot]]:
    """The outputs of parents that were stored in earlier chunks."""
    earlier = {parent for index in part for parent in draft.dag.parents[index]} - set(part)
    tasks = {draft.graph.nodes[i].label: draft.task_ids[draft.graph.nodes[i].label] for i in earlier}
    found = values.outputs(uow.tx, sorted(tasks.values())) if tasks else {}
    return output_slots({label: found.get(task_id, []) for label, task_id in tasks.items()})


def output_slots(outputs: Mapping[str, Sequence[OutputRow]]) -> dict[str, list[OutputSlot]]:
    """The output slots of stored tasks, by label."""
    return {
        label: [OutputSlot(value_id, kind == values.SHARED, shared_id) for kind, value_id, shared_id, _ in rows]
        for label, rows in outputs.items()
    }


def start_page(uow: UnitOfWork, _work: ChunkedWork, page: list[TaskResult]) -> None:
    """Make the next tasks of a job ready that wait for nothing.

    The others get their first event, and the deadline as due time.
    """
    make_ready(uow, [task for task in page if _may_start(task)])
    unannounced = [task for task in page if task.seq == 0 and task.state == TaskState.WAITING]
    uow.load_requests(task.id for task in unannounced)
    for task in unannounced:
        task.due_at = uow.requests[task.id].deadline_at
        uow.touch(task)
