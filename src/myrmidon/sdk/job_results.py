"""Waiting for tasks of a submitted job, and the errors of those that failed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import WaitedTooLong
from myrmidon.sdk.job_graph import FAILED, grouped
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.progress import ProgressLine
from myrmidon.sdk.result_stream import ResultStream
from myrmidon.sdk.results import SUCCEEDED
from myrmidon.sdk.task_failed import TaskFailed, task_failed
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.values import MAX_RESULTS, TaskOutcome

CONSEQUENCES: Final = ("CANCELLED", "KILLED")
"""How the other tasks of a job end when one has failed and the job fails fast."""
_SHOWN_EVERY_S: Final = 0.5

End = TaskOutcome | Exception


class _TaskEnd(NamedTuple):
    """Waits for a task, and puts its label and its end somewhere."""

    label_in_job: str
    put: Callable[[tuple[str, End]], object]
    label: str = ""  # the job is looked at as a whole

    def end(self, outcome: End) -> None:
        self.put((self.label_in_job, outcome))


class JobResults:
    """The tasks of one job by label."""

    def __init__(self, job: Job, name: str, client: Client, stream: ResultStream, task_ids: Mapping[str, str]) -> None:
        self.job = job
        self.name = name
        self.task_ids = dict(task_ids)
        self._client = client
        self._stream = stream

    def outcomes(self, labels: Sequence[str], timeout: float | None) -> dict[str, TaskOutcome]:
        """The outcomes of these tasks once all have succeeded; raises TaskFailed as soon as one of them cannot."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ended: SimpleQueue[tuple[str, End]] = SimpleQueue()
        found: dict[str, TaskOutcome] = {}
        waiters = self._waiters(labels, ended.put)
        line, reasons = ProgressLine(self.name), WaitReasons(self._client)
        try:
            self._stream.follow(waiters)
            while len(found) < len(labels):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                pause = _SHOWN_EVERY_S if line.is_shown else max(_SHOWN_EVERY_S, reasons.due_in())
                try:
                    label, end = ended.get(timeout=pause if left is None else min(pause, left))
                except Empty:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise WaitedTooLong(f"job {self.job.id} has no result after {timeout} s; it goes on") from None
                    self._look(reasons, line)
                else:
                    found[label] = self._succeeded(label, end)
        except KeyboardInterrupt:
            line.end()
            sys.stderr.write(how_to_watch([self.job.id]))
            raise KeyboardInterrupt from None  # without the frames of the wait, which would hide these lines
        finally:
            line.end()
            self._stream.forget(waiters)
        return found

    async def async_outcomes(self, labels: Sequence[str]) -> dict[str, TaskOutcome]:
        """The same for a program that uses asyncio, without a line that shows the progress."""
        ended: asyncio.Queue[tuple[str, End]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        waiters = self._waiters(labels, lambda end: loop.call_soon_threadsafe(ended.put_nowait, end))
        found: dict[str, TaskOutcome] = {}
        reasons = WaitReasons(self._client)
        await asyncio.to_thread(self._stream.follow, waiters)
        try:
            while len(found) < len(labels):
                try:
                    label, end = await asyncio.wait_for(ended.get(), max(_SHOWN_EVERY_S, reasons.due_in()))
                except TimeoutError:
                    await asyncio.to_thread(self._look, reasons)
                    continue
                if isinstance(end, TaskOutcome) and end.state == SUCCEEDED:
                    found[label] = end
                else:
                    await asyncio.to_thread(self._succeeded, label, end)  # raises, and may ask the server why
        finally:
            self._stream.forget(waiters)
        return found

    def _look(self, reasons: WaitReasons, line: ProgressLine | None = None) -> None:
        """Show how far the job is, and say from time to time why tasks do not run."""
        info = self.job.info()
        if line is not None:
            line.update(info)
        if not reasons.due_in():
            reasons.look_at_job(self.job, info.counts)

    def _waiters(self, labels: Sequence[str], put: Callable[[tuple[str, End]], object]) -> dict[str, _TaskEnd]:
        return {self.task_ids[label]: _TaskEnd(label, put) for label in labels}

    def _succeeded(self, label: str, end: End) -> TaskOutcome:
        """The outcome of a task; raises its error if it has failed, or that of the task for which it was cancelled."""
        if isinstance(end, Exception):
            raise end
        if end.state == SUCCEEDED:
            return end
        if end.state in CONSEQUENCES:
            first = self.job.info().first_failure
            if first is not None and first.task_id not in (end.task_id, end.ended_by):
                for outcome in self._client.results([first.task_id], wait_s=0).results:
                    raise task_failed(outcome, first.label, self._client)
        known = {task_id: known_label for known_label, task_id in self.task_ids.items()}
        raise task_failed(end, known.get(end.ended_by or "", label), self._client)

    def errors(self) -> dict[str, list[TaskFailed]]:
        """All failures, grouped by what happened; those cancelled in consequence only if there are no others."""
        failed = {task.task_id: task.label for task in self.job.tasks(state=FAILED)}
        ids = iter(failed)
        failures: list[TaskFailed] = []
        while chunk := list(islice(ids, MAX_RESULTS)):
            outcomes = self._client.results(chunk, wait_s=0).results
            failures += [task_failed(outcome, failed[outcome.task_id], self._client) for outcome in outcomes]
        causes = [failure for failure in failures if failure.state not in CONSEQUENCES]
        return grouped((one, one.what, one.error_type, one.place) for one in causes or failures)


def how_to_watch(job_ids: Sequence[str]) -> str:
    """What Ctrl-C prints: the work goes on."""
    if not job_ids:
        return ""
    more = f" (and {len(job_ids) - 1} more)" if len(job_ids) > 1 else ""
    job = job_ids[-1]
    return f"\nJob {job}{more} goes on. Watch it:  myrmidon job watch {job}\nStop it:  myrmidon job cancel {job}\n"
