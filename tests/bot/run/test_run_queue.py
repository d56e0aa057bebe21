"""The ledger of a bot: what is claimed, what is held, what is returned, and what is told to the session thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from myrmidon.bot.run import run_queue
from myrmidon.bot.run.run import FETCHING, Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock
from tests.bot.runs import a_function, a_record, a_request, a_run


def a_queue(*functions: str, slots: int = 2) -> RunQueue:
    queue = RunQueue([], slots)
    queue.add([a_function(run) for run in functions])
    return queue


def ids(runs: object) -> list[str]:
    return [run.id for run in runs]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- how many are claimed


@pytest.mark.parametrize(
    ("mean_s", "busy", "waiting", "wanted"),
    [
        (0.0, 0, 0, 8),  # not known yet: a few for each slot
        (0.00001, 2, 0, 256),
        (0.001, 2, 0, 200),
        (0.001, 2, 100, 200),
        (0.001, 2, 101, 0),
        (0.1, 2, 0, 2),
        (0.1, 2, 1, 2),
        (0.1, 2, 2, 0),
        (5.0, 2, 0, 0),  # long ones are not claimed ahead
        (5.0, 1, 0, 1),
        (5.0, 0, 0, 2),
        (5.0, 0, 1, 2),
        (5.0, 0, 2, 0),
    ],
)
def test_short_functions_are_wanted_ahead_and_long_ones_for_free_slots(
    mean_s: float, busy: int, waiting: int, wanted: int
):
    functions = RunQueue([], 2).functions
    functions.mean_run_s, functions.busy = mean_s, busy
    functions.queue.extend(a_function(f"r{number}") for number in range(waiting + busy))
    assert (functions.waiting(), functions.wanted()) == (waiting, wanted)


def test_nothing_is_wanted_while_all_slots_are_busy_with_long_ones():
    queue = a_queue("r1", "r2")
    queue.take_functions()
    queue.functions.blocked, queue.functions.busy = True, 2
    assert queue.functions.wanted() == 0
    queue.functions.busy = 1
    assert queue.functions.wanted() > 0


def test_short_commands_are_wanted_many_at_a_time_and_long_ones_one_at_a_time():
    commands = RunQueue([]).commands
    assert commands.claim_size() == run_queue.INITIAL_COMMANDS
    commands.mean_run_s = 0.001
    assert (commands.claim_size(), commands.refill_threshold()) == (100, 50)
    commands.mean_run_s = 3.0
    assert (commands.claim_size(), commands.refill_threshold()) == (1, 0)


# ---------------------------------------------------------------- from the claim to the end


def test_functions_and_commands_are_queued_apart_and_held_together():
    queue = a_queue("f1", "f2")
    command = a_run("c1")
    queue.add([command])
    queue.take_functions()
    assert queue.held() == [("f1", "t"), ("f2", "t"), ("c1", "t")]
    assert not queue.is_idle()
    assert queue.next_command() is command
    assert (queue.first_command(), list(queue.runs)) == (command, ["f1", "f2", "c1"])


def test_what_has_waited_too_long_is_returned_and_not_begun():
    queue = RunQueue([])
    queue.start_within_s = 5.0
    too_early = clock.boottime() - queue.start_within_s - 1
    queue.add([a_run("c-old", claimed_at=too_early), a_run("c-new")])
    queue.add([a_function("f-old", claimed_at=too_early), a_function("f-new")])
    assert ids([queue.next_command(), *queue.take_functions()]) == ["c-new", "f-new"]
    assert (ids(queue.returned), list(queue.runs)) == (["c-old", "f-old"], ["c-new", "f-new"])


def test_a_new_session_keeps_only_what_the_server_says():
    queue = a_queue("f1", "f2")
    taken = queue.take_functions()
    queue.add([a_function("f3"), a_run("c1")])
    queue.keep_only({"f1"})
    assert list(queue.runs) == ["f1", "f2"]
    assert [run.end_request for run in taken] == [None, ("lost", 0.0)]
    assert queue.take_orders(queue.functions) == (True, False)
    assert queue.take_orders(queue.functions) == (False, False)


def test_a_queued_run_is_returned_instead_of_ended():
    queue = RunQueue([])
    queue.add([a_run("current"), a_run("next")])
    current = queue.next_command()
    assert queue.request_end("next", "killed") is None
    assert queue.request_end("current", "killed") is current
    assert queue.request_end("unknown", "killed") is None
    assert (ids(queue.returned), list(queue.runs)) == (["next"], ["current"])


def test_what_has_not_begun_can_be_returned_by_class():
    queue = a_queue("f1")
    queue.take_functions()
    queue.add([a_function("f2"), a_run("c1"), a_run("c2")])
    queue.next_command()
    queue.return_queued(queue.commands)
    assert (ids(queue.take_returned()), queue.take_orders(queue.functions)) == (["c2"], (False, False))
    queue.return_queued(queue.functions)
    assert (ids(queue.take_returned()), queue.take_orders(queue.functions)) == (["f2"], (False, True))


def test_results_wake_the_session_thread_and_leave_the_ledger():
    queue = a_queue("f1", "f2")
    first, second = queue.take_functions()
    record = a_record("f1")
    queue.finish([(first, record), (second, None)])
    assert queue.is_idle()
    assert list(queue.finished) == [record]


def test_a_command_that_follows_functions_is_begun_by_the_thread_that_waits_for_commands():
    queue = RunQueue([])
    begun: list[Run | None] = []
    waiting = threading.Thread(target=lambda: begun.extend([queue.next_command(), queue.next_command()]))
    waiting.start()
    queue.add([a_function("f1")])
    queue.add([a_run("c1"), a_function("f2")])
    queue.end(0)
    waiting.join()
    assert [run.id if run else None for run in begun] == ["c1", None]
    assert ids(queue.functions.queue) == ["f1", "f2"]


def test_several_seats_take_several_commands_at_once():
    queue = RunQueue([], max_runs=2)
    queue.add([a_run("c1"), a_run("c2")])
    taken = [queue.next_command(), queue.next_command()]
    assert list(queue.commands.live.values()) == taken


# ---------------------------------------------------------------- what is told


def test_progress_is_reported_at_most_once_a_second_per_run():
    queue = a_queue("f1")
    [run] = queue.take_functions()
    for value in (0.1, 0.2):
        queue.note_progress(run, value)
    assert queue.take_progress(100.0) == {"f1": 0.2}
    queue.note_progress(run, 0.3)
    assert (queue.progress_due(100.5), queue.take_progress(100.5)) == (False, {})
    assert (queue.progress_due(101.0), queue.take_progress(101.0)) == (True, {"f1": 0.3})


def test_a_command_is_long_after_a_while_and_a_function_when_its_thread_says_so():
    queue = a_queue("f1")
    [function] = queue.take_functions()
    queue.add([a_run("c1")])
    command = queue.next_command()
    assert command is not None
    command.taken_at = function.taken_at = clock.boottime() - 5
    assert queue.long_runs() == [command]
    function.is_long, function.state = True, FETCHING
    assert queue.long_runs() == [function, command]


def test_a_request_holds_results_what_is_returned_and_what_is_held(tmp_path: Path):
    queue = RunQueue([a_record("done")])
    queue.add([a_run("current"), a_run("next"), a_run("unwanted")])
    queue.next_command()
    queue.request_end("unwanted", "killed")
    message = a_request(queue, LogSpool(str(tmp_path)), n=2).message
    assert [(type(report).__name__, report.run) for report in message.reports] == [
        ("FinishReport", "done"),
        ("GiveBackReport", "unwanted"),
    ]
    assert message.holds == [("current", "t"), ("next", "t")]
    assert a_request(queue, LogSpool(str(tmp_path)), n=1, holds=False).message.holds == ()
    assert len(queue.finished) == 1  # until it is acknowledged
    queue.remove_reported(1)
    assert not queue.finished


def test_the_start_of_a_long_run_is_reported_once(tmp_path: Path):
    queue, spool = RunQueue([]), LogSpool(str(tmp_path))
    queue.add([a_run("c1")])
    command = queue.next_command()
    assert command is not None
    command.taken_at -= 5
    assert [report.run for report in a_request(queue, spool, start=True).message.reports] == ["c1"]
    assert a_request(queue, spool, start=True).message.reports == []


def test_the_start_of_a_short_run_is_reported_before_its_large_log_is_delivered(tmp_path: Path):
    queue, spool = RunQueue([]), LogSpool(str(tmp_path))
    queue.add([a_run("short"), a_run("silent")])
    for _ in range(2):
        run = queue.next_command()
        assert run is not None
        if run.id == "short":
            run.store_output(0, b"x", spool, to_spool=True)
        queue.finish([(run, a_record(run.id))])
    message = a_request(queue, spool, start=True).message
    assert [(type(report).__name__, report.run) for report in message.reports] == [("StartReport", "short")]
    assert a_request(queue, spool, start=True).message.reports == []


def test_a_request_takes_no_more_logs_than_it_may(tmp_path: Path):
    large = [a_record(f"r{number}", b"x" * 70_000) for number in range(5)]
    request = a_request(RunQueue(large), LogSpool(str(tmp_path)), wait_s=9.0)
    assert [record.report.run for record in request.records] == ["r0", "r1"]
    assert request.message.wait_s == 0.0


def test_two_signals_at_once_are_one(monkeypatch: pytest.MonkeyPatch):
    queue = RunQueue([])
    now = [100.0]
    monkeypatch.setattr(clock, "boottime", lambda: now[0])
    assert (queue.count_signal(), queue.count_signal()) == (1, 1)
    now[0] += run_queue.ONE_SIGNAL_S
    assert queue.count_signal() == 2


# ---------------------------------------------------------------- the end of a run


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([("killed", None)], ("killed", 30)),
        ([("killed", 5.0)], ("killed", 5.0)),
        ([("killed", 500.0)], ("killed", 30)),
        ([("killed", None), ("hard_timeout", 5.0)], ("killed", 5.0)),
        ([("killed", 5.0), ("shutdown", None)], ("killed", 5.0)),
        ([("killed", 5.0), ("lost", None)], ("lost", 5.0)),
        ([("lost", None), ("killed", 0.0)], ("lost", 0.0)),
    ],
)
def test_the_first_reason_counts_and_lost_always_and_the_shortest_grace(
    requests: list[tuple[str, float | None]], expected: tuple[str, float]
):
    run = a_run()
    for reason, grace_s in requests:
        run.request_end(reason, grace_s)
    assert run.end_request == expected


def test_the_earliest_kill_counts():
    run = a_run()
    run.request_end("killed")
    assert run.accept_end(100.0)
    assert (run.end_reason, run.kill_at) == ("killed", 130.0)
    assert not run.accept_end(110.0)
    assert run.kill_at == 130.0
    run.request_end("lost", 0.0)
    assert not run.accept_end(111.0)
    assert (run.end_reason, run.kill_at) == ("lost", 111.0)


def test_a_run_that_ends_by_itself_has_no_reason():
    run = a_run()
    run.request_end("killed")
    assert run.end_reason == ""


def test_a_result_has_the_sizes_of_all_output_and_its_content_while_it_is_little(tmp_path: Path):
    run, spool = a_run(), LogSpool(str(tmp_path))
    run.store_output(0, b"out", spool, to_spool=False)
    run.store_output(1, b"error", spool, to_spool=False)
    assert (run.sizes, [chunk.data for chunk in run.log_chunks()]) == ([3, 5], [b"out", b"error"])
    run.store_output(0, b"more", spool, to_spool=True)
    assert (run.sizes, run.log_chunks(), spool.read(run.id, 0, 99)) == ([7, 5], [], (0, b"outmore"))
