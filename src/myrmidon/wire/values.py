"""Values of jobs and results of tasks: the queries and answers of /api/v1/values and /api/v1/results."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.functions import FunctionError

MAX_RESULTS = 1_000
MAX_FOLLOWED = 20_000
"""The number of tasks that one call may add to a stream of results."""
MSGPACK = "application/msgpack"
TYPE_HEADER = "x-value-type"
"""The header of the response with a value's content that has its type string."""


class ValueInfo(Struct, frozen=True, kw_only=True):
    """A value of a job. ``size`` is null until it is written; a value over 1 KiB is a file with this ``digest``.

    ``producer`` and ``position`` name the output of a task that the value is; null for a constant of the request.
    """

    value_id: str
    type: str
    written: bool
    size: int | None
    digest: str | None
    shared: bool
    producer: str | None
    position: int | None
    num_consumers: int
    """Inputs of tasks of the job that read it."""


class ValueList(Struct, frozen=True):
    """The constants and outputs of some tasks of a job; ``limit`` of the query is the number of tasks."""

    values: list[ValueInfo]
    cursor: str | None


class ValueSource(Struct, frozen=True):
    """The output of a task, by its position, that a value is."""

    task_id: str
    label: str
    position: int


class TaskValue(Struct, frozen=True, kw_only=True):
    """An input or output of a task. ``size`` is null until the value is written.

    ``source`` is null for outputs, and for inputs that are constants of the request or shared values. A gathered input
    has ``num_parts`` parts; ``parts`` are the first of them.
    """

    position: int
    type: str
    value_id: str
    size: int | None
    shared: bool
    source: ValueSource | None = None
    num_parts: int | None = None
    parts: list[TaskValue] = []


class TaskValues(Struct, frozen=True):
    """The inputs and outputs of a task by position."""

    inputs: list[TaskValue]
    outputs: list[TaskValue]


class ResultsRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wait until at least one of these tasks has ended, at most ``wait_s`` seconds; the server limits that to 120."""

    task_ids: Annotated[list[str], Meta(max_length=MAX_RESULTS)]
    wait_s: Annotated[float, Meta(ge=0, le=1e9)] = 30.0


class ResultValue(Struct, frozen=True, gc=False):
    """An output of a task: its MessagePack form in base64 if it is inline, else ``GET /api/v1/values/{value_id}``."""

    value_id: str
    type: str
    size: int
    inline: bytes | None


class TaskOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a task that has ended. ``outputs`` is empty unless it has succeeded.

    ``ended_by``: the task whose end this is: its value was to come from that one, or it cannot start without it.
    """

    task_id: str
    state: str
    reason: str
    bot_id: str | None
    run: str | None
    exit_code: int | None
    error: FunctionError | None
    outputs: list[ResultValue]
    ended_by: str | None = None


class Results(Struct, frozen=True):
    """The tasks that have ended; none if the time was up, or the server is stopping."""

    results: list[TaskOutcome]


# ---------------------------------------------------------------- streams of results


class FollowResults(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks whose results are to be streamed, or to be added to a stream."""

    task_ids: Annotated[list[str], Meta(max_length=MAX_FOLLOWED)] = []


class StreamOpened(Struct, frozen=True):
    """The first event of a stream of results, ``open``. Calls that add tasks to it name it by this id."""

    stream: str


class StreamedResults(Struct, frozen=True, omit_defaults=True):
    """The event ``results``: tasks that have ended. ``missing`` are tasks that do not exist, or do not any more."""

    results: list[TaskOutcome]
    missing: list[str] = []


class Followed(Struct, frozen=True):
    """The number of tasks of a stream that have not ended."""

    num_tasks: int
