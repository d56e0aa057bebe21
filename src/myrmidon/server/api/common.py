"""Constants and helpers that several files of this API share."""

from __future__ import annotations

from collections.abc import Sequence

from myrmidon.model.ids import show_task
from myrmidon.server.calls import ANYONE, Role

ANY_TOKEN = ANYONE - {Role.NOBODY, Role.RUN}
LAST_ID = (1 << 63) - 1
"""No id is greater."""


def show_optional_task(task_id: int | None) -> str | None:
    return show_task(task_id) if task_id is not None else None


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The smallest of the ordered values that this percentage of them does not exceed; None if there are none."""
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)] if ordered else None
