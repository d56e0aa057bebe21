"""Waiting for tasks of a submitted job, and the errors of those that failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from myrmidon.sdk.errors import JobFailed, WaitedTooLong
from myrmidon.sdk.function_server import MAX_IDS, FunctionServer
from myrmidon.sdk.job_graph import FAILED
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.progress import ProgressLine
from myrmidon.sdk.results import SUCCEEDED
from myrmidon.sdk.task_failed import TaskFailed, task_failed
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.jobs import JobInfo
from myrmidon.wire.values import TaskOutcome

CONSEQUENCES: Final = ("CANCELLED", "KILLED")
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

    def outcomes(self, labels: Sequence[str], timeout: float | None) -> dict[str, TaskOutcome]:
        """The outcomes of these tasks once all have succeeded; raises TaskFailed as soon as one of them cannot."""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = self.waiting(labels)
        try:
            while not waiting.poll(deadline):
                if deadline is not None and time.monotonic() >= deadline:
                    raise WaitedTooLong(f"job {self.job.id} has no result after {timeout} s; it goes on")
        except KeyboardInterrupt:
            waiting.line.end()
            sys.stderr.write(how_to_watch([self.job.id]))
            raise KeyboardInterrupt from None  # without the frames of the HTTP client, which would hide these lines
        finally:
            waiting.line.end()
        return waiting.found

    def waiting(self, labels: Sequence[str]) -> Waiting:
        return Waiting(self, self._server, {self.task_ids[label]: label for label in labels})

    def first_failure(self, info: JobInfo) -> Exception:
        """The error of the task that made the job fail."""
        first = info.first_failure
        for outcome in self._server.results([first.task_id], 0) if first is not None else []:
            return task_failed(outcome, first.label if first is not None else "", self._server)
        return JobFailed(info)

    def failure(self, outcome: TaskOutcome, label: str) -> Exception:
        """The error of a task; if it was cancelled because another one has failed, that of the other one."""
        if outcome.state in CONSEQUENCES:
            info = self.job.info()
            if info.first_failure is not None and info.first_failure.task_id != outcome.task_id:
                return self.first_failure(info)
        return task_failed(outcome, label, self._server)

    def errors(self) -> dict[str, list[TaskFailed]]:
        """All failures, grouped by what happened; those cancelled in consequence only if there are no others."""
        failed = {task.task_id: task.label for task in self.job.tasks(state=FAILED)}
        failures = [
            task_failed(outcome, failed[outcome.task_id], self._server)
            for chunk in _chunks(failed)
            for outcome in self._server.results(chunk, 0)
        ]
        causes = [failure for failure in failures if failure.state not in CONSEQUENCES]
        grouped: dict[str, list[TaskFailed]] = {}
        for failure in causes or failures:
            grouped.setdefault(failure.what, []).append(failure)
        return grouped


class Waiting:
    """Waits for some tasks of a job, one long poll at a time. ``found`` are the outcomes so far, by label."""

    def __init__(self, results: JobResults, server: FunctionServer, left: dict[str, str]) -> None:
        self.found: dict[str, TaskOutcome] = {}
        self.line = ProgressLine(results.name)
        self._results = results
        self._server = server
        self._left = left
        self._ended: JobInfo | None = None
        self._wait_s = 0.0
        self._reasons = WaitReasons(server.api)

    def poll(self, deadline: float | None = None) -> bool:
        """Wait for some time; whether all tasks have succeeded. Raises TaskFailed if one cannot any more."""
        if not self._left:
            return True
        outcomes = self._server.results(list(islice(self._left, MAX_IDS)), self._next_wait(deadline))
        if self._ended is not None and not outcomes:
            raise self._results.first_failure(self._ended)
        for outcome in outcomes:
            label = self._left.pop(outcome.task_id, None)
            if label is None:
                continue
            if outcome.state != SUCCEEDED:
                raise self._results.failure(outcome, label)
            self.found[label] = outcome
        if self._left and (not outcomes or self.line.is_shown):
            self._look_at_job()
        return not self._left

    def _next_wait(self, deadline: float | None) -> float:
        """Short at first, since the job may have failed already. Not at all once it has ended."""
        wait_s = self._wait_s if self._ended is None else 0.0
        longest = _SHOWN_WAIT_S if self.line.is_shown else _LONGEST_WAIT_S
        self._wait_s = min(longest, max(_FIRST_WAIT_S, wait_s * 2))
        return wait_s if deadline is None else max(0.0, min(wait_s, deadline - time.monotonic()))

    def _look_at_job(self) -> None:
        """Show how far it is. If it has ended without success, the tasks behind a failed one wait for ever."""
        info = self._results.job.info()
        self.line.update(info)
        if info.state in ("FAILED", "CANCELLED") and not info.busy:
            self._ended = info
        elif not self._reasons.due_in():
            self._reasons.look_at_job(self._results.job, info.counts)


def _chunks(ids: Iterable[str]) -> list[list[str]]:
    listed = list(ids)
    return [listed[start : start + MAX_IDS] for start in range(0, len(listed), MAX_IDS)]


def how_to_watch(job_ids: Sequence[str]) -> str:
    """What Ctrl-C prints: the work goes on."""
    if not job_ids:
        return ""
    more = f" (and {len(job_ids) - 1} more)" if len(job_ids) > 1 else ""
    job = job_ids[-1]
    return f"\nJob {job}{more} goes on. Watch it:  myrmidon job watch {job}\nStop it:  myrmidon job cancel {job}\n"
