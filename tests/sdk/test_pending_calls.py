"""Single calls: cancelled while they are being submitted, and their results, which come through one stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from myrmidon.sdk.client import Client
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.errors import NotFound
from myrmidon.sdk.job_sender import Graph, JobSender
from myrmidon.sdk.pending_calls import PendingCalls, RemoteFuture
from myrmidon.sdk.result_stream import ResultStream
from myrmidon.wire.jobs import JobSubmitted
from myrmidon.wire.values import Followed, ResultValue, StreamedResults, StreamOpened, TaskOutcome
from tests.deadline import HANG_S
from tests.functions.remote_tasks import half


class Response:
    """A stream of results as the client reads it."""

    def __init__(self, stream_id: str) -> None:
        self._pieces: SimpleQueue[bytes] = SimpleQueue()
        self.send("open", StreamOpened(stream_id))

    def send(self, name: str, data: msgspec.Struct) -> None:
        self._pieces.put(b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data)))

    def read1(self, _: int) -> bytes:
        return self._pieces.get()

    def shutdown(self) -> None:
        self._pieces.put(b"")

    close = shutdown


class Server(JobSender):
    """Takes jobs and streams, and says that all tasks were cancelled that it was asked to cancel."""

    def __init__(self) -> None:
        super().__init__(cast("Client", self))
        self.submitted: list[list[str]] = []
        self.cancelled: list[str] = []
        self.opened: SimpleQueue[tuple[list[str], Response]] = SimpleQueue()
        self.num_streams = 0
        self.named_streams: list[str] = []
        self.follows = False
        self.added: SimpleQueue[tuple[str, list[str]]] = SimpleQueue()
        self.knows_streams = True
        self.during_submit: Callable[[], object] = lambda: None

    def send(self, graph: Graph, *, stream: str = "") -> JobSubmitted:
        labels = list(graph[0].nodes)
        self.submitted.append(labels)
        self.named_streams.append(stream)
        self.during_submit()
        ids = {label: f"id of {label}" for label in labels}
        return JobSubmitted(job_id="j", state="RUNNING", task_ids=ids, followed=self.follows and bool(stream))

    def open_results(self, task_ids: Sequence[str]) -> Response:
        self.num_streams += 1
        response = Response(f"stream {self.num_streams}")
        self.opened.put((list(task_ids), response))
        return response

    def follow_results(self, stream: str, task_ids: Sequence[str]) -> Followed:
        self.added.put((stream, list(task_ids)))
        if not self.knows_streams:
            raise NotFound("no such stream")
        return Followed(len(task_ids))

    def cancel(self, task_id: str, *, kill_running: bool) -> SimpleNamespace:
        assert not kill_running
        self.cancelled.append(task_id)
        return SimpleNamespace(state="CANCELLED")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def calls(server: Server) -> Iterator[PendingCalls]:
    made = PendingCalls(server, CodePackages("installed"), ResultStream(server.client))
    yield made
    made.close()


def submit(calls: PendingCalls, count: int) -> list[RemoteFuture[Any]]:
    return calls.map(half, [float(number) for number in range(count)], (), {})


def submit_one(server: Server, calls: PendingCalls) -> tuple[RemoteFuture[Any], Response]:
    """A call, and the stream that was opened for it."""
    future = calls.submit(half, (1.0,), {})
    task_ids, response = server.opened.get(timeout=HANG_S)
    assert task_ids == ["id of half"]
    return future, response


@contextmanager
def busy(server: Server, calls: PendingCalls) -> Iterator[None]:
    """Another job is being submitted, so that calls of the block are not sent before its end."""
    go, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(HANG_S)

    server.during_submit = wait
    calls.submit(half, (1.0,), {})
    assert begun.wait(HANG_S)
    server.during_submit = lambda: None
    yield
    go.set()
    calls.close()
    del server.submitted[0]


def test_ctrl_c_says_how_to_watch_the_call(
    server: Server, calls: PendingCalls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    [future] = submit(calls, 1)
    calls.close()  # it is sent then
    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert "myrmidon job watch j\n" in capsys.readouterr().err


def test_a_call_that_is_cancelled_before_it_is_sent_is_not_sent(server: Server, calls: PendingCalls):
    with busy(server, calls):
        futures = submit(calls, 3)
        assert futures[1].cancel()
    assert server.submitted == [["half[0]", "half[2]"]]
    assert futures[1].cancelled()


def test_a_call_that_is_cancelled_while_its_job_is_submitted_is_cancelled_on_the_server(
    server: Server, calls: PendingCalls
):
    with busy(server, calls):
        futures = submit(calls, 3)
        server.during_submit = lambda: futures[1].cancel()
    assert futures[1].cancelled()
    assert server.cancelled == ["id of half[1]"]


def test_a_call_that_is_cancelled_while_others_are_taken_out_of_the_job_is_cancelled_on_the_server(
    server: Server, calls: PendingCalls
):
    class Nodes(dict[str, Any]):
        def pop(self, *args: Any) -> Any:
            futures[0].cancel()  # it was looked at already
            return super().pop(*args)

    with busy(server, calls):
        futures = submit(calls, 3)
        batch = calls._unsent[-1]
        batch.builder.nodes = Nodes(batch.builder.nodes)
        assert futures[1].cancel()
    assert server.submitted == [["half[0]", "half[2]"]]
    assert server.cancelled == ["id of half[0]"]


# ---------------------------------------------------------------- the stream of results


def the_result(label: str, state: str = "SUCCEEDED") -> StreamedResults:
    value = ResultValue("v", "float64", 9, msgspec.msgpack.encode(0.5))
    outcome = TaskOutcome(
        task_id=f"id of {label}",
        state=state,
        reason="",
        bot_id="b1",
        run=None,
        exit_code=0,
        error=None,
        outputs=[value],
    )
    return StreamedResults([outcome])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_calls_that_are_made_later_are_added_to_the_open_stream(server: Server, calls: PendingCalls):
    first, response = submit_one(server, calls)
    until(lambda: bool(calls.stream._id))
    second = submit(calls, 1)[0]
    assert server.added.get(timeout=HANG_S) == ("stream 1", ["id of half[0]"])
    response.send("results", the_result("half[0]"))
    assert second.result(HANG_S) == 0.5
    assert not first.done()


def test_a_submit_that_names_the_stream_needs_no_further_call(server: Server, calls: PendingCalls):
    _, response = submit_one(server, calls)
    until(lambda: bool(calls.stream._id))
    server.follows = True
    second = submit(calls, 1)[0]
    until(lambda: second.task_id is not None)
    response.send("results", the_result("half[0]"))
    assert second.result(HANG_S) == 0.5
    assert server.named_streams == ["", "stream 1"]
    assert server.added.empty()


def test_a_result_that_comes_before_the_answer_of_its_submit_is_kept(server: Server, calls: PendingCalls):
    _, response = submit_one(server, calls)
    until(lambda: bool(calls.stream._id))
    server.follows = True

    def end_already() -> None:
        response.send("results", the_result("half[0]"))
        until(lambda: bool(calls.stream._early))

    server.during_submit = end_already
    assert submit(calls, 1)[0].result(HANG_S) == 0.5


def test_a_stream_that_breaks_is_opened_again_with_what_has_not_ended(server: Server, calls: PendingCalls):
    first, response = submit_one(server, calls)
    until(lambda: bool(calls.stream._id))
    second = submit(calls, 1)[0]
    server.added.get(timeout=HANG_S)
    response.send("results", the_result("half"))
    assert first.result(HANG_S) == 0.5
    response.shutdown()
    task_ids, again = server.opened.get(timeout=HANG_S)
    assert task_ids == ["id of half[0]"]
    again.send("results", the_result("half[0]"))
    assert second.result(HANG_S) == 0.5


def test_a_server_that_does_not_have_the_stream_gets_a_new_one_with_everything(server: Server, calls: PendingCalls):
    submit_one(server, calls)
    until(lambda: bool(calls.stream._id))
    server.knows_streams = False
    second = submit(calls, 1)[0]
    task_ids, again = server.opened.get(timeout=HANG_S)
    assert task_ids == ["id of half", "id of half[0]"]
    again.send("results", the_result("half[0]"))
    assert second.result(HANG_S) == 0.5


def test_a_task_that_was_deleted_fails_its_call(server: Server, calls: PendingCalls):
    future, response = submit_one(server, calls)
    response.send("results", StreamedResults([], missing=["id of half"]))
    with pytest.raises(NotFound, match="There is no task id of half"):
        future.result(HANG_S)


def test_closing_ends_the_calls_that_wait(server: Server, calls: PendingCalls):
    future, _ = submit_one(server, calls)
    calls.close()
    with pytest.raises(RuntimeError, match="the client was closed before the result of half; its job goes on"):
        future.result(HANG_S)


def test_a_cancelled_task_ends_the_call_that_was_cancelled(server: Server, calls: PendingCalls):
    future, response = submit_one(server, calls)
    until(lambda: future.task_id is not None)
    assert future.cancel()
    response.send("results", the_result("half", state="CANCELLED"))
    until(lambda: not calls.stream._waiting)
    assert future.cancelled()
