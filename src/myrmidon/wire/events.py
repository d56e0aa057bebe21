"""The stream of events: the query of /api/v1/events, and the data of an event."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from myrmidon.wire.fields import MAX_INT64, Micros

MAX_TASKS: Final = 100
"""The number of tasks that a stream can be restricted to."""
Kind = Literal[
    "task", "job",
    "task-pending", "task-running", "task-completed", "task-failed", "task-exception",
    "task-graph-running", "task-graph-blocked", "task-graph-finished", "task-graph-extended",
]  # fmt: skip
"""All events of tasks or of jobs, or the events that are messages of this kind (docs/messages.md)."""


class EventsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``after``: the position of the last event received; 0 for all stored events; absent for new events only.

    Filters: ``job``: events of a job and of its tasks; ``task``: events of these tasks; ``kind``: of these kinds.
    An event is sent if it passes all filters that are given.
    """

    after: Annotated[int, Meta(ge=0, le=MAX_INT64)] | None = None
    job: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    task: Annotated[list[str], Meta(max_length=MAX_TASKS)] = []
    kind: list[Kind] = []


class EventData(Struct, frozen=True):
    """The data of an event; ``about`` has further details."""

    position: int
    kind: str
    id: str
    seq: int
    state: str
    at: Micros
    about: dict[str, Any]
