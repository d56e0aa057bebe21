"""Servers that are, or lately were, at work; each leases the slot that keeps its ids apart from the others'."""

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Scheduler(Struct, frozen=True):
    """One server process, found at an address."""

    id: int
    address: str
    port: int
    heartbeat: Micros
    slot: int


_COLUMNS = ", ".join(Scheduler.__struct_fields__)
_SCHEDULERS = Insert("schedulers", _COLUMNS)
ALL = f"SELECT {_COLUMNS} FROM schedulers ORDER BY slot"
BEAT = "UPDATE schedulers SET heartbeat = :now WHERE id = :id"
DELETE = "DELETE FROM schedulers WHERE id = :id AND heartbeat = :heartbeat"
LEAVE = "DELETE FROM schedulers WHERE id = :id"


def every(tx: Tx) -> list[Scheduler]:
    """All servers, the silent ones too."""
    return [Scheduler(*row) for row in tx.all(ALL)]


def insert(tx: Tx, scheduler: Scheduler) -> bool:
    """Take a slot; False when another server has just taken it."""
    return tx.insert_new(_SCHEDULERS, [structs.astuple(scheduler)]) == 1


def beat(tx: Tx, scheduler_id: int, now: Micros) -> bool:
    """A sign of life; False when the slot was given to another server meanwhile."""
    return tx.run(BEAT, id=scheduler_id, now=now) == 1


def delete(tx: Tx, scheduler: Scheduler) -> bool:
    """Free a slot, if its holder is still as silent as it was when it was read."""
    return tx.run(DELETE, id=scheduler.id, heartbeat=scheduler.heartbeat) == 1


def leave(tx: Tx, scheduler_id: int) -> None:
    """Free one's own slot, whatever sign of life was given last."""
    tx.run(LEAVE, id=scheduler_id)
