"""Queues and pools: what waits, for which dimensions, and in which order a pool runs its tasks."""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, Problem, WrongState
from myrmidon.model.shown_input import show_value
from myrmidon.model.task_to_run import Order
from myrmidon.scheduler.priority import set_pool_order
from myrmidon.server.calls import ADMINS, READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import pool_order
from myrmidon.store.views import queues as queue_views
from myrmidon.wire.fields import PageQuery
from myrmidon.wire.queues import PoolInfo, PoolList, PoolSettings, QueueList

ROUTES = Routes()


@ROUTES.add("GET", "/api/v1/queues", READERS, "List queues", query=PageQuery)
async def list_queues(context: ServerContext, call: Call) -> QueueList:
    """Queues in pools that the caller may see, with their numbers of ready tasks and of bots that could run them."""
    query: PageQuery = call.query
    after = int(read_cursor(context.keys.cursor, "queues", query.cursor)) if query.cursor else 0
    scope = await context.groups.scope_of(call)

    queues = await context.db.read(lambda tx: queue_views.queues(tx, group_id=scope, after=after, n=query.limit))
    visible = visible_pools(context, call.who)
    shown = [queue for queue in queues if visible is None or visible.allows(queue.pool)]
    last = str(int(queues[-1].id, 16)) if len(queues) == query.limit else ""
    return QueueList(shown, show_cursor(context.keys.cursor, "queues", last) if last else None)


@ROUTES.add("GET", "/api/v1/pools", READERS, "List pools", query=PageQuery)
async def list_pools(context: ServerContext, call: Call) -> PoolList:
    """Pools that the caller may see, with their task order and number of bots."""
    query: PageQuery = call.query
    after = read_cursor(context.keys.cursor, "pools", query.cursor) if query.cursor else ""
    pools = await context.db.read(lambda tx: queue_views.pools(tx, after=after, n=query.limit))
    cursor = show_cursor(context.keys.cursor, "pools", pools[-1].name) if len(pools) == query.limit else None
    visible = visible_pools(context, call.who)
    return PoolList([pool for pool in pools if visible is None or visible.allows(pool.name)], cursor)


@ROUTES.add("PUT", "/api/v1/pools/{name}", ADMINS, "Set the task order of a pool", body=PoolSettings, mutates=True)
async def set_pool(context: ServerContext, call: Call) -> PoolInfo:
    """Set the order of tasks. Those that wait already are ranked again in the background. Idempotent."""
    name, settings = call.params["name"], call.body
    if not 0 < len(name) <= 256 or not name.isprintable():
        raise InvalidRequest([Problem("name", show_value(name), "1 to 256 printable characters", "length")])
    requested, now = Order(settings.task_order, settings.ageing or 0), context.now()
    configured = context.state.config.pools.policies.get(name)
    if configured is not None and configured.order is not None:
        raise WrongState(f"The task order of the pool {name} is set in pools.toml; change it there.")

    def set_order(tx: Tx) -> PoolInfo:
        order = requested
        if claim_call_key(tx, call, "order of a pool", name, now=now):
            set_pool_order(tx, name, order, now=now, ids=context.ids)
        else:
            order = pool_order.of_pool(tx, name)
        return PoolInfo(name, order.task_order, order.ageing, queue_views.bots_in_pool(tx, name))

    return await context.db.write(set_order)
