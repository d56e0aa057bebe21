from __future__ import annotations

from msgspec.structs import replace

from myrmidon.sdk.wait_reasons import reason_of
from myrmidon.wire.tasks import DimensionStep, TaskExplanation, UnavailableBot

STEP = DimensionStep(dimension="gpu:a100", removes=1, left=1)
BUSY = TaskExplanation(
    task_id="7c07a39dc80000100",
    state="READY",
    summary="",
    waiting_on=[],
    unreachable=False,
    held=False,
    dimensions=[STEP],
    num_bots=2,
    num_serving=2,
    position=4,
)
SILENT = UnavailableBot(bot_id="b1", state="silent", reason="no heartbeat for 40 s", last_seen_at=1)
LOST = replace(BUSY, num_serving=0, unavailable=[SILENT])


def test_a_place_in_the_queue_and_a_number_of_bots_are_no_new_reason():
    assert reason_of(replace(BUSY, position=3, num_serving=1)) == reason_of(BUSY)


def test_a_bot_that_stays_silent_is_no_new_reason():
    longer = replace(SILENT, reason="no heartbeat for 45 s")
    assert reason_of(replace(LOST, unavailable=[longer])) == reason_of(LOST)


def test_bots_that_go_away_and_the_dimensions_of_the_next_slice_are_new_reasons():
    other_slice = replace(LOST, dimensions=[replace(STEP, dimension="gpu:h100")])
    dead = replace(LOST, unavailable=[replace(SILENT, state="dead")])
    assert len({reason_of(one) for one in (BUSY, LOST, other_slice, dead)}) == 4
