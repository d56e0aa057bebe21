"""A new task as clients of Swarming's API v1 write it, turned into the one request that the core knows.

Two generations of clients are understood: with ``task_slices``, and with ``properties`` and ``expiration_secs``
on top. null is nothing, unknown keys are left alone. What is wrong with the task itself the core's own checks tell;
here only what v1 has and we do not is refused, so that nobody waits for something that never comes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.limits import Limits
from myrmidon.model.validation import show_value
from myrmidon.server.swarming_v1.encoding import decode_bytes, encode_bytes
from myrmidon.server.usecases.unsupported import no_inputs, no_outputs

PRIORITY: Final = 200
"""For clients that say none, as Swarming's own did."""
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MARGIN_S: Final = 3600
"""What a task may take beyond waiting and running, before it is given up for good."""


class Pair(Struct, frozen=True):
    key: str | None = None
    value: str | None = None


class ListPair(Struct, frozen=True):
    key: str | None = None
    value: list[str] | None = None


class NamedCache(Struct, frozen=True):
    name: str | None = None
    path: str | None = None


class PropertiesBody(Struct, frozen=True, kw_only=True):
    """Properties, read with tolerance."""

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


class SliceBody(Struct, frozen=True, kw_only=True):
    expiration_secs: int | None = None
    properties: PropertiesBody | None = None
    wait_for_capacity: bool | None = None


class NewTaskBody(Struct, frozen=True, kw_only=True):
    """A new task, read with tolerance."""

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


def native_request(given: NewTaskBody) -> dict[str, Any]:
    """The request in the core's words; InvalidRequest for what v1 knows and this server does not do."""
    problems: list[Problem] = []
    slices = _slices(given, problems)
    for number, one in enumerate(slices):
        _refuse_unsupported(one.properties or PropertiesBody(), f"task_slices[{number}].properties", problems)
    if given.pubsub_topic:
        told = "none: events are read at /api/v1/events; nothing is published to a topic"
        problems.append(Problem("pubsub_topic", show_value(given.pubsub_topic), told, "unsupported"))
    if given.request_uuid and not _UUID.fullmatch(given.request_uuid):
        problems.append(Problem("request_uuid", show_value(given.request_uuid), "a UUID as text", "pattern"))
    if problems:
        raise InvalidRequest(problems)
    raw: dict[str, Any] = {
        "name": given.name,
        "slices": [_native_slice(one) for one in slices],
        "priority": PRIORITY if given.priority is None else given.priority,
        "tags": given.tags or [],
        "user": given.user or "",
        "service_account": given.service_account or None,
        "parent": given.parent_task_id or None,
        "retries": int(any((one.properties or PropertiesBody()).idempotent for one in slices)),
        "lease_s": given.bot_ping_tolerance_secs,
        "secret_bytes": _secret(slices),
        "evaluate_only": bool(given.evaluate_only),
        "metadata": {"realm": given.realm} if given.realm else None,
    }
    return {key: value for key, value in raw.items() if value is not None}


def request_key(given: NewTaskBody, who: str) -> str | None:
    """The key under which a task is found again; a uuid is one caller's own."""
    return f"v1 {given.request_uuid.lower()} {who}"[:256] if given.request_uuid else None


def _slices(given: NewTaskBody, problems: list[Problem]) -> Sequence[SliceBody]:
    """The slices, whichever generation of clients wrote them."""
    if given.task_slices and given.properties is not None:
        problems.append(Problem("properties", "both", "either properties or task_slices", "contradiction"))
    elif given.task_slices and given.expiration_secs:
        told = "none beside task_slices: each slice has its own"
        problems.append(Problem("expiration_secs", show_value(given.expiration_secs), told, "contradiction"))
    elif given.properties is None and not given.task_slices:
        problems.append(Problem("task_slices", "nothing", "at least one slice, or properties", "missing"))
    if given.task_slices:
        return given.task_slices
    if given.properties is None:
        return []
    return [SliceBody(properties=given.properties, expiration_secs=given.expiration_secs)]


def _native_slice(one: SliceBody) -> dict[str, Any]:
    native: dict[str, Any] = {
        "properties": _native_properties(one.properties or PropertiesBody()),
        "wait_for_capacity": bool(one.wait_for_capacity),
    }
    if one.expiration_secs is not None:
        native["expiration_s"] = one.expiration_secs
    return native


def _native_properties(given: PropertiesBody) -> dict[str, Any]:
    prefixes = _unique(given.env_prefixes or (), "env_prefixes")
    dimensions: dict[str, list[str]] = {}
    for pair in given.dimensions or ():
        dimensions.setdefault(pair.key or "", []).append(pair.value or "")
    native: dict[str, Any] = {
        "dimensions": dimensions,
        "command": [*(given.command or ()), *(given.extra_args or ())],
        "relative_cwd": given.relative_cwd or "",
        "env": {key: value or "" for key, value in _unique(given.env or (), "env").items()},
        "env_prefixes": {key: value or [] for key, value in prefixes.items()} or None,
        "caches": [{"name": one.name, "path": one.path} for one in given.caches or ()],
        "execution_timeout_s": given.execution_timeout_secs,
        "io_timeout_s": given.io_timeout_secs,
        "grace_period_s": given.grace_period_secs,
        "idempotent": bool(given.idempotent),
    }
    return {key: value for key, value in native.items() if value is not None}


def _unique(pairs: Sequence[Pair | ListPair], path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        if (pair.key or "") in found:
            told = "a key that no other has"
            raise InvalidRequest([Problem(f"{path}[{number}].key", show_value(pair.key), told, "duplicate")])
        found[pair.key or ""] = pair.value
    return found


def _secret(slices: Sequence[SliceBody]) -> str | None:
    """The secret of the task; slices that have one must have the same."""
    given = [one.properties.secret_bytes for one in slices if one.properties and one.properties.secret_bytes]
    found = {decode_bytes(text, "secret_bytes") for text in given}
    if len(found) > 1:
        told = "the same in all slices that have one"
        raise InvalidRequest([Problem("secret_bytes", f"{len(found)} secrets", told, "contradiction")])
    return encode_bytes(found.pop()) if found else None


def deadline_of(slices: Sequence[dict[str, Any]], limits: Limits) -> int:
    """How long a task may live: long enough for every slice to wait and for the longest to run."""
    waits = sum(one.get("expiration_s", limits.expiration_default_s) for one in slices)
    runs = max((_longest(one["properties"], limits) for one in slices), default=0)
    return max(1, min(limits.deadline_max_s, int(waits) + runs + _MARGIN_S))


def _longest(properties: dict[str, Any], limits: Limits) -> int:
    hard = properties.get("execution_timeout_s", limits.execution_timeout_default_s)
    return int(hard + properties.get("grace_period_s", limits.grace_period_default_s))


# ---------------------------------------------------------------- what is not served


def _refuse_unsupported(given: PropertiesBody, path: str, problems: list[Problem]) -> None:
    """Files and packages: a task that needs them would fail, or lose its outputs, without a word."""
    if _has_value(given.inputs_ref, "isolated") or _has_value(given.cas_input_root, "digest"):
        name = "inputs_ref" if _has_value(given.inputs_ref, "isolated") else "cas_input_root"
        problems.append(no_inputs(f"{path}.{name}"))
    if given.outputs:
        problems.append(no_outputs(f"{path}.outputs", len(given.outputs)))
    if _has_value(given.cipd_input, "packages"):
        told = "none: packages are not installed here; put them on the bots or into a cache"
        problems.append(Problem(f"{path}.cipd_input", "packages", told, "unsupported"))


def _has_value(given: Any, key: str) -> bool:
    return isinstance(given, dict) and bool(given.get(key))
