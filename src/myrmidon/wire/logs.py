"""Logs of tasks: the queries of /api/v1/tasks/{id}/log, and the events of a followed log."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from myrmidon.wire.fields import MAX_INT64, Micros

MAX_RANGE_BYTES: Final = 8 << 20
MAX_RUN: Final = 255
"""The number of a run is the last byte of its id."""
Offset = Annotated[int, Meta(ge=0, le=MAX_INT64)]
RunNumber = Annotated[int, Meta(ge=1, le=MAX_RUN)]


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"
    BOTH = "both"


class LogQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bytes. ``run`` is the task's deciding or last one if absent; with both streams, stderr follows stdout."""

    run: RunNumber | None = None
    stream: Stream = Stream.BOTH
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_RANGE_BYTES)] = 1 << 20


class FollowQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which run; if absent, the task's current run and all later ones, until the task has ended."""

    run: RunNumber | None = None
    stream: Stream = Stream.BOTH


class LogBytes(Struct, frozen=True, kw_only=True):
    """Bytes of a run's log. ``stream`` is 0 for stdout, 1 for stderr; ``offset`` is the position in that stream."""

    run: str
    stream: int
    offset: int
    data: bytes


class LogGap(Struct, frozen=True, kw_only=True):
    """``missing`` bytes of a run's log that are not stored."""

    run: str
    stream: int
    offset: int
    missing: int


class Ended(Struct, frozen=True):
    """The last event of a stream: the end of the task, or of the run if one was chosen."""

    task_id: str
    run: str | None
    state: str
    reason: str
    exit_code: int | None


class LogTimesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``run`` as for a range. ``after``: ``next`` of the page before."""

    run: RunNumber | None = None
    after: Offset = 0


class LogTimes(Struct, frozen=True, kw_only=True):
    """``marks``: time in microseconds, stream (0: stdout, 1: stderr) and offset: from there on, up to the next mark of
    the stream, bytes were written at that time. The times are also the order between the streams.

    Each page is sorted; the marks of the next one may be between them. ``next`` is null on the last page.
    """

    run: str | None
    marks: list[tuple[Micros, int, int]]
    next: Micros | None
