"""The task request: what somebody wants done, immutable from the moment it is accepted.

    TaskRequest
    ├── slices[]          tried in order, each with its own expiry
    │   └── properties    what to run and where: the part that is hashed for dedupe
    ├── function          instead of a command: a typed function of a package
    ├── inputs[]          Constant | Shared | OutputOf
    └── outputs[]

This file parses and checks requests. It does not know jobs (job.py), bots, or what becomes of the request
(task_result.py), and it makes no ids. The big structs are left out of garbage collection (``gc=False``): they
are frozen and built from their leaves up, so no cycle can run through them, and a graph has 100,000 of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any, Final, TypeAlias, TypeGuard

import msgspec
from msgspec import Meta, Struct, structs

from myrmidon.model import types
from myrmidon.model.checks import (
    DEFAULT_LIMITS,
    LARGEST,
    NOTHING,
    RELATIVE,
    Checker,
    Limits,
    Path,
    is_clean,
    is_relative,
    is_usual_path,
)
from myrmidon.model.dimensions import task_dimensions
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.ids import show_run, try_parse_id

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "FilesRef",
    "Cache",
    "Properties",
    "Slice",
    "Language",
    "Function",
    "Payload",
    "Constant",
    "Shared",
    "OutputOf",
    "Input",
    "Output",
    "TaskRequest",
    "parse_task",
    "read_task",
    "read_tags",
    "read_external_id",
    "read_routing",
    "read_metadata",
    "encode_task",
    "properties_json",
    "properties_row",
    "properties_from_json",
    "properties_hash",
    "dedupe_key",
    "automatic_tags",
]


class FilesRef(Struct, frozen=True, kw_only=True):
    """A tree of files in the content-addressed store."""

    digest: str
    size: int
    namespace: str = "default"


class Cache(Struct, frozen=True, kw_only=True):
    """A named folder that a bot keeps between runs, mapped to a path below the run's folder."""

    name: str
    path: str


class Properties(Struct, frozen=True, kw_only=True, gc=False):
    """What to run and on which bots. Everything in here, and nothing else, is part of the properties hash.

    An empty value in env means: delete that variable on the bot.
    """

    dimensions: dict[str, list[str]]
    command: list[str] = []
    relative_cwd: str = ""
    env: dict[str, str] = {}
    env_prefixes: dict[str, list[str]] = {}
    caches: list[Cache] = []
    inputs: FilesRef | None = None
    outputs: list[str] = []
    execution_timeout_s: int = 3_600
    io_timeout_s: int | None = None
    grace_period_s: int = 30
    idempotent: bool = False


class Slice(Struct, frozen=True, kw_only=True, gc=False):
    """One fallback: these properties, for so long. The expiry counts from the moment the task is READY."""

    properties: Properties
    expiration_s: int = 86_400
    wait_for_capacity: bool = True


class Language(StrEnum):
    """Which executor runs a function."""

    PYTHON = "PYTHON"
    CPP = "CPP"
    RUST = "RUST"


class Function(Struct, frozen=True, kw_only=True):
    """A typed function of a package."""

    package_name: str
    func_name: str
    language: Language = Language.PYTHON


class Payload(Struct, frozen=True, kw_only=True):
    """A value's bytes: inline while small, else by the digest under which they were uploaded."""

    inline: bytes | None = None
    digest: str | None = None
    size: int


class Constant(Struct, frozen=True, kw_only=True, tag="constant", tag_field="kind"):
    """An input given with the request."""

    type: str
    payload: Payload


class Shared(Struct, frozen=True, kw_only=True, tag="shared", tag_field="kind"):
    """An input that is a shared value; the job keeps a reference to it."""

    type: str
    shared_value_id: int


class OutputOf(Struct, frozen=True, kw_only=True, tag="output_of", tag_field="kind"):
    """An input that another task of the same job produces: a data edge."""

    type: str
    label: str
    position: int


Input: TypeAlias = Constant | Shared | OutputOf


class Output(Struct, frozen=True, kw_only=True):
    """A typed position the function returns; a shared output outlives its job."""

    type: str
    shared: bool = False


class TaskRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One task as it was asked for. ``tags`` are the manual ones only; see automatic_tags.

    ``deadline_s`` None means the deadline of the job, or the default for a lone task.
    """

    name: str
    slices: list[Slice]
    function: Function | None = None
    inputs: list[Input] = []
    outputs: list[Output] = []
    priority: int = 100
    tags: list[str] = []
    user: str = ""
    service_account: str = "none"
    parent: tuple[int, int] | None = None
    detached: bool = False
    retries: int = 1
    reruns: int = 0
    max_instances: int = 1
    soft_timeout_s: int | None = None
    lease_s: int = 300
    deadline_s: int | None = None
    secret_bytes: bytes | None = None
    evaluate_only: bool = False
    external_id: str | None = None
    routing: str = ""
    metadata: dict[str, str] = {}

    def __repr__(self) -> str:
        """Never shows the secret, so that no log and no traceback can."""
        kind = self.function.func_name if self.function else f"{len(self.slices)} slices"
        secret = ", secret_bytes=<hidden>" if self.secret_bytes is not None else ""
        return f"TaskRequest(name={self.name!r}, {kind}, priority={self.priority}{secret})"


# -- reading: from untyped JSON to structs, with all problems noted ------------------------------------------

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMESPACE = re.compile(r"[a-zA-Z0-9\-._]+")
_CACHE_NAME = re.compile(r"[a-z0-9_]+")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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

    An input that is the output of another task is refused here: a lone task has no job to find it in.
    """
    request = _plain_task(raw, limits)
    if request is not None and not request.inputs:
        return request
    check = Checker(limits)
    request = request or _checked_task(check, raw, ())
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
    return _plain_task(raw, check.limits, label) or _checked_task(check, raw, path, label)


def _checked_task(check: Checker, raw: object, path: Path, label: str = "") -> TaskRequest:
    """Every field, given or not, with all problems noted."""
    limits = check.limits
    given = check.record(raw, path)
    if given is NOTHING:
        return TaskRequest(name=label, slices=[])
    check.unknown_keys(given, _TASK_KEYS, path)
    function = _function(check, given, path)
    request = TaskRequest(
        name=_name(check, given, path, usual=label or function),
        slices=_slices(check, given, path, function),
        function=function,
        inputs=_inputs(check, given, path),
        outputs=_outputs(check, given, path),
        priority=check.integer(given, "priority", path, 0, limits.priority_max, default=limits.priority_default),
        tags=read_tags(check, given, path),
        user=check.text(given, "user", path, limits.user_chars, default=""),
        service_account=_account(check, given, path),
        parent=_parent(check, given, path),
        detached=check.boolean(given, "detached", path),
        retries=check.integer(given, "retries", path, 0, limits.retries_max, default=limits.retries_default),
        reruns=check.integer(given, "reruns", path, 0, limits.reruns_max, default=0),
        max_instances=check.integer(given, "max_instances", path, 1, limits.instances_max, default=1),
        soft_timeout_s=check.maybe_integer(given, "soft_timeout_s", path, 1, limits.execution_timeout_max_s),
        lease_s=check.integer(
            given, "lease_s", path, limits.lease_min_s, limits.lease_max_s, default=limits.lease_default_s
        ),
        deadline_s=check.maybe_integer(given, "deadline_s", path, 1, limits.deadline_max_s),
        secret_bytes=_secret(check, given, path),
        evaluate_only=check.boolean(given, "evaluate_only", path),
        external_id=read_external_id(check, given, path),
        routing=read_routing(check, given, path),
        metadata=read_metadata(check, given, path),
    )
    _contradictions(check, request, path)
    return request


def _name(check: Checker, raw: dict[str, object], path: Path, usual: str | Function | None) -> str:
    """Users name their commands; a function, or a task of a graph, may go by what it is called there."""
    most = check.limits.name_chars
    if not usual:
        return check.text(raw, "name", path, most, least=1)
    default = usual if isinstance(usual, str) else usual.func_name
    return check.text(raw, "name", path, most, least=1, default=default)


def _contradictions(check: Checker, request: TaskRequest, path: Path) -> None:
    """Fields that are fine alone and wrong together."""
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
    values = check.listing(raw, "slices", path, check.limits.slices, least=1)
    slices = [_slice(check, value, (*path, "slices", i), function) for i, value in enumerate(values)]
    if len(slices) > 1:
        _compare_slices(check, slices, (*path, "slices"))
    return slices


def _compare_slices(check: Checker, slices: list[Slice], path: Path) -> None:
    """A fallback must differ from what came before it, and stay in the pool whose rules were checked."""
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
    if raw is NOTHING:
        return Properties(dimensions={})
    check.unknown_keys(raw, _PROPERTIES_KEYS, path)
    shortest, longest = limits.execution_timeout_min_s, limits.execution_timeout_max_s
    usual = limits.function_timeout_default_s if function else limits.execution_timeout_default_s
    return Properties(
        dimensions=task_dimensions(check, raw.get("dimensions"), (*path, "dimensions")),
        command=_command(check, raw, path, function),
        relative_cwd=check.relative(raw, "relative_cwd", path, limits.cwd_chars, default=""),
        env=_env(check, raw, path),
        env_prefixes=_env_prefixes(check, raw, path),
        caches=_caches(check, raw, path),
        inputs=_files(check, raw, path),
        outputs=_output_paths(check, raw, path),
        execution_timeout_s=check.integer(raw, "execution_timeout_s", path, shortest, longest, default=usual),
        io_timeout_s=_io_timeout(check, raw, path),
        grace_period_s=check.integer(
            raw, "grace_period_s", path, 0, limits.grace_period_max_s, default=limits.grace_period_default_s
        ),
        idempotent=check.boolean(raw, "idempotent", path),
    )


def _io_timeout(check: Checker, raw: dict[str, object], path: Path) -> int | None:
    """0 and nothing both mean: none."""
    longest = check.limits.execution_timeout_max_s
    return check.maybe_integer(raw, "io_timeout_s", path, 0, longest) or None


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
    if len(key) > check.limits.env_key_chars or not _ENV_KEY.fullmatch(key):
        rule = f"letters, digits and _, not starting with a digit, at most {check.limits.env_key_chars}"
        check.note((*path, key), key, rule, "key")


def _env_prefixes(check: Checker, raw: dict[str, object], path: Path) -> dict[str, list[str]]:
    limits = check.limits
    given = check.mapping(raw, "env_prefixes", path, limits.env_keys)
    if not given:
        return {}
    here = (*path, "env_prefixes")
    for key in given:
        _env_key(check, key, here)
    return {
        key: _paths(check, given, key, here, most=limits.env_prefix_paths, chars=limits.env_prefix_chars)
        for key in given
    }


def _output_paths(check: Checker, raw: dict[str, object], path: Path) -> list[str]:
    if raw.get("outputs") is None:
        return []
    limits = check.limits
    return sorted(set(_paths(check, raw, "outputs", path, most=limits.output_paths, chars=limits.output_path_chars)))


def _paths(check: Checker, raw: dict[str, object], key: str, path: Path, *, most: int, chars: int) -> list[str]:
    return check.texts(raw, key, path, most, chars=chars, least_chars=1, fits=is_relative, allowed=RELATIVE)


def _caches(check: Checker, raw: dict[str, object], path: Path) -> list[Cache]:
    if raw.get("caches") is None:
        return []
    values = check.listing(raw, "caches", path, check.limits.caches)
    here = (*path, "caches")
    caches = [_cache(check, value, (*here, i)) for i, value in enumerate(values)]
    _distinct(check, [c.name for c in caches], here, "name")
    _distinct(check, [c.path for c in caches], here, "path")
    return sorted(caches, key=_by_name)


def _by_name(cache: Cache) -> str:
    return cache.name


def _cache(check: Checker, value: object, path: Path) -> Cache:
    limits = check.limits
    raw = check.record(value, path)
    check.unknown_keys(raw, _CACHE_KEYS, path)
    return Cache(
        name=check.text(
            raw, "name", path, limits.cache_name_chars, least=1, pattern=_CACHE_NAME, allowed="a-z, 0-9 and _"
        ),
        path=check.relative(raw, "path", path, limits.cache_path_chars),
    )


def _distinct(check: Checker, values: list[str], path: Path, field: str) -> None:
    seen: set[str] = set()
    for i, value in enumerate(values):
        if value and value in seen:
            check.note((*path, i, field), value, f"a {field} no other has", "duplicate")
        seen.add(value)


def _files(check: Checker, raw: dict[str, object], path: Path) -> FilesRef | None:
    if raw.get("inputs") is None:
        return None
    here = (*path, "inputs")
    given = check.record(raw["inputs"], here)
    check.unknown_keys(given, _FILES_KEYS, here)
    most = check.limits.namespace_chars
    rule = "letters, digits and - . _"
    return FilesRef(
        digest=_digest(check, given, here),
        size=check.integer(given, "size", here, 0, LARGEST),
        namespace=check.text(
            given, "namespace", here, most, least=1, pattern=_NAMESPACE, allowed=rule, default="default"
        ),
    )


def _digest(check: Checker, raw: dict[str, object], path: Path) -> str:
    return check.text(raw, "digest", path, 64, least=64, pattern=_DIGEST, allowed="SHA-256 as 64 lower-case hex")


def _function(check: Checker, raw: dict[str, object], path: Path) -> Function | None:
    if raw.get("function") is None:
        return None
    here = (*path, "function")
    given = check.record(raw["function"], here)
    check.unknown_keys(given, _FUNCTION_KEYS, here)
    most = check.limits.function_name_chars
    return Function(
        package_name=check.text(given, "package_name", here, most, least=1),
        func_name=check.text(given, "func_name", here, most, least=1),
        language=check.choice(given, "language", here, _LANGUAGES, Language.PYTHON),
    )


def _inputs(check: Checker, raw: dict[str, object], path: Path) -> list[Input]:
    if raw.get("inputs") is None:
        return []
    values = check.listing(raw, "inputs", path, check.limits.inputs)
    found = [_input(check, value, (*path, "inputs", i)) for i, value in enumerate(values)]
    return [one for one in found if one is not None]


def _input(check: Checker, value: object, path: Path) -> Input | None:
    raw = check.record(value, path)
    kind = raw.get("kind")
    reader = _INPUT_KINDS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        if raw is not NOTHING:
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
    number = check.integer(raw, "shared_value_id", path, 1, LARGEST)
    return Shared(type=_type(check, raw, path), shared_value_id=number)


def _output_of(check: Checker, raw: dict[str, object], path: Path) -> OutputOf:
    check.unknown_keys(raw, frozenset({"kind", "type", "label", "position"}), path)
    return OutputOf(
        type=_type(check, raw, path),
        label=check.text(raw, "label", path, check.limits.label_chars, least=1),
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
    if raw is NOTHING:
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


def _outputs(check: Checker, raw: dict[str, object], path: Path) -> list[Output]:
    if raw.get("outputs") is None:
        return []
    values = check.listing(raw, "outputs", path, check.limits.outputs)
    return [_output(check, value, (*path, "outputs", i)) for i, value in enumerate(values)]


def _output(check: Checker, value: object, path: Path) -> Output:
    raw = check.record(value, path)
    check.unknown_keys(raw, _OUTPUT_KEYS, path)
    return Output(type=_type(check, raw, path), shared=check.boolean(raw, "shared", path))


def _type(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The canonical type string; empty, which is no type, when it is wrong."""
    text = check.text(raw, "type", path, check.limits.type_chars, least=1)
    if not text:
        return ""
    try:
        return types.normal(text)
    except InvalidRequest as wrong:
        check.note((*path, "type"), text, wrong.problems[0].allowed, "type_string")
        return ""


def _account(check: Checker, raw: dict[str, object], path: Path) -> str:
    most = check.limits.service_account_chars
    rule = "none, bot or an e-mail address"
    found = check.text(raw, "service_account", path, most, pattern=_ACCOUNT, allowed=rule, default="none")
    return found or "none"


def _secret(check: Checker, raw: dict[str, object], path: Path) -> bytes | None:
    return check.bytes_(raw, "secret_bytes", path, check.limits.secret_bytes, secret=True)


def _parent(check: Checker, raw: dict[str, object], path: Path) -> tuple[int, int] | None:
    given = raw.get("parent")
    if given is None:
        return None
    parsed = try_parse_id(given)
    if parsed is None or parsed[1] == 0:
        check.note((*path, "parent"), given, "the id of a run, not of a task: it does not end in 0", "id")
        return None
    return parsed


def read_tags(check: Checker, raw: dict[str, object], path: Path) -> list[str]:
    """Manual tags, sorted and unique; each has the form ``key:value``."""
    if raw.get("tags") is None:
        return []
    limits = check.limits
    tags = check.texts(raw, "tags", path, limits.tags, chars=limits.tag_chars, fits=_has_colon, allowed="key:value")
    return sorted(set(tags))


def _has_colon(tag: str) -> bool:
    return ":" in tag


def read_external_id(check: Checker, raw: dict[str, object], path: Path) -> str | None:
    """The id a client chose for itself."""
    if raw.get("external_id") is None:
        return None
    most = check.limits.external_id_chars
    return check.text(raw, "external_id", path, most, least=1, pattern=EXTERNAL_ID, allowed=EXTERNAL_ID_RULE)


def read_routing(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The words a client adds to the routing keys of its messages."""
    most = check.limits.routing_chars
    return check.text(raw, "routing", path, most, pattern=ROUTING, allowed=ROUTING_RULE, default="")


def read_metadata(check: Checker, raw: dict[str, object], path: Path) -> dict[str, str]:
    """Texts kept with the request for people to read; nothing in here acts on them."""
    limits = check.limits
    given = check.mapping(raw, "metadata", path, limits.metadata_keys)
    metadata: dict[str, str] = {}
    for key, value in given.items():
        here = (*path, "metadata", key)
        check.item(key, here, limits.metadata_key_chars, least=1)
        metadata[key] = check.item(value, here, limits.metadata_value_chars) or ""
    return metadata


# -- reading what is plainly right ---------------------------------------------------------------------------
#
# Nearly every request is right, uses few fields, and is measured against the usual limits. For those there is a
# quick way: msgspec compares types, ranges and lengths in one go, and little is left to look at here. Fields that
# are rare go through the readers above; a problem they note, or any doubt, leaves the whole to _checked_task. So
# nothing here may accept what is refused there, and what both accept must be equal.

_D: Final = DEFAULT_LIMITS
_JSON_TYPES: Final = frozenset({dict, list, str, int, bool, type(None)})
_Argument: TypeAlias = Annotated[str, Meta(max_length=_D.arg_chars)]
_EnvKey: TypeAlias = Annotated[str, Meta(max_length=_D.env_key_chars)]
_EnvValue: TypeAlias = Annotated[str, Meta(max_length=_D.env_value_chars)]
_Tag: TypeAlias = Annotated[str, Meta(max_length=_D.tag_chars)]
_Timeout: TypeAlias = Annotated[int, Meta(ge=_D.execution_timeout_min_s, le=_D.execution_timeout_max_s)]


class _PlainProperties(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    dimensions: Any
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
    "inputs": _inputs,
    "outputs": _outputs,
    "service_account": _account,
    "parent": _parent,
    "secret_bytes": _secret,
    "external_id": read_external_id,
    "routing": read_routing,
    "metadata": read_metadata,
}
_RARE_IN_PROPERTIES: Final[dict[str, _Reader]] = {
    "env_prefixes": _env_prefixes,
    "inputs": _files,
    "outputs": _output_paths,
}
_RARE_TASK_KEYS: Final = frozenset(_RARE_IN_TASK)
_RARE_PROPERTIES_KEYS: Final = frozenset(_RARE_IN_PROPERTIES)


def _plain_task(raw: object, limits: Limits, label: str = "") -> TaskRequest | None:
    """What _checked_task would answer, if it is sure to have nothing to note; else None."""
    if not (limits is _D or structs.replace(limits, deployment=_D.deployment) == _D) or not _is_json_object(raw):
        return None
    try:
        given = msgspec.convert(raw, _PlainTask)
    except (msgspec.ValidationError, ValueError):
        return None
    check = Checker()
    function = _function(check, raw, ()) if given.function is not None else None
    name = given.name or label or (function.func_name if function else "")
    tags = _plain_tags(given.tags) if given.tags else []
    slices = _plain_slices(check, given, raw["slices"], function)
    if slices is None or tags is None or not name or not is_clean(name + given.user):
        return None
    request = TaskRequest(
        name=name,
        slices=slices,
        function=function,
        priority=given.priority,
        tags=tags,
        user=given.user,
        detached=given.detached,
        retries=given.retries,
        reruns=given.reruns,
        max_instances=given.max_instances,
        soft_timeout_s=given.soft_timeout_s,
        lease_s=given.lease_s,
        deadline_s=given.deadline_s,
        evaluate_only=given.evaluate_only,
    )
    if not _RARE_TASK_KEYS.isdisjoint(raw):
        request = structs.replace(request, **_read_rare(check, raw, _RARE_IN_TASK))
        _contradictions(check, request, ())
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
        _compare_slices(check, slices, ())
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
    usual = _D.function_timeout_default_s if function else _D.execution_timeout_default_s
    properties = Properties(
        dimensions=task_dimensions(check, raw["dimensions"], ()),
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
    return Cache(name=name, path=path) if _CACHE_NAME.fullmatch(name) and is_usual_path(path) else None


# -- writing: canonical texts and their digests --------------------------------------------------------------

_canonical_json = msgspec.json.Encoder(order="sorted").encode
_read_properties = msgspec.json.Decoder(Properties).decode


def encode_task(request: TaskRequest, *, secret: bool = False) -> dict[str, object]:
    """The JSON shape that parse_task reads back to an equal request; the secret only when asked for."""
    raw: dict[str, object] = msgspec.to_builtins(request)
    if request.parent is not None:
        raw["parent"] = show_run(*request.parent)
    if not secret:
        del raw["secret_bytes"]
    return raw


def properties_json(properties: Properties) -> str:
    """The canonical JSON text that is stored and hashed: keys sorted, no spaces. It never holds a secret."""
    return _canonical_json(properties).decode()


def properties_row(
    properties: Properties,
    *,
    secret_hmac: bytes | None = None,
    function: Function | None = None,
    input_digests: Sequence[str] = (),
) -> tuple[str, str]:
    """(properties_json, properties_hash), for the price of one."""
    text = _canonical_json(properties)
    return text.decode(), _hash(text, secret_hmac, function, input_digests)


def properties_from_json(text: str | bytes) -> Properties:
    """Reads back what properties_json wrote; for text from our own database, not for a user's."""
    return _read_properties(text)


def properties_hash(
    properties: Properties,
    *,
    secret_hmac: bytes | None = None,
    function: Function | None = None,
    input_digests: Sequence[str] = (),
) -> str:
    """64 hex characters that are equal only for work that is equal.

    The secret takes part as an HMAC under the server's key: a plain hash of a short secret could be guessed.
    """
    return _hash(_canonical_json(properties), secret_hmac, function, input_digests)


def _hash(properties: bytes, secret_hmac: bytes | None, function: Function | None, input_digests: Sequence[str]) -> str:
    if secret_hmac is None and function is None and not input_digests:
        return sha256(b"[%b,null,null,[]]" % properties).hexdigest()
    secret = None if secret_hmac is None else secret_hmac.hex()
    return sha256(_canonical_json((msgspec.Raw(properties), secret, function, input_digests))).hexdigest()


def dedupe_key(properties_hash: str, resource_group_id: int, pool: str, service_account: str) -> str:
    """64 hex characters: equal work, by the same group, in the same pool, with the same account."""
    return sha256(_canonical_json((properties_hash, resource_group_id, pool, service_account))).hexdigest()


def automatic_tags(request: TaskRequest) -> list[str]:
    """The manual tags and those every task has, sorted and unique.

    Dimensions of *every* slice count, also of slices that will never be used, so that a search for a pool or
    an operating system finds all tasks that could have gone there.
    """
    tags = {
        f"priority:{request.priority}",
        f"user:{request.user or 'none'}",
        f"service_account:{request.service_account}",
        *request.tags,
    }
    if request.parent is not None:
        tags.add(f"parent_task_id:{show_run(*request.parent)}")
    for one in request.slices:
        for key, values in one.properties.dimensions.items():
            for value in values:
                if "|" in value:
                    tags.update([f"{key}:{alternative}" for alternative in value.split("|")])
                else:
                    tags.add(f"{key}:{value}")
    return sorted(tags)
