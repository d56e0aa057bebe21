"""client.executor() behaves as the executors of Python.

The tests repeat what CPython's own tests of executors demand (test_concurrent_futures: ExecutorTest, WaitTests,
AsCompletedTests, ExecutorShutdownTest); functions wait for files instead of sleeping. Left out, with reasons:

    test_no_stale_references, test_free_reference    arguments and results of a class without types cannot be sent
    test_max_workers_*, test_map_buffersize_*        there is no number of workers; all calls are submitted at once
    test_interpreter_shutdown, test_hang_gh83386     what a function prints goes to the log of its task
    test_submit_after_interpreter_shutdown           a submit after the end of the client is refused (tested here)
    test_thread_*, test_processes_*, deadlock tests  about threads and processes of the local pools
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from myrmidon import Client
from myrmidon.sdk.remote_executor import RemoteExecutor
from tests.functions.live import a_client
from tests.functions.remote_tasks import capture, count, half, later, mul, raise_after, wait_for_file
from tests.live import LiveServer

pytestmark = pytest.mark.full


@pytest.fixture
def executor(client: Client, tmp_path: Path) -> Iterator[RemoteExecutor]:
    with client.executor() as made:
        try:
            yield made
        finally:
            (tmp_path / "file").touch()  # ends the functions that wait for it


def a_future(*, result: Any = None, error: Exception | None = None) -> Future[Any]:
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()
    if error is not None:
        made.set_exception(error)
    else:
        made.set_result(result)
    return made


def cancelled() -> Future[Any]:
    made: Future[Any] = Future()
    made.cancel()
    made.set_running_or_notify_cancel()
    return made


# -- ExecutorTest ---------------------------------------------------------------------------------------------------


@pytest.mark.short
def test_submit(executor):
    assert executor.submit(pow, 2, 8).result() == 256


def test_submit_keyword(executor):
    assert executor.submit(mul, 2, y=8).result() == 16
    assert executor.submit(capture, 1, self=2, fn=3).result() == ((1,), {"self": 2, "fn": 3})
    with pytest.raises(TypeError):
        executor.submit(fn=capture, arg=1)
    with pytest.raises(TypeError):
        executor.submit(arg=1)


@pytest.mark.short
def test_map(executor):
    assert list(executor.map(pow, range(10), range(10))) == list(map(pow, range(10), range(10)))
    assert list(executor.map(pow, range(10), range(10), chunksize=3)) == list(map(pow, range(10), range(10)))


def test_map_exception(executor):
    results = executor.map(divmod, [1, 1, 1, 1], [2, 3, 0, 5])
    assert (next(results), next(results)) == ((0, 1), (0, 1))
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_map_timeout(executor, tmp_path):
    for timeout in (1, 10, 100):  # longer, where not even the first result comes in time
        gate = tmp_path / f"gate{timeout}"
        results = executor.map(wait_for_file, ["/", str(gate)], timeout=timeout)
        with suppress(futures.TimeoutError):
            assert next(results) is None
            break
        gate.touch()
    try:
        with pytest.raises(futures.TimeoutError):
            next(results)
    finally:
        gate.touch()


def test_shutdown_race_issue12456(executor):
    executor.map(str, [2] * 5)
    executor.shutdown()


def test_typed_functions_and_coroutines(executor):
    assert executor.submit(half, 3.0).result() == 1.5
    assert executor.submit(later, 3).result() == 4
    assert list(executor.map(count, ["a a"])) == [{"a": 2}]


def test_what_cannot_be_sent_is_refused_at_once(executor):
    for wrong in (lambda: 1, "a".upper):
        with pytest.raises(TypeError, match="a bot"):
            executor.submit(wrong)
    with pytest.raises(TypeError, match="plain objects"):
        executor.submit(capture, object())
    with pytest.raises(TypeError, match="argument x: expected float"):
        executor.submit(half, "a")


# -- WaitTests ------------------------------------------------------------------------------------------------------


def test_20369(executor):
    future = executor.submit(mul, 1, 1)
    assert futures.wait([future, future], return_when=ALL_COMPLETED) == ({future}, set())


@pytest.mark.short
def test_first_completed(executor, tmp_path):
    quick, slow = executor.submit(mul, 21, 2), executor.submit(wait_for_file, str(tmp_path / "file"))
    pending: Future[Any] = Future()
    pending.cancel()
    assert futures.wait([pending, quick, slow], return_when=FIRST_COMPLETED) == ({quick}, {pending, slow})


def test_first_completed_some_already_completed(executor, tmp_path):
    slow = executor.submit(wait_for_file, str(tmp_path / "file"))
    gone, done = cancelled(), a_future(result=1)
    assert futures.wait([gone, done, slow], return_when=FIRST_COMPLETED) == ({gone, done}, {slow})


def test_first_exception(executor, tmp_path):
    quick = executor.submit(mul, 2, 21)
    futures.wait([quick])
    failing = executor.submit(raise_after, "/", "this is an exception")
    slow = executor.submit(wait_for_file, str(tmp_path / "file"))
    assert futures.wait([quick, failing, slow], return_when=FIRST_EXCEPTION) == ({quick, failing}, {slow})


def test_first_exception_some_already_complete(executor, tmp_path):
    failing, slow = executor.submit(divmod, 21, 0), executor.submit(wait_for_file, str(tmp_path / "file"))
    done, gone = a_future(result=1), cancelled()
    assert futures.wait([done, gone, failing, slow], return_when=FIRST_EXCEPTION) == ({done, gone, failing}, {slow})


def test_first_exception_one_already_failed(executor, tmp_path):
    slow, failed = executor.submit(wait_for_file, str(tmp_path / "file")), a_future(error=OSError())
    assert futures.wait([failed, slow], return_when=FIRST_EXCEPTION) == ({failed}, {slow})


def test_all_completed(executor):
    given = [
        a_future(result=1),
        cancelled(),
        a_future(error=OSError()),
        executor.submit(divmod, 2, 0),
        executor.submit(mul, 2, 21),
    ]
    assert futures.wait(given, return_when=ALL_COMPLETED) == (set(given), set())


def test_timeout(executor, tmp_path):
    slow, done = executor.submit(wait_for_file, str(tmp_path / "file")), a_future(result=1)
    assert futures.wait([done, slow], timeout=0.05) == ({done}, {slow})


# -- AsCompletedTests -----------------------------------------------------------------------------------------------


def test_no_timeout(executor):
    given = {cancelled(), a_future(error=OSError()), executor.submit(mul, 2, 21), executor.submit(mul, 7, 6)}
    assert set(futures.as_completed(given)) == given


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_future_times_out(executor, tmp_path, timeout):
    slow, done = executor.submit(wait_for_file, str(tmp_path / "file")), a_future(result=1)
    seen = set()
    with pytest.raises(futures.TimeoutError):
        for one in futures.as_completed({done, slow}, timeout):
            seen.add(one)
    assert seen == {done}


def test_duplicate_futures(executor):
    assert len(list(futures.as_completed(itertools.repeat(executor.submit(mul, 1, 1), 3)))) == 1


# -- ExecutorShutdownTest -------------------------------------------------------------------------------------------


def test_run_after_shutdown(executor):
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(pow, 2, 5)


def test_submit_after_the_end_of_the_client(server: LiveServer):
    with a_client(server) as other:
        executor = other.executor()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(pow, 2, 5)


def test_hang_issue12364(executor):
    made = [executor.submit(time.sleep, 0.01) for _ in range(50)]
    executor.shutdown()
    assert [future.result() for future in made] == [None] * 50


def until_started(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def test_cancel_futures(executor, tmp_path):
    made = [executor.submit(wait_for_file, str(tmp_path / "file"), str(tmp_path / "started")) for _ in range(50)]
    until_started(tmp_path / "started")
    executor.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "file").touch()
    executor.shutdown()
    gone = [future for future in made if future.cancelled()]
    others = [future for future in made if not future.cancelled()]
    assert len(gone) > 20
    assert len(others) > 0
    assert [future.exception() for future in others] == [None] * len(others)


def test_hang_gh94440(executor):
    executor.submit(mul, 1, 1).result()
    future = executor.submit(mul, 6, 7)
    future.cancel()
    executor.shutdown(wait=True)


@pytest.mark.short
def test_context_manager_shutdown(client: Client):
    with client.executor() as executor:
        made = [executor.submit(abs, number) for number in range(-5, 0)]
    assert [future.result() for future in made] == [5, 4, 3, 2, 1]


@pytest.mark.short
def test_cancel_works_until_a_bot_has_taken_the_task(executor, tmp_path: Path):
    made = [executor.submit(wait_for_file, str(tmp_path / "file"), str(tmp_path / "started")) for _ in range(1_000)]
    until_started(tmp_path / "started")
    last = made[-1]
    assert last.cancel()
    assert last.cancelled()
    assert last.cancel(), "repeated"
    assert not made[0].cancel()
    (tmp_path / "file").touch()
    assert made[0].result() is None
    assert not made[0].cancel()
