"""Dedupe: a task takes over the result of an equal earlier one instead of running.

An idempotent slice lets any equal task of the group answer; a function with a resume scope lets equal calls of
earlier revisions of its job answer (resume.py).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from msgspec import Struct, structs

from myrmidon.model.states import SUCCEEDED, WAITING
from myrmidon.model.task_request import dedupe_key
from myrmidon.model.task_result import TaskResult
from myrmidon.model.value import Value
from myrmidon.scheduler.outputs import Produced, copy_outputs, read_produced
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import dedupe, edge, job_code, task_request
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RequestRow, SliceRow
from myrmidon.store.views import job_details


class Source(Struct, frozen=True):
    """An earlier run whose result a task takes over: its cost, its outputs, and the slice of the task that is equal."""

    task_id: int
    run: int
    cost_usd: float
    slice: int
    outputs: Sequence[Produced] = ()
    copied_to: Sequence[values.OutputRow] = ()
    """The outputs of the task that takes over the result."""


# ---------------------------------------------------------------- looking up


def find_sources(uow: UnitOfWork, tasks: Sequence[TaskResult]) -> dict[int, Source]:
    """Equal earlier results by task, for tasks in their first generation that have not run.

    A rerun must run again. A READY task only moves to another slice: it was looked up when it became ready.
    """
    asking: list[TaskResult] = []
    for task in tasks:
        is_fresh = task.run_number == 0 and task.generation == 1 and task.state == WAITING
        if is_fresh and (_is_idempotent(uow, task) or _resumes(uow, task)):
            asking.append(task)
    asking = _with_own_code(uow, asking) if asking else []
    if not asking:
        return {}
    keys = dedupe_keys(uow, [task.id for task in asking])
    every_key = sorted({key for by_slice in keys.values() for key in by_slice.values()})
    found = dedupe.find(uow.tx, every_key, uow.now - uow.rules.dedupe_window)
    return _with_outputs(uow, _choose(uow, asking, keys, found))


def _choose(
    uow: UnitOfWork,
    tasks: Sequence[TaskResult],
    keys: Mapping[int, Mapping[int, str]],
    found: Mapping[str, Sequence[dedupe.Found]],
) -> dict[int, Source]:
    """The result that answers each task, in the first of its slices for which there is one."""
    labels = _labels_of_several(uow, tasks, found)
    resumed: dict[tuple[str, int | None], _OfEarlierJobs] = {}
    hits = {}
    for task in tasks:
        for number, key in keys[task.id].items():
            several = found.get(key)
            if several is None:
                continue
            chosen: dedupe.Found | None = several[-1]
            if not uow.slices[task.id][number].idempotent:
                place = key, task.job_id
                if place not in resumed:
                    resumed[place] = _OfEarlierJobs(several, task.job_id, labels)
                chosen = resumed[place].best(labels.get(task.id))
            if chosen is not None:
                hits[task.id] = Source(chosen.task_id, chosen.run, chosen.cost_usd, slice=number)
                break
    return hits


class _OfEarlierJobs:
    """The results of a key that may answer calls of a job which are not idempotent: those of other jobs.

    The call with the same label is the best one: if nothing has changed, each call gets its own result.
    """

    def __init__(self, several: Sequence[dedupe.Found], job_id: int | None, labels: Mapping[int, str]) -> None:
        others = [one for one in several if one.job_id != job_id]
        self._newest = others[-1] if others else None
        self._by_label = {labels[one.task_id]: one for one in others if one.task_id in labels}

    def best(self, label: str | None) -> dedupe.Found | None:
        return self._by_label.get(label, self._newest) if label is not None else self._newest


def _labels_of_several(
    uow: UnitOfWork, tasks: Sequence[TaskResult], found: Mapping[str, Sequence[dedupe.Found]]
) -> dict[int, str]:
    """The labels of tasks and of what can answer them, if one of several is to be chosen by its label."""
    ids = {one.task_id for several in found.values() if len(several) > 1 for one in several}
    return job_details.labels_of(uow.tx, sorted(ids | {task.id for task in tasks})) if ids else {}


def _resumes(uow: UnitOfWork, task: TaskResult) -> bool:
    """Whether there may be an earlier revision of the task's job that has its result."""
    job = uow.job_of(task)
    return job is not None and job.revision > 1 and uow.requests[task.id].resume_scope is not None


def _with_outputs(uow: UnitOfWork, hits: dict[int, Source]) -> dict[int, Source]:
    """The same hits with the outputs to copy; tasks whose outputs are gone or erased meanwhile are left out."""
    takers = [task_id for task_id in hits if uow.requests[task_id].num_outputs]
    if not takers:
        return hits
    produced = read_produced(uow, [hits[task_id].task_id for task_id in takers])
    own = values.outputs(uow.tx, takers)
    checked = {task_id: hit for task_id, hit in hits.items() if task_id not in own}
    for task_id, rows in own.items():
        hit = hits[task_id]
        outputs = produced.get(hit.task_id)
        if outputs is not None and len(outputs) == len(rows):
            checked[task_id] = structs.replace(hit, outputs=outputs, copied_to=rows)
    return checked


def _with_own_code(uow: UnitOfWork, tasks: Sequence[TaskResult]) -> list[TaskResult]:
    """Those of the tasks whose code and environment were not replaced by a rerun: their keys name what they run."""
    coded = [task for task in tasks if uow.requests[task.id].code or uow.requests[task.id].environment]
    jobs = sorted({task.job_id for task in coded if task.job_id is not None})
    replaced = job_code.replaced(uow.tx, jobs) if jobs else {}
    return [task for task in tasks if not _is_replaced(uow, task, replaced)] if replaced else list(tasks)


def _is_replaced(uow: UnitOfWork, task: TaskResult, replaced: Mapping[tuple[int, str], str]) -> bool:
    request = uow.requests[task.id]
    return any((task.job_id or 0, digest) in replaced for digest in (request.code, request.environment) if digest)


def _is_idempotent(uow: UnitOfWork, task: TaskResult) -> bool:
    task_slices = uow.slices[task.id]
    return (
        bool(task_slices[0].idempotent)
        if len(task_slices) == 1
        else any(task_slice.idempotent for task_slice in task_slices)
    )


def take_over(uow: UnitOfWork, task: TaskResult, source: Source) -> None:
    """Let the task succeed without a run, with the result of an earlier task."""
    task.deduped_from = source.task_id
    task.deduped_run = source.run
    task.cost_saved_usd = source.cost_usd
    task.current_task_slice = source.slice
    copy_outputs(uow, task, source.copied_to, source.outputs)
    uow.move(task, SUCCEEDED, "deduped")


# ---------------------------------------------------------------- keys


def dedupe_keys(uow: UnitOfWork, task_ids: Sequence[int]) -> dict[int, dict[int, str]]:
    """The dedupe key of each slice of each task that an earlier result may answer.

    A key covers the bytes of the task's inputs, so it is known only when its
    parents have succeeded; that is why dedupe happens when a task becomes ready and not at submission.
    """
    uow.load_requests(task_ids)
    readers = [i for i in task_ids if uow.requests[i].num_inputs]
    inputs = values.inputs(uow.tx, readers) if readers else {}
    return {
        task_id: {
            task_slice.slice: _dedupe_key(uow, uow.requests[task_id], task_slice, inputs.get(task_id, []))
            for task_slice in uow.slices[task_id]
            if task_slice.idempotent or uow.requests[task_id].resume_scope is not None
        }
        for task_id in task_ids
    }


def _dedupe_key(uow: UnitOfWork, request: RequestRow, task_slice: SliceRow, inputs: Sequence[Value]) -> str:
    content = work_hash(task_slice.properties_hash, inputs)
    queue = uow.queue(task_slice.queue)
    scope = None if task_slice.idempotent else request.resume_scope
    pool = queue.pool if queue else ""
    return dedupe_key(content, request.resource_group_id, pool, request.service_account, scope)


def work_hash(properties_hash: str, inputs: Sequence[Value]) -> str:
    """64 hex characters that are equal for equal properties with equal inputs."""
    if not inputs:
        return properties_hash
    digest = sha256(properties_hash.encode())
    for value in inputs:
        digest.update(_content_of(value))
        if value.parts is not None:
            digest.update(f"\n{len(value.parts)} parts".encode())
            digest.update(b"".join(map(_content_of, value.parts)))
    return digest.hexdigest()


def _content_of(value: Value) -> bytes:
    payload = value.digest or sha256(value.payload or b"").hexdigest()
    return f"\n{value.type}\n{payload}".encode()


# ---------------------------------------------------------------- storing


def store_sources(uow: UnitOfWork, succeeded: Sequence[TaskResult]) -> None:
    """Store the results that equal tasks may take over under their dedupe keys."""
    uow.load_run_policies([task.id for task in succeeded])
    offering = [task for task in succeeded if uow.run_policy(task.id).offers_result]
    if not offering:
        return
    _forget_earlier_generations(uow, offering)
    uow.load_requests(task.id for task in offering)
    own_code = _with_own_code(uow, offering)
    sources = [task for task in own_code if _offers_slice(uow, task)]
    replaced = _with_replaced_inputs(uow, [t.id for t in sources if uow.requests[t.id].num_inputs])
    sources = [task for task in sources if task.id not in replaced]
    if not sources:
        return
    keys = dedupe_keys(uow, [task.id for task in sources])
    rows = [
        (keys[t.id][t.current_task_slice], t.id, t.instance_id or 0, uow.requests[t.id].created_at) for t in sources
    ]
    dedupe.insert(uow.tx, rows)


def _offers_slice(uow: UnitOfWork, task: TaskResult) -> bool:
    idempotent = uow.slices[task.id][task.current_task_slice].idempotent
    return bool(idempotent) or uow.requests[task.id].resume_scope is not None


def withdraw(uow: UnitOfWork, task_id: int) -> None:
    """Keep the result of a task from answering later revisions of its job."""
    task_request.clear_resume_scope(uow.tx, task_id)
    dedupe.delete(uow.tx, [task_id])


def _forget_earlier_generations(uow: UnitOfWork, tasks: Sequence[TaskResult]) -> None:
    """Delete the results that earlier generations of these tasks stored: their inputs may have been different."""
    rerun = [task.id for task in tasks if task.generation > 1]
    if rerun:
        dedupe.delete(uow.tx, rerun)


def _with_replaced_inputs(uow: UnitOfWork, readers: Sequence[int]) -> set[int]:
    """The tasks with a parent that has run again since they read their inputs: the stored inputs are newer."""
    return edge.children_of_reruns(uow.tx, readers) if readers else set()
