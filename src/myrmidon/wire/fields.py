"""Types of fields that several structs of the API share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

MAX_INT64: Final = (1 << 63) - 1
Limit = Annotated[int, Meta(ge=1, le=1000)]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+(?!\n)$")]
"""In Python ``$`` alone also matches before a final newline; JSON Schema, which the OpenAPI document uses, has no
``\\Z``."""
Micros: TypeAlias = int
"""Microseconds UTC since 1970."""
Moment = Annotated[int, Meta(ge=0, le=9_000_000_000_000_000)]
"""A time in a request. The maximum is in the year 2255: ids cannot hold times beyond 2288."""


class Form(StrEnum):
    """How the server shows a number that it stores (store/views/selection.py)."""

    TASK = "the id of a task or job, in hexadecimal digits"
    HEX = "another id, in hexadecimal digits"
    SECONDS = "microseconds, as seconds"


TaskId: TypeAlias = Annotated[str, Form.TASK]
HexId: TypeAlias = Annotated[str, Form.HEX]
Seconds: TypeAlias = Annotated[float, Form.SECONDS]
TaskStateName = Literal[
    "WAITING", "READY", "RUNNING", "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "CANCELLED", "KILLED",
    "NO_RESOURCE", "CLIENT_ERROR",
]  # fmt: skip


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a list: at most ``limit`` entries, from ``cursor`` on."""

    limit: Limit = 100
    cursor: str | None = None


class Done(Struct, frozen=True):
    ok: bool = True


class ProblemInfo(Struct, frozen=True):
    """One problem of a request: where it is, what was given, and what is allowed there."""

    path: str
    value: str
    allowed: str
    code: str


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error as calls answer it.

    ``code`` never changes; ``message`` says what to do; ``problems`` lists all of an invalid request; ``reason`` tells
    apart what has the same code.
    """

    code: str
    message: str
    problems: list[ProblemInfo] = []
    reason: str = ""
