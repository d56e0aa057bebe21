"""How large named caches get, so that a bot can make room before a task: measured at the bots, told to the next ones.

The size that 95 of 100 bots of a pool and system do not exceed. It is written down when it has grown by a tenth or
is a day old, and forgotten when no bot has confirmed it for eight days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import json

from myrmidon.model import dimensions
from myrmidon.model.ids import Micros
from myrmidon.model.task_request import Properties
from myrmidon.model.task_validation import CACHE_NAME
from myrmidon.scheduler.policy import DAY
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import cache_sizes as store
from myrmidon.store.tables.cache_sizes import CacheSize

MAX_AGE: Micros = 8 * DAY
_NAME_CHARS = 128
_LARGEST = 1 << 50


def size_hints_for(context: ServerContext, os: str) -> Callable[[Properties], dict[str, int]]:
    """For the tasks of a bot with this system: how large each of their caches gets, as far as that is known."""

    def hints(todo: Properties) -> dict[str, int]:
        pool = todo.dimensions.get("pool", [""])[0]
        known = context.caches.cache_sizes.get((pool, os), {})
        others = context.caches.cache_sizes.get((pool, ""), {})
        found = {cache.name: known.get(cache.name, others.get(cache.name)) for cache in todo.caches}
        return {name: size for name, size in found.items() if size is not None}

    return hints


async def load(context: ServerContext) -> None:
    """Know what is written down; under the system "" is the largest of all systems."""
    hints: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for one in await context.db.read(store.read_all):
        hints[one.pool, one.os][one.name] = one.size
        anywhere = hints[one.pool, ""]
        anywhere[one.name] = max(anywhere.get(one.name, 0), one.size)
    context.caches.cache_sizes = dict(hints)


async def update(context: ServerContext) -> int:
    """Ask what all bots have said of their caches, and write down what is new; how much that was."""
    now = context.now()
    lately = {seat.bot_id: seat.cache_sizes for seat in context.hub.bots.values() if seat.cache_sizes}
    sizes = await context.db.read(partial(_gather, lately=lately))
    known = {(one.pool, one.os, one.name): one for one in await context.db.read(store.read_all)}
    fresh = [
        CacheSize(*key, size, now)
        for key, found in sorted(sizes.items())
        if _is_news(known.get(key), size := percentile(found), now)
    ]
    if fresh or any(one.measured_at < now - MAX_AGE for one in known.values()):
        await context.db.write(partial(_write, fresh=fresh, before=now - MAX_AGE))
    await load(context)
    return len(fresh)


def _write(tx: Tx, fresh: list[CacheSize], before: Micros) -> None:
    store.save(tx, fresh)
    store.delete_old(tx, before)


def _is_news(known: CacheSize | None, size: int, now: Micros) -> bool:
    return known is None or size > known.size * 11 // 10 or known.measured_at < now - DAY


def percentile(sizes: Iterable[int]) -> int:
    """95 of 100 are no larger."""
    found = sorted(sizes)
    return found[-(-len(found) * 95 // 100) - 1]


def _gather(tx: Tx, lately: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str, str], list[int]]:
    sizes: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for bot_id, has, state in store.bot_states(tx):
        caches = {**_named(state), **lately.get(bot_id, {})}
        if not caches:
            continue
        sets = dimensions.bot_sets(has)
        os = dimensions.os_family(sets.get("os", frozenset()))
        for pool in sets.get("pool", ()):
            for name, size in caches.items():
                if len(name) <= _NAME_CHARS and CACHE_NAME.fullmatch(name) and 0 <= size <= _LARGEST:
                    sizes[pool, os, name].append(size)
    return sizes


def _named(state: str) -> dict[str, int]:
    """The sizes in a bot's state; it may be anything that the bot's hooks have put there."""
    said: Any = json.decode(state)
    named = said.get("named_caches") if isinstance(said, dict) else None
    if not isinstance(named, dict):
        return {}
    found = {name: size["size"] if isinstance(size, dict) and "size" in size else size for name, size in named.items()}
    return {name: size for name, size in found.items() if type(size) is int}
