"""Sweeping: what time alone brings about, and what an outage must not."""

from __future__ import annotations

import pytest
from msgspec import json, structs

from myrmidon.scheduler import bot_end, maintenance, report
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import task_queues, task_result, task_run, task_to_run
from tests.builders import RULES, World, blind_once, seconds
from tests.invariants import check_settled


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


# ---------------------------------------------------------------- lost runs


def test_a_lost_bot_is_retried_once_on_another_bot(w):
    w.bot("b2")
    task = w.submit()
    w.take("b1")
    w.lose("b1")
    assert (w.state(task), w.task(task).num_retries, w.last_run(task).reason) == ("READY", 1, "bot_lost")
    assert (w.claim("b1"), len(w.claim("b2"))) == ([], 1)


def test_a_bot_may_try_again_what_it_lost_when_nobody_else_can(w):
    task = w.submit()
    w.take("b1")
    w.lose("b1")
    assert [run.task_id for run in w.claim("b1")] == [task]


def test_a_task_that_pins_its_bot_is_retried_there(w):
    w.bot("b2")
    task = w.submit(id="b1")
    w.take("b1")
    w.lose("b1")
    assert [run.task_id for run in w.claim("b1")] == [task]


def test_a_retry_that_avoids_a_bot_goes_to_it_when_the_others_are_gone(w):
    w.bot("b2")
    task = w.submit()
    w.take("b1")
    w.lose("b1")
    w.do(bot_end.delete_bot, "b2")
    assert [run.task_id for run in w.claim("b1")] == [task]


def test_a_lost_run_leaves_its_evidence(w):
    w.bot("b1", boot_id="boot-7")
    task = w.submit()
    w.take("b1")
    heard = w.bot_row("b1").heartbeat
    w.lose("b1")
    assert json.decode(w.last_run(task).evidence or "") == {"last_heartbeat": heard, "boot_id": "boot-7"}


def test_a_lost_run_has_cost_its_share_of_the_bot_until_the_last_heartbeat(w):
    w.bot("b1", session=1, state='{"cost_usd_hour": 0.72}')
    tasks = [w.submit(), w.submit()]
    runs = [w.take("b1"), w.take("b1")]
    w.advance(600)
    w.do(report.heartbeat, "b1", [(run.task_id, run.run, run.token) for run in runs], session=1)
    w.lose("b1")
    assert [w.last_run(task).cost_usd for task in tasks] == [pytest.approx(0.06)] * 2


def test_a_bot_whose_state_has_no_price_loses_runs_all_the_same(w):
    w.bot("b1", state='{"cost_usd_hour": "much"}')
    task = w.submit()
    w.take("b1")
    w.lose("b1")
    assert (w.last_run(task).reason, w.last_run(task).cost_usd) == ("bot_lost", 0)


def test_a_task_whose_retries_are_used_up_dies_with_its_bot(w):
    task = w.submit(retries=0)
    w.take("b1")
    w.lose("b1")
    assert (w.state(task), w.task(task).reason, w.last_run(task).state) == ("BOT_DIED", "bot_lost", "BOT_DIED")


def test_a_heartbeat_that_came_first_wins(w):
    task = w.submit()
    run = w.take("b1")
    w.advance(299)
    w.beat("b1", run)
    w.advance(1)
    w.sweep()
    assert (w.state(task), w.last_run(task).due_at) == ("RUNNING", w.now + seconds(299))


def test_the_lease_of_a_request_counts(w):
    task = w.submit(lease_s=30)
    w.take("b1")
    w.advance(30)
    w.sweep()
    assert w.state(task) == "READY"


def test_a_run_that_was_never_started_goes_back_free(w):
    w.bot("b2")
    task = w.submit(retries=0)
    w.take("b1", started=False)
    w.advance(30)
    w.beat("b1")
    w.sweep()
    assert (w.state(task), w.task(task).num_retries, w.last_run(task).reason) == ("READY", 0, "not_started")


def test_a_task_that_may_run_once_is_not_given_to_another_bot_when_it_may_have_begun(w):
    w.bot("b2")
    task = w.submit(retries=0)
    w.take("b1", started=False)
    w.advance(29)
    w.beat("b1")
    w.advance(299)
    w.sweep()
    assert w.state(task) == "RUNNING", "the bot may come back with the end of it"
    w.advance(1)
    w.sweep()
    assert (w.state(task), w.last_run(task).reason) == ("BOT_DIED", "bot_lost")


def test_the_runs_of_a_bot_that_was_forgotten_are_given_up_by_their_leases(w):
    task = w.submit()
    w.take("b1")
    w.do(bot_end.delete_bot, "b1")
    w.advance(300)
    w.sweep()
    assert (w.state(task), w.last_run(task).state) == ("READY", "BOT_DIED")


def test_a_retry_that_expires_dies_with_its_bot(w):
    task = w.submit(expiration_s=60)
    w.take("b1")
    w.lose("b1")
    w.advance(60)
    w.sweep()
    assert (w.state(task), w.task(task).reason) == ("BOT_DIED", "expired")


def test_a_retry_gets_a_fresh_expiry_within_the_deadline(w):
    w.submit(expiration_s=600, deadline_s=700)
    w.take("b1")
    w.lose("b1")
    assert w.column("SELECT expires_at FROM task_to_run") == [w.now + seconds(400)]


def test_a_retry_keeps_its_place_in_the_queue(w):
    first = w.submit()
    w.take("b1")
    w.advance(1)
    w.submit()
    w.lose("b1")
    assert [run.task_id for run in w.claim("b1")] == [first]


# ---------------------------------------------------------------- outages


def test_no_lease_expires_because_we_slept(w):
    task = w.submit()
    w.take("b1")
    w.sweep()
    w.outage(3600)
    w.sweep()
    assert w.state(task) == "RUNNING"


def test_after_an_outage_every_lease_begins_anew(w):
    task = w.submit()
    w.take("b1")
    w.sweep()
    w.outage(3600)
    w.sweep()
    w.advance(299)
    w.sweep()
    assert w.state(task) == "RUNNING"
    w.advance(1)
    w.sweep()
    assert w.state(task) == "READY"


def test_a_claimed_run_gets_its_time_to_start_again_after_an_outage(w):
    task = w.submit()
    w.take("b1", started=False)
    w.sweep()
    w.outage(3600)
    w.sweep()
    assert w.state(task) == "RUNNING"


def test_no_bot_is_buried_because_we_slept(w):
    w.sweep()
    w.outage(3600)
    w.sweep()
    assert w.bot_row("b1").alive == 1
    w.advance(600)
    w.sweep()
    assert w.bot_row("b1").alive == 0


def test_bots_that_were_heard_of_are_looked_at_later_and_the_silent_ones_are_buried(w):
    for name in ("b2", "b3"):
        w.bot(name)
    w.lose("b2", seconds=600)
    alarms = {name: w.bot_row(name).due_at for name in ("b1", "b2", "b3")}
    assert alarms == {"b1": w.now + seconds(600), "b2": None, "b3": w.now + seconds(600)}
    assert [w.bot_row(name).alive for name in alarms] == [1, 0, 1]


def test_a_round_that_finds_nothing_due_writes_nothing(w, monkeypatch):
    w.submit()
    w.sweep()
    w.advance(1)
    monkeypatch.setattr(w.db, "write", None)
    assert w.maintain() == []


def test_a_clock_that_jumps_back_counts_as_an_outage(w):
    task = w.submit()
    w.take("b1")
    w.sweep()
    w.outage(-3600)
    w.sweep()
    w.advance(299)
    w.sweep()
    assert w.state(task) == "RUNNING"


def test_a_short_pause_is_no_outage(w):
    task = w.submit(lease_s=30)
    w.take("b1")
    w.sweep()
    w.outage(59)
    w.sweep()
    assert w.state(task) == "READY"


def test_a_server_whose_clock_is_wrong_sweeps_nothing(w):
    task = w.submit(deadline_s=1)
    vars(w.db)["clock"] = lambda: w.now
    assert maintenance.run_due(w.db, lambda: w.now + seconds(10), w.ids) == []
    assert w.state(task) == "READY"


# ---------------------------------------------------------------- slices


def test_an_expired_slice_makes_room_for_the_next(w):
    task = w.submit(slices=[{"os": "Mac", "expiration_s": 60}, {"expiration_s": 90}])
    w.advance(60)
    w.sweep()
    assert (w.state(task), w.task(task).current_task_slice) == ("READY", 1)
    assert w.column("SELECT expires_at FROM task_to_run") == [w.now + seconds(90)]
    assert len(w.claim("b1")) == 1


def test_the_last_slice_expires_with_the_task(w):
    task = w.submit(slices=[{"os": "Mac", "expiration_s": 60}, {"os": "Plan9", "expiration_s": 60}])
    for _ in range(2):
        w.advance(60)
        w.sweep()
    assert (w.state(task), w.task(task).reason) == ("EXPIRED", "expired")


def test_a_fallback_that_no_bot_can_run_is_skipped(w):
    task = w.submit(slices=[{"expiration_s": 60}, {"os": "Plan9", "wait_for_capacity": False}, {"os": "Mac"}])
    w.advance(60)
    w.sweep()
    assert w.task(task).current_task_slice == 2


def test_fallbacks_that_no_bot_can_run_end_the_wait(w):
    task = w.submit(slices=[{"expiration_s": 60}, {"os": "Plan9", "wait_for_capacity": False}])
    w.advance(60)
    w.sweep()
    assert (w.state(task), w.task(task).reason) == ("EXPIRED", "expired")


def test_a_retry_has_no_fallback(w):
    task = w.submit(slices=[{"expiration_s": 60}, {"os": "Mac"}])
    w.fault(w.take("b1"), "reboot")
    w.advance(60)
    w.sweep()
    assert w.state(task) == "BOT_DIED"


def test_an_idempotent_task_that_moves_to_its_next_slice_is_not_answered(w):
    slices = [{"os": "Mac", "expiration_s": 60}, {"idempotent": True, "command": ["same"]}]
    task = w.submit(slices=slices)
    w.submit(idempotent=True, command=["same"])
    w.do_one("b1")
    w.advance(60)
    w.sweep()
    assert w.state(task) == "READY"


# ---------------------------------------------------------------- deadlines


def test_a_ready_task_expires_at_its_deadline(w):
    task = w.submit(deadline_s=60)
    w.advance(60)
    w.sweep()
    assert w.state(task) == "EXPIRED"


def test_a_ready_retry_dies_at_its_deadline(w):
    task = w.submit(deadline_s=60, expiration_s=86_400)
    w.fault(w.take("b1"), "reboot")
    w.advance(60)
    w.do(maintenance.run_step, "tasks")
    assert (w.state(task), w.task(task).reason) == ("BOT_DIED", "deadline")


def test_a_running_task_is_out_of_time_at_its_deadline(w):
    task = w.submit(deadline_s=60)
    run = w.take("b1")
    w.advance(60)
    w.sweep()
    assert (w.state(task), w.task(task).reason, w.last_run(task).state) == ("TIMED_OUT", "deadline", "TIMED_OUT")
    assert w.beat("b1", run) == [(task, 1)]


def test_a_task_being_killed_is_killed_at_its_deadline(w):
    task = w.submit(deadline_s=60)
    w.take("b1")
    w.cancel(task)
    w.advance(60)
    w.sweep()
    assert w.state(task) == "KILLED"


def test_a_waiting_task_expires_at_its_deadline_and_blocks_its_job(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"deadline_s": 60}})
    w.advance(60)
    w.sweep()
    assert (w.states(job), w.job_row(job).view) == ({"a": "READY", "b": "EXPIRED"}, "blocked")


def test_the_tasks_behind_a_failure_expire_at_their_deadline(w):
    job = w.job({"a": [], "b": ["a"], "c": ["b"]}, deadline_s=60)
    w.do_one("b1", 1)
    w.advance(60)
    w.sweep()
    assert w.states(job) == {"a": "FAILED", "b": "EXPIRED", "c": "EXPIRED"}


def test_a_task_that_becomes_ready_past_its_deadline_has_expired(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"deadline_s": 60}})
    run = w.take("b1")
    w.advance(60)
    w.finish(run)
    assert (w.states(job)["b"], w.task(job["b"]).reason) == ("EXPIRED", "deadline")


def test_everything_is_settled_after_the_last_deadline(w):
    w.bot("b2")
    w.job({"a": [], "b": ["a"], "c": []}, max_num_retries=1)
    w.submit_many(3, retries=5, reruns=2)
    w.take("b1")
    w.take("b2", started=False)
    w.removed = True
    w.advance(8 * 86_400)
    w.sweep()
    check_settled(w.db, w.now)


def test_more_than_one_batch_is_swept(lite):
    tasks = lite.submit_many(230, deadline_s=60)
    lite.advance(60)
    lite.sweep()
    assert {lite.state(task) for task in tasks} == {"EXPIRED"}


# ---------------------------------------------------------------- the rest


def test_a_sweep_of_nothing_does_nothing(w):
    w.sweep()
    assert w.sweep() == []


def test_a_sweep_wakes_the_queues_that_got_work(world, small_chunks):
    world.job({str(i): [] for i in range(4)})
    done = world.sweep()
    assert {queue for step in done for queue in step.effects.enqueued} == set(
        world.column("SELECT DISTINCT queue FROM task_to_run")
    )


def test_old_events_of_bots_are_forgotten(w):
    w.advance(31 * 86_400)
    w.sweep()
    assert w.column("SELECT kind FROM bot_events") == ["bot_missing"]


def test_queues_that_nobody_uses_are_forgotten(w):
    w.submit()
    w.work("b1")
    w.removed = True
    w.advance(61 * 86_400)
    w.sweep()
    assert (w.count("task_dimensions"), w.count("bot_task_dimensions")) == (0, 0)


def test_a_queue_with_work_is_not_forgotten(db, clock, ids):
    w = World(db, clock, ids, structs.replace(RULES, queue_idle=1))
    w.submit()
    w.advance(10)
    w.sweep()
    assert w.count("task_dimensions") == 1


def test_the_dimensions_of_the_fleet_are_counted(w):
    w.bot("b2", os="Linux")
    w.db.write(task_queues.refresh_aggregation)
    rows = w.db.read(lambda tx: tx.all("SELECT dimension, value, num_bots FROM dimension_aggregation ORDER BY 1, 2"))
    assert rows == [("os", "Linux", 1), ("pool", "default", 2)]


def test_a_job_whose_alarm_came_too_early_is_left_alone(w):
    job = w.job({"a": []})
    w.db.write(lambda tx: tx.run("UPDATE jobs SET due_at = :now", now=w.now))
    w.sweep()
    assert (w.job_state(job), w.job_row(job).due_at) == ("RUNNING", None)


def test_two_servers_that_sweep_at_once_are_harmless(w, monkeypatch):
    """The second finds, under the locks, that nothing is due any more."""
    task, job = w.submit(), w.job({"a": []})
    run = w.take("b1")
    for module, name, found in [
        (task_run, "due", [(run.task_id, run.run)]),
        (task_result, "due", [task]),
        (task_to_run, "expired", [task, job["a"]]),
        (jobs, "due", [job.id]),
    ]:
        blind_once(monkeypatch, module, name, found)
    before = w.task(task), w.task(job["a"]), w.job_row(job)
    w.sweep()
    assert (w.task(task), w.task(job["a"]), w.job_row(job)) == before
