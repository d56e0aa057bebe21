"""The results of tasks as they end: one stream of the server for all that a client waits for.

Tasks are added to the open stream by the call that submits them, or by one of their own. The server keeps them in
memory only. If the stream breaks, or a call to add tasks reaches another server, a new stream is opened with all tasks
that have not ended: nothing is lost, whichever server answers.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, Protocol

import urllib3
from urllib3.exceptions import HTTPError

from myrmidon.sdk.api.caller import decode
from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import CallFailed, NotFound
from myrmidon.sdk.transport import parse_events, pieces_of
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.values import MAX_FOLLOWED, StreamedResults, StreamOpened, TaskOutcome

_PAUSE_S: Final = 0.2
"""Between two streams of which the first has sent no results."""
_ADD_ATTEMPTS: Final = 4
"""Attempts to add tasks before a new stream is opened: behind a balancer the next call may reach its server."""
_FETCHERS: Final = 4
"""Threads that read large values, so that other results need not wait for them."""


class Waiter(Protocol):
    """Waits for the end of one task. ``end`` is called once, on a thread of the stream, and must not raise.

    The ``label`` is for saying why the task does not run; it is empty if the caller says that itself.
    """

    @property
    def label(self) -> str: ...

    def end(self, outcome: TaskOutcome | Exception, /) -> None: ...


class ResultStream:
    """The tasks that one client waits for. Its thread starts with the first of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[str, Waiter] = {}
        self._num_expected = 0
        """Calls on their way that submit tasks to the stream."""
        self._early: dict[str, TaskOutcome] = {}
        """Results of such tasks that came before the answer which has their ids."""
        self._id = ""
        self._response: urllib3.BaseHTTPResponse | None = None
        self._thread: threading.Thread | None = None
        self._fetchers: ThreadPoolExecutor | None = None
        self._reasons = WaitReasons(client)

    @contextlib.contextmanager
    def expecting(self) -> Iterator[str]:
        """A block that submits tasks and then calls ``follow``; the id of the open stream, or an empty text."""
        with self._lock:
            self._num_expected += 1
            stream_id = self._id
        try:
            yield stream_id
        finally:
            with self._lock:
                self._num_expected -= 1
                if not self._num_expected:
                    self._early.clear()

    def follow(self, waiters: Mapping[str, Waiter], *, through: str = "") -> None:
        """Wait for tasks by id. ``through``: the stream to which the server has added them already."""
        with self._lock:
            if not self._waiting:
                self._reasons.restart()
            early = {one: self._early.pop(one) for one in waiters if one in self._early}
            left = {one: waiter for one, waiter in waiters.items() if one not in early}
            self._waiting.update(left)
            stream_id = "" if through == self._id else self._id
            if self._thread is None and left:
                self._thread = threading.Thread(target=self._read_all, name="myrmidon results", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        for task_id, outcome in early.items():
            self._end_one(waiters[task_id], outcome)
        if stream_id:
            self._add(stream_id, left)

    def forget(self, task_ids: Iterable[str]) -> None:
        """Wait for these tasks no longer."""
        with self._lock:
            for task_id in task_ids:
                self._waiting.pop(task_id, None)

    def close(self) -> list[Waiter]:
        """End the stream; those that wait still. It opens again when something is followed."""
        with self._lock:
            left, self._waiting = list(self._waiting.values()), {}
            self._thread, response = None, self._response
            fetchers, self._fetchers = self._fetchers, None
            self._changed.notify_all()
        if response is not None:
            _interrupt(response)
        if fetchers is not None:
            fetchers.shutdown(wait=False)
        return left

    # -- tasks that are added --------------------------------------------------------------------------------------

    def _add(self, stream_id: str, task_ids: Iterable[str]) -> None:
        """Add tasks to the open stream; if the server that answers does not have it, a new one is opened."""
        left = iter(task_ids)
        try:
            while chunk := list(islice(left, MAX_FOLLOWED)):
                self._add_chunk(stream_id, chunk)
        except CallFailed:
            with self._lock:
                if self._id != stream_id:
                    return  # another stream is opened already
                self._id, response = "", self._response
            if response is not None:
                _interrupt(response)

    def _add_chunk(self, stream_id: str, chunk: Sequence[str]) -> None:
        for attempt in range(_ADD_ATTEMPTS):
            try:
                self._client.follow_results(stream_id, chunk)
            except NotFound:
                if attempt + 1 == _ADD_ATTEMPTS:
                    raise
            else:
                return

    # -- the thread that reads -------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and self._thread is threading.current_thread():
                    self._changed.wait()
                if self._thread is not threading.current_thread():
                    return
                sent = list(islice(self._waiting, MAX_FOLLOWED))
            try:
                is_urgent = self._read_stream(sent)
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for results must get it
                self._fail(error)
            else:
                if not is_urgent:
                    time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 - jitter, not a secret

    def _read_stream(self, sent: Sequence[str]) -> bool:
        """Read one stream that begins with these tasks, until it ends or breaks; whether the next one is urgent."""
        response = self._client.open_results(sent)
        is_urgent = False
        try:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return True
                self._response = response
            for event in parse_events(pieces_of(response)):
                if event.name == "open":
                    self._add_later_ones(decode(event.data, StreamOpened).stream, set(sent))
                elif event.name == "results":
                    is_urgent = True
                    self._end(decode(event.data, StreamedResults))
                elif event.name == "idle":
                    self._look_at_tasks()
        except (HTTPError, OSError):
            pass  # it broke: the next one has the same tasks
        finally:
            with self._lock:
                is_urgent = is_urgent or not self._id  # it was interrupted
                if self._response is response:
                    self._id, self._response = "", None
            response.close()
        return is_urgent

    def _add_later_ones(self, stream_id: str, sent: set[str]) -> None:
        """Tasks that came while the stream was being opened."""
        with self._lock:
            self._id = stream_id
            later = [task_id for task_id in self._waiting if task_id not in sent]
        if later:
            self._add(stream_id, later)

    def _end(self, found: StreamedResults) -> None:
        ended: list[tuple[Waiter, TaskOutcome]] = []
        with self._lock:
            for outcome in found.results:
                if (waiter := self._waiting.pop(outcome.task_id, None)) is not None:
                    ended.append((waiter, outcome))
                elif self._num_expected:
                    self._early[outcome.task_id] = outcome
            gone = {one: self._waiting.pop(one, None) for one in found.missing}
        for task_id, waiter in gone.items():
            if waiter is not None:
                waiter.end(NotFound(f"There is no task {task_id}, or it was deleted.", code="not_found"))
        for waiter, end in ended:
            self._end_one(waiter, end)

    def _end_one(self, waiter: Waiter, end: TaskOutcome) -> None:
        if all(output.inline is not None for output in end.outputs):
            waiter.end(end)
            return
        with self._lock:
            if self._fetchers is None:
                self._fetchers = ThreadPoolExecutor(_FETCHERS, "myrmidon values")
            self._fetchers.submit(waiter.end, end)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            failed, self._waiting = list(self._waiting.values()), {}
        for waiter in failed:
            waiter.end(error)

    def _look_at_tasks(self) -> None:
        """Say why tasks do not run, from time to time."""
        if self._reasons.due_in():
            return
        with self._lock:
            labels = {task_id: waiter.label for task_id, waiter in self._waiting.items() if waiter.label}
        if labels:
            self._reasons.look(labels)


def _interrupt(response: Any) -> None:
    """Let the thread that reads a response find its end."""
    with contextlib.suppress(Exception):  # it is closed already
        response.shutdown()
