"""Several instances of one task: a straggler gets company, and the first finisher wins."""

from __future__ import annotations

import pytest

from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler.report import Outcome
from tests.builders import seconds


@pytest.fixture
def w(world):
    """Bot b1 runs a task that has outlasted its soft timeout, so that another bot may try it too."""
    world.bots("b1", "b2", "b3")
    world.task_id = world.submit(max_instances=2, soft_timeout_s=60, reruns=0, retries=1)
    world.first = world.take("b1")
    world.advance(60)
    world.bots_beat = lambda: [world.beat(bot) for bot in ("b1", "b2", "b3")]
    world.bots_beat()
    world.sweep()
    return world


def test_a_straggler_gets_a_second_instance_on_another_bot(w):
    assert (w.state(w.task_id), w.claim("b1")) == ("RUNNING", [])
    second = w.take("b2")
    assert [(run.run, run.instance) for run in w.runs(w.task_id)] == [(1, 0), (2, 1)]
    assert second.task_id == w.task_id


def test_no_more_instances_run_than_were_asked_for(w):
    w.take("b2")
    w.advance(60)
    w.bots_beat()
    w.sweep()
    assert w.claim("b3") == []


def test_a_straggler_is_granted_one_instance_at_a_time(world):
    """The grant of the second run is not used yet when that run, after the first was lost, outlasts its time again."""
    world.bots("b1", "b2", "b3")
    task = world.submit(max_instances=3, soft_timeout_s=60)
    first = world.take("b1")
    wait_and_sweep(world, 60)
    world.take("b2")
    wait_and_sweep(world, 60)
    assert granted(world) == [(task, 2, "b2")]
    world.fault(first, "reboot")
    assert [run.soft_at for run in world.runs(task)] == [None, world.now + seconds(60)]
    wait_and_sweep(world, 60)
    assert granted(world) == [(task, 2, "b2")]
    assert [run.soft_at for run in world.runs(task)] == [None, None]


def test_a_bot_never_runs_two_instances_of_a_task(world):
    """The grant names the bot of the second run only; that of the first one has free slots too."""
    world.bots("b1", "b2", "b3")
    task = world.submit(max_instances=3, soft_timeout_s=60)
    world.take("b1")
    wait_and_sweep(world, 60)
    world.take("b2")
    wait_and_sweep(world, 60)
    assert [world.claim(bot) for bot in ("b1", "b2")] == [[], []]
    others = [world.submit(), world.submit(dimensions={"pool": ["default"], "id": ["b1"]})]
    assert sorted(claimed.task_id for claimed in world.claim("b1", n=3)) == others, "it takes those behind it"
    assert world.take("b3").task_id == task


def wait_and_sweep(world, length):
    world.advance(length)
    for bot in ("b1", "b2", "b3"):
        world.beat(bot)
    world.sweep()


def granted(world):
    return world.read(lambda tx: tx.all("SELECT task_id, instance, avoid_bot FROM task_to_run"))


def test_the_first_finisher_wins_and_the_other_is_stopped(w):
    second = w.take("b2")
    w.finish(second)
    assert (w.state(w.task_id), w.task(w.task_id).instance_id, w.task(w.task_id).bot_id) == ("SUCCEEDED", 2, "b2")
    assert w.beat("b1", w.first) == [(w.task_id, 1)]
    assert [run.state for run in w.runs(w.task_id)] == ["CANCELLED", "SUCCEEDED"]


def test_a_task_shows_the_bot_and_the_start_of_the_winner_also_if_that_began_first(w):
    w.take("b2")
    w.finish(w.first)
    task, [winner, _] = w.task(w.task_id), w.runs(w.task_id)
    assert (task.instance_id, task.bot_id, task.started_at) == (1, "b1", winner.claimed_at)


def test_a_task_shows_a_run_that_goes_on(w):
    second = w.take("b2")
    w.fault(second, "reboot")
    assert (w.task(w.task_id).bot_id, w.task(w.task_id).started_at) == ("b1", w.runs(w.task_id)[0].claimed_at)


def test_a_failed_task_shows_the_run_that_ended_it(w):
    w.fail(w.take("b2"))
    w.fail(w.first)
    assert (w.state(w.task_id), w.task(w.task_id).bot_id) == ("FAILED", "b1")


def test_the_loser_cannot_change_the_result(w):
    second = w.take("b2")
    w.finish(second)
    assert (w.finish(w.first, 1).outcome, w.state(w.task_id)) == (Outcome.STALE, "SUCCEEDED")


def test_a_winner_takes_back_the_right_that_was_granted(w):
    w.finish(w.first)
    assert (w.count("task_to_run"), w.claim("b2")) == (0, [])


def test_a_failing_instance_does_not_fail_the_task_while_another_works(w):
    second = w.take("b2")
    w.fail(second)
    assert w.state(w.task_id) == "RUNNING"
    w.finish(w.first)
    assert w.state(w.task_id) == "SUCCEEDED"


def test_a_task_fails_with_its_last_instance(w):
    second = w.take("b2")
    w.fail(second)
    w.fail(w.first)
    assert w.state(w.task_id) == "FAILED"


def test_a_lost_instance_does_not_stop_the_other(w):
    second = w.take("b2")
    w.advance(299)
    w.beat("b2", second)
    w.advance(2)
    w.sweep()
    assert (w.state(w.task_id), [run.state for run in w.runs(w.task_id)]) == ("RUNNING", ["BOT_DIED", "RUNNING"])
    assert w.task(w.task_id).num_retries == 0


def test_instances_that_are_lost_together_cost_one_retry(w):
    w.take("b2")
    w.advance(301)
    w.sweep()
    assert (w.state(w.task_id), w.task(w.task_id).num_retries) == ("READY", 1)


def test_a_task_that_is_killed_ends_with_its_last_instance(w):
    second = w.take("b2")
    w.cancel(w.task_id)
    w.finish(w.first, -9)
    assert w.state(w.task_id) == "RUNNING"
    w.finish(second, -9)
    assert w.state(w.task_id) == "KILLED"


def test_a_granted_right_that_nobody_takes_expires_alone(w):
    w.advance(86_401)
    w.bots_beat()
    w.sweep()
    assert (w.state(w.task_id), w.count("task_to_run")) == ("RUNNING", 0)


def test_a_further_instance_is_granted_again_when_nobody_took_the_first(w):
    w.advance(86_401)
    w.bots_beat()
    w.sweep()
    wait_and_sweep(w, 60)
    assert w.take("b2").task_id == w.task_id


@pytest.mark.parametrize("how", ["reported", "silent", "given back"])
def test_a_further_instance_is_granted_again_when_the_first_was_lost(w, how):
    second = w.take("b2", started=how != "given back")
    if how == "reported":
        w.fault(second, "reboot")
    elif how == "given back":
        w.give_back(second)
    else:
        w.lose("b2")
    wait_and_sweep(w, 60)
    assert w.take("b3").task_id == w.task_id


def test_no_further_instance_is_granted_after_one_has_failed(w):
    w.fail(w.take("b2"))
    wait_and_sweep(w, 60)
    assert w.claim("b3") == []


def test_a_further_instance_avoids_the_bot_of_the_first_although_no_other_bot_is_left(w):
    for bot in ("b2", "b3"):
        w.do(fleet.quarantine, bot, "broken")
    assert w.claim("b1") == []
    assert granted(w) == [(w.task_id, 1, "b1")]


def test_a_deadline_ends_every_instance(w):
    w.take("b2")
    w.advance(7 * 86_400)
    w.beat("b1")
    w.beat("b2")
    w.sweep()
    assert w.state(w.task_id) == "TIMED_OUT"
    assert {run.state for run in w.runs(w.task_id)} == {"TIMED_OUT"}


def test_a_task_that_is_being_killed_gets_no_company(world):
    world.bots("b1", "b2")
    task = world.submit(max_instances=2, soft_timeout_s=60)
    world.take("b1")
    world.cancel(task)
    world.advance(60)
    world.beat("b1")
    world.sweep()
    assert (world.claim("b2"), world.last_run(task).soft_at) == ([], None)


def test_a_task_of_one_instance_has_no_soft_timeout(world):
    world.bots("b1", "b2")
    task = world.submit(soft_timeout_s=60)
    world.take("b1")
    assert world.last_run(task).soft_at is None


def test_the_first_finisher_feeds_the_children_once(world):
    world.bots("b1", "b2")
    job = world.job({"a": [], "b": ["a"]}, nodes={"a": {"max_instances": 2, "soft_timeout_s": 60}})
    first = world.take("b1")
    world.advance(60)
    world.beat("b1")
    world.sweep()
    second = world.take("b2")
    world.finish(second)
    world.finish(first)
    assert (world.task(job["b"]).num_succeeded_parents, world.story(job["b"])) == (1, ["WAITING", "READY"])


def test_two_stragglers_of_one_task_that_are_due_together_are_granted_one_instance(world):
    world.bots("b1", "b2", "b3")
    task = world.submit(max_instances=4, soft_timeout_s=60)
    world.take("b1")
    wait_and_sweep(world, 60)
    world.take("b2")
    world.db.write(lambda tx: tx.run("UPDATE task_runs SET soft_at = 1, due_at = 1"))
    world.sweep()
    assert granted(world) in ([(task, 2, "b1")], [(task, 2, "b2")])
