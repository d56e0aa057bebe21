from __future__ import annotations

from itertools import product

import pytest

from myrmidon.model.errors import IllegalMove
from myrmidon.model.states import (
    FINAL,
    JOB_FINAL,
    JOB_MOVES,
    MOVES,
    JobState,
    RunState,
    TaskState,
    check_job_move,
    check_move,
)

TABLE = """
    WAITING  READY SUCCEEDED NO_RESOURCE CANCELLED EXPIRED
    READY    READY RUNNING WAITING EXPIRED CANCELLED NO_RESOURCE BOT_DIED
    RUNNING  RUNNING READY WAITING SUCCEEDED FAILED TIMED_OUT BOT_DIED CANCELLED KILLED CLIENT_ERROR
"""
ENDS = [
    "SUCCEEDED",
    "FAILED",
    "TIMED_OUT",
    "BOT_DIED",
    "EXPIRED",
    "CANCELLED",
    "KILLED",
    "NO_RESOURCE",
    "CLIENT_ERROR",
]
LEGAL = {(old, new) for old, *news in (line.split() for line in TABLE.strip().splitlines()) for new in news}
AGAIN = {(end, new) for end in ENDS for new in ("READY", "WAITING")}
ALL = list(product(TaskState, TaskState))


def is_legal(old, new, *, new_generation):
    try:
        check_move(old, new, new_generation=new_generation, history=lambda: "")
    except IllegalMove:
        return False
    return True


def test_the_table_of_moves_is_the_one_in_the_design():
    assert {(o.value, n.value) for o in MOVES for n in MOVES[o]} == LEGAL | AGAIN


def test_final_states_are_the_nine_ends():
    assert {s.value for s in FINAL} == set(ENDS)
    assert {s.value for s in RunState} == {"RUNNING", *ENDS}


@pytest.mark.parametrize("new_generation", [False, True])
def test_exactly_the_moves_of_the_table_are_allowed(new_generation):
    allowed = {(o.value, n.value) for o, n in ALL if is_legal(o, n, new_generation=new_generation)}
    assert allowed == (LEGAL | AGAIN if new_generation else LEGAL)


@pytest.mark.parametrize("old", sorted(FINAL))
def test_a_final_state_is_left_only_with_a_new_generation(old):
    with pytest.raises(IllegalMove, match="new generation"):
        check_move(old, TaskState.READY, new_generation=False, history=lambda: "")
    check_move(old, TaskState.READY, new_generation=True, history=lambda: "")
    assert not is_legal(old, TaskState.RUNNING, new_generation=True)


def test_an_illegal_move_tells_both_states_and_the_story():
    with pytest.raises(IllegalMove) as raised:
        check_move(TaskState.WAITING, TaskState.RUNNING, new_generation=False, history=lambda: "seq 1 WAITING")
    assert "from WAITING to RUNNING" in raised.value.message
    assert "seq 1 WAITING" in raised.value.message
    assert raised.value.code == "broken_promise.illegal_move"


def test_a_legal_move_does_not_pay_for_the_story():
    check_move(TaskState.READY, TaskState.RUNNING, new_generation=False, history=pytest.fail)


def test_a_job_moves_as_its_table_says():
    legal = {
        "RUNNING": "RUNNING PENDING_RETRY SUCCEEDED FAILED CANCELLED",
        "PENDING_RETRY": "RUNNING CANCELLED",
        "SUCCEEDED": "RUNNING",
        "FAILED": "RUNNING",
        "CANCELLED": "",
    }
    assert {o.value: {n.value for n in JOB_MOVES[o]} for o in JobState} == {o: set(n.split()) for o, n in legal.items()}
    assert {"SUCCEEDED", "FAILED", "CANCELLED"} == JOB_FINAL


@pytest.mark.parametrize(("old", "new"), list(product(JobState, JobState)))
def test_a_job_move_not_in_the_table_raises_with_the_story(old, new):
    if new in JOB_MOVES[old]:
        check_job_move(old, new, history=pytest.fail)
        return
    with pytest.raises(IllegalMove, match="the story"):
        check_job_move(old, new, history=lambda: "the story")
