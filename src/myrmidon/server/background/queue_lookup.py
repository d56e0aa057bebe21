"""Looks up which bots serve queues that are new to this server, and wakes them.

A server learns of the queues of a bot when the bot connects. A queue that is created later is looked up when it gets
tasks; a sweep looks for those whose notification was lost.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from myrmidon.model.errors import StoreError
from myrmidon.model.ids import Micros, first_id_at
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_queues

log = structlog.get_logger("background")

_BATCH = 1000
_COMMIT_WITHIN: Micros = 60 * SECOND
"""A queue is visible at most this long after the time in its id."""


class QueueLookup:
    """The lookups of one server, and their state."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._waiting: dict[int, int] = {}
        """Queues whose bots are being looked up, and the number of tasks that wait in each."""
        self._since: Micros = context.now()
        """Queues that were created before are known here, except those whose transaction was not committed then."""
        self._tasks: set[asyncio.Task[None]] = set()

    def on_new_queue(self, queue: int, num_tasks: int) -> None:
        """Called when a queue that is not known here gets tasks: look up which bots serve it, and wake some."""
        num_before = self._waiting.get(queue)
        self._waiting[queue] = (num_before or 0) + num_tasks
        if num_before is None:
            task = asyncio.get_running_loop().create_task(self._add_and_wake(queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def add_missed(self) -> None:
        """Look up the bots of new queues that are not known here, in case their notification was lost."""
        context, now = self._context, self._context.now()
        after = first_id_at(self._since - _COMMIT_WITHIN)
        while found := await context.db.read(partial(task_queues.created_after, queue=after, n=_BATCH)):
            for queue in found:
                if not context.hub.knows(queue):
                    await self._add(queue)
            after = found[-1]
        self._since = now

    async def _add_and_wake(self, queue: int) -> None:
        try:
            await self._add(queue)
        except StoreError as error:
            log.warning("lookup of a new queue's bots failed", code=error.code, error=error.message)
            self._waiting.pop(queue)
            return
        self._context.hub.wake(queue, self._waiting.pop(queue))

    async def _add(self, queue: int) -> None:
        bot_ids, of_functions = await self._context.db.read(partial(_read_queue, queue=queue))
        self._context.hub.add_queue(queue, bot_ids, of_functions=of_functions)


def _read_queue(tx: Tx, queue: int) -> tuple[list[str], bool]:
    """The bots that match a queue, and whether it holds functions."""
    found = task_queues.read(tx, [queue]).get(queue)
    return task_queues.bots_of_queue(tx, queue), found is not None and found.of_functions
