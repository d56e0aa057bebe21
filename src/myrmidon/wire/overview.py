"""What the first page of the web page shows: /api/v1/overview and /api/v1/bots/counts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from myrmidon.wire.fields import Micros
from myrmidon.wire.jobs import JobSummary
from myrmidon.wire.queues import QueueInfo
from myrmidon.wire.tasks import TaskSummary

Window = Literal["1h", "24h", "7d"]


class WindowQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """``window``: the time that the charts cover, up to now."""

    window: Window = "1h"


class TaskSeries(Struct, frozen=True, kw_only=True):
    """Numbers of tasks in each step of ``step`` microseconds, from ``start`` on; the last step is not over yet."""

    start: Micros
    step: Micros
    submitted: list[int]
    succeeded: list[int]
    failed: list[int]
    cancelled: list[int]


class StuckItem(Struct, frozen=True, kw_only=True):
    """Something that does not move by itself, and since when."""

    kind: Literal["queue", "run", "webhook"]
    id: str
    name: str
    since: Micros | None
    summary: str


class Overview(Struct, frozen=True, kw_only=True):
    """``bots``: numbers by status. ``queues``: the deepest ones. ``stuck``: empty when all is well."""

    now: Micros
    bots: dict[str, int]
    num_ready: int
    num_running: int
    queues: list[QueueInfo]
    series: TaskSeries
    stuck: list[StuckItem]
    my_tasks: list[TaskSummary]
    my_jobs: list[JobSummary]


class BotCounts(Struct, frozen=True):
    """Numbers of bots by status, and of live bots by release."""

    counts: dict[str, int]
    versions: dict[str, int]
