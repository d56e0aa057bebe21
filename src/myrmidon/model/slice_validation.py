"""Parse the slices of a task request: dimensions, command, environment, caches and files.

Problems are collected as in task_validation.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from myrmidon.model.dimensions import task_dimensions
from myrmidon.model.json_bounds import MAX_DEPTH, is_too_deep
from myrmidon.model.output_refs import FoundOutputs
from myrmidon.model.short_form import NOT_DONE
from myrmidon.model.shown_input import Path, show_value
from myrmidon.model.task_request import (
    Cache,
    FilesRef,
    Function,
    Properties,
    Slice,
)
from myrmidon.model.validation import (
    MAX_INT64,
    NO_RECORD,
    RELATIVE_PATH_RULE,
    Checker,
    is_clean,
    is_relative,
)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_RULE: Final = "SHA-256 as 64 lower-case hex"
_NAMESPACE = re.compile(r"[a-zA-Z0-9\-._]+")
CACHE_NAME = re.compile(r"[a-z0-9_]+")
ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FieldReader: TypeAlias = Callable[[Checker, dict[str, object], Path], Any]
"""Reads one optional field of a JSON object."""

_SLICE_KEYS: Final = frozenset(Slice.__struct_fields__)
_PROPERTIES_KEYS: Final = frozenset(Properties.__struct_fields__) - {"output_refs"}
_FILES_KEYS: Final = frozenset(FilesRef.__struct_fields__)
_CACHE_KEYS: Final = frozenset(Cache.__struct_fields__)


def read_slices(
    check: Checker, raw: dict[str, object], path: Path, function: Function | None, outputs: FoundOutputs
) -> list[Slice]:
    """The slices; ``outputs`` collects the references to outputs of other tasks."""
    if not raw.get("slices") and raw.get("slices") in (None, []):
        rule = f"1..{check.limits.slices} slices, or `command` beside the other fields of the task"
        check.note_shown((*path, "slices"), "nothing", rule, "missing")
        return []
    values = check.listing(raw, "slices", path, check.limits.slices)
    slices = [_slice(check, value, (*path, "slices", i), function, outputs) for i, value in enumerate(values)]
    if len(slices) > 1:
        _check_slices(check, slices, (*path, "slices"))
    return slices


def _check_slices(check: Checker, slices: list[Slice], path: Path) -> None:
    """Record slices that repeat an earlier one or use another pool: permissions are checked for one pool only."""
    pool = slices[0].properties.dimensions.get("pool")
    for i, later in enumerate(slices[1:], 1):
        other = later.properties.dimensions.get("pool")
        if other and pool and other != pool:
            check.note((*path, i, "properties", "dimensions", "pool"), other[0], f"{pool[0]}, as in slice 0", "pool")
        for j, earlier in enumerate(slices[:i]):
            if later.properties.dimensions and later.properties == earlier.properties:
                check.note_shown(
                    (*path, i, "properties"), f"the same as slice {j}", "properties that differ", "duplicate"
                )
                break


def _slice(check: Checker, value: object, path: Path, function: Function | None, outputs: FoundOutputs) -> Slice:
    limits = check.limits
    raw = check.record(value, path)
    check.unknown_keys(raw, _SLICE_KEYS, path, instead=NOT_DONE)
    return Slice(
        properties=_properties(check, raw.get("properties"), (*path, "properties"), function, outputs),
        expiration_s=check.integer(
            raw,
            "expiration_s",
            path,
            limits.expiration_min_s,
            limits.expiration_max_s,
            default=limits.expiration_default_s,
        ),
        wait_for_capacity=check.boolean(raw, "wait_for_capacity", path, default=True),
    )


def _properties(
    check: Checker, value: object, path: Path, function: Function | None, outputs: FoundOutputs
) -> Properties:
    limits = check.limits
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Properties(dimensions={})
    check.unknown_keys(raw, _PROPERTIES_KEYS, path, instead=NOT_DONE)
    raw, output_refs = outputs.replace(check, raw, path)
    longest = limits.execution_timeout_max_s
    shortest = limits.function_timeout_min_s if function else limits.execution_timeout_min_s
    return Properties(
        dimensions=task_dimensions(check, raw.get("dimensions"), (*path, "dimensions")),
        command=_command(check, raw, path, function),
        execution_timeout_s=check.number(
            raw, "execution_timeout_s", path, shortest, longest, default=limits.execution_timeout_default_s
        ),
        grace_period_s=check.integer(
            raw, "grace_period_s", path, 0, limits.grace_period_max_s, default=limits.grace_period_default_s
        ),
        output_refs=output_refs,
        **{key: read(check, raw, path) for key, read in _OPTIONAL_IN_PROPERTIES.items() if key in raw},
    )


def _io_timeout(check: Checker, raw: dict[str, object], path: Path) -> int | float | None:
    """0 and an absent value both mean no timeout."""
    longest = check.limits.execution_timeout_max_s
    return check.optional_number(raw, "io_timeout_s", path, 0, longest) or None


def _command(check: Checker, raw: dict[str, object], path: Path, function: Function | None) -> list[str]:
    if isinstance(raw.get("command"), str):
        rule = 'a list of words, such as ["make", "test"]; for a shell write ["sh", "-c", "make test"]'
        check.note((*path, "command"), raw["command"], rule, "type")
        return []
    command = check.texts(raw, "command", path, check.limits.command_args, chars=check.limits.arg_chars)
    if function is not None:
        if command:
            check.note((*path, "command"), command, "no command: this task runs a function", "contradiction")
        return []
    if not raw.get("command"):
        check.note((*path, "command"), raw.get("command"), f"1..{check.limits.command_args} arguments", "missing")
    elif command and not command[0]:
        check.note((*path, "command", 0), "", "the name of a program", "length")
    return command


def _api(check: Checker, raw: dict[str, object], path: Path) -> str:
    if raw["api"] in (None, ""):
        return ""
    if raw["api"] != "job":
        check.note((*path, "api"), raw["api"], "job", "choice")
        return ""
    if raw.get("idempotent"):
        rule = "none for an idempotent task: an earlier result would not change the job"
        check.note_shown((*path, "api"), "'job'", rule, "contradiction")
    return "job"


def _payload(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The canonical JSON text of an object. Such a text, as a stored request has it, is accepted too."""
    given, here = raw["payload"], (*path, "payload")
    if isinstance(given, str) and given:
        try:
            given = None if is_too_deep(given.encode()) else msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeError):
            given = None
    if raw["payload"] in (None, ""):
        return ""
    if not isinstance(given, dict):
        check.note(here, raw["payload"], "an object", "type")
        return ""
    try:
        text = msgspec.json.encode(given, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError):
        check.note(here, given, "JSON, without lone surrogates in its texts", "json")
        return ""
    if is_too_deep(text):
        # Possible by a parameter's value that is put into a document.
        check.note(here, given, f"at most {MAX_DEPTH} levels", "depth")
        return ""
    return text.decode()


def _env(check: Checker, raw: dict[str, object], path: Path) -> dict[str, str]:
    limits = check.limits
    given = check.mapping(raw, "env", path, limits.env_keys)
    env: dict[str, str] = {}
    for key, value in given.items():
        _env_key(check, key, (*path, "env"))
        if isinstance(value, str) and len(value) <= limits.env_value_chars and is_clean(value):
            env[key] = value
        else:
            check.item(value, (*path, "env", key), limits.env_value_chars)
    return env


def _env_key(check: Checker, key: str, path: Path) -> None:
    if len(key) > check.limits.env_key_chars or not ENV_KEY.fullmatch(key):
        rule = f"letters, digits and _, not starting with a digit, at most {check.limits.env_key_chars}"
        check.note((*path, key), key, rule, "key")


def read_env_prefixes(check: Checker, raw: dict[str, object], path: Path) -> dict[str, list[str]]:
    limits = check.limits
    given = check.mapping(raw, "env_prefixes", path, limits.env_keys)
    if not given:
        return {}
    here = (*path, "env_prefixes")
    for key in given:
        _env_key(check, key, here)
    return {
        key: _paths(check, given, key, here, limit=limits.env_prefix_paths, chars=limits.env_prefix_chars)
        for key in given
    }


def read_output_paths(check: Checker, raw: dict[str, object], path: Path) -> list[str]:
    if raw.get("outputs") is None:
        return []
    limits = check.limits
    return sorted(set(_paths(check, raw, "outputs", path, limit=limits.output_paths, chars=limits.output_path_chars)))


def _paths(check: Checker, raw: dict[str, object], key: str, path: Path, *, limit: int, chars: int) -> list[str]:
    return check.texts(
        raw, key, path, limit, chars=chars, minimum_chars=1, fits=is_relative, allowed=RELATIVE_PATH_RULE
    )


def _caches(check: Checker, raw: dict[str, object], path: Path) -> list[Cache]:
    if raw.get("caches") is None:
        return []
    values = check.listing(raw, "caches", path, check.limits.caches)
    here = (*path, "caches")
    caches = [_cache(check, value, (*here, i)) for i, value in enumerate(values)]
    _distinct(check, [c.name for c in caches], here, "name")
    _distinct(check, [c.path for c in caches], here, "path")
    _not_nested(check, [c.path for c in caches], here)
    return sorted(caches, key=by_name)


def by_name(cache: Cache) -> str:
    return cache.name


def _cache(check: Checker, value: object, path: Path) -> Cache:
    limits = check.limits
    raw = check.record(value, path)
    check.unknown_keys(raw, _CACHE_KEYS, path)
    return Cache(
        name=check.text(
            raw, "name", path, limits.cache_name_chars, minimum=1, pattern=CACHE_NAME, allowed="a-z, 0-9 and _"
        ),
        path=read_cache_path(check, raw, path),
    )


def read_cache_path(check: Checker, raw: dict[str, object], path: Path) -> str:
    """Where a cache is in the run's folder. It replaces a folder there, so it cannot be the run's folder itself."""
    value = check.relative(raw, "path", path, check.limits.cache_path_chars)
    if value != ".":
        return value
    check.note((*path, "path"), value, "a path below the run's folder, not the folder itself", "path")
    return ""


def is_inside(path: str, other: str) -> bool:
    """Whether a relative path is below another one."""
    return path.startswith(f"{other}/")


def _not_nested(check: Checker, paths: list[str], path: Path) -> None:
    """Record caches inside another one: the folder of the outer cache would hide or contain the inner one."""
    for i, inner in enumerate(paths):
        outer = next((other for other in paths if other and is_inside(inner, other)), None)
        if outer is not None:
            check.note((*path, i, "path"), inner, f"a path that is not inside the cache {show_value(outer)}", "nested")


def _distinct(check: Checker, values: list[str], path: Path, field: str) -> None:
    seen: set[str] = set()
    for i, value in enumerate(values):
        if value and value in seen:
            check.note((*path, i, field), value, f"a {field} no other has", "duplicate")
        seen.add(value)


def read_files(check: Checker, raw: dict[str, object], path: Path) -> FilesRef | None:
    if raw.get("inputs") is None:
        return None
    here = (*path, "inputs")
    given = check.record(raw["inputs"], here)
    check.unknown_keys(given, _FILES_KEYS, here)
    limit = check.limits.namespace_chars
    rule = "letters, digits and - . _"
    return FilesRef(
        digest=_digest(check, given, here),
        size=check.integer(given, "size", here, 0, MAX_INT64),
        namespace=check.text(
            given, "namespace", here, limit, minimum=1, pattern=_NAMESPACE, allowed=rule, default="default"
        ),
    )


def _digest(check: Checker, raw: dict[str, object], path: Path) -> str:
    return check.text(raw, "digest", path, 64, minimum=64, pattern=_DIGEST, allowed=_DIGEST_RULE)


# Most requests use few fields, so only those that are given are read; the struct has the defaults of the others.
_OPTIONAL_IN_PROPERTIES: Final[dict[str, FieldReader]] = {
    "relative_cwd": lambda check, raw, path: check.relative(
        raw, "relative_cwd", path, check.limits.cwd_chars, default=""
    ),
    "env": _env,
    "env_prefixes": read_env_prefixes,
    "caches": _caches,
    "inputs": read_files,
    "outputs": read_output_paths,
    "io_timeout_s": _io_timeout,
    "idempotent": lambda check, raw, path: check.boolean(raw, "idempotent", path),
    "merge_output": lambda check, raw, path: check.boolean(raw, "merge_output", path),
    "payload": _payload,
    "api": _api,
}
