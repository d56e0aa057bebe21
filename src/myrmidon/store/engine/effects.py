"""What a transaction did that others wait for: tasks that became ready, and events.

The statements that write such rows record them in ``tx.effects``. Once the transaction is committed, the server wakes
waiting bots and clients from there, instead of reading the rows back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from myrmidon.store.engine.db import Tx

T = TypeVar("T")


class CommitEffects(Struct):
    """The effects of one transaction; they count only after its commit."""

    enqueued: dict[int, int] = {}
    """By queue, how many rows it got in task_to_run that this transaction has not claimed itself, perhaps none."""
    events: list[tuple[Any, ...]] = []
    """The rows that were written to the outbox: subject, seq, at, kind, state, body."""
    localities: dict[int, tuple[int, frozenset[str]]] = {}
    """Of tasks that became ready and read shared values: the queue, and the addresses where that data is."""
    enqueued_tasks: set[int] = set()
    """The tasks that ``enqueued`` counts."""
    claim_follows: bool = False
    """Tasks that become ready may be claimed by this transaction itself: see scheduler/kept_task.py."""
    deleted: list[int] = []
    """Deleted tasks: their logs may be deleted."""

    def addresses_of(self, queue: int) -> frozenset[str]:
        """Where the data is that new tasks of a queue read."""
        return frozenset().union(*(addresses for near, addresses in self.localities.values() if near == queue))


def collect_effects(fn: Callable[[Tx], T]) -> Callable[[Tx], tuple[T, CommitEffects]]:
    """The same function, returning its effects beside its result.

    Writes that share a transaction each get effects of their own; those of a write that failed are dropped.
    """

    def run(tx: Tx) -> tuple[T, CommitEffects]:
        tx.effects = CommitEffects()
        result = fn(tx)
        return result, tx.effects

    return run
