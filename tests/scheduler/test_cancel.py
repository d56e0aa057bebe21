"""Cancelling: what waits ends at once, what runs is asked to stop."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound
from myrmidon.scheduler import cancel, maintenance
from myrmidon.scheduler.cancel import Cancelled
from myrmidon.scheduler.idempotency import number_of_key
from myrmidon.scheduler.report import Outcome
from myrmidon.store.tables import task_request


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_task_that_waits_for_a_bot_is_cancelled_at_once(w):
    task = w.submit()
    assert w.cancel(task) == [Cancelled(task, ok=True, was_running=False)]
    assert (w.state(task), w.task(task).abandoned_at, w.claim("b1")) == ("CANCELLED", w.now, [])


def test_a_task_that_waits_for_its_parents_is_cancelled_at_once(w):
    job = w.job({"a": [], "b": ["a"]})
    w.cancel(job["b"])
    assert (w.states(job), w.job_row(job).view) == ({"a": "READY", "b": "CANCELLED"}, "blocked")


def test_a_running_task_is_killed_in_two_steps(w):
    task = w.submit()
    run = w.take("b1")
    assert w.cancel(task) == [Cancelled(task, ok=True, was_running=True)]
    assert (w.state(task), w.task(task).killing, w.task(task).abandoned_at) == ("RUNNING", 1, w.now)
    assert w.beat("b1", run) == [(task, 1)]
    w.finish(run, 23)
    assert (w.state(task), w.task(task).reason, w.last_run(task).exit_code) == ("KILLED", "cancelled", 23)


def test_a_killed_task_that_succeeds_all_the_same_is_killed(w):
    task = w.submit()
    run = w.take("b1")
    w.cancel(task)
    w.finish(run, 0)
    assert (w.state(task), w.task(task).instance_id) == ("KILLED", None)


def test_being_killed_beats_a_timeout_and_a_rerun(w):
    task = w.submit(reruns=3)
    run = w.take("b1")
    w.cancel(task)
    w.finish(run, None, hard_timeout=True)
    assert w.state(task) == "KILLED"


def test_a_killed_task_whose_bot_is_lost_is_killed(w):
    task = w.submit(retries=3)
    w.take("b1")
    w.cancel(task)
    w.lose("b1")
    assert (w.state(task), w.last_run(task).state) == ("KILLED", "KILLED")


def test_a_running_task_may_be_spared(w):
    task = w.submit()
    w.take("b1")
    assert w.cancel(task, kill_running=False) == [Cancelled(task, ok=False, was_running=True)]
    assert w.task(task).killing == 0


def test_what_has_ended_cannot_be_cancelled(w):
    task = w.submit()
    w.do_one("b1")
    assert w.cancel(task) == [Cancelled(task, ok=False, was_running=False)]
    assert w.state(task) == "SUCCEEDED"


def test_cancelling_twice_is_the_same_as_once(w):
    task = w.submit()
    w.take("b1")
    w.cancel(task)
    before = w.task(task)
    assert (w.cancel(task)[0].ok, w.task(task)) == (True, before)


def test_many_are_cancelled_in_one_call_each_with_its_answer(w):
    tasks = w.submit_many(2)
    answers = w.cancel(tasks[1], 17, tasks[0])
    assert [(answer.task_id, answer.ok, answer.found) for answer in answers] == [
        (tasks[1], True, True), (17, False, False), (tasks[0], True, True),
    ]  # fmt: skip


def test_nothing_is_cancelled_by_no_ids(w):
    assert w.cancel() == []


# ---------------------------------------------------------------- jobs


def test_a_cancelled_job_takes_everything_with_it(w):
    job = w.job({"a": [], "b": [], "c": ["a"]})
    run = w.take("b1")
    w.do(cancel.cancel_job, job.id)
    assert sorted(w.states(job).values()) == ["CANCELLED", "CANCELLED", "RUNNING"]
    assert (w.job_state(job), w.beat("b1", run)) == ("CANCELLED", [(run.task_id, 1)])
    w.finish(run, -15)
    assert (w.state(run.task_id), w.job_state(job), w.story(job.id)) == (
        "KILLED",
        "CANCELLED",
        ["RUNNING", "CANCELLED"],
    )


def test_cancelling_a_job_twice_is_the_same_as_once(w):
    job = w.job({"a": []})
    w.do(cancel.cancel_job, job.id)
    before = w.job_row(job)
    w.do(cancel.cancel_job, job.id)
    assert w.job_row(job) == before


def test_a_job_that_has_ended_stays_as_it_is(w):
    job = w.job({"a": []})
    w.work("b1")
    w.do(cancel.cancel_job, job.id)
    assert w.job_state(job) == "SUCCEEDED"


def test_a_job_that_waits_for_its_retry_can_be_cancelled(w):
    job = w.job({"a": [], "b": ["a"]}, max_num_retries=3)
    w.do_one("b1", 1)
    w.do(cancel.cancel_job, job.id)
    w.sweep()
    assert (w.job_state(job), w.states(job)) == ("CANCELLED", {"a": "FAILED", "b": "CANCELLED"})


def test_a_large_job_is_cancelled_in_chunks(w, small_chunks):
    job = w.job({str(i): [] for i in range(8)})
    w.carry()
    w.do(cancel.cancel_job, job.id)
    assert list(w.states(job).values()).count("CANCELLED") == 3
    w.carry()
    assert set(w.states(job).values()) == {"CANCELLED"}


def test_a_task_of_a_cancelled_job_that_succeeds_too_late_feeds_nobody(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"requires_policy": "all-resolved"}})
    run = w.take("b1")
    w.do(cancel.cancel_job, job.id)
    w.finish(run)
    assert w.states(job) == {"a": "KILLED", "b": "CANCELLED"}
    assert w.task(job["b"]).num_succeeded_parents == 0


@pytest.mark.parametrize("which", ["unknown", "foreign"])
def test_a_job_that_is_not_yours_does_not_exist(w, which):
    job = w.job({"a": []})
    with pytest.raises(NotFound):
        w.do(cancel.cancel_job, 17 if which == "unknown" else job.id, group_id=17 if which == "foreign" else w.group.id)
    assert w.job_state(job) == "RUNNING"


# ---------------------------------------------------------------- by tag


def test_tasks_are_cancelled_by_all_their_tags(w):
    both, one, running = (
        w.submit(tags=["a:1", "b:2"]),
        w.submit(tags=["a:1"]),
        w.submit(tags=["a:1", "b:2"], priority=1),
    )
    w.take("b1")
    w.do(cancel.cancel_tagged, ["a:1", "b:2"], group_id=w.group.id)
    w.carry()
    assert [w.state(task) for task in (both, one, running)] == ["CANCELLED", "READY", "RUNNING"]
    assert w.task(running).killing == 0


@pytest.mark.parametrize("tags", [["pool:other"], ["pool:other", "user:ann"], ["user:ann", "a:1"]])
def test_tasks_are_cancelled_by_tags_that_have_no_rows_however_many_others_there_are(w, monkeypatch, tags):
    monkeypatch.setattr(task_request, "LOOKED_AT", 3)
    meant = []
    for _ in range(3):
        others = [w.submit(tags=["a:1"]) for _ in range(5)]
        meant.append(w.submit(pool="other", tags=["a:1"], user="ann"))
    w.do(cancel.cancel_tagged, tags, group_id=w.group.id)
    w.carry()
    assert {w.state(task) for task in meant} == {"CANCELLED"}
    assert {w.state(task) for task in others} == {"READY"}


def test_running_tasks_are_killed_by_tag_only_when_asked_to(w):
    task = w.submit(tags=["a:1"])
    w.take("b1")
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, kill_running=True)
    w.carry()
    assert w.task(task).killing == 1


def test_tasks_created_later_are_not_meant(w):
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id)
    w.advance(1)
    task = w.submit(tags=["a:1"])
    w.carry()
    assert w.state(task) == "READY"


def test_a_mass_cancel_may_be_bounded_in_time(w):
    tasks = []
    for _ in range(3):
        tasks.append(w.submit(tags=["a:1"]))
        w.advance(10)
    now = w.now
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, start=now - 20_000_000, end=now - 15_000_000)
    w.carry()
    assert [w.state(task) for task in tasks] == ["READY", "CANCELLED", "READY"]


def test_a_mass_cancel_touches_only_its_own_group(w):
    task = w.submit(tags=["a:1"], group=w.new_group("other"))
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id)
    w.carry()
    assert w.state(task) == "READY"


def test_a_mass_cancel_goes_on_in_chunks(w, small_chunks):
    tasks = w.submit_many(8, tags=["a:1", "b:2"])
    w.do(cancel.cancel_tagged, ["a:1", "b:2"], group_id=w.group.id)
    w.carry()
    assert {w.state(task) for task in tasks} == {"CANCELLED"}


def test_a_mass_cancel_that_finds_nothing_ends(w):
    w.do(cancel.cancel_tagged, ["no:thing", "at:all"], group_id=w.group.id)
    w.carry()
    assert w.count("chunked_work") == 0


def test_a_mass_cancel_said_again_with_its_key_means_nothing_new(w):
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, request_key="key")
    w.carry()
    w.advance(1)
    task = w.submit(tags=["a:1"])
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, request_key="key")
    w.carry()
    assert w.state(task) == "READY"
    with pytest.raises(Conflict):
        w.do(cancel.cancel_tagged, ["b:2"], group_id=w.group.id, request_key="key")
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, request_key="another key")
    w.carry()
    assert w.state(task) == "CANCELLED"


def test_request_keys_that_stand_for_no_task_are_forgotten_in_the_end(w):
    w.do(cancel.cancel_tagged, ["a:1"], group_id=w.group.id, request_key="key")
    w.advance(8 * 86_400)
    w.do(maintenance.run_step, "old_rows")
    assert w.count("request_keys") == 0


def test_a_mass_cancel_says_how_many_unfinished_tasks_it_is_about_and_says_it_again(w):
    w.submit(tags=["a:1"], priority=1)
    w.do_one("b1")
    running, ready, _ = w.submit(tags=["a:1"], priority=1), w.submit(tags=["a:1", "b:2"]), w.submit(tags=["b:2"])
    w.submit(tags=["a:1"], group=w.new_group("other"))
    w.take("b1")

    def mass(*tags, **given):
        return w.do(cancel.cancel_tagged, tags, group_id=w.group.id, **given).num_tasks

    assert mass("no:thing", kill_running=True) == 0
    assert mass("a:1", "b:2") == 1
    assert mass("a:1") == 1
    assert mass("a:1", kill_running=True, request_key="key") == 2
    w.carry()
    assert (w.state(ready), w.task(running).killing) == ("CANCELLED", 1)
    assert mass("a:1", kill_running=True, request_key="key") == 2
    assert w.read(number_of_key, "cancel", "key", group_id=w.group.id) == 2 * 2 + 1, "two tasks, and that is all"
    assert mass("a:1") == 0


def test_a_mass_cancel_without_tags_is_refused(w):
    with pytest.raises(InvalidRequest):
        w.do(cancel.cancel_tagged, [], group_id=w.group.id)


def test_a_cancel_that_loses_the_race_against_the_end_changes_nothing(w):
    task = w.submit()
    run = w.take("b1")
    w.finish(run)
    w.cancel(task)
    assert (w.finish(run).outcome, w.state(task)) == (Outcome.REPEATED, "SUCCEEDED")
