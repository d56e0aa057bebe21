"""Parse the slices of a task request: dimensions, command, environment, caches and files.

What each field may hold is declared by the structs here. They are not those of task_request.py, which are also decoded
from the database, where another release may have stored what this one does not allow. Below them is what depends on
several fields or on the settings. Problems are collected as in task_validation.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from myrmidon.model.dimensions import task_dimensions
from myrmidon.model.json_bounds import MAX_DEPTH, is_too_deep
from myrmidon.model.limits import DEFAULT_LIMITS as _MOST
from myrmidon.model.output_refs import FoundOutputs
from myrmidon.model.short_form import NOT_DONE
from myrmidon.model.shown_input import Path, show_value
from myrmidon.model.task_request import Cache, Digest, FilesRef, Function, Properties, Slice, text_rule
from myrmidon.model.validation import MAX_INT64, NO_RECORD, Checker

CACHE_NAME = re.compile(r"[a-z0-9_]+")
ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FieldReader: TypeAlias = Callable[[Checker, dict[str, object], Path], Any]
"""Reads one optional field of a JSON object."""

_BELOW: Final = r"(?!(?:[\s\S]*/)?\.{0,2}(?:/|$))(?![A-Za-z]:)[^\\\x00\ud800-\udfff]+"
"""A path that is relative, normalised, and stays below its start directory on every operating system."""
_PATH_RULE: Final = "a normalised relative path with forward slashes and without '..'"
_CACHE_RULE: Final = f"{_PATH_RULE} below the run's folder, which it replaces"
_COMMAND_RULE: Final = (
    f'a list of 1..{_MOST.command_args} words, such as ["make", "test"]; for a shell write ["sh", "-c", "make test"]'
)
_ENV_KEY_RULE: Final = "letters, digits and _, not starting with a digit"


def _path(most: int) -> Meta:
    return text_rule(most, rf"^(?:\.|{_BELOW})\Z", _PATH_RULE)


_EnvKey = Annotated[str, text_rule(_MOST.env_key_chars, rf"^{ENV_KEY.pattern}\Z", _ENV_KEY_RULE)]
_Prefixes = Annotated[list[Annotated[str, _path(_MOST.env_prefix_chars)]], Meta(max_length=_MOST.env_prefix_paths)]
_Timeout = Annotated[float, Meta(ge=0, le=_MOST.execution_timeout_max_s)]


class GivenCache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, text_rule(_MOST.cache_name_chars, rf"^{CACHE_NAME.pattern}\Z", "a-z, 0-9 and _")]
    path: Annotated[str, text_rule(_MOST.cache_path_chars, rf"^{_BELOW}\Z", _CACHE_RULE)]


class GivenFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: Digest
    size: Annotated[int, Meta(ge=0, le=MAX_INT64)]
    namespace: Annotated[str, text_rule(_MOST.namespace_chars, r"^[a-zA-Z0-9\-._]+\Z", "letters, digits and - . _")] = (
        "default"
    )


class GivenProperties(Struct, frozen=True, kw_only=True, gc=False):
    """The properties of a slice in a request; ``dimensions`` and ``payload`` are read by functions."""

    dimensions: Any = None
    command: Annotated[
        list[Annotated[str, text_rule(_MOST.arg_chars)]],
        Meta(max_length=_MOST.command_args, description=_COMMAND_RULE),
    ] = []
    relative_cwd: Annotated[str, text_rule(_MOST.cwd_chars, rf"^(?:\.|{_BELOW})?\Z", _PATH_RULE)] = ""
    env: Annotated[
        dict[_EnvKey, Annotated[str, text_rule(_MOST.env_value_chars)]], Meta(max_length=_MOST.env_keys)
    ] = {}
    env_prefixes: Annotated[dict[_EnvKey, _Prefixes], Meta(max_length=_MOST.env_keys)] = {}
    caches: Annotated[list[GivenCache], Meta(max_length=_MOST.caches)] = []
    inputs: GivenFiles | None = None
    outputs: Annotated[list[Annotated[str, _path(_MOST.output_path_chars)]], Meta(max_length=_MOST.output_paths)] = []
    execution_timeout_s: _Timeout = _MOST.execution_timeout_default_s
    io_timeout_s: _Timeout | None = None
    grace_period_s: Annotated[int, Meta(ge=0, le=_MOST.grace_period_max_s)] = _MOST.grace_period_default_s
    idempotent: bool = False
    merge_output: bool = False
    payload: Any = ""
    api: Literal["", "job"] = ""


class GivenSlice(Struct, frozen=True, kw_only=True, gc=False):
    properties: Any = None
    expiration_s: Annotated[int, Meta(ge=_MOST.expiration_min_s, le=_MOST.expiration_max_s)] = (
        _MOST.expiration_default_s
    )
    wait_for_capacity: bool = True


_SLICE_KEYS: Final = frozenset(GivenSlice.__struct_fields__)
_PROPERTIES_KEYS: Final = frozenset(GivenProperties.__struct_fields__)


def read_slices(
    check: Checker, raw: dict[str, object], path: Path, function: Function | None, outputs: FoundOutputs
) -> list[Slice]:
    """The slices; ``outputs`` collects the references to outputs of other tasks."""
    if not raw.get("slices") and raw.get("slices") in (None, []):
        rule = f"1..{check.limits.slices} slices, or `command` beside the other fields of the task"
        check.note_shown((*path, "slices"), "nothing", rule, "missing")
        return []
    values, before = check.listing(raw, "slices", path, check.limits.slices), check.count
    slices = [_slice(check, value, (*path, "slices", i), function, outputs) for i, value in enumerate(values)]
    if len(slices) > 1 and check.count == before:
        _check_slices(check, slices, (*path, "slices"))
    return slices


def _check_slices(check: Checker, slices: list[Slice], path: Path) -> None:
    """Record slices that repeat an earlier one or use another pool: permissions are checked for one pool only."""
    pool = slices[0].properties.dimensions["pool"]
    for i, later in enumerate(slices[1:], 1):
        other = later.properties.dimensions["pool"]
        if other != pool:
            check.note((*path, i, "properties", "dimensions", "pool"), other[0], f"{pool[0]}, as in slice 0", "pool")
        for j, earlier in enumerate(slices[:i]):
            if later.properties == earlier.properties:
                check.note_shown(
                    (*path, i, "properties"), f"the same as slice {j}", "properties that differ", "duplicate"
                )
                break


def _slice(check: Checker, value: object, path: Path, function: Function | None, outputs: FoundOutputs) -> Slice:
    raw = check.record(value, path)
    check.unknown_keys(raw, _SLICE_KEYS, path, instead=NOT_DONE)
    given: GivenSlice | None = check.struct(raw, GivenSlice, path)
    properties = _properties(check, raw.get("properties"), (*path, "properties"), function, outputs)
    if given is None:
        return Slice(properties=properties)
    return Slice(properties=properties, expiration_s=given.expiration_s, wait_for_capacity=given.wait_for_capacity)


def _properties(
    check: Checker, value: object, path: Path, function: Function | None, outputs: FoundOutputs
) -> Properties:
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Properties(dimensions={})
    check.unknown_keys(raw, _PROPERTIES_KEYS, path, instead=NOT_DONE)
    raw, output_refs = outputs.replace(check, raw, path)
    dimensions = task_dimensions(check, raw.get("dimensions"), (*path, "dimensions"))
    _check_command(check, raw.get("command"), (*path, "command"), function)
    timeout = raw.get("execution_timeout_s")
    if timeout is not None:
        _check_timeout(check, timeout, (*path, "execution_timeout_s"), function)
    given: GivenProperties | None = check.struct(raw, GivenProperties, path)
    if given is None:
        return Properties(dimensions=dimensions)
    if given.api and given.idempotent:
        rule = "none for an idempotent task: an earlier result would not change the job"
        check.note_shown((*path, "api"), "'job'", rule, "contradiction")
    files = given.inputs
    return Properties(
        dimensions=dimensions,
        command=given.command if function is None else [],
        relative_cwd=given.relative_cwd,
        env=given.env,
        env_prefixes=given.env_prefixes,
        caches=_caches(check, given.caches, (*path, "caches")) if given.caches else [],
        inputs=FilesRef(digest=files.digest, size=files.size, namespace=files.namespace) if files else None,
        outputs=sorted(set(given.outputs)),
        execution_timeout_s=given.execution_timeout_s if timeout is None else _plain(given.execution_timeout_s),
        io_timeout_s=_plain(given.io_timeout_s) if given.io_timeout_s else None,
        grace_period_s=given.grace_period_s,
        idempotent=given.idempotent,
        merge_output=given.merge_output,
        payload=_payload(check, given.payload, (*path, "payload")) if given.payload not in (None, "") else "",
        api=given.api,
        output_refs=output_refs,
    )


def _check_command(check: Checker, given: object, path: Path, function: Function | None) -> None:
    if function is not None:
        if given:
            check.note(path, given, "no command: this task runs a function", "contradiction")
    elif not given:
        check.note(path, given, f"1..{_MOST.command_args} arguments", "missing")
    elif isinstance(given, (list, tuple)) and given[0] == "":
        check.note((*path, 0), "", "the name of a program", "length")


def _check_timeout(check: Checker, given: object, path: Path, function: Function | None) -> None:
    limits = check.limits
    shortest = limits.function_timeout_min_s if function else limits.execution_timeout_min_s
    if type(given) in (int, float) and 0 <= given < shortest:  # type: ignore[operator]
        check.note(path, given, f"a number in {shortest}..{limits.execution_timeout_max_s}", "range")


def _plain(seconds: float) -> int | float:
    """A number without a fraction as an int, so that 60 and 60.0 are stored and hashed alike."""
    return int(seconds) if seconds == int(seconds) else seconds


def _payload(check: Checker, raw: Any, path: Path) -> str:
    """The canonical JSON text of an object. Such a text, as a stored request has it, is accepted too."""
    given = raw
    if isinstance(given, str) and given:
        try:
            given = None if is_too_deep(given.encode()) else msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError):
            given = None
    if not isinstance(given, dict):
        check.note(path, raw, "an object", "type")
        return ""
    try:
        text = msgspec.json.encode(given, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError):
        check.note(path, given, "JSON, without lone surrogates in its texts", "json")
        return ""
    if is_too_deep(text):
        # Possible by a parameter's value that is put into a document.
        check.note(path, given, f"at most {MAX_DEPTH} levels", "depth")
        return ""
    return text.decode()


def _caches(check: Checker, given: list[GivenCache], path: Path) -> list[Cache]:
    _distinct(check, [c.name for c in given], path, "name")
    _distinct(check, [c.path for c in given], path, "path")
    _not_nested(check, [c.path for c in given], path)
    return sorted((Cache(name=c.name, path=c.path) for c in given), key=by_name)


def by_name(cache: Cache) -> str:
    return cache.name


def is_inside(path: str, other: str) -> bool:
    """Whether a relative path is below another one."""
    return path.startswith(f"{other}/")


def _not_nested(check: Checker, paths: list[str], path: Path) -> None:
    """Record caches inside another one: the folder of the outer cache would hide or contain the inner one."""
    for i, inner in enumerate(paths):
        outer = next((other for other in paths if is_inside(inner, other)), None)
        if outer is not None:
            check.note((*path, i, "path"), inner, f"a path that is not inside the cache {show_value(outer)}", "nested")


def _distinct(check: Checker, values: list[str], path: Path, field: str) -> None:
    seen: set[str] = set()
    for i, value in enumerate(values):
        if value in seen:
            check.note((*path, i, field), value, f"a {field} no other has", "duplicate")
        seen.add(value)
