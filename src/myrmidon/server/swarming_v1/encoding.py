"""Values in the format of Swarming's API v1: states, times, numbers, enums, bytes.

In responses, integers are decimal strings, times are UTC without a zone, bytes are base64, and absent values are left
out. In requests, numbers may be strings, and enums may be names or numbers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import DecodeError, json

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import Micros, first_id_at
from myrmidon.model.shown_input import show_value
from myrmidon.model.states import TaskState
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import Identity, Role
from myrmidon.store.views.task_search import DEDUPED, MAX_ID

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - v1 writes UTC without a zone
_S = TaskState

PENDING: Final = (_S.WAITING, _S.READY)
STATE_NAMES: Final[Mapping[str, str]] = {
    **{state: state.value for state in TaskState},
    _S.WAITING: "PENDING",
    _S.READY: "PENDING",
    _S.CANCELLED: "CANCELED",
    _S.SUCCEEDED: "COMPLETED",
    _S.FAILED: "COMPLETED",
}
"""The v1 name of each state."""

STATE_FILTERS: Final[Mapping[str, Sequence[str]]] = {
    "PENDING": PENDING,
    "RUNNING": (_S.RUNNING,),
    "PENDING_RUNNING": (*PENDING, _S.RUNNING),
    "COMPLETED": (_S.SUCCEEDED, DEDUPED, _S.FAILED),
    "COMPLETED_SUCCESS": (_S.SUCCEEDED, DEDUPED),
    "COMPLETED_FAILURE": (_S.FAILED,),
    "EXPIRED": (_S.EXPIRED,),
    "TIMED_OUT": (_S.TIMED_OUT,),
    "BOT_DIED": (_S.BOT_DIED,),
    "CANCELED": (_S.CANCELLED,),
    "ALL": (),
    "DEDUPED": (DEDUPED,),
    "KILLED": (_S.KILLED,),
    "NO_RESOURCE": (_S.NO_RESOURCE,),
    "CLIENT_ERROR": (_S.CLIENT_ERROR,),
}
"""The states that each filter selects; empty selects all. A filter's number in v1 is its index here."""

SORTS: Final[Mapping[str, str]] = {
    "CREATED_TS": "created_at",
    "MODIFIED_TS": "modified_at",
    "COMPLETED_TS": "completed_at",
    "ABANDONED_TS": "abandoned_at",
    "STARTED_TS": "started_at",
}
THREE_STATES: Final[Mapping[str, bool | None]] = {"FALSE": False, "TRUE": True, "NONE": None}
TEMPLATES: Final = ("AUTO", "CANARY_PREFER", "CANARY_NEVER", "SKIP")


# ---------------------------------------------------------------- encoding


def timestamp(at: Micros) -> str:
    """``2026-01-02T03:04:05.678000``: UTC without a zone; without a fraction if it is 0."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat()


def optional_timestamp(at: Micros | None) -> str | None:
    return None if at is None else timestamp(at)


def int64(value: int) -> str:
    """A decimal string: v1 has no JSON numbers for 64-bit integers."""
    return str(value)


def encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def identity(who: Identity) -> str:
    """The caller's identity in v1's form ``kind:name``."""
    if who.role is Role.NOBODY:
        return "anonymous:anonymous"
    return f"bot:{who.bot_id}" if who.bot_id is not None else f"user:{who.name}"


def user_identity(name: str) -> str:
    """The same for a stored name of a user."""
    return f"user:{name}" if name else "anonymous:anonymous"


# ---------------------------------------------------------------- decoding


def parse_enum(value: str | int | None, allowed: Iterable[str], path: str, default: str, *, first: int = 0) -> str:
    """The name of an enum's value, given by name or by number; numbers start at ``first``. Absent: the default."""
    names = list(allowed)
    if value is None or value == "":
        return default
    text = str(value).strip().upper()
    if text in names:
        return text
    if text.isdecimal() and len(text) < 10 and first <= int(text) < first + len(names):
        return names[int(text) - first]
    raise InvalidRequest([Problem(path, show_value(value), f"one of {', '.join(names)}", "choice")])


def decode_bytes(value: str, path: str) -> bytes:
    """Decode base64 in either alphabet; whitespace is ignored and padding is optional."""
    text = "".join(value.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest([Problem(path, f"text of {len(value)} characters", "base64", "bytes")]) from None


_LATEST_S: Final = 9_000_000_000.0


def parse_seconds(value: float | None, path: str) -> Micros | None:
    """Seconds since 1970, converted to microseconds."""
    if value is None:
        return None
    if not 0 <= value <= _LATEST_S:
        raise InvalidRequest([Problem(path, show_value(value), "seconds since 1970, UTC", "range")])
    return round(value * SECOND)


def id_range(start: float | None, end: float | None) -> tuple[int, int]:
    """The range of ids that were created from ``start`` on and before ``end``, both in seconds since 1970."""
    first, last = parse_seconds(start, "start"), parse_seconds(end, "end")
    return (first_id_at(first) if first is not None else 0, first_id_at(last) if last is not None else MAX_ID)


def tag_terms(tags: Sequence[str], path: str = "tags") -> list[list[str]]:
    """Search terms: a task matches if it has one alternative of every term. ``k:a|b`` is ``k:a`` or ``k:b``."""
    problems = [Problem(path, show_value(tag), "key:value", "pattern") for tag in tags if ":" not in tag]
    if len(tags) > _MAX_TERMS:
        problems.append(Problem(path, f"{len(tags)} tags", f"at most {_MAX_TERMS}", "too_many"))
    if problems:
        raise InvalidRequest(problems)
    terms: dict[str, list[str]] = {}
    for tag in tags:
        key, _, value = tag.partition(":")
        terms[tag] = sorted({f"{key}:{alternative}" for alternative in value.split("|")})
    return list(terms.values())


_MAX_TERMS: Final = 16


def as_object(text: str | None) -> dict[str, Any]:
    """Decode stored JSON; an empty dict if it is not an object."""
    try:
        value = json.decode(text or "{}")
    except DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
