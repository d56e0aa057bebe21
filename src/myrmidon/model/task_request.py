"""The task request: what to run and how, immutable once it is accepted.

    TaskRequest
    ├── slices[]          tried in order, each with its own expiry
    │   └── properties    what to run and where: the part that is hashed for dedupe
    ├── function          instead of a command: a typed function of a package
    ├── inputs[]          Constant | Shared | OutputOf | Gathered
    └── outputs[]

This file has the structs and their canonical texts, which are stored and hashed. It does not parse user input
(task_validation.py) and has nothing to do with jobs (job.py), bots or making ids. The larger structs are excluded from
garbage collection (``gc=False``): they are frozen and built bottom-up, so they cannot be part of a cycle, and a
graph may have 100,000 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from myrmidon.model.ids import show_run
from myrmidon.model.limits import DEFAULT_LIMITS as _MOST


class FilesRef(Struct, frozen=True, kw_only=True):
    """A tree of files in the content-addressed store."""

    digest: str
    size: int
    namespace: str = "default"


class Cache(Struct, frozen=True, kw_only=True):
    """A named folder that a bot keeps between runs, mapped to a path below the run's folder."""

    name: str
    path: str


class OutputRef(Struct, frozen=True, kw_only=True, gc=False):
    """Where the value of an input goes: the path in the properties, and the number of the input."""

    path: list[str | int]
    input: int


class Properties(Struct, frozen=True, kw_only=True, gc=False):
    """What to run and on which bots. All of these fields are part of the properties hash.

    An empty value in env removes that variable from the bot's environment. With ``merge_output`` stdout and stderr are
    one stream, in the order in which the command wrote them. With ``api`` the command may call the server.
    """

    dimensions: dict[str, list[str]]
    command: list[str] = []
    relative_cwd: str = ""
    env: dict[str, str] = {}
    env_prefixes: dict[str, list[str]] = {}
    caches: list[Cache] = []
    inputs: FilesRef | None = None
    outputs: list[str] = []
    execution_timeout_s: int | float = 3_600
    io_timeout_s: int | float | None = None
    grace_period_s: int = 30
    idempotent: bool = False
    merge_output: bool = False
    payload: str = ""
    """A JSON object as text, which the command gets as a file; empty for none."""
    api: str = ""
    """``job``: the run gets a token for its own job; empty for none."""
    output_refs: list[OutputRef] = []
    """Places of a command that get outputs of other tasks; users write ``{"$output": "label:position"}`` there."""


class Slice(Struct, frozen=True, kw_only=True, gc=False):
    """One alternative: its properties, and how long to wait for a bot. The expiry starts when the task is READY."""

    properties: Properties
    expiration_s: int = 86_400
    wait_for_capacity: bool = True


# ---------------------------------------------------------------- functions and their values
#
# From here on the structs declare what is allowed in a request, which is decoded into them (task_validation.py). The
# ones above are also decoded from the database, where another release may have stored what this one does not allow.

CLEAN: Final = r"^[^\x00\ud800-\udfff]*\Z"
"""No NUL and no lone surrogates: not every database and operating system can hold those."""
_DIGEST_OR_NOTHING: Final = r"^([0-9a-f]{64})?\Z"
_FunctionName = Annotated[str, Meta(min_length=1, max_length=_MOST.function_name_chars, pattern=CLEAN)]
_TypeString = Annotated[str, Meta(min_length=1, max_length=_MOST.type_chars)]
_Label = Annotated[str, Meta(min_length=1, max_length=_MOST.label_chars, pattern=CLEAN)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="SHA-256 as 64 lower-case hex")]
_Position = Annotated[int, Meta(ge=0, le=_MOST.outputs - 1)]


NAMED_ENVIRONMENT: Final = "name:"
"""The beginning of the environment of a function that bots offer by name."""
_ENVIRONMENT: Final = rf"^([0-9a-f]{{64}}|{NAMED_ENVIRONMENT}[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}})?\Z"
_CODE_RULE: Final = "SHA-256 of a zip as 64 lower-case hex, or nothing for a package that is installed on the bot"
_IDENTITY_RULE: Final = "a digest of 64 lower-case hex, or nothing: then the whole code decides"
_ENVIRONMENT_RULE: Final = (
    "SHA-256 of a document with requirements as 64 lower-case hex, name: with the name of an environment of the bots, "
    "or nothing for the packages of the bot"
)


class Language(StrEnum):
    """Which executor runs a function."""

    PYTHON = "PYTHON"
    CPP = "CPP"
    RUST = "RUST"


class Function(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A typed function of a package: the module to import, and the qualified name in it.

    In C++ and Rust the package is the file name of a shared library, and the name that of a function in it. ``code`` is
    the digest of a zip that has the module or library; without it, that is installed on the bot. ``signature``
    is what the function must look like there. ``memory_mb`` limits what a call may allocate. ``identity`` is a digest
    of the function and of everything that it reaches in its code: results stay valid while it is the same, although
    ``code`` changes with every edit of another function. ``environment``: the packages that it finds: empty for the
    bot's own, the digest of a document with requirements, or ``name:`` and the name of an environment that bots offer.
    """

    package_name: _FunctionName
    func_name: _FunctionName
    language: Language = Language.PYTHON
    code: Annotated[str, Meta(pattern=_DIGEST_OR_NOTHING, description=_CODE_RULE)] = ""
    signature: Annotated[str, Meta(max_length=_MOST.signature_chars, pattern=CLEAN)] = ""
    memory_mb: Annotated[int, Meta(ge=1, le=_MOST.memory_max_mb)] | None = None
    identity: Annotated[str, Meta(pattern=_DIGEST_OR_NOTHING, description=_IDENTITY_RULE)] = ""
    environment: Annotated[str, Meta(pattern=_ENVIRONMENT, description=_ENVIRONMENT_RULE)] = ""


ENVIRONMENT_DIMENSION = "environment"
BUILT_ENVIRONMENT = "requirements"
"""The value of that dimension of bots that build environments from requirements."""


def stored_environment(function: Function) -> str:
    """The digest of the requirements of a function; empty if it has none."""
    return "" if function.environment.startswith(NAMED_ENVIRONMENT) else function.environment


def environment_value(function: Function) -> str:
    """What a bot must have in the dimension ``environment`` to run a function; empty if nothing."""
    if function.environment.startswith(NAMED_ENVIRONMENT):
        return function.environment.removeprefix(NAMED_ENVIRONMENT)
    return BUILT_ENVIRONMENT if function.environment else ""


class Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value's bytes: inline if small, else the digest under which they were uploaded.

    A request may leave out the size of inline bytes.
    """

    inline: Annotated[bytes, Meta(max_length=_MOST.value_inline_bytes)] | None = None
    digest: Digest | None = None
    size: Annotated[int, Meta(ge=0, le=_MOST.value_stored_bytes)] = 0


class Constant(Struct, frozen=True, kw_only=True, tag="constant", tag_field="kind", forbid_unknown_fields=True):
    """An input given with the request."""

    type: _TypeString
    payload: Payload


class Shared(Struct, frozen=True, kw_only=True, tag="shared", tag_field="kind", forbid_unknown_fields=True):
    """An input that is a shared value; the job keeps a reference to it."""

    type: _TypeString
    shared_value_id: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]


class OutputOf(Struct, frozen=True, kw_only=True, tag="output_of", tag_field="kind", forbid_unknown_fields=True):
    """An input that another task of the same job produces: a data edge."""

    type: _TypeString
    label: _Label
    position: _Position = 0


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a gathered input: an output of another task of the same job, which makes a data edge."""

    type: _TypeString
    label: _Label
    position: _Position = 0


class Gathered(Struct, frozen=True, kw_only=True, tag="gathered", tag_field="kind", forbid_unknown_fields=True):
    """An input that is composed of the outputs of other tasks.

    ``shape`` is msgpack in which an extension of type 1 marks the place of each part, by its number. Without a shape
    the input is the list of all parts.
    """

    type: _TypeString
    parts: Annotated[list[Part], Meta(max_length=_MOST.inputs)]
    shape: Payload | None = None


Input: TypeAlias = Constant | Shared | OutputOf | Gathered


def reads_outputs(given: Input) -> bool:
    """Whether an input is produced by other tasks of the job."""
    return isinstance(given, (OutputOf, Gathered))


def labels_of_inputs(request: TaskRequest) -> set[str]:
    """The labels of the tasks whose outputs a request reads."""
    found: set[str] = set()
    for given in request.inputs:
        if isinstance(given, OutputOf):
            found.add(given.label)
        elif isinstance(given, Gathered):
            found.update([part.label for part in given.parts])
    return found


class Output(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A typed position the function returns; a shared output outlives its job."""

    type: _TypeString
    shared: bool = False


def text_rule(most: int, pattern: str = CLEAN, rule: str = "", *, least: int = 0) -> Meta:
    """A text that matches a pattern, which ``rule`` describes."""
    described = f"{rule}, at most {most} characters" if rule else None
    return Meta(min_length=least, max_length=most, pattern=pattern, description=described)


_TAG_RULE: Final = r"^[^\x00\ud800-\udfff]*:[^\x00\ud800-\udfff]*\Z"
_ROUTING_RULE: Final = r"^[^\s*#\x00-\x1f\x7f\ud800-\udfff]*\Z"
_ACCOUNT_RULE: Final = r"^(none|bot|[^@\s\x00\ud800-\udfff]+@[^@\s\x00\ud800-\udfff]+)?\Z"
_ID_RULE: Final = "letters, digits, - and _: it is one word of a routing key"

Tag = Annotated[str, text_rule(_MOST.tag_chars, _TAG_RULE, "key:value")]
Tags = Annotated[list[Tag], Meta(max_length=_MOST.tags)]
_MetadataKey = Annotated[str, text_rule(_MOST.metadata_key_chars, least=1)]
_MetadataValue = Annotated[str, text_rule(_MOST.metadata_value_chars)]
Metadata = Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=_MOST.metadata_keys)]
ExternalId = Annotated[str, text_rule(_MOST.external_id_chars, r"^[A-Za-z0-9_\-]+\Z", _ID_RULE)]
Routing = Annotated[
    str, text_rule(_MOST.routing_chars, _ROUTING_RULE, "words separated by dots, without space, * and #")
]
Deadline = Annotated[int, Meta(ge=1, le=_MOST.deadline_max_s)]
_Account = Annotated[str, text_rule(_MOST.service_account_chars, _ACCOUNT_RULE, "none, bot or an e-mail address")]
_SoftTimeout = (
    Annotated[int, Meta(ge=1, le=_MOST.execution_timeout_max_s)]
    | Annotated[float, Meta(ge=_MOST.soft_timeout_min_s, le=_MOST.execution_timeout_max_s)]
)


class TaskRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One task as it was requested. ``tags`` has the user's tags only; see automatic_tags.

    ``deadline_s`` None means the deadline of the job, or the default for a task without a job.
    """

    name: Annotated[str, text_rule(_MOST.name_chars, least=1)]
    slices: list[Slice]
    function: Function | None = None
    inputs: list[Input] = []
    outputs: list[Output] = []
    priority: Annotated[int, Meta(ge=0, le=_MOST.priority_max)] = _MOST.priority_default
    tags: Tags = []
    user: Annotated[str, text_rule(_MOST.user_chars)] = ""
    service_account: _Account = "none"
    parent: tuple[int, int] | None = None
    detached: bool = False
    retries: Annotated[int, Meta(ge=0, le=_MOST.retries_max)] = _MOST.retries_default
    reruns: Annotated[int, Meta(ge=0, le=_MOST.reruns_max)] = 0
    max_instances: Annotated[int, Meta(ge=1, le=_MOST.instances_max)] = 1
    soft_timeout_s: _SoftTimeout | None = None
    lease_s: Annotated[int, Meta(ge=1, le=_MOST.lease_max_s)] = _MOST.lease_default_s
    deadline_s: Deadline | None = None
    secret_bytes: Annotated[bytes, Meta(max_length=_MOST.secret_bytes)] | None = None
    stdin: Annotated[bytes, Meta(max_length=_MOST.stdin_bytes)] | None = None
    evaluate_only: bool = False
    external_id: ExternalId | None = None
    routing: Routing = ""
    metadata: Metadata = {}

    def __repr__(self) -> str:
        """Omits the secret, so that it cannot appear in logs and tracebacks."""
        kind = self.function.func_name if self.function else f"{len(self.slices)} slices"
        secret = ", secret_bytes=<hidden>" if self.secret_bytes is not None else ""
        return f"TaskRequest(name={self.name!r}, {kind}, priority={self.priority}{secret})"


# -- canonical texts and their digests -----------------------------------------------------------------------

_canonical_json = msgspec.json.Encoder(order="sorted").encode
_read_properties = msgspec.json.Decoder(Properties).decode


def properties_json(properties: Properties) -> str:
    """The canonical JSON text that is stored and hashed: keys sorted, no spaces. It never holds a secret."""
    return _canonical_json(properties).decode()


def properties_row(
    properties: Properties,
    *,
    secret_hmac: bytes | None = None,
    stdin_hmac: bytes | None = None,
    function: Function | None = None,
    input_digests: Sequence[str] = (),
) -> tuple[str, str]:
    """(properties_json, properties_hash), encoding the properties only once."""
    text = _canonical_json(properties)
    return text.decode(), _hash(text, secret_hmac, stdin_hmac, function, input_digests)


def properties_from_json(text: str | bytes) -> Properties:
    """The inverse of properties_json. Does not validate: for text from the database, not from users."""
    return _read_properties(text)


NO_COMMAND_JSON = '"command":[],'
"""How an empty command is stored; a substring test that avoids decoding most properties."""


def is_terminate_task(func_name: str | None, properties: str) -> bool:
    """Whether a request has neither a command nor a function: it tells a bot to terminate. Users cannot send one."""
    return func_name is None and NO_COMMAND_JSON in properties and not properties_from_json(properties).command


_CACHES_JSON = '"caches":[{'
"""How named caches are stored. No string can contain this text, because its quotes would be escaped."""


def uses_caches(properties: str) -> bool:
    """Whether stored properties have named caches."""
    return _CACHES_JSON in properties


def cache_names(properties: str) -> set[str]:
    """The named caches of stored properties."""
    return {cache.name for cache in properties_from_json(properties).caches}


def properties_hash(
    properties: Properties,
    *,
    secret_hmac: bytes | None = None,
    stdin_hmac: bytes | None = None,
    function: Function | None = None,
    input_digests: Sequence[str] = (),
) -> str:
    """64 hex characters that are equal only for equal work.

    Secret and stdin are included as HMACs with the server's key: a plain hash of a short secret could be guessed.
    """
    return _hash(_canonical_json(properties), secret_hmac, stdin_hmac, function, input_digests)


def _hash(
    properties: bytes,
    secret_hmac: bytes | None,
    stdin_hmac: bytes | None,
    function: Function | None,
    input_digests: Sequence[str],
) -> str:
    if secret_hmac is None and stdin_hmac is None and function is None and not input_digests:
        return sha256(b"[%b,null,null,[]]" % properties).hexdigest()
    if function is not None and function.identity:
        function = msgspec.structs.replace(function, code="")
    secret = None if secret_hmac is None else secret_hmac.hex()
    stdin = () if stdin_hmac is None else (stdin_hmac.hex(),)
    return sha256(_canonical_json((msgspec.Raw(properties), secret, function, input_digests, *stdin))).hexdigest()


def dedupe_key(
    properties_hash: str, resource_group_id: int, pool: str, service_account: str, scope: str | None = None
) -> str:
    """64 hex characters that are equal for equal work of the same group, pool and service account.

    With ``scope`` they are equal in this scope only: see scheduler/resume.py.
    """
    scoped = () if scope is None else (scope,)
    return sha256(_canonical_json((properties_hash, resource_group_id, pool, service_account, *scoped))).hexdigest()


def automatic_tags(request: TaskRequest) -> list[str]:
    """The user's tags and those that every task gets, sorted and unique.

    The dimensions of *every* slice are included, so that a search for a pool or an operating system finds all
    tasks that could have run there.
    """
    tags = {
        f"priority:{request.priority}",
        f"user:{request.user or 'none'}",
        f"service_account:{request.service_account}",
        *request.tags,
    }
    if request.parent is not None:
        tags.add(f"parent_task_id:{show_run(*request.parent)}")
    for task_slice in request.slices:
        for key, values in task_slice.properties.dimensions.items():
            for value in values:
                if "|" in value:
                    tags.update([f"{key}:{alternative}" for alternative in value.split("|")])
                else:
                    tags.add(f"{key}:{value}")
    return sorted(tags)
