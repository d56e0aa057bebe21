"""``context().submit``: a function on a bot that adds calls to its own job."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from myrmidon.functions import msgpack

SOURCE = """
    from __future__ import annotations

    import threading
    from typing import List, Tuple

    from myrmidon import context, task

    kept = []

    @task(reruns=2)
    def double(a: int) -> int:
        return 2 * a

    @task
    def total(parts: List[int]) -> int:
        return sum(parts)

    @task
    def pair(a: int) -> Tuple[int, str]:
        return a, str(a)

    @task
    def note(text: str) -> None:
        pass

    def plain_call(a: int) -> int:
        return double(a)

    def adds(n: int) -> int:
        for number in range(n):
            context().submit(double, number)
        return n

    def delegates(n: int) -> int:
        doubled = [context().submit(double, number) for number in range(n)]
        return context().submit(total, doubled)

    def delegates_map(n: int) -> int:
        return context().submit(total, context().map(double, range(n)))

    def delegates_pair(a: int) -> Tuple[int, str]:
        return context().submit(pair, a)

    def delegates_nothing() -> None:
        return context().submit(note, "a")

    def half_of_pair(a: int) -> int:
        return context().submit(pair, a)[0]

    def in_a_list(a: int) -> List[int]:
        return [context().submit(double, a)]

    def from_threads(n: int) -> int:
        threads = [threading.Thread(target=context().submit, args=(double, number)) for number in range(n)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return n

    def other_type(a: int) -> str:
        return context().submit(double, a)

    def of_another_run(a: int) -> int:
        kept.append(context().submit(double, a))
        context().submit(double, a)
        return kept[0]

    def flushed(a: int) -> int:
        handle = context().submit(double, a)
        context().flush()
        return handle

    def flush_and_more(a: int) -> int:
        context().submit(double, a)
        context().flush()
        return context().submit(double, a + 1)

    def waits(a: int) -> int:
        return context().submit(double, a).result()

    def computes(a: int) -> int:
        return context().submit(double, a) + 1

    def fails(a: int) -> int:
        context().submit(double, a)
        raise ValueError("too bad")

    def wrong_result(a: int) -> int:
        context().submit(double, a)
        return "text"

    def wrong_argument(a: int) -> int:
        context().submit(double, "text")
        return a

    def large(n: int) -> None:
        context().submit(note, "x" * n)

    def late() -> None:
        kept.append(context())

    def use_late() -> None:
        kept[0].submit(double, 1)
"""


@pytest.fixture
def executor(start, job_server):
    return Configured(start(SOURCE), job_server)


class Configured:
    """An executor whose runs know the job server."""

    def __init__(self, executor: Any, server: Any) -> None:
        self.executor = executor
        self.more = {"server": server.url, "token": "myu_x", "label": "split", "job_id": "j1"}

    def run(self, function: str, *inputs: Any, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.executor.run(function, *inputs, **{**self.more, **more})
        return answer


def values(node: dict[str, Any]) -> list[Any]:
    return [msgpack.unpack(base64.b64decode(one["payload"]["inline"])) for one in node["task"]["inputs"]]


def test_a_call_of_a_task_function_on_a_bot_is_a_plain_call(executor, job_server):
    answer = executor.run("plain_call", 4)
    assert msgpack.unpack(answer["outputs"][0]["data"]) == 8
    assert job_server.extensions == []


def test_submitted_calls_extend_the_job_under_labels_of_the_task(executor, job_server):
    answer = executor.run("adds", 3)
    assert (answer["op"], answer["delegated"]) == ("done", False)
    (extension,) = job_server.extensions
    assert list(extension) == ["tasks"]
    assert list(extension["tasks"]) == ["split/double", "split/double-2", "split/double-3"]
    node = extension["tasks"]["split/double-3"]
    assert values(node) == [2]
    assert node["task"]["function"] == {
        "package_name": "sample", "func_name": "double", "language": "PYTHON", "code": "code",
        "signature": "double(a:int64)->int64",
    }  # fmt: skip
    assert node["task"]["reruns"] == 2
    assert job_server.tokens == {"Bearer myu_x"}
    executor.run("adds", 3)
    assert job_server.extensions[1] == extension


def test_a_returned_handle_delegates_the_output(start_on, job_server):
    executor = Configured(start_on(SOURCE), job_server)
    for function in ("delegates", "delegates_map"):
        answer = executor.run(function, 2)
        assert (answer["op"], answer["outputs"], answer["delegated"]) == ("done", [], True)
    for extension in job_server.extensions:
        assert extension["delegates"] == {"split/total": "split"}
        parts = extension["tasks"]["split/total"]["task"]["inputs"][0]["parts"]
        assert [part["label"] for part in parts] == list(extension["tasks"])[:2]


def test_several_outputs_and_none_are_delegated_as_a_whole(executor, job_server):
    assert executor.run("delegates_pair", 2)["delegated"] is True
    assert executor.run("delegates_nothing")["delegated"] is True
    assert [one["delegates"] for one in job_server.extensions] == [{"split/pair": "split"}, {"split/note": "split"}]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("half_of_pair", "expected int64, given split/pair of (int64,string)"),
        ("other_type", "expected string, given split/double of int64"),
        ("in_a_list", "result: it contains handles; submit a function that takes them"),
        ("flushed", "was sent by flush() already"),
    ],
)
def test_a_handle_that_cannot_be_the_result_is_refused(executor, job_server, function, reason):
    answer = executor.run(function, 1)
    assert answer["kind"] == "type"
    assert reason in answer["error"]["message"]
    assert all("delegates" not in one for one in job_server.extensions)


def test_a_handle_of_another_run_is_refused(executor):
    assert executor.run("of_another_run", 1)["delegated"] is True
    assert "belongs to another run" in executor.run("of_another_run", 1)["error"]["message"]


def test_flush_sends_at_once_and_only_once(executor, job_server):
    assert executor.run("flush_and_more", 1)["delegated"] is True
    first, second = job_server.extensions
    assert list(first["tasks"]) == ["split/double"]
    assert list(second["tasks"]) == ["split/double-2"]
    assert second["delegates"] == {"split/double-2": "split"}


@pytest.mark.parametrize("function", ["waits", "computes"])
def test_waiting_for_a_submitted_call_raises(executor, job_server, function):
    error = executor.run(function, 1)["error"]
    assert error["type"] == "myrmidon.HandleMisuse"
    assert "sample.py" in error["message"]
    assert "cannot wait for what it has submitted" in error["message"]
    assert job_server.extensions == []


@pytest.mark.parametrize("function", ["fails", "wrong_result", "wrong_argument"])
def test_a_function_that_fails_has_added_nothing(executor, job_server, function):
    assert executor.run(function, 1)["op"] == "error"
    assert job_server.extensions == []


def test_many_calls_are_sent_in_pieces(executor, job_server):
    assert executor.run("delegates", 1_500)["delegated"] is True
    assert [len(one["tasks"]) for one in job_server.extensions] == [1000, 501]
    assert [one.get("delegates") for one in job_server.extensions] == [None, {"split/total": "split"}]


def test_calls_from_several_threads_have_labels_of_their_own(executor, job_server):
    assert executor.run("from_threads", 20)["op"] == "done"
    (extension,) = job_server.extensions
    assert len(extension["tasks"]) == 20
    assert sorted(values(node)[0] for node in extension["tasks"].values()) == list(range(20))


def test_large_constants_are_uploaded_before(executor, job_server):
    executor.run("large", 5000)
    data = msgpack.pack("x" * 5000)
    digest = hashlib.sha256(data).hexdigest()
    assert job_server.files == {digest: data}
    payload = job_server.extensions[0]["tasks"]["split/note"]["task"]["inputs"][0]["payload"]
    assert payload == {"digest": digest, "size": len(data)}


def test_a_run_without_a_token_cannot_submit(executor):
    error = executor.run("adds", 1, token="")["error"]
    assert "may not extend its job" in error["message"]


def test_a_refusal_by_the_server_fails_the_run(executor, job_server):
    job_server.refusals = [(409, "conflict", "the task split/double is different; use another label")]
    answer = executor.run("adds", 1)
    assert answer["op"] == "error"
    assert "is different" in answer["error"]["message"]


def test_a_context_of_a_run_that_has_ended_cannot_submit(executor, job_server):
    executor.run("late")
    assert "has ended" in executor.run("use_late")["error"]["message"]
    assert job_server.extensions == []
