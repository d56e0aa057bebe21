"""Functions through the real server, the SDK and bots: shipped code, large values, crashes, outputs of commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from myrmidon import Client, TaskFailed
from tests.bot.bots import wait_for
from tests.bot.test_live import live_bot
from tests.live import LiveServer, live_server

MODULE = "functions_of_a_live_bot"
SOURCE = """
    import os
    import time
    from typing import Dict, List

    from myrmidon import task

    @task
    def numbers(start: int, count: int) -> List[int]:
        return list(range(start, start + count))

    @task
    def total(parts: List[List[int]]) -> int:
        return sum(map(sum, parts))

    @task
    def blob(size: int) -> bytes:
        return b"x" * size

    @task
    def size_of(data: bytes) -> int:
        return len(data)

    @task
    def crash(number: int) -> int:
        os.kill(os.getpid(), number)
        return 0

    @task(memory_mb=256)
    def allocate(size: int) -> int:
        data = bytearray(size)
        for at in range(0, size, 4096):
            data[at] = 1
        return len(data)

    @task
    def words(counts: Dict[str, int]) -> int:
        return sum(counts.values())

    @task
    def say(text: str) -> int:
        print(text)
        return os.getpid()
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of the client's only: its code is shipped to the bots."""
    folder = tmp_path_factory.mktemp("client")
    (folder / f"{MODULE}.py").write_text(dedent(SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module(MODULE)
        del sys.modules[MODULE]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("bots")
    with (
        live_server() as started,
        live_bot(started, folder / "b1", "default", "--slots", "2"),
        live_bot(started, folder / "b2", "default", "--slots", "1"),
    ):
        yield started


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


def test_shipped_code_and_large_values_pass_through_a_fan_out_and_a_fan_in(client: Client, tasks: ModuleType):
    with client.new_job("fan") as job:
        parts = [tasks.numbers(start, 5000) for start in range(12)]
        result = tasks.total(parts)
    assert job.result(result) == sum(sum(range(start, start + 5000)) for start in range(12))


def test_a_large_value_goes_from_one_function_to_the_next(client: Client, tasks: ModuleType):
    with client.new_job("blob") as job:
        result = tasks.size_of(tasks.blob(3_000_000))
    assert job.result(result) == 3_000_000


def test_many_short_functions_come_back_in_order(client: Client, tasks: ModuleType):
    assert list(client.map(tasks.words, [{"a": number, "b": 1} for number in range(600)])) == list(range(1, 601))


def test_a_crash_names_its_signal_and_leaves_the_others_alone(client: Client, tasks: ModuleType):
    with client.executor() as pool:
        others = [pool.submit(tasks.words, {"a": number}) for number in range(50)]
        crash = pool.submit(tasks.crash, 11)
        assert [each.result() for each in others] == list(range(50))
        failure = crash.exception()
    assert isinstance(failure, TaskFailed)
    assert "killed by signal 11 (segmentation fault)" in str(failure)


def test_a_function_over_its_memory_fails_with_the_limit(client: Client, tasks: ModuleType):
    with client.executor() as pool:
        failure = pool.submit(tasks.allocate, 1 << 30).exception()
    assert isinstance(failure, TaskFailed)
    assert isinstance(failure, MemoryError)
    assert "256 MB" in str(failure)


def test_a_command_gives_a_function_its_input(client: Client, tasks: ModuleType):
    with client.new_job("command") as job:
        script = """echo '{"a": 2, "b": 3}' > "$MYRMIDON_OUTPUT_DIR/0" """
        counts = job.command(["/bin/sh", "-c", script], returns=dict[str, int])
        result = tasks.words(counts)
    assert job.result(result) == 5


def test_functions_run_beside_long_commands_while_more_commands_wait(client: Client, tasks: ModuleType, tmp_path: Path):
    """As many commands as bots, and one that waits behind them in the same pool."""
    script = f"while ! [ -e {tmp_path}/go ]; do sleep 0.01; done"
    with client.new_job("long") as long:
        commands = [long.command(["/bin/sh", "-c", script], label=f"c{number}") for number in range(3)]
    wait_for(lambda: long.info().counts.get("RUNNING") == 2, "a command on each bot")
    assert [client.submit(tasks.words, {"a": number}).result() for number in range(20)] == list(range(20))
    assert long.info().counts == {"RUNNING": 2, "READY": 1}
    (tmp_path / "go").touch()
    assert long.wait().state == "SUCCEEDED"
    assert len(commands) == 3
