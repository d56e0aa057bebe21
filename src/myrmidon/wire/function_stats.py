"""Functions by name: /api/v1/functions."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.wire.fields import Micros


class FunctionSummary(Struct, frozen=True, kw_only=True):
    """A function ``package:name``. Durations are those of its successful tasks, in seconds."""

    name: str
    num_tasks: int
    num_running: int
    num_failed: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    last_at: Micros


class FunctionList(Struct, frozen=True):
    functions: list[FunctionSummary]


class FunctionFailures(Struct, frozen=True, kw_only=True):
    """Failures that look alike; ``last_task_id`` is the newest one. ``error``: type and first line of the exception."""

    state: str
    reason: str
    error: str
    num_tasks: int
    last_task_id: str


class FunctionTaskInfo(Struct, frozen=True, kw_only=True):
    task_id: str
    state: str
    created_at: Micros
    duration_s: float | None


class FunctionVersion(Struct, frozen=True, kw_only=True):
    """Tasks with the same code: the digest of its zip, null for code that is installed on the bot."""

    code: str | None
    num_tasks: int
    num_failed: int
    last_at: Micros


class FunctionInfo(Struct, frozen=True, kw_only=True):
    """``tasks``: the newest ones; ``summary`` is None if no recent task has run the function."""

    name: str
    summary: FunctionSummary | None
    errors: list[FunctionFailures]
    versions: list[FunctionVersion]
    tasks: list[FunctionTaskInfo]
