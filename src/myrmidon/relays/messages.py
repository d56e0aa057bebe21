"""Messages: what systems outside of Myrmidon get to know of an event.

A message is about a change that users know: a task became pending, running, completed, failed or ended with an
exception; a graph is running, blocked, finished or was extended. Events about anything else, such as a request to kill
a running task, are no messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, json

from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.model.states import TaskState
from myrmidon.relays.routing_keys import SCHEDULER, graph_key, task_key
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import outbox
from myrmidon.store.tables.outbox import Event, JobBody, TaskBody
from myrmidon.store.views import message_facts
from myrmidon.store.views.message_facts import JobFacts, TaskFacts

VERSION = 1
TASK_KINDS = ("task-pending", "task-running", "task-completed", "task-failed", "task-exception")
GRAPH_KINDS = ("task-graph-running", "task-graph-blocked", "task-graph-finished", "task-graph-extended")
KINDS = (*TASK_KINDS, *GRAPH_KINDS)
ROUTE_TAG = "route:"
"""A tag ``route:NAME`` of a task or job asks for its messages under the further routing key ``route.NAME``."""
ROUTE_BYTES = 255
_OF_STATE = {
    TaskState.READY: "task-pending",
    TaskState.RUNNING: "task-running",
    TaskState.SUCCEEDED: "task-completed",
    TaskState.FAILED: "task-failed",
    TaskState.TIMED_OUT: "task-failed",
}
_encode = json.Encoder().encode
_task_body = json.Decoder(TaskBody).decode
_job_body = json.Decoder(JobBody).decode


class Message(Struct, frozen=True):
    """One message, ready to be sent. A message that is sent again has the same ``message_id``."""

    position: int
    kind: str
    message_id: str
    at: Micros
    resource_group_id: int
    key: str
    routes: list[str]
    body: bytes


class TaskMessage(Struct, frozen=True, kw_only=True):
    """The body of a message about a task. Ids have the form of the API; absent fields do not apply."""

    version: int = VERSION
    kind: str
    message_id: str
    at: Micros
    task: str
    seq: int
    state: str
    generation: int
    reason: str
    resource_group: str
    name: str
    tags: list[str]
    pool: str
    external_id: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    job: str | UnsetType = UNSET
    job_external_id: str | UnsetType = UNSET
    run: str | UnsetType = UNSET
    bot: str | UnsetType = UNSET


class GraphStatus(Struct, frozen=True, rename="camel"):
    """The status of a graph in the form of TaskCluster's scheduler."""

    task_graph_id: str
    scheduler_id: str
    state: str


class GraphMessage(Struct, frozen=True, kw_only=True):
    """The body of a message about a graph; ``blocked_by`` is the task that failed for good."""

    version: int = VERSION
    kind: str
    message_id: str
    at: Micros
    job: str
    seq: int
    state: str
    status: GraphStatus
    resource_group: str
    name: str
    tags: list[str]
    external_id: str | UnsetType = UNSET
    blocked_by: str | UnsetType = UNSET


def build(tx: Tx, events: Sequence[Event]) -> list[Message]:
    """The messages of these events, in their order. Tasks and jobs that were deleted meanwhile get none."""
    before = outbox.predecessors(tx, events)
    announced = [(event, kind) for event in events if (kind := kind_of(event, before.get((event.subject, event.seq))))]
    tasks = message_facts.tasks(tx, sorted({event.subject for event, _ in announced if event.kind == outbox.TASK}))
    job_ids = {event.subject for event, _ in announced if event.kind == outbox.JOB}
    job_ids |= {facts.job_id for facts in tasks.values() if facts.job_id is not None}
    jobs = message_facts.jobs(tx, sorted(job_ids))
    messages = []
    for event, kind in announced:
        if event.kind == outbox.TASK and event.subject in tasks:
            facts = tasks[event.subject]
            messages.append(_of_task(event, kind, facts, jobs.get(facts.job_id or 0)))
        elif event.kind == outbox.JOB and event.subject in jobs:
            messages.append(_of_graph(event, kind, jobs[event.subject]))
    return messages


def kind_of(event: Event, before: tuple[str, str] | None) -> str | None:
    """The kind of an event's message; None if nothing has changed that messages are about.

    ``before``: state and body of the event before it, as `outbox.predecessors` returns them.
    """
    return _task_kind(event, before) if event.kind == outbox.TASK else _graph_kind(event, before)


def _task_kind(event: Event, before: tuple[str, str] | None) -> str | None:
    if event.state == TaskState.WAITING:
        return None
    body = _task_body(event.body)
    if before is not None and before[0] == event.state:
        earlier = _task_body(before[1])
        if (earlier.generation, earlier.run) == (body.generation, body.run):
            return None  # a flag has changed, or the slice that the task waits with
    return task_kind(event.state, body.reason)


def task_kind(state: str, reason: str) -> str:
    """The kind of the message about a task that has come to this state; not for WAITING."""
    if state == TaskState.TIMED_OUT and reason == "deadline":
        return "task-exception"  # the deadline of the task has passed: its command did not exceed its own limit
    return _OF_STATE.get(TaskState(state), "task-exception")


def _graph_kind(event: Event, before: tuple[str, str] | None) -> str | None:
    body = _job_body(event.body)
    if body.what == "extended":
        return "task-graph-extended"
    if before is not None and _job_body(before[1]).view == body.view:
        return None
    return f"task-graph-{body.view}"


def _of_task(event: Event, kind: str, task: TaskFacts, job: JobFacts | None) -> Message:
    said = _task_body(event.body)
    pool, canonical = task.dimensions.get(said.slice, ("", ""))
    graph = (job.external_id if job else None) or (show_task(task.job_id) if task.job_id is not None else "")
    message_id = message_id_of(event)
    body = TaskMessage(
        kind=kind,
        message_id=message_id,
        at=event.at,
        task=show_task(event.subject),
        seq=event.seq,
        state=event.state,
        generation=said.generation,
        reason=said.reason,
        resource_group=task.resource_group,
        name=task.name,
        tags=task.tags,
        pool=pool,
        external_id=_given(task.external_id),
        label=_given(task.label),
        job=show_task(task.job_id) if task.job_id is not None else UNSET,
        job_external_id=_given(job.external_id if job else None),
        run=show_run(event.subject, said.run) if said.run else UNSET,
        bot=_given(said.bot),
    )
    key = task_key(
        task=body.task,
        run=said.run,
        bot=said.bot,
        pool=pool,
        worker_type=_worker_type(canonical),
        graph=graph,
        graph_routing=job.routing if job else "",
        routing=task.routing,
    )
    return _message(event, kind, task, key, body)


def _of_graph(event: Event, kind: str, job: JobFacts) -> Message:
    said = _job_body(event.body)
    graph = job.external_id or show_task(event.subject)
    body = GraphMessage(
        kind=kind,
        message_id=message_id_of(event),
        at=event.at,
        job=show_task(event.subject),
        seq=event.seq,
        state=event.state,
        status=GraphStatus(graph, SCHEDULER, said.view),
        resource_group=job.resource_group,
        name=job.name,
        tags=job.tags,
        external_id=_given(job.external_id),
        blocked_by=show_task(said.blocked_by) if said.blocked_by is not None else UNSET,
    )
    return _message(event, kind, job, graph_key(graph=graph, routing=job.routing), body)


def _message(event: Event, kind: str, facts: TaskFacts | JobFacts, key: str, body: Any) -> Message:
    return Message(
        position=event.position,
        kind=kind,
        message_id=message_id_of(event),
        at=event.at,
        resource_group_id=facts.resource_group_id,
        key=key,
        routes=routes(facts.tags),
        body=_encode(body),
    )


def message_id_of(event: Event) -> str:
    """The id of an event's message: the task or job, and how many changes it has had."""
    return f"{show_task(event.subject)}.{event.seq}"


def routes(tags: Sequence[str]) -> list[str]:
    """The further routing keys that tags ask for; one that is too long for a key is left out."""
    found = [f"route.{tag.removeprefix(ROUTE_TAG)}" for tag in tags if tag.startswith(ROUTE_TAG)]
    return [route for route in found if len(route.encode()) <= ROUTE_BYTES]


class _WorkerType(Struct, frozen=True):
    worker_type: list[str] = []


_worker_types = json.Decoder(_WorkerType).decode


def _worker_type(canonical: str) -> str:
    """The value of the dimension worker_type, if a task requires exactly one."""
    values = _worker_types(canonical).worker_type if canonical else []
    return values[0] if len(values) == 1 else ""


def _given(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value
