"""Jobs: the bodies, queries and answers of /api/v1/jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from myrmidon.wire.fields import Limit, Micros, Moment, Name, Seconds, TaskId, TaskStateName
from myrmidon.wire.functions import FunctionError

JobStateName = Literal["RUNNING", "PENDING_RETRY", "SUCCEEDED", "FAILED", "CANCELLED"]
MAX_JOBS = 1_000
"""The number of jobs that one call may submit, and of the tasks that they may have together."""
MAX_NODES = 5_000
"""The number of nodes that the graph of a job has at most in one answer."""
EXAMPLE = {
    "name": "build and test",
    "tasks": {
        "build": {"task": {"payload": {"command": ["make"]}}},
        "test": {"requires": ["build"], "reruns": 1, "task": {"payload": {"command": ["make", "test"]}}},
    },
}


# ---------------------------------------------------------------- submit and check


class SubmitJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph document (docs/jobs.md), and the values of its parameters.

    ``resume``: attach to the job with the external id of the document if it has the same document, and run again what
    has failed; else supersede it by a new revision, which takes over the results of what has not changed.
    ``stream``: a stream of results of the caller, which gets those of the tasks.
    """

    job: Annotated[Raw, Meta(examples=[EXAMPLE])]
    parameters: dict[str, Any] = {}
    group: Name | None = None
    resume: bool = False
    stream: Annotated[str, Meta(max_length=64)] = ""


class JobSubmitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job is on disk. ``repeated``: an earlier call with the same document has stored it.

    ``revision`` counts the jobs that had its external id; ``superseded`` is the one that had it until now.
    ``followed``: the stream that the call named gets the results; it does not if it is not open on this server.
    """

    job_id: str
    state: JobStateName
    task_ids: dict[str, str]
    repeated: bool = False
    revision: int = 1
    superseded: str | None = None
    followed: bool = False


class SubmitJobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Graph documents that are stored together; they have up to 1,000 tasks in all."""

    jobs: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_JOBS, examples=[[EXAMPLE]])]
    group: Name | None = None


class JobsSubmitted(Struct, frozen=True, kw_only=True):
    """All jobs are on disk, in the order of their documents."""

    jobs: list[JobSubmitted]


WhyItRuns = Literal[
    "answered",
    "not_idempotent",
    "installed_code",
    "input_unknown",
    "new",
    "not_succeeded",
    "code",
    "definition",
    "inputs",
    "no_result",
    "in_progress",
]
"""Why a node runs: it is not idempotent; its code is installed on bots and may have changed; see NodeCheck; the earlier
revision of the job did not have it, or it did not succeed there; its code, its definition or its inputs have changed;
there is no result, or not any more; it waits or runs in the job that the submit attaches to."""


class NodeCheck(Struct, frozen=True, kw_only=True):
    """What would happen to one node if the job were submitted now.

    ``live_bots``: live bots that match it, in the slice that most match; ``dead_bots``: others. ``deduped_from``: the
    task whose result would answer this one. ``why``: why it would run. ``input_unknown``: it reads the result of
    ``parent``, which runs; it is answered if that result is as before.
    """

    label: str
    live_bots: int
    dead_bots: int
    deduped_from: str | None
    why: WhyItRuns = "no_result"
    parent: str | None = None


class JobCheck(Struct, frozen=True, kw_only=True):
    """The document is valid; nothing was stored.

    ``expected_s`` is the length of the critical path by the durations of earlier tasks with equal names, null if none
    of them is known; ``critical_path`` are its labels.
    """

    name: str
    num_tasks: int
    num_edges: int
    depth: int
    num_without_bots: int
    num_deduped: int
    num_with_known_duration: int
    expected_s: float | None
    critical_path: list[str]
    nodes: list[NodeCheck]
    attached_to: str | None = None
    """With ``resume``: the job that has the same document, which would be returned."""
    supersedes: str | None = None
    """With ``resume``: the earlier revision of the job, which would be superseded."""
    warnings: list[str] = []
    """Fields that would be accepted without effect, as in the header ``Myrmidon-Warning`` of a submit."""


# ---------------------------------------------------------------- lists


class JobQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters; all must match. ``start`` and ``end`` limit the time of creation, in microseconds UTC.

    ``mine``: only jobs that were submitted with the caller's token.
    """

    state: list[JobStateName] = []
    name: str | None = None
    tag: Annotated[list[str], Meta(max_length=16)] = []
    group: str | None = None
    start: Moment | None = None
    end: Moment | None = None
    mine: bool = False
    limit: Limit = 100
    cursor: str | None = None


class JobSummary(Struct, frozen=True):
    """A job. ``view`` is the state of its graph: running, blocked by a failed task, or finished.

    ``num_failed`` counts tasks that ended without success.
    """

    job_id: TaskId
    external_id: str | None
    group: str
    name: str
    state: JobStateName
    view: Literal["running", "blocked", "finished"]
    created_at: Micros
    ended_at: Micros | None
    deadline_at: Micros
    sealed: bool
    num_tasks: int
    num_succeeded: int
    num_failed: int
    num_retries: int
    tags: list[str]


class JobList(Struct, frozen=True):
    """A page, newest first, and the number of all visible jobs by state.

    There are more pages while ``cursor`` is not null, even if this one is short or empty.
    """

    jobs: list[JobSummary]
    counts: dict[str, int]
    cursor: str | None


# ---------------------------------------------------------------- one job


class Failure(Struct, frozen=True, kw_only=True):
    """A task that ended without success."""

    task_id: str
    label: str
    state: TaskStateName
    reason: str
    exit_code: int | None
    bot_id: str | None
    message: str = ""
    """What the bot says of the end, in a sentence."""
    error: FunctionError | None = None
    """The exception that has ended a function."""


class JobInfo(JobSummary, frozen=True):
    """A job in full. ``progress`` is the share of its tasks that have ended; ``counts`` has its tasks by state.

    ``first_failure`` is the task that blocks the job; ``busy``: a change of many tasks, such as a cancellation, is
    still being carried out.
    """

    counts: dict[str, int]
    progress: float
    first_failure: Failure | None
    error: str | None
    max_num_retries: int
    failure_policy: Literal["continue", "fail-fast"]
    routing: str
    metadata: dict[str, str]
    sealed_at: Micros | None
    busy: bool


class Resolution(Struct, frozen=True, rename="camel"):
    """Where the result of an ended task is."""

    result_url: str
    logs_url: str
    failed: bool


class JobTask(Struct, frozen=True):
    """A task of a job. ``requires_left`` are the parents that it still waits for.

    ``waited_s`` is the time from ready to start, ``duration_s`` that of its command.
    """

    label: str
    task_id: TaskId
    state: TaskStateName
    reason: str
    requires: list[str]
    requires_left: list[str]
    reruns: int
    reruns_left: int
    resolution: Resolution | None
    held: bool
    killing: bool
    priority: int
    bot_id: str | None
    run: str | None
    exit_code: int | None
    deduped_from: TaskId | None
    ready_at: Micros | None
    started_at: Micros | None
    completed_at: Micros | None
    modified_at: Micros
    waited_s: Seconds | None
    duration_s: float | None
    progress: float | None = None
    """The progress of the run, from 0 to 1, if it says so."""
    message: str = ""
    """What the bot says of the end, in a sentence."""
    error: FunctionError | None = None
    """The exception that has ended a function."""


class JobTasksQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``label``: only labels that match this pattern (``*`` for any text).

    ``since``: only tasks that have changed at this time or later. A change shows when it is committed, some seconds
    after its time: a client that polls asks from somewhat before the latest ``modified_at`` that it has seen.
    """

    state: list[TaskStateName] = []
    label: str | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: str | None = None


class JobTasks(Struct, frozen=True):
    """A page of tasks, by label. There are more pages while ``cursor`` is not null."""

    tasks: list[JobTask]
    cursor: str | None


class GraphQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``max_nodes``: a graph with more nodes is summed up by groups. ``prefix`` and ``depth``: only this group.

    ``values``: also list the values on the edges.
    """

    max_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 2_000
    prefix: str | None = None
    depth: Annotated[int, Meta(ge=0)] | None = None
    values: bool = False


class GraphNode(Struct, frozen=True, kw_only=True):
    label: str
    task_id: str
    state: TaskStateName
    held: bool
    depth: int


class GraphGroup(Struct, frozen=True, kw_only=True):
    """Nodes of one depth whose labels begin alike."""

    id: int
    prefix: str
    depth: int
    num_nodes: int
    counts: dict[str, int]


class EdgeValue(Struct, frozen=True):
    """A value that passes along ``edges[edge]``; ``size`` is null until it is written."""

    edge: int
    type: str
    size: int | None


class JobGraph(Struct, frozen=True, kw_only=True):
    """The graph of a job. Up to ``max_nodes`` nodes ``nodes`` has all, and ``edges`` are pairs of their indexes.

    Above that ``groups`` sums them up, and ``group_edges`` are (parent group, child group, number of edges).
    """

    num_nodes: int
    num_edges: int
    nodes: list[GraphNode]
    edges: list[tuple[int, int]]
    groups: list[GraphGroup]
    group_edges: list[tuple[int, int, int]]
    edge_values: list[EdgeValue] = []


class OutputValue(Struct, frozen=True, kw_only=True):
    """A value that an output task has produced; ``data`` is its MessagePack form in base64, if it is inline."""

    value_id: str
    type: str
    size: int | None
    data: bytes | None
    digest: str | None


class TaskOutputs(Struct, frozen=True, kw_only=True):
    label: str
    task_id: str
    state: TaskStateName
    exit_code: int | None
    values: list[OutputValue]


class JobOutputs(Struct, frozen=True, kw_only=True):
    """The results of the tasks without children; ``ready`` when the job has succeeded. ``error`` is the first one."""

    ready: bool
    state: JobStateName
    tasks: list[TaskOutputs]
    error: str | None
    cursor: str | None
