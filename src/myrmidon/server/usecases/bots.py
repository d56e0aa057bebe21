"""Terminating and deleting bots, and counting their dimensions, the same way for every API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import json

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros, show_task
from myrmidon.scheduler import bot_end, terminate
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import Identity
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import write_and_assign
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot_event, task_queues
from myrmidon.store.views import pool_filter
from myrmidon.store.views.bot_history import HistoryEntry
from myrmidon.store.views.pool_filter import PoolFilter

MAX_REASON_CHARS = 1000
DIMENSIONS_CACHE_TIME: Micros = 10 * SECOND
_MAX_CACHED_POOLS = 1000
_LAST_ID = (1 << 63) - 1
_DELETED = "bot_deleted"


async def terminate_bot(context: ServerContext, bot_id: str, reason: str = "", *, who: str = "") -> str:
    """Submit the task that makes a bot finish its runs and exit; return its id.

    A bot that has such a task pending gets no second one: the pending one's id is returned. NotFound if there is no
    such bot.
    """
    now = context.now()
    group_id = await context.groups.id_of(context.settings.default_group, now)
    submit = partial(
        terminate.terminate_bot,
        bot_id=bot_id,
        group_id=group_id,
        task_id=context.ids.next(now),
        reason=reason[:MAX_REASON_CHARS],
        authenticated=who,
        now=now,
        ids=context.ids,
        rules=context.rules,
    )
    task_id = await write_and_assign(context, submit)
    context.hub.recheck(bot_id)
    return show_task(task_id)


async def delete_bot(context: ServerContext, bot_id: str, *, force: bool) -> None:
    """Delete a bot; its events are kept. Idempotent; NotFound if the bot never existed.

    WrongState without ``force`` if the bot is alive.
    """
    now = context.now()

    def delete(tx: Tx) -> None:
        try:
            bot_end.delete_bot(tx, bot_id, now=now, ids=context.ids, rules=context.rules, only_dead=not force)
        except NotFound:
            newest = bot_event.read(tx, bot_id, before=_LAST_ID, n=1)
            if not newest or newest[0][2] != _DELETED:
                raise

    await context.db.write(delete)
    context.hub.forget(bot_id)


async def count_dimensions(
    context: ServerContext, who: Identity, pool: str | None
) -> tuple[dict[str, dict[str, int]], Micros]:
    """How many bots of a pool, or of all pools that the caller may see, have each value of each dimension; and when
    they were counted.

    Counts are cached for DIMENSIONS_CACHE_TIME.
    """
    now, cache, visible = context.now(), context.caches.dimension_counts, visible_pools(context, who)
    cached = cache.get((pool, visible))
    if cached is None or now - cached[0] > DIMENSIONS_CACHE_TIME:
        rows = await context.db.read(partial(_count_dimensions, pool=pool, visible=visible))
        if len(cache) > _MAX_CACHED_POOLS:
            cache.clear()
        cached = cache[pool, visible] = (now, rows)
    counts: dict[str, dict[str, int]] = {}
    for key, value, num_bots in cached[1]:
        counts.setdefault(key, {})[value] = num_bots
    return counts, cached[0]


def _count_dimensions(tx: Tx, pool: str | None, visible: PoolFilter | None) -> list[tuple[str, str, int]]:
    if visible is None:
        return task_queues.count_dimensions(tx, pool=pool)
    if pool is None:
        return pool_filter.count_dimensions(tx, visible)
    return pool_filter.count_dimensions(tx, PoolFilter(frozenset({pool}))) if visible.allows(pool) else []


def is_visible(dimensions: str | None, visible: PoolFilter | None) -> bool:
    """Whether a caller may see a bot with these stored dimensions."""
    return visible is None or bool(visible_dimensions(dimensions or "{}", visible).get("pool"))


def visible_dimensions(dimensions: str, visible: PoolFilter | None) -> dict[str, list[str]]:
    """The stored dimensions of a bot, without pools that the caller may not see."""
    found = json.decode(dimensions, type=dict[str, list[str]])
    if visible is not None and "pool" in found:
        found["pool"] = [pool for pool in found["pool"] if visible.allows(pool)]
    return found


def visible_events(events: Sequence[HistoryEntry], scope: int | None, visible: PoolFilter | None) -> list[HistoryEntry]:
    """Those of a bot's events that the caller may see: of runs in its resource group ``scope``, and of the bot itself
    while it was in a visible pool."""
    return [
        event
        for event in events
        if (
            scope in (None, event.resource_group_id)
            if event.task_id is not None
            else is_visible(event.dimensions, visible)
        )
    ]
