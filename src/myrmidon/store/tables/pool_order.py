"""Pools: how each orders its tasks, and the lock under which bots and queues are matched."""

from collections.abc import Iterable

from myrmidon.model.task_to_run import Order
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_POOLS = Insert("pools", "name, task_order, ageing")
OF_POOL = "SELECT task_order, ageing FROM pools WHERE name = :name"
LOCK_POOL = "SELECT name FROM pools WHERE name = :name {for_update}"
SET_POOL = "UPDATE pools SET task_order = :task_order, ageing = :ageing WHERE name = :name"


def of_pool(tx: Tx, pool: str) -> Order:
    """How a pool orders its tasks."""
    row = tx.one(OF_POOL, name=pool)
    return Order(*row) if row else Order()


def set_order(tx: Tx, pool: str, order: Order) -> None:
    """Set how a pool orders tasks that become ready from now on. The caller ranks those that are ready again."""
    lock_pools(tx, [pool])
    tx.run(SET_POOL, name=pool, task_order=order.task_order, ageing=order.ageing)


def lock_pools(tx: Tx, pools: Iterable[str]) -> None:
    """Lock these pools until the commit, so that no other transaction matches bots and queues in them.

    Pools are locked by name, so that two transactions cannot deadlock.
    """
    for pool in sorted(set(pools)):
        if tx.one(LOCK_POOL, name=pool) is None:
            tx.insert_new(_POOLS, [(pool, "fifo", 0)])
            tx.one(LOCK_POOL, name=pool)
