"""Single numbers that all servers share: counters, epochs, the last sign of life of the service."""

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_MARKS = Insert("marks", "name, value")
READ = "SELECT value FROM marks WHERE name = :name"
LOCK = "SELECT value FROM marks WHERE name = :name {for_update}"
PUT = "UPDATE marks SET value = :value WHERE name = :name"


def read(tx: Tx, name: str) -> int | None:
    row = tx.one(READ, name=name)
    return row[0] if row else None


def lock(tx: Tx, name: str) -> int:
    """The mark's value, 0 when it is new; others wait for this transaction."""
    row = tx.one(LOCK, name=name)
    if row is None:
        tx.insert_new(_MARKS, [(name, 0)])
        row = tx.one(LOCK, name=name)
    return row[0] if row else 0


def put(tx: Tx, name: str, value: int) -> None:
    """Write a mark that this transaction has locked."""
    tx.run(PUT, name=name, value=value)
