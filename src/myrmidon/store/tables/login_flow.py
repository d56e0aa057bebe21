"""Logins that were begun and not yet used. Only a digest of the secret part is stored."""

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

LINK = "link"
"""The kind of a login by a link that a command has printed."""


class LoginFlow(Struct, frozen=True, kw_only=True):
    """A login that was begun for ``identity``; it may be used once, until ``expires_at``."""

    state_hash: str
    kind: str
    identity: str
    return_to: str
    expires_at: Micros
    tries: int = 0


_COLUMNS = ", ".join(LoginFlow.__struct_fields__)
_FLOWS = Insert("login_flows", _COLUMNS)
READ = f"SELECT {_COLUMNS} FROM login_flows WHERE state_hash = :state AND kind = :kind"
CLAIM = """
    UPDATE login_flows SET used_at = :now
     WHERE state_hash = :state AND kind = :kind AND used_at IS NULL AND expires_at > :now
"""
DELETE_EXPIRED = "DELETE FROM login_flows WHERE expires_at < :before"


def insert(tx: Tx, flow: LoginFlow) -> None:
    tx.insert(_FLOWS, [structs.astuple(flow)])


def claim(tx: Tx, state_hash: str, kind: str, now: Micros) -> LoginFlow | None:
    """Use a flow; None if it is unknown, expired or was used before."""
    if tx.run(CLAIM, state=state_hash, kind=kind, now=now) != 1:
        return None
    row = tx.one(READ, state=state_hash, kind=kind)
    return LoginFlow(**dict(zip(LoginFlow.__struct_fields__, row, strict=True))) if row else None


def delete_expired(tx: Tx, before: Micros) -> None:
    """Delete flows that expired before this time."""
    tx.run(DELETE_EXPIRED, before=before)
