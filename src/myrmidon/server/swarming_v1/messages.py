"""Messages of Swarming's API v1. The discovery document is generated from these structs.

A field that is None or an empty list is left out of a response; ``items`` has no default, so lists always contain it.
``Int64``, ``Time`` and ``Bytes`` are strings in JSON; the document declares their formats.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from myrmidon.server.swarming_v1.encoding import TEMPLATES

Int64: TypeAlias = Annotated[str, Meta(extra={"format": "int64"})]
Time: TypeAlias = Annotated[str, Meta(extra={"format": "date-time"})]
Bytes: TypeAlias = Annotated[str, Meta(extra={"format": "byte"})]
_STATES = [
    "BOT_DIED", "CANCELED", "CLIENT_ERROR", "COMPLETED", "EXPIRED", "KILLED", "NO_RESOURCE", "PENDING", "RUNNING",
    "TIMED_OUT",
]  # fmt: skip
State: TypeAlias = Annotated[str, Meta(extra={"enum": _STATES})]
Template: TypeAlias = Annotated[str, Meta(extra={"enum": list(TEMPLATES)})]


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages. Fields that are None or an empty list are omitted."""


class StringPair(Message, frozen=True, kw_only=True):
    key: str
    value: str


class StringListPair(Message, frozen=True, kw_only=True):
    key: str
    value: list[str]


class CacheEntry(Message, frozen=True, kw_only=True):
    name: str
    path: str


class FilesRef(Message, frozen=True, kw_only=True):
    """Files by the hash of a tree, in the form of isolate."""

    isolated: str | None = None
    isolatedserver: str | None = None
    namespace: str | None = None


class Digest(Message, frozen=True, kw_only=True):
    hash: str
    size_bytes: Int64


class CASReference(Message, frozen=True, kw_only=True):
    """Files by the digest of a tree in a content-addressed store."""

    cas_instance: str
    digest: Digest


class TaskProperties(Message, frozen=True, kw_only=True):
    caches: list[CacheEntry] = []
    cas_input_root: CASReference | None = None
    command: list[str] = []
    dimensions: list[StringPair] = []
    env: list[StringPair] = []
    env_prefixes: list[StringListPair] = []
    execution_timeout_secs: Int64 | None = None
    extra_args: list[str] = []
    grace_period_secs: Int64 | None = None
    idempotent: bool | None = None
    inputs_ref: FilesRef | None = None
    io_timeout_secs: Int64 | None = None
    outputs: list[str] = []
    relative_cwd: str | None = None
    secret_bytes: Bytes | None = None


class TaskSlice(Message, frozen=True, kw_only=True):
    expiration_secs: Int64 | None = None
    properties: TaskProperties | None = None
    wait_for_capacity: bool | None = None


class NewTaskRequest(Message, frozen=True, kw_only=True):
    """A new task, as the discovery document describes it; NewTaskBody in request_parser.py is what is decoded."""

    bot_ping_tolerance_secs: Int64 | None = None
    evaluate_only: bool | None = None
    expiration_secs: Int64 | None = None
    name: str | None = None
    parent_task_id: str | None = None
    pool_task_template: Template | None = None
    priority: Int64 | None = None
    properties: TaskProperties | None = None
    pubsub_auth_token: str | None = None
    pubsub_topic: str | None = None
    pubsub_userdata: str | None = None
    realm: str | None = None
    request_uuid: str | None = None
    service_account: str | None = None
    tags: list[str] = []
    task_slices: list[TaskSlice] = []
    user: str | None = None


class TaskRequest(Message, frozen=True, kw_only=True):
    authenticated: str | None = None
    bot_ping_tolerance_secs: Int64 | None = None
    created_ts: Time | None = None
    expiration_secs: Int64 | None = None
    name: str | None = None
    parent_task_id: str | None = None
    priority: Int64 | None = None
    properties: TaskProperties | None = None
    realm: str | None = None
    service_account: str | None = None
    tags: list[str] = []
    task_id: str | None = None
    task_slices: list[TaskSlice] = []
    user: str | None = None


class OperationStats(Message, frozen=True, kw_only=True):
    duration: float | None = None


class FilesStats(Message, frozen=True, kw_only=True):
    """``items_*`` are lists of sizes, packed by the bot; the other fields are their counts and totals."""

    duration: float | None = None
    initial_number_items: Int64 | None = None
    initial_size: Int64 | None = None
    items_cold: Bytes | None = None
    items_hot: Bytes | None = None
    num_items_cold: Int64 | None = None
    num_items_hot: Int64 | None = None
    total_bytes_items_cold: Int64 | None = None
    total_bytes_items_hot: Int64 | None = None


class PerformanceStats(Message, frozen=True, kw_only=True):
    bot_overhead: float | None = None
    cache_trim: OperationStats | None = None
    cleanup: OperationStats | None = None
    isolated_download: FilesStats | None = None
    isolated_upload: FilesStats | None = None
    named_caches_install: OperationStats | None = None
    named_caches_uninstall: OperationStats | None = None
    package_installation: OperationStats | None = None


class TaskResult(Message, frozen=True, kw_only=True):
    abandoned_ts: Time | None = None
    bot_dimensions: list[StringListPair] = []
    bot_id: str | None = None
    bot_idle_since_ts: Time | None = None
    bot_version: str | None = None
    cas_output_root: CASReference | None = None
    children_task_ids: list[str] = []
    completed_ts: Time | None = None
    cost_saved_usd: float | None = None
    costs_usd: list[float] = []
    created_ts: Time | None = None
    current_task_slice: Int64 | None = None
    deduped_from: str | None = None
    duration: float | None = None
    exit_code: Int64 | None = None
    failure: bool | None = None
    internal_failure: bool | None = None
    modified_ts: Time | None = None
    name: str | None = None
    outputs_ref: FilesRef | None = None
    performance_stats: PerformanceStats | None = None
    run_id: str | None = None
    server_versions: list[str] = []
    started_ts: Time | None = None
    state: State | None = None
    tags: list[str] = []
    task_id: str | None = None
    try_number: Int64 | None = None
    user: str | None = None


class TaskRequestMetadata(Message, frozen=True, kw_only=True):
    """The response to tasks/new. Without an id if the task was only evaluated."""

    request: TaskRequest | None = None
    task_id: str | None = None
    task_result: TaskResult | None = None


class TaskList(Message, frozen=True, kw_only=True):
    items: list[TaskResult]
    now: Time
    cursor: str | None = None


class TaskRequests(Message, frozen=True, kw_only=True):
    items: list[TaskRequest]
    now: Time
    cursor: str | None = None


class TasksCount(Message, frozen=True, kw_only=True):
    count: Int64
    now: Time


class TaskStates(Message, frozen=True, kw_only=True):
    states: list[State]


class TaskOutput(Message, frozen=True, kw_only=True):
    output: str
    state: State


class TasksTags(Message, frozen=True, kw_only=True):
    tasks_tags: list[StringListPair]
    ts: Time


class TaskCancelRequest(Message, frozen=True, kw_only=True):
    kill_running: bool | None = None


class CancelResponse(Message, frozen=True, kw_only=True):
    ok: bool
    was_running: bool


class TasksCancelRequest(Message, frozen=True, kw_only=True):
    cursor: str | None = None
    end: float | None = None
    kill_running: bool | None = None
    limit: Int64 | None = None
    start: float | None = None
    tags: list[str] = []


class TasksCancelResponse(Message, frozen=True, kw_only=True):
    matched: Int64
    now: Time
    cursor: str | None = None


class BotInfo(Message, frozen=True, kw_only=True):
    authenticated_as: str | None = None
    bot_id: str | None = None
    deleted: bool | None = None
    dimensions: list[StringListPair] = []
    external_ip: str | None = None
    first_seen_ts: Time | None = None
    is_dead: bool | None = None
    last_seen_ts: Time | None = None
    maintenance_msg: str | None = None
    quarantined: bool | None = None
    state: str | None = None
    task_id: str | None = None
    task_name: str | None = None
    version: str | None = None


class BotList(Message, frozen=True, kw_only=True):
    items: list[BotInfo]
    now: Time
    death_timeout: Int64
    cursor: str | None = None


class BotsCount(Message, frozen=True, kw_only=True):
    busy: Int64
    count: Int64
    dead: Int64
    maintenance: Int64
    now: Time
    quarantined: Int64


class BotsDimensions(Message, frozen=True, kw_only=True):
    bots_dimensions: list[StringListPair]
    ts: Time


class BotEvent(Message, frozen=True, kw_only=True):
    authenticated_as: str | None = None
    dimensions: list[StringListPair] = []
    event_type: str | None = None
    external_ip: str | None = None
    maintenance_msg: str | None = None
    message: str | None = None
    quarantined: bool | None = None
    state: str | None = None
    task_id: str | None = None
    ts: Time | None = None
    version: str | None = None


class BotEvents(Message, frozen=True, kw_only=True):
    items: list[BotEvent]
    now: Time
    cursor: str | None = None


class BotTasks(Message, frozen=True, kw_only=True):
    items: list[TaskResult]
    now: Time
    cursor: str | None = None


class DeletedResponse(Message, frozen=True, kw_only=True):
    deleted: bool


class TerminateResponse(Message, frozen=True, kw_only=True):
    task_id: str


class TaskQueue(Message, frozen=True, kw_only=True):
    dimensions: list[str]
    valid_until_ts: Time


class TaskQueueList(Message, frozen=True, kw_only=True):
    items: list[TaskQueue]
    now: Time
    cursor: str | None = None


class ServerDetails(Message, frozen=True, kw_only=True):
    bot_version: str | None = None
    display_server_url_template: str | None = None
    server_version: str | None = None


class ClientPermissions(Message, frozen=True, kw_only=True):
    cancel_task: bool
    cancel_tasks: bool
    delete_bot: bool
    delete_bots: bool
    get_bootstrap_token: bool
    get_configs: bool
    list_bots: list[str]
    list_tasks: list[str]
    put_configs: bool
    terminate_bot: bool


class BootstrapToken(Message, frozen=True, kw_only=True):
    bootstrap_token: str


class FileContent(Message, frozen=True, kw_only=True):
    content: str
    version: str | None = None
    when: Time | None = None
    who: str | None = None


class Account(Message, frozen=True, kw_only=True):
    identity: str


class OAuthConfig(Message, frozen=True, kw_only=True):
    client_id: str
    client_not_so_secret: str
    primary_url: str | None = None
