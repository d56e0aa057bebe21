"""How large named caches get, by pool and system: what a bot makes room for before a task that wants one."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate


class Hint(Struct, frozen=True):
    pool: str
    os: str
    name: str
    size: int
    measured_at: Micros


_COLUMNS = "pool, os, name, size, measured_at"
_HINTS = Insert("cache_hints", _COLUMNS)
ALL = f"SELECT {_COLUMNS} FROM cache_hints ORDER BY pool, os, name"
FORGET = "DELETE FROM cache_hints WHERE measured_at < :before"
_UPDATE = RowUpdate(
    "cache_hints", key="pool, os, name", sets="size, measured_at", types="text, text, text, bigint, bigint"
)
SAID = "SELECT id, dimensions, state FROM bots WHERE alive = 1 AND id > :after ORDER BY id LIMIT :n"
PAGE = 500


def every(tx: Tx) -> list[Hint]:
    return [Hint(*row) for row in tx.all(ALL)]


def put(tx: Tx, hints: Sequence[Hint]) -> None:
    """Write down new sizes; of a cache that is known, the new one counts."""
    rows = [(one.pool, one.os, one.name, one.size, one.measured_at) for one in hints]
    if rows:
        tx.insert_new(_HINTS, rows)
        tx.update_rows(_UPDATE, rows)


def forget(tx: Tx, before: Micros) -> int:
    """Drop sizes that no bot has confirmed since then."""
    return tx.run(FORGET, before=before)


def said(tx: Tx) -> Iterator[tuple[str, str, str]]:
    """Id, dimensions and state of every living bot."""
    after = ""
    while page := tx.all(SAID, after=after, n=PAGE):
        yield from ((row[0], row[1], row[2]) for row in page)
        after = page[-1][0]
