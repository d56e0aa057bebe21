"""The secrets of an installation, and what is signed with them. They are never logged and never leave the servers."""

from __future__ import annotations

import secrets

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import server_keys as stored

_KEY_BYTES = 32


class Keys(Struct, frozen=True, repr_omit_defaults=True):
    """``run_token`` signs runs, ``secret`` digests of requests, ``bot`` bots' credentials, ``cursor`` cursors."""

    run_token: bytes
    secret: bytes
    bot: bytes
    cursor: bytes

    def __repr__(self) -> str:
        """Never shows a key."""
        return "Keys(...)"


def open_keys(db: Db, now: Micros) -> Keys:
    """The keys of the installation, made at its first start."""
    offered = [(name, secrets.token_bytes(_KEY_BYTES)) for name in Keys.__struct_fields__]

    def keep(tx: Tx) -> Keys:
        kept = stored.get_or_create(tx, offered, now)
        return Keys(**{name: kept[name] for name in Keys.__struct_fields__})

    return db.write(keep)
