"""Functions that extend their own job, with a real server and a real bot."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from myrmidon import Client, TaskFailed
from tests.bot.test_live import live_bot
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server

MODULE = "functions_of_a_live_job"
SOURCE = """
    import os

    from myrmidon import context, task

    @task
    def double(a: int) -> int:
        return 2 * a

    @task
    def total(parts: list[int]) -> int:
        return sum(parts)

    @task
    def up_to(n: int) -> list[int]:
        return list(range(n))

    @task
    def sum_of_doubles(n: int) -> int:
        return context().submit(total, context().map(double, range(n)))

    @task
    def factorial(n: int, so_far: int = 1) -> int:
        return so_far if n <= 1 else context().submit(factorial, n - 1, so_far * n)

    @task(memory_mb=100)
    def allocate(megabytes: int) -> int:
        return len(bytes(megabytes << 20))

    @task(env={"OF_THE_TASK": "yes"})
    def variable(name: str) -> str:
        return os.environ.get(name, "")

    @task
    def divide(a: int) -> tuple[int, int]:
        return divmod(a, 10)

    @task
    def divide_later(a: int) -> tuple[int, int]:
        return context().submit(divide, a)

    @task
    def fails_after_submit() -> int:
        context().submit(double, 1)
        raise ValueError("on purpose")

    @task(reruns=1)
    def crashes_after_submit() -> int:
        handle = context().submit(double, 20)
        context().flush()
        if context().run == 1:
            os._exit(1)
        return context().submit(total, [handle, 2])

    @task
    def delegates_to_failure() -> int:
        return context().submit(fails_after_submit)
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module that is installed for the client and for the bot."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / f"{MODULE}.py").write_text(dedent(SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield importlib.import_module(MODULE)
        del sys.modules[MODULE]


@pytest.fixture(scope="module")
def server(tasks: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("bots") / "b1"
    with live_server() as started, live_bot(started, folder, "default", "--pass-env", "PYTHONPATH"):
        yield started


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server.url, server.token, code="installed") as made:
        yield made


def labels(server: LiveServer, job_id: str) -> dict[str, str]:
    status, answer = server.get(f"/api/v1/jobs/{job_id}/tasks")
    assert status == 200
    return {task["label"]: task["state"] for task in answer["tasks"]}


def test_the_output_of_a_delegate_is_the_output_of_the_caller(client, server, tasks):
    with client.new_job("delegates") as job:
        result = tasks.double(tasks.sum_of_doubles(4))
    assert job.result(result) == 24
    assert set(labels(server, job.id)) == {
        "double", "sum_of_doubles", "sum_of_doubles/total", *(f"sum_of_doubles/double[{n}]" for n in range(4)),
    }  # fmt: skip


def test_delegates_may_delegate_in_turn(client, tasks):
    with client.new_job("a chain of delegates") as job:
        result = tasks.double(tasks.factorial(5))
    assert job.result(result) == 240


def test_several_outputs_are_delegated_together(client, tasks):
    with client.new_job("pairs") as job:
        tens, ones = tasks.divide_later(42)
        result = tasks.total([tens, ones])
    assert job.result(result) == 6
    assert job.result(ones) == 2


def test_a_function_that_fails_has_added_nothing(client, server, tasks):
    with client.new_job("fails") as job:
        result = tasks.fails_after_submit()
    with pytest.raises(TaskFailed):
        job.result(result)
    assert set(labels(server, job.id)) == {"fails_after_submit"}


def test_a_repeated_run_finds_what_the_first_one_has_added(client, server, tasks):
    with client.new_job("crashes") as job:
        result = tasks.crashes_after_submit()
    assert job.result(result) == 42
    label = "crashes_after_submit"
    assert set(labels(server, job.id)) == {label, f"{label}/double", f"{label}/total"}


def test_the_failure_of_a_delegate_is_the_failure_of_the_job(client, tasks):
    with client.new_job("delegates to a failure") as job:
        result = tasks.double(tasks.delegates_to_failure())
    with pytest.raises(TaskFailed, match="fails_after_submit"):
        job.result(result)


def test_who_waits_for_a_task_that_delegates_waits_for_its_delegates(client, tasks):
    """Without a graph: the results come from the route for many tasks at once."""
    with client.executor() as pool:
        good, bad = pool.submit(tasks.factorial, 5), pool.submit(tasks.delegates_to_failure)
        assert good.result(HANG_S) == 120
        failure = bad.exception(HANG_S)
    assert isinstance(failure, TaskFailed)
    assert isinstance(failure, ValueError)
    assert "on purpose" in str(failure)
    assert "in fails_after_submit" in failure.remote_traceback


def test_a_function_has_the_environment_of_its_task(client, tasks):
    assert list(client.map(tasks.variable, ["OF_THE_TASK", "ABSENT"])) == ["yes", ""]


def test_the_reason_of_a_failure_is_a_sentence(client, server, tasks):
    with client.new_job("allocates") as job:
        result = tasks.allocate(1024)
    with pytest.raises(TaskFailed) as caught:
        job.result(result)
    assert isinstance(caught.value, MemoryError)
    (task,) = server.get(f"/api/v1/jobs/{job.id}/tasks")[1]["tasks"]
    (run,) = server.get(f"/api/v1/tasks/{task['task_id']}")[1]["runs"]
    assert run["evidence"]["message"] == "out of memory: more than 100 MB"


@pytest.mark.parametrize("width", [0, 1, 20])
def test_a_map_over_a_result_has_the_width_of_the_result(client, tasks, width):
    with client.new_job("map") as job:
        result = tasks.total(job.map(tasks.double, tasks.up_to(width)))
    assert job.result(result) == sum(2 * n for n in range(width))
