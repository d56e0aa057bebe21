"""The task request: what somebody wants done, immutable from the moment it is accepted.

    TaskRequest
    ├── slices[]          tried in order, each with its own expiry
    │   └── properties    what to run and where: the part that is hashed for dedupe
    ├── function          instead of a command: a typed function of a package
    ├── inputs[]          Constant | Shared | OutputOf
    └── outputs[]

This file has the nouns and the texts that are stored and hashed of them. It does not read what users send
(task_parsing.py), does not know jobs (job.py) or bots, and makes no ids. The big structs are left out of garbage
collection (``gc=False``): they are frozen and built from their leaves up, so no cycle can run through them, and a
graph has 100,000 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec import Struct

from myrmidon.model.ids import show_run


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


NO_COMMAND_JSON = '"command":[],'
"""How a list without an item is stored; a quick look before a close one."""


def is_terminate_task(func_name: str | None, properties: str) -> bool:
    """Neither a command nor a function: the order to a bot to end. No request that somebody sends can be one."""
    return func_name is None and NO_COMMAND_JSON in properties and not properties_from_json(properties).command


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
