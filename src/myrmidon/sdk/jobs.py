"""A job on the server: read it, wait for it, change it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from myrmidon.sdk.api.caller import segment
from myrmidon.sdk.errors import JobFailed, WaitedTooLong
from myrmidon.sdk.job_graph import FAILED, blockers, describe_end, grouped
from myrmidon.sdk.transport import new_key
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire import jobs as wire
from myrmidon.wire.fields import Done
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.job_actions import JobChanged, JobExtended, JobRerun, JobWaited
from myrmidon.wire.job_compare import JobComparison
from myrmidon.wire.notes import JobMeta

if TYPE_CHECKING:
    from myrmidon.sdk.client import Client

T = TypeVar("T")
_NO_ERROR: Final = FunctionError(type="")

MAX_WAIT_S = 25.0
PAGE = 1_000


class Job:
    """Handle of one job. Every method asks the server; nothing is cached.

    ``task_ids``: the ids of its tasks by label, if this client has submitted it as a document.
    """

    def __init__(self, client: Client, job_id: str, task_ids: Mapping[str, str] | None = None) -> None:
        self._client = client
        self.id = job_id
        self.task_ids = dict(task_ids or {})

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    # -- read

    def info(self) -> wire.JobInfo:
        return self._client.call("GET", f"jobs/{segment(self.id)}", wire.JobInfo)

    def tasks(
        self,
        *,
        state: Sequence[str] = (),
        label: str | None = None,
        since: int | None = None,
        limit: int | None = None,
    ) -> Iterator[wire.JobTask]:
        """The tasks of the job by label, read page by page, at most ``limit``.

        ``label`` may contain ``*``; ``since`` is a time in microseconds UTC: only tasks that have changed since then.
        """
        query: dict[str, Any] = {"state": list(state), "label": label, "since": since}
        left = limit
        while left is None or left > 0:
            query["limit"] = PAGE if left is None else min(left, PAGE)
            page = self._client.call("GET", f"jobs/{segment(self.id)}/tasks", wire.JobTasks, query=query)
            yield from page.tasks
            left = None if left is None else left - len(page.tasks)
            if page.cursor is None:
                return
            query["cursor"] = page.cursor

    def task(self, label: str) -> wire.JobTask | None:
        """The task with this label."""
        escaped = "".join(f"[{char}]" if char in "*?[" else char for char in label)
        return next(iter(self.tasks(label=escaped)), None)

    def graph(self, *, max_nodes: int = 2_000, prefix: str | None = None, depth: int | None = None) -> wire.JobGraph:
        """Nodes and edges; above ``max_nodes`` nodes in groups, of which ``prefix`` and ``depth`` select one."""
        query = {"max_nodes": max_nodes, "prefix": prefix, "depth": depth}
        return self._client.call("GET", f"jobs/{segment(self.id)}/graph", wire.JobGraph, query=query)

    def outputs(self) -> wire.JobOutputs:
        """The results of the tasks without children; the first 1,000."""
        return self._client.call("GET", f"jobs/{segment(self.id)}/outputs", wire.JobOutputs, query={"limit": PAGE})

    def compare(self, other: str, *, cursor: str | None = None) -> JobComparison:
        query = {"other": other, "cursor": cursor}
        return self._client.call("GET", f"jobs/{segment(self.id)}/compare", JobComparison, query=query)

    def errors(self) -> dict[str, list[wire.JobTask]]:
        """Tasks that ended without success, grouped by what happened."""
        failed = [(task, task.error or _NO_ERROR) for task in self.tasks(state=FAILED)]
        return grouped((task, describe_end(task), error.type, error.place) for task, error in failed)

    def unreachable(self) -> dict[str, str]:
        """The labels of waiting tasks that cannot start, each with that of the task without success that blocks it."""
        return blockers(list(self.tasks(state=["WAITING", *FAILED])))

    # -- wait

    def poll(
        self, *, wait_s: float = MAX_WAIT_S, seq: int | None = None, reasons: WaitReasons | None = None
    ) -> JobWaited:
        """One long poll: the job when it has ended, has changed since ``seq``, or after ``wait_s``.

        ``reasons``: a caller that polls until the end says with them from time to time why tasks do not run.
        """
        if reasons is not None:
            wait_s = min(wait_s, max(1.0, reasons.due_in()))
        body = {"wait_s": wait_s, "seq": seq}
        waited = self._client.call("POST", f"jobs/{segment(self.id)}/wait", JobWaited, body=body, wait_s=wait_s)
        if reasons is not None and not waited.done and not reasons.due_in():
            reasons.look_at_job(self, waited.job.counts)
        return waited

    def wait(self, timeout: float | None = None) -> wire.JobInfo:
        """The job once it has ended; WaitedTooLong after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        reasons = WaitReasons(self._client)
        while True:
            left = MAX_WAIT_S if deadline is None else max(0.0, min(MAX_WAIT_S, deadline - time.monotonic()))
            waited = self.poll(wait_s=left, reasons=reasons)
            if waited.done:
                return waited.job
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitedTooLong(f"job {self.id} has not ended after {timeout} s; it goes on")

    def result(self, timeout: float | None = None) -> wire.JobOutputs:
        """Wait for the job and return its outputs; JobFailed unless it has succeeded."""
        info = self.wait(timeout)
        if info.state != "SUCCEEDED":
            raise JobFailed(info)
        return self.outputs()

    # -- change

    def extend(
        self, document: Mapping[str, Any], *, parameters: Mapping[str, Any] | None = None, key: str | None = None
    ) -> JobExtended:
        """Add tasks to a running job; tasks that it already has are skipped."""
        body = {"job": document, "parameters": dict(parameters or {})}
        return self._post("extend", JobExtended, body, key)

    def seal(self, *, key: str | None = None) -> JobChanged:
        return self._post("seal", JobChanged, {}, key)

    def cancel(self, *, key: str | None = None) -> JobChanged:
        return self._post("cancel", JobChanged, {}, key)

    def rerun(
        self,
        task: str | None = None,
        *,
        cascade: bool = False,
        force: bool = False,
        full: bool = False,
        dry_run: bool = False,
        code: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> JobRerun:
        """Run again what did not succeed; with ``full`` everything, with ``task`` only that label.

        ``code``: functions that have the code with a digest run from now on the code with another one.
        """
        body: dict[str, Any] = {"task": task, "cascade": cascade, "force": force, "full": full, "dry_run": dry_run}
        if code:
            body["code"] = dict(code)
        return self._post("rerun", JobRerun, body, key)

    def hold(self, task: str | None = None, *, key: str | None = None) -> JobChanged:
        return self._post("hold", JobChanged, {"task": task}, key)

    def release(self, task: str | None = None, *, key: str | None = None) -> JobChanged:
        return self._post("release", JobChanged, {"task": task}, key)

    def priority(self, priority: int, task: str | None = None, *, key: str | None = None) -> JobChanged:
        """Change the priority of the task with this label, or of all tasks that have not ended."""
        return self._post("priority", JobChanged, {"priority": priority, "task": task}, key)

    # -- texts that the tasks share

    def meta(self) -> dict[str, str]:
        """The small texts of the job by name."""
        return self._client.call("GET", f"jobs/{segment(self.id)}/meta", JobMeta).values

    def set_meta(self, name: str, value: str | None, *, key: str | None = None) -> dict[str, str]:
        """Set a text of the job, or delete it with None; all texts afterwards."""
        return self._post("meta", JobMeta, {"name": name, "value": value}, key).values

    def delete(self, *, key: str | None = None) -> None:
        self._client.call("DELETE", f"jobs/{segment(self.id)}", Done, key=key or new_key())

    def _post(self, verb: str, answer: type[T], body: Mapping[str, Any], key: str | None) -> T:
        return self._client.call("POST", f"jobs/{segment(self.id)}/{verb}", answer, body=body, key=key or new_key())
