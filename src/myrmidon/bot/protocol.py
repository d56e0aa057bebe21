"""What the bot and the server send to each other, as tuples with names: one place reads JSON, one place writes it.

A field that is missing or null in JSON has its default here, and a field with its default is not written. The reader
ignores fields that it does not know, so that a newer server may send more. Bytes are base64 in JSON. A test compares
all fields with those of the server.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import Any, Callable, NamedTuple, Sequence, Tuple, Union

_EMPTY: dict[str, Any] = {}
"""The default of maps; never changed."""

# ---------------------------------------------------------------- what the server sends


class Cache(NamedTuple):
    """A named cache and its place in the folder of the run."""

    name: str
    path: str


class Function(NamedTuple):
    """The function that a task calls."""

    package_name: str
    func_name: str
    language: str = "PYTHON"
    code: str = ""
    signature: str = ""
    memory_mb: int | None = None
    environment: str = ""


class Value(NamedTuple):
    """An input of a function: its bytes if they are few, else the digest of a file.

    With ``parts`` the bytes are the shape in which they are placed, or absent for a list of them.
    """

    type: str
    payload: bytes | None = None
    digest: str | None = None
    size: int | None = None
    parts: Sequence[Value] | None = None


class Task(NamedTuple):
    """A claimed run with all that the bot needs for it. ``run`` is its id, ``token`` the right to report it."""

    run: str
    token: str
    execution_timeout_s: float
    grace_period_s: float
    command: Sequence[str] = ()
    env: dict[str, str] = _EMPTY
    env_prefixes: dict[str, list[str]] = _EMPTY
    relative_cwd: str = ""
    payload: str = ""
    caches: Sequence[Cache] = ()
    secret_bytes: bytes | None = None
    stdin: bytes | None = None
    io_timeout_s: float | None = None
    merge_output: bool = False
    lease_s: float = 300.0
    function: Function | None = None
    inputs: Sequence[Value] = ()
    output_types: Sequence[str] = ()
    task_id: str = ""
    label: str = ""
    dimensions: dict[str, list[str]] = _EMPTY
    resource_group: str | None = None
    cache_hints: dict[str, int] = _EMPTY
    realm: str = ""
    problem: str = ""
    api_token: str = ""
    job_id: str = ""
    terminate: bool = False


class Unreadable(NamedTuple):
    """A claimed run that makes no sense to this bot."""

    run: str
    token: str
    problem: str


class Reply(NamedTuple):
    """The outcome of one report; ``stop`` tells the bot to stop the run."""

    outcome: str
    stop: bool = False


class Answer(NamedTuple):
    """The answer to an exchange. The answer to a heartbeat has a part of its fields: runs to stop, and an order."""

    replies: Sequence[Reply] = ()
    log_lengths: Sequence[int] = ()
    stop: Sequence[str] = ()
    tasks: Sequence[Task | Unreadable] = ()
    more: bool = False
    order: str | None = None
    version: str | None = None
    zip_hmac: str | None = None


class Welcome(NamedTuple):
    """The answer to a handshake: ``keep`` are the runs that are still the bot's own.

    ``start_within_s``: a run that has not begun so long after its claim is returned; the server may soon give its task
    to another bot.
    """

    credential: str
    session: int
    server_time: int
    keep: Sequence[str] = ()
    poll_s: float = 30.0
    heartbeat_s: float = 10.0
    start_within_s: float = 20.0
    config: str | None = None
    dimensions: dict[str, list[str]] = _EMPTY
    script: str | None = None
    script_name: str = ""
    settings: dict[str, Any] = _EMPTY


# ---------------------------------------------------------------- what the bot sends


class StartReport(NamedTuple):
    """A run has begun, and is not a short one."""

    run: str
    token: str


class GiveBackReport(NamedTuple):
    """The bot will not start this run."""

    run: str
    token: str


class Payload(NamedTuple):
    """The bytes of a value if they are few, else the digest and size of a file that the bot has stored."""

    inline: bytes | None = None
    digest: str | None = None
    size: int | None = None


class Output(NamedTuple):
    """One output of a run. A payload without content: the command has not written it."""

    type: str
    payload: Payload


class FinishReport(NamedTuple):
    """A run has ended, with or without success."""

    run: str
    token: str
    exit_code: int | None = None
    duration: float = 0.0
    stdout_size: int | None = None
    stderr_size: int | None = None
    hard_timeout: bool = False
    io_timeout: bool = False
    killed: bool = False
    start_failed: bool = False
    outputs: Sequence[Output] = ()
    cost_usd: float = 0.0
    stats: dict[str, float] | None = None
    message: str = ""
    delegated: bool = False
    error: dict[str, Any] | None = None
    caches: dict[str, int] | None = None


class FaultReport(NamedTuple):
    """The bot could not carry a run out; the server decides by ``kind`` what follows."""

    run: str
    token: str
    kind: str = "bot_error"
    message: str = ""


EndReport = Union[FinishReport, FaultReport]
Report = Union[StartReport, GiveBackReport, FinishReport, FaultReport]


class Chunk(NamedTuple):
    """A small piece of a run's output."""

    stream: int
    offset: int
    data: bytes


class Record(NamedTuple):
    """A run that has ended: its report, and the output that goes with it. A line of the result journal."""

    report: EndReport
    logs: Sequence[Chunk] = ()


class LogPiece(NamedTuple):
    """Output in an exchange. ``marks``: times in microseconds, and offsets."""

    run: str
    token: str
    stream: int
    offset: int
    data: bytes
    marks: Sequence[tuple[int, int]] = ()


Held = Tuple[str, str]
"""A run that the bot has, and its token."""


class ExchangeMessage(NamedTuple):
    """Reports, output, heartbeat and claim in one request."""

    session: int
    nonce: int = 0
    n: int = 0
    received: int | None = None
    accepts: str = "any"
    slots: int = 1
    wait_s: float = 0.0
    reports: Sequence[Report] = ()
    logs: Sequence[LogPiece] = ()
    holds: Sequence[Held] = ()
    stopping: Sequence[str] = ()
    progress: dict[str, float] = _EMPTY
    state: dict[str, Any] | None = None
    dimensions: dict[str, list[str]] | None = None
    config: str | None = None


class HeartbeatMessage(NamedTuple):
    """Renews the leases of runs."""

    session: int
    holds: Sequence[Held] = ()
    progress: dict[str, float] = _EMPTY
    config: str | None = None


class HandshakeMessage(NamedTuple):
    """A bot has started, or continues its session. ``begun``: tasks that ran when an earlier process died."""

    bot_id: str
    session: int
    dimensions: dict[str, list[str]]
    new_process: bool = False
    state: dict[str, Any] = _EMPTY
    version: str = ""
    boot_id: str = ""
    holds: Sequence[str] = ()
    begun: Sequence[str] = ()
    quarantined: str | None = None
    maintenance: str | None = None


class EventMessage(NamedTuple):
    """An event for the owner of the bot. ``ended``: the bot will not return by itself."""

    session: int
    kind: str
    message: str = ""
    bad_release: str | None = None
    ended: bool = False


_TYPES: dict[Any, str] = {
    StartReport: "start",
    GiveBackReport: "give_back",
    FinishReport: "finish",
    FaultReport: "fault",
}

# ---------------------------------------------------------------- JSON

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode(message: Any) -> bytes:
    """The JSON of a message."""
    return _encode(_plain(message)).encode()


def _plain(value: Any) -> Any:
    """A value of JSON: an object for a named tuple, without the fields that have their defaults."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is bytes:
        return b64encode(value).decode()
    if kind is list or kind is tuple:  # of one kind: plain values or pairs of them, or messages
        return value if not value or type(value[0]) in _PLAIN_ITEMS else [_plain(item) for item in value]
    found = {"type": _TYPES[kind]} if kind in _TYPES else {}
    for name, content, default in zip(value._fields, value, _defaults_of(kind)):
        if content is not default and content != default:
            found[name] = content if type(content) in _PLAIN else _plain(content)
    return found


_PLAIN = frozenset([str, int, float, bool, dict, type(None)])
_PLAIN_ITEMS = _PLAIN | {tuple}


@lru_cache(maxsize=None)
def _defaults_of(form: Any) -> tuple[Any, ...]:
    """The defaults of all fields; for a field that has none, something that no value is equal to."""
    return tuple(form._field_defaults.get(name, form) for name in form._fields)


def decode(form: Any, found: Any) -> Any:
    """The tuple of a form from parsed JSON. Raises KeyError, TypeError or ValueError if it makes no sense."""
    readers = _readers_of(form)
    values = {}
    for name, value in found.items():
        if value is not None and name in readers:
            read = readers[name]
            values[name] = value if read is None else read(value)
    return form(**values)


@lru_cache(maxsize=None)
def _readers_of(form: Any) -> dict[str, Callable[[Any], Any] | None]:
    """How each field of a form is read; None if it is plain JSON."""
    return {name: _READERS.get(form, {}).get(name) for name in form._fields}


def _one(form: Any) -> Callable[[Any], Any]:
    return lambda found: decode(form, found)


def _all(form: Any) -> Callable[[Any], Any]:
    return lambda found: [decode(form, item) for item in found]


def _number(found: Any) -> float:
    if not isinstance(found, (int, float)):
        raise TypeError(f"{found!r} is not a number")
    return found


def _read_report(found: dict[str, Any]) -> EndReport:
    report: EndReport = decode(FinishReport if found["type"] == "finish" else FaultReport, found)
    return report


def _read_tasks(found: list[dict[str, Any]]) -> list[Task | Unreadable]:
    tasks: list[Task | Unreadable] = []
    for item in found:
        try:
            tasks.append(decode(Task, item))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            tasks.append(Unreadable(item["run"], item["token"], f"the bot cannot read the task: {error}"))
    return tasks


_READERS: dict[Any, dict[str, Callable[[Any], Any]]] = {
    Answer: {"replies": _all(Reply), "tasks": _read_tasks},
    Task: {
        "execution_timeout_s": _number,
        "grace_period_s": _number,
        "caches": _all(Cache),
        "secret_bytes": b64decode,
        "stdin": b64decode,
        "function": _one(Function),
        "inputs": _all(Value),
    },
    Value: {"payload": b64decode, "parts": _all(Value)},
    Record: {"report": _read_report, "logs": _all(Chunk)},
    Chunk: {"data": b64decode},
    FinishReport: {"outputs": _all(Output)},
    Output: {"payload": _one(Payload)},
    Payload: {"inline": b64decode},
}  # fmt: skip
"""How the fields are read that are not plain JSON."""
