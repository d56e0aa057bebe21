"""Routing keys of messages: words separated by dots, at the same positions in messages about tasks and graphs.

    taskId.run.workerGroup.workerId.provisionerId.workerType.schedulerId.taskGraphId.<graph routing>.<task routing>

A word that does not apply is ``_``. The two routings come last because they may contain dots and may be empty; their
dots stay, so that a binding can count the words before them.
"""

from __future__ import annotations

import re
from hashlib import sha256

from myrmidon.model.job import composed_routing
from myrmidon.model.limits import DEFAULT_LIMITS

ABSENT = "_"
WORD_BYTES = 20
"""A longer word is replaced by as many hex digits of its SHA-256, so that the whole key stays within its limit."""
KEY_BYTES = DEFAULT_LIMITS.routing_key_bytes
SCHEDULER = DEFAULT_LIMITS.deployment
_SPECIAL = re.compile(r"[%.*#\s\x00-\x1f\x7f]")


def word(value: str | None) -> str:
    """A value as one word: special characters as ``%`` and two hex digits, a long value as a hash."""
    if not value:
        return ABSENT
    escaped = _SPECIAL.sub(_escape, value)
    return escaped if len(escaped.encode()) <= WORD_BYTES else hashed(value)


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found.group().encode())


def hashed(value: str) -> str:
    """Return a digest in place of a value that is too long for its place in a key."""
    return sha256(value.encode()).hexdigest()[:WORD_BYTES]


def task_key(
    *, task: str, run: int, bot: str | None, pool: str, worker_type: str, graph: str, graph_routing: str, routing: str
) -> str:
    """The routing key of a message about a task. Bots have no groups, so the word workerGroup is always absent."""
    words = f"{task}.{run or ABSENT}.{ABSENT}.{word(bot)}.{word(pool)}.{word(worker_type)}"
    return _whole(words, graph, graph_routing, f".{routing}")


def graph_key(*, graph: str, routing: str) -> str:
    """The routing key of a message about a graph, whose first six words are absent."""
    return _whole(".".join([ABSENT] * 6), graph, routing, "")


def _whole(words: str, graph: str, graph_routing: str, end: str) -> str:
    """The whole key. Long ids of graphs, which clients choose, are hashed only where the key has no room for them."""
    for name in (graph or ABSENT, hashed(graph)):
        tail = composed_routing(deployment=SCHEDULER, graph_id=name, graph_routing=graph_routing, task_routing="")
        key = f"{words}.{tail[:-1]}{end}"
        if len(key.encode()) <= KEY_BYTES:
            return key
    raise ValueError(f"a routing key of {len(key.encode())} bytes; the limits of requests allow {KEY_BYTES}")
