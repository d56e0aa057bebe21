"""Gaps in time: what a sweep does after an outage, or after a start under a wrong clock."""

from __future__ import annotations

import pytest

from myrmidon.scheduler import outages
from tests.builders import seconds

DAY_S = 86_400
HOUR_S = 3600


@pytest.fixture
def w(world):
    world.bot("b1")
    world.removed = True
    return world


def an_ended_task_and_job(w):
    task, job = w.submit(), w.job({"a": []})
    w.work("b1")
    w.sweep()
    return task, job.id


def waits_until(w):
    return w.read(outages.retention_waits_until, w.now)


def swept(w):
    """When old rows may be deleted again, as of a sweep."""
    w.sweep()
    return waits_until(w)


def exists(w, task, job):
    return task in w.column("SELECT id FROM task_requests"), job in w.column("SELECT id FROM jobs")


def test_after_a_long_gap_nothing_old_is_deleted_for_an_hour(w):
    task, job = an_ended_task_and_job(w)
    w.outage(31 * DAY_S)
    assert w.sweep() == []
    assert waits_until(w) == w.now + seconds(HOUR_S)
    w.advance(HOUR_S - 1)
    w.sweep()
    assert exists(w, task, job) == (True, True)
    assert "bot_connected" in w.column("SELECT kind FROM bot_events")
    w.advance(1)
    assert swept(w) is None
    assert exists(w, task, job) == (False, False)
    assert "bot_connected" not in w.column("SELECT kind FROM bot_events")


def test_a_gap_of_less_than_an_hour_delays_no_deletion(w):
    task, job = an_ended_task_and_job(w)
    w.advance(30 * DAY_S - HOUR_S)
    w.sweep()
    w.outage(HOUR_S)
    assert swept(w) is None
    assert exists(w, task, job) == (False, False)


def test_while_deletion_waits_tasks_past_their_deadline_still_end(w):
    """However many old rows are due before them."""
    for _ in range(3):
        an_ended_task_and_job(w)
    waiting = w.submit(deadline_s=DAY_S)
    w.outage(31 * DAY_S)
    w.sweep()
    assert w.state(waiting) == "EXPIRED"
    later = w.submit(deadline_s=60)
    w.advance(61)
    w.sweep()
    assert w.state(later) == "EXPIRED"


def test_a_wait_that_began_under_a_wrong_clock_ends_with_it(w):
    """The clock was a year ahead at a start, and is right at the next one."""
    task, job = an_ended_task_and_job(w)
    w.outage(365 * DAY_S)
    assert swept(w) is not None
    w.outage(-365 * DAY_S)
    assert swept(w) is None
    w.advance(31 * DAY_S)
    w.sweep()
    assert exists(w, task, job) == (False, False)


def test_a_bot_of_the_time_of_a_wrong_clock_is_dead_when_it_stays_silent(w):
    w.sweep()
    w.outage(365 * DAY_S)
    w.sweep()
    w.bot("b2")
    w.outage(-365 * DAY_S)
    w.sweep()
    assert (w.bot_row("b2").heartbeat, w.bot_row("b2").alive) == (w.now, 1)
    w.advance(601)
    w.sweep()
    assert (w.bot_row("b1").alive, w.bot_row("b2").alive) == (0, 0)


def test_an_outage_lasts_until_its_end_is_recorded(w):
    w.sweep()
    assert (w.read(outages.is_away, w.now), w.read(outages.keeps_old, w.now)) == (False, False)
    w.outage(61)
    assert (w.read(outages.is_away, w.now), w.read(outages.keeps_old, w.now)) == (True, True)
    w.sweep()
    assert (w.read(outages.is_away, w.now), w.read(outages.keeps_old, w.now)) == (False, False)


def test_a_first_start_waits_for_nothing(w):
    assert swept(w) is None
    assert (w.read(outages.resumed_at), w.read(outages.retention_waits_until, w.now)) == (0, None)
