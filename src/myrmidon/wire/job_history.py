"""Jobs over time: names, flaky labels, timelines and failures."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Limit, Micros, TaskId
from myrmidon.wire.functions import FunctionError

MAX_TIMES = 10_000


class NamesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``limit``: how many names, those with the newest jobs first."""

    limit: Limit = 100


class JobRunInfo(Struct, frozen=True):
    job_id: TaskId
    state: str
    created_at: Micros
    ended_at: Micros | None
    num_tasks: int
    num_failed: int


class JobName(Struct, frozen=True, kw_only=True):
    """Jobs of one name in a resource group; ``runs`` has the last 30, newest first."""

    name: str
    group: str
    num_jobs: int
    num_failed: int
    runs: list[JobRunInfo]


class JobNames(Struct, frozen=True):
    """Names of the newest 5,000 jobs."""

    names: list[JobName]


class FlakyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class BotRuns(Struct, frozen=True):
    """Runs of a label on one bot."""

    bot_id: str
    num_runs: int
    num_failed: int


class FlakyLabel(Struct, frozen=True, kw_only=True):
    """A label that has failed and succeeded; ``bots`` has those on which it has failed, most failures first."""

    label: str
    num_runs: int
    num_failed: int
    bots: list[BotRuns]


class FlakyLabels(Struct, frozen=True):
    """``num_jobs``: how many of the last jobs of the name were looked at: 30, fewer if they are large."""

    num_jobs: int
    labels: list[FlakyLabel]


class TimelineQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_TIMES)] = 2_000
    cursor: str | None = None


class TimelineRow(Struct, frozen=True):
    """A task waits for a bot from ``ready_at`` to ``started_at`` and runs until ``completed_at``."""

    label: str
    task_id: TaskId
    state: str
    bot_id: str | None
    ready_at: Micros | None
    started_at: Micros | None
    completed_at: Micros | None
    critical: bool


class Timeline(Struct, frozen=True, kw_only=True):
    """Tasks in the order of their ids. ``critical_path``: the ids of the tasks that decide when the job ends."""

    created_at: Micros
    ended_at: Micros | None
    now: Micros
    num_tasks: int
    rows: list[TimelineRow]
    critical_path: list[str]
    cursor: str | None


class FailureInfo(Struct, frozen=True, kw_only=True):
    label: str
    task_id: str
    run: str | None
    bot_id: str | None
    exit_code: int | None
    completed_at: Micros | None


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Tasks that have failed alike: by the same exception at the same place, or by output that differs in numbers only.

    ``message``, ``error`` and ``tail`` are those of the first one: in a line what happened, the exception of a
    function, and the last lines of its log, stdout before stderr.
    """

    state: str
    reason: str
    exit_code: int | None
    message: str
    num_tasks: int
    tasks: list[FailureInfo]
    tail: str
    error: FunctionError | None = None


class JobFailures(Struct, frozen=True, kw_only=True):
    """The failures of a job, most frequent first. ``last_success``: the last earlier job of the name that succeeded."""

    num_failed: int
    groups: list[FailureGroup]
    last_success: str | None
