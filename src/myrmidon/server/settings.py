"""Settings: defaults, a TOML file, the environment and flags, each stronger than the one before.

Names are the same everywhere: ``public_url`` in the file, ``MYRMIDON_PUBLIC_URL`` in the environment (lists and
tables as JSON) and ``--public-url`` as a flag. Reading settings opens no database; every problem is told at once.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, to_builtins

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_to_run import FIFO, LIFO
from myrmidon.model.validation import show_value
from myrmidon.scheduler.policy import DAY, SECOND, Rules
from myrmidon.scheduler.resource_groups import NAME, is_name
from myrmidon.store.tables import log as logs

PREFIX = "MYRMIDON_"
ROLES = ("admin", "user", "viewer", "bot-bootstrap")
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
LOG_LEVELS = ("debug", "info", "warning", "error")
OTHER_VARIABLES = re.compile(r"CONFIG|TOKEN|SERVER|COMPLETE|COVERAGE|SECRET_FILE|(BOT|TASK|TEST|BENCH)_\w+")
"""Variables with our prefix that are others': the command line's, the bots' and their tasks', the tests'."""


class AllowedNetwork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests from a network that need no token: who they are taken for, and what they may do."""

    network: str
    name: str
    role: str = "viewer"
    group: str | None = None


class PoolOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pool orders its tasks: fifo or lifo, and how many seconds of waiting are worth a step of priority."""

    task_order: str = FIFO
    ageing_s: int = 0


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a resource group may have waiting."""

    pending_tasks: int = 1_000_000
    pending_bytes: int = 4 << 30


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an administrator may change."""

    # where the data lies
    data_dir: str = ""
    database: str = ""
    log_database: str = ""
    config_dir: str = ""
    """The settings folder: bots.toml, pools.toml, bot_config.py, bootstrap.py and scripts/*.py."""
    durable: bool = True
    """False accepts database servers that may lose commits; for tests only."""

    # where the server is found
    host: str = "127.0.0.1"
    port: int = 8910
    public_url: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    plain_http: bool = False
    """Allow an address beyond this machine without TLS."""

    # who may come in
    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    allow: list[AllowedNetwork] = []
    proxies: list[str] = []
    failed_attempts: int = 20
    """How many wrong tokens an address may show in a minute."""

    # limits
    body_limit: int = 1 << 20
    large_body_limit: int = 64 << 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    most_connections: int = 50_000
    most_calls: int = 1_000
    """Calls at work at once, waiting ones not counted; more are told to come again."""
    quota: Quota = Quota()
    quotas: dict[str, Quota] = {}

    # how the work is done
    pools: dict[str, PoolOrder] = {}
    default_group: str = "default"
    default_deadline_s: int = 7 * 86_400
    start_within_s: int = 30
    shortest_lease_s: int = 30
    shortest_timeout_s: int = 1
    """The least execution timeout that a task may ask for."""
    dead_after_s: int = 600
    retention_days: int = 30
    dedupe_days: int = 7
    log_mib: int = 100
    sweep_s: float = 5.0
    poll_s: float = 30.0
    heartbeat_s: float = 10.0
    canary_percent: int = 0
    """The share of the bots that get a new release first; 0: all of them at once."""
    canary_s: float = 600.0
    """A bot that has lived so long with a new release shows that it is good; so does one that has finished a task."""
    release_grace_s: float = 60.0
    """How long a release is kept when no server is left that would hand it out."""
    stop_s: float = 5.0
    """How long a stop waits for calls that are under way, and then for the database to write what is left."""

    # what it tells
    log_level: str = "info"
    metrics_open: bool = False
    """Whether /metrics needs no token."""

    @property
    def data_folder(self) -> Path:
        """Where the data lies."""
        if self.data_dir:
            return Path(self.data_dir).expanduser()
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(home).expanduser() / "myrmidon"

    @property
    def config_folder(self) -> Path:
        """Where the settings of the fleet lie."""
        return Path(self.config_dir).expanduser() if self.config_dir else self.data_folder / "config"

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_folder / 'myrmidon.db'}"

    @property
    def log_database_url(self) -> str:
        """On SQLite a second file with a writer of its own; elsewhere the same database."""
        return self.log_database or logs.log_url(self.database_url)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host == "localhost" or _is_loopback(self.host)

    def rules(self, secret_key: bytes) -> Rules:
        """The numbers of the core that these settings decide."""
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
        return Limits(lease_min_s=self.shortest_lease_s, execution_timeout_min_s=self.shortest_timeout_s)

    def quota_of(self, group: str) -> Quota:
        return self.quotas.get(group, self.quota)


def read_settings(
    file: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Settings from all places. InvalidRequest lists every problem, whatever place it comes from.

    ``file`` must exist when it is named; flags that are None were not given.
    """
    environment = os.environ if environment is None else environment
    problems: list[Problem] = []
    given: dict[str, tuple[str, object]] = {}
    for name, value in _from_file(file or environment.get(f"{PREFIX}CONFIG"), problems).items():
        given[name] = (f"file: {name}", value)
    for name, value in _from_environment(environment, problems).items():
        given[name] = (f"{PREFIX}{name.upper()}", value)
    for name, value in (flags or {}).items():
        if value is not None:
            said = _parse_text(name, value) if isinstance(value, str) and name in _TYPES else value
            given[name] = (f"--{name.replace('_', '-')}", said)
    settings = _convert(given, problems)
    problems += check(settings)
    if problems:
        raise InvalidRequest(problems)
    return settings


def _from_file(file: str | None, problems: list[Problem]) -> dict[str, Any]:
    if not file:
        return {}
    try:
        return tomllib.loads(Path(file).read_text())
    except OSError as error:
        problems.append(Problem("config", file, f"a file that can be read ({error.strerror})", "file"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(Problem("config", file, f"TOML: {error}", "syntax"))
    return {}


def _from_environment(environment: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    found = {}
    for variable, text in sorted(environment.items()):
        name = variable.removeprefix(PREFIX)
        if name == variable or OTHER_VARIABLES.fullmatch(name):
            continue
        if name.lower() not in _TYPES:
            problems.append(_unknown(variable))
            continue
        found[name.lower()] = _parse_text(name.lower(), text)
    return found


def _unknown(place: str) -> Problem:
    """Without what was given there: behind a name with a slip in it may be a secret."""
    return Problem(place, "an unknown name", "the name of a setting", "unknown")


def _parse_text(name: str, text: str) -> object:
    """What a variable says: text as it stands, everything else as JSON."""
    if _TYPES[name] is str:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _convert(given: Mapping[str, tuple[str, object]], problems: list[Problem]) -> Settings:
    """The settings that could be read; a problem for each that could not."""
    good: dict[str, Any] = {}
    for name, (place, value) in given.items():
        if name not in _TYPES:
            problems.append(_unknown(place))
            continue
        try:
            good[name] = msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            problems.append(Problem(place, show_value(value), str(error), "type"))
    return Settings(**good)


_TYPES: dict[str, Any] = get_type_hints(Settings)
_DAY_S, _MONTH_S, _CENTURY_DAYS = 86_400, 30 * 86_400, 36_500
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "body_limit": (1024, 1 << 30),
    "large_body_limit": (1024, 1 << 30),
    "header_timeout_s": (0.1, 3600),
    "body_timeout_s": (0.1, 3600),
    "most_connections": (1, 1_000_000),
    "most_calls": (1, 1_000_000),
    "failed_attempts": (1, 1_000_000),
    "default_deadline_s": (1, 12 * _MONTH_S),
    "start_within_s": (1, _DAY_S),
    "shortest_lease_s": (1, DEFAULT_LIMITS.lease_default_s),  # what a task gets that asks for none
    "shortest_timeout_s": (1, DEFAULT_LIMITS.execution_timeout_max_s),
    "dead_after_s": (1, _MONTH_S),
    "retention_days": (1, _CENTURY_DAYS),
    "dedupe_days": (0, _CENTURY_DAYS),
    "log_mib": (1, 1 << 20),
    "sweep_s": (0.01, 3600),
    "poll_s": (0, 3600),
    "heartbeat_s": (0.01, DEFAULT_LIMITS.lease_max_s),
    "canary_percent": (0, 100),
    "canary_s": (0, _MONTH_S),
    "release_grace_s": (1, _MONTH_S),
    "stop_s": (0, 3600),
}


def check(settings: Settings) -> list[Problem]:
    """Everything that is wrong with settings that could be read; what ``myrmidon config check`` shows."""
    problems = [
        Problem(name, str(getattr(settings, name)), f"{least} to {most}", "range")
        for name, (least, most) in _RANGES.items()
        if not least <= getattr(settings, name) <= most  # so, because nothing is true of what is not a number
    ]
    if settings.log_level not in LOG_LEVELS:
        problems.append(Problem("log_level", settings.log_level, ", ".join(LOG_LEVELS), "choice"))
    problems += _check_database("database", settings.database_url)
    problems += _check_database("log_database", settings.log_database_url)
    problems += _check_address(settings)
    problems += _check_networks(settings)
    problems += _check_groups(settings)
    problems += _check_pools(settings)
    return problems


def _check_database(name: str, url: str) -> list[Problem]:
    scheme = url.partition(":")[0]
    if scheme not in ("sqlite", "postgresql", "postgres", "mysql", "mariadb"):
        return [Problem(name, scheme, "sqlite:///path, postgresql://... or mysql://...", "choice")]
    if scheme == "sqlite" and (
        not url.removeprefix("sqlite:///") or not url.startswith("sqlite:///") or ":memory:" in url
    ):
        return [Problem(name, url, "sqlite:/// and the path of a file", "syntax")]
    return []


def _check_address(settings: Settings) -> list[Problem]:
    problems = _check_tls(settings.tls_certificate, settings.tls_key)
    if not settings.is_local and not settings.tls_certificate and not settings.plain_http:
        allowed = "an address of this machine, or tls_certificate and tls_key, or plain_http = true behind a proxy"
        problems.append(Problem("host", settings.host, allowed, "unsafe"))
    urls = [("public_url", settings.public_url)] if settings.public_url else []
    urls += [("allowed_origins", url) for url in settings.allowed_origins]
    problems += [Problem(name, url, "http://host or https://host", "syntax") for name, url in urls if not _is_url(url)]
    allowed = "the name or the address of a host alone, such as myrmidon.example or [::1]"
    problems += [
        Problem("allowed_hosts", host, allowed, "syntax")
        for host in settings.allowed_hosts
        if not _HOST.fullmatch(host)
    ]
    return problems


def _check_tls(certificate: str, key: str) -> list[Problem]:
    """The files are read as the server will read them; it has nobody to ask for a password."""
    named = (("tls_certificate", certificate), ("tls_key", key))
    problems = [
        Problem(name, path, "a file that can be read", "file")
        for name, path in named
        if path and not os.access(path, os.R_OK)
    ]
    if bool(certificate) != bool(key):
        problems.append(Problem("tls_key", key, "both tls_certificate and tls_key, or none", "missing"))
    if problems or not certificate:
        return problems
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        allowed = f"a certificate chain in PEM, and as tls_key its key without a password ({error})"
        return [Problem("tls_certificate", certificate, allowed, "file")]
    return []


_HOST = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(_HOST.fullmatch(parts.netloc)) and not re.search(r"\s", url)


def _check_networks(settings: Settings) -> list[Problem]:
    named = [("proxies", text) for text in settings.proxies]
    named += [("allow.network", entry.network) for entry in settings.allow]
    problems = [
        Problem(where, text, "a network such as 10.0.0.0/8 or an address", "syntax")
        for where, text in named
        if not _is_network(text)
    ]
    if settings.allow and settings.host in ALL_ADDRESSES and not (settings.public_url or settings.allowed_hosts):
        # Without a token, the name is all that keeps a strange page in a trusted browser from calling us.
        allowed = "the names of this server, or public_url, where networks need no token"
        problems.append(Problem("allowed_hosts", "nothing", allowed, "missing"))
    for entry in settings.allow:
        if entry.role not in ROLES:
            problems.append(Problem("allow.role", entry.role, ", ".join(ROLES), "choice"))
        if entry.role != "admin" and not entry.group:
            problems.append(Problem("allow.group", "nothing", f"a resource group for role {entry.role}", "missing"))
        if entry.role == "admin" and entry.group:
            problems.append(Problem("allow.group", entry.group, "none for role admin, which has all", "contradiction"))
    return problems


def _check_groups(settings: Settings) -> list[Problem]:
    """Names of resource groups, and how much they may have waiting."""
    named = [("default_group", settings.default_group), *(("quotas", name) for name in settings.quotas)]
    named += [("allow.group", entry.group) for entry in settings.allow if entry.group]
    problems = [Problem(where, show_value(name), NAME, "length") for where, name in named if not is_name(name)]
    for where, quota in [
        ("quota", settings.quota),
        *((f"quotas.{name}", one) for name, one in settings.quotas.items()),
    ]:
        for field, most in to_builtins(quota).items():
            if most < 0:
                problems.append(Problem(f"{where}.{field}", str(most), "0 or more", "range"))
    return problems


def _check_pools(settings: Settings) -> list[Problem]:
    problems = []
    for name, pool in settings.pools.items():
        if not is_name(name):
            problems.append(Problem("pools", show_value(name), NAME, "length"))
        if pool.task_order not in (FIFO, LIFO):
            problems.append(Problem(f"pools.{name}.task_order", pool.task_order, f"{FIFO} or {LIFO}", "choice"))
        if not 0 <= pool.ageing_s <= _MONTH_S or (pool.ageing_s and pool.task_order == LIFO):
            allowed = f"0 to {_MONTH_S} seconds, and 0 with lifo: ageing serves the oldest first"
            problems.append(Problem(f"pools.{name}.ageing_s", str(pool.ageing_s), allowed, "contradiction"))
    return problems


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def seconds(value: float) -> Micros:
    """A setting in seconds as the core counts time."""
    return round(value * SECOND)
