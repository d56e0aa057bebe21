"""Register servers.

Each running server has a slot: bits of its ids that no other running server uses. A server that has lost its slot must
stop making ids.
"""

from myrmidon.model.errors import StoreRefused
from myrmidon.model.ids import SLOTS, IdSource, Micros
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import schedulers
from myrmidon.store.tables.schedulers import Scheduler


def register(
    tx: Tx, address: str, port: int, *, now: Micros, is_only_server: bool = False, rules: Rules = DEFAULT_RULES
) -> Scheduler:
    """Give a starting server an id and a slot; it may take over the slot of a server without heartbeats.

    ``is_only_server``: the caller holds a lock that proves that no registered server is running, so all their slots are
    free. Otherwise a server that is killed and started again and again would use up the slots before their leases end.

    Ids increase with time, so the new owner of a slot makes ids greater than all earlier ones of the slot. Slots are
    taken in turn: one that was in use a moment ago is the last to be taken again.
    """
    servers = schedulers.read_all(tx)
    dead = [server for server in servers if is_only_server or server.heartbeat < now - rules.slot_lease]
    taken = {server.slot for server in servers} - {server.slot for server in dead if schedulers.delete(tx, server)}
    first = max(servers, key=lambda server: server.id).slot + 1 if servers else 0
    for slot in ((first + offset) % SLOTS for offset in range(SLOTS)):
        if slot in taken:
            continue
        server = Scheduler(IdSource(slot).next(now), address, port, now, slot)
        if schedulers.insert(tx, server):
            return server
    raise StoreRefused(
        f"{SLOTS} servers already use this database; stop one of them before starting another. The place of a server "
        f"that was killed is free after {rules.slot_lease // SECOND} s."
    )


def renew(tx: Tx, server: Scheduler, *, now: Micros) -> bool:
    """Renew the lease of a slot; False if it is lost, so that this server must make no more ids."""
    return schedulers.heartbeat(tx, server.id, now)


def unregister(tx: Tx, server: Scheduler) -> None:
    """Release the slot of a server that stops."""
    schedulers.release_slot(tx, server.id)


def list_servers(tx: Tx) -> list[Scheduler]:
    """All registered servers, including those without recent heartbeats."""
    return schedulers.read_all(tx)
