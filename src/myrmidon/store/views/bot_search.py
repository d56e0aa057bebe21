"""Bots by their dimensions and by what is true of them, page by page; and how many there are.

As in filters.py, statements are put together from a closed set of conditions; what varies is a parameter.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.store.engine.db import Tx


class BotSearch(Struct, frozen=True, kw_only=True):
    """Which bots: with at least one dimension of every term, and what must be true or false of them."""

    terms: Sequence[Sequence[str]] = ()
    dead: bool | None = None
    quarantined: bool | None = None
    maintenance: bool | None = None
    busy: bool | None = None


_BUSY = "EXISTS (SELECT 1 FROM task_runs u WHERE u.bot_id = b.id AND u.alarm_at IS NOT NULL)"
_BOT_FACTS = {
    "dead": ("b.alive = 0", "b.alive = 1"),
    "quarantined": ("b.quarantined IS NOT NULL", "b.quarantined IS NULL"),
    "maintenance": ("b.maintenance IS NOT NULL", "b.maintenance IS NULL"),
    "busy": (_BUSY, f"NOT {_BUSY}"),
}


def _bot_conditions(search: BotSearch) -> tuple[list[str], dict[str, object]]:
    where, given = ["1 = 1"], dict[str, object]()
    for name, (true, false) in _BOT_FACTS.items():
        asked = getattr(search, name)
        if asked is not None:
            where.append(true if asked else false)
    for number, term in enumerate(search.terms):
        where.append(
            f"EXISTS (SELECT 1 FROM bot_dimensions d{number} WHERE d{number}.bot_id = b.id"
            f" AND d{number}.dimension {{in_text:term{number}}})"
        )
        given[f"term{number}"] = list(term)
    return where, given


def bots(tx: Tx, search: BotSearch, *, after: str, n: int) -> list[str]:
    """The ids of a page of bots, in their order."""
    where, given = _bot_conditions(search)
    sql = f"SELECT b.id FROM bots b WHERE b.id > :after AND {' AND '.join(where)} ORDER BY b.id LIMIT :n"
    return [row[0] for row in tx.all(sql, after=after, n=n, **given)]


class BotNumbers(Struct, frozen=True):
    count: int
    dead: int
    quarantined: int
    maintenance: int
    busy: int


def count_bots(tx: Tx, search: BotSearch) -> BotNumbers:
    """How many bots a search finds, and how many of them are dead, put aside, or at work."""
    where, given = _bot_conditions(search)
    sums = ", ".join(f"SUM(CASE WHEN {true} THEN 1 ELSE 0 END)" for true, _ in _BOT_FACTS.values())
    found = tx.all(f"SELECT COUNT(*), {sums} FROM bots b WHERE {' AND '.join(where)}", **given)
    return BotNumbers(*(int(value or 0) for value in found[0]))
