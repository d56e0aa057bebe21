"""Errors that nobody has foreseen, and ends that come at any time: each is the end of its run, and of nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.commands.command_runner import CommandRunner
from myrmidon.bot.commands.command_watcher import CommandWatcher
from myrmidon.bot.commands.seat import Seat
from myrmidon.bot.link.file_transfers import THREADS
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.protocol import FinishReport
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.run.run import Run
from myrmidon.bot.run.watch import KILL, NOTHING, TERMINATE, UNKILLABLE, UNKILLABLE_AFTER_S, Watch
from myrmidon.bot.storage.log_spool import LogSpool
from tests.bot.bots import BotProcess, source_with, wait_for
from tests.bot.runs import a_function, a_run
from tests.bot.slots.functions import a_bot_with_slots, call, outputs, run
from tests.bot.stub import Stub

SHELL = "/bin/sh"
WRITE_MUCH = """printf '[%s1]' "$(yes 1, | head -n 2000)" > "$MYRMIDON_OUTPUT_DIR/0" """
"""A list of integers that is too large for a report."""
BROKEN = source_with(
    "file_transfers", "        until = time.monotonic() + limit_s\n", "        raise ZeroDivisionError('unforeseen')\n"
)


@pytest.fixture(scope="module")
def broken(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    """A bot whose transfers of files raise an error that is not expected there."""
    folder = tmp_path_factory.mktemp("broken") / "b1"
    changed = {"file_transfers": BROKEN}
    with Stub() as server, a_bot_with_slots(server, folder, 1, python=interpreter, changed=changed):
        yield server


def is_unforeseen(report: dict[str, Any]) -> bool:
    return (report["type"], report["kind"], "unforeseen" in report["message"]) == ("fault", "bot_error", True)


def test_an_error_while_files_are_fetched_costs_one_run(broken: Stub):
    assert is_unforeseen(run(broken, "length", inputs=[{"type": "any", "digest": "0" * 64, "size": 9}]))
    assert outputs(run(broken, "echo", 1)) == [1]


def test_an_error_while_results_of_functions_are_stored_costs_one_run(broken: Stub):
    assert is_unforeseen(run(broken, "echo", "x" * 5000))
    assert outputs(run(broken, "echo", 2)) == [2]


def test_an_error_while_outputs_of_commands_are_stored_costs_one_run(broken: Stub):
    report = broken.run(SHELL, "-c", WRITE_MUCH, output_types=["List<int64>"])
    assert is_unforeseen(report), report
    assert broken.run(SHELL, "-c", "exit 3")["exit_code"] == 3


@pytest.fixture(scope="module")
def shared(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    folder = tmp_path_factory.mktemp("sound") / "b1"
    with Stub() as server, a_bot_with_slots(server, folder, 1, python=interpreter) as bot:
        yield server, bot


def test_a_command_whose_outputs_are_being_stored_can_be_killed(shared: tuple[Stub, BotProcess]):
    server, _ = shared
    server.fault("/bot/v1/runs/", *["503"] * 10_000)
    each = server.submit(SHELL, "-c", WRITE_MUCH, output_types=["List<int64>"])
    server.until(lambda: ("start", each) in [(report["type"], report["run"]) for report in server.reports])
    with server.change:
        server.stops.add(each)
        server.change.notify_all()
    assert server.result(each)["killed"]
    server.faults.clear()
    assert server.run("/bin/true")["exit_code"] == 0


def test_no_run_leaves_a_file_open(shared: tuple[Stub, BotProcess]):
    server, bot = shared
    digest = "0" * 64

    def runs() -> None:
        """One of each way to begin and to end."""
        with server.change:
            ids = [
                server.submit(SHELL, "-c", "echo out; exit 3", stdin="aW4="),
                server.submit("/no/such/program"),
                server.submit(SHELL, "-c", "true", relative_cwd="../out"),
                server.submit(SHELL, "-c", "true", execution_timeout_s=None),
                server.submit(
                    SHELL, "-c", "echo 5 > $MYRMIDON_OUTPUT_DIR/0", output_types=["int64"], merge_output=True
                ),
                call(server, "echo", "x" * 5000),
                call(server, "exit", 3),
                call(server, "garbage"),
                call(server, "length", inputs=[{"type": "any", "digest": digest, "size": 9}]),
            ]
        for each in ids:
            server.result(each)
        assert outputs(run(server, "echo", 1)) == [1]

    def num_open() -> int:
        return len(os.listdir(f"/proc/{bot.worker()}/fd"))

    runs()
    before = num_open()
    for _ in range(4):
        runs()
    # The threads that transfer files may have opened their connections meanwhile.
    wait_for(lambda: num_open() <= before + THREADS, "all files to be closed")


def a_runner(folder: Path) -> CommandRunner:
    watcher = CommandWatcher(Watch(LogSpool(str(folder / "spool"))), lambda _: None)
    return CommandRunner(Seat(str(folder), Isolation(), {}), watcher, NamedCaches(str(folder / "c")))


def test_a_command_that_is_told_to_end_before_its_process_exists_is_not_started(tmp_path: Path):
    each = a_run(command=["/bin/touch", str(tmp_path / "begun")])
    each.request_end("killed")
    record = a_runner(tmp_path).run(each)
    assert record is not None
    assert isinstance(record.report, FinishReport)
    assert (record.report.killed, (tmp_path / "begun").exists()) == (True, False)
    lost = a_run(command=["/bin/true"])
    lost.request_end("lost")
    assert a_runner(tmp_path).run(lost) is None


@pytest.mark.parametrize("make", [a_run, a_function])
def test_both_kinds_end_by_the_same_limits(tmp_path: Path, make: Any):
    watch = Watch(LogSpool(str(tmp_path)))
    each: Run = make(execution_timeout_s=10, grace_period_s=3)
    each.begin(100.0)
    watch.check_limits(each, 109.0)
    assert (each.end_request, watch.next_step(each, 109.0)) == (None, NOTHING)
    for now, step in ((110.0, TERMINATE), (112.0, NOTHING), (113.0, KILL), (113.0 + UNKILLABLE_AFTER_S, UNKILLABLE)):
        watch.check_limits(each, now)
        assert watch.next_step(each, now) == step
    assert each.end_reason == "hard_timeout"


def test_a_command_must_not_be_silent_for_long_and_a_function_may(tmp_path: Path):
    watch = Watch(LogSpool(str(tmp_path)))
    for each, expected in ((a_run(io_timeout_s=5), ("io_timeout", 30)), (a_function(io_timeout_s=5), None)):
        each.begin(100.0)
        each.last_output_at = 104.0
        watch.check_limits(each, 108.0)
        assert each.end_request is None
        watch.check_limits(each, 109.0)
        assert each.end_request == expected


def test_a_run_that_waits_for_room_for_its_output_is_not_silent(tmp_path: Path):
    watch = Watch(LogSpool(str(tmp_path)))
    each = a_run()
    each.begin(100.0)
    watch.store_output(each, 0, b"x" * (5 << 20), to_spool=True)
    assert watch.room(each, 200.0) < 0
    assert each.last_output_at == 200.0
    watch.server_unreachable = True
    assert watch.room(each, 300.0) > 0
