"""Resume: a job that is submitted again under its external id takes over what an earlier revision has done.

The same document again is the same job. A changed one becomes a new job, the next *revision*: it gets the external id,
and the earlier job keeps it with its own revision, as in ``wc-1~1``. Functions of the new revision take over results
of earlier ones when code, inputs and environment are equal, whether they are idempotent or not.

What may answer what is the *scope* of a task, which is part of its dedupe key: the external id, and which of several
equal calls it is. A function may give a different result each time, so a hundred equal calls must be answered by a
hundred results, and a further one must run.
"""

from msgspec import Struct

from myrmidon.model.dag import Dag
from myrmidon.model.ids import Micros
from myrmidon.model.job import Graph, Node
from myrmidon.model.states import JobState
from myrmidon.model.task_request import Constant, Gathered, Input, OutputOf, Payload, TaskRequest
from myrmidon.scheduler.cancel import begin_cancel
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import LostRace, Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import request_key as request_keys
from myrmidon.store.tables.job import Job

_REVISION = "~"
"""Between an external id and a revision. No external id that users give has it."""


# ---------------------------------------------------------------- scopes


def scopes_of(graph: Graph, dag: Dag) -> list[str | None]:
    """The scope of each node of a graph with an external id; None for nodes that resume does not answer.

    Calls are equal if they call the same function with equal constants and with results of equal calls; they are
    numbered in the order of the graph.
    """
    scopes: list[str | None] = [None] * len(graph.nodes)
    if graph.external_id is None:
        return scopes
    classes: dict[object, int] = {}
    class_of: dict[str, int] = {}
    counts: dict[int, int] = {}
    for index in dag.order:
        node = graph.nodes[index]
        described = _description(node, class_of) if may_resume(node.request) else node.label
        number = class_of[node.label] = classes.setdefault(described, len(classes))
        if may_resume(node.request):
            counts[number] = counts.get(number, -1) + 1
            scopes[index] = f"{graph.external_id}#{counts[number]}"
    return scopes


def scope_of_added(job: Job, node: Node) -> str | None:
    """The scope of a node that an extension adds: equal calls cannot be counted there, so it is that of its label."""
    if job.external_id is None or not may_resume(node.request):
        return None
    return f"{external_id_of(job.external_id)}#{node.label}"


def may_resume(request: TaskRequest) -> bool:
    """Whether an earlier result can be told to be of the same work: it calls a function whose code is known."""
    return request.function is not None and bool(request.function.code)


def external_id_of(text: str) -> str:
    """The external id that all revisions of a job share."""
    return text.partition(_REVISION)[0]


def _description(node: Node, class_of: dict[str, int]) -> object:
    function = node.request.function
    assert function is not None  # noqa: S101 - may_resume
    return (
        function.package_name,
        function.func_name,
        function.identity or function.code,
        function.environment,
        *[_input_description(given, class_of) for given in node.request.inputs],
    )


def _input_description(given: Input, class_of: dict[str, int]) -> object:
    match given:
        case Constant(type=kind, payload=payload):
            return (kind, *_bytes_of(payload))
        case OutputOf(label=label, position=position):
            return (class_of.get(label, label), position)
        case Gathered(parts=parts, shape=shape):
            places = [(class_of.get(part.label, part.label), part.position) for part in parts]
            return (*_bytes_of(shape), *places)
        case _:
            return given.shared_value_id


def _bytes_of(payload: Payload | None) -> tuple[bytes | None, str | None]:
    return (payload.inline, payload.digest) if payload is not None else (None, None)


# ---------------------------------------------------------------- revisions


class Revision(Struct, frozen=True):
    """What a new revision follows: the job that it supersedes, and its own number."""

    earlier: Job | None
    number: int


def attached(tx: Tx, group_id: int, external_id: str | None, body_hash: str, *, now: Micros) -> int | None:
    """The job to which a resumed submit attaches: the one with this external id, if it has the same document.

    Not a cancelled one, nor a failed one past its deadline: these cannot go on.
    """
    holder = jobs.by_external(tx, group_id, external_id) if external_id is not None else None
    job = jobs.read(tx, [holder]).get(holder) if holder is not None else None
    if job is None or job.staged or body_hash not in request_keys.bodies(tx, job.id):
        return None
    over = job.state == JobState.CANCELLED or (job.state == JobState.FAILED and job.deadline_at <= now)
    return None if over else job.id


def supersede(uow: UnitOfWork, group_id: int, external_id: str, body_hash: str, *, staged: int) -> Revision:
    """Take the external id from the job that has it, and cancel that job if it still runs.

    The new job is locked too, if it is staged: jobs are locked by ascending id. Raises LostRace if the job is one to
    attach to, which another submit has stored since the caller looked for it.
    """
    holder = jobs.by_external(uow.tx, group_id, external_id)
    uow.lock_jobs([staged, holder])
    if holder is None:
        return Revision(None, 1)
    earlier = uow.jobs.get(holder)
    if earlier is None or earlier.external_id != external_id:
        raise LostRace("another submit has taken the external id meanwhile")
    if attached(uow.tx, group_id, external_id, body_hash, now=uow.now) is not None:
        raise LostRace("another submit has stored the same job meanwhile")
    begin_cancel(uow, earlier, "superseded")
    number = earlier.revision + 1
    jobs.name(uow.tx, earlier, f"{external_id}{_REVISION}{earlier.revision}", earlier.revision)
    return Revision(earlier, number)
