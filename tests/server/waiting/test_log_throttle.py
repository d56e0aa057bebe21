"""Output gives way to work."""

from __future__ import annotations

import pytest

from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.logs import MAX_LOG_BYTES
from myrmidon.server.waiting.log_throttle import BUSY_RUNS, BYTES_PER_S, FREE_BYTES, MAX_PAUSE_S, LogThrottle

NOW = 1_000 * SECOND


@pytest.fixture
def busy() -> LogThrottle:
    floods = LogThrottle()
    floods.record_runs(BUSY_RUNS, NOW)
    return floods


def test_an_idle_server_takes_a_flood_as_it_comes() -> None:
    floods = LogThrottle()
    floods.record_runs(BUSY_RUNS - 1, NOW)
    assert floods.pause(FREE_BYTES, BYTES_PER_S, NOW) == 0.0


def test_the_beginning_of_a_log_never_waits(busy: LogThrottle) -> None:
    assert busy.pause(FREE_BYTES - 1, BYTES_PER_S, NOW) == 0.0


def test_all_floods_of_a_busy_server_share_one_rate(busy: LogThrottle) -> None:
    assert busy.pause(FREE_BYTES, BYTES_PER_S // 4, NOW) == pytest.approx(0.25)
    assert busy.pause(FREE_BYTES, BYTES_PER_S // 4, NOW) == pytest.approx(0.5)
    assert busy.pause(FREE_BYTES, BYTES_PER_S // 4, NOW + SECOND) == pytest.approx(0.25)


def test_no_pause_is_long_however_many_wait(busy: LogThrottle) -> None:
    assert busy.pause(FREE_BYTES, 1_000 * BYTES_PER_S, NOW) == MAX_PAUSE_S


def test_half_a_megabyte_a_second_goes_through_the_longest_pauses() -> None:
    assert MAX_LOG_BYTES / MAX_PAUSE_S >= 500_000


def test_a_server_is_busy_no_longer_than_its_work_lasts(busy: LogThrottle) -> None:
    assert busy.pause(FREE_BYTES, BYTES_PER_S, NOW + SECOND) > 0.0
    assert busy.pause(FREE_BYTES, BYTES_PER_S, NOW + 2 * SECOND) == 0.0
