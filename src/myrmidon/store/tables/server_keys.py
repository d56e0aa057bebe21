"""Secret keys that all servers share; the first server creates them."""

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_KEYS = Insert("server_keys", "name, value, created_at")
ALL = "SELECT name, value FROM server_keys"


def get_or_create(tx: Tx, offered: Sequence[tuple[str, bytes]], now: Micros) -> dict[str, bytes]:
    """The stored keys by name; a key that does not exist yet is created from ``offered``.

    Servers that start at the same time all get the keys that were stored first.
    """
    tx.insert_new(_KEYS, [(name, value, now) for name, value in offered])
    return {name: bytes(value) for name, value in tx.all(ALL)}
