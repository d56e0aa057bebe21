"""Search: /api/v1/search."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import TaskId


class SearchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``q``: the beginning of an id or tag, or a part of a name. ``limit``: how many of each kind."""

    q: Annotated[str, Meta(min_length=1, max_length=200)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 8


class FoundItem(Struct, frozen=True):
    id: TaskId
    name: str
    state: str


class SearchResult(Struct, frozen=True, kw_only=True):
    """What was found of each kind. Names are compared of the newest 20,000 tasks and 5,000 jobs."""

    tasks: list[FoundItem]
    jobs: list[FoundItem]
    bots: list[str]
    tags: list[str]
