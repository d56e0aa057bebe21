"""Tasks: the bodies, queries and answers of /api/v1/tasks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Raw, Struct

from myrmidon.wire.fields import ErrorInfo, Limit, Micros, Moment, Name, Seconds, TaskId, TaskStateName
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.notes import Annotation

MAX_SUBMIT: Final = 10_000
"""The number of tasks that one call can submit."""
MAX_WAIT: Final = 1_000
"""The number of tasks that one call can wait for."""
EXAMPLE: Final = {
    "name": "hello",
    "slices": [
        {"properties": {"command": ["echo", "hello"], "dimensions": {"pool": ["default"]}}, "expiration_s": 600}
    ],
    "priority": 100,
    "tags": ["purpose:greeting"],
}
"""A task request; docs/requests.md describes every field."""


# ---------------------------------------------------------------- submit


class Submit(Struct, frozen=True, forbid_unknown_fields=True):
    """Task requests, in the format of docs/requests.md. Each is parsed and checked on its own."""

    tasks: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_SUBMIT, examples=[[EXAMPLE]])]
    group: Name | None = None


class TaskAnswer(Struct, frozen=True, omit_defaults=True):
    """The result for one task: its id and state, or an error. No id if the task was only evaluated."""

    task_id: str | None = None
    state: str | None = None
    job_id: str | None = None
    deduped_from: str | None = None
    cost_saved_usd: float | None = None
    repeated: bool = False
    error: ErrorInfo | None = None


class SubmitAnswer(Struct, frozen=True):
    tasks: list[TaskAnswer]


# ---------------------------------------------------------------- one task


class SliceInfo(Struct, frozen=True, kw_only=True):
    """A slice. Slices with equal ``properties_hash`` do the same work; it covers secret bytes and stdin. Servers of
    earlier releases do not send it."""

    properties: dict[str, Any]
    properties_hash: str = ""
    expiration_s: Seconds
    wait_for_capacity: bool


class RequestInfo(Struct, frozen=True):
    """The request. Secret and stdin are not shown, only whether there is a secret and the size of the stdin."""

    name: str
    created_at: Micros
    user: str
    authenticated: str
    priority: int
    service_account: str
    parent: str | None
    root: TaskId | None
    external_id: str | None
    function: str | None
    retries: int
    reruns: int
    max_instances: int
    lease_s: Seconds
    deadline_at: Micros
    tags: list[str]
    metadata: dict[str, str]
    slices: list[SliceInfo]
    has_secret: bool
    stdin_size: int | None = None


class ResultInfo(Struct, frozen=True):
    """The current state and result. ``exit_code`` and ``duration`` are those of the run that decided the result."""

    state: str
    reason: str
    generation: int
    held: bool
    killing: bool
    slice: int
    run: str | None
    bot_id: str | None
    exit_code: int | None
    duration: float | None
    num_retries: int
    num_reruns: int
    deduped_from: str | None
    cost_saved_usd: float | None
    ready_at: Micros | None
    started_at: Micros | None
    completed_at: Micros | None
    abandoned_at: Micros | None
    modified_at: Micros


class RunStats(Struct, frozen=True):
    """The time that the steps of a run besides the command took, in seconds."""

    bot_overhead: float | None
    cache_trim: float | None
    package_installation: float | None
    named_caches_install: float | None
    named_caches_uninstall: float | None
    cleanup: float | None
    isolated_download: str | None
    isolated_upload: str | None


class RunInfo(Struct, frozen=True):
    """A run. ``stats`` are None while it is running, and if its bot was lost."""

    run: str
    number: int
    generation: int
    state: str
    reason: str
    evidence: dict[str, Any] | None
    bot_id: str
    slice: int
    claimed_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    exit_code: int | None
    duration: float | None
    cost_usd: float
    stdout_size: int | None
    stderr_size: int | None
    outputs_ref: dict[str, Any] | None
    stats: RunStats | None = None
    silent_since: Micros | None = None
    """The last heartbeat of the bot, if the run is live and its bot is silent."""
    given_up_at: Micros | None = None
    """When the run ends as lost if its bot stays silent."""
    progress: float | None = None
    """The progress of the run, from 0 to 1, if it says so."""
    error: FunctionError | None = None
    """The exception that has ended a function."""


class TaskInfo(Struct, frozen=True):
    task_id: TaskId
    group: str
    job_id: TaskId | None
    request: RequestInfo
    result: ResultInfo
    runs: list[RunInfo]
    annotation: Annotation | None = None
    """A summary that the task has written."""


# ---------------------------------------------------------------- lists


class TaskFilterQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters; all must match."""

    state: list[TaskStateName] = []
    tag: Annotated[list[str], Meta(max_length=16)] = []
    name: str | None = None
    pool: str | None = None
    bot: str | None = None
    user: str | None = None
    mine: bool = False
    """Only tasks that were submitted with the caller's token, or under its name."""
    group: str | None = None
    start: Moment | None = None
    end: Moment | None = None


class TaskQuery(TaskFilterQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters; all must match. ``start`` and ``end`` limit the time of creation, in microseconds UTC."""

    sort: Literal["newest", "oldest"] = "newest"
    limit: Limit = 100
    cursor: str | None = None


class TaskSummary(Struct, frozen=True):
    task_id: TaskId
    group: str
    name: str
    state: str
    reason: str
    user: str
    priority: int
    tags: list[str]
    created_at: Micros
    started_at: Micros | None
    completed_at: Micros | None
    modified_at: Micros
    bot_id: str | None
    run: str | None
    deduped_from: TaskId | None
    killing: bool


class TaskList(Struct, frozen=True):
    """A page. There are more pages while ``cursor`` is not null, even if this one is short or empty."""

    tasks: list[TaskSummary]
    cursor: str | None


class TagInfo(Struct, frozen=True):
    """A tag key and its values; no values if there are too many to list."""

    key: str
    values: list[str]


class TagList(Struct, frozen=True):
    tags: list[TagInfo]


# ---------------------------------------------------------------- actions


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A running task is killed only if ``kill_running`` is true."""

    kill_running: bool = False


class Cancelled(Struct, frozen=True):
    """``ok``: the task was cancelled or killed, or is being killed. Repeated calls get the same response."""

    task_id: str
    ok: bool
    state: str
    was_running: bool


class CancelMany(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks that have all these tags and were created between ``start`` and ``end``, or until now."""

    tags: Annotated[list[Annotated[str, Meta(max_length=321)]], Meta(min_length=1, max_length=16)]
    start: Moment | None = None
    end: Moment | None = None
    kill_running: bool = False
    group: Name | None = None


class CancelStarted(Struct, frozen=True):
    """The cancellation is on disk and runs in the background; ``num_tasks`` unfinished tasks had the tags.

    ``complete`` is false if there may be more: only the newest 100,000 tasks are counted, but all are cancelled.
    """

    num_tasks: int
    complete: bool
    ok: bool = True


class RerunBody(Struct, frozen=True, forbid_unknown_fields=True):
    force: bool = False
    cascade: bool = False


class RerunAnswer(Struct, frozen=True):
    """The task after the call. Each rerun starts a new generation."""

    task_id: str
    state: str
    generation: int


# ---------------------------------------------------------------- why a task does not run


class DimensionStep(Struct, frozen=True):
    """One dimension applied as a filter: ``removes`` bots do not have it, ``left`` bots remain."""

    dimension: str
    removes: int
    left: int


class UnavailableBot(Struct, frozen=True):
    """A bot that has the required dimensions but gets no tasks: its state, and the reason if one was given."""

    bot_id: str
    state: str
    reason: str | None
    last_seen_at: Micros


class TaskExplanation(Struct, frozen=True, kw_only=True):
    """Why a task does not run now: ``summary`` in one sentence, and the facts behind it.

    ``capacity`` is what the fleet has for a task that waits for a bot or has found none; ``unavailable`` has the first
    20 bots that would match but get no tasks.
    """

    task_id: str
    state: str
    summary: str
    waiting_on: list[str]
    unreachable: bool
    held: bool
    dimensions: list[DimensionStep]
    num_bots: int
    num_serving: int
    unavailable: list[UnavailableBot] = []
    capacity: str | None = None
    position: int | None
    silent_since: Micros | None = None
    """The last heartbeat of the bot that runs the task, if the bot is silent."""
    given_up_at: Micros | None = None
    """When the run ends as lost if the bot stays silent."""


# ---------------------------------------------------------------- wait


class Mode(StrEnum):
    ANY = "any"
    ALL = "all"


class WaitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wait until any or all of these tasks have ended, at most ``wait_s`` seconds. The server limits that to 120."""

    task_ids: Annotated[list[str], Meta(max_length=MAX_WAIT)]
    mode: Mode = Mode.ALL
    wait_s: Annotated[float, Meta(ge=0, le=1e9)] = 30.0


class TaskEnd(Struct, frozen=True):
    """The state of a task. ``run`` and ``exit_code`` are those of its last run, null before the task has ended."""

    task_id: TaskId
    state: str
    final: bool
    reason: str
    run: str | None
    exit_code: int | None


class Waited(Struct, frozen=True):
    """``done`` is false if the time was up, or the server is stopping."""

    done: bool
    tasks: list[TaskEnd]
