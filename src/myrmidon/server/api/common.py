"""Types and helpers that several files of this API share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.ids import show_task
from myrmidon.server.calls import ANYONE, Role

ANY_TOKEN = ANYONE - {Role.NOBODY, Role.RUN}
LAST_ID = (1 << 63) - 1
"""No id is greater."""

Limit = Annotated[int, Meta(ge=1, le=1000)]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+(?!\n)$")]
"""In Python ``$`` alone also matches before a final newline; JSON Schema, which the OpenAPI document uses, has no
``\\Z``."""
Moment = Annotated[int, Meta(ge=0, le=9_000_000_000_000_000)]
"""Microseconds UTC since 1970. The maximum is in the year 2255: ids cannot hold times beyond 2288."""


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a list: at most ``limit`` entries, from ``cursor`` on."""

    limit: Limit = 100
    cursor: str | None = None


class Done(Struct, frozen=True):
    ok: bool = True


def show_optional_task(task_id: int | None) -> str | None:
    return show_task(task_id) if task_id is not None else None
