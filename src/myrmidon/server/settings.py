"""The settings of a server: names, types, defaults and what follows from them.

docs/server.md describes every setting; settings_reader.py reads and checks them.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.model.ids import Micros
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.relays.webhooks import WebhookRules
from myrmidon.scheduler.policy import DAY, SECOND, Rules
from myrmidon.store.tables import log as logs

ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
DAY_S, MONTH_S, CENTURY_DAYS = 86_400, 30 * 86_400, 36_500
MIN_UNUSED_HOURS = 2
"""A multiple of the time after which a use of a file is recorded again (``stored_file.RENEW_AFTER``)."""


class AllowedNetwork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network whose requests need no token, and the identity and permissions that they get."""

    network: str
    name: str
    role: Literal["admin", "user", "viewer", "bot-bootstrap"] = "viewer"
    group: str | None = None


class PoolOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task order of a pool: fifo or lifo, and how many seconds of waiting raise the priority by one step."""

    task_order: Literal["fifo", "lifo"] = "fifo"
    ageing_s: Annotated[int, Meta(ge=0, le=MONTH_S)] = 0


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tasks and bytes of requests that a resource group may have waiting for bots, and bytes of files stored."""

    pending_tasks: Annotated[int, Meta(ge=0)] = 1_000_000
    pending_bytes: Annotated[int, Meta(ge=0)] = 4 << 30
    stored_bytes: Annotated[int, Meta(ge=0)] = 100 << 30


class Amqp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The RabbitMQ server that messages are published to, and what the names of their exchanges begin with.

    ``ca_file``: a PEM file with authorities that are trusted for amqps:// besides those of this machine.
    """

    url: str = ""
    exchange_prefix: str = ""
    ca_file: str = ""


class Webhooks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Networks that webhooks may call although they are not public, and how many messages of one may wait.

    ``ca_file``: a PEM file with authorities that are trusted for https:// besides those of this machine.
    """

    allowed_networks: list[str] = []
    max_backlog: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    ca_file: str = ""


class Files(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where large values and the code of functions are stored, and how long one that nothing refers to is kept."""

    folder: str = ""
    """Default: ``files`` in ``data_dir``. All servers of a database need the same one."""
    unused_hours: Annotated[float, Meta(ge=MIN_UNUSED_HOURS, le=CENTURY_DAYS * 24)] = 24.0


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that an administrator can set."""

    # data
    data_dir: str = ""
    """The data folder; default: ``myrmidon`` in the user's data folder."""
    database: str = ""
    """The URL of the database; default: an SQLite file in ``data_dir``."""
    log_database: str = ""
    """The URL of the database for the output of tasks; default: a second file on SQLite, otherwise ``database``."""
    config_dir: str = ""
    """The folder with the fleet configuration; default: ``config`` in ``data_dir``."""
    files: Files = Files()
    durable: bool = True
    """False accepts database servers that may lose committed data; for tests only."""

    # address
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8910
    """0 selects a free port."""
    public_url: str = ""
    """The URL under which bots and people reach the server; it is stored in the bot zip."""
    tls_certificate: str = ""
    tls_key: str = ""
    """PEM files for HTTPS; the key must have no password."""
    plain_http: bool = False
    """Allow connections from other machines without HTTPS."""

    # access
    allowed_hosts: list[str] = []
    """Further host names that requests may use, besides that of ``public_url`` and the local ones."""
    allowed_origins: list[str] = []
    """Origins of web pages on other servers that may call this one."""
    allow: list[AllowedNetwork] = []
    """Networks that need no token."""
    proxies: list[str] = []
    """Networks of trusted proxies, whose ``X-Forwarded-For`` header is used."""
    failed_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    """Invalid tokens per minute and address before further invalid ones are answered with 429."""

    # limits
    body_limit: Annotated[int, Meta(ge=1024, le=1 << 30)] = 1 << 20
    large_body_limit: Annotated[int, Meta(ge=1024, le=1 << 30)] = 64 << 20
    """For graph documents."""
    header_timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0
    body_timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    most_connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    most_calls: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Concurrent calls, without long polls and streams; further ones are rejected and may be repeated."""
    most_bodies: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    """Request bodies of one caller that may be arriving at the same time; they do not count as calls."""
    most_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 40)] = 512 << 20
    """Bytes of the larger bodies of one caller, from their first byte to the response."""
    most_waits: Annotated[int, Meta(ge=1, le=1_000_000)] = 2_000
    """Calls of one caller that may wait at the same time: long polls and streams."""
    most_event_streams: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    """The number of them that may be streams of events; a page that is kept open has one."""
    quota: Quota = Quota()
    """For each resource group that is not in ``quotas``."""
    quotas: dict[str, Quota] = {}

    # scheduling
    pools: dict[str, PoolOrder] = {}
    """Task orders by pool, applied at every start to pools whose order ``pools.toml`` does not set."""
    default_group: str = "default"
    """The resource group of calls that name none."""
    default_pool: str = "default"
    """The pool of tasks of a graph document whose payload names none."""
    default_deadline_s: Annotated[int, Meta(ge=1, le=12 * MONTH_S)] = 7 * 86_400
    """The deadline of tasks that set none."""
    start_within_s: Annotated[int, Meta(ge=1, le=DAY_S)] = 30
    """The time for which a bot may hold a claimed task before it starts it."""
    shortest_lease_s: Annotated[int, Meta(ge=1, le=DEFAULT_LIMITS.lease_default_s)] = 30
    """The smallest lease that a task may request; that of a task that requests none must be allowed."""
    shortest_timeout_s: Annotated[int, Meta(ge=1, le=DEFAULT_LIMITS.execution_timeout_max_s)] = 1
    """The smallest execution timeout that a task may request."""
    dead_after_s: Annotated[int, Meta(ge=1, le=MONTH_S)] = 600
    """A bot is dead after it has sent nothing for this time."""
    retention_days: Annotated[int, Meta(ge=1, le=CENTURY_DAYS)] = 30
    """The time for which ended tasks, logs and events are kept."""
    dedupe_days: Annotated[int, Meta(ge=0, le=CENTURY_DAYS)] = 7
    """How old the result of an equal task may be to be reused."""
    log_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 100
    """The largest log of a run; of a longer one the head and the tail are kept."""
    sweep_s: Annotated[float, Meta(ge=0.01, le=3600)] = 5.0
    """The interval of the background pass for expiries, timeouts and lost bots."""
    clock_settle_s: Annotated[float, Meta(ge=0, le=MONTH_S)] = 3600.0
    """How long a step of the machine's clock must last before the server follows it; 300 s at most with a database."""
    poll_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """The time for which the long poll of an idle bot is held."""
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=DEFAULT_LIMITS.lease_max_s)] = 10.0
    """The time between two heartbeats of a busy bot."""
    canary_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    """The percentage of the bots that get a new release first; 0: all bots get it at once."""
    canary_s: Annotated[float, Meta(ge=0, le=MONTH_S)] = 600.0
    """A release is accepted after a canary bot has run it for this time, or has finished a task with it."""
    release_grace_s: Annotated[float, Meta(ge=1, le=MONTH_S)] = 60.0
    """The time for which bots keep a release after the last server that offers it has gone."""
    stop_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """The time for which a stopping server waits for running calls, and then for the database to write what is left."""

    # messages
    amqp: Amqp = Amqp()
    """Where messages about tasks and jobs are published; none without a URL."""
    webhooks: Webhooks = Webhooks()

    # monitoring
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_open: bool = False
    """/metrics needs no token."""

    @property
    def data_folder(self) -> Path:
        if self.data_dir:
            return Path(self.data_dir).expanduser()
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(home).expanduser() / "myrmidon"

    @property
    def config_folder(self) -> Path:
        """The folder with the fleet configuration."""
        return Path(self.config_dir).expanduser() if self.config_dir else self.data_folder / "config"

    @property
    def files_folder(self) -> Path:
        """The folder of the files."""
        return Path(self.files.folder).expanduser() if self.files.folder else self.data_folder / "files"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_folder / 'myrmidon.db'}"

    @property
    def log_database_url(self) -> str:
        """The database of the logs: on SQLite a second file, which has its own writer, otherwise the same database."""
        return self.log_database or logs.log_url(self.database_url)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def webhook_rules(self) -> WebhookRules:
        return WebhookRules(tuple(self.webhooks.allowed_networks), self.webhooks.max_backlog, self.webhooks.ca_file)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The names of the sinks that events are relayed to."""
        return ("amqp",) if self.amqp.url else ()

    def rules(self, secret_key: bytes) -> Rules:
        """The rules of the scheduler that follow from these settings."""
        log_bytes = self.log_mib << 20
        return Rules(
            default_deadline=self.default_deadline_s * SECOND,
            start_within=self.start_within_s * SECOND,
            dead_after=self.dead_after_s * SECOND,
            retention=self.retention_days * DAY,
            dedupe_window=self.dedupe_days * DAY,
            secret_key=secret_key,
            log_head=log_bytes * 16 // 25,
            log_tail=log_bytes - log_bytes * 16 // 25,
        )

    def limits(self) -> Limits:
        """The limits of requests. The lease of a task that requests none ends before its bot counts as dead."""
        return Limits(
            lease_default_s=min(DEFAULT_LIMITS.lease_default_s, self.dead_after_s),
            lease_min_s=self.shortest_lease_s,
            execution_timeout_min_s=self.shortest_timeout_s,
        )

    def quota_of(self, group: str) -> Quota:
        return self.quotas.get(group, self.quota)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def seconds(value: float) -> Micros:
    """Seconds as microseconds."""
    return round(value * SECOND)
