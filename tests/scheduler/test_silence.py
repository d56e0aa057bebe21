"""Bots that fall silent: dead only when none of their runs may still be reported, and what is told until then."""

from __future__ import annotations

import pytest
from msgspec import structs

from myrmidon.scheduler import bot_end, explain, outages
from myrmidon.store.tables import task_run
from tests.builders import RULES, seconds


@pytest.fixture
def w(world):
    """Bots are dead after 30 s, while leases may be longer."""
    world.rules = structs.replace(RULES, dead_after=seconds(30))
    world.bot("b1")
    return world


def why(w, task):
    return w.read(explain.explain, task, now=w.now, rules=w.rules)


def silent_runs(w, task):
    return w.read(lambda tx: outages.silent_runs(tx, task_run.read(tx, [task]), now=w.now, rules=w.rules))


def test_a_silent_bot_is_not_dead_before_the_lease_of_its_run_has_ended(w):
    task = w.submit(lease_s=300)
    w.take("b1")
    for _ in range(9):
        w.advance(33)
        w.sweep()
        assert (w.bot_row("b1").alive, w.state(task)) == (1, "RUNNING")
    w.advance(4)
    w.sweep()
    assert (w.bot_row("b1").alive, w.state(task)) == (0, "READY")


def test_the_longest_lease_counts(w):
    short, long = w.submit(lease_s=30), w.submit(lease_s=120)
    for run in w.claim("b1", 2):
        w.start(run)
    w.advance(35)
    w.sweep()
    assert (w.state(short), w.state(long), w.bot_row("b1").alive) == ("READY", "RUNNING", 1)
    w.advance(90)
    w.sweep()
    assert (w.state(long), w.bot_row("b1").alive) == ("READY", 0)


def test_a_run_that_never_started_keeps_its_bot_no_longer_than_itself(w):
    task = w.submit(lease_s=300)
    w.take("b1", started=False)
    w.advance(31)
    w.sweep()
    assert (w.state(task), w.bot_row("b1").alive) == ("READY", 0)


def test_a_heartbeat_ends_the_silence(w):
    task = w.submit(lease_s=300)
    run = w.take("b1")
    w.advance(100)
    w.sweep()
    w.beat("b1", run)
    assert silent_runs(w, task) == {}
    w.advance(29)
    w.sweep()
    w.finish(run)
    assert (w.state(task), w.bot_row("b1").alive) == ("SUCCEEDED", 1)


def test_it_is_told_since_when_a_bot_is_silent_and_when_its_run_is_given_up(w):
    task = w.submit(lease_s=300)
    w.take("b1")
    began = w.now
    w.advance(15)
    assert why(w, task).summary == "The task is running on bot b1."
    w.advance(19)
    told = why(w, task)
    assert (told.silent_since, told.given_up_at) == (began, began + seconds(300))
    assert told.summary == (
        "The task is running on bot b1. The bot has been silent for 34 s; the run is given up in 266 s."
    )
    assert list(silent_runs(w, task).values()) == [outages.Silence(began, began + seconds(300))]


def test_the_run_of_a_deleted_bot_is_silent_since_its_claim(w):
    task = w.submit(lease_s=300)
    w.take("b1")
    began = w.now
    w.do(bot_end.delete_bot, "b1")
    w.advance(60)
    assert why(w, task).given_up_at == began + seconds(300)


def test_after_an_outage_a_run_is_given_up_a_lease_later(w):
    task = w.submit(lease_s=300)
    w.take("b1")
    w.sweep()
    w.outage(200)
    w.sweep()
    assert why(w, task).given_up_at == w.now + seconds(300)
    assert w.read(outages.dead_at, w.bot_row("b1"), rules=w.rules) == w.now + seconds(300)


@pytest.mark.parametrize(
    ("verb", "reason"), [(bot_end.mark_bot_stopped, "bot_stopped"), (bot_end.end_runs_before_reboot, "bot_rebooting")]
)
def test_a_goodbye_and_a_reboot_end_the_runs_at_once(w, verb, reason):
    started, claimed = w.submit(lease_s=300), w.submit(lease_s=300)
    run, _ = w.claim("b1", 2)
    w.start(run)
    w.do(verb, "b1", session=w.sessions["b1"] - 1)
    assert [w.state(task) for task in (started, claimed)] == ["RUNNING", "RUNNING"], "of an earlier process"
    w.do(verb, "b1", session=w.sessions["b1"])
    assert [w.state(task) for task in (started, claimed)] == ["READY", "READY"]
    reasons = w.column("SELECT reason FROM task_runs ORDER BY task_id")
    assert reasons == [reason, "not_started"]


def test_a_goodbye_ends_a_task_that_must_not_run_twice(w):
    task = w.submit(retries=0)
    w.take("b1")
    w.do(bot_end.mark_bot_stopped, "b1", session=w.sessions["b1"])
    assert (w.state(task), w.bot_row("b1").alive) == ("BOT_DIED", 0)


@pytest.mark.parametrize(("dead_after_s", "silent_after_s"), [(600, 120), (240, 120), (30, 15), (1, 0.5)])
def test_when_a_bot_is_silent(dead_after_s, silent_after_s):
    rules = structs.replace(RULES, dead_after=seconds(dead_after_s))
    assert rules.silent_after == seconds(silent_after_s)


def test_a_task_whose_only_bot_is_silent_is_told_so(w):
    task = w.submit()
    assert why(w, task).summary == "1 bot can run it. It is the next one in its queue."
    w.advance(16)
    told = why(w, task)
    assert told.summary == "1 bot matches, but it is not available: b1 (silent: no heartbeat for 16 s)."
    assert (told.num_bots, told.num_serving, [bot.state for bot in told.unavailable]) == (1, 0, ["silent"])
    w.bot("b2")
    told = why(w, task)
    assert told.summary == "1 bot can run it. It is the next one in its queue."
    assert [(bot.bot_id, bot.state) for bot in told.unavailable] == [("b1", "silent")]
