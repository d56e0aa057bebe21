"""The lane of functions: how many are wanted, what is held, and what is told to the session thread. No threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from myrmidon.bot.run import function_lane
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.system import clock


def a_function(run: str) -> dict[str, Any]:
    task = {"run": run, "token": "t", "claimed_at": clock.boottime(), "execution_timeout_s": 60, "grace_period_s": 1}
    return {**task, "function": {"package_name": "p", "func_name": "f"}}


def a_queue(slots: int = 2, *runs: str) -> RunQueue:
    queue = RunQueue([], slots)
    queue.add([a_function(run) for run in runs])
    return queue


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
    queue = a_queue(2, *(f"r{number}" for number in range(waiting + busy)))
    lane = queue.lane
    lane.mean_run_s = mean_s
    lane.take(busy)
    lane.busy = busy
    assert (lane.waiting(), lane.wanted()) == (waiting, wanted)


def test_nothing_is_wanted_while_all_slots_are_busy_with_long_ones():
    lane = a_queue(2, "r1", "r2").lane
    lane.take(2)
    lane.blocked, lane.busy = True, 2
    assert lane.wanted() == 0
    lane.busy = 1
    assert lane.wanted() > 0


def test_functions_and_commands_are_queued_apart_and_held_together():
    queue = a_queue(2, "f1", "f2")
    queue.add([{"run": "c1", "token": "t", "claimed_at": clock.boottime()}])
    queue.lane.take(1)
    assert [task["run"] for task in queue.held()] == ["c1", "f1", "f2"]
    assert not queue.is_idle()
    assert queue.next_task() == next(task for task in queue.held() if task["run"] == "c1")


def test_functions_that_have_waited_too_long_are_not_begun():
    queue = a_queue(2, "old", "new")
    queue.lane.queue[0]["claimed_at"] -= function_lane.START_WITHIN_S + 1
    taken, expired = queue.lane.take(10)
    assert ([task["run"] for task in taken], [task["run"] for task in expired]) == (["new"], ["old"])


def test_a_new_session_keeps_only_what_the_server_says():
    queue = a_queue(2, "f1", "f2", "f3")
    queue.lane.take(2)
    assert not queue.keep_only({"f1"})
    assert [task["run"] for task in queue.lane.queue] == []
    assert queue.lane.take_orders() == ({"f2": ("lost", 0.0)}, False)


def test_progress_is_reported_at_most_once_a_second_per_run():
    lane = a_queue(2, "f1").lane
    [task], _ = lane.take(1)
    lane.add_long(task, 0.0)
    for value in (0.1, 0.2):
        lane.note_progress("f1", value)
    assert lane.take_progress(100.0) == {"f1": 0.2}
    lane.note_progress("f1", 0.3)
    assert (lane.progress_due(100.5), lane.take_progress(100.5)) == (False, {})
    assert (lane.progress_due(101.0), lane.take_progress(101.0)) == (True, {"f1": 0.3})
    lane.note_progress("unknown", 0.5)
    assert not lane.progress_due(200.0)


def test_results_wake_the_session_thread_and_leave_the_lane():
    queue = a_queue(2, "f1", "f2")
    tasks, _ = queue.lane.take(2)
    record = {"report": {"run": "f1"}, "logs": []}
    queue.finish_functions([(tasks[0], record), (tasks[1], None)])
    assert queue.is_idle()
    assert list(queue.finished) == [record]


def test_a_command_that_follows_functions_is_begun_by_the_thread_that_waits_for_commands():
    queue = RunQueue([])
    begun: list[dict[str, Any] | None] = []
    waiting = threading.Thread(target=lambda: begun.extend([queue.next_task(), queue.next_task()]))
    waiting.start()
    queue.add([a_function("f1")])
    queue.add([{"run": "c1", "token": "t", "claimed_at": clock.boottime()}, a_function("f2")])
    queue.end(0)
    waiting.join()
    assert [task["run"] if task else None for task in begun] == ["c1", None]
    assert [task["run"] for task in queue.lane.queue] == ["f1", "f2"]
