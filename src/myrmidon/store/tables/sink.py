"""Sinks: how far each receiver of events has got in the outbox, and which server delivers to it.

One server at a time holds the lease of a sink. The cursor advances only after the sink has confirmed the events, so
the next holder repeats at most the events of one unconfirmed batch.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import outbox

_SINKS = Insert("sinks", "name, position, holder, held_until")
LEASE = """
    UPDATE sinks SET holder = :holder, held_until = :until
     WHERE name = :name AND (holder IS NULL OR holder = :holder OR held_until < :now)
"""
CURSOR = "SELECT position FROM sinks WHERE name = :name"


def lease(tx: Tx, name: str, holder: int, *, now: Micros, until: Micros) -> int | None:
    """Take or renew the lease of a sink; its cursor, or None while another server has the lease.

    A new sink begins with the next event: nobody expects the events of the last month from it.
    """
    if not tx.run(LEASE, name=name, holder=holder, now=now, until=until):
        tx.insert_new(_SINKS, [(name, outbox.newest(tx), None, None)])
        if not tx.run(LEASE, name=name, holder=holder, now=now, until=until):
            return None
    row = tx.one(CURSOR, name=name)
    return row[0] if row else None


SKIP = "UPDATE sinks SET position = :position WHERE name = :name AND position < :position"


def begin_with_next(tx: Tx, name: str) -> None:
    """Let a sink that was never used begin with the next event, whichever server leases it first."""
    newest = outbox.newest(tx)
    tx.insert_new(_SINKS, [(name, newest, None, None)])
    tx.run(SKIP, name=name, position=newest)


ADVANCE = """
    UPDATE sinks SET position = :position
     WHERE name = :name AND holder = :holder AND position <= :position
"""


def advance(tx: Tx, name: str, holder: int, position: int) -> bool:
    """Move the cursor of a sink past confirmed events; False when another server has the lease."""
    return tx.run(ADVANCE, name=name, holder=holder, position=position) == 1


RELEASE = "UPDATE sinks SET holder = NULL, held_until = NULL WHERE name = :name AND holder = :holder"


def release(tx: Tx, name: str, holder: int) -> bool:
    """Give the lease of a sink back, so that another server can try; False when another server has it."""
    return tx.run(RELEASE, name=name, holder=holder) == 1


class SinkLag(Struct, frozen=True):
    """How far a sink is behind: the number of events, and the time of the oldest one."""

    name: str
    num_events: int
    oldest_at: Micros | None


POSITIONS = "SELECT name, position FROM sinks WHERE name {in_text:names} ORDER BY name"
FIRST_AFTER = "SELECT at FROM outbox WHERE position > :position ORDER BY position LIMIT 1"


def lags(tx: Tx, names: Sequence[str]) -> list[SinkLag]:
    """How far these sinks are behind; a sink that was never leased is left out.

    The number of events includes those of tasks that were deleted meanwhile.
    """
    newest = outbox.newest(tx) if names else 0
    found = []
    for name, position in tx.all(POSITIONS, names=list(names)) if names else ():
        row = tx.one(FIRST_AFTER, position=position)
        found.append(SinkLag(name, max(0, newest - position) if row else 0, row[0] if row else None))
    return found
