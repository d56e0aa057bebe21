"""Bot zips: which ones there are, and the one that every bot shall run."""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store import marks
from myrmidon.store.db import Tx
from myrmidon.store.sql import Insert


class Release(Struct, frozen=True):
    """One bot zip, named by the digest of what is in it."""

    digest: str
    created_at: Micros
    active: int
    content: bytes

    def __repr__(self) -> str:
        return f"Release({self.digest[:12]}, active={self.active})"


_CHOICE = "bot_release"
_RELEASES = Insert("releases", "digest, created_at, active, canary_percent, content")
ACTIVE = "SELECT digest FROM releases WHERE active = 1"
READ = "SELECT digest, created_at, active, content FROM releases WHERE digest = :digest"
ACTIVATE = "UPDATE releases SET active = CASE WHEN digest = :digest THEN 1 ELSE 0 END"
OLD = "SELECT digest FROM releases WHERE active = 0 ORDER BY created_at DESC, digest LIMIT 1000"
DELETE = "DELETE FROM releases WHERE digest = :digest AND active = 0"
KEPT = 8
"""Older releases stay for a while: a bot may be on its way to one of them."""


def offer(tx: Tx, digest: str, content: bytes, now: Micros) -> str:
    """A server brings its zip along; the digest that all bots shall have.

    A zip that was never seen here becomes the one for all bots. A server of an older version that is
    started again beside a newer one does not turn the fleet back: it serves the newer zip too.
    """
    marks.lock(tx, _CHOICE)
    new = tx.insert_new(_RELEASES, [(digest, now, 0, 0, content)]) == 1
    current = active(tx)
    if current is None or (new and current != digest):
        activate(tx, digest)
        return digest
    return current


def active(tx: Tx) -> str | None:
    row = tx.one(ACTIVE)
    return row[0] if row else None


def activate(tx: Tx, digest: str) -> None:
    """Make one of the known zips that of all bots, and forget the oldest others."""
    tx.run(ACTIVATE, digest=digest)
    for (old,) in tx.all(OLD)[KEPT:]:
        tx.run(DELETE, digest=old)


def read(tx: Tx, digest: str) -> Release | None:
    row = tx.one(READ, digest=digest)
    return Release(row[0], row[1], row[2], bytes(row[3])) if row else None
