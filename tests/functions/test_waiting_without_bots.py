"""A program that waits for a task which no bot can run is told so."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from myrmidon import Client
from myrmidon.sdk.result_stream import ResultStream
from tests.deadline import HANG_S
from tests.functions import remote_tasks as tasks

NOWHERE = tasks.half.options(dimensions={"os": "Linx"})


class Warnings(logging.Handler):
    """Keeps warnings, and wakes a test that waits for the first one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.came = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.came.set()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warnings]:
    monkeypatch.setattr("myrmidon.sdk.wait_reasons._FIRST_LOOK_S", 0.0)
    monkeypatch.setattr("myrmidon.sdk.wait_reasons._NEXT_LOOK_S", 0.0)
    handler = Warnings()
    logging.getLogger("myrmidon").addHandler(handler)
    yield handler
    logging.getLogger("myrmidon").removeHandler(handler)


def test_a_job_without_a_bot_is_named_once(client: Client, warnings: Warnings):
    with client.new_job() as job:
        value = tasks.half(NOWHERE(1.0))
    for timeout in (1, 10, 100):  # longer, where the server has not explained the task in time
        with pytest.raises(TimeoutError):
            job.result(value, timeout=timeout)
        if warnings.texts:
            break
    [told] = warnings.texts
    assert told.startswith("waiting for half: No bot matches: none of the remaining bots has os:Linx; their os is ")
    job.cancel()


def test_a_single_call_without_a_bot_is_named(client: Client, warnings: Warnings):
    future = client.submit(NOWHERE, 1.0)
    assert warnings.came.wait(HANG_S)
    assert "has os:Linx" in warnings.texts[0]
    assert future.cancel()


def test_a_call_behind_one_that_runs_is_named_and_a_later_one_again(client: Client, warnings: Warnings, tmp_path: Path):
    running = client.submit(tasks.held, str(tmp_path / "go"))
    stuck = []
    for number in (1, 2):
        warnings.came.clear()
        stuck.append(client.submit(NOWHERE, 1.0))
        assert warnings.came.wait(HANG_S)
        assert len(warnings.texts) == number
    assert warnings.texts[1].startswith("waiting for half and 1 more: No bot matches: ")
    assert [future.cancel() for future in stuck] == [True, True]
    (tmp_path / "go").touch()
    assert running.result(HANG_S)


def test_a_job_that_is_waited_for_to_its_end_names_it_too(client: Client, warnings: Warnings):
    with client.new_job() as job:
        NOWHERE(1.0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(job.wait)
        assert warnings.came.wait(HANG_S)
        job.cancel()
        assert waiting.result().state == "CANCELLED"
    assert "has os:Linx" in warnings.texts[0]


def test_work_that_bots_do_is_not_warned_of(client: Client, warnings: Warnings):
    assert list(client.map(tasks.half, [1.0, 2.0])) == [0.5, 1.0]
    with client.new_job() as job:
        value = tasks.half(1.0)
    assert job.result(value) == 0.5
    assert warnings.texts == []


def test_ctrl_c_shows_no_frames_of_the_http_client(client: Client, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with client.new_job() as job:
        value = tasks.half(1.0)
    monkeypatch.setattr(ResultStream, "follow", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        job.result(value)
    assert "interrupt" not in "".join(traceback.format_exception(caught.value))
