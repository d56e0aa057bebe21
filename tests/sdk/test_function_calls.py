"""Futures of single calls: cancelled while they are being submitted, and answered together with the submit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from myrmidon.sdk.api.calls import Api
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.function_calls import FunctionCalls, RemoteFuture
from myrmidon.sdk.function_server import FunctionServer
from myrmidon.sdk.transport import Transport
from myrmidon.wire.jobs import JobSubmitted
from myrmidon.wire.values import ResultValue, TaskOutcome
from tests.deadline import HANG_S
from tests.functions.remote_tasks import half


class Server(FunctionServer):
    """Takes jobs, and says that all tasks were cancelled that it was asked to cancel."""

    def __init__(self) -> None:
        super().__init__(Api(Transport("http://127.0.0.1:1", None)))
        self.submitted: list[list[str]] = []
        self.cancelled: list[str] = []
        self.waits: list[float] = []
        self.answered: list[TaskOutcome] = []
        self.polled: list[str] = []
        self.during_submit: Callable[[], object] = lambda: None
        self.over = threading.Event()

    def upload(self, files: Mapping[str, bytes]) -> None:
        pass

    def submit(self, document: bytes, external_id: str | None = None, wait_s: float = 0.0) -> JobSubmitted:
        labels = list(json.loads(document)["tasks"])
        self.submitted.append(labels)
        self.waits.append(wait_s)
        self.during_submit()
        ids = {label: f"id of {label}" for label in labels}
        return JobSubmitted(job_id="j", state="RUNNING", task_ids=ids, results=self.answered)

    def results(self, task_ids: Sequence[str], wait_s: float) -> list[TaskOutcome]:
        self.polled += task_ids
        self.over.wait(0.01)
        return []

    def cancel(self, task_id: str) -> str:
        self.cancelled.append(task_id)
        return "CANCELLED"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.over.set()


@pytest.fixture
def calls(server: Server) -> Iterator[FunctionCalls]:
    made = FunctionCalls(server, CodePackages("installed"))
    yield made
    made.close()


def submit(calls: FunctionCalls, count: int) -> list[RemoteFuture[Any]]:
    return calls.map(half, [float(number) for number in range(count)], (), {})


@contextmanager
def busy(server: Server, calls: FunctionCalls) -> Iterator[None]:
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
    server: Server, calls: FunctionCalls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    [future] = submit(calls, 1)
    calls.close()  # it is sent then
    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert "myrmidon job watch j\n" in capsys.readouterr().err


def test_a_call_that_is_cancelled_before_it_is_sent_is_not_sent(server: Server, calls: FunctionCalls):
    with busy(server, calls):
        futures = submit(calls, 3)
        assert futures[1].cancel()
    assert server.submitted == [["half[0]", "half[2]"]]
    assert futures[1].cancelled()


def test_a_call_that_is_cancelled_while_its_job_is_submitted_is_cancelled_on_the_server(
    server: Server, calls: FunctionCalls
):
    with busy(server, calls):
        futures = submit(calls, 3)
        server.during_submit = lambda: futures[1].cancel()
    assert futures[1].cancelled()
    assert server.cancelled == ["id of half[1]"]


def test_a_call_that_is_cancelled_while_others_are_taken_out_of_the_job_is_cancelled_on_the_server(
    server: Server, calls: FunctionCalls
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


# ---------------------------------------------------------------- results in the answer of a submit


def the_result(label: str) -> TaskOutcome:
    value = ResultValue("v", "float64", 9, msgspec.msgpack.encode(0.5))
    return TaskOutcome(
        task_id=f"id of {label}",
        state="SUCCEEDED",
        reason="",
        bot_id="b1",
        run=None,
        exit_code=0,
        error=None,
        outputs=[value],
    )


def test_a_result_that_comes_with_the_answer_of_the_submit_is_not_asked_for(server: Server, calls: FunctionCalls):
    server.max_wait_s = 1.0
    server.answered = [the_result("half")]
    assert calls.submit(half, (1.0,), {}).result(HANG_S) == 0.5
    assert (len(server.waits), server.polled) == (1, [])
    assert 0 < server.waits[0] <= 1


def test_a_server_that_does_not_say_that_it_waits_is_not_asked_to(server: Server, calls: FunctionCalls):
    server.answered = [the_result("half")]
    calls.submit(half, (1.0,), {}).result(HANG_S)
    assert server.waits == [0.0]


def test_further_calls_are_sent_while_the_server_holds_an_answer(server: Server, calls: FunctionCalls):
    server.max_wait_s = 1.0
    first_is_held, second_is_sent = threading.Event(), threading.Event()

    def hold_the_first() -> None:
        if len(server.submitted) > 1:
            second_is_sent.set()
            return
        first_is_held.set()
        assert second_is_sent.wait(HANG_S)

    server.during_submit = hold_the_first
    calls.submit(half, (1.0,), {})
    assert first_is_held.wait(HANG_S)
    calls.submit(half, (2.0,), {})
    assert second_is_sent.wait(HANG_S)
    assert server.waits[1] == 0.0, "only one answer is held at a time"
