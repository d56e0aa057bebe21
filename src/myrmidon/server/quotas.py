"""Enforces quotas: how many tasks and bytes a resource group may have waiting for bots.

Counting rows for every submit would cost more than the submit. So a count is used for a few seconds, and what this
server has accepted since is added to it. A group can exceed its quota a little by submitting to several servers.
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
"""After this time the next submit starts a new count."""


class ReadTransaction(Protocol):
    """Runs a function in a read transaction and returns its result."""

    def __call__(self, fn: Callable[[Tx], T], /) -> Awaitable[T]: ...


class Usage(Struct):
    """What a group had waiting at the last count, and what was accepted since."""

    counted_at: Micros = 0
    tasks: int = 0
    num_bytes: int = 0
    reserved_tasks: int = 0
    """Accepted tasks that the last count may not include."""
    reserved_bytes: int = 0
    stored_tasks: int = 0
    """Those of the reserved tasks that are on disk: the next count includes them."""
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
        count_stored: Callable[[Tx], int],
    ) -> AsyncIterator[None]:
        """Reserve quota for tasks that are stored inside the ``async with``; QuotaExceeded if there is not enough.

        ``count_stored`` counts those that an earlier call with the same request keys has stored. They need no quota, so
        that a repeated submit returns them even when the quota is used up. It is called only if the quota does not
        suffice for all tasks.
        """
        try:
            usage = await self._reserve(group, group_id, tasks, num_bytes)
        except QuotaExceeded:
            new = tasks - await self._read(count_stored)
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
        outdated = usage.counted_at + COUNT_MAX_AGE <= self._now()
        if outdated and not usage.fits(quota, tasks, num_bytes):
            await self._count(group_id, usage)
        elif outdated:
            self._count_in_background(group_id, usage)
        if not usage.fits(quota, tasks, num_bytes):
            raise QuotaExceeded(
                f"Resource group {group} has {usage.tasks + usage.reserved_tasks} waiting tasks"
                f" ({usage.num_bytes + usage.reserved_bytes} bytes); its quota is {quota.pending_tasks} tasks"
                f" ({quota.pending_bytes} bytes)."
            )
        usage.reserved_tasks += tasks
        usage.reserved_bytes += num_bytes
        return usage

    async def _count(self, group_id: int, usage: Usage) -> None:
        """Count the waiting tasks, and release the reservations of those that were stored before the count began.

        Tasks that are stored during the count may or may not be included: their reservations stay until the next one.
        """
        began, tasks, num_bytes = self._now(), usage.stored_tasks, usage.stored_bytes
        pending = await self._read(lambda tx: metrics.pending(tx, group_id))
        usage.counted_at, usage.tasks, usage.num_bytes = began, pending.tasks, pending.num_bytes
        # A concurrent count may have ended meanwhile and released some of them.
        tasks, num_bytes = min(tasks, usage.stored_tasks), min(num_bytes, usage.stored_bytes)
        usage.stored_tasks -= tasks
        usage.reserved_tasks -= tasks
        usage.stored_bytes -= num_bytes
        usage.reserved_bytes -= num_bytes

    def _count_in_background(self, group_id: int, usage: Usage) -> None:
        """Start a count; until it ends, submits use the previous one."""
        if usage.counting:
            return
        usage.counting = True
        counting = asyncio.get_running_loop().create_task(self._count(group_id, usage))
        self._counts.add(counting)
        counting.add_done_callback(partial(self._on_counted, usage))

    def _on_counted(self, usage: Usage, counting: asyncio.Task[None]) -> None:
        """A count that failed is repeated by the next submit, which also reports the error of the database."""
        self._counts.discard(counting)
        usage.counting = False
        if not counting.cancelled():
            counting.exception()  # marks it as retrieved; asyncio would log it otherwise
