"""The time of a server: what a wrong clock changes, and when a right one is followed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from myrmidon.server.clock import Clock, boot_time_ns, wall_time
from tests.conftest import START

SECOND = 1_000_000
HOUR = 3600
DAY = 24 * HOUR


@dataclass
class Machine:
    """A machine with a boot clock, and clocks that differ from the true time by as much as a test says."""

    passed: float = 0
    wall_error: float = 0
    database_error: float | None = None

    def boot_ns(self) -> int:
        return round(self.passed * SECOND) * 1000

    def wall(self) -> int:
        return START + round((self.passed + self.wall_error) * SECOND)

    def database(self) -> int | None:
        """The distance of the database's clock to the boot clock."""
        return None if self.database_error is None else START + round(self.database_error * SECOND)


class Timed:
    """A clock on such a machine that is compared every minute."""

    def __init__(self, settle: int = HOUR, **given: float) -> None:
        self.machine = Machine(**given)
        self.clock = Clock(
            max_skew=2 * SECOND, settle=settle * SECOND, wall=self.machine.wall, boot_ns=self.machine.boot_ns
        )

    def let_pass(self, seconds: float) -> None:
        end = self.machine.passed + seconds
        while self.machine.passed < end:
            self.machine.passed = min(end, self.machine.passed + 60)
            self.clock.compare(self.machine.database())

    @property
    def error(self) -> float:
        """How far the clock is ahead of the true time."""
        return (self.clock() - START) / SECOND - self.machine.passed

    @property
    def skew(self) -> float:
        """How far the clock is ahead of its reference."""
        reference = self.clock.compare(self.machine.database())
        return (self.clock() - reference) / SECOND


@pytest.mark.parametrize("jump", [31 * DAY, -31 * DAY, 3650 * DAY, 60, -60, 3])
@pytest.mark.parametrize("lasting", [7, HOUR - 60])
def test_a_jump_that_ends_within_the_hour_is_not_seen(jump, lasting):
    timed = Timed()
    timed.let_pass(HOUR)
    timed.machine.wall_error = jump
    timed.let_pass(lasting)
    assert (timed.error, timed.skew) == (0, -jump)
    timed.machine.wall_error = 0
    timed.let_pass(60)
    assert (timed.error, timed.skew, timed.clock.follows_in) == (0, 0, None)


@pytest.mark.parametrize("correction", [600, -600, 31 * DAY])
def test_without_a_database_a_clock_that_was_set_is_followed_after_an_hour(correction):
    timed = Timed()
    timed.machine.wall_error = correction
    timed.let_pass(HOUR)
    assert (timed.error, timed.clock.follows_in) == (0, 60 * SECOND)
    timed.let_pass(60)
    assert (timed.error, timed.skew, timed.clock.follows_in) == (correction, 0, None)


def test_a_clock_that_is_set_again_and_again_is_not_followed():
    timed = Timed()
    for minute in range(300):
        timed.machine.wall_error = 100 * (1 + minute // 50)
        timed.let_pass(60)
    assert timed.error == 0


@pytest.mark.parametrize("drift", [0.0005, -0.0005])
def test_a_time_service_that_corrects_a_clock_little_by_little_is_followed(drift):
    timed = Timed()
    for minute in range(24 * 60):
        timed.machine.wall_error = drift * 60 * minute
        timed.let_pass(60)
        assert abs(timed.skew) <= 2
    assert timed.error == pytest.approx(drift * 60 * (24 * 60 - 1))


def test_a_step_is_followed_although_a_time_service_goes_on_correcting_it():
    timed = Timed()
    for minute in range(62):
        timed.machine.wall_error = 600 + 0.05 * minute
        timed.let_pass(60)
    assert timed.error == pytest.approx(600, abs=4)


def test_a_jump_that_the_database_does_not_confirm_is_never_followed():
    timed = Timed(settle=300, database_error=0)
    timed.machine.wall_error = 31 * DAY
    timed.let_pass(DAY)
    assert (timed.error, timed.skew, timed.clock.follows_in) == (0, 0, None)


def test_a_database_whose_clock_is_wrong_is_never_followed_and_the_difference_is_told():
    timed = Timed(settle=300, database_error=0)
    timed.machine.database_error = -31 * DAY
    timed.let_pass(DAY)
    assert (timed.error, timed.skew) == (0, 31 * DAY)


def test_a_step_that_the_database_confirms_is_followed_after_five_minutes():
    """As after a pause of a virtual machine, in which its boot clock stood still."""
    timed = Timed(settle=300, database_error=0)
    timed.machine.wall_error = timed.machine.database_error = 600
    timed.let_pass(300)
    assert (timed.error, timed.skew) == (0, -600)
    timed.let_pass(60)
    assert (timed.error, timed.skew) == (600, 0)


def test_a_jump_of_the_only_machine_is_not_seen_although_its_database_confirms_it():
    timed = Timed(settle=300, database_error=0)
    timed.machine.wall_error = timed.machine.database_error = 31 * DAY
    timed.let_pass(120)
    timed.machine.wall_error = timed.machine.database_error = 0
    timed.let_pass(DAY)
    assert timed.error == 0


def test_a_suspended_machine_has_the_right_time_at_once():
    timed = Timed()
    timed.machine.passed += 8 * HOUR
    assert (timed.error, timed.skew) == (0, 0)


def test_the_time_that_a_database_told_counts_for_the_middle_of_the_call():
    timed = Timed()
    timed.machine.passed = 10
    assert timed.clock.offset_of(START + 9 * SECOND, 8 * SECOND) == START


def test_the_real_clocks_go_on():
    assert boot_time_ns() <= boot_time_ns()
    assert abs(Clock(max_skew=0, settle=0)() - wall_time()) < HOUR * SECOND
