"""Renders jobs and tasks in the form of TaskCluster's graph scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import UNSET, UnsetType, json

from myrmidon.model.ids import show_task
from myrmidon.model.states import TaskState
from myrmidon.relays.messages import task_kind
from myrmidon.server.taskcluster import messages
from myrmidon.server.taskcluster.documents import METADATA_LIMITS, kept_fields
from myrmidon.store.tables.job import Job
from myrmidon.store.views.task_graph import GraphEdge, GraphTask

_State = Literal["unscheduled", "scheduled", "completed", "failed", "exception"]
_STATES: Final[Mapping[str, _State]] = {
    "task-pending": "scheduled",
    "task-running": "scheduled",
    "task-completed": "completed",
    "task-failed": "failed",
    "task-exception": "exception",
}
"""By the kind of the message that has announced the state of a task, so that both say the same."""


def status(job: Job, scheduler_id: str, routing: str | UnsetType = UNSET) -> messages.GraphStatus:
    return messages.GraphStatus(
        task_graph_id=job.external_id or show_task(job.id),
        scheduler_id=scheduler_id,
        state=job.view,  # type: ignore[arg-type]
        routing=routing,
    )


def metadata(job: Job) -> messages.Metadata:
    """The four texts of a task-graph; those that a job of another API does not have are empty."""
    given = {"name": job.name, **json.decode(job.metadata, type=dict[str, str])}
    return messages.Metadata(**{key: given.get(key, "") for key in METADATA_LIMITS})


def tags(job: Job) -> dict[str, str]:
    kept = kept_fields(json.decode(job.metadata, type=dict[str, str]))
    if kept is not None:
        return kept.tags
    parts = [tag.partition(":") for tag in json.decode(job.tags, type=list[str])]
    return {key: value for key, _, value in parts}


def scopes(job: Job) -> list[str]:
    kept = kept_fields(json.decode(job.metadata, type=dict[str, str]))
    return kept.scopes if kept is not None else []


def task_id(task: GraphTask) -> str:
    return task.external_id or show_task(task.id)


def _state(task: GraphTask) -> _State:
    return "unscheduled" if task.state == TaskState.WAITING else _STATES[task_kind(task.state, task.reason)]


def tasks(wanted: Iterable[GraphTask], edges: Sequence[GraphEdge], shown: Mapping[int, str]) -> list[messages.TaskInfo]:
    """Tasks with their edges; ``shown`` has the ids of all tasks of these edges as clients know them."""
    parents: defaultdict[int, list[GraphEdge]] = defaultdict(list)
    children: defaultdict[int, list[int]] = defaultdict(list)
    for edge in edges:
        parents[edge.child].append(edge)
        children[edge.parent].append(edge.child)
    return [
        messages.TaskInfo(
            task_id=task_id(task),
            name=task.label,
            requires=[shown[edge.parent] for edge in parents[task.id]],
            requires_left=[shown[edge.parent] for edge in parents[task.id] if edge.satisfied_by is None],
            reruns=task.reruns,
            reruns_left=max(task.reruns - task.num_reruns, 0),
            state=_state(task),
            satisfied=task.state == TaskState.SUCCEEDED,
            dependents=[shown[child] for child in children[task.id]],
        )
        for task in wanted
    ]
