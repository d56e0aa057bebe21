"""Jobs: graphs of tasks, submitted as one document.

    Graph
    └── nodes[]          label, requires (explicit edges), policy, hold
        └── request      whose OutputOf inputs are the data edges

How a job runs, fails and is retried is in scheduler/.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.limits import DEFAULT_LIMITS as _MOST
from myrmidon.model.task_request import (
    CLEAN,
    Deadline,
    Digest,
    ExternalId,
    Metadata,
    Routing,
    Tags,
    TaskRequest,
)


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
    """A job as it was requested. The struct declares what a document may hold, as TaskRequest does.

    ``code``: digests of code that none of the nodes has, for tasks that the nodes add to the job while they run.
    """

    name: Annotated[str, Meta(max_length=_MOST.name_chars, pattern=CLEAN)]
    nodes: list[Node]
    external_id: ExternalId | None = None
    routing: Routing = ""
    failure_policy: FailurePolicy = FailurePolicy.CONTINUE
    max_num_retries: Annotated[int, Meta(ge=0, le=_MOST.job_retries_max)] = _MOST.job_retries_default
    deadline_s: Deadline | None = None
    metadata: Metadata = {}
    tags: Tags = []
    code: Annotated[list[Digest], Meta(max_length=_MOST.job_codes)] = []


def composed_routing(*, deployment: str, graph_id: str, graph_routing: str, task_routing: str) -> str:
    """The end of a task's routing key. Empty parts keep their dot, because consumers match words by position."""
    return f"{deployment}.{graph_id}.{graph_routing}.{task_routing}"
