"""Running servers. Each leases a slot, which is part of the ids that it generates, so that ids never collide."""

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Scheduler(Struct, frozen=True):
    """One server process and its address."""

    id: int
    address: str
    port: int
    heartbeat: Micros
    slot: int


_COLUMNS = ", ".join(Scheduler.__struct_fields__)
_SCHEDULERS = Insert("schedulers", _COLUMNS)
ALL = f"SELECT {_COLUMNS} FROM schedulers ORDER BY slot"
HEARTBEAT = "UPDATE schedulers SET heartbeat = :now WHERE id = :id"
DELETE = "DELETE FROM schedulers WHERE id = :id AND heartbeat = :heartbeat"
RELEASE_SLOT = "DELETE FROM schedulers WHERE id = :id"


def read_all(tx: Tx) -> list[Scheduler]:
    """All servers, including those without a recent heartbeat."""
    return [Scheduler(*row) for row in tx.all(ALL)]


def insert(tx: Tx, scheduler: Scheduler) -> bool:
    """Take a slot; False when another server has just taken it."""
    return tx.insert_new(_SCHEDULERS, [structs.astuple(scheduler)]) == 1


def heartbeat(tx: Tx, scheduler_id: int, now: Micros) -> bool:
    """Record a heartbeat; False when another server has taken the slot."""
    return tx.run(HEARTBEAT, id=scheduler_id, now=now) == 1


def delete(tx: Tx, scheduler: Scheduler) -> bool:
    """Free the slot of a dead server; False when it has sent a heartbeat since it was read."""
    return tx.run(DELETE, id=scheduler.id, heartbeat=scheduler.heartbeat) == 1


def release_slot(tx: Tx, scheduler_id: int) -> None:
    """Free the slot of this server when it stops."""
    tx.run(RELEASE_SLOT, id=scheduler_id)
