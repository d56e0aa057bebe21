"""Holding and releasing: a gate that somebody opens by hand."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler.hold import hold, hold_job, release, release_job
from myrmidon.scheduler.retention import delete_job


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_held_task_is_not_given_out(w):
    task = w.submit()
    w.do(hold, task)
    assert (w.state(task), w.task(task).held, w.claim("b1")) == ("WAITING", 1, [])


def test_a_released_task_is(w):
    task = w.submit()
    w.do(hold, task)
    w.do(release, task)
    assert [run.task_id for run in w.claim("b1")] == [task]


def test_holding_and_releasing_twice_is_the_same_as_once(w):
    task = w.submit()
    assert w.do(hold, task) == w.do(hold, task)
    assert w.do(release, task) == w.do(release, task)


def test_a_held_task_waits_for_its_parents_too(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"hold": True}})
    w.do(release, job["b"])
    assert w.states(job)["b"] == "WAITING"
    assert len(w.work("b1")) == 2


def test_a_held_task_does_not_start_when_its_parents_are_done(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"hold": True}})
    w.work("b1")
    assert (w.states(job)["b"], w.job_state(job)) == ("WAITING", "RUNNING")
    w.do(release, job["b"])
    assert w.states(job)["b"] == "READY"


def test_a_task_behind_others_may_be_held(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do(hold, job["b"])
    w.work("b1")
    assert (w.states(job)["b"], w.job_row(job).num_active) == ("WAITING", 1)


@pytest.mark.parametrize("ended", [False, True])
def test_a_task_that_has_started_cannot_be_held(w, ended):
    task = w.submit()
    run = w.take("b1")
    if ended:
        w.finish(run)
    with pytest.raises(WrongState):
        w.do(hold, task)


def test_a_task_that_does_not_exist_cannot_be_held(w):
    with pytest.raises(NotFound):
        w.do(hold, 17)


def test_a_held_task_expires_at_its_deadline(w):
    task = w.submit(deadline_s=60)
    w.do(hold, task)
    w.advance(60)
    w.sweep()
    assert (w.state(task), w.task(task).held) == ("EXPIRED", 0)


def test_a_held_task_does_not_expire_with_its_slice(w):
    task = w.submit(expiration_s=60)
    w.do(hold, task)
    w.advance(61)
    w.sweep()
    assert w.state(task) == "WAITING"


def test_a_held_retry_expires_at_its_deadline(w):
    task = w.submit(deadline_s=60)
    w.fault(w.take("b1"), "reboot")
    w.do(hold, task)
    w.advance(60)
    w.sweep()
    assert w.state(task) == "EXPIRED"


def test_a_held_retry_released_past_its_deadline_has_expired(w):
    task = w.submit(deadline_s=60)
    w.fault(w.take("b1"), "reboot")
    w.do(hold, task)
    w.advance(60)
    w.do(release, task)
    assert w.state(task) == "EXPIRED"


def test_a_held_retry_that_no_bot_can_do_ends_when_it_is_released(w):
    task = w.submit(wait_for_capacity=False)
    w.fault(w.take("b1"), "reboot")
    w.do(hold, task)
    w.bot("b1", quarantined="broken")
    w.do(release, task)
    assert w.state(task) == "NO_RESOURCE"


def test_a_held_task_may_be_cancelled(w):
    task = w.submit()
    w.do(hold, task)
    w.cancel(task)
    assert w.state(task) == "CANCELLED"


def test_a_job_held_as_a_whole_waits(w):
    job = w.job({"a": [], "b": []}, hold=True)
    assert (set(w.states(job).values()), w.job_state(job)) == ({"WAITING"}, "RUNNING")


def test_a_held_job_starts_nothing_more_until_it_is_released(w, small_chunks):
    job = w.job({"a": [], "b": ["a"], "c": [], "d": [], "e": []})
    w.carry()
    run = w.take("b1")
    w.do(hold_job, job.id)
    w.carry()
    w.finish(run)
    assert w.claim("b1") == []
    assert sorted(w.states(job).values()) == ["SUCCEEDED", *["WAITING"] * 4]
    w.do(release_job, job.id)
    w.carry()
    assert len(w.work("b1")) == 4
    assert w.job_state(job) == "SUCCEEDED"


def test_a_job_that_has_ended_cannot_be_held(w):
    job = w.job({"a": []})
    w.work("b1")
    for verb in (hold_job, release_job):
        with pytest.raises(WrongState):
            w.do(verb, job.id)
        with pytest.raises(NotFound):
            w.do(verb, 12345)


def test_a_task_of_a_job_that_has_ended_cannot_be_held_and_keeps_nobody_from_deleting_it(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    assert (w.job_state(job), w.state(job["b"])) == ("FAILED", "WAITING")
    with pytest.raises(WrongState, match="hold it after a rerun"):
        w.do(hold, job["b"])
    w.removed = True
    w.do(delete_job, job.id, group_id=w.group.id)
    w.carry()
    assert not w.exists(job["b"])
