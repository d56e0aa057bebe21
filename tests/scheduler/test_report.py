"""Reports: what bots say, and what is made of it."""

from __future__ import annotations

import pytest
from msgspec import json, structs

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.task_request import FilesRef, Payload
from myrmidon.model.task_result import Finish, GiveBack, PerformanceStats, Start
from myrmidon.model.value import OutputValue
from myrmidon.scheduler import bot_end, bots, report
from myrmidon.scheduler.report import Outcome
from myrmidon.store.tables import stored_file
from tests.builders import a_function, constant, finished, inline, returned, seconds


@pytest.fixture
def running(world):
    """A world in which bot b1 runs one task, which may be retried once and rerun once."""
    world.bot("b1")
    world.submit(reruns=1)
    return world, world.take("b1")


# ---------------------------------------------------------------- starting


def test_a_started_run_has_a_lease(world):
    world.bot("b1")
    task = world.submit(lease_s=60)
    run = world.take("b1", started=False)
    world.advance(1)
    assert world.start(run).outcome == Outcome.ACCEPTED
    row = world.last_run(task)
    assert (row.started_at, row.due_at) == (world.now, world.now + seconds(60))


def test_starting_twice_is_the_same_as_once(running):
    w, run = running
    before = w.last_run(run.task_id)
    assert (w.start(run).outcome, w.last_run(run.task_id)) == (Outcome.REPEATED, before)


def test_a_task_cancelled_before_it_began_is_not_begun(world):
    world.bot("b1")
    task = world.submit()
    run = world.take("b1", started=False)
    world.cancel(task)
    reply = world.start(run)
    assert (reply.outcome, reply.stop, world.state(task)) == (Outcome.STALE, True, "CANCELLED")


def test_a_started_task_that_is_being_killed_hears_so_when_it_repeats_itself(running):
    w, run = running
    w.cancel(run.task_id)
    assert w.start(run) == report.Reply(Outcome.REPEATED, stop=True)


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize(
    ("given", "state", "reason"),
    [
        ({"exit_code": 0}, "SUCCEEDED", ""),
        ({"exit_code": 1}, "FAILED", "exit_code"),
        ({"exit_code": None}, "FAILED", "exit_code"),
        ({"exit_code": -15, "hard_timeout": True}, "TIMED_OUT", "hard_timeout"),
        ({"exit_code": None, "io_timeout": True}, "TIMED_OUT", "io_timeout"),
        ({"exit_code": 0, "io_timeout": True}, "TIMED_OUT", "io_timeout"),
        ({"exit_code": -9, "killed": True}, "KILLED", "killed_on_bot"),
        ({"exit_code": 3221225477}, "FAILED", "exit_code"),
    ],
)
def test_how_a_run_ends_is_how_its_task_ends(world, given, state, reason):
    world.bot("b1")
    task = world.submit()
    assert world.finish(world.take("b1"), **given).outcome == Outcome.ACCEPTED
    run = world.last_run(task)
    assert (world.state(task), world.task(task).reason, run.state, run.reason) == (state, reason, state, reason)
    assert (run.exit_code, run.ended_at, run.due_at) == (given["exit_code"], world.now, None)


def test_everything_a_bot_says_at_the_end_is_kept(running):
    w, run = running
    ref = FilesRef(digest="ab" * 32, size=9)
    stats = PerformanceStats(bot_overhead=0.5, cache_trim=0.25, named_caches_install=1.5)
    w.finish(
        run, duration=2.5, cost_usd=0.125, outputs_ref=ref, stdout_size=10, stderr_size=2, stats=stats, message="ok"
    )
    row = w.last_run(run.task_id)
    assert (row.duration, row.cost_usd, row.stdout_size, row.stderr_size) == (2.5, 0.125, 10, 2)
    assert (json.decode(row.outputs_ref or ""), json.decode(row.evidence or "")) == (
        structs.asdict(ref),
        {"message": "ok"},
    )
    assert w.column("SELECT bot_overhead FROM performance_stats") == [0.5]


def test_a_run_that_never_said_it_began_may_still_end(world):
    world.bot("b1")
    task = world.submit()
    world.finish(world.take("b1", started=False))
    run = world.last_run(task)
    assert (world.state(task), run.started_at) == ("SUCCEEDED", run.claimed_at)


def test_an_end_reported_twice_counts_once(running):
    w, run = running
    w.finish(run)
    before = w.task(run.task_id)
    assert (w.finish(run), w.task(run.task_id)) == (report.Reply(Outcome.REPEATED), before)


def test_an_end_that_contradicts_the_first_is_refused(running):
    w, run = running
    w.finish(run)
    assert w.finish(run, 1) == report.Reply(Outcome.CONFLICT, stop=True)
    assert w.state(run.task_id) == "SUCCEEDED"


def test_the_end_of_a_run_that_counts_as_lost_is_stale(running):
    w, run = running
    w.lose("b1")
    assert (w.finish(run), w.state(run.task_id)) == (report.Reply(Outcome.STALE, stop=True), "READY")


def test_a_start_after_the_end_is_stale(running):
    w, run = running
    w.finish(run)
    assert w.start(run) == report.Reply(Outcome.STALE, stop=True)


@pytest.mark.parametrize("wrong", ["token", "run", "task_id"])
def test_nobody_speaks_for_another_run(running, wrong):
    w, run = running
    forged = structs.replace(finished(run), **{wrong: {"token": "guess", "run": 2, "task_id": 17}[wrong]})
    [reply] = w.do(report.report, "b1", [forged], session=1)
    assert (reply, w.state(run.task_id)) == (report.Reply(Outcome.UNKNOWN, stop=True), "RUNNING")


def test_nobody_speaks_for_another_bot(running):
    w, run = running
    w.bot("b2")
    [reply] = w.do(report.report, "b2", [finished(run)], session=1)
    assert (reply.outcome, w.state(run.task_id)) == (Outcome.UNKNOWN, "RUNNING")


def test_many_reports_are_taken_in_one_call(world):
    world.bot("b1")
    tasks = world.submit_many(3)
    one, two, three = world.claim("b1", 3)
    replies = world.report(Start(one.task_id, one.run, one.token), finished(one), finished(two, 1), finished(three))
    assert [reply.outcome for reply in replies] == [Outcome.ACCEPTED] * 4
    assert [world.state(task) for task in tasks] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_no_reports_are_a_sign_of_life(world):
    world.bot("b1")
    world.advance(5)
    assert world.do(report.report, "b1", [], session=1) == []
    assert world.bot_row("b1").heartbeat == world.now


# ---------------------------------------------------------------- reruns


def test_a_failed_task_is_rerun_while_it_may_be(running):
    w, run = running
    w.fail(run)
    assert (w.state(run.task_id), w.task(run.task_id).num_reruns, w.task(run.task_id).generation) == ("READY", 1, 1)
    assert (w.last_run(run.task_id).state, w.last_run(run.task_id).reason) == ("FAILED", "exit_code")


def test_a_rerun_may_go_to_the_same_bot(running):
    w, run = running
    w.fail(run)
    assert [(again.task_id, again.run) for again in w.claim("b1")] == [(run.task_id, 2)]


@pytest.mark.parametrize("how", ["hard_timeout", "io_timeout"])
def test_a_timed_out_task_is_rerun_as_well(running, how):
    w, run = running
    w.finish(run, None, **{how: True})
    assert (w.state(run.task_id), w.last_run(run.task_id).state, w.last_run(run.task_id).reason) == (
        "READY",
        "TIMED_OUT",
        how,
    )


def test_a_task_fails_when_its_reruns_are_used_up(running):
    w, run = running
    w.fail(run)
    w.fail(w.take("b1"))
    assert (w.state(run.task_id), w.task(run.task_id).num_reruns) == ("FAILED", 1)


def test_a_rerun_that_succeeds_counts(running):
    w, run = running
    w.fail(run)
    w.finish(w.take("b1"))
    assert (w.state(run.task_id), w.task(run.task_id).instance_id) == ("SUCCEEDED", 2)


def test_a_task_that_was_killed_on_its_bot_is_not_rerun(running):
    w, run = running
    w.finish(run, -9, killed=True)
    assert w.state(run.task_id) == "KILLED"


def test_a_rerun_after_the_deadline_has_no_time(world):
    world.bot("b1")
    task = world.submit(reruns=1, deadline_s=100)
    run = world.take("b1")
    world.advance(100)
    assert world.fail(run).outcome == Outcome.ACCEPTED
    assert (world.state(task), world.task(task).reason) == ("TIMED_OUT", "deadline")


def test_a_rerun_that_no_bot_can_do_is_the_bots_death(world):
    world.bot("b1")
    task = world.submit(reruns=1, wait_for_capacity=False)
    run = world.take("b1")
    world.do(bots.drain_bot, "b1", True)
    world.fail(run)
    assert (world.state(task), world.task(task).reason) == ("BOT_DIED", "no_resource")


# ---------------------------------------------------------------- faults of the infrastructure


def test_a_fault_is_retried_on_another_bot(running):
    w, run = running
    w.bot("b2")
    w.fault(run, "shutdown", message="going down", signal=15)
    assert (w.state(run.task_id), w.task(run.task_id).num_retries) == ("READY", 1)
    assert (w.claim("b1"), [again.run for again in w.claim("b2")]) == ([], [2])


def test_a_fault_leaves_its_evidence(running):
    w, run = running
    w.fault(run, "bot_error", message="no memory", signal=9, oom=True, cost_usd=0.5)
    row = w.last_run(run.task_id)
    assert json.decode(row.evidence or "") == {"message": "no memory", "signal": 9, "oom": True}
    assert (row.state, row.reason, row.cost_usd) == ("BOT_DIED", "bot_error", 0.5)


@pytest.mark.parametrize("kind", ["bot_error", "shutdown", "reboot", "upload_failed", "disk_full"])
def test_the_second_fault_is_final(world, kind):
    world.bot("b1")
    task = world.submit()
    world.fault(world.take("b1"), kind)
    world.fault(world.take("b1"), kind)
    assert (world.state(task), world.task(task).reason) == ("BOT_DIED", kind)


def test_a_fault_of_a_kind_nobody_knows_is_an_error_of_the_bot(running):
    w, run = running
    w.fault(run, "x" * 100)
    assert w.last_run(run.task_id).reason == "bot_error"


def test_retries_zero_means_at_most_once(world):
    world.bot("b1")
    task = world.submit(retries=0)
    world.fault(world.take("b1"), "reboot")
    assert (world.state(task), world.task(task).run_number) == ("BOT_DIED", 1)


def test_missing_inputs_are_the_clients_fault(running):
    w, run = running
    w.fault(run, "client_error", message="no such digest")
    assert (w.state(run.task_id), w.last_run(run.task_id).state) == ("CLIENT_ERROR", "CLIENT_ERROR")


def test_a_fault_reported_twice_counts_once(running):
    w, run = running
    w.fault(run, "reboot")
    assert (w.fault(run, "reboot").outcome, w.task(run.task_id).num_retries) == (Outcome.REPEATED, 1)


def test_a_fault_after_the_end_is_stale(running):
    w, run = running
    w.finish(run)
    assert w.fault(run, "reboot").outcome == Outcome.STALE


def test_a_fault_of_a_task_that_is_being_killed_kills_it(running):
    w, run = running
    w.cancel(run.task_id)
    w.fault(run, "reboot")
    assert (w.state(run.task_id), w.last_run(run.task_id).state) == ("KILLED", "KILLED")


def test_a_clients_fault_of_a_task_that_is_being_killed_kills_it(running):
    w, run = running
    w.cancel(run.task_id)
    w.fault(run, "client_error")
    assert w.state(run.task_id) == "KILLED"


def test_a_retry_after_the_deadline_has_no_time(world):
    world.bot("b1")
    task = world.submit(deadline_s=100)
    run = world.take("b1")
    world.advance(100)
    world.fault(run, "reboot")
    assert (world.state(task), world.task(task).reason) == ("BOT_DIED", "deadline")


def test_a_retry_that_no_bot_can_do_is_the_bots_death(world):
    world.bot("b1")
    task = world.submit(wait_for_capacity=False)
    run = world.take("b1")
    world.do(bots.drain_bot, "b1", True)
    world.fault(run, "reboot")
    assert (world.state(task), world.task(task).reason) == ("BOT_DIED", "no_resource")


def test_a_bot_that_fails_everything_at_once_is_put_aside(world):
    world.bot("b1")
    world.submit_many(6, retries=0)
    for _ in range(5):
        world.fault(world.take("b1"), "bot_error")
    assert "5 runs failed" in (world.bot_row("b1").quarantined or "")
    assert world.claim("b1") == []


def test_tasks_that_would_not_wait_hear_that_their_last_bot_was_put_aside(world):
    world.bot("b1")
    world.submit_many(5, retries=0, priority=1)
    task = world.submit(wait_for_capacity=False)
    for _ in range(5):
        world.fault(world.take("b1"), "bot_error")
    world.carry()
    assert world.state(task) == "NO_RESOURCE"


def test_faults_that_are_rare_do_not_put_a_bot_aside(world):
    world.bot("b1")
    world.submit_many(6, retries=0)
    for _ in range(6):
        world.fault(world.take("b1"), "bot_error")
        world.advance(601)
    assert world.bot_row("b1").quarantined is None


def test_a_fault_of_a_bot_that_was_forgotten_is_taken(running):
    w, run = running
    w.do(bot_end.delete_bot, "b1")
    assert w.fault(run, "bot_error").outcome == Outcome.ACCEPTED
    assert w.state(run.task_id) == "READY"


# ---------------------------------------------------------------- giving back


def test_a_run_given_back_costs_nothing(world):
    world.bot("b1")
    task = world.submit(retries=0)
    world.give_back(world.take("b1", started=False))
    assert (world.state(task), world.task(task).num_retries) == ("READY", 0)
    assert [run.run for run in world.claim("b1")] == [2]


def test_giving_back_twice_is_the_same_as_once(world):
    world.bot("b1")
    world.submit()
    run = world.take("b1", started=False)
    world.give_back(run)
    assert world.give_back(run).outcome == Outcome.REPEATED


def test_a_run_that_has_begun_cannot_be_given_back(running):
    w, run = running
    assert (w.give_back(run).outcome, w.state(run.task_id)) == (Outcome.CONFLICT, "RUNNING")


def test_giving_back_what_has_ended_is_stale(running):
    w, run = running
    w.finish(run)
    assert w.give_back(run).outcome == Outcome.STALE


def test_a_cancelled_task_that_is_given_back_is_cancelled(world):
    world.bot("b1")
    task = world.submit()
    run = world.take("b1", started=False)
    world.cancel(task)
    world.give_back(run)
    assert world.state(task) == "CANCELLED"


def test_a_run_given_back_after_the_deadline_has_no_time(world):
    world.bot("b1")
    task = world.submit(deadline_s=100)
    run = world.take("b1", started=False)
    world.advance(100)
    world.give_back(run)
    assert (world.state(task), world.task(task).reason) == ("TIMED_OUT", "deadline")


def test_a_run_given_back_that_no_bot_can_do_is_the_bots_death(world):
    world.bot("b1")
    task = world.submit(wait_for_capacity=False)
    run = world.take("b1", started=False)
    world.do(bots.drain_bot, "b1", True)
    world.report(GiveBack(run.task_id, run.run, run.token))
    assert (world.state(task), world.task(task).reason) == ("BOT_DIED", "no_resource")


def test_run_numbers_skip_those_that_end_in_zero_and_stop_at_255(lite):
    lite.bot("b1")
    task = lite.submit(retries=0)
    for _ in range(239):
        lite.give_back(lite.take("b1", started=False))
    numbers = [run.run for run in lite.runs(task)]
    assert (len(numbers), numbers[14:17], numbers[-1]) == (239, [15, 17, 18], 254)
    lite.give_back(lite.take("b1", started=False))
    assert (lite.state(task), lite.task(task).reason, lite.task(task).run_number) == ("BOT_DIED", "run_cap", 255)


# ---------------------------------------------------------------- what functions return


def a_running_function(w, outputs=("int64",)):
    w.bot("b1")
    w.function([constant()], outputs)
    return w.take("b1")


def test_what_a_function_returns_is_written(world):
    run = a_running_function(world, ["int64", "string"])
    given = [OutputValue("int64", inline(b"1")), OutputValue("string", Payload(digest="cd" * 32, size=5000))]
    world.db.write(lambda tx: stored_file.insert(tx, "cd" * 32, world.group.id, size=5000, now=world.now))
    world.finish(run, outputs=given)
    rows = world.db.read(lambda tx: tx.all('SELECT payload, digest, size FROM "values" ORDER BY id'))
    assert [(bytes(p) if p is not None else None, d, s) for p, d, s in rows][:2] == [
        (b"1", None, 1),
        (None, "cd" * 32, 5000),
    ]


@pytest.mark.parametrize(
    "given",
    [
        [],
        returned(b"1", b"2"),
        returned(b"1", of="string"),
        [OutputValue("int64", Payload(size=1))],
        [OutputValue("int64", Payload(inline=b"1", size=2))],
        [OutputValue("int64", Payload(inline=b"x" * 1025, size=1025))],
        [OutputValue("int64", Payload(inline=b"1", digest="ab" * 32, size=1))],
        [OutputValue("int64", Payload(digest="ab" * 32, size=65 << 20))],
        [OutputValue("int64", Payload(digest="ab" * 32, size=-1))],
    ],
)
def test_a_function_that_breaks_its_word_has_failed(lite, given):
    run = a_running_function(lite)
    lite.finish(run, outputs=given)
    assert (lite.state(run.task_id), lite.task(run.task_id).reason) == ("FAILED", "bad_outputs")


def test_a_command_returns_no_values(running):
    w, run = running
    w.finish(run, outputs=returned(b"1"))
    assert w.task(run.task_id).reason == "bad_outputs"


def test_a_shared_output_is_shared_by_its_job(world):
    world.bot("b1")
    answer = world.submit_raw(a_function([], [{"type": "int64", "shared": True}]))
    world.do_one("b1", outputs=returned(b"1"))
    assert world.column("SELECT job_id FROM job_to_shared_value_ref") == [answer.job_id]


# ---------------------------------------------------------------- signs of life


def test_one_heartbeat_keeps_every_run_alive(world):
    world.bot("b1")
    tasks = world.submit_many(3)
    runs = world.claim("b1", 3)
    for run in runs:
        world.start(run)
    world.advance(299)
    assert world.beat("b1", *runs) == []
    world.advance(299)
    world.sweep()
    assert [world.state(task) for task in tasks] == ["RUNNING"] * 3


def test_a_heartbeat_learns_what_must_stop(world):
    world.bots("b1", "b2")
    killed, over, _fine = world.submit_many(3)
    runs = {run.task_id: run for run in world.claim("b1", 3)}
    world.start(runs[killed])
    world.cancel(killed)
    world.finish(runs[over])
    assert world.beat("b1", *runs.values()) == [(killed, 1), (over, 1)]
    assert world.beat("b1") == []


def test_a_heartbeat_with_a_wrong_token_must_stop(running):
    w, run = running
    assert w.beat("b1", structs.replace(run, token="guess")) == [(run.task_id, 1)]


def test_a_heartbeat_of_nobody_is_refused(world):
    with pytest.raises(NotFound):
        world.do(report.heartbeat, "nobody", [], session=1)


def test_a_heartbeat_of_an_old_session_is_refused(world):
    world.bot("b1", session=2)
    with pytest.raises(WrongState):
        world.do(report.heartbeat, "b1", [], session=1)


def test_a_heartbeat_never_goes_back_in_time(world):
    world.bot("b1")
    world.outage(-10)
    world.beat("b1")
    assert world.bot_row("b1").heartbeat == world.now + seconds(10)


def test_a_finish_can_be_told_with_nothing_but_its_exit_code(running):
    w, run = running
    [reply] = w.report(Finish(task_id=run.task_id, run=run.run, token=run.token, exit_code=0))
    assert (reply.outcome, w.last_run(run.task_id).duration) == (Outcome.ACCEPTED, 0.0)
