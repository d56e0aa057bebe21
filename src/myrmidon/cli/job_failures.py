"""What a reader of a failed task needs: why it failed, its last lines, and the commands that repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from myrmidon.cli import output
from myrmidon.cli.context import CliContext
from myrmidon.cli.function_errors import error_lines
from myrmidon.cli.job_lines import describe_end_on_bot, shortened
from myrmidon.cli.logs import log_tail_lines
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.job_graph import FAILED
from myrmidon.wire.labels import natural_order

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire

FAILED_ITSELF: Final = tuple(state for state in FAILED if state not in ("CANCELLED", "KILLED"))
MAX_DETAILS: Final = 5
_MAX_READ: Final = 1_000


class FailureReporter:
    """Describes failed tasks, the first ones in detail; counts the others."""

    def __init__(self, cli: CliContext, job: Job) -> None:
        self._cli, self._job = cli, job
        self._described = set[str]()
        self._places = set[tuple[str, str]]()

    def lines(self, task: wire.JobTask) -> list[str]:
        """The lines to show for a task; none if it did not fail by itself, or as another, or after MAX_DETAILS."""
        key, place = task.run or task.task_id, task.error and (task.error.type, task.error.place)
        if task.state not in FAILED_ITSELF or key in self._described or len(self._described) >= MAX_DETAILS:
            return []
        if place in self._places:
            return []
        self._described.add(key)
        if place and place[1]:
            self._places.add(place)
        again = output.command_line(["myrmidon", "job", "rerun", self._job.id, "--task", task.label])
        here = [f"  here: myrmidon task reproduce {task.task_id}"] if task.run else []
        return [
            f"{output.style(task.label, fg='red', bold=True)}: {describe_end_on_bot(task)}",
            *(f"  {line}" for line in [*self._reason(task), *error_lines(task.error, short=True)]),
            *(f"  {line}" for line in (log_tail_lines(self._cli, task.task_id) if task.run else [])),
            *(output.style(line, dim=True) for line in [f"  again: {again}", *here]),
        ]

    def _reason(self, task: wire.JobTask) -> list[str]:
        """What the fleet lacked, for a task that no bot took."""
        if task.state not in ("EXPIRED", "NO_RESOURCE"):
            return []
        try:
            return [capacity] if (capacity := self._cli.client.why(task.task_id).capacity) else []
        except CallFailed:
            return []

    def summary(self, info: wire.JobInfo) -> list[str]:
        """The lines at the end of a job: failures that were not described, what could not run, and how to go on."""
        if info.state == "SUCCEEDED":
            return []
        lines = []
        failed = sum(info.counts.get(state, 0) for state in FAILED_ITSELF)
        if (more := failed - len(self._described)) > 0:
            lines.append(f"{output.plural(more, 'more task')} failed: myrmidon job why {self._job.id}")
        lines += self._unreachable(info)
        if info.state == "FAILED":
            lines.append(f"To run what did not succeed again: myrmidon job rerun {self._job.id}")
        return lines

    def _unreachable(self, info: wire.JobInfo) -> list[str]:
        """Which tasks did not run because of which others; of a large job only the number."""
        waiting = info.counts.get("WAITING", 0)
        if not waiting:
            return []
        if waiting > _MAX_READ:
            return [f"{waiting} tasks could not run: myrmidon job why {self._job.id}"]
        return unreachable_lines(self._job.unreachable(), most=MAX_DETAILS)


def unreachable_lines(blockers: dict[str, str], *, most: int) -> list[str]:
    """One line per task that blocks others, those that block most first; the last line counts the others."""
    by_blocker: dict[str, list[str]] = {}
    for label, blocker in blockers.items():
        by_blocker.setdefault(blocker, []).append(label)
    ordered = sorted(by_blocker.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [
        f"{output.plural(len(labels), 'task')} cannot run because {blocker} did not succeed:"
        f" {', '.join(shortened(sorted(labels, key=natural_order)))}"
        for blocker, labels in ordered[:most]
    ]
    if rest := ordered[most:]:
        num_tasks = sum(len(labels) for _, labels in rest)
        lines.append(f"{output.plural(num_tasks, 'more task')} cannot run because of {len(rest)} others")
    return lines
