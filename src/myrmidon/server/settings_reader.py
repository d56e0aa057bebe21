"""Reads the settings of a server: from defaults, a TOML file, environment variables and flags, in this order.

A later source overrides an earlier one. Names are the same everywhere: ``public_url`` in the file,
``MYRMIDON_PUBLIC_URL`` in the environment (lists and tables as JSON) and ``--public-url`` as a flag. Reading settings
opens no database, and reports all problems together.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import structs, to_builtins

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.shown_input import show_value
from myrmidon.model.struct_problems import problems_of
from myrmidon.model.task_to_run import LIFO
from myrmidon.relays import tls
from myrmidon.scheduler.resource_groups import NAME, is_name
from myrmidon.server.settings import ALL_ADDRESSES, Amqp, Settings

PREFIX = "MYRMIDON_"
OTHER_VARIABLES = re.compile(r"CONFIG|TOKEN|SERVER|COMPLETE|COVERAGE|SECRET_FILE|(BOT|TASK|TEST|BENCH)_\w+")
"""Variables with the same prefix that are no settings: those of the command line, bots, tasks, tests and benchmarks."""


def read_settings(
    file: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Read and check the settings from all sources. Raises InvalidRequest with all problems of all sources.

    A named ``file`` must exist. Flags that are None count as absent.
    """
    environment = os.environ if environment is None else environment
    problems: list[Problem] = []
    values: dict[str, tuple[str, object]] = {}
    for name, value in _from_file(file or environment.get(f"{PREFIX}CONFIG"), problems).items():
        values[name] = (f"file: {name}", value)
    for name, value in _from_environment(environment, problems).items():
        values[name] = (f"{PREFIX}{name.upper()}", value)
    for name, value in (flags or {}).items():
        if value is not None:
            parsed = _parse_text(name, value) if isinstance(value, str) and name in _TYPES else value
            values[name] = (f"--{name.replace('_', '-')}", parsed)
    settings = _convert(values, problems)
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
        problems.append(Problem("config", file, f"a readable file ({error.strerror})", "file"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(Problem("config", file, f"a TOML file ({error})", "syntax"))
    return {}


def _from_environment(environment: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    values = {}
    for variable, text in sorted(environment.items()):
        name = variable.removeprefix(PREFIX)
        if name == variable or OTHER_VARIABLES.fullmatch(name):
            continue
        if name.lower() not in _TYPES:
            problems.append(_unknown(variable, name.lower()))
            continue
        values[name.lower()] = _parse_text(name.lower(), text)
    return values


def _unknown(source: str, name: str) -> Problem:
    """The problem of an unknown name. The value is not shown: the name may be misspelt and the value a secret."""
    similar = get_close_matches(name, _TYPES, n=1)
    hint = f" (did you mean {similar[0]}?)" if similar else ""
    return Problem(source, "an unknown name", f"the name of a setting{hint}", "unknown")


def _parse_text(name: str, text: str) -> object:
    """The value of a variable or flag: texts are taken as they are, everything else is JSON."""
    if _TYPES[name] is str:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _convert(values: Mapping[str, tuple[str, object]], problems: list[Problem]) -> Settings:
    """The settings with the values that are allowed; for each of the others problems are added and the default used.

    A value that is out of its range is named by the setting, any other by its source.
    """
    converted: dict[str, Any] = {}
    for name, (source, value) in values.items():
        if name not in _TYPES:
            problems.append(_unknown(source, name))
            continue
        found = [problem for _, problem in problems_of(value, _TYPES[name], (name,), quotes=True)]
        if not found:
            converted[name] = msgspec.convert(value, _TYPES[name])
        for one in found:
            path = one.path if one.code in _OF_THE_SETTING else source + one.path.removeprefix(name)
            problems.append(structs.replace(one, path=path))
    return Settings(**converted)


_TYPES: dict[str, Any] = get_type_hints(Settings, include_extras=True)
_OF_THE_SETTING = ("range", "choice")


def check(settings: Settings) -> list[Problem]:
    """All problems of settings whose types are right; ``myrmidon config check`` prints them."""
    problems = [problem for _, problem in problems_of(to_builtins(settings), Settings)]
    problems += _check_database("database", settings.database_url)
    problems += _check_database("log_database", settings.log_database_url)
    problems += _check_address(settings)
    problems += _check_networks(settings)
    problems += _check_groups(settings)
    problems += _check_pools(settings)
    problems += _check_amqp(settings.amqp)
    problems += _check_authorities("amqp.ca_file", settings.amqp.ca_file)
    problems += _check_authorities("webhooks.ca_file", settings.webhooks.ca_file)
    if settings.most_body_bytes < settings.large_body_limit:
        shown, allowed = str(settings.most_body_bytes), f"large_body_limit, {settings.large_body_limit}, or more"
        problems.append(Problem("most_body_bytes", shown, allowed, "range"))
    return problems


def _check_database(name: str, url: str) -> list[Problem]:
    scheme = url.partition(":")[0]
    if scheme not in ("sqlite", "postgresql", "postgres", "mysql", "mariadb"):
        allowed = "a URL that begins with sqlite:///, postgresql:// or mysql://"
        return [Problem(name, show_value(scheme), allowed, "choice")]  # the rest may contain a password
    if scheme == "sqlite" and (
        not url.removeprefix("sqlite:///") or not url.startswith("sqlite:///") or ":memory:" in url
    ):
        return [Problem(name, url, "sqlite:/// followed by the path of a file", "syntax")]
    return []


def _check_address(settings: Settings) -> list[Problem]:
    problems = _check_tls(settings.tls_certificate, settings.tls_key)
    if not settings.is_local and not settings.tls_certificate and not settings.plain_http:
        allowed = (
            "a loopback address such as 127.0.0.1; for other addresses set tls_certificate and tls_key,"
            " or plain_http = true if a proxy terminates TLS"
        )
        problems.append(Problem("host", settings.host, allowed, "unsafe"))
    urls = [("public_url", settings.public_url)] if settings.public_url else []
    urls += [("allowed_origins", url) for url in settings.allowed_origins]
    problems += [
        Problem(name, url, "a URL such as https://myrmidon.example", "syntax") for name, url in urls if not _is_url(url)
    ]
    allowed = "a host name or address, such as myrmidon.example, 10.0.0.1:8910 or [::1]"
    problems += [
        Problem("allowed_hosts", host, allowed, "syntax")
        for host in settings.allowed_hosts
        if not _HOST.fullmatch(host)
    ]
    return problems


def _check_tls(certificate: str, key: str) -> list[Problem]:
    """Problems of the two files, which are loaded as the server will load them."""
    paths = (("tls_certificate", certificate), ("tls_key", key))
    problems = [
        Problem(name, path, "a readable file", "file") for name, path in paths if path and not os.access(path, os.R_OK)
    ]
    if bool(certificate) != bool(key):
        missing = "tls_key" if certificate else "tls_certificate"
        problems.append(Problem(missing, "nothing", "both tls_certificate and tls_key, or neither", "missing"))
    if problems or not certificate:
        return problems
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        allowed = f"a PEM certificate chain whose key, without a password, is in tls_key ({error})"
        return [Problem("tls_certificate", certificate, allowed, "file")]
    return []


def _check_authorities(name: str, path: str) -> list[Problem]:
    if not path:
        return []
    try:
        tls.client_context(path)
    except OSError as error:  # also if it has no certificate
        return [Problem(name, path, f"a PEM file with certificates ({error})", "file")]
    return []


_HOST = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(_HOST.fullmatch(parts.netloc)) and not re.search(r"\s", url)


def _check_networks(settings: Settings) -> list[Problem]:
    networks = [("proxies", text) for text in settings.proxies]
    networks += [("allow.network", entry.network) for entry in settings.allow]
    networks += [("webhooks.allowed_networks", text) for text in settings.webhooks.allowed_networks]
    problems = [
        Problem(path, text, "an address, or a network such as 10.0.0.0/8", "syntax")
        for path, text in networks
        if not _is_network(text)
    ]
    if settings.allow and settings.host in ALL_ADDRESSES and not (settings.public_url or settings.allowed_hosts):
        # DNS rebinding: without a token, only the Host header tells the calls of a foreign web page from others.
        allowed = "the host names of this server (or set public_url), because allow lets networks in without a token"
        problems.append(Problem("allowed_hosts", "nothing", allowed, "missing"))
    for entry in settings.allow:
        if entry.role not in ("admin", "bot-bootstrap") and not entry.group:
            problems.append(Problem("allow.group", "nothing", f"a resource group, for role {entry.role}", "missing"))
        if entry.role == "admin" and entry.group:
            allowed = "no group, because role admin has access to all groups"
            problems.append(Problem("allow.group", entry.group, allowed, "contradiction"))
    return problems


def _check_groups(settings: Settings) -> list[Problem]:
    """Problems of the names of resource groups."""
    names = [("default_group", settings.default_group), *(("quotas", name) for name in settings.quotas)]
    names += [("allow.group", entry.group) for entry in settings.allow if entry.group]
    return [Problem(path, show_value(name), NAME, "length") for path, name in names if not is_name(name)]


def _check_pools(settings: Settings) -> list[Problem]:
    problems = []
    for name, pool in settings.pools.items():
        if not is_name(name):
            problems.append(Problem("pools", show_value(name), NAME, "length"))
        if pool.ageing_s and pool.task_order == LIFO:
            allowed = f"0 with task_order = '{LIFO}'"
            problems.append(Problem(f"pools.{name}.ageing_s", str(pool.ageing_s), allowed, "contradiction"))
    return problems


def _check_amqp(amqp: Amqp) -> list[Problem]:
    """Problems of the broker's URL, which is not shown because it may contain a password."""
    problems = []
    if amqp.url and not _AMQP_URL.fullmatch(amqp.url):
        allowed = "a URL such as amqps://user:password@broker.example/vhost"
        problems.append(Problem("amqp.url", "an invalid URL", allowed, "syntax"))
    if not _EXCHANGE_PREFIX.fullmatch(amqp.exchange_prefix):
        allowed = "up to 100 letters, digits and - _ . : /"
        problems.append(Problem("amqp.exchange_prefix", show_value(amqp.exchange_prefix), allowed, "syntax"))
    return problems


_AMQP_URL = re.compile(r"amqps?://([^\s/@]*@)?([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(/[^\s/]*)?")
_EXCHANGE_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{0,100}")


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
