"""Estimates the sizes of named caches, which are sent along with tasks so that a bot can free disk space first.

A hint is the 95th percentile of the sizes that the live bots of a pool and operating system report. It is stored when
it has grown by a tenth or the stored value is a day old, and deleted when no bot has confirmed it for eight days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import json

from myrmidon.model import dimensions
from myrmidon.model.ids import Micros
from myrmidon.model.slice_validation import CACHE_NAME
from myrmidon.model.task_request import Properties
from myrmidon.scheduler.policy import DAY
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import cache_sizes as store
from myrmidon.store.tables.cache_sizes import CacheSize

MAX_AGE: Micros = 8 * DAY
_MAX_NAME_CHARS = 128
_MAX_SIZE = 1 << 50


def size_hints_for(context: ServerContext, os: str) -> Callable[[Properties], dict[str, int]]:
    """A function that returns the known cache sizes of a task, for bots with this operating system.

    If a size is not known for this system, it is the largest one of all systems.
    """

    def hints(properties: Properties) -> dict[str, int]:
        pool = properties.dimensions.get("pool", [""])[0]
        same_os = context.caches.cache_sizes.get((pool, os), {})
        any_os = context.caches.cache_sizes.get((pool, ""), {})
        sizes = {cache.name: same_os.get(cache.name, any_os.get(cache.name)) for cache in properties.caches}
        return {name: size for name, size in sizes.items() if size is not None}

    return hints


async def load(context: ServerContext) -> None:
    """Load the stored sizes into memory, with the largest one of all systems under the system ""."""
    hints: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for stored in await context.db.read(store.read_all):
        hints[stored.pool, stored.os][stored.name] = stored.size
        any_os = hints[stored.pool, ""]
        any_os[stored.name] = max(any_os.get(stored.name, 0), stored.size)
    context.caches.cache_sizes = dict(hints)


async def update(context: ServerContext) -> int:
    """Compute the sizes from the reports of all live bots and store those that have changed; how many these were."""
    now = context.now()
    recent = {bot.bot_id: bot.cache_sizes for bot in context.hub.bots.values() if bot.cache_sizes}
    reported = await context.db.read(partial(_reported_sizes, recent=recent))
    stored = {(size.pool, size.os, size.name): size for size in await context.db.read(store.read_all)}
    changed = [
        CacheSize(*key, size, now)
        for key, sizes in sorted(reported.items())
        if _should_store(stored.get(key), size := percentile_95(sizes), now)
    ]
    if changed or any(size.measured_at < now - MAX_AGE for size in stored.values()):
        await context.db.write(partial(_write, changed=changed, before=now - MAX_AGE))
    await load(context)
    return len(changed)


def _write(tx: Tx, changed: list[CacheSize], before: Micros) -> None:
    store.save(tx, changed)
    store.delete_old(tx, before)


def _should_store(stored: CacheSize | None, size: int, now: Micros) -> bool:
    return stored is None or size > stored.size * 11 // 10 or stored.measured_at < now - DAY


def percentile_95(sizes: Iterable[int]) -> int:
    """The smallest of the sizes that at least 95 % of them do not exceed."""
    ordered = sorted(sizes)
    return ordered[-(-len(ordered) * 95 // 100) - 1]


def _reported_sizes(tx: Tx, recent: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str, str], list[int]]:
    """The sizes by pool, system and cache name. ``recent`` has reports that are newer than the stored states."""
    sizes: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for bot_id, canonical, state in store.bot_states(tx):
        caches = {**_sizes_in_state(state), **recent.get(bot_id, {})}
        if not caches:
            continue
        values = dimensions.bot_sets(canonical)
        os = dimensions.os_family(values.get("os", frozenset()))
        for pool in values.get("pool", ()):
            for name, size in caches.items():
                if len(name) <= _MAX_NAME_CHARS and CACHE_NAME.fullmatch(name) and 0 <= size <= _MAX_SIZE:
                    sizes[pool, os, name].append(size)
    return sizes


def _sizes_in_state(state: str) -> dict[str, int]:
    """The cache sizes in a bot's state. Hooks can put anything into a state: values of other types are ignored."""
    decoded: Any = json.decode(state)
    named = decoded.get("named_caches") if isinstance(decoded, dict) else None
    if not isinstance(named, dict):
        return {}
    sizes = {name: size["size"] if isinstance(size, dict) and "size" in size else size for name, size in named.items()}
    return {name: size for name, size in sizes.items() if type(size) is int}
