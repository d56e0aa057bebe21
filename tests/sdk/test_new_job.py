"""Jobs that are built in a block: what is recorded, what is refused, and that a refused block submits nothing."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon import AsyncClient, Client, GraphError, HandleMisuse, TaskFailed, WaitedTooLong
from myrmidon.functions.values import encode
from myrmidon.sdk.progress import ProgressLine, progress_text
from myrmidon.sdk.transport import Transport
from myrmidon.wire.jobs import JobInfo
from tests.functions import tasks
from tests.sdk.scripted import Answer, Scripted, answer, scripted, streamed

NONE_MISSING = answer(200, {"missing": []})


def submitted(*labels: str) -> Answer:
    ids = {label: f"task-{label}" for label in labels}
    return answer(200, {"job_id": "j1", "state": "RUNNING", "task_ids": ids})


def outcome(label: str, *values: tuple[Any, Any], state: str = "SUCCEEDED", **more: Any) -> dict[str, Any]:
    outputs = [
        {"value_id": "v", "type": "t", "size": 1, "inline": base64.b64encode(encode(value, kind)).decode()}
        for value, kind in values
    ]
    plain = {"reason": "", "bot_id": None, "run": None, "exit_code": None, "error": None, "outputs": outputs}
    return {"task_id": f"task-{label}", "state": state, **plain, **more}


def results(*outcomes: dict[str, Any]) -> Answer:
    return answer(200, {"results": list(outcomes)})


def job_info(state: str, failure: str = "", **more: Any) -> Answer:
    first = {
        "task_id": f"task-{failure}",
        "label": failure,
        "state": "FAILED",
        "reason": "",
        "exit_code": 1,
        "bot_id": "b",
    }
    given = {
        "job_id": "j1", "external_id": None, "group": "g", "name": "n", "state": state, "view": "running",
        "created_at": 1, "ended_at": None, "deadline_at": 1, "sealed": False, "num_tasks": 4, "num_succeeded": 1,
        "num_failed": 1, "num_retries": 0, "tags": [], "counts": {"RUNNING": 2}, "progress": 0.5,
        "first_failure": first if failure else None, "error": None, "max_num_retries": 0,
        "failure_policy": "fail-fast", "routing": "", "metadata": {}, "sealed_at": None, "busy": False, **more,
    }  # fmt: skip
    return answer(200, given)


def client_of(server: Scripted) -> Client:
    return Client(Transport(server.url, "t"), code="installed")


def paths(server: Scripted) -> list[str]:
    return [seen.path.removeprefix("/api/v1/") for seen in server.seen]


@pytest.fixture
def unused() -> Iterator[Client]:
    """A client whose server must not be called."""
    with scripted(answer(500)) as server, client_of(server) as client:
        yield client
        assert server.seen == []


def test_a_block_submits_its_graph_at_its_end_and_results_are_decoded():
    two = streamed(outcome("merge", ({"a": 3}, dict[str, int])))
    with scripted(submitted("count[0]", "merge"), two) as server, client_of(server) as client:
        with client.new_job("word count", tags=["a:b"]) as job:
            total = tasks.merge(job.map(tasks.count, ["a"]))
            assert server.seen == []
        assert job.id == "j1"
        assert job.result(total) == {"a": 3}
    document = server.seen[0].body["job"]
    assert (document["name"], document["failure_policy"], document["max_num_retries"]) == ("word count", "fail-fast", 0)
    assert document["tags"] == ["a:b"]
    assert list(document["tasks"]) == ["count[0]", "merge"]
    assert paths(server) == ["jobs", "results/streams"]
    assert server.seen[0].headers["Idempotency-Key"]


def test_results_of_lists_tuples_and_dicts_have_their_shape():
    done = streamed(
        outcome("two", (1, int), ("1", str)),
        outcome("nothing"),
        outcome("later", (2, int)),
        outcome("one_tuple", (5, int)),
    )
    with scripted(submitted("two", "nothing", "later", "one_tuple"), done) as server, client_of(server) as client:
        with client.new_job() as job:
            both = tasks.two(1)
            _, text = both
            empty = tasks.nothing(1)
            coming = tasks.later(1)
            single = tasks.one_tuple(5)
        assert job.result({"both": both, "text": [text], "more": (coming, empty)}) == {
            "both": (1, "1"),
            "text": ["1"],
            "more": (2, None),
        }
        assert job.result(coming) == 2
        assert job.result(single) == (5,)


def test_large_values_are_uploaded_first_and_large_results_fetched():
    value = Answer(200, encode(5_000, int), {"Content-Type": "application/msgpack"})
    remote = {"value_id": "v7", "type": "int64", "size": 5000, "inline": None}
    done = streamed(outcome("big", outputs=[remote]))
    with scripted(answer(200, {"missing": []}), submitted("big"), done, value) as server, client_of(server) as client:
        with client.new_job() as job:
            size = tasks.big(b"x" * 5_000)
        assert job.result(size) == 5_000
    assert paths(server) == ["files/missing", "jobs", "results/streams", "values/v7"]


def test_files_that_the_server_does_not_have_are_sent():
    data = encode(b"x" * 5_000, bytes)
    with scripted(answer(200, {"missing": []})) as probe, client_of(probe) as client:
        with pytest.raises(Exception, match="not the expected"), client.new_job():
            tasks.big(b"x" * 5_000)
        digest = probe.seen[0].body["files"][0]["digest"]
    missing = answer(200, {"missing": [digest]})
    stored = answer(200, {"digest": digest, "size": len(data)})
    with scripted(missing, stored, submitted("big")) as server, client_of(server) as client:
        with client.new_job():
            tasks.big(b"x" * 5_000)
    assert paths(server) == ["files/missing", f"files/{digest}", "jobs"]
    assert (server.seen[1].method, server.seen[1].body) == ("PUT", data)


def test_a_file_that_was_deleted_meanwhile_is_sent_again():
    gone = answer(409, {"error": {"code": "unknown_file", "message": "gone"}})
    with scripted(NONE_MISSING, gone, NONE_MISSING, submitted("big")) as server, client_of(server) as client:
        with client.new_job():
            tasks.big(b"x" * 5_000)
    assert paths(server) == ["files/missing", "jobs", "files/missing", "jobs"]


# -- what submits nothing -------------------------------------------------------------------------------------------


def test_an_exception_in_the_block_is_passed_on(unused):
    with pytest.raises(ZeroDivisionError), unused.new_job() as job:
        tasks.half(1.0)
        raise ZeroDivisionError
    with pytest.raises(GraphError, match="was not submitted"):
        _ = job.id


def test_an_empty_block(unused):
    with pytest.raises(GraphError, match="no tasks"), unused.new_job():
        pass


def test_a_nested_block_even_if_its_error_is_caught(unused):
    with pytest.raises(GraphError, match=r"test_new_job\.py:\d+: a job cannot be built inside the block of another"):
        with unused.new_job():
            tasks.half(1.0)
            try:
                with unused.new_job():
                    raise AssertionError
            except GraphError:
                pass
            tasks.half(1.0)
    assert tasks.half(1.0) == 0.5


def test_a_call_from_another_thread_with_this_context(unused):
    problems: list[Exception] = []

    def elsewhere() -> None:
        try:
            tasks.half(2.0)
        except GraphError as error:
            problems.append(error)

    with pytest.raises(GraphError, match="from another thread"), unused.new_job():
        tasks.half(1.0)
        thread = threading.Thread(target=contextvars.copy_context().run, args=(elsewhere,))
        thread.start()
        thread.join()
    assert len(problems) == 1


def test_a_handle_in_another_thread(unused):
    problems: list[Exception] = []

    def elsewhere(handle: float) -> None:
        try:
            tasks.half(handle)
        except HandleMisuse as error:
            problems.append(error)

    with pytest.raises(ZeroDivisionError), unused.new_job():
        handle = tasks.half(1.0)
        thread = threading.Thread(target=elsewhere, args=(handle,))
        thread.start()
        thread.join()
        assert len(problems) == 1
        raise ZeroDivisionError


def test_a_thread_without_the_context_calls_the_plain_function(unused):
    found: list[float] = []
    with pytest.raises(ZeroDivisionError), unused.new_job():
        thread = threading.Thread(target=lambda: found.append(tasks.half(3.0)))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert found == [1.5]


def test_asking_for_a_result_inside(unused):
    with pytest.raises(GraphError, match="submitted at the end of its block"), unused.new_job() as job:
        handle = tasks.half(1.0)
        job.result(handle)


def test_client_submit_and_map_inside(unused):
    for call in (lambda: unused.submit(tasks.half, 1.0), lambda: unused.map(tasks.half, [1.0])):
        with pytest.raises(GraphError, match="inside a job's block"), unused.new_job():
            tasks.half(1.0)
            call()


def test_a_handle_used_as_a_value(unused):
    with pytest.raises(HandleMisuse, match="used as a condition"), unused.new_job():
        if tasks.half(1.0):
            pass


def test_methods_of_the_job_outside_of_its_block(unused):
    job = unused.new_job()
    for call in (lambda: job.map(tasks.half, [1.0]), lambda: job.command(["a"]), lambda: job.reduce(tasks.merge, [])):
        with pytest.raises(GraphError, match="belongs into the block"):
            call()
    with pytest.raises(GraphError, match="was not submitted"):
        job.result(1)


def test_a_block_can_be_used_once():
    with scripted(submitted("half")) as server, client_of(server) as client:
        with client.new_job() as job:
            tasks.half(1.0)
        with pytest.raises(GraphError, match="was built already"), job:
            pass


def test_results_of_another_job_are_refused():
    with scripted(submitted("half")) as server, client_of(server) as client:
        with client.new_job() as first:
            handle = tasks.half(1.0)
        with client.new_job() as second:
            tasks.half(1.0)
        with pytest.raises(GraphError, match="belongs to another job"):
            second.result(handle)
        with pytest.raises(TypeError, match="belongs to another job"), client.new_job():
            tasks.half(handle)
        assert first.id


# -- failures -------------------------------------------------------------------------------------------------------

ERROR = {
    "type": "builtins.ValueError", "message": "bad thing", "traceback": "Traceback ...\nValueError: bad thing\n",
    "args": ["bad thing"], "bases": ["builtins.Exception"],
}  # fmt: skip


def test_a_failed_task_raises_its_own_class_with_everything_known():
    failed = outcome("half", state="FAILED", bot_id="bot-1", run="r1", exit_code=1, error=ERROR)
    log = Answer(200, b"last words\n", {"X-Log-Length": "11", "X-Log-Next": "11"})
    with scripted(submitted("half"), streamed(failed), log) as server, client_of(server) as client:
        with client.new_job() as job:
            handle = tasks.half(1.0)
        with pytest.raises(TaskFailed) as caught:
            job.result(handle)
        failure = caught.value
        assert isinstance(failure, ValueError)
        assert failure.args == ("bad thing",)
        assert (failure.label, failure.bot, failure.run, failure.state) == ("half", "bot-1", "r1", "FAILED")
        assert failure.remote_traceback == ERROR["traceback"]
        assert failure.log_tail == "last words\n"
        assert "half failed on bot bot-1: ValueError: bad thing" in str(failure)
        assert "Traceback ..." in str(failure)


def test_a_task_that_was_cancelled_because_of_another_raises_the_other_ones_error():
    answers = [
        submitted("half", "half-2"),
        streamed(outcome("half-2", state="CANCELLED", reason="fail_fast")),
        job_info("FAILED", "half"),
        results(outcome("half", state="FAILED", error=ERROR)),
    ]
    with scripted(*answers) as server, client_of(server) as client:
        with client.new_job() as job:
            last = tasks.half(tasks.half(1.0))
        with pytest.raises(ValueError, match="bad thing") as caught:
            job.result(last)
    assert isinstance(caught.value, TaskFailed)
    assert caught.value.label == "half"


def test_a_task_that_waits_for_a_failed_one_raises_that_ones_error():
    ended = outcome("half-2", state="FAILED", error=ERROR, ended_by="task-half")
    with scripted(submitted("half", "half-2"), streamed(ended)) as server, client_of(server) as client:
        with client.new_job(fail_fast=False) as job:
            last = tasks.half(tasks.half(1.0))
        with pytest.raises(ValueError, match="bad thing") as caught:
            job.result(last)
    assert isinstance(caught.value, TaskFailed)
    assert (caught.value.label, caught.value.task_id) == ("half", "task-half")
    assert server.seen[0].body["job"]["failure_policy"] == "continue"


def test_waiting_no_longer_than_asked():
    with scripted(submitted("half"), streamed()) as server, client_of(server) as client:
        with client.new_job() as job:
            handle = tasks.half(1.0)
        with pytest.raises(WaitedTooLong, match="it goes on"):
            job.result(handle, timeout=0)


def test_ctrl_c_leaves_the_job_running_and_says_how_to_watch_it(capsys, monkeypatch):
    with scripted(submitted("half")) as server, client_of(server) as client:
        with client.new_job() as job:
            handle = tasks.half(1.0)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("myrmidon.sdk.result_stream.ResultStream.follow", interrupt)
        with pytest.raises(KeyboardInterrupt):
            job.result(handle)
    assert "myrmidon job watch j1" in capsys.readouterr().err
    assert paths(server) == ["jobs"]


def test_a_rerun_keeps_the_code_unless_the_new_one_is_asked_for(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("1")
    again = answer(200, {"job_id": "j1", "state": "RUNNING"})
    answers = [NONE_MISSING, submitted("half"), again, again, NONE_MISSING, again]
    with scripted(*answers) as server, client_of(server) as client:
        with client.new_job(code=code) as job:
            tasks.half(1.0)
        job.rerun()
        job.rerun(failed=False)
        (code / "a.py").write_text("2")
        job.rerun(code="new")
    (old,) = server.seen[0].body["files"]
    (new,) = server.seen[4].body["files"]
    assert server.seen[1].body["job"]["tasks"]["half"]["task"]["function"]["code"] == old["digest"]
    assert [seen.body.get("full") for seen in server.seen[2:4]] == [False, True]
    assert "code" not in server.seen[2].body
    assert server.seen[5].body["code"] == {old["digest"]: new["digest"]}


# -- progress and async ---------------------------------------------------------------------------------------------


def test_the_progress_line_is_shown_in_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    import msgspec

    info = msgspec.json.decode(job_info("RUNNING").body, type=JobInfo)
    assert progress_text("words", info) == "words  [############------------]  2 of 4  2 running  1 failed"
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        line = ProgressLine("words", stream)
        line.update(info)
        line.end()
    assert "2 of 4" in screen.getvalue()
    assert file.getvalue() == ""


def test_the_async_client_builds_submits_and_waits():
    done = streamed(outcome("half-2", (0.25, float)))

    async def program(url: str) -> float:
        async with AsyncClient(Transport(url, "t"), code="installed") as client:
            async with client.new_job("a") as job:
                last = tasks.half(tasks.half(1.0))
            return await job.result(last)

    with scripted(submitted("half", "half-2"), streamed(), done) as server:
        assert asyncio.run(program(server.url)) == 0.25


def test_an_empty_async_block_submits_nothing():
    async def program(url: str) -> None:
        async with AsyncClient(Transport(url, "t")) as client, client.new_job("a"):
            pass

    with scripted(answer(500)) as server:
        with pytest.raises(GraphError, match="no tasks"):
            asyncio.run(program(server.url))
        assert server.seen == []
