"""Sessions of browsers. The cookie's text has 256 random bits, and only its digest is stored."""

from collections.abc import Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Session(Struct, frozen=True, kw_only=True):
    """One session; ``seen_at`` is the time of its last call, to the minute."""

    id_hash: str
    identity: str
    auth_time: Micros
    created_at: Micros
    seen_at: Micros
    expires_at: Micros
    revoked_at: Micros | None = None
    address: str
    agent: str


_COLUMNS = ", ".join(Session.__struct_fields__)
_SESSIONS = Insert("sessions", _COLUMNS)
READ = f"SELECT {_COLUMNS} FROM sessions WHERE id_hash = :id"
TOUCH = "UPDATE sessions SET seen_at = :now WHERE id_hash = :id AND seen_at < :now"
REVOKE = "UPDATE sessions SET revoked_at = :now WHERE id_hash {in_text:ids} AND revoked_at IS NULL"
OLDER = """
    SELECT id_hash FROM sessions WHERE identity = :identity AND revoked_at IS NULL AND expires_at > :now
     ORDER BY created_at DESC, id_hash LIMIT 100 OFFSET :keep
"""
DELETE_EXPIRED = "DELETE FROM sessions WHERE expires_at < :before"


def insert(tx: Tx, session: Session) -> None:
    tx.insert(_SESSIONS, [structs.astuple(session)])


def read(tx: Tx, id_hash: str) -> Session | None:
    row = tx.one(READ, id=id_hash)
    return Session(**dict(zip(Session.__struct_fields__, row, strict=True))) if row else None


def touch(tx: Tx, id_hash: str, now: Micros) -> None:
    """Record that a session is in use."""
    tx.run(TOUCH, id=id_hash, now=now)


def revoke(tx: Tx, id_hashes: Sequence[str], now: Micros) -> int:
    """End sessions; how many were not ended before."""
    return tx.run(REVOKE, ids=list(id_hashes), now=now) if id_hashes else 0


def older(tx: Tx, identity: str, now: Micros, *, keep: int) -> list[str]:
    """The valid sessions of an identity besides its newest ``keep`` ones."""
    return [row[0] for row in tx.all(OLDER, identity=identity, now=now, keep=keep)]


def delete_expired(tx: Tx, before: Micros) -> None:
    """Delete sessions that expired before this time."""
    tx.run(DELETE_EXPIRED, before=before)
