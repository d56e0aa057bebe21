"""From what a user sent to a task request: at once where it is plainly right, with care where it may not be.

Nearly every request is right, uses few fields, and is measured against the usual limits. For those there is a
quick way: msgspec compares types, ranges and lengths in one go, and little is left to look at here. Fields that
are rare go through the careful readers; a problem they note, or any doubt, leaves the whole to ``checked_task``.
So nothing here may accept what is refused there, and what both accept must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeGuard

import msgspec
from msgspec import Meta, Struct, structs

from myrmidon.model.dimensions import plain_dimensions, task_dimensions
from myrmidon.model.task_request import Cache, Function, OutputOf, Properties, Slice, TaskRequest
from myrmidon.model.task_validation import (
    CACHE_NAME,
    checked_task,
    compare_slices,
    note_contradictions,
    read_account,
    read_env_prefixes,
    read_external_id,
    read_files,
    read_function,
    read_inputs,
    read_metadata,
    read_output_paths,
    read_outputs,
    read_parent,
    read_routing,
    read_secret,
)
from myrmidon.model.validation import DEFAULT_LIMITS, Checker, Limits, Path, is_clean, is_usual_path


def parse_task(raw: object, limits: Limits = DEFAULT_LIMITS) -> TaskRequest:
    """The request as a struct, or InvalidRequest with every problem it has.

    An input that is the output of another task is refused here: a lone task has no job to find it in.
    """
    request = _plain_task(raw, limits)
    if request is not None and not request.inputs:
        return request
    check = Checker(limits)
    request = request or checked_task(check, raw, ())
    for i, given in enumerate(request.inputs):
        if isinstance(given, OutputOf):
            check.note(
                ("inputs", i, "label"),
                given.label,
                "constant or shared inputs; this task is in no job",
                "job",
            )
    check.finish()
    return request


def read_task(check: Checker, raw: object, path: Path, label: str = "") -> TaskRequest:
    """The same with problems noted in check; wrong fields are left at something harmless.

    A task in a graph is named by its label unless it has a name of its own.
    """
    return _plain_task(raw, check.limits, label) or checked_task(check, raw, path, label)


_D: Final = DEFAULT_LIMITS
_JSON_TYPES: Final = frozenset({dict, list, str, int, bool, type(None)})
_ONLY_LISTS: Final = frozenset({list})
_Argument: TypeAlias = Annotated[str, Meta(max_length=_D.arg_chars)]
_EnvKey: TypeAlias = Annotated[str, Meta(max_length=_D.env_key_chars)]
_EnvValue: TypeAlias = Annotated[str, Meta(max_length=_D.env_value_chars)]
_Tag: TypeAlias = Annotated[str, Meta(max_length=_D.tag_chars)]
_Timeout: TypeAlias = Annotated[int, Meta(ge=_D.execution_timeout_min_s, le=_D.execution_timeout_max_s)]


class _PlainProperties(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    dimensions: dict[str, list[str]]
    command: Annotated[list[_Argument], Meta(max_length=_D.command_args)] = []
    relative_cwd: Annotated[str, Meta(max_length=_D.cwd_chars)] = ""
    env: Annotated[dict[_EnvKey, _EnvValue], Meta(max_length=_D.env_keys)] = {}
    caches: Annotated[list[Any], Meta(max_length=_D.caches)] = []
    execution_timeout_s: _Timeout | None = None
    io_timeout_s: Annotated[int, Meta(ge=0, le=_D.execution_timeout_max_s)] | None = None
    grace_period_s: Annotated[int, Meta(ge=0, le=_D.grace_period_max_s)] = _D.grace_period_default_s
    idempotent: bool = False
    env_prefixes: Any = None
    inputs: Any = None
    outputs: Any = None


class _PlainSlice(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    properties: _PlainProperties
    expiration_s: Annotated[int, Meta(ge=_D.expiration_min_s, le=_D.expiration_max_s)] = _D.expiration_default_s
    wait_for_capacity: bool = True


class _PlainTask(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=_D.name_chars)] | None = None
    slices: Annotated[list[_PlainSlice], Meta(min_length=1, max_length=_D.slices)]
    function: Any = None
    priority: Annotated[int, Meta(ge=0, le=_D.priority_max)] = _D.priority_default
    tags: Annotated[list[_Tag], Meta(max_length=_D.tags)] = []
    user: Annotated[str, Meta(max_length=_D.user_chars)] = ""
    detached: bool = False
    retries: Annotated[int, Meta(ge=0, le=_D.retries_max)] = _D.retries_default
    reruns: Annotated[int, Meta(ge=0, le=_D.reruns_max)] = 0
    max_instances: Annotated[int, Meta(ge=1, le=_D.instances_max)] = 1
    soft_timeout_s: Annotated[int, Meta(ge=1, le=_D.execution_timeout_max_s)] | None = None
    lease_s: Annotated[int, Meta(ge=_D.lease_min_s, le=_D.lease_max_s)] = _D.lease_default_s
    deadline_s: Annotated[int, Meta(ge=1, le=_D.deadline_max_s)] | None = None
    evaluate_only: bool = False
    inputs: Any = None
    outputs: Any = None
    service_account: Any = None
    parent: Any = None
    secret_bytes: Any = None
    external_id: Any = None
    routing: Any = None
    metadata: Any = None


_Reader: TypeAlias = Callable[[Checker, dict[str, Any], Path], object]
_RARE_IN_TASK: Final[dict[str, _Reader]] = {
    "inputs": read_inputs,
    "outputs": read_outputs,
    "service_account": read_account,
    "parent": read_parent,
    "secret_bytes": read_secret,
    "external_id": read_external_id,
    "routing": read_routing,
    "metadata": read_metadata,
}
_RARE_IN_PROPERTIES: Final[dict[str, _Reader]] = {
    "env_prefixes": read_env_prefixes,
    "inputs": read_files,
    "outputs": read_output_paths,
}
_SIMPLE_TASK_KEYS: Final = frozenset(_PlainTask.__struct_fields__) - {
    "name",
    "slices",
    "function",
    "tags",
    *_RARE_IN_TASK,
}
_RARE_TASK_KEYS: Final = frozenset(_RARE_IN_TASK)
_RARE_PROPERTIES_KEYS: Final = frozenset(_RARE_IN_PROPERTIES)


def _plain_task(raw: object, limits: Limits, label: str = "") -> TaskRequest | None:
    """What checked_task would answer, if it is sure to have nothing to note; else None."""
    if not (limits is _D or structs.replace(limits, deployment=_D.deployment) == _D) or not _is_json_object(raw):
        return None
    try:
        given = msgspec.convert(raw, _PlainTask)
    except (msgspec.ValidationError, ValueError):
        return None
    check = Checker()
    function = read_function(check, raw, ()) if given.function is not None else None
    name = given.name or label or (function.func_name if function else "")
    tags = _plain_tags(given.tags) if given.tags else []
    slices = _plain_slices(check, given, raw["slices"], function)
    if slices is None or tags is None or not name or not is_clean(name + given.user):
        return None
    simple = {key: getattr(given, key) for key in raw if key in _SIMPLE_TASK_KEYS}
    request = TaskRequest(name=name, slices=slices, function=function, tags=tags, **simple)
    if not _RARE_TASK_KEYS.isdisjoint(raw):
        request = structs.replace(request, **_read_rare(check, raw, _RARE_IN_TASK))
        note_contradictions(check, request, ())
    return None if check.problems else request


def _read_rare(check: Checker, raw: dict[str, Any], readers: dict[str, _Reader]) -> dict[str, Any]:
    return {key: read(check, raw, ()) for key, read in readers.items() if raw.get(key) is not None}


def _plain_tags(tags: list[str]) -> list[str] | None:
    for tag in tags:
        if ":" not in tag:
            return None
    return sorted(set(tags)) if is_clean("".join(tags)) else None


def _is_json_object(raw: object) -> TypeGuard[dict[str, Any]]:
    """msgspec would also take a set for a list, any mapping for an object, and an enum for a number."""
    return type(raw) is dict and _JSON_TYPES.issuperset(map(type, raw.values()))


def _plain_slices(check: Checker, given: _PlainTask, raws: list[Any], function: Function | None) -> list[Slice] | None:
    slices: list[Slice] = []
    for one, raw in zip(given.slices, raws, strict=True):
        if type(raw) is not dict or type(raw.get("expiration_s", 0)) is not int:
            return None
        properties = _plain_properties(check, one.properties, raw["properties"], function)
        if properties is None:
            return None
        if given.soft_timeout_s is not None and given.soft_timeout_s >= properties.execution_timeout_s:
            return None
        slices.append(
            Slice(properties=properties, expiration_s=one.expiration_s, wait_for_capacity=one.wait_for_capacity)
        )
    if len(slices) > 1:
        compare_slices(check, slices, ())
    return slices


def _plain_properties(
    check: Checker, given: _PlainProperties, raw: dict[str, Any], function: Function | None
) -> Properties | None:
    command, env, cwd = given.command, given.env, given.relative_cwd
    caches = _plain_caches(given.caches) if given.caches else []
    if not _is_json_object(raw) or caches is None or not _is_plain_command(command, function):
        return None
    if (env and not _is_plain_env(env)) or (cwd and not is_usual_path(cwd)):
        return None
    dims = _plain_dims(given.dimensions, raw["dimensions"])
    usual = _D.function_timeout_default_s if function else _D.execution_timeout_default_s
    properties = Properties(
        dimensions=task_dimensions(check, raw["dimensions"], ()) if dims is None else dims,
        command=command,
        relative_cwd=cwd,
        env=env,
        caches=caches,
        execution_timeout_s=usual if given.execution_timeout_s is None else given.execution_timeout_s,
        io_timeout_s=given.io_timeout_s or None,
        grace_period_s=given.grace_period_s,
        idempotent=given.idempotent,
    )
    if _RARE_PROPERTIES_KEYS.isdisjoint(raw):
        return properties
    return structs.replace(properties, **_read_rare(check, raw, _RARE_IN_PROPERTIES))


def _plain_dims(given: dict[str, list[str]], raw: Any) -> dict[str, list[str]] | None:
    if type(raw) is not dict or not _ONLY_LISTS.issuperset(map(type, raw.values())):
        return None
    return plain_dimensions(given)


def _is_plain_command(command: list[str], function: Function | None) -> bool:
    if function is not None:
        return not command
    return command != [] and command[0] != "" and is_clean("".join(command))


def _is_plain_env(env: dict[str, str]) -> bool:
    """What Python calls an identifier is, in ASCII, what a shell calls a name."""
    for key in env:
        if not key.isascii() or not key.isidentifier():
            return False
    return is_clean("".join(env.values()))


def _plain_caches(given: list[Any]) -> list[Cache] | None:
    caches: dict[str, Cache] = {}
    paths: set[str] = set()
    for raw in given:
        if type(raw) is not dict or len(raw) != 2:
            return None
        name, path = raw.get("name"), raw.get("path")
        if type(name) is not str or type(path) is not str or len(name) + len(path) > _D.cache_name_chars:
            return None
        cache = _plain_cache(name, path)
        if cache is None:
            return None
        caches[name] = cache
        paths.add(path)
    if not len(caches) == len(paths) == len(given):
        return None
    return [caches[name] for name in sorted(caches)] if len(caches) > 1 else [*caches.values()]


@lru_cache(maxsize=1024)
def _plain_cache(name: str, path: str) -> Cache | None:
    """Tasks share few caches; being frozen, the very same struct may serve them all."""
    return Cache(name=name, path=path) if CACHE_NAME.fullmatch(name) and is_usual_path(path) else None
