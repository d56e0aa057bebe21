"""Enforces quotas: how many tasks and bytes a resource group may have waiting for bots, and bytes of files stored.

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

from myrmidon.model.errors import QuotaExceeded, StorageQuotaExceeded
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.settings import Quota, Settings
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import stored_file
from myrmidon.store.views import metrics

T = TypeVar("T")

COUNT_MAX_AGE: Micros = 5 * SECOND
"""After this time the next submit starts a new count."""
STORAGE_COUNT_MAX_AGE: Micros = 60 * SECOND
"""The same for files: a sum over all files of a group."""


class ReadTransaction(Protocol):
    """Runs a function in a read transaction and returns its result."""

    def __call__(self, fn: Callable[[Tx], T], /) -> Awaitable[T]: ...


class Usage(Struct):
    """The quota of a group, what it had waiting at the last count, and what was accepted since."""

    quota: Quota = Quota()
    counted_at: Micros = 0
    tasks: int = 0
    num_bytes: int = 0
    reserved_tasks: int = 0
    """Accepted tasks that the last count may not include."""
    reserved_bytes: int = 0
    stored_tasks: int = 0
    """The reserved tasks that are on disk: the next count includes them."""
    stored_bytes: int = 0
    counting: bool = False

    def fits(self, tasks: int, num_bytes: int) -> bool:
        return (
            self.tasks + self.reserved_tasks + tasks <= self.quota.pending_tasks
            and self.num_bytes + self.reserved_bytes + num_bytes <= self.quota.pending_bytes
        )


class Reservation:
    """Quota for tasks that are being stored. ``end`` it when they are on disk, or are not stored after all."""

    __slots__ = ("_num_bytes", "_tasks", "_usage")

    def __init__(self, usage: Usage, tasks: int, num_bytes: int) -> None:
        self._usage, self._tasks, self._num_bytes = usage, tasks, num_bytes
        usage.reserved_tasks += tasks
        usage.reserved_bytes += num_bytes

    def end(self) -> None:
        """From now on the next count includes the tasks."""
        self._usage.stored_tasks += self._tasks
        self._usage.stored_bytes += self._num_bytes


class Quotas:
    """The quotas of one server."""

    def __init__(self, settings: Settings, read: ReadTransaction) -> None:
        self._settings = settings
        self._read = read
        self._usage: dict[int, Usage] = {}
        self._counts: set[asyncio.Task[None]] = set()

    def reserve_at_once(self, group_id: int, *, tasks: int, num_bytes: int, now: Micros) -> Reservation | None:
        """Reserve quota if there is enough by the last count; else ``reserve`` has to count first."""
        usage = self._usage.get(group_id)
        if usage is None or not usage.fits(tasks, num_bytes):
            return None
        if usage.counted_at + COUNT_MAX_AGE <= now:
            self._count_in_background(group_id, usage, now)
        return Reservation(usage, tasks, num_bytes)

    async def reserve(
        self,
        group: str,
        group_id: int,
        *,
        tasks: int,
        num_bytes: int,
        now: Micros,
        count_stored: Callable[[Tx], int],
    ) -> Reservation:
        """Reserve quota for tasks, until the reservation is ended; QuotaExceeded if there is not enough.

        ``count_stored`` counts those that an earlier call with the same request keys has stored. They need no quota, so
        that a repeated submit returns them even when the quota is used up. It is called only if the quota does not
        suffice for all tasks.
        """
        try:
            return await self._reserve(group, group_id, tasks, num_bytes, now)
        except QuotaExceeded:
            new = tasks - await self._read(count_stored)
            if new == tasks:
                raise
            return await self._reserve(group, group_id, new, num_bytes * new // tasks, now)

    async def _reserve(self, group: str, group_id: int, tasks: int, num_bytes: int, now: Micros) -> Reservation:
        if tasks == 0:
            return Reservation(Usage(), 0, 0)
        usage = self._usage.get(group_id)
        if usage is None:
            usage = self._usage[group_id] = Usage(self._settings.quota_of(group))
            await self._count(group_id, usage, now)
        outdated = usage.counted_at + COUNT_MAX_AGE <= now
        if outdated and not usage.fits(tasks, num_bytes):
            await self._count(group_id, usage, now)
        elif outdated:
            self._count_in_background(group_id, usage, now)
        if not usage.fits(tasks, num_bytes):
            raise QuotaExceeded(
                f"Resource group {group} has {usage.tasks + usage.reserved_tasks} waiting tasks"
                f" ({usage.num_bytes + usage.reserved_bytes} bytes); its quota is {usage.quota.pending_tasks} tasks"
                f" ({usage.quota.pending_bytes} bytes)."
            )
        return Reservation(usage, tasks, num_bytes)

    async def _count(self, group_id: int, usage: Usage, now: Micros) -> None:
        """Count the waiting tasks, and release the reservations of those that were stored before the count began.

        Tasks that are stored during the count may or may not be included: their reservations stay until the next one.
        """
        tasks, num_bytes = usage.stored_tasks, usage.stored_bytes
        pending = await self._read(lambda tx: metrics.pending(tx, group_id))
        usage.counted_at, usage.tasks, usage.num_bytes = now, pending.tasks, pending.num_bytes
        # A concurrent count may have ended meanwhile and released some of them.
        tasks, num_bytes = min(tasks, usage.stored_tasks), min(num_bytes, usage.stored_bytes)
        usage.stored_tasks -= tasks
        usage.reserved_tasks -= tasks
        usage.stored_bytes -= num_bytes
        usage.reserved_bytes -= num_bytes

    def _count_in_background(self, group_id: int, usage: Usage, now: Micros) -> None:
        """Start a count; until it ends, submits use the previous one."""
        if usage.counting:
            return
        usage.counting = True
        counting = asyncio.get_running_loop().create_task(self._count(group_id, usage, now))
        self._counts.add(counting)
        counting.add_done_callback(partial(self._on_counted, usage))

    def _on_counted(self, usage: Usage, counting: asyncio.Task[None]) -> None:
        """A count that failed is repeated by the next submit, which also reports the error of the database."""
        self._counts.discard(counting)
        usage.counting = False
        if not counting.cancelled():
            counting.exception()  # marks it as retrieved; asyncio would log it otherwise


class StorageUsage(Struct):
    """What a group had stored at the last count, and what was stored since."""

    counted_at: Micros = 0
    stored: int = 0
    added: int = 0
    """Bytes that were stored since the last count began."""
    arriving: int = 0
    """Bytes of uploads that have not ended."""

    @property
    def total(self) -> int:
        return self.stored + self.added + self.arriving


class Upload(Struct):
    """A file that arrives."""

    size: int = 0


class StorageQuotas:
    """The bytes of files that a resource group may have stored.

    A file that two groups have sent counts for both. As with tasks, a group can exceed its quota a little by uploads to
    several servers: what the others have stored is known after the next count.
    """

    def __init__(self, settings: Settings, read: ReadTransaction) -> None:
        self._settings = settings
        self._read = read
        self._usage: dict[int, StorageUsage] = {}

    @asynccontextmanager
    async def reserve(
        self, group: str, group_id: int, *, announced: int, now: Micros, has_file: Callable[[Tx], bool]
    ) -> AsyncIterator[Upload]:
        """Reserve quota for a file that is stored inside the ``async with``; StorageQuotaExceeded if it does not fit.

        ``announced`` is its size, or 0 if it becomes known only when the file has arrived; the caller sets the size of
        the ``Upload`` then. ``has_file`` says whether the group has the file already: sending it again needs no quota.
        """
        size = max(announced, 1)
        limit = self._settings.quota_of(group).stored_bytes
        usage = await self._counted(group_id, size, limit, now)
        if usage.total + size > limit and not await self._read(has_file):
            raise StorageQuotaExceeded(
                f"Resource group {group} has stored files of {usage.total} bytes; its quota is {limit} bytes, and this"
                f" file has {announced or 'more'}."
            )
        usage.arriving += size
        upload = Upload()
        try:
            yield upload
            usage.added += upload.size
        finally:
            usage.arriving -= size

    async def _counted(self, group_id: int, size: int, limit: int, now: Micros) -> StorageUsage:
        """The usage of a group, counted again if it is old, or if the file does not fit by a count that is not new."""
        usage = self._usage.setdefault(group_id, StorageUsage())
        age = now - usage.counted_at
        if age > STORAGE_COUNT_MAX_AGE or (age > COUNT_MAX_AGE and usage.total + size > limit):
            added = usage.added
            usage.stored = await self._read(lambda tx: stored_file.bytes_of_group(tx, group_id))
            usage.counted_at = now
            usage.added = max(0, usage.added - added)
        return usage
