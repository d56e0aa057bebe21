"""Counts submitted and ended tasks per minute, for the charts of the web page.

Runs behind the work: a busy server counts a batch of events at a time, and charts are some seconds late.
"""

from __future__ import annotations

from functools import partial

from myrmidon.scheduler.policy import DAY
from myrmidon.server.context import ServerContext
from myrmidon.store.tables import activity

INTERVAL_S = 5.0
BATCH = 20_000
BATCHES = 5
"""In one pass."""
KEPT = 8 * DAY
"""A day longer than the longest chart."""


async def count_activity(context: ServerContext) -> int:
    """Count new events; how many positions were passed. Safe on several servers at once: each event counts once."""
    passed = 0
    for _ in range(BATCHES):
        after, until = await context.db.read(partial(activity.uncounted, n=BATCH))
        if after == until:
            break
        counts = await context.db.read(partial(activity.count, after=after, until=until))
        oldest = context.now() - KEPT
        kept = [row for row in counts if row[0] >= oldest]
        if not await context.db.write(partial(activity.add, counts=kept, after=after, until=until)):
            break
        passed += abs(until - after)
    if passed:
        await context.db.write(partial(activity.delete_old, before=context.now() - KEPT))
    return passed
