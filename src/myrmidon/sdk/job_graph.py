"""Which tasks of a job have failed, and which of the others they block."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

FAILED: Final = ("FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "NO_RESOURCE", "CLIENT_ERROR", "CANCELED", "KILLED")
"""The states of tasks that ended without success."""


def blockers(tasks: Collection[wire.JobTask]) -> dict[str, str]:
    """For each of the tasks that cannot start, the label of the one among them that ended without success before it.

    A parent in ``requires_left`` that has ended did not satisfy the edge, and one that cannot start never will.
    """
    failed = {task.label for task in tasks if task.state in FAILED}
    children: dict[str, list[str]] = {}
    for task in tasks:
        if task.state == "WAITING":
            for parent in task.requires_left:
                children.setdefault(parent, []).append(task.label)
    found: dict[str, str] = {}
    pending = [(child, parent) for parent in sorted(failed) for child in children.get(parent, [])]
    while pending:
        label, blocker = pending.pop()
        if label not in found:
            found[label] = blocker
            pending += [(child, blocker) for child in children.get(label, [])]
    return found
