"""What the passes of a sweep have in common: how many rows a transaction takes, and what it did."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.states import TaskState
from myrmidon.store.tables import outbox

BATCH = 100


class PassEffects(Struct):
    """What one transaction of a pass did, for metrics and for waking bots; used only after it is committed."""

    queues: set[int] = set()
    late: list[tuple[str, Micros]] = []
    lost: list[tuple[str, Micros]] = []
    no_resource: int = 0


def count_no_resource(events: Iterable[tuple[Any, ...]]) -> int:
    """How many tasks ended as NO_RESOURCE, by the events that a transaction wrote."""
    count = 0
    for _, _, _, kind, state, _ in events:
        count += state == TaskState.NO_RESOURCE and kind == outbox.TASK
    return count
