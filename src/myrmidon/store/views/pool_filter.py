"""Bots by the pools that a caller may see."""

from msgspec import Struct

from myrmidon.store.engine.db import Tx


class PoolFilter(Struct, frozen=True):
    """Which pools: those named, or with ``excluded`` all others. A bot is in them if one of its pools is."""

    names: frozenset[str]
    excluded: bool = False

    def allows(self, pool: str) -> bool:
        return (pool in self.names) != self.excluded

    def hides(self, dimension: str) -> bool:
        """Whether a dimension (``key:value``) is another pool. A search for it must not find bots that are in both."""
        key, _, value = dimension.partition(":")
        return key == "pool" and not self.allows(value)


_IN_POOLS = "EXISTS (SELECT 1 FROM bot_dimensions p WHERE p.bot_id = b.id AND p.dimension {in_text:pools})"
_IN_OTHER_POOLS = """EXISTS (SELECT 1 FROM bot_dimensions p WHERE p.bot_id = b.id
    AND SUBSTR(p.dimension, 1, 5) = 'pool:' AND NOT (p.dimension {in_text:pools}))"""


def pool_condition(pools: PoolFilter | None) -> tuple[list[str], dict[str, object]]:
    """The condition that a bot ``b`` is in these pools, and its parameters; nothing if pools is None."""
    if pools is None:
        return [], {}
    return [_IN_OTHER_POOLS if pools.excluded else _IN_POOLS], {
        "pools": [f"pool:{name}" for name in sorted(pools.names)]
    }


COUNT_DIMENSIONS = f"""
    SELECT d.dimension, COUNT(*) FROM bots b JOIN bot_dimensions d ON d.bot_id = b.id
     WHERE {_IN_POOLS} GROUP BY d.dimension
"""
COUNT_OTHER_DIMENSIONS = f"""
    SELECT d.dimension, COUNT(*) FROM bots b JOIN bot_dimensions d ON d.bot_id = b.id
     WHERE {_IN_OTHER_POOLS} GROUP BY d.dimension
"""


def count_dimensions(tx: Tx, pools: PoolFilter) -> list[tuple[str, str, int]]:
    """Count like `task_queues.count_dimensions`, but only the bots in these pools. Their other pools are left out."""
    _, given = pool_condition(pools)
    rows = tx.all(COUNT_OTHER_DIMENSIONS if pools.excluded else COUNT_DIMENSIONS, **given)
    found = [(*row[0].split(":", 1), row[1]) for row in rows]
    return sorted(
        (key, value, count) for key, value, count in found if key != "id" and (key != "pool" or pools.allows(value))
    )
