"""Jobs: graphs of tasks, submitted as one document.

    Graph
    └── nodes[]          label, requires (explicit edges), policy, hold
        └── request      whose OutputOf inputs are the data edges

How a job runs, fails and is retried is in scheduler/.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from myrmidon.model.task_request import TaskRequest, encode_task


class FailurePolicy(StrEnum):
    """What a failed task does to its job: other branches continue, or everything is cancelled."""

    CONTINUE = "continue"
    FAIL_FAST = "fail-fast"


class RequiresPolicy(StrEnum):
    """When a task may start: after all parents succeeded, or after all parents ended in any state."""

    ALL_SUCCEEDED = "all-succeeded"
    ALL_RESOLVED = "all-resolved"


class Node(Struct, frozen=True, kw_only=True, gc=False):
    """One task of a job. ``requires`` holds the explicit parents only; data edges come from the inputs."""

    label: str
    request: TaskRequest
    requires: list[str] = []
    policy: RequiresPolicy = RequiresPolicy.ALL_SUCCEEDED
    hold: bool = False


class Graph(Struct, frozen=True, kw_only=True):
    """A job as it was requested.

    ``code``: digests of code that none of the nodes has, for tasks that the nodes add to the job while they run.
    """

    name: str
    nodes: list[Node]
    external_id: str | None = None
    routing: str = ""
    failure_policy: FailurePolicy = FailurePolicy.CONTINUE
    max_num_retries: int = 0
    deadline_s: int | None = None
    metadata: dict[str, str] = {}
    tags: list[str] = []
    code: list[str] = []


def encode_graph(graph: Graph) -> dict[str, object]:
    """The JSON form that parse_graph reads back to an equal graph; without secrets."""
    tasks = {
        node.label: {
            "requires": list(node.requires),
            "requires_policy": node.policy.value,
            "hold": node.hold,
            "task": encode_task(node.request),
        }
        for node in graph.nodes
    }
    return {
        "name": graph.name,
        "external_id": graph.external_id,
        "routing": graph.routing,
        "failure_policy": graph.failure_policy.value,
        "max_num_retries": graph.max_num_retries,
        "deadline_s": graph.deadline_s,
        "metadata": dict(graph.metadata),
        "tags": list(graph.tags),
        "code": list(graph.code),
        "tasks": tasks,
    }


def composed_routing(*, deployment: str, graph_id: str, graph_routing: str, task_routing: str) -> str:
    """The end of a task's routing key. Empty parts keep their dot, because consumers match words by position."""
    return f"{deployment}.{graph_id}.{graph_routing}.{task_routing}"
