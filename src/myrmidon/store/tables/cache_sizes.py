"""Known sizes of named caches by pool and operating system, so that a bot can free space before a task."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate


class CacheSize(Struct, frozen=True):
    """The last known size of a named cache."""

    pool: str
    os: str
    name: str
    size: int
    measured_at: Micros


_COLUMNS = "pool, os, name, size, measured_at"
_ROWS = Insert("cache_sizes", _COLUMNS)
ALL = f"SELECT {_COLUMNS} FROM cache_sizes ORDER BY pool, os, name"
DELETE_OLD = "DELETE FROM cache_sizes WHERE measured_at < :before"
_UPDATE = RowUpdate(
    "cache_sizes", key="pool, os, name", sets="size, measured_at", types="text, text, text, bigint, bigint"
)
BOT_STATES = "SELECT id, dimensions, state FROM bots WHERE alive = 1 AND id > :after ORDER BY id LIMIT :n"
PAGE = 500


def read_all(tx: Tx) -> list[CacheSize]:
    return [CacheSize(*row) for row in tx.all(ALL)]


def save(tx: Tx, sizes: Sequence[CacheSize]) -> None:
    """Store new sizes; they replace those that are stored."""
    rows = [(one.pool, one.os, one.name, one.size, one.measured_at) for one in sizes]
    if rows:
        tx.insert_new(_ROWS, rows)
        tx.update_rows(_UPDATE, rows)


def delete_old(tx: Tx, before: Micros) -> int:
    """Delete sizes that were last measured before a time."""
    return tx.run(DELETE_OLD, before=before)


def bot_states(tx: Tx) -> Iterator[tuple[str, str, str]]:
    """Id, dimensions and state of every bot that is alive."""
    after = ""
    while page := tx.all(BOT_STATES, after=after, n=PAGE):
        yield from ((row[0], row[1], row[2]) for row in page)
        after = page[-1][0]
