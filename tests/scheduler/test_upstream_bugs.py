"""One story for each bug and edge case known from the systems that came before.

TaskCluster's old scheduler (cases of a graph, bugs of its API) and Spider (traps of its storage); where another
file tells the same story in more detail, this one tells it in a few lines, so that the list is complete.

One case cannot be told: a dependent that is missing when its parent ends. Edges lead only to tasks that exist, which
every story's last check looks for, and a job is removed as a whole after its end (test_remove).
"""

from __future__ import annotations

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, WrongState
from myrmidon.scheduler import cancel, extend, hold, rerun
from myrmidon.scheduler.report import Outcome
from tests.builders import a_function, finished, returned


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def blocked(w, job):
    return sum(
        '"what":"blocked"' in body for body in w.column("SELECT body FROM outbox WHERE subject = :id", id=job.id)
    )


# ---------------------------------------------------------------- cases of a graph


def test_a_duplicate_completion_releases_children_and_finishes_once(w):
    job = w.job({"a": [], "b": ["a"]})
    for _ in range(2):
        run = w.take("b1")
        w.finish(run)
        assert w.finish(run).outcome == Outcome.REPEATED
    assert (w.task(job["b"]).num_succeeded_parents, w.story(job.id)) == (1, ["RUNNING", "SUCCEEDED"])


def test_a_duplicate_failure_costs_one_rerun_only(w):
    job = w.job({"a": []}, nodes={"a": {"reruns": 2}})
    run = w.take("b1")
    w.fail(run)
    w.fail(run)
    assert w.task(job["a"]).num_reruns == 1


def test_a_late_failure_after_success_is_refused_and_forgotten(w):
    job = w.job({"a": [], "b": ["a"]})
    run = w.take("b1")
    w.finish(run)
    assert w.fail(run).outcome == Outcome.CONFLICT
    assert w.states(job) == {"a": "SUCCEEDED", "b": "READY"}


def test_a_success_after_a_recorded_failure_releases_the_dependents_and_unblocks(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    w.rerun(job["a"])
    w.do_one("b1")
    assert (w.states(job)["b"], w.job_row(job).blocked_by) == ("READY", None)


def test_a_rerun_of_a_succeeded_task_leaves_released_dependents_released(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1")
    w.rerun(job["a"], force=True)
    assert w.states(job)["b"] == "READY"


@pytest.mark.parametrize("extend_first", [True, False])
def test_an_extension_that_races_with_a_completion_loses_no_edge(w, extend_first):
    job = w.job({"a": [], "z": []}, nodes={"a": {"priority": 1}})
    run = w.take("b1")
    steps = [lambda: w.extend(job, {"b": ["a"]}), lambda: w.finish(run)]
    for step in steps if extend_first else reversed(steps):
        step()
    assert (w.states(job)["b"], w.task(job["b"]).num_succeeded_parents) == ("READY", 1)


def test_an_extension_that_races_with_the_graphs_finish_is_refused(w):
    job = w.job({"a": []})
    w.do_one("b1")
    with pytest.raises(WrongState):
        w.extend(job, {"b": []})
    assert w.job_state(job) == "SUCCEEDED"


def test_a_blocked_graph_may_be_extended_and_stays_blocked(w):
    job = w.job({"a": [], "z": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1", 1)
    w.extend(job, {"b": []})
    assert (w.states(job)["b"], w.job_row(job).view) == ("READY", "blocked")


def test_a_repeat_of_an_extension_does_not_keep_the_graph_from_finishing(w):
    job = w.job({"a": [], "z": []}, nodes={"z": {"hold": True}})
    w.extend(job, {"b": ["a"]})
    w.work("b1")
    w.extend(job, {"b": ["a"]})
    w.do(hold.release, job["z"])
    w.work("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_an_extension_with_an_existing_label_and_another_definition_is_a_conflict(w):
    job = w.job({"a": []})
    with pytest.raises(Conflict):
        w.extend(job, {"a": []}, command=["other"])


@pytest.mark.parametrize(
    "edges", [{"a": ["nobody"]}, {"a": ["b"], "b": ["a"]}, {"a": ["a"]}, {}, {"a": [], "b": ["a", "a"]}]
)
def test_unknown_labels_cycles_self_dependencies_and_empty_graphs_store_nothing(lite, edges):
    with pytest.raises(InvalidRequest):
        lite.job(edges)
    assert lite.count("jobs") == 0


def test_a_deadline_that_passes_while_waiting_blocks_but_spares_the_descendants(w):
    job = w.job({"a": [], "b": ["a"], "c": ["b"]}, nodes={"b": {"deadline_s": 60}})
    w.advance(60)
    w.sweep()
    assert (w.states(job), w.job_row(job).view) == ({"a": "READY", "b": "EXPIRED", "c": "WAITING"}, "blocked")


def test_a_deadline_that_passes_while_running_ends_the_run_and_stops_the_bot(w):
    job = w.job({"a": []}, deadline_s=60)
    run = w.take("b1")
    w.advance(60)
    w.sweep()
    assert (w.states(job)["a"], w.beat("b1", run), w.finish(run).outcome) == (
        "TIMED_OUT",
        [(job["a"], 1)],
        Outcome.STALE,
    )


def test_all_parents_that_succeed_at_the_same_instant_release_the_child_once(w):
    job = w.job({"a": [], "b": [], "c": ["a", "b"]})
    w.report(*(finished(run) for run in w.claim("b1", 2)))
    assert w.story(job["c"]) == ["WAITING", "READY"]


def test_a_cancelled_waiting_task_blocks_is_never_scheduled_and_may_be_rerun(w):
    job = w.job({"a": [], "b": ["a"], "z": []}, nodes={"a": {"priority": 1}})
    w.cancel(job["b"])
    w.do_one("b1")
    assert (w.states(job)["b"], blocked(w, job)) == ("CANCELLED", 1)
    assert w.rerun(job["b"]).state == "READY"


def test_cancelling_a_graph_is_one_decision(w):
    job = w.job({"a": [], "b": ["a"], "c": []})
    run = w.take("b1")
    w.do(cancel.cancel_job, job.id)
    assert (w.job_state(job), sorted(w.states(job).values())) == ("CANCELLED", ["CANCELLED", "CANCELLED", "RUNNING"])
    assert w.beat("b1", run) == [(run.task_id, 1)]


def test_reruns_and_infrastructure_retries_are_counted_apart(w):
    job = w.job({"a": []}, nodes={"a": {"reruns": 0, "retries": 1}})
    w.fault(w.take("b1"), "reboot")
    assert (w.states(job)["a"], w.task(job["a"]).num_reruns, w.task(job["a"]).num_retries) == ("READY", 0, 1)
    w.do_one("b1", 1)
    assert w.states(job)["a"] == "FAILED"


def test_a_task_that_cannot_be_scheduled_because_it_is_too_late_expires_and_blocks(w):
    """There the scheduler dropped every refusal of the queue, whether the task was scheduled already or too late."""
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"deadline_s": 60}})
    run = w.take("b1")
    w.advance(60)
    w.finish(run)
    assert (w.states(job)["b"], w.job_row(job).blocked_by, w.count("task_to_run")) == ("EXPIRED", job["b"], 0)


def test_a_report_on_a_task_that_nobody_knows_is_answered_not_repeated_for_ever(w):
    w.submit()
    run = w.take("b1")
    w.removed = True
    w.finish(run)
    w.advance(31 * 86_400)
    w.sweep()
    assert w.finish(run).outcome == Outcome.UNKNOWN


# ---------------------------------------------------------------- bugs of the old API


def test_blocking_is_written_in_the_transaction_of_the_failure(w):
    """There the handler that blocked the graph was not awaited before the message was acknowledged."""
    job = w.job({"a": [], "b": []}, nodes={"a": {"priority": 1}})
    run = w.take("b1")
    seen = []

    def fails(event, _sql):
        if event == "commit":
            seen.append(event)
            raise RuntimeError("the server dies here")

    w.db._probe = fails
    with pytest.raises(RuntimeError):
        w.fail(run)
    w.db._probe = None
    assert (w.states(job)["a"], w.job_row(job).blocked_by, seen) == ("RUNNING", None, ["commit"])


def test_the_state_of_a_failed_task_is_not_written_as_completed(w):
    job = w.job({"a": [], "b": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1", 1)
    assert (w.states(job)["a"], w.story(job["a"])[-1]) == ("FAILED", "FAILED")


def test_reruns_are_counted_down_to_none_and_not_the_other_way(w):
    job = w.job({"a": []}, nodes={"a": {"reruns": 2}})
    assert len(w.work("b1", 1)) == 3
    assert (w.states(job)["a"], w.task(job["a"]).num_reruns) == ("FAILED", 2)


def test_a_repeat_is_compared_without_the_dependents_that_have_grown_since(w):
    job = w.job({"a": []}, key="k")
    w.extend(job, {"b": ["a"]})
    assert w.job({"a": []}, key="k").id == job.id
    assert w.extend(job, {"a": []}).num_new == 0


# ---------------------------------------------------------------- traps of Spider's storage


def test_a_sibling_with_one_parent_starts_although_another_still_waits_for_two(w):
    job = w.job({"a": [], "x": [], "b": ["a"], "c": ["a", "x"]}, nodes={"a": {"priority": 1}})
    w.do_one("b1")
    assert (w.states(job)["b"], w.states(job)["c"]) == ("READY", "WAITING")


def test_a_reset_job_forgets_its_winners_and_can_succeed_again(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function(name="g")}}
    job = w.job({"a": [], "b": ["a"]}, nodes=nodes, max_num_retries=1)
    w.do_one("b1", outputs=returned(b"1"))
    w.do_one("b1", 1)
    w.sweep()
    w.do_one("b1")
    w.do(rerun.rerun_job, job.id, full=True)
    w.carry()
    assert [w.task(job[x]).instance_id for x in "ab"] == [None, None]
    w.do_one("b1", outputs=returned(b"1"))
    w.do_one("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_stragglers_are_detected(w):
    w.bot("b2")
    task = w.submit(max_instances=2, soft_timeout_s=60)
    w.take("b1")
    w.advance(60)
    w.beat("b1")
    w.sweep()
    assert [run.task_id for run in w.claim("b2")] == [task]


def test_a_task_that_waits_or_has_ended_is_never_started(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"a": {"max_instances": 2, "soft_timeout_s": 60}})
    w.do_one("b1")
    w.cancel(job["b"])
    w.advance(600)
    w.beat("b1")
    w.sweep()
    assert (w.claim("b1", 10), w.count("task_to_run")) == ([], 0)


def test_a_tasks_own_reruns_are_used_before_its_job_fails(w):
    job = w.job({"a": [], "b": []}, nodes={"a": {"reruns": 1, "priority": 1}})
    w.do_one("b1", 1)
    assert (w.states(job)["a"], w.job_row(job).view) == ("READY", "running")


def test_a_job_is_retried_although_its_tasks_have_no_reruns(w):
    job = w.job({"a": [], "b": []}, max_num_retries=1)
    w.work("b1", 1)
    w.sweep()
    assert (w.job_state(job), set(w.states(job).values())) == ("RUNNING", {"READY"})


def test_the_times_of_creation_claim_and_start_never_move(w):
    job = w.job({"a": []})
    created = w.job_row(job).creation_time, w.column("SELECT created_at FROM task_requests")
    w.advance(10)
    [run] = w.claim("b1")
    claimed = w.now
    w.advance(10)
    w.start(run)
    started = w.now
    w.advance(10)
    w.finish(run)
    assert (w.job_row(job).creation_time, w.column("SELECT created_at FROM task_requests")) == created
    assert (w.last_run(job["a"]).claimed_at, w.last_run(job["a"]).started_at) == (claimed, started)


def test_a_lease_is_long_enough_to_answer(w):
    task = w.submit(lease_s=30)
    run = w.take("b1")
    for _ in range(3):
        w.advance(29.9)
        w.sweep()
        assert (w.state(task), w.beat("b1", run)) == ("RUNNING", [])


def test_the_last_failure_does_not_fail_a_task_that_a_sibling_may_still_finish(w):
    w.bot("b2")
    task = w.submit(max_instances=2, soft_timeout_s=60)
    first = w.take("b1")
    w.advance(60)
    w.beat("b1")
    w.sweep()
    w.fail(w.take("b2"))
    assert w.state(task) == "RUNNING"
    w.finish(first)
    assert w.state(task) == "SUCCEEDED"


# ---------------------------------------------------------------- what users of those systems asked for


def test_a_task_whose_dependency_is_broken_may_be_forced(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    assert w.rerun(job["b"], force=True).state == "READY"


def test_a_sealed_graph_cannot_grow_and_can_be_cancelled(w):
    job = w.job({"a": []})
    w.do(extend.seal, job.id, group_id=w.group.id)
    with pytest.raises(WrongState):
        w.extend(job, {"b": []})
    w.do(cancel.cancel_job, job.id)
    assert w.job_state(job) == "CANCELLED"


def test_a_reply_that_was_lost_costs_nothing(w):
    task = w.submit()
    first = w.claim("b1", nonce=5)
    assert (w.claim("b1", nonce=5), w.task(task).run_number) == (first, 1)


@pytest.mark.full
def test_ten_thousand_children_and_ten_thousand_parents(w):
    labels = [str(number) for number in range(10_000)]
    job = w.job({"a": [], **{label: ["a"] for label in labels}, "z": labels})
    w.sweep()
    done = w.work("b1")
    w.sweep()
    done += w.work("b1")
    assert (len(done), job.label(done[0]), job.label(done[-1])) == (10_002, "a", "z")
    assert w.job_state(job) == "SUCCEEDED"
