"""What bots and the server say to each other: the JSON of ``/bot/v1``, and how it becomes the core's nouns.

Runs travel as one shown id; what a bot reports of one is turned into the core's report here. An id that makes
no sense becomes a run that nobody has, so that one bad line spoils no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from myrmidon.model.ids import Micros, show_run, show_task, try_parse_id
from myrmidon.model.task_request import Cache, FilesRef, Properties, is_terminate_task, properties_from_json
from myrmidon.model.task_result import Fault, Finish, GiveBack, PerformanceStats, Report, Start
from myrmidon.model.validation import LARGEST
from myrmidon.model.value import OutputValue
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.report import LogBytes, Outcome, Reply

_NO_RUN = (0, 0)
Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Nonce: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST >> 10)]
Place: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 50)]
"""Where a log may have a byte: no command writes a petabyte, and what is added to it still is a number."""
Whole: TypeAlias = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Dollars: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


# ---------------------------------------------------------------- what a bot says


class HandshakeRequest(Struct, kw_only=True, frozen=True):
    """A bot has started, or has changed."""

    bot_id: str
    session: Count
    dimensions: dict[str, list[str]]
    state: dict[str, Any] = {}
    version: str = ""
    boot_id: str = ""
    holds: list[str] = []
    begun: list[str] = []
    """Tasks that an earlier process of this bot had begun when it ended; among them those that it never reported."""
    quarantined: str | None = None
    maintenance: str | None = None


class SaysStart(Struct, kw_only=True, frozen=True, tag_field="type", tag="start", gc=False):
    """The command has begun."""

    run: str
    token: str


class SaysFinish(Struct, kw_only=True, frozen=True, tag_field="type", tag="finish", gc=False):
    """The command has ended, well or not."""

    run: str
    token: str
    exit_code: Whole | None = None
    duration: Seconds = 0.0
    hard_timeout: bool = False
    io_timeout: bool = False
    killed: bool = False
    outputs: list[OutputValue] = []
    outputs_ref: FilesRef | None = None
    stdout_size: Count | None = None
    stderr_size: Count | None = None
    cost_usd: Dollars = 0.0
    stats: PerformanceStats | None = None
    message: str = ""
    caches: dict[str, Count] | None = None
    """Sizes of the named caches that it used, after the run."""


class SaysFault(Struct, kw_only=True, frozen=True, tag_field="type", tag="fault", gc=False):
    """The machine failed, not the command."""

    run: str
    token: str
    kind: str = "bot_error"
    message: str = ""
    signal: Whole | None = None
    oom: bool = False
    cost_usd: Dollars = 0.0


class SaysGiveBack(Struct, kw_only=True, frozen=True, tag_field="type", tag="give_back", gc=False):
    """The bot will not start this run."""

    run: str
    token: str


Said: TypeAlias = SaysStart | SaysFinish | SaysFault | SaysGiveBack


class LogPiece(Struct, kw_only=True, frozen=True):
    """A small stretch of a run's output; larger ones have a call of their own."""

    run: str
    token: str
    stream: Count
    offset: Place
    data: bytes


class Exchange(Struct, kw_only=True, frozen=True):
    """Reports, output, a sign of life and a claim, in one call.

    ``nonce`` grows with every claim; the same nonce again gets the same runs. ``n`` 0 asks for no work.
    """

    session: Count
    nonce: Nonce = 0
    n: Count = 0
    wait_s: Seconds = 0.0
    reports: list[Said] = []
    logs: list[LogPiece] = []
    holds: list[tuple[str, str]] = []
    state: dict[str, Any] | None = None
    dimensions: dict[str, list[str]] | None = None
    config: str | None = None
    """What the bot's group gave it at the handshake; None from a bot that knows no groups."""


class Heartbeat(Struct, kw_only=True, frozen=True):
    """A sign of life while a long command runs."""

    session: Count
    holds: list[tuple[str, str]] = []
    config: str | None = None


class BotEvent(Struct, kw_only=True, frozen=True):
    """Something that the bot's owner should see."""

    session: Count
    kind: str
    message: str = ""
    bad_release: str | None = None
    """The digest of a zip that the bot tried and could not live with."""
    ended: bool = False
    """The bot is gone, and will not come back by itself."""


class LogPlace(Struct, kw_only=True, frozen=True):
    """Where bytes of a log belong."""

    offset: Place


# ---------------------------------------------------------------- what the server says


class Welcomed(Struct, kw_only=True, frozen=True):
    """The answer to a handshake. ``keep`` are the runs that are still the bot's own.

    ``config`` names what the bot's group gives it: ``dimensions`` that replace its own, a ``script`` and ``settings``.
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
    server_time: Micros
    server_version: str
    config: str
    dimensions: dict[str, list[str]]
    script: str | None
    script_name: str
    settings: dict[str, Any]


class Assigned(Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """One run, with all that the bot needs for it; what a task does not have is not said."""

    run: str
    token: str
    name: str = ""
    command: list[str]
    env: dict[str, str] = {}
    env_prefixes: dict[str, list[str]] = {}
    relative_cwd: str = ""
    caches: list[Cache] = []
    secret_bytes: bytes | None = None
    execution_timeout_s: int
    io_timeout_s: int | None = None
    grace_period_s: int
    lease_s: float
    deadline_at: Micros = 0
    outputs: list[str] = []
    idempotent: bool = False
    user: str = ""
    priority: int
    function: dict[str, Any] | None = None
    inputs: list[dict[str, Any]] = []
    task_id: str
    dimensions: dict[str, list[str]]
    service_account: str = ""
    resource_group: str | None = None
    cache_hints: dict[str, int] | UnsetType = UNSET
    """How large the caches of this task get, as far as that is known."""
    realm: str | UnsetType = UNSET
    """The realm of a task of Swarming's API, which its command finds in LUCI_CONTEXT."""
    terminate: bool | UnsetType = UNSET
    """There is nothing to run: the bot finishes what it has, reports this run, and ends."""

    def __repr__(self) -> str:
        """Never shows the token or the secret."""
        return f"Assigned(run={self.run})"


class Taken(Struct, frozen=True, gc=False):
    """How a report was taken; ``stop`` tells the bot to stop the run."""

    outcome: str
    stop: bool = False


class Exchanged(Struct, kw_only=True, frozen=True):
    """The answer to an exchange. A log length of -1: that log is not the bot's.

    ``more``: there seems to be more for this bot, so that it is worth asking before all of this is done.
    """

    replies: list[Taken] = []
    log_lengths: list[int] = []
    stop: list[str] = []
    tasks: list[Assigned] = []
    more: bool = False
    order: str | None = None
    version: str | None = None
    zip_hmac: str | None = None


class HeartbeatAnswer(Struct, kw_only=True, frozen=True):
    stop: list[str] = []
    order: str | None = None
    version: str | None = None
    zip_hmac: str | None = None


class LogStored(Struct, kw_only=True, frozen=True):
    """How long a log is by now, and what was cut out of its middle."""

    length: int
    cut_from: int | None
    cut_to: int | None
    pause_s: float = 0.0
    """How long to wait with the rest."""


class Noted(Struct, frozen=True):
    """An event was written down."""

    noted: bool = True


encode = msgspec.json.Encoder().encode
NOTHING = encode(Exchanged())
"""The answer to nearly every poll of an idle fleet."""


# ---------------------------------------------------------------- from one to the other


def run_of(shown: str) -> tuple[int, int]:
    """The run that a shown id means; one that nobody has when it means none."""
    return try_parse_id(shown) or _NO_RUN


def report_of(said: Said) -> Report:
    task_id, run = run_of(said.run)
    match said:
        case SaysStart():
            return Start(task_id, run, said.token)
        case SaysGiveBack():
            return GiveBack(task_id, run, said.token)
        case SaysFault():
            return Fault(
                task_id=task_id,
                run=run,
                token=said.token,
                kind=said.kind,
                message=said.message,
                signal=said.signal,
                oom=said.oom,
                cost_usd=said.cost_usd,
            )
        case SaysFinish():
            return Finish(
                task_id=task_id,
                run=run,
                token=said.token,
                exit_code=said.exit_code,
                duration=said.duration,
                hard_timeout=said.hard_timeout,
                io_timeout=said.io_timeout,
                killed=said.killed,
                outputs=said.outputs,
                outputs_ref=said.outputs_ref,
                stdout_size=said.stdout_size,
                stderr_size=said.stderr_size,
                cost_usd=said.cost_usd,
                stats=said.stats,
                message=said.message,
            )


def held_runs(holds: Iterable[tuple[str, str]]) -> list[tuple[int, int, str]]:
    return [(*run_of(shown), token) for shown, token in holds]


def log_bytes_of(piece: LogPiece) -> LogBytes:
    task_id, run = run_of(piece.run)
    return LogBytes(
        task_id=task_id, run=run, token=piece.token, stream=piece.stream, offset=piece.offset, content=piece.data
    )


def taken(replies: Sequence[Reply]) -> list[Taken]:
    """A report that was taken before is taken: the same call again has the same answer."""
    return [
        Taken("accepted" if reply.outcome is Outcome.REPEATED else str(reply.outcome), reply.stop) for reply in replies
    ]


def is_terminate(claimed: Claimed) -> bool:
    """Neither a command nor a function: the order to end, which goes through the queues like a task."""
    return is_terminate_task(claimed.work.func_name, claimed.work.properties)


def assigned(
    claimed: Claimed, *, group: str | None = None, hints: Callable[[Properties], dict[str, int]] | None = None
) -> Assigned:
    """``hints`` is asked only for tasks that want caches."""
    work = claimed.work
    todo = properties_from_json(work.properties)
    function = (
        {"package_name": work.package_name, "func_name": work.func_name, "language": work.language}
        if work.func_name is not None
        else None
    )
    return Assigned(
        run=show_run(claimed.task_id, claimed.run),
        token=claimed.token,
        name=work.name,
        command=todo.command,
        env=todo.env,
        env_prefixes=todo.env_prefixes,
        relative_cwd=todo.relative_cwd,
        caches=todo.caches,
        secret_bytes=claimed.secret_bytes,
        execution_timeout_s=todo.execution_timeout_s,
        io_timeout_s=todo.io_timeout_s,
        grace_period_s=todo.grace_period_s,
        lease_s=work.lease / SECOND,
        deadline_at=work.deadline_at,
        outputs=todo.outputs,
        idempotent=todo.idempotent,
        user=work.user_name,
        priority=work.priority,
        function=function,
        inputs=[
            {"type": value.type, "payload": value.payload, "digest": value.digest, "size": value.size}
            for value in claimed.inputs
        ],
        task_id=show_task(claimed.task_id),
        dimensions=todo.dimensions,
        service_account=work.service_account,
        resource_group=group,
        cache_hints=hints(todo) if hints is not None and todo.caches else UNSET,
        realm=_realm(work.metadata) if work.metadata != "{}" else UNSET,
        terminate=UNSET if todo.command or function else True,
    )


def _realm(metadata: str) -> str | UnsetType:
    realm = msgspec.json.decode(metadata).get("realm")
    return realm if isinstance(realm, str) and realm else UNSET
