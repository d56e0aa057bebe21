"""Waiting for tasks of a submitted job, and the errors of those that failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NoReturn

from myrmidon.sdk.errors import JobFailed, WaitedTooLong
from myrmidon.sdk.function_server import MAX_IDS, FunctionServer, Outcome
from myrmidon.sdk.job_graph import FAILED
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.progress import ProgressLine
from myrmidon.sdk.results import SUCCEEDED, output_values
from myrmidon.sdk.task_failed import TaskFailed, task_failed
from myrmidon.wire.jobs import JobInfo

CONSEQUENCES: Final = ("CANCELED", "KILLED")
"""How the other tasks of a job end when one has failed and the job fails fast."""
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 10.0
_SHOWN_WAIT_S: Final = 0.5


class JobResults:
    """The tasks of one job by label."""

    def __init__(self, job: Job, name: str, server: FunctionServer, task_ids: Mapping[str, str]) -> None:
        self.job = job
        self.name = name
        self.task_ids = dict(task_ids)
        self._server = server

    def values(self, annotations: Mapping[str, Sequence[Any]], timeout: float | None) -> dict[str, list[Any]]:
        """The outputs of the tasks with these labels, decoded by their annotations. Raises TaskFailed."""
        outcomes = self.outcomes(list(annotations), timeout)
        return {label: output_values(outcomes[label], of, self._server) for label, of in annotations.items()}

    def outcomes(self, labels: Sequence[str], timeout: float | None) -> dict[str, Outcome]:
        """The outcomes of these tasks once all have succeeded; raises TaskFailed as soon as one of them cannot."""
        deadline = None if timeout is None else time.monotonic() + timeout
        line = ProgressLine(self.name)
        try:
            return self._wait(labels, deadline, timeout, line)
        except KeyboardInterrupt:
            line.end()
            sys.stderr.write(how_to_watch([self.job.id]))
            raise
        finally:
            line.end()

    def _wait(
        self, labels: Sequence[str], deadline: float | None, timeout: float | None, line: ProgressLine
    ) -> dict[str, Outcome]:
        left = {self.task_ids[label]: label for label in labels}
        found: dict[str, Outcome] = {}
        wait_s = 0.0
        ended: JobInfo | None = None
        while left:
            outcomes = self._server.results(list(islice(left, MAX_IDS)), wait_s)
            if ended is not None and not outcomes:
                self._raise_first(ended)
            for outcome in outcomes:
                label = left.pop(outcome.task_id)
                if outcome.state != SUCCEEDED:
                    raise self._failure(outcome, label)
                found[label] = outcome
            if not left:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitedTooLong(f"job {self.job.id} has no result after {timeout} s; it goes on")
            if not outcomes or line.is_shown:
                ended = self._ended(line)
            # Once more without waiting: a task may have succeeded between the two answers.
            wait_s = 0.0 if ended is not None else self._next_wait(wait_s, deadline, line)
        return found

    def _next_wait(self, before: float, deadline: float | None, line: ProgressLine) -> float:
        longest = _SHOWN_WAIT_S if line.is_shown else _LONGEST_WAIT_S
        wait_s = min(longest, max(_FIRST_WAIT_S, before * 2))
        return wait_s if deadline is None else max(0.0, min(wait_s, deadline - time.monotonic()))

    def _ended(self, line: ProgressLine) -> JobInfo | None:
        """The job if it has ended without success: tasks behind a failed one then wait for ever."""
        info = self.job.info()
        line.update(info)
        return info if info.state in ("FAILED", "CANCELLED") and not info.busy else None

    def _raise_first(self, info: JobInfo) -> NoReturn:
        first = info.first_failure
        for outcome in self._server.results([first.task_id], 0) if first is not None else []:
            raise task_failed(outcome, first.label if first is not None else "", self._server.log_tail)
        raise JobFailed(info)

    def _failure(self, outcome: Outcome, label: str) -> TaskFailed:
        """The error of the task; if it was cancelled because another one has failed, that of the other one."""
        if outcome.state in CONSEQUENCES:
            first = self.job.info().first_failure
            if first is not None and first.task_id != outcome.task_id:
                for other in self._server.results([first.task_id], 0):
                    return task_failed(other, first.label, self._server.log_tail)
        return task_failed(outcome, label, self._server.log_tail)

    def errors(self) -> dict[str, list[TaskFailed]]:
        """All failures, grouped by what happened; those cancelled in consequence only if there are no others."""
        failed = {task.task_id: task.label for task in self.job.tasks(state=FAILED)}
        failures = [
            task_failed(outcome, failed[outcome.task_id], self._server.log_tail)
            for chunk in _chunks(failed)
            for outcome in self._server.results(chunk, 0)
        ]
        causes = [failure for failure in failures if failure.state not in CONSEQUENCES]
        grouped: dict[str, list[TaskFailed]] = {}
        for failure in causes or failures:
            grouped.setdefault(failure.what, []).append(failure)
        return grouped


def _chunks(ids: Iterable[str]) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + MAX_IDS] for start in range(0, len(listed), MAX_IDS)]


def how_to_watch(job_ids: Sequence[str]) -> str:
    """What Ctrl-C prints: the work goes on."""
    if not job_ids:
        return ""
    more = f" (and {len(job_ids) - 1} more)" if len(job_ids) > 1 else ""
    job = job_ids[-1]
    return (
        f"\nJob {job}{more} goes on. Watch it:  myrmidon job watch {job}\n"
        f"Stop it:  myrmidon job cancel {job}\n"
    )
