"""Spider's driver and jobs: graphs of ``group`` and ``chain``, submitted with their arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from myrmidon.functions.durations import Duration
from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.handles import source_of
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.task_context import Data
from myrmidon.functions.task_graph import TaskGraph, graph_of
from myrmidon.functions.types import type_string
from myrmidon.sdk.client import AUTO, Client
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.job_sender import JobSender
from myrmidon.sdk.jobs import Job as JobHandle
from myrmidon.sdk.results import output_values
from myrmidon.sdk.shared import drop, share
from myrmidon.wire.jobs import MAX_JOBS, JobSubmitted

JOB_RETRIES: Final = 5
"""The number of times that the failed part of a job is retried by default, as in Spider."""


class JobStatus(Enum):
    Running = "running"
    Succeeded = "succeeded"
    Failed = "failed"
    Cancelled = "cancelled"


_STATUS: Final = {
    "SUCCEEDED": JobStatus.Succeeded,
    "FAILED": JobStatus.Failed,
    "CANCELLED": JobStatus.Cancelled,
}


class Job:
    """A submitted job. It stays on the server when this object goes."""

    def __init__(self, client: Client, job_id: str, outputs: Sequence[tuple[str, list[Any]]]) -> None:
        """``outputs``: of each task without children its id and the annotations of what it returns."""
        self.id = job_id
        self._client = client
        self._handle = JobHandle(client, job_id)
        self._outputs = outputs
        self._status = JobStatus.Running
        self._results: tuple[Any, ...] | None = None

    def get_status(self) -> JobStatus:
        """The status; the server is not asked again once the job has ended."""
        if self._status is JobStatus.Running:
            self._status = _STATUS.get(self._handle.info().state, JobStatus.Running)
        return self._status

    def get_results(self) -> tuple[Any, ...] | None:
        """The outputs of the tasks without children, in order; None unless the job has succeeded."""
        if self._results is None and self.get_status() is JobStatus.Succeeded:
            self._results = tuple(
                value for task_id, annotations in self._outputs for value in self._values(task_id, annotations)
            )
        return self._results

    def _values(self, task_id: str, annotations: list[Any]) -> list[Any]:
        if not annotations:
            return []
        [outcome] = self._client.results([task_id], wait_s=0.0).results
        return output_values(outcome, annotations, self._client)

    def wait_complete(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended. Raises WaitedTooLong."""
        self._handle.wait(timeout)
        return self.get_status()

    def get_error(self) -> str | None:
        """Why the job has failed."""
        return self._handle.info().error or None

    def cancel(self) -> None:
        self._handle.cancel()


class Driver:
    """Submits jobs to a server. It and the token are found as the command line finds them, unless they are given."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, group: str | None = None, code: str | Path = AUTO
    ) -> None:
        self.client = Client(url, token, group=group, code=code)
        self._sender = JobSender(self.client, group)
        self._packages = CodePackages(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()

    def submit_jobs(
        self,
        task_graphs: Sequence[Any],
        args: Sequence[Sequence[Any]],
        *,
        max_num_retries: int = JOB_RETRIES,
        timeout: Duration | None = None,
    ) -> list[Job]:
        """Submit a job for each graph or function, with its arguments in the order of its inputs.

        All are checked before the first one is sent: ValueError for a wrong number of arguments, TypeError for a wrong
        type. Jobs with up to 1,000 tasks together are stored in one transaction: if this raises, none was stored, or,
        if the answer of the server was lost, all were. More tasks are sent in parts of up to 1,000, and a larger graph
        alone: if a part is refused, the jobs of the parts before it are cancelled.

        After ``timeout`` a slow task is started a second time, on another bot, unless its function has an own
        ``soft_timeout``; the first to finish wins.
        """
        if len(task_graphs) != len(args):
            raise ValueError(f"{len(task_graphs)} graphs, but arguments for {len(args)}")
        options = {"soft_timeout": timeout} if timeout is not None else {}
        built = [_build(graph_of(one), values, options) for one, values in zip(task_graphs, args, strict=True)]
        jobs: list[Job] = []
        try:
            for part in _parts(built):
                jobs += self._submit(part, max_num_retries)
        except Exception:
            for job in jobs:
                with contextlib.suppress(CallFailed):
                    job.cancel()
            raise
        return jobs

    def _submit(self, part: Sequence[_Built], retries: int) -> list[Job]:
        graphs = [
            (one.builder, _fields_of(one.graph, retries), self._packages.collect(one.builder.functions()))
            for one in part
        ]
        stored = [self._sender.send(graphs[0])] if len(graphs) == 1 else self._sender.send_all(graphs)
        return [self._job(one, submitted) for one, submitted in zip(part, stored, strict=True)]

    def _job(self, built: _Built, submitted: JobSubmitted) -> Job:
        nodes = built.graph.nodes
        outputs = [
            (submitted.task_ids[source_of(built.handles[one]).node.label], nodes[one].function.signature.outputs)
            for one in built.graph.output_nodes
        ]
        return Job(self.client, submitted.job_id, outputs)

    def create_data(self, data: Data) -> Data:
        """Store data once, so that jobs refer to it; it can be created once only. ``drop_data`` ends that."""
        if data.id is not None:
            raise ValueError(f"the data was created already, as {data.id}")
        data.id = share(self._sender, data, Data, data.localities).id
        return data

    def drop_data(self, data: Data) -> None:
        """Drop the reference of the resource group; jobs that use the data keep it until they are deleted."""
        if data.id is not None:
            drop(self._sender, data.id)


class _Built(NamedTuple):
    """A graph with its arguments, as nodes of a document."""

    graph: TaskGraph
    builder: GraphBuilder
    handles: list[Any]


def _build(graph: TaskGraph, args: Sequence[Any], options: dict[str, Any]) -> _Built:
    builder = GraphBuilder()
    return _Built(graph, builder, graph.build(builder, [_reference(one) for one in args], **options))


def _parts(built: Sequence[_Built]) -> Iterator[list[_Built]]:
    """Graphs that are stored together: as many as one call may have."""
    part: list[_Built] = []
    num_tasks = 0
    for one in built:
        if part and num_tasks + len(one.builder.nodes) > MAX_JOBS:
            yield part
            part, num_tasks = [], 0
        part.append(one)
        num_tasks += len(one.builder.nodes)
    if part:
        yield part


def _fields_of(graph: TaskGraph, retries: int) -> dict[str, Any]:
    names = list(dict.fromkeys(node.function.__name__ for node in graph.nodes))
    return {"name": ", ".join(names[:3]), "failure_policy": "fail-fast", "max_num_retries": retries}


def _reference(value: Any) -> Any:
    """Created data as a reference; any other argument as it is, also None."""
    return SharedRef(value.id, type_string(Data)) if isinstance(value, Data) and value.id is not None else value
