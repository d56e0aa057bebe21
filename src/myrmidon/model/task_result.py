"""The results of a task: its current state, its runs, and the reports of bots about runs.

``TaskResult`` is the mutable half of a task, ``TaskRun`` one execution of it on one bot. A bot sends four kinds of
reports about a run; each has the run's token, so that no bot can report on the run of another.
"""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.states import FINAL, SUCCEEDED, RunState, TaskState
from myrmidon.model.task_request import FilesRef
from myrmidon.model.value import OutputValue


class TaskResult(Struct, gc=False):
    """The current state of a task.

    ``num_retries`` and ``num_reruns`` count those used in this generation. ``instance_id`` is the number of the run
    whose result is the task's result. ``forced`` lets a task run although its parents did not succeed.
    ``skips_request_lookup`` is set for commands without a secret and stdin that have one instance at most and are not
    idempotent, as most tasks: starting and finishing them does not read their request.
    """

    id: int
    job_id: int | None
    resource_group_id: int
    state: TaskState
    seq: int
    generation: int
    held: int
    killing: int
    forced: int
    resolves_all: int
    skips_request_lookup: int
    num_parents: int
    num_succeeded_parents: int
    num_children: int
    num_retries: int
    num_reruns: int
    run_number: int
    instance_id: int | None
    current_task_slice: int
    bot_id: str | None
    reason: str
    deduped_from: int | None
    deduped_run: int | None
    cost_saved_usd: float | None
    ready_at: Micros | None
    started_at: Micros | None
    completed_at: Micros | None
    abandoned_at: Micros | None
    modified_at: Micros
    due_at: Micros | None

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def failed(self) -> bool:
        """Whether the task has ended, and not succeeded."""
        return self.state in FINAL and self.state != SUCCEEDED

    @property
    def satisfied(self) -> bool:
        """Whether the task no longer waits for parents."""
        return bool(self.forced) or self.num_succeeded_parents >= self.num_parents


class TaskRun(Struct, gc=False):
    """One execution of a task on one bot; live while ``ended_at`` is None.

    Handling a report loads the fields up to ``generation`` only; the others have their defaults while the run is live.
    The bot's dimensions and version at that time are stored with the run, but are not loaded here.
    """

    task_id: int
    run: int
    bot_id: str
    session: int
    token_hash: str
    state: RunState
    reason: str
    claimed_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    lease: Micros
    soft_at: Micros | None
    due_at: Micros | None
    exit_code: int | None
    duration: float | None
    generation: int = 0
    instance: int = 0
    slice: int = 0
    nonce: int = 0
    resource_group_id: int = 0
    modified_at: Micros = 0
    evidence: str | None = None
    cost_usd: float = 0.0
    stdout_size: int | None = None
    stderr_size: int | None = None
    outputs_ref: str | None = None
    error: str | None = None
    progress: float | None = None

    @property
    def live(self) -> bool:
        return self.ended_at is None


class PerformanceStats(Struct, frozen=True, kw_only=True):
    """How long the steps of a run besides the command took, in seconds."""

    bot_overhead: float | None = None
    cache_trim: float | None = None
    package_installation: float | None = None
    named_caches_install: float | None = None
    named_caches_uninstall: float | None = None
    cleanup: float | None = None
    isolated_download: str | None = None
    isolated_upload: str | None = None


class Start(Struct, frozen=True, tag="start", gc=False):
    """The bot has started the run: from now on its heartbeats renew the lease."""

    task_id: int
    run: int
    token: str


class Finish(Struct, frozen=True, kw_only=True, tag="finish", gc=False):
    """The command or function has ended, successfully or not.

    ``killed`` means that the bot stopped it on request of the server. ``start_failed`` means that the command could not
    be started; the exit code is then the one that a shell would return. Logs are uploaded before this report; the sizes
    are their totals. ``delegated`` means that a task which this one has added to its job writes the outputs. ``error``
    is the exception of a function as JSON.
    """

    task_id: int
    run: int
    token: str
    exit_code: int | None = None
    duration: float = 0.0
    hard_timeout: bool = False
    io_timeout: bool = False
    killed: bool = False
    start_failed: bool = False
    outputs: Sequence[OutputValue] = ()
    outputs_ref: FilesRef | None = None
    stdout_size: int | None = None
    stderr_size: int | None = None
    cost_usd: float = 0.0
    stats: PerformanceStats | None = None
    message: str = ""
    delegated: bool = False
    error: str | None = None

    @property
    def clean(self) -> bool:
        """Whether the command or function ended by itself with exit code 0."""
        return self.exit_code == 0 and not (self.hard_timeout or self.io_timeout or self.killed)


class Fault(Struct, frozen=True, kw_only=True, tag="fault", gc=False):
    """The infrastructure failed, not the task. ``kind`` is one of ``FAULTS``."""

    task_id: int
    run: int
    token: str
    kind: str = "bot_error"
    message: str = ""
    signal: int | None = None
    oom: bool = False
    cost_usd: float = 0.0


class GiveBack(Struct, frozen=True, tag="give_back", gc=False):
    """The bot will not start this run; the task is queued again, and no retry is counted."""

    task_id: int
    run: int
    token: str


START_FAILED = "start_failed"
"""The reason of a run whose command could not be started."""
CLIENT_FAULTS = frozenset({"client_error", "environment_failed"})
"""Faults that another bot would have too: the task ends without a retry."""
FAULTS = frozenset({"bot_error", "shutdown", "reboot", "upload_failed", "disk_full"}) | CLIENT_FAULTS

Report: TypeAlias = Start | Finish | Fault | GiveBack


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run was declared lost, stored with the run."""

    last_heartbeat: Micros | None = None
    message: str = ""
    signal: int | None = None
    oom: bool = False
    boot_id: str = ""
