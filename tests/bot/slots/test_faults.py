"""What can go wrong in the process of a function: each costs its run only, and is reported in words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import BotProcess, a_bot, alive, wait_for, zip_files
from tests.bot.slots.functions import a_bot_with_slots, call, outputs, run
from tests.bot.stub import Stub

MEGABYTE = 1 << 20


def has_begun(path: Path) -> bool:
    """Whether a function has written its process id."""
    return path.exists() and path.read_text().endswith("\n")


@pytest.fixture(scope="module")
def shared_faults(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    folder = tmp_path_factory.mktemp("faults") / "b1"
    with Stub() as server, a_bot_with_slots(server, folder, 1, python=interpreter) as bot:
        yield server, bot


@pytest.fixture
def server(shared_faults: tuple[Stub, BotProcess]) -> Stub:
    return shared_faults[0]


@pytest.mark.parametrize(
    ("name", "arguments", "message", "exit_code"),
    [
        ("exit", (3,), "the function has ended its process with exit code 3", 3),
        ("exit", (0,), "the function has ended its process with exit code 0", 1),
        ("die", (int(signal.SIGSEGV),), "killed by signal 11 (segmentation fault)", -11),
        ("die", (int(signal.SIGABRT),), "killed by signal 6 (aborted)", -6),
        ("garbage", (), "the function has damaged the pipe between its process and the bot", 1),
        ("wrong_answer", (), "the function has damaged the pipe between its process and the bot", 1),
        ("close_pipe", (), "the function has damaged the pipe between its process and the bot", 1),
        ("half_a_frame", (), "the function has ended its process with exit code 0", 1),
    ],
)
def test_a_process_that_dies_or_talks_nonsense_costs_its_run_only(
    server: Stub, name: str, arguments: tuple[Any, ...], message: str, exit_code: int
):
    run(server, "none")
    with server.change:
        bad = call(server, name, *arguments)
        behind = [call(server, "echo", number) for number in range(10)]
    report = server.result(bad)
    assert (report["type"], report["message"], report["exit_code"]) == ("finish", message, exit_code)
    assert [outputs(server.result(each)) for each in behind] == [[number] for number in range(10)]


def test_a_process_that_the_kernel_or_a_person_kills_is_reported_so(server: Stub):
    report = run(server, "die", int(signal.SIGKILL))
    assert "signal 9" in report["message"] or "out of memory" in report["message"]
    assert report["exit_code"] == -9


def test_a_run_that_the_bot_cannot_prepare_ends_with_the_reason_and_costs_no_other(server: Stub):
    with server.change:
        bad = server.submit(function={"package_name": "stand_in"}, inputs=[])
        good = call(server, "echo", 1)
    report = server.result(bad)
    assert (report["type"], report["kind"]) == ("fault", "bot_error")
    assert "func_name" in report["message"]
    assert outputs(server.result(good)) == [1]


def test_a_function_that_takes_too_long_is_ended_after_its_grace_period(server: Stub, notes: Path):
    for limit_s in (1, 10, 100):  # longer, where the function does not ignore the signal in time
        report = run(server, "ignore_terminate", str(notes / "never"), execution_timeout_s=limit_s, grace_period_s=1)
        assert (report["hard_timeout"], report["message"]) == (True, f"timed out after {limit_s} s")
        if report["exit_code"] != -int(signal.SIGTERM):
            break
    assert report["exit_code"] == -9
    report = run(server, "wait", str(notes / "never"), execution_timeout_s=1, grace_period_s=30)
    assert (report["hard_timeout"], report["exit_code"]) == (True, -15)


def test_a_function_that_is_cancelled_ends_and_the_next_one_runs(server: Stub, notes: Path):
    each = call(server, "touch_and_wait", str(notes / "begun"), str(notes / "never"))
    server.until(lambda: has_begun(notes / "begun"))
    with server.change:
        server.stops.add(each)
        server.change.notify_all()
    report = server.result(each)
    assert report["killed"]
    assert outputs(run(server, "echo", 1)) == [1]


def test_a_function_that_is_cancelled_before_it_begins_is_given_back(interpreter: str, notes: Path, tmp_path: Path):
    """A bot claims several functions at once if it does not know yet that they take long."""
    with Stub() as server, a_bot_with_slots(server, tmp_path / "new", 1, python=interpreter):
        with server.change:
            first = call(server, "touch_and_wait", str(notes / "begun"), str(notes / "go"))
            second = call(server, "none")
            server.stops.add(second)
        server.until(lambda: server.outcomes.get(second) == "given_back")
        (notes / "go").touch()
        assert server.result(first)["exit_code"] == 0


def test_a_function_that_is_lost_is_killed_and_not_reported(server: Stub, notes: Path):
    each = call(server, "touch_and_wait", str(notes / "begun"), str(notes / "never"))
    server.until(lambda: has_begun(notes / "begun"))
    pid = int((notes / "begun").read_text())
    with server.change:
        server.lost.add(each)
        server.change.notify_all()
    wait_for(lambda: not alive(pid), "the end of the process")
    run(server, "none")
    assert each not in server.results


def test_a_function_with_too_much_memory_is_killed(server: Stub):
    report = run(server, "allocate", 400 * MEGABYTE, memory_mb=256)
    assert report["message"] == "out of memory: more than 256 MB"
    assert report["error"]["type"] == "builtins.MemoryError"


def test_a_process_that_has_grown_is_replaced_before_a_function_with_little_memory(server: Stub):
    before = run(server, "keep", 300 * MEGABYTE)
    assert before["exit_code"] == 0
    [count, _] = outputs(run(server, "calls", memory_mb=256))
    assert count == 1


def test_a_print_flood_is_delivered_without_filling_the_disk(server: Stub):
    each = call(server, "flood", 40 * MEGABYTE)
    report = server.result(each)
    assert report["stdout_size"] == 40 * MEGABYTE
    assert len(server.log(each)) == 40 * MEGABYTE


@pytest.mark.parametrize("name", ["leave_daemon", "leave_daemon_and_exit"])
def test_what_a_function_leaves_behind_is_killed_with_its_process(server: Stub, notes: Path, name: str):
    each = call(server, name, str(notes / "pid"))
    server.result(each)
    pid = int((notes / "pid").read_text())
    if name == "leave_daemon":
        run(server, "exit", 1)
    wait_for(lambda: not alive(pid), "the end of the daemon")


def test_the_end_of_a_command_leaves_processes_of_functions_alone(tmp_path: Path):
    """Without Landlock: with it, a process is replaced when somebody creates a folder beside that of the tests."""
    with Stub() as server, a_bot_with_slots(server, tmp_path / "b1", 1, "--isolation", "off"):
        [_, pid] = outputs(run(server, "calls"))
        assert server.run("/bin/sh", "-c", "sleep 600 & exit 3")["exit_code"] == 3
        assert outputs(run(server, "calls"))[1] == pid


def test_a_bot_that_is_told_to_stop_finishes_its_functions(tmp_path: Path, notes: Path):
    with Stub() as server, a_bot_with_slots(server, tmp_path / "b1", 1) as bot:
        each = call(server, "touch_and_wait", str(notes / "begun"), str(notes / "go"))
        server.until(lambda: has_begun(notes / "begun"))
        bot.process.terminate()
        server.until(lambda: bot.process.poll() is None)
        (notes / "go").touch()
        assert server.result(each)["exit_code"] == 0
        assert bot.process.wait(60) == 0


def test_functions_of_a_bot_that_is_killed_die_with_it(tmp_path: Path, notes: Path):
    with Stub() as server, a_bot_with_slots(server, tmp_path / "b1", 1) as bot:
        call(server, "touch_and_wait", str(notes / "begun"), str(notes / "never"))
        server.until(lambda: has_begun(notes / "begun"))
        pid = int((notes / "begun").read_text())
        bot.kill()
        wait_for(lambda: not alive(pid), "the end of the function")


def test_a_bot_whose_processes_cannot_start_says_why(tmp_path: Path):
    with Stub() as server:
        files = {**zip_files(server.url), "myrmidon/executor/main.py": b"raise ImportError('not this one')"}
        with a_bot(server.url, tmp_path / "b1", "--slots", "1", files=files):
            report = run(server, "none")
    assert (report["type"], report["kind"]) == ("fault", "bot_error")
    assert "not this one" in report["message"]
