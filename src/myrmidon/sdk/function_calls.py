"""Calls of single functions without a graph: coalesced into jobs, their results collected by long polls.

A thread submits: while a job is on its way, further calls gather for the next one. The server holds the answer to a
job of few calls until a result is there, so that a short call costs one round trip; meanwhile a second thread submits.
Another thread waits for the results that were not in such an answer, up to 1,000 tasks per poll.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, Final, TypeVar

from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.handles import Handle, source_of
from myrmidon.functions.recorder import current_recorder
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.function_server import MAX_IDS, FunctionServer
from myrmidon.sdk.graph_submission import submit_graph
from myrmidon.sdk.results import SUCCEEDED, output_values, returned
from myrmidon.sdk.task_failed import task_failed
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.values import TaskOutcome

T = TypeVar("T")

CANCELLED: Final = "CANCELLED"
CALLS_PER_JOB: Final = 500
"""The server stores a job of so many tasks in one short transaction. Bots run the first jobs while others follow."""
_HELD_CALLS: Final = 8
"""A job of up to so many calls may wait for a result."""
_HELD_S: Final = 0.05
"""How long it waits: for a call that takes longer, a second round trip makes no difference."""
_POLL_S: Final = 25.0
_POLL_OF_MANY_S: Final = 1.0
_SHORTEST_POLL_S: Final = 0.5
_PAUSE_PER_TASK_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 0.1


class RemoteFuture(Future[T]):
    """The result of one call on a bot. ``cancel`` also works while the task waits for a bot."""

    def __init__(self, calls: FunctionCalls, decode: Callable[[list[Any]], T] | None) -> None:
        super().__init__()
        self.task_id: str | None = None
        self.job_id: str | None = None
        self.label = ""
        self.annotations: Sequence[Any] = ()
        self.decode = decode or _unchanged
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

    def result(self, timeout: float | None = None) -> T:
        """As that of every future. Ctrl-C leaves the task running and says so."""
        try:
            return self.wait_for_result(timeout)
        except KeyboardInterrupt:
            from myrmidon.sdk.job_results import how_to_watch  # late: few programs are interrupted

            sys.stderr.write(how_to_watch([self.job_id] if self.job_id is not None else []))
            raise

    def wait_for_result(self, timeout: float | None = None) -> T:
        """``result`` for a caller that handles Ctrl-C itself."""
        return super().result(timeout)

    def end_if_cancelled(self, outcome: TaskOutcome) -> None:
        """Cancel the future if that is why the task has ended: the answer to ``cancel`` may come after the outcome."""
        if self._cancel_requested and outcome.state == CANCELLED:
            super().cancel()


class _Batch:
    """Calls that become one job."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.calls: list[tuple[Handle, RemoteFuture[Any]]] = []


class FunctionCalls:
    """Submits calls and resolves their futures. Its threads start with the first call.

    ``_calls_added`` wakes a thread that submits, ``_calls_sent`` the one that collects and the one that closes.
    ``_is_sending``: a job is on its way. ``_is_held``: another one is, whose answer the server may hold.
    """

    def __init__(self, server: FunctionServer, packages: CodePackages) -> None:
        self._server = server
        self._packages = packages
        self._lock = threading.Lock()
        self._calls_added = threading.Condition(self._lock)
        self._calls_sent = threading.Condition(self._lock)
        self._unsent: deque[_Batch] = deque()
        self._sent: dict[str, RemoteFuture[Any]] = {}
        self._is_sending = False
        self._is_held = False
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._reasons = WaitReasons(server.api)

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
            self._calls_added.notify()
        return future

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[RemoteFuture[Any]]:
        """Call a function for each item."""
        futures: list[RemoteFuture[Any]] = []
        left = iter(items)
        while chunk := list(islice(left, CALLS_PER_JOB)):
            with self._lock:
                self._check_usable()
                batch = self._open_batch()
                handles = batch.builder.map(function, chunk, args, kwargs)
                futures += [self._add(batch, handle, None) for handle in handles]
                self._calls_added.notify()
        return futures

    def _open_batch(self) -> _Batch:
        """The batch for the next calls: the last one that is not sent, unless it is full."""
        if not self._unsent or len(self._unsent[-1].calls) >= CALLS_PER_JOB:
            self._unsent.append(_Batch())
        return self._unsent[-1]

    def _add(self, batch: _Batch, handle: Handle, decode: Callable[[list[Any]], Any] | None) -> RemoteFuture[Any]:
        node = source_of(handle).node
        returns = node.function.signature.returns if node.function is not None else None
        future: RemoteFuture[Any] = RemoteFuture(self, decode or (lambda values: returned(values, returns)))
        future.label, future.annotations = node.label, node.outputs
        batch.calls.append((handle, future))
        return future

    def _check_usable(self) -> None:
        if (recorder := current_recorder()) is not None:
            recorder.fail(
                "client.submit and client.map run at once; inside a job's block, call the function or job.map"
            )
        if self._closing:
            raise RuntimeError("the client is closed")
        if not self._threads:
            for run in (self._send_all, self._send_all, self._collect_all):
                thread = threading.Thread(target=run, name=f"myrmidon{run.__name__}", daemon=True)
                self._threads.append(thread)
                thread.start()
            atexit.register(self.close)  # a program may end right after its last submit

    def _send_all(self) -> None:
        while True:
            with self._lock:
                while self._is_sending or not self._unsent:
                    if self._closing and not self._unsent:
                        return
                    self._calls_added.wait()
                batch = self._unsent.popleft()
                held = self._may_hold(batch)
                self._note_sending(held=held, active=True)
            try:
                self._send(batch.builder, batch.calls, _HELD_S if held else 0.0)
            finally:
                with self._lock:
                    self._note_sending(held=held, active=False)
                    if self._closing:
                        self._calls_added.notify_all()
                        self._calls_sent.notify_all()

    def _may_hold(self, batch: _Batch) -> bool:
        """Whether the server may hold the answer to a batch: it can, the batch is small, and no other one is held."""
        is_small = len(batch.calls) <= _HELD_CALLS and not self._unsent
        return is_small and not self._is_held and self._server.max_wait_s > 0

    def _note_sending(self, *, held: bool, active: bool) -> None:
        if held:
            self._is_held = active
        else:
            self._is_sending = active

    def _send(self, builder: GraphBuilder, calls: Sequence[tuple[Handle, RemoteFuture[Any]]], wait_s: float) -> None:
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
            submitted = submit_graph(builder, fields, self._packages, self._server, wait_s=wait_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for the results must get it
            for future in live:
                _fail(future, error)
            return
        with self._lock:
            if not self._sent:
                self._reasons.restart()
            for future in live:
                future.job_id, future.task_id = submitted.job_id, submitted.task_ids[future.label]
                self._sent[future.task_id] = future
        self._resolve(submitted.results)
        with self._lock:
            if self._sent:
                self._calls_sent.notify_all()
        for future in live:
            if future.cancelled() and future.task_id is not None:
                self.cancel_task(future.task_id)

    # -- collect ------------------------------------------------------------------------------------------------

    def _collect_all(self) -> None:
        while True:
            with self._lock:
                while not self._sent and not self._is_over():
                    self._calls_sent.wait()
                if not self._sent or self._is_over():
                    return
                ids, num_sent = list(islice(self._sent, MAX_IDS)), len(self._sent)
                labels = {task_id: self._sent[task_id].label for task_id in ids}
            poll_s = _POLL_S if num_sent <= MAX_IDS else _POLL_OF_MANY_S
            try:
                outcomes = self._server.results(ids, min(poll_s, max(_SHORTEST_POLL_S, self._reasons.due_in())))
            except Exception as error:  # noqa: BLE001 - as above
                self._fail_all(ids, error)
                continue
            self._resolve(outcomes)
            if not outcomes:
                if not self._reasons.due_in():
                    self._reasons.look(labels)
                self._move_to_end(ids)
            elif len(outcomes) < len(ids):
                # Each answer should have many results; the fewer tasks are left, the shorter the pause.
                time.sleep(min(_LONGEST_PAUSE_S, num_sent * _PAUSE_PER_TASK_S))

    def _is_over(self) -> bool:
        return self._closing and not (self._unsent or self._is_sending or self._is_held)

    def _resolve(self, outcomes: Sequence[TaskOutcome]) -> None:
        for outcome in outcomes:
            with self._lock:
                future = self._sent.pop(outcome.task_id, None)
            if future is None:
                continue
            future.end_if_cancelled(outcome)
            if not future.set_running_or_notify_cancel():
                continue
            if outcome.state != SUCCEEDED:
                future.set_exception(task_failed(outcome, future.label, self._server))
                continue
            try:
                value = future.decode(output_values(outcome, future.annotations, self._server))
            except Exception as error:  # noqa: BLE001 - as above
                future.set_exception(error)
            else:
                future.set_result(value)

    def _fail_all(self, ids: Sequence[str], error: Exception) -> None:
        for task_id in ids:
            with self._lock:
                future = self._sent.pop(task_id, None)
            if future is not None:
                _fail(future, error)

    def _move_to_end(self, ids: Sequence[str]) -> None:
        """Ask for others next: these may take long."""
        with self._lock:
            for task_id in ids:
                if task_id in self._sent:
                    self._sent[task_id] = self._sent.pop(task_id)

    def cancel_task(self, task_id: str) -> bool:
        """Cancel a task that waits for a bot; False if it has started."""
        try:
            return self._server.cancel(task_id) == CANCELLED
        except CallFailed:
            return False

    # -- end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what is not sent. Calls that have not ended go on, but their futures do not get results any more."""
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
            self._calls_added.notify_all()
            while self._unsent or self._is_sending or self._is_held:
                self._calls_sent.wait()
            left, self._sent = list(self._sent.values()), {}
            self._calls_sent.notify_all()
        for future in left:
            _fail(future, RuntimeError(f"the client was closed before the result; job {future.job_id} goes on"))


def _fail(future: RemoteFuture[Any], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _unchanged(values: list[Any]) -> Any:
    return values
