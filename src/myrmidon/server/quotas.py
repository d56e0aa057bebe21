"""Quotas: how much a resource group may have waiting.

Counting rows for every submit would cost more than the submit, so what is known is a few seconds old and what was let
in since is added to it. A group can thus go a little over its quota when several servers let it in at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct

from myrmidon.model.errors import QuotaExceeded
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.settings import Quota, Settings
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import metrics

T = TypeVar("T")

COUNT_MAX_AGE: Micros = 5 * SECOND


class ReadTransaction(Protocol):
    """How the database is asked."""

    def __call__(self, fn: Callable[[Tx], T], /) -> Awaitable[T]: ...


class Usage(Struct):
    """What a group had waiting when it was last counted, and what was let in that may not be in that count.

    Of the new ones, ``stored`` are those that are on disk by now: the next count has them.
    """

    counted_at: Micros = 0
    tasks: int = 0
    num_bytes: int = 0
    reserved_tasks: int = 0
    reserved_bytes: int = 0
    stored_tasks: int = 0
    stored_bytes: int = 0
    counting: bool = False

    def fits(self, quota: Quota, tasks: int, num_bytes: int) -> bool:
        return (
            self.tasks + self.reserved_tasks + tasks <= quota.pending_tasks
            and self.num_bytes + self.reserved_bytes + num_bytes <= quota.pending_bytes
        )


class Quotas:
    """The quotas of one server."""

    def __init__(self, settings: Settings, read: ReadTransaction, now: Callable[[], Micros]) -> None:
        self._settings = settings
        self._read = read
        self._now = now
        self._usage: dict[int, Usage] = {}
        self._counts: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def reserve(
        self,
        group: str,
        group_id: int,
        *,
        tasks: int,
        num_bytes: int,
        known: Callable[[Tx], int],
    ) -> AsyncIterator[None]:
        """Room for these tasks while they are stored; QuotaExceeded when there is none.

        ``known`` counts those that an earlier call has stored: they need no room, and whoever asks for them again
        must learn that they exist. It is asked only when there is too little room for all.
        """
        try:
            usage = await self._reserve(group, group_id, tasks, num_bytes)
        except QuotaExceeded:
            new = tasks - await self._read(known)
            if new == tasks:
                raise
            if new == 0:
                yield
                return
            tasks, num_bytes = new, num_bytes * new // tasks
            usage = await self._reserve(group, group_id, tasks, num_bytes)
        try:
            yield
        finally:
            usage.stored_tasks += tasks
            usage.stored_bytes += num_bytes

    async def _reserve(self, group: str, group_id: int, tasks: int, num_bytes: int) -> Usage:
        usage = self._usage.get(group_id)
        if usage is None:
            usage = self._usage[group_id] = Usage()
            await self._count(group_id, usage)
        quota = self._settings.quota_of(group)
        old = usage.counted_at + COUNT_MAX_AGE <= self._now()
        if old and not usage.fits(quota, tasks, num_bytes):
            await self._count(group_id, usage)
        elif old:
            self._count_in_background(group_id, usage)
        if not usage.fits(quota, tasks, num_bytes):
            raise QuotaExceeded(
                f"The resource group {group} has {usage.tasks + usage.reserved_tasks} tasks"
                f" ({usage.num_bytes + usage.reserved_bytes} bytes) waiting; it may have {quota.pending_tasks}"
                f" ({quota.pending_bytes} bytes)."
            )
        usage.reserved_tasks += tasks
        usage.reserved_bytes += num_bytes
        return usage

    async def _count(self, group_id: int, usage: Usage) -> None:
        """What is stored while the count goes on may be in it or not: it is counted twice rather than never."""
        began, tasks, num_bytes = self._now(), usage.stored_tasks, usage.stored_bytes
        found = await self._read(lambda tx: metrics.pending(tx, group_id))
        usage.counted_at, usage.tasks, usage.num_bytes = began, found.tasks, found.num_bytes
        # Another count may have ended meanwhile and taken its part already.
        tasks, num_bytes = min(tasks, usage.stored_tasks), min(num_bytes, usage.stored_bytes)
        usage.stored_tasks -= tasks
        usage.reserved_tasks -= tasks
        usage.stored_bytes -= num_bytes
        usage.reserved_bytes -= num_bytes

    def _count_in_background(self, group_id: int, usage: Usage) -> None:
        """Nobody waits for it: the next submits go by what is known."""
        if usage.counting:
            return
        usage.counting = True
        counting = asyncio.get_running_loop().create_task(self._count(group_id, usage))
        self._counts.add(counting)
        counting.add_done_callback(partial(self._on_counted, usage))

    def _on_counted(self, usage: Usage, counting: asyncio.Task[None]) -> None:
        """A count that failed is made again by the next submit; the database's trouble is told elsewhere."""
        self._counts.discard(counting)
        usage.counting = False
        if not counting.cancelled():
            counting.exception()
