"""The changes of a job's tasks since the last look, read with small calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire

OVERLAP: Final = 10_000_000
"""Microseconds. A change is seen when it is committed, and servers' clocks differ, so a later one may be seen first."""


class JobChanges:
    """Reads tasks of a job, at first all, then those that have changed since."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._latest = 0
        self.tasks: dict[str, wire.JobTask] = {}

    def read(self, *, state: Sequence[str] = (), label: str | None = None) -> list[wire.JobTask]:
        """The tasks whose state or run is another than at the last call, by the time of their change."""
        since = max(0, self._latest - OVERLAP) if self._latest else None
        changed = []
        for task in self._job.tasks(state=state, label=label, since=since):
            self._latest = max(self._latest, task.modified_at)
            before = self.tasks.get(task.label)
            self.tasks[task.label] = task
            if before is None or (before.state, before.run) != (task.state, task.run):
                changed.append(task)
        return sorted(changed, key=lambda task: task.modified_at)

    def read_all(self) -> list[wire.JobTask]:
        """As read, but of all tasks: for the end, when no later call corrects a change that was missed."""
        self._latest = 0
        return self.read()
