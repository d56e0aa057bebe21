"""The right to start one run: the tiny row that bots compete for."""

from msgspec import Struct

from myrmidon.model.ids import Micros

_PRIORITY_BITS = 8
_TIME_BITS = 47
_PRIORITY = (1 << _PRIORITY_BITS) - 1
_LAST = (1 << _TIME_BITS) - 1
_TICK_BITS = 6
_EPOCH = 1_262_304_000_000_000
FIFO = "fifo"
LIFO = "lifo"


class Order(Struct, frozen=True):
    """How a pool orders tasks. ``ageing`` is the waiting time worth one step of priority; 0 is none."""

    task_order: str = FIFO
    ageing: Micros = 0


class TaskToRun(Struct, frozen=True, gc=False):
    """One row of the hot table; see the schema for why it is so small."""

    task_id: int
    instance: int
    queue: int
    task_rank: int
    expires_at: Micros
    slice: int
    wait_for_capacity: int
    shared: int
    avoid_bot: str | None

    @property
    def priority(self) -> int:
        return self.task_rank & _PRIORITY


class Head(Struct, frozen=True, gc=False):
    """The best row of one queue, with what the policy wants to know of the queue.

    ``shared``: tasks that read shared values have been in this queue, so where they run may matter.
    """

    queue: int
    resource_group_id: int
    dimensions: str
    shared: int
    task_rank: int

    @property
    def priority(self) -> int:
        return self.task_rank & _PRIORITY


def rank(priority: int, created_at: Micros, order: Order) -> int:
    """Where a task stands in its queue; smaller runs first.

    Priority, then time in ticks of 64 microseconds, and in the last bits the priority
    once more, so that in every order the rank alone tells it: a bot of many queues
    looks at the head of each. Absolute time, so no new year turns the order around.
    With ageing a task that has waited ``ageing`` stands level with one of the next
    better priority.
    """
    since = created_at - _EPOCH
    if order.ageing:
        return (priority * order.ageing + since) >> _TICK_BITS << _PRIORITY_BITS | priority
    tick = since >> _TICK_BITS
    if order.task_order == LIFO:
        tick = _LAST - tick
    return (priority << _TIME_BITS | tick) << _PRIORITY_BITS | priority
