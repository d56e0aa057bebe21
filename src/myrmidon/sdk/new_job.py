"""A job that is built by calling task functions in a with block, and submitted at its end.

with client.new_job("word count") as job:
    total = merge(job.map(count, shards("...")))
print(job.result(total))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.graph_errors import GraphError, at_caller
from myrmidon.functions.handles import Handle, TupleHandle, source_of
from myrmidon.functions.recorder import Recorder
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.task_options import TaskOptions
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.job_results import JobResults
from myrmidon.sdk.job_sender import JobSender
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.plan import JobPlan
from myrmidon.sdk.result_stream import ResultStream
from myrmidon.sdk.results import handles_in, output_values, with_values
from myrmidon.sdk.shared import Shared, keep
from myrmidon.sdk.task_failed import TaskFailed
from myrmidon.wire import jobs as wire
from myrmidon.wire.values import TaskOutcome

if TYPE_CHECKING:
    from myrmidon.functions.task_function import Options

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class NewJob(Recorder):
    """Builds, submits and follows one job. Made by ``client.new_job``."""

    def __init__(
        self,
        sender: JobSender,
        stream: ResultStream,
        name: str,
        *,
        code: str | Path,
        fail_fast: bool,
        fields: Mapping[str, Any],
        defaults: TaskOptions,
    ) -> None:
        super().__init__()
        self.name = name
        self._sender = sender
        self._stream = stream
        self._code = code
        self._fields = {
            "name": name,
            "failure_policy": "fail-fast" if fail_fast else "continue",
            "max_num_retries": 0,
            **fields,
        }
        self._builder = GraphBuilder(defaults)
        self._results: JobResults | None = None
        self._codes: dict[str, str] = {}
        """The digest of the code by module, as the job was submitted."""
        self._environments: list[str] = []
        """The environment of each function, in the same way."""

    def __repr__(self) -> str:
        state = self._results.job.id if self._results else "being built" if self.is_open else "not submitted"
        return f"<job {self.name!r}, {state}>"

    # -- build --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._builder.nodes or not self._builder.is_building:
            raise GraphError(at_caller("this job was built already; make another one with client.new_job"))
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.end_block(kind):
            self.submit()

    def end_block(self, kind: type[BaseException] | None) -> bool:
        """End the block; whether the job is to be submitted. After an exception (of this kind) it is not."""
        self._builder.is_building = False
        try:
            self.close()
        except GraphError:
            if kind is None:
                raise
        if kind is not None:
            return False
        if not self._builder.nodes:
            raise GraphError(at_caller("the job has no tasks; nothing was submitted"))
        return True

    def record_call(self, function: TaskFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._builder.call(function, args, kwargs)

    @overload
    def map(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]: ...
    @overload
    def map(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...
    def map(self, function: Callable[..., Any], items: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function for each item, with the same further arguments: the list of the results.

        ``items`` may be the result of another call: then the calls are added when that list exists, and the result
        can only be passed on as a whole.
        """
        self._require_open("map")
        made: list[Any] = self._builder.map(function, items, args, kwargs)
        return made

    def reduce(
        self,
        function: Callable[Concatenate[list[T], P], T],
        parts: Iterable[T],
        fan_in: int = 100,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Combine many results by a function of a list, in layers of calls with at most ``fan_in`` parts each."""
        self._require_open("reduce")
        if args:
            raise TypeError("reduce takes further arguments of the function by name")
        combined: T = self._builder.reduce(function, parts, fan_in, kwargs)
        return combined

    @overload
    def command(self, words: Sequence[Any], *, returns: type[T], name: str = "", **options: Unpack[Options]) -> T: ...
    @overload
    def command(
        self, words: Sequence[Any], *, returns: None = None, name: str = "", **options: Unpack[Options]
    ) -> None: ...
    def command(self, words: Sequence[Any], *, returns: Any = None, name: str = "", **options: Any) -> Any:
        """Add a command. Words may be results of other calls. Options are those of ``@task``.

        With ``returns`` the command gives an output of this type: it writes JSON to ``$MYRMIDON_OUTPUT_DIR/0``.
        """
        self._require_open("command")
        return self._builder.command(words, TaskOptions().changed(**options), name=name, returns=returns)

    def _require_open(self, method: str) -> None:
        if not self.is_open:
            raise GraphError(at_caller(f"job.{method} belongs into the block of `with client.new_job(...) as job`"))
        self.check_thread()

    def plan(self) -> JobPlan:
        """What would happen to the graph as it is so far: which calls earlier results answer, and why others run.

        Belongs into the block, at its end; nothing is sent but the graph, and nothing is stored.
        """
        if self._results is None:
            zips = CodePackages(self._code).collect(self._builder.functions())
            return JobPlan(self._sender.check((self._builder, self._fields, zips)))
        raise GraphError(at_caller("the job was submitted already; ask for its plan inside the block"))

    def submit(self) -> None:
        """Submit the graph; the end of the block does it."""
        zips = CodePackages(self._code).collect(self._builder.functions())
        submitted = self._sender.send((self._builder, self._fields, zips))
        self._codes = {module: packed.digest for module, packed in zips.items()}
        self._environments = [environment for environment, _ in self._builder.environments()]
        job = Job(self._sender.client, submitted.job_id)
        self._results = JobResults(job, self.name, self._sender.client, self._stream, submitted.task_ids)

    # -- follow -------------------------------------------------------------------------------------------------

    @property
    def _submitted(self) -> JobResults:
        if self.is_open:
            self.fail("the job is submitted at the end of its block; ask for results after it")
        if self._results is None:
            raise GraphError(at_caller("the job was not submitted"))
        return self._results

    @property
    def id(self) -> str:
        """The id of the job on the server."""
        return self._submitted.job.id

    @overload
    def result(self, handle: Coroutine[Any, Any, T], timeout: float | None = None) -> T: ...
    @overload
    def result(self, handle: T, timeout: float | None = None) -> T: ...
    def result(self, handle: Any, timeout: float | None = None) -> Any:
        """Wait for the value of a call, or of all calls in lists, tuples and dict values.

        Raises TaskFailed if the task, or one that it needs, has failed, and WaitedTooLong after ``timeout`` seconds.
        In a terminal a line shows the progress of the job. Ctrl-C leaves the job running.
        """
        labels = self._labels(handle)
        return self.decoded(handle, self._submitted.outcomes(labels, timeout))

    def share(self, handle: T, timeout: float | None = None) -> Shared[T]:
        """Keep the result of a function with the option ``shared`` after the job; waits for it.

        Nothing is copied: the resource group references the value that the function has made.
        """
        found: Any = handle
        source = source_of(found) if isinstance(found, Handle) and not isinstance(found, TupleHandle) else None
        function = source.node.function if source is not None else None
        if source is None or function is None or not function.task_options.shared:
            raise GraphError(at_caller("share takes one result of a function with the option shared=True"))
        (outcome,) = self._submitted.outcomes(self._labels(handle), timeout).values()
        output = outcome.outputs[source.position]
        return keep(self._sender, output.value_id, output.type, source.annotation)

    async def async_result(self, handle: Any) -> Any:
        """As ``result``, for a program that uses asyncio."""
        outcomes = await self._submitted.async_outcomes(self._labels(handle))
        return await asyncio.to_thread(self.decoded, handle, outcomes)

    def decoded(self, handle: Any, outcomes: Mapping[str, TaskOutcome]) -> Any:
        """The value of a call whose tasks have these outcomes."""
        values = {
            source_of(one).node.label: output_values(
                outcomes[source_of(one).node.label], source_of(one).node.outputs, self._sender.client
            )
            for one in handles_in(handle)
        }
        return with_values(handle, lambda one: values[source_of(one).node.label])

    def _labels(self, handle: Any) -> list[str]:
        self._submitted  # noqa: B018 - raises inside the block
        labels: dict[str, None] = {}
        for one in handles_in(handle):
            if source_of(one).builder is not self._builder:
                raise GraphError(at_caller(f"{one!r} belongs to another job"))
            labels[source_of(one).node.label] = None
        return list(labels)

    def wait(self, timeout: float | None = None) -> wire.JobInfo:
        """Wait until the job has ended, however it ends."""
        return self._submitted.job.wait(timeout)

    def info(self) -> wire.JobInfo:
        """The job with the number of its tasks by state."""
        return self._submitted.job.info()

    def errors(self) -> dict[str, list[TaskFailed]]:
        """Every task that has failed so far, grouped by what happened; without those cancelled for it."""
        return self._submitted.errors()

    def cancel(self) -> None:
        """Cancel all tasks; running functions are stopped."""
        self._submitted.job.cancel()

    def rerun(self, *, failed: bool = True, code: Literal["pinned", "new"] = "pinned") -> None:
        """Run the tasks that did not succeed again, or with ``failed=False`` all.

        The job keeps the code and the signatures with which it was submitted. With ``code="new"`` its functions run
        the code that is in the files, or in the notebook, now; their signatures must be the same.
        """
        job = self._submitted.job
        job.rerun(full=not failed, code=self._send_new_code() if code == "new" else None)

    def _send_new_code(self) -> dict[str, str]:
        """Upload the code and the lock files as they are now; the new digests by those of the job."""
        zips = CodePackages(self._code).collect(self._builder.functions(), newest=True)
        pairs = [(old, zips[module].digest) for module, old in self._codes.items() if module in zips]
        files = {packed.digest: packed.data for packed in zips.values()}
        for old, (new, documents) in zip(self._environments, self._builder.environments(), strict=True):
            if documents:  # names of environments and functions without one cannot be replaced
                pairs.append((old, new))
                files.update(documents)
        self._sender.upload(files)
        return {old: new for old, new in pairs if old and old != new}
