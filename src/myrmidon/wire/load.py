"""How busy bots and pools are."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.wire.fields import Micros


class BotSeries(Struct, frozen=True, kw_only=True):
    """Of each step of ``step`` microseconds from ``start`` on: the share of time that the bot ran tasks, and its runs.

    ``busy`` is above 1 for a bot that runs several tasks at once. ``known_from``: the bot has earlier runs, but steps
    before this time do not count them.
    """

    start: Micros
    step: Micros
    busy: list[float]
    succeeded: list[int]
    failed: list[int]
    known_from: Micros | None


class PoolLoad(Struct, frozen=True, kw_only=True):
    """``wait_p50_s`` and ``wait_p95_s``: how long recent tasks waited for a bot. ``wanted_bots``: how many further bots
    would start all that waits at once; one that serves other queues of the pool may not do."""

    pool: str
    num_ready: int
    oldest_at: Micros | None
    num_bots: int
    num_busy: int
    wanted_bots: int
    wait_p50_s: float | None
    wait_p95_s: float | None


class PoolLoads(Struct, frozen=True):
    pools: list[PoolLoad]
