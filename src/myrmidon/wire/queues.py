"""Queues and pools: the bodies, queries and answers of /api/v1/queues and /api/v1/pools."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.wire.fields import HexId, Micros


class QueueInfo(Struct, frozen=True):
    """Tasks of one resource group that require the same dimensions; ``num_bots`` is how many bots could run them."""

    id: HexId
    group: str
    pool: str
    dimensions: dict[str, list[str]]
    num_ready: int
    oldest_at: Micros | None
    num_bots: int
    used_at: Micros


class QueueList(Struct, frozen=True):
    queues: list[QueueInfo]
    cursor: str | None


class PoolInfo(Struct, frozen=True):
    name: str
    task_order: str
    ageing: Micros
    num_bots: int


class PoolList(Struct, frozen=True):
    pools: list[PoolInfo]
    cursor: str | None


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """``ageing``: a task gains one step of priority per so many microseconds of waiting; never if absent or 0."""

    task_order: Literal["fifo", "lifo"] = "fifo"
    ageing: Annotated[int, Meta(ge=0, le=30 * 86_400_000_000)] | None = None
