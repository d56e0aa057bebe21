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
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

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
    check = Checker(limits)
    request = read_task(check, raw, ())
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
        secret_bytes=check.bytes_(given, "secret_bytes", path, limits.secret_bytes, secret=True),
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
# Nearly every request is right, and gives few of its fields. This is the quick way for those: only the fields
# that are given are looked at. Any doubt, and any problem, means that _checked_task reads the request again and
# says what is wrong. So nothing here may accept what is refused there, and what both accept must be equal.


class _Doubt(Exception):
    """Not plainly right; perhaps not wrong either."""


_FieldReader: TypeAlias = Callable[[Checker, Any], object]


def _plain_task(raw: object, limits: Limits, label: str = "") -> TaskRequest | None:
    """What _checked_task would answer, if it is sure to have nothing to note; else None."""
    check = Checker(limits)
    fields: dict[str, Any] = {
        "priority": limits.priority_default,
        "retries": limits.retries_default,
        "lease_s": limits.lease_default_s,
    }
    try:
        _read_given(check, raw, _TASK_FIELDS, fields)
        function = fields.get("function")
        fields["slices"] = _plain_slices(check, fields.get("slices"), function)
    except _Doubt:
        return None
    if "name" not in fields:
        fields["name"] = label or (function.func_name if function is not None else "")
    if check.problems or not fields["name"]:
        return None
    request = TaskRequest(**fields)
    if request.soft_timeout_s is not None or (function is None and ("inputs" in fields or "outputs" in fields)):
        _contradictions(check, request, ())
    return None if check.problems else request


def _read_given(check: Checker, raw: object, readers: dict[str, _FieldReader], fields: dict[str, Any]) -> None:
    if type(raw) is not dict:
        raise _Doubt
    for key, value in raw.items():
        read = readers.get(key)
        if read is None:
            raise _Doubt
        if value is not None:
            fields[key] = read(check, value)


def _plain_slices(check: Checker, given: object, function: Function | None) -> list[Slice]:
    if type(given) is not list or not 1 <= len(given) <= check.limits.slices:
        raise _Doubt
    slices = [_plain_slice(check, one, function) for one in given]
    if len(slices) > 1:
        _compare_slices(check, slices, ())
    return slices


def _plain_slice(check: Checker, raw: object, function: Function | None) -> Slice:
    fields: dict[str, Any] = {"expiration_s": check.limits.expiration_default_s}
    _read_given(check, raw, _SLICE_FIELDS, fields)
    fields["properties"] = _plain_properties(check, fields.get("properties"), function)
    return Slice(**fields)


def _plain_properties(check: Checker, raw: object, function: Function | None) -> Properties:
    limits = check.limits
    fields: dict[str, Any] = {
        "execution_timeout_s": limits.function_timeout_default_s if function else limits.execution_timeout_default_s,
        "grace_period_s": limits.grace_period_default_s,
    }
    _read_given(check, raw, _PROPERTIES_FIELDS, fields)
    has_command = "command" in fields and fields["command"] != []
    if "dimensions" not in fields or has_command == (function is not None):
        raise _Doubt
    return Properties(**fields)


def _plain_integer(value: object, least: int, most: int) -> int:
    if type(value) is int and least <= value <= most:
        return value
    raise _Doubt


def _plain_boolean(_: Checker, value: object) -> bool:
    if value is True or value is False:
        return value
    raise _Doubt


def _plain_text(value: object, least: int, most: int) -> str:
    if type(value) is str and least <= len(value) <= most and is_clean(value):
        return value
    raise _Doubt


def _plain_path(value: object, least: int, most: int) -> str:
    text = _plain_text(value, least, most)
    if text and not is_relative(text):
        raise _Doubt
    return text


def _plain_texts(value: object, most: int, chars: int) -> list[str]:
    if type(value) is not list or len(value) > most:
        raise _Doubt
    _all_plain(value, chars)
    return value.copy()


def _all_plain(values: Collection[str], chars: int) -> None:
    """Looks at all texts at once: joined, they are clean if each of them is."""
    try:
        joined = "".join(values)
    except TypeError:
        raise _Doubt from None
    if not is_clean(joined) or (len(joined) > chars and max(map(len, values)) > chars):
        raise _Doubt


def _plain_command(check: Checker, value: object) -> list[str]:
    limits = check.limits
    command = _plain_texts(value, limits.command_args, limits.arg_chars)
    if command and not command[0]:
        raise _Doubt
    return command


def _plain_env(check: Checker, value: object) -> dict[str, str]:
    limits = check.limits
    if type(value) is not dict or len(value) > limits.env_keys:
        raise _Doubt
    longest = limits.env_key_chars
    for key in value:
        if type(key) is not str or len(key) > longest or not key.isascii() or not key.isidentifier():
            raise _Doubt
    _all_plain(value.values(), limits.env_value_chars)
    return value.copy()


def _plain_tags(check: Checker, value: object) -> list[str]:
    tags = _plain_texts(value, check.limits.tags, check.limits.tag_chars)
    for tag in tags:
        if ":" not in tag:
            raise _Doubt
    return sorted(set(tags))


def _plain_caches(check: Checker, value: object) -> list[Cache]:
    limits = check.limits
    if type(value) is not list or len(value) > limits.caches:
        raise _Doubt
    caches: dict[str, Cache] = {}
    for one in value:
        if type(one) is not dict or len(one) != 2:
            raise _Doubt
        name = one.get("name")
        if type(name) is not str or len(name) > limits.cache_name_chars or not _CACHE_NAME.fullmatch(name):
            raise _Doubt
        caches[name] = Cache(name=name, path=_plain_path(one.get("path"), 1, limits.cache_path_chars))
    if len(value) > 1 and not len(value) == len(caches) == len({cache.path for cache in caches.values()}):
        raise _Doubt
    return [caches[name] for name in sorted(caches)]


def _as_checked(key: str, read: Callable[[Checker, dict[str, object], Path], object]) -> _FieldReader:
    """For a field that is rare: let the thorough reader have it, alone."""
    return lambda check, value: read(check, {key: value}, ())


def _as_given(_: Checker, value: object) -> object:
    """For a field that is read later, when others are known."""
    return value


_TASK_FIELDS: Final[dict[str, _FieldReader]] = {
    "name": lambda check, value: _plain_text(value, 1, check.limits.name_chars),
    "slices": _as_given,
    "function": _as_checked("function", _function),
    "inputs": _as_checked("inputs", _inputs),
    "outputs": _as_checked("outputs", _outputs),
    "priority": lambda check, value: _plain_integer(value, 0, check.limits.priority_max),
    "tags": _plain_tags,
    "user": lambda check, value: _plain_text(value, 0, check.limits.user_chars),
    "service_account": _as_checked("service_account", _account),
    "parent": _as_checked("parent", _parent),
    "detached": _plain_boolean,
    "retries": lambda check, value: _plain_integer(value, 0, check.limits.retries_max),
    "reruns": lambda check, value: _plain_integer(value, 0, check.limits.reruns_max),
    "max_instances": lambda check, value: _plain_integer(value, 1, check.limits.instances_max),
    "soft_timeout_s": lambda check, value: _plain_integer(value, 1, check.limits.execution_timeout_max_s),
    "lease_s": lambda check, value: _plain_integer(value, check.limits.lease_min_s, check.limits.lease_max_s),
    "deadline_s": lambda check, value: _plain_integer(value, 1, check.limits.deadline_max_s),
    "secret_bytes": lambda check, value: check.bytes_({"": value}, "", (), check.limits.secret_bytes, secret=True),
    "evaluate_only": _plain_boolean,
    "external_id": _as_checked("external_id", read_external_id),
    "routing": _as_checked("routing", read_routing),
    "metadata": _as_checked("metadata", read_metadata),
}
_SLICE_FIELDS: Final[dict[str, _FieldReader]] = {
    "properties": _as_given,
    "expiration_s": lambda check, value: _plain_integer(
        value, check.limits.expiration_min_s, check.limits.expiration_max_s
    ),
    "wait_for_capacity": _plain_boolean,
}
_PROPERTIES_FIELDS: Final[dict[str, _FieldReader]] = {
    "dimensions": lambda check, value: task_dimensions(check, value, ()),
    "command": _plain_command,
    "relative_cwd": lambda check, value: _plain_path(value, 0, check.limits.cwd_chars),
    "env": _plain_env,
    "env_prefixes": _as_checked("env_prefixes", _env_prefixes),
    "caches": _plain_caches,
    "inputs": _as_checked("inputs", _files),
    "outputs": _as_checked("outputs", _output_paths),
    "execution_timeout_s": lambda check, value: _plain_integer(
        value, check.limits.execution_timeout_min_s, check.limits.execution_timeout_max_s
    ),
    "io_timeout_s": lambda check, value: _plain_integer(value, 0, check.limits.execution_timeout_max_s) or None,
    "grace_period_s": lambda check, value: _plain_integer(value, 0, check.limits.grace_period_max_s),
    "idempotent": _plain_boolean,
}


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
    secret = None if secret_hmac is None else secret_hmac.hex()
    return sha256(_canonical_json((properties, secret, function, input_digests))).hexdigest()


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
