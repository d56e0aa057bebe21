"""How Swarming's API v1 writes things: states, times, numbers, enums. And how its clients write them to us.

Out: whole numbers as decimal texts, times as naive UTC, bytes as base64, what is not there left out. In: numbers
as numbers or texts, enums by name or by number. IgnoredBody here knows a route or the database.
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
from myrmidon.model.states import TaskState
from myrmidon.model.validation import show_value
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
    _S.SUCCEEDED: "COMPLETED",
    _S.FAILED: "COMPLETED",
}
"""Our states in v1's words."""

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
    "CANCELED": (_S.CANCELED,),
    "ALL": (),
    "DEDUPED": (DEDUPED,),
    "KILLED": (_S.KILLED,),
    "NO_RESOURCE": (_S.NO_RESOURCE,),
    "CLIENT_ERROR": (_S.CLIENT_ERROR,),
}
"""What each filter asks for; nothing means everything. Their order is that of their numbers."""

SORTS: Final[Mapping[str, str]] = {
    "CREATED_TS": "created_at",
    "MODIFIED_TS": "modified_at",
    "COMPLETED_TS": "completed_at",
    "ABANDONED_TS": "abandoned_at",
    "STARTED_TS": "started_at",
}
THREE_STATES: Final[Mapping[str, bool | None]] = {"FALSE": False, "TRUE": True, "NONE": None}
TEMPLATES: Final = ("AUTO", "CANARY_PREFER", "CANARY_NEVER", "SKIP")


# ---------------------------------------------------------------- out


def timestamp(at: Micros) -> str:
    """``2026-01-02T03:04:05.678``: UTC without a zone, the fraction only where there is one."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat()


def optional_timestamp(at: Micros | None) -> str | None:
    return None if at is None else timestamp(at)


def int64(value: int) -> str:
    return str(value)


def maybe_number(value: int | None) -> str | None:
    return None if value is None else str(value)


def encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def identity(who: Identity) -> str:
    """``kind:name``, as v1 calls those who call."""
    if who.role is Role.NOBODY:
        return "anonymous:anonymous"
    return f"bot:{who.bot_id}" if who.bot_id is not None else f"user:{who.name}"


def user_identity(name: str) -> str:
    """The same for a name that was stored."""
    return f"user:{name}" if name else "anonymous:anonymous"


# ---------------------------------------------------------------- in


def parse_enum(value: str | int | None, known: Iterable[str], path: str, default: str, *, first: int = 0) -> str:
    """The name of an enum's value, given by name or by number, from ``first`` on; what is not there is the default."""
    names = list(known)
    if value is None or value == "":
        return default
    text = str(value).strip().upper()
    if text in names:
        return text
    if text.isdecimal() and len(text) < 10 and first <= int(text) < first + len(names):
        return names[int(text) - first]
    raise InvalidRequest([Problem(path, show_value(value), f"one of {', '.join(names)}", "choice")])


def decode_bytes(value: str, path: str) -> bytes:
    """base64, with or without a newline at its end, with or without its padding, in either alphabet."""
    text = "".join(value.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest([Problem(path, f"text of {len(value)} characters", "base64", "bytes")]) from None


_LATEST_S: Final = 9_000_000_000.0


def parse_seconds(value: float | None, path: str) -> Micros | None:
    """Seconds since 1970, with a fraction if you like, as the core counts time."""
    if value is None:
        return None
    if not 0 <= value <= _LATEST_S:
        raise InvalidRequest([Problem(path, show_value(value), "seconds since 1970, UTC", "range")])
    return round(value * SECOND)


def id_range(start: float | None, end: float | None) -> tuple[int, int]:
    """The ids of what was made from ``start`` on and before ``end``."""
    first, last = parse_seconds(start, "start"), parse_seconds(end, "end")
    return (first_id_at(first) if first is not None else 0, first_id_at(last) if last is not None else MAX_ID)


def tag_terms(tags: Sequence[str], path: str = "tags") -> list[list[str]]:
    """Tags to search for: all of the terms, of each at least one alternative. ``k:a|b`` is ``k:a`` or ``k:b``."""
    problems = [Problem(path, show_value(tag), "key:value", "pattern") for tag in tags if ":" not in tag]
    if len(tags) > _MAX_TERMS:
        problems.append(Problem(path, f"{len(tags)} tags", f"at most {_MAX_TERMS}", "too_many"))
    if problems:
        raise InvalidRequest(problems)
    terms: dict[str, list[str]] = {}
    for tag in tags:
        key, _, value = tag.partition(":")
        terms[tag] = sorted({f"{key}:{one}" for one in value.split("|")})
    return list(terms.values())


_MAX_TERMS: Final = 16


def pairs_of(found: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    return [(key, list(values)) for key, values in sorted(found.items())]


def as_object(text: str | None) -> dict[str, Any]:
    """Stored JSON that should be an object; empty when it is none."""
    try:
        found = json.decode(text or "{}")
    except DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
