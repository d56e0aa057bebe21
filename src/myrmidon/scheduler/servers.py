"""Servers join and leave; pools are told how to order their tasks.

A server needs nothing but a slot: the bits of its ids that no other living server
has. It must stop making ids when its slot is gone.
"""

from myrmidon.model.errors import InvalidRequest, Problem, StoreRefused
from myrmidon.model.ids import SLOTS, IdSource, Micros, created_ms
from myrmidon.model.task_to_run import FIFO, LIFO, Order
from myrmidon.scheduler.policy import DAY, DEFAULT_RULES, SECOND, Rules
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import pool_order, release, schedulers
from myrmidon.store.tables.schedulers import Scheduler

_MAX_AGEING: Micros = 30 * DAY
_STARTUP_TIME: Micros = 10 * SECOND


def register(tx: Tx, address: str, port: int, *, now: Micros, rules: Rules = DEFAULT_RULES) -> Scheduler:
    """Give a starting server an id and a slot; that of a server long silent may be taken over.

    Ids grow with time, so those that the silent one made are all smaller than any
    that the new holder of its slot will make.
    """
    known = schedulers.read_all(tx)
    silent = [one for one in known if one.heartbeat < now - rules.slot_lease]
    taken = {one.slot for one in known} - {one.slot for one in silent if schedulers.delete(tx, one)}
    for slot in range(SLOTS):
        if slot in taken:
            continue
        mine = Scheduler(IdSource(slot).next(now), address, port, now, slot)
        if schedulers.insert(tx, mine):
            return mine
    raise StoreRefused(f"{SLOTS} servers use this database already; stop one of them before starting another.")


def renew(tx: Tx, server: Scheduler, *, now: Micros) -> bool:
    """Keep the slot; False means that it is lost and this server must make no more ids."""
    return schedulers.heartbeat(tx, server.id, now)


def unregister(tx: Tx, server: Scheduler) -> None:
    """Give the slot back."""
    schedulers.release_slot(tx, server.id)


def list_servers(tx: Tx) -> list[Scheduler]:
    """Who is alive, and who has been silent."""
    return schedulers.read_all(tx)


def all_servers_current(tx: Tx, *, now: Micros, rules: Rules = DEFAULT_RULES) -> bool:
    """Whether every server at work knows of all that this one keeps in the database.

    One of before says nowhere which bot zip it would hand out. Neither does one that is just starting, and it has a
    moment to do so.
    """
    alive = [one.id for one in schedulers.read_all(tx) if one.heartbeat >= now - rules.slot_lease]
    known = release.backing_servers(tx)
    return all(server in known or created_ms(server) * 1000 > now - _STARTUP_TIME for server in alive)


def set_pool_order(tx: Tx, pool: str, order: Order) -> None:
    """Settle how a pool orders the tasks that become ready from now on.

    Ageing lets the oldest rise; under LIFO the newest is served first, so the two
    contradict each other.
    """
    problems = []
    if order.task_order not in (FIFO, LIFO):
        problems.append(Problem("task_order", order.task_order, f"{FIFO} or {LIFO}", "choice"))
    if not 0 <= order.ageing <= _MAX_AGEING:
        problems.append(Problem("ageing", str(order.ageing), f"0 (none) to {_MAX_AGEING} microseconds", "range"))
    if order.ageing and order.task_order == LIFO:
        problems.append(
            Problem("ageing", str(order.ageing), "0 with lifo: ageing serves the oldest first", "contradiction")
        )
    if problems:
        raise InvalidRequest(problems)
    pool_order.set_order(tx, pool, order)
