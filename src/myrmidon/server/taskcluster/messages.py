"""The answers of TaskCluster's graph scheduler. Clients check them by schemas that allow no other fields."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class Ping(Struct, frozen=True):
    alive: bool
    uptime: float
    """Seconds since the server started."""


class GraphStatus(Struct, frozen=True, rename="camel", kw_only=True):
    task_graph_id: str
    scheduler_id: str
    state: Literal["running", "blocked", "finished"]
    routing: str | UnsetType = UNSET
    """Only in the answer to a document that has one."""


class StatusReply(Struct, frozen=True):
    status: GraphStatus


class Metadata(Struct, frozen=True):
    name: str
    description: str
    owner: str
    source: str


class InfoReply(Struct, frozen=True):
    status: GraphStatus
    metadata: Metadata
    tags: dict[str, str]


class TaskInfo(Struct, frozen=True, rename="camel", kw_only=True):
    """A task of a graph. ``requires_left`` are the parents that it still waits for."""

    task_id: str
    name: str
    requires: list[str]
    requires_left: list[str]
    reruns: int
    reruns_left: int
    state: Literal["unscheduled", "scheduled", "completed", "failed", "exception"]
    satisfied: bool
    dependents: list[str]


class InspectReply(Struct, frozen=True):
    status: GraphStatus
    tasks: list[TaskInfo]
    metadata: Metadata
    tags: dict[str, str]
    scopes: list[str]
