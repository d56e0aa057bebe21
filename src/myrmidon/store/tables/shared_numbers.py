"""Named numbers that all servers share: counters, positions, times. A number is also a lock."""

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_ROWS = Insert("shared_numbers", "name, value")
READ = "SELECT value FROM shared_numbers WHERE name = :name"
LOCK = "SELECT value FROM shared_numbers WHERE name = :name {for_update}"
PUT = "UPDATE shared_numbers SET value = :value WHERE name = :name"


def read(tx: Tx, name: str) -> int | None:
    row = tx.one(READ, name=name)
    return row[0] if row else None


def lock(tx: Tx, name: str) -> int:
    """Lock a number until the commit; its value, 0 when it is new."""
    row = tx.one(LOCK, name=name)
    if row is None:
        tx.insert_new(_ROWS, [(name, 0)])
        row = tx.one(LOCK, name=name)
    return row[0] if row else 0


def put(tx: Tx, name: str, value: int) -> None:
    """Set a number that this transaction has locked."""
    tx.run(PUT, name=name, value=value)
