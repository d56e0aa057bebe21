"""Secrets that all servers share; the first server makes them."""

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_KEYS = Insert("server_keys", "name, value, created_at")
ALL = "SELECT name, value FROM server_keys"


def keep(tx: Tx, offered: Sequence[tuple[str, bytes]], now: Micros) -> dict[str, bytes]:
    """The keys of this installation by name; those that nobody has made yet are taken from ``offered``.

    Servers that start at the same time all read back what the fastest one stored.
    """
    tx.insert_new(_KEYS, [(name, value, now) for name, value in offered])
    return {name: bytes(value) for name, value in tx.all(ALL)}
