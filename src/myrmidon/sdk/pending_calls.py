"""Calls of single functions without a graph: coalesced into jobs, their results read from the stream of the client.

A thread submits: while a job is on its way, further calls gather for the next one.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, Final, TypeVar

from myrmidon.functions.graph_builder import GraphBuilder, Node
from myrmidon.functions.handles import Handle, source_of
from myrmidon.functions.recorder import current_recorder
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.job_sender import JobSender
from myrmidon.sdk.result_stream import ResultStream
from myrmidon.sdk.results import SUCCEEDED, output_values, returned
from myrmidon.sdk.task_failed import task_failed
from myrmidon.wire.values import TaskOutcome

T = TypeVar("T")

CANCELLED: Final = "CANCELLED"
CALLS_PER_JOB: Final = 500
"""The server stores a job of so many tasks in one short transaction. Bots run the first jobs while others follow."""


class RemoteFuture(Future[T]):
    """The result of one call on a bot. ``cancel`` also works while the task waits for a bot."""

    def __init__(self, calls: PendingCalls, node: Node, decode: Callable[[list[Any]], T] | None) -> None:
        super().__init__()
        self.task_id: str | None = None
        self.job_id: str | None = None
        self.label = node.label
        self._annotations = node.outputs
        self._returns = node.function.signature.returns if node.function is not None else None
        self._decode = decode
        self._calls = calls
        self._cancel_requested = False

    def cancel(self) -> bool:
        if self.done():
            return self.cancelled()
        self._cancel_requested = True
        if self.task_id is not None and not self._calls.cancel_task(self.task_id):
            self._cancel_requested = False  # a later cancel of its job must not turn this answer around
            return False
        return super().cancel()

    def running(self) -> bool:
        """Whether a bot runs the task now; asks the server. A task whose result another one gives runs until then."""
        if self.done() or self.task_id is None:
            return False
        return self._calls.state_of(self.task_id) in ("RUNNING", SUCCEEDED)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result. Ctrl-C leaves the task running and says so."""
        try:
            return super().result(timeout)
        except KeyboardInterrupt:
            from myrmidon.sdk.job_results import how_to_watch  # late: few programs are interrupted

            sys.stderr.write(how_to_watch([self.job_id] if self.job_id is not None else []))
            raise

    def end(self, outcome: TaskOutcome | Exception) -> None:
        """Set the result, or the reason why there is none."""
        if self._cancel_requested and isinstance(outcome, TaskOutcome) and outcome.state == CANCELLED:
            super().cancel()  # the answer to ``cancel`` may come after the outcome
        if (self.done() and not self.cancelled()) or not self.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self.set_exception(outcome)
            return
        try:
            value = self._value(outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the result must get it
            self.set_exception(error)
        else:
            self.set_result(value)

    def _value(self, outcome: TaskOutcome) -> Any:
        if outcome.state != SUCCEEDED:
            raise task_failed(outcome, self.label, self._calls.client)
        values = output_values(outcome, self._annotations, self._calls.client)
        return self._decode(values) if self._decode is not None else returned(values, self._returns)


class _Batch:
    """Calls that become one job."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.calls: list[tuple[Handle, RemoteFuture[Any]]] = []


class PendingCalls:
    """Submits calls and resolves their futures. Its thread starts with the first call.

    ``_changed`` wakes the thread that submits, and the one that closes.
    """

    def __init__(self, sender: JobSender, packages: CodePackages, stream: ResultStream) -> None:
        self.client = sender.client
        self._sender = sender
        self._packages = packages
        self.stream = stream
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._unsent: deque[_Batch] = deque()
        self._is_sending = False
        self._closing = False
        self._thread: threading.Thread | None = None

    # -- submit -------------------------------------------------------------------------------------------------

    def submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        decode: Callable[[list[Any]], Any] | None = None,
    ) -> RemoteFuture[Any]:
        """Call a function on a bot. Raises WiringError at once if an argument has the wrong type."""
        with self._lock:
            self._check_usable()
            batch = self._open_batch()
            future = self._add(batch, batch.builder.call(function, args, kwargs), decode)
            self._changed.notify()
        return future

    def map(
        self, function: Callable[..., Any], items: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[RemoteFuture[Any]]:
        """Call a function for each item; at most CALLS_PER_JOB."""
        with self._lock:
            self._check_usable()
            batch = self._open_batch()
            futures = [self._add(batch, one, None) for one in batch.builder.map(function, items, args, kwargs)]
            self._changed.notify()
        return futures

    def _open_batch(self) -> _Batch:
        """The batch for the next calls: the last one that is not sent, unless it is full."""
        if not self._unsent or len(self._unsent[-1].calls) >= CALLS_PER_JOB:
            self._unsent.append(_Batch())
        return self._unsent[-1]

    def _add(self, batch: _Batch, handle: Handle, decode: Callable[[list[Any]], Any] | None) -> RemoteFuture[Any]:
        future: RemoteFuture[Any] = RemoteFuture(self, source_of(handle).node, decode)
        batch.calls.append((handle, future))
        return future

    def _check_usable(self) -> None:
        if (recorder := current_recorder()) is not None:
            recorder.fail(
                "client.submit and client.map run at once; inside a job's block, call the function or job.map"
            )
        if self._closing:
            raise RuntimeError("the client is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="myrmidon calls", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a program may end right after its last submit

    def _send_all(self) -> None:
        while True:
            with self._lock:
                while not self._unsent:
                    if self._closing:
                        return
                    self._changed.wait()
                batch = self._unsent.popleft()
                self._is_sending = True
            try:
                self._send(batch.builder, batch.calls)
            finally:
                with self._lock:
                    self._is_sending = False
                    self._changed.notify_all()

    def _send(self, builder: GraphBuilder, calls: Sequence[tuple[Handle, RemoteFuture[Any]]]) -> None:
        live: list[RemoteFuture[Any]] = []  # asked only once: one that is cancelled from now on is submitted
        for handle, future in calls:
            if not future.cancelled():
                live.append(future)
                continue
            future.set_running_or_notify_cancel()
            builder.nodes.pop(source_of(handle).node.label, None)
        if not live:
            return
        functions = [node.function for node in builder.nodes.values() if node.function is not None]
        names = {function.task_options.label or function.__name__: None for function in functions}
        fields = {"name": ", ".join(islice(names, 3)), "failure_policy": "continue", "max_num_retries": 0}
        try:
            with self.stream.expecting() as stream_id:
                graph = builder, fields, self._packages.collect(builder.functions())
                submitted = self._sender.send(graph, stream=stream_id)
                for future in live:
                    future.job_id, future.task_id = submitted.job_id, submitted.task_ids[future.label]
                waiters = {future.task_id: future for future in live if future.task_id is not None}
                self.stream.follow(waiters, through=stream_id if submitted.followed else "")
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the results must get it
            for future in live:
                future.end(error)
            return
        for future in live:
            if future.cancelled() and future.task_id is not None:
                self.cancel_task(future.task_id)

    # -- tasks that were submitted -------------------------------------------------------------------------------

    def cancel_task(self, task_id: str) -> bool:
        """Cancel a task that waits for a bot; False if it has started."""
        try:
            return self.client.cancel(task_id, kill_running=False).state == CANCELLED
        except CallFailed:
            return False

    def state_of(self, task_id: str) -> str:
        """The state of a task; empty if the server does not say."""
        try:
            return self.client.wait([task_id], wait_s=0).tasks[0].state
        except CallFailed:
            return ""

    def close(self) -> None:
        """Send what is not sent. Calls that have not ended go on, but their futures do not get results any more."""
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            while self._unsent or self._is_sending:
                self._changed.wait()
        for waiter in self.stream.close():
            waiter.end(RuntimeError(f"the client was closed before the result of {waiter.label}; its job goes on"))
