"""Requests and responses of ``/bot/v1``, and their conversion from and to the types of the scheduler.

Runs are sent as one printed id. An id that cannot be parsed becomes a run that does not exist, so that one bad report
does not reject the others of its request.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from myrmidon.model.ids import Micros
from myrmidon.model.task_request import Cache, FilesRef
from myrmidon.model.task_result import PerformanceStats
from myrmidon.model.task_to_run import Accepts
from myrmidon.model.validation import MAX_INT64
from myrmidon.server.dispatch.claims import ATTEMPT_BITS
from myrmidon.wire.functions import FunctionError

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT64)]
Nonce: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INT64 >> ATTEMPT_BITS)]
LogOffset: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 50)]
"""An offset in a log. The limit leaves room to add lengths without overflow; no command writes a petabyte."""
MAX_MARKS = 400
"""Of one piece of output."""
LogMark: TypeAlias = tuple[Count, LogOffset]
Integer: TypeAlias = Annotated[int, Meta(ge=-MAX_INT64, le=MAX_INT64)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Dollars: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


# ---------------------------------------------------------------- requests


class HandshakeRequest(Struct, kw_only=True, frozen=True):
    """A bot has started, or continues its session."""

    bot_id: str
    session: Count
    new_process: bool = False
    """The process has no session yet: ``session`` is a proposal, and the bot uses the one in the response."""
    dimensions: dict[str, list[str]]
    state: dict[str, Any] = {}
    version: str = ""
    boot_id: str = ""
    holds: list[str] = []
    begun: list[str] = []
    """Tasks that an earlier process of this bot had begun when it ended, including those it never reported."""
    quarantined: str | None = None
    maintenance: str | None = None


class StartReport(Struct, kw_only=True, frozen=True, tag_field="type", tag="start", gc=False):
    """The command has started."""

    run: str
    token: str


class ReportedPayload(Struct, kw_only=True, frozen=True, gc=False):
    """The bytes of a value if they are few, else the digest and size of a file that the bot has stored."""

    inline: bytes | None = None
    digest: str | None = None
    size: Count | None = None


class ReportedValue(Struct, kw_only=True, frozen=True, gc=False):
    """One output of a run."""

    type: str
    payload: ReportedPayload


class FinishReport(Struct, kw_only=True, frozen=True, tag_field="type", tag="finish", gc=False):
    """The command has ended, successfully or not."""

    run: str
    token: str
    exit_code: Integer | None = None
    duration: Seconds = 0.0
    hard_timeout: bool = False
    io_timeout: bool = False
    killed: bool = False
    start_failed: bool = False
    outputs: list[ReportedValue] = []
    outputs_ref: FilesRef | None = None
    stdout_size: Count | None = None
    stderr_size: Count | None = None
    cost_usd: Dollars = 0.0
    stats: PerformanceStats | None = None
    message: str = ""
    delegated: bool = False
    """Another task of the job writes the outputs: this one has added it with ``delegates``."""
    error: FunctionError | None = None
    """The exception that has ended a function."""
    caches: dict[str, Count] | None = None
    """Sizes of the named caches of the task, after the run."""


class FaultReport(Struct, kw_only=True, frozen=True, tag_field="type", tag="fault", gc=False):
    """The machine failed, not the command."""

    run: str
    token: str
    kind: str = "bot_error"
    message: str = ""
    signal: Integer | None = None
    oom: bool = False
    cost_usd: Dollars = 0.0


class GiveBackReport(Struct, kw_only=True, frozen=True, tag_field="type", tag="give_back", gc=False):
    """The bot will not start this run."""

    run: str
    token: str


BotReport: TypeAlias = StartReport | FinishReport | FaultReport | GiveBackReport


class LogPiece(Struct, kw_only=True, frozen=True):
    """A small piece of a run's output; larger ones are uploaded by ``/bot/v1/log``."""

    run: str
    token: str
    stream: Count
    offset: LogOffset
    data: bytes
    marks: Annotated[list[LogMark], Meta(max_length=MAX_MARKS)] = []
    """When bytes of it were written: times by the server's clock, in microseconds, and offsets."""


class ExchangeRequest(Struct, kw_only=True, frozen=True):
    """Reports, output, heartbeat and claim in one request.

    ``nonce`` grows with every claim; the same nonce again gets the same runs. ``n`` is the maximum number of runs to
    claim. ``received`` is the nonce of the last claim whose runs have reached the bot; those of later ones have not.
    ``holds`` are the runs that the bot has, with their tokens; ``stopping`` those that it is ending already.
    """

    session: Count
    nonce: Nonce = 0
    n: Count = 0
    received: Nonce | None = None
    accepts: Accepts = Accepts.ANY
    """The kinds of tasks that the bot can take now: while it runs a command, only functions."""
    slots: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many of the tasks that it expects the bot runs at a time."""
    wait_s: Seconds = 0.0
    reports: list[BotReport] = []
    logs: list[LogPiece] = []
    holds: list[tuple[str, str]] = []
    stopping: list[str] = []
    progress: dict[str, Share] = {}
    """How far runs among ``holds`` have come, where that has changed."""
    state: dict[str, Any] | None = None
    dimensions: dict[str, list[str]] | None = None
    config: str | None = None
    """The version of the group configuration that the bot has; None from a bot that does not support groups."""


class HeartbeatRequest(Struct, kw_only=True, frozen=True):
    """Renews the leases of runs while a long command runs."""

    session: Count
    holds: list[tuple[str, str]] = []
    progress: dict[str, Share] = {}
    config: str | None = None


class BotEvent(Struct, kw_only=True, frozen=True):
    """An event for the owner of the bot."""

    session: Count
    kind: str
    message: str = ""
    bad_release: str | None = None
    """The digest of a zip that the bot tried and rejected."""
    ended: bool = False
    """The bot has ended and will not restart by itself."""


class LogQuery(Struct, kw_only=True, frozen=True):
    """Query of a log upload."""

    offset: LogOffset


# ---------------------------------------------------------------- responses


class HandshakeResponse(Struct, kw_only=True, frozen=True):
    """The response to a handshake. ``keep`` are the runs that are still the bot's own.

    ``start_within_s``: how long after a claim a bot may still start the run. ``config`` is the version of the group
    configuration: ``dimensions`` that replace the bot's own, a ``script`` and ``settings``.
    """

    credential: str
    bot_id: str
    session: int
    keep: list[str]
    quarantined: str | None
    version: str
    zip_hmac: str
    poll_s: float
    heartbeat_s: float
    start_within_s: float
    server_time: Micros
    server_version: str
    config: str
    dimensions: dict[str, list[str]]
    script: str | None
    script_name: str
    settings: dict[str, Any]


class AssignedValue(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A value: its bytes if they are few, else the digest of a file."""

    type: str
    payload: bytes | None = None
    digest: str | None = None
    size: int | None = None


class AssignedInput(AssignedValue, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """An input. With ``parts`` the payload is the shape in which they are placed, or absent for a list of them."""

    parts: list[AssignedValue] | None = None


class AssignedFunction(Struct, kw_only=True, frozen=True, gc=False):
    """The function that a run calls."""

    package_name: str
    func_name: str
    language: str
    code: str
    signature: str
    memory_mb: int | None
    environment: str


class AssignedRun(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """One run with everything that the bot needs for it; defaults are omitted from the JSON."""

    run: str
    token: str
    name: str = ""
    command: list[str]
    env: dict[str, str] = {}
    env_prefixes: dict[str, list[str]] = {}
    relative_cwd: str = ""
    payload: str = ""
    caches: list[Cache] = []
    secret_bytes: bytes | None = None
    stdin: bytes | None = None
    execution_timeout_s: int | float
    io_timeout_s: int | float | None = None
    grace_period_s: int
    merge_output: bool = False
    lease_s: float
    deadline_at: Micros = 0
    outputs: list[str] = []
    idempotent: bool = False
    user: str = ""
    priority: int
    function: AssignedFunction | None = None
    inputs: list[AssignedInput] = []
    output_types: list[str] = []
    """The types of the outputs that the run has to return."""
    task_id: str
    label: str = ""
    """The label of a function in its job."""
    dimensions: dict[str, list[str]]
    service_account: str = ""
    resource_group: str | None = None
    cache_hints: dict[str, int] | UnsetType = UNSET
    """Expected sizes of the task's caches, as far as they are known."""
    realm: str | UnsetType = UNSET
    """The realm of a task of the Swarming API, for its LUCI_CONTEXT."""
    problem: str = ""
    """Why the command cannot be run; the bot reports this as a fault of the kind ``client_error``."""
    api_token: str = ""
    """The token with which the command may call the server for its job, if the task has ``api``."""
    job_id: str = ""
    terminate: bool | UnsetType = UNSET
    """A terminate task: there is nothing to run; the bot finishes its other runs, reports this one, and ends."""

    def __repr__(self) -> str:
        """Omits the tokens and the secret."""
        return f"AssignedRun(run={self.run})"


class ReportResult(Struct, frozen=True, gc=False):
    """The outcome of one report; ``stop`` tells the bot to stop the run."""

    outcome: str
    stop: bool = False


class ExchangeResponse(Struct, kw_only=True, frozen=True):
    """The response to an exchange.

    A log length of -1 means that the bot may not write that log. ``more`` means that there may be more tasks for this
    bot, so that it should poll again before it has finished these.
    """

    replies: list[ReportResult] = []
    log_lengths: list[int] = []
    stop: list[str] = []
    tasks: list[AssignedRun] = []
    more: bool = False
    order: str | None = None
    version: str | None = None
    zip_hmac: str | None = None


class HeartbeatResponse(Struct, kw_only=True, frozen=True):
    """The response to a heartbeat: runs to stop, and a directive."""

    stop: list[str] = []
    order: str | None = None
    version: str | None = None
    zip_hmac: str | None = None


class LogStored(Struct, kw_only=True, frozen=True):
    """The length of a log, and the range that was cut out of its middle."""

    length: int
    cut_from: int | None
    cut_to: int | None
    pause_s: float = 0.0
    """How long to wait before the next upload of this log."""


class EventResponse(Struct, frozen=True):
    """The response to an event."""

    noted: bool = True


encode = msgspec.json.Encoder().encode
EMPTY_RESPONSE = encode(ExchangeResponse())
"""The response to nearly every poll of an idle fleet, encoded once."""
