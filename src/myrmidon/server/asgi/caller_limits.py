"""Limits what the calls of one caller may take up of a server at the same time.

Bodies that arrive and calls that wait use memory and a connection for as long as their client likes, and each event
wakes every event stream. The limits are per caller, so that one of them does not block the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from myrmidon.model.errors import Overloaded
from myrmidon.server.settings import Settings


class Limit(StrEnum):
    """What is limited; the values are names of settings."""

    BODIES = "most_bodies"
    BODY_BYTES = "most_body_bytes"
    WAITS = "most_waits"
    EVENT_STREAMS = "most_event_streams"


_TOLD = {
    Limit.BODIES: "request bodies of this caller are arriving already. Send fewer at a time.",
    Limit.BODY_BYTES: "bytes are the most that request bodies of this caller may have together. Send fewer at a time.",
    Limit.WAITS: "calls of this caller are waiting already. Wait for many tasks in one call, or use another token.",
    Limit.EVENT_STREAMS: "event streams of this caller are open already. Close some, share one, or use another token.",
}


class CallerLimits:
    """What the callers of one server take up."""

    def __init__(self, settings: Settings) -> None:
        self._most = {limit: getattr(settings, limit) for limit in Limit}
        self._used: Counter[tuple[Limit, str]] = Counter()

    @contextmanager
    def hold(self, limit: Limit, caller: str, number: int = 1) -> Iterator[None]:
        """Count something of a caller until the block ends; Overloaded if that would be too much."""
        key = limit, caller
        if self._used[key] + number > self._most[limit]:
            raise Overloaded(f"{self._most[limit]} {_TOLD[limit]}", advice="")
        self._used[key] += number
        try:
            yield
        finally:
            self._used[key] -= number
            if not self._used[key]:
                del self._used[key]
