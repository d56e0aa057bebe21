"""Output gives way to work."""

from __future__ import annotations

import pytest

from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.logs import MOST_LOG_BYTES
from myrmidon.server.waiting.log_throttle import BUSY, FREE, LONGEST_S, RATE, Floods

NOW = 1_000 * SECOND


@pytest.fixture
def busy() -> Floods:
    floods = Floods()
    floods.worked(BUSY, NOW)
    return floods


def test_an_idle_server_takes_a_flood_as_it_comes() -> None:
    floods = Floods()
    floods.worked(BUSY - 1, NOW)
    assert floods.pause(FREE, RATE, NOW) == 0.0


def test_the_beginning_of_a_log_never_waits(busy: Floods) -> None:
    assert busy.pause(FREE - 1, RATE, NOW) == 0.0


def test_all_floods_of_a_busy_server_share_one_rate(busy: Floods) -> None:
    assert busy.pause(FREE, RATE // 4, NOW) == pytest.approx(0.25)
    assert busy.pause(FREE, RATE // 4, NOW) == pytest.approx(0.5)
    assert busy.pause(FREE, RATE // 4, NOW + SECOND) == pytest.approx(0.25)


def test_no_pause_is_long_however_many_wait(busy: Floods) -> None:
    assert busy.pause(FREE, 1_000 * RATE, NOW) == LONGEST_S


def test_half_a_megabyte_a_second_goes_through_the_longest_pauses() -> None:
    assert MOST_LOG_BYTES / LONGEST_S >= 500_000


def test_a_server_is_busy_no_longer_than_its_work_lasts(busy: Floods) -> None:
    assert busy.pause(FREE, RATE, NOW + SECOND) > 0.0
    assert busy.pause(FREE, RATE, NOW + 2 * SECOND) == 0.0
