"""Calls of functions on real bots: each ends, whatever happens to what it depends on; maps of any size."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from pathlib import Path

import pytest

from myrmidon import AsyncClient, Client, TaskFailed
from myrmidon.functions.task_function import TaskFunction
from myrmidon.sdk import changed_globals
from myrmidon.sdk.transport import Transport
from tests.deadline import HANG_S
from tests.functions import changed_constants, more_constants
from tests.functions import remote_tasks as tasks
from tests.functions.live import a_client
from tests.live import LiveServer

NEVER_WRITTEN = tasks.leaves_to_one_that_fails


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---------------------------------------------------------------- calls whose value will never be written


def test_a_call_whose_result_depends_on_a_failed_call_fails(client: Client):
    with pytest.raises(ValueError, match="bad 1") as caught:
        client.submit(NEVER_WRITTEN, 1).result(HANG_S)
    assert isinstance(caught.value, TaskFailed)
    assert caught.value.label == "leaves_to_one_that_fails"
    assert caught.value.log_tail == "about to fail\n", "that of the task which has failed"


def test_that_holds_for_executors_as_completed_and_asyncio(client: Client, server: LiveServer):
    with client.executor() as executor:
        with pytest.raises(ValueError, match="bad 1"):
            list(executor.map(NEVER_WRITTEN, [1], timeout=HANG_S))
        [ended] = as_completed([executor.submit(NEVER_WRITTEN, 1)], timeout=HANG_S)
        assert isinstance(ended.exception(), ValueError)

    async def program() -> None:
        async with AsyncClient(Transport(server.url, server.token)) as asynchronous:
            with pytest.raises(ValueError, match="bad 1"):
                await asyncio.wait_for(asynchronous.submit(NEVER_WRITTEN, 1), HANG_S)
            async with asynchronous.new_job(fail_fast=False) as job:
                behind = tasks.plus(tasks.fails(1), 2)
            with pytest.raises(ValueError, match="bad 1"):
                await asyncio.wait_for(job.result(behind), HANG_S)

    asyncio.run(program())


def test_a_result_behind_a_failed_task_raises_while_its_job_goes_on(client: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    with client.new_job(fail_fast=False) as job:
        behind = tasks.plus(tasks.fails(1), 2)
        goes_on = tasks.held(str(gate))
    with pytest.raises(ValueError, match="bad 1") as caught:
        job.result(behind, timeout=HANG_S)
    assert isinstance(caught.value, TaskFailed)
    assert caught.value.label == "fails"
    gate.touch()
    assert job.result(goes_on)


def test_calls_are_nested_deeply(client: Client):
    assert client.submit(tasks.down, 40).result(HANG_S) == 0


def test_calls_of_a_client_whose_stream_is_on_no_server_end_too(server: LiveServer, client: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    with a_client(server) as other:
        waiting = other.submit(tasks.held, str(gate))
        stream = other._calls.stream
        until(lambda: bool(stream._id))
        first, stream._id = stream._id, "lost"
        assert other.submit(tasks.half, 1.0).result(HANG_S) == 0.5
        assert stream._id not in (first, "lost")
        gate.touch()
        assert waiting.result(HANG_S)


# ---------------------------------------------------------------- maps


def test_a_map_of_an_endless_generator_keeps_to_its_window(client: Client):
    taken = itertools.count(1)
    results = client.map_with(window=20)(tasks.half, (float(next(taken)) for _ in itertools.repeat(None)))
    assert [next(results) for _ in range(50)] == [number / 2 for number in range(1, 51)]
    assert next(taken) <= 72, "no more are taken than the results and the window"


def test_a_map_gives_the_errors_of_calls_as_results(client: Client, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("text")
    first, second, third = client.map_with(return_exceptions=True)(tasks.needs, ["/nowhere", str(file), "/nowhere"])
    assert isinstance(first, FileNotFoundError)
    assert isinstance(third, TaskFailed)
    assert second == "text"


def test_a_map_gives_results_as_calls_end(client: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    results = client.map_with(order_outputs=False)(tasks.held, [str(gate), "/dev/null"])
    assert next(results)
    gate.touch()
    assert len(list(results)) == 1


def test_the_async_client_maps_in_the_same_ways(server: LiveServer, client: Client, tmp_path: Path):
    gate = tmp_path / "gate"

    async def program() -> None:
        async with AsyncClient(Transport(server.url, server.token)) as asynchronous:
            numbers = (float(number) for number in itertools.count(1))
            some = asynchronous.map_with(window=10)(tasks.half, numbers)
            assert [await anext(some) for _ in range(30)] == [number / 2 for number in range(1, 31)]
            mixed = asynchronous.map_with(return_exceptions=True)(tasks.needs, ["/nowhere"])
            assert [type(one).__mro__[2] async for one in mixed] == [FileNotFoundError]
            early = asynchronous.map_with(order_outputs=False)(tasks.held, [str(gate), "/dev/null"])
            assert await anext(early)
            gate.touch()
            assert len([one async for one in early]) == 1

    asyncio.run(program())


def test_a_map_shows_a_bar_in_a_terminal_if_asked(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert sum(client.map_with(progress=True)(tasks.half, [2.0, 4.0])) == 3.0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    assert sum(client.map_with(progress=True)(tasks.half, [2.0, 4.0, 6.0])) == 6.0
    assert "3/3" in capsys.readouterr().err


def test_a_window_without_room_is_refused(client: Client):
    with pytest.raises(ValueError, match="window is 0"):
        client.map_with(window=0)(tasks.half, [1.0])
    with pytest.raises(TypeError, match="windows"):
        client.map_with(windows=3)(tasks.half, [1.0])  # type: ignore[call-overload]


# ---------------------------------------------------------------- what is known of a call


def test_a_future_says_whether_its_task_runs(client: Client, tmp_path: Path):
    gate, started = tmp_path / "gate", tmp_path / "started"
    with client.executor() as executor:
        future = executor.submit(tasks.wait_for_file, str(gate), str(started))
        waiting = client.submit(tasks.half.options(dimensions={"id": "nobody"}), 1.0)
        until(started.exists)
        assert future.running()
        assert not waiting.running()
        gate.touch()
        future.result(HANG_S)
        assert not future.running()
        assert waiting.cancel()


# ---------------------------------------------------------------- constants that the program has changed


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    changed_globals._said.clear()
    with caplog.at_level(logging.WARNING, "myrmidon"):
        yield caplog


def told(client: Client, warnings: pytest.LogCaptureFixture, function: TaskFunction[..., float]) -> list[str]:
    warnings.clear()
    client.submit(function, 1).result(HANG_S)
    return sorted(record.getMessage().partition(" on bots")[0] for record in warnings.records)


def test_constants_that_the_program_has_changed_are_named_once(
    client: Client, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    assert told(client, warnings, changed_constants.cost) == []
    monkeypatch.setattr(changed_constants, "RATE", 2.5)
    monkeypatch.setattr(changed_constants, "SHAPE", (3, 4))
    monkeypatch.setattr(more_constants, "DEPTH", 5)
    assert told(client, warnings, changed_constants.cost) == [
        "DEPTH of tests.functions.more_constants is 5 in this program and 4",
        "RATE of tests.functions.changed_constants is 2.5 in this program and 1.5",
        "SHAPE of tests.functions.changed_constants is (3, 4) in this program and (1, 2)",
    ]
    assert told(client, warnings, changed_constants.cost) == []


def test_what_may_differ_for_a_reason_is_not_named(
    client: Client, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {"UNUSED": 4, "COUNTED": 7, "SWITCHED": 1, "REGISTRY": {}, "LAZY": object()}.items():
        monkeypatch.setattr(changed_constants, name, value)
    assert told(client, warnings, changed_constants.cost) == []
