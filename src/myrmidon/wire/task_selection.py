"""Many tasks at once: /api/v1/tasks/counts and /api/v1/tasks/batch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.wire.tasks import TaskFilterQuery

MAX_BATCH = 1_000


class CountQuery(TaskFilterQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters as for the list of tasks; all must match."""


class TaskCounts(Struct, frozen=True, kw_only=True):
    """Numbers of tasks by state. ``complete`` is false if only the newest 20,000 were looked at."""

    counts: dict[str, int]
    total: int
    complete: bool


class TaskBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do with these tasks. ``dry_run``: change nothing, but say how many would be changed.

    Running tasks are cancelled only with ``kill_running``; tasks that have succeeded run again only with ``force``.
    """

    action: Literal["cancel", "rerun"]
    task_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH)]
    kill_running: bool = False
    force: bool = False
    dry_run: bool = False


class SkippedTask(Struct, frozen=True):
    task_id: str
    why: str


class BatchDone(Struct, frozen=True, kw_only=True):
    """The number of tasks that were changed, and why the others were not."""

    num_tasks: int
    num_changed: int
    skipped: list[SkippedTask]
