"""Parse untyped JSON into a TaskRequest, collecting every problem.

Problems are recorded in a Checker with path, value and what is allowed; a wrong field gets a harmless value, so that
parsing continues and all problems are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from myrmidon.model import type_strings
from myrmidon.model.dimensions import task_dimensions
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.ids import try_parse_id
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_request import (
    Cache,
    Constant,
    FilesRef,
    Function,
    Input,
    Language,
    Output,
    OutputOf,
    Payload,
    Properties,
    Shared,
    Slice,
    TaskRequest,
)
from myrmidon.model.validation import MAX_INT64, NO_RECORD, RELATIVE_PATH_RULE, Checker, Path, is_clean, is_relative

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMESPACE = re.compile(r"[a-zA-Z0-9\-._]+")
CACHE_NAME = re.compile(r"[a-z0-9_]+")
ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ACCOUNT = re.compile(r"none|bot|[^@\s]+@[^@\s]+|")
EXTERNAL_ID: Final = re.compile(r"[A-Za-z0-9_\-]+")
ROUTING: Final = re.compile(r"[^\s*#\x00-\x1f\x7f]*")
EXTERNAL_ID_RULE: Final = "letters, digits, - and _: it is one word of a routing key"
ROUTING_RULE: Final = "words separated by dots, without space, * and #"

_LANGUAGES: Final = {name: lang for lang in Language for name in (lang.value, lang.value.lower())}
_TASK_KEYS: Final = frozenset(TaskRequest.__struct_fields__)
_SLICE_KEYS: Final = frozenset(Slice.__struct_fields__)
_PROPERTIES_KEYS: Final = frozenset(Properties.__struct_fields__)
_FILES_KEYS: Final = frozenset(FilesRef.__struct_fields__)
_CACHE_KEYS: Final = frozenset(Cache.__struct_fields__)
_FUNCTION_KEYS: Final = frozenset(Function.__struct_fields__)
_PAYLOAD_KEYS: Final = frozenset(Payload.__struct_fields__)
_OUTPUT_KEYS: Final = frozenset(Output.__struct_fields__)


def parse_task(raw: object, limits: Limits = DEFAULT_LIMITS) -> TaskRequest:
    """The request as a struct, or InvalidRequest with every problem it has.

    Inputs that are outputs of other tasks are refused: a task without a job has no such tasks.
    """
    check = Checker(limits)
    request = read_task(check, raw, ())
    for i, source in enumerate(request.inputs):
        if isinstance(source, OutputOf):
            allowed = "constant or shared inputs: this task is in no job"
            check.note(("inputs", i, "label"), source.label, allowed, "job")
    check.finish()
    return request


def read_task(check: Checker, raw: object, path: Path, label: str = "") -> TaskRequest:
    """The request as a struct, with problems recorded in ``check``. ``label`` is the default name."""
    limits = check.limits
    given = check.record(raw, path)
    if given is NO_RECORD:
        return TaskRequest(name=label, slices=[])
    check.unknown_keys(given, _TASK_KEYS, path)
    function = read_function(check, given, path)
    request = TaskRequest(
        name=_name(check, given, path, usual=label or function),
        slices=_slices(check, given, path, function),
        function=function,
        priority=check.integer(given, "priority", path, 0, limits.priority_max, default=limits.priority_default),
        retries=check.integer(given, "retries", path, 0, limits.retries_max, default=limits.retries_default),
        lease_s=check.integer(
            given, "lease_s", path, limits.lease_min_s, limits.lease_max_s, default=limits.lease_default_s
        ),
        **{key: read(check, given, path) for key, read in _OPTIONAL_IN_TASK.items() if key in given},
    )
    _check_contradictions(check, request, path)
    return request


def _name(check: Checker, raw: dict[str, object], path: Path, usual: str | Function | None) -> str:
    """The name; for tasks of a job the label, and for functions the function's name, is the default."""
    limit = check.limits.name_chars
    if not usual:
        return check.text(raw, "name", path, limit, minimum=1)
    default = usual if isinstance(usual, str) else usual.func_name
    return check.text(raw, "name", path, limit, minimum=1, default=default)


def _check_contradictions(check: Checker, request: TaskRequest, path: Path) -> None:
    """Record problems of fields that are valid alone but not together."""
    if request.function is None and (request.inputs or request.outputs):
        field = "inputs" if request.inputs else "outputs"
        check.note(
            (*path, field),
            getattr(request, field),
            "none without a function; files go into properties",
            "contradiction",
        )
    soft = request.soft_timeout_s
    if soft is None:
        return
    hard = min((s.properties.execution_timeout_s for s in request.slices), default=soft + 1)
    if soft >= hard:
        check.note((*path, "soft_timeout_s"), soft, f"less than the execution timeout of {hard}", "contradiction")


def _slices(check: Checker, raw: dict[str, object], path: Path, function: Function | None) -> list[Slice]:
    values = check.listing(raw, "slices", path, check.limits.slices, minimum=1)
    slices = [_slice(check, value, (*path, "slices", i), function) for i, value in enumerate(values)]
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


def _slice(check: Checker, value: object, path: Path, function: Function | None) -> Slice:
    limits = check.limits
    raw = check.record(value, path)
    check.unknown_keys(raw, _SLICE_KEYS, path)
    return Slice(
        properties=_properties(check, raw.get("properties"), (*path, "properties"), function),
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


def _properties(check: Checker, value: object, path: Path, function: Function | None) -> Properties:
    limits = check.limits
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Properties(dimensions={})
    check.unknown_keys(raw, _PROPERTIES_KEYS, path)
    shortest, longest = limits.execution_timeout_min_s, limits.execution_timeout_max_s
    usual = limits.function_timeout_default_s if function else limits.execution_timeout_default_s
    return Properties(
        dimensions=task_dimensions(check, raw.get("dimensions"), (*path, "dimensions")),
        command=_command(check, raw, path, function),
        execution_timeout_s=check.integer(raw, "execution_timeout_s", path, shortest, longest, default=usual),
        grace_period_s=check.integer(
            raw, "grace_period_s", path, 0, limits.grace_period_max_s, default=limits.grace_period_default_s
        ),
        **{key: read(check, raw, path) for key, read in _OPTIONAL_IN_PROPERTIES.items() if key in raw},
    )


def _io_timeout(check: Checker, raw: dict[str, object], path: Path) -> int | None:
    """0 and an absent value both mean no timeout."""
    longest = check.limits.execution_timeout_max_s
    return check.optional_integer(raw, "io_timeout_s", path, 0, longest) or None


def _command(check: Checker, raw: dict[str, object], path: Path, function: Function | None) -> list[str]:
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
        path=check.relative(raw, "path", path, limits.cache_path_chars),
    )


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
    return check.text(raw, "digest", path, 64, minimum=64, pattern=_DIGEST, allowed="SHA-256 as 64 lower-case hex")


def read_function(check: Checker, raw: dict[str, object], path: Path) -> Function | None:
    if raw.get("function") is None:
        return None
    here = (*path, "function")
    given = check.record(raw["function"], here)
    check.unknown_keys(given, _FUNCTION_KEYS, here)
    limit = check.limits.function_name_chars
    return Function(
        package_name=check.text(given, "package_name", here, limit, minimum=1),
        func_name=check.text(given, "func_name", here, limit, minimum=1),
        language=check.choice(given, "language", here, _LANGUAGES, Language.PYTHON),
    )


def read_inputs(check: Checker, raw: dict[str, object], path: Path) -> list[Input]:
    if raw.get("inputs") is None:
        return []
    values = check.listing(raw, "inputs", path, check.limits.inputs)
    inputs = [_input(check, value, (*path, "inputs", i)) for i, value in enumerate(values)]
    return [source for source in inputs if source is not None]


def _input(check: Checker, value: object, path: Path) -> Input | None:
    raw = check.record(value, path)
    kind = raw.get("kind")
    reader = _INPUT_KINDS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        if raw is not NO_RECORD:
            check.note((*path, "kind"), kind, f"one of {', '.join(_INPUT_KINDS)}", "choice")
        return None
    return reader(check, raw, path)


def _constant(check: Checker, raw: dict[str, object], path: Path) -> Constant:
    check.unknown_keys(raw, frozenset({"kind", "type", "payload"}), path)
    return Constant(type=_type(check, raw, path), payload=_payload(check, raw.get("payload"), (*path, "payload")))


def _shared(check: Checker, raw: dict[str, object], path: Path) -> Shared:
    check.unknown_keys(raw, frozenset({"kind", "type", "shared_value_id"}), path)
    given = raw.get("shared_value_id")
    parsed = try_parse_id(given)
    if parsed is not None and parsed[1] == 0:
        return Shared(type=_type(check, raw, path), shared_value_id=parsed[0])
    number = check.integer(raw, "shared_value_id", path, 1, MAX_INT64)
    return Shared(type=_type(check, raw, path), shared_value_id=number)


def _output_of(check: Checker, raw: dict[str, object], path: Path) -> OutputOf:
    check.unknown_keys(raw, frozenset({"kind", "type", "label", "position"}), path)
    return OutputOf(
        type=_type(check, raw, path),
        label=check.text(raw, "label", path, check.limits.label_chars, minimum=1),
        position=check.integer(raw, "position", path, 0, check.limits.outputs - 1, default=0),
    )


_INPUT_KINDS: Final[dict[str, Callable[[Checker, dict[str, object], Path], Input]]] = {
    "constant": _constant,
    "shared": _shared,
    "output_of": _output_of,
}


def _payload(check: Checker, value: object, path: Path) -> Payload:
    limits = check.limits
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Payload(size=0)
    check.unknown_keys(raw, _PAYLOAD_KEYS, path)
    by_digest = raw.get("digest") is not None
    if by_digest == (raw.get("inline") is not None):
        given = "both" if by_digest else "neither"
        check.note_shown(path, given, "either inline bytes, or a digest with its size", "contradiction")
        return Payload(size=0)
    if by_digest:
        size = check.integer(raw, "size", path, 0, limits.value_stored_bytes)
        return Payload(digest=_digest(check, raw, path), size=size)
    inline = check.bytes_(raw, "inline", path, limits.value_inline_bytes)
    size = len(inline) if inline is not None else 0
    if raw.get("size") is not None and inline is not None and raw["size"] != size:
        check.note((*path, "size"), raw["size"], f"{size}, or nothing, with these inline bytes", "contradiction")
    return Payload(inline=inline, size=size)


def read_outputs(check: Checker, raw: dict[str, object], path: Path) -> list[Output]:
    if raw.get("outputs") is None:
        return []
    values = check.listing(raw, "outputs", path, check.limits.outputs)
    return [_output(check, value, (*path, "outputs", i)) for i, value in enumerate(values)]


def _output(check: Checker, value: object, path: Path) -> Output:
    raw = check.record(value, path)
    check.unknown_keys(raw, _OUTPUT_KEYS, path)
    return Output(type=_type(check, raw, path), shared=check.boolean(raw, "shared", path))


def _type(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The canonical type string; empty when it is wrong."""
    text = check.text(raw, "type", path, check.limits.type_chars, minimum=1)
    if not text:
        return ""
    try:
        return type_strings.canonical(text)
    except InvalidRequest as wrong:
        check.note((*path, "type"), text, wrong.problems[0].allowed, "type_string")
        return ""


def read_account(check: Checker, raw: dict[str, object], path: Path) -> str:
    limit = check.limits.service_account_chars
    rule = "none, bot or an e-mail address"
    return check.text(raw, "service_account", path, limit, pattern=_ACCOUNT, allowed=rule, default="none") or "none"


def read_secret(check: Checker, raw: dict[str, object], path: Path) -> bytes | None:
    return check.bytes_(raw, "secret_bytes", path, check.limits.secret_bytes, secret=True)


def read_parent(check: Checker, raw: dict[str, object], path: Path) -> tuple[int, int] | None:
    given = raw.get("parent")
    if given is None:
        return None
    parsed = try_parse_id(given)
    if parsed is None or parsed[1] == 0:
        check.note((*path, "parent"), given, "the id of a run, not of a task: it does not end in 0", "id")
        return None
    return parsed


def read_tags(check: Checker, raw: dict[str, object], path: Path) -> list[str]:
    """The user's tags, sorted and unique; each has the form ``key:value``."""
    if raw.get("tags") is None:
        return []
    limits = check.limits
    tags = check.texts(raw, "tags", path, limits.tags, chars=limits.tag_chars, fits=_has_colon, allowed="key:value")
    return sorted(set(tags))


def _has_colon(tag: str) -> bool:
    return ":" in tag


def read_external_id(check: Checker, raw: dict[str, object], path: Path) -> str | None:
    """The id that the client chose for the task."""
    if raw.get("external_id") is None:
        return None
    limit = check.limits.external_id_chars
    return check.text(raw, "external_id", path, limit, minimum=1, pattern=EXTERNAL_ID, allowed=EXTERNAL_ID_RULE)


def read_routing(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The words that the client adds to the routing keys of its events."""
    limit = check.limits.routing_chars
    return check.text(raw, "routing", path, limit, pattern=ROUTING, allowed=ROUTING_RULE, default="")


def read_metadata(check: Checker, raw: dict[str, object], path: Path) -> dict[str, str]:
    """Texts that are stored with the request and otherwise ignored."""
    limits = check.limits
    given = check.mapping(raw, "metadata", path, limits.metadata_keys)
    metadata: dict[str, str] = {}
    for key, value in given.items():
        here = (*path, "metadata", key)
        check.item(key, here, limits.metadata_key_chars, minimum=1)
        metadata[key] = check.item(value, here, limits.metadata_value_chars) or ""
    return metadata


def _soft_timeout(check: Checker, raw: dict[str, object], path: Path) -> int | None:
    return check.optional_integer(raw, "soft_timeout_s", path, 1, check.limits.execution_timeout_max_s)


# Most requests use few fields, so only those that are given are read; the structs have the defaults of the others.
_Reader: TypeAlias = Callable[[Checker, dict[str, object], Path], Any]
_OPTIONAL_IN_TASK: Final[dict[str, _Reader]] = {
    "inputs": read_inputs,
    "outputs": read_outputs,
    "tags": read_tags,
    "user": lambda check, raw, path: check.text(raw, "user", path, check.limits.user_chars, default=""),
    "service_account": read_account,
    "parent": read_parent,
    "detached": lambda check, raw, path: check.boolean(raw, "detached", path),
    "reruns": lambda check, raw, path: check.integer(raw, "reruns", path, 0, check.limits.reruns_max, default=0),
    "max_instances": lambda check, raw, path: check.integer(
        raw, "max_instances", path, 1, check.limits.instances_max, default=1
    ),
    "soft_timeout_s": _soft_timeout,
    "deadline_s": lambda check, raw, path: check.optional_integer(
        raw, "deadline_s", path, 1, check.limits.deadline_max_s
    ),
    "secret_bytes": read_secret,
    "evaluate_only": lambda check, raw, path: check.boolean(raw, "evaluate_only", path),
    "external_id": read_external_id,
    "routing": read_routing,
    "metadata": read_metadata,
}
_OPTIONAL_IN_PROPERTIES: Final[dict[str, _Reader]] = {
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
}
