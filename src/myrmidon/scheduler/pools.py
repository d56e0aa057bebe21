"""Set how a pool orders its tasks, and rank those that are waiting again."""

from msgspec import Struct, json

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.task_to_run import FIFO, LIFO, Order, rank
from myrmidon.scheduler.policy import DAY
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import chunked_work, pool_order, task_to_run
from myrmidon.store.tables.chunked_work import ChunkedWork

_MAX_AGEING: Micros = 30 * DAY


class Rerank(Struct, frozen=True):
    """The arguments of ranking the tasks of a pool again."""

    pool: str


def set_pool_order(tx: Tx, pool: str, order: Order, *, now: Micros, ids: IdSource) -> None:
    """Set how a pool orders its tasks. Tasks that wait already are ranked again, chunk by chunk.

    Ageing prefers the oldest tasks and LIFO the newest, so they cannot be combined.
    """
    _check(order)
    pool_order.lock_pools(tx, [pool])
    if pool_order.of_pool(tx, pool) == order:
        return
    pool_order.set_order(tx, pool, order)
    UnitOfWork(tx, now, ids).start_chunked_work(chunked_work.RERANK, 0, args=json.encode(Rerank(pool)).decode())


def _check(order: Order) -> None:
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


def rerank_chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
    """Give the next waiting tasks of a pool the rank of its present order.

    This runs after the change was committed, so tasks that become ready meanwhile have the new rank already.
    """
    pool = json.decode(work.args, type=Rerank).pool
    order = pool_order.of_pool(uow.tx, pool)
    page = task_to_run.of_pool(uow.tx, pool, after=work.position, n=n)
    ranked = [(task, instance, old, rank(priority, created, order)) for task, instance, old, priority, created in page]
    task_to_run.set_ranks(uow.tx, [(task, instance, new) for task, instance, old, new in ranked if new != old])
    return page[-1][0] if len(page) == n else None
