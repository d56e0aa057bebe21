"""Converts a new task in the format of Swarming's API v1 to the native request format.

Two generations of clients are supported: those that send ``task_slices``, and older ones that send ``properties`` and
``expiration_secs``. null means absent; asgi/decoding.py has dropped unknown keys, with a warning. The native checks
validate the task; here only features of v1 are refused that this server does not have.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct, structs

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.limits import Limits
from myrmidon.model.shown_input import show_value
from myrmidon.server.swarming_v1.encoding import decode_bytes, encode_bytes
from myrmidon.server.usecases.submit import no_inputs, no_outputs

PRIORITY: Final = 200
"""The default, as in Swarming."""
MAX_REALM_CHARS: Final = 256
"""A realm is part of a tag, and these have a limit."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DEADLINE_MARGIN_S: Final = 3600
"""Added to the longest time of waiting and running to get a task's deadline."""


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    key: str | None = None
    value: str | None = None


class ListPair(Struct, frozen=True, forbid_unknown_fields=True):
    key: str | None = None
    value: list[str] | None = None


class NamedCache(Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    path: str | None = None


class PropertiesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Properties of a slice; every field may be absent or null."""

    caches: list[NamedCache] | None = None
    cas_input_root: Any = None
    cipd_input: Any = None
    command: list[str] | None = None
    dimensions: list[Pair] | None = None
    env: list[Pair] | None = None
    env_prefixes: list[ListPair] | None = None
    execution_timeout_secs: int | None = None
    extra_args: list[str] | None = None
    grace_period_secs: int | None = None
    idempotent: bool | None = None
    inputs_ref: Any = None
    io_timeout_secs: int | None = None
    outputs: list[str] | None = None
    relative_cwd: str | None = None
    secret_bytes: str | None = None


class SliceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    expiration_secs: int | None = None
    properties: PropertiesBody | None = None
    wait_for_capacity: bool | None = None


class NewTaskBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new task; every field may be absent or null."""

    bot_ping_tolerance_secs: int | None = None
    evaluate_only: bool | None = None
    expiration_secs: int | None = None
    name: str | None = None
    parent_task_id: str | None = None
    pool_task_template: str | int | None = None
    priority: int | None = None
    properties: PropertiesBody | None = None
    pubsub_topic: str | None = None
    realm: str | None = None
    request_uuid: str | None = None
    service_account: str | None = None
    tags: list[str] | None = None
    task_slices: list[SliceBody] | None = None
    user: str | None = None


def native_request(task: NewTaskBody) -> dict[str, Any]:
    """The task as a native request; InvalidRequest for features of v1 that this server does not have."""
    problems: list[Problem] = []
    slices = _slices(task, problems)
    for number, task_slice in enumerate(slices):
        _refuse_unsupported(task_slice.properties or PropertiesBody(), f"task_slices[{number}].properties", problems)
    if task.pubsub_topic:
        allowed = "none: nothing is published to topics; events are streamed at /api/v1/events"
        problems.append(Problem("pubsub_topic", show_value(task.pubsub_topic), allowed, "unsupported"))
    if task.request_uuid and not _UUID.fullmatch(task.request_uuid):
        problems.append(Problem("request_uuid", show_value(task.request_uuid), "a UUID as text", "pattern"))
    if task.realm and len(task.realm) > MAX_REALM_CHARS:
        problems.append(Problem("realm", show_value(task.realm), f"at most {MAX_REALM_CHARS} characters", "length"))
    if problems:
        raise InvalidRequest(problems)
    request: dict[str, Any] = {
        "name": task.name,
        "slices": [_native_slice(task_slice) for task_slice in slices],
        "priority": PRIORITY if task.priority is None else task.priority,
        "tags": task.tags or [],
        "user": task.user or "",
        "service_account": task.service_account or None,
        "parent": task.parent_task_id or None,
        "lease_s": task.bot_ping_tolerance_secs,
        "secret_bytes": _secret(slices),
        "evaluate_only": bool(task.evaluate_only),
        "metadata": {"realm": task.realm} if task.realm else None,
    }
    return {key: value for key, value in request.items() if value is not None}


def request_key(task: NewTaskBody, who: str) -> str | None:
    """The request key of a task with a request_uuid; uuids are separate per caller."""
    return f"v1 {task.request_uuid.lower()} {who}"[:256] if task.request_uuid else None


def _slices(task: NewTaskBody, problems: list[Problem]) -> Sequence[SliceBody]:
    """The slices of the task, in either of the two formats."""
    if task.task_slices and task.properties is not None:
        problems.append(Problem("properties", "both", "either properties or task_slices", "contradiction"))
    elif task.task_slices and task.expiration_secs:
        allowed = "none with task_slices: each slice has its own"
        problems.append(Problem("expiration_secs", show_value(task.expiration_secs), allowed, "contradiction"))
    elif task.properties is None and not task.task_slices:
        problems.append(Problem("task_slices", "nothing", "at least one slice, or properties", "missing"))
    if task.task_slices:
        return task.task_slices
    if task.properties is None:
        return []
    return [SliceBody(properties=task.properties, expiration_secs=task.expiration_secs)]


def _native_slice(task_slice: SliceBody) -> dict[str, Any]:
    native: dict[str, Any] = {
        "properties": _native_properties(task_slice.properties or PropertiesBody()),
        "wait_for_capacity": bool(task_slice.wait_for_capacity),
    }
    if task_slice.expiration_secs is not None:
        native["expiration_s"] = task_slice.expiration_secs
    return native


def _native_properties(properties: PropertiesBody) -> dict[str, Any]:
    """The properties in the native format. In v1 stdout and stderr are one stream."""
    prefixes = _unique(properties.env_prefixes or (), "env_prefixes")
    dimensions: dict[str, list[str]] = {}
    for pair in properties.dimensions or ():
        dimensions.setdefault(pair.key or "", []).append(pair.value or "")
    native: dict[str, Any] = {
        "dimensions": dimensions,
        "command": [*(properties.command or ()), *(properties.extra_args or ())],
        "relative_cwd": properties.relative_cwd or "",
        "env": {key: value or "" for key, value in _unique(properties.env or (), "env").items()},
        "env_prefixes": {key: value or [] for key, value in prefixes.items()} or None,
        "caches": [{"name": cache.name, "path": cache.path} for cache in properties.caches or ()],
        "execution_timeout_s": properties.execution_timeout_secs,
        "io_timeout_s": properties.io_timeout_secs,
        "grace_period_s": properties.grace_period_secs,
        "idempotent": bool(properties.idempotent),
        "merge_output": True,
    }
    return {key: value for key, value in native.items() if value is not None}


def _unique(pairs: Sequence[Pair | ListPair], path: str) -> dict[str, Any]:
    """Pairs as a dict; InvalidRequest for a repeated key."""
    values: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        if (pair.key or "") in values:
            raise InvalidRequest([Problem(f"{path}[{number}].key", show_value(pair.key), "a unique key", "duplicate")])
        values[pair.key or ""] = pair.value
    return values


def _secret(slices: Sequence[SliceBody]) -> str | None:
    """The secret of the task in base64; all slices that have a secret must have the same one."""
    properties = [task_slice.properties for task_slice in slices if task_slice.properties is not None]
    secrets = {decode_bytes(one.secret_bytes, "secret_bytes") for one in properties if one.secret_bytes}
    if len(secrets) > 1:
        allowed = "the same in all slices that have one"
        raise InvalidRequest([Problem("secret_bytes", f"{len(secrets)} secrets", allowed, "contradiction")])
    return encode_bytes(secrets.pop()) if secrets else None


def deadline_of(slices: Sequence[dict[str, Any]], limits: Limits) -> int:
    """The deadline of a task in seconds: all slices expire in turn and the longest one runs, plus a margin."""
    waiting_s = sum(one.get("expiration_s", limits.expiration_default_s) for one in slices)
    running_s = max((_max_run_s(one["properties"], limits) for one in slices), default=0)
    return max(1, min(limits.deadline_max_s, int(waiting_s) + running_s + _DEADLINE_MARGIN_S))


def _max_run_s(properties: dict[str, Any], limits: Limits) -> int:
    hard = properties.get("execution_timeout_s", limits.execution_timeout_default_s)
    return int(hard + properties.get("grace_period_s", limits.grace_period_default_s))


# ---------------------------------------------------------------- problems

_V1_NAMES: Final = {
    "expiration_s": "expiration_secs",
    "execution_timeout_s": "execution_timeout_secs",
    "io_timeout_s": "io_timeout_secs",
    "grace_period_s": "grace_period_secs",
    "lease_s": "bot_ping_tolerance_secs",
    "parent": "parent_task_id",
    "secret_bytes": "properties.secret_bytes",
}
"""The last part of a path in the native format, and in v1."""
_SLICE_PATH: Final = re.compile(r"slices(\[\d+\])?\.?(.*)")


@contextlib.contextmanager
def problems_in_v1(task: NewTaskBody) -> Iterator[None]:
    """Raise an InvalidRequest of the native checks under the names that v1 has for the fields."""
    try:
        yield
    except InvalidRequest as error:
        problems = [structs.replace(problem, path=_v1_path(problem.path, task)) for problem in error.problems]
        raise InvalidRequest(problems) from None


def _v1_path(path: str, task: NewTaskBody) -> str:
    """The path of a field in v1. Clients that do not send ``task_slices`` have one slice at the top level."""
    in_slice = _SLICE_PATH.fullmatch(path)
    inner = in_slice[2] if in_slice else path
    start, dot, last = inner.rpartition(".")
    inner = f"{start}{dot}{_V1_NAMES.get(last, last)}"
    if in_slice is None or (task.properties is not None and inner):
        return inner
    return f"task_slices{in_slice[1] or ''}.{inner}".rstrip(".")


# ---------------------------------------------------------------- unsupported features


def _refuse_unsupported(properties: PropertiesBody, path: str, problems: list[Problem]) -> None:
    """Refuse files and packages: a task that needs them would fail or lose its outputs."""
    if _has_value(properties.inputs_ref, "isolated") or _has_value(properties.cas_input_root, "digest"):
        name = "inputs_ref" if _has_value(properties.inputs_ref, "isolated") else "cas_input_root"
        problems.append(no_inputs(f"{path}.{name}"))
    if properties.outputs:
        problems.append(no_outputs(f"{path}.outputs", len(properties.outputs)))
    if _has_value(properties.cipd_input, "packages"):
        allowed = "none: CIPD packages are not supported; install them on the bots or in a named cache"
        problems.append(Problem(f"{path}.cipd_input", "packages", allowed, "unsupported"))


def _has_value(value: Any, key: str) -> bool:
    return isinstance(value, dict) and bool(value.get(key))
