"""Permissions to start one run: the rows that bots compete for."""

from enum import StrEnum

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
READS_SHARED = 1
"""Bit of ``shared``: the task reads shared values."""
USES_CACHES = 2
"""Bit of ``shared``: the task uses named caches."""
MAY_BE_NEAR = READS_SHARED | USES_CACHES
"""The bits of tasks for which one bot may be better than another."""
OF_FUNCTIONS = 8
"""Bit of a queue's ``shared``: its tasks call functions. All tasks of other queues are commands."""


class Accepts(StrEnum):
    """Which kinds of tasks a claim takes: a bot that runs a command can still take functions, and the reverse."""

    ANY = "any"
    FUNCTIONS = "functions"
    COMMANDS = "commands"

    def includes(self, *, functions: bool) -> bool:
        """Whether tasks of a queue are accepted; ``functions``: it is a queue of functions."""
        return self is Accepts.ANY or (self is Accepts.FUNCTIONS) == functions


class Order(Struct, frozen=True):
    """How a pool orders tasks. ``ageing`` is the waiting time that equals one step of priority; 0: no ageing."""

    task_order: str = FIFO
    ageing: Micros = 0


class TaskToRun(Struct, frozen=True, gc=False):
    """Permission to start one run of a task. It is the busiest table, so rows are small.

    The bits of ``shared`` say what makes one bot better than another for this task.
    """

    task_id: int
    instance: int
    queue: int
    task_rank: int
    expires_at: Micros
    slice: int
    wait_for_capacity: int
    shared: int
    avoid_bot: str | None


class Head(Struct, frozen=True, gc=False):
    """The first row of a queue, with the facts about the queue that the dispatch policy uses.

    ``shared`` has the bits of all tasks that have been in this queue: claims then prefer tasks whose shared values or
    named caches the bot has. It also says whether they are functions. ``ageing`` is that of the queue's pool.
    """

    queue: int
    resource_group_id: int
    dimensions: str
    shared: int
    task_rank: int
    ageing: Micros = 0

    @property
    def of_functions(self) -> bool:
        return bool(self.shared & OF_FUNCTIONS)


def rank(priority: int, created_at: Micros, order: Order) -> int:
    """The sort key of a task in its queue; smaller runs first.

    The bits are priority, then time in ticks of 64 microseconds, then the priority again: with ageing the leading bits
    mix priority and time. With ageing, a task that has waited ``ageing`` ranks equal to a new one of the next better
    priority.
    """
    since = created_at - _EPOCH
    if order.ageing:
        return (priority * order.ageing + since) >> _TICK_BITS << _PRIORITY_BITS | priority
    tick = since >> _TICK_BITS
    if order.task_order == LIFO:
        tick = _LAST - tick
    return (priority << _TIME_BITS | tick) << _PRIORITY_BITS | priority


def standing(task_rank: int, ageing: Micros, now: Micros) -> tuple[int, int]:
    """What a bot of many queues compares: the effective priority, and since when the task has had it (in ticks).

    With ageing the effective priority falls by one with each ``ageing`` of waiting, also below 0: among tasks that have
    all waited long, those that waited longer still go first. A rank from before the pool had ageing is understood too,
    because it begins with the priority.
    """
    priority, time = task_rank & _PRIORITY, task_rank >> _PRIORITY_BITS
    if not ageing:
        return priority, time & _LAST
    ranked_without = priority * ageing if time > _LAST else 0
    virtual = ((time & _LAST) << _TICK_BITS) + ranked_without
    effective = -((now - _EPOCH - virtual) // ageing)
    return effective, (virtual - effective * ageing) >> _TICK_BITS
