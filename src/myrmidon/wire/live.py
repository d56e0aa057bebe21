"""The stream of what has changed: /api/v1/stream."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from myrmidon.wire.fields import MAX_INT64, Micros

MAX_TOPICS = 64


class LiveQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``topic``: ``tasks``, ``jobs``, ``bots`` for all that the caller may see; ``task:ID``; ``job:ID`` for a job and
    its tasks; ``bot:ID``; ``log:RUN`` for the length of a run's log. ``after``: the id of the last frame received."""

    topic: Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=MAX_TOPICS)] = []
    after: Annotated[int, Meta(ge=0, le=MAX_INT64)] | None = None


class Change(Struct, frozen=True, kw_only=True):
    """The last change of a task or job; ``about`` as in the event stream."""

    id: str
    seq: int
    state: str
    at: Micros
    about: dict[str, Any]


class LogLength(Struct, frozen=True, kw_only=True):
    """The bytes of a run's streams that have arrived."""

    run: str
    stdout: int
    stderr: int


class Frame(Struct, kw_only=True):
    """One frame. ``more``: there were further changes than it lists, so what is shown should be read again."""

    at: Micros
    tasks: list[Change] = []
    jobs: list[Change] = []
    bots: list[str] = []
    logs: list[LogLength] = []
    unknown: list[str] = []
    more: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.jobs or self.bots or self.logs or self.unknown or self.more)
