"""Running again: one task by hand, what lies behind it, or what failed of a job."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from msgspec import json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, UnknownFile, WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import cancel, job_codes, rerun, resource_groups, retention, shared_values
from myrmidon.store.tables import outbox, shared_value
from myrmidon.store.tables import value as values
from tests import invariants
from tests.builders import a_function, a_graph, output_of, returned, seconds, shared_output

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


# ---------------------------------------------------------------- one task


def test_a_failed_task_runs_again_in_a_new_generation(w):
    task = w.submit(retries=0)
    w.do_one("b1", 1)
    assert w.rerun(task).changed
    result = w.task(task)
    assert (result.state, result.generation, result.run_number) == ("READY", 2, 1)
    w.do_one("b1")
    assert (w.state(task), w.task(task).instance_id) == ("SUCCEEDED", 2)


@pytest.mark.parametrize("state", ["READY", "RUNNING"])
def test_a_task_that_has_not_ended_stays_as_it_is(w, state):
    task = w.submit()
    if state == "RUNNING":
        w.take("b1")
    before = w.task(task)
    assert (w.rerun(task), w.task(task)) == (rerun.Rerun(task, state, changed=False), before)


def test_the_same_request_key_runs_a_task_again_only_once(w):
    task = w.submit(retries=0)
    w.do_one("b1", 1)
    assert w.do(rerun.rerun_once, task, "k").state == "READY"
    w.do_one("b1", 1)
    again = w.do(rerun.rerun_once, task, "k")
    assert (again.state, again.generation) == ("FAILED", 2)
    with pytest.raises(Conflict):
        w.do(rerun.rerun_once, task, "k", force=True)
    assert w.do(rerun.rerun_once, task, "k2").state == "READY"


def test_a_rerun_of_nothing_is_refused_with_a_key_too(w):
    with pytest.raises(NotFound):
        w.do(rerun.rerun_once, 17, "k")


def test_a_rerun_gives_the_infrastructure_its_retries_back(w):
    task = w.submit(retries=1)
    w.fault(w.take("b1"), "reboot")
    w.fault(w.take("b1"), "reboot")
    w.rerun(task)
    w.fault(w.take("b1"), "reboot")
    assert (w.state(task), w.task(task).num_retries) == ("READY", 1)


def test_a_rerun_by_hand_does_not_give_reruns_back(w):
    task = w.submit(reruns=1)
    w.work("b1", 1)
    w.rerun(task)
    w.do_one("b1", 1)
    assert (w.state(task), w.task(task).num_reruns) == ("FAILED", 1)


def test_a_task_that_succeeded_needs_force(w):
    task = w.submit()
    w.do_one("b1")
    with pytest.raises(WrongState):
        w.rerun(task)
    assert w.rerun(task, force=True).state == "READY"
    assert w.task(task).instance_id is None


def test_a_task_whose_parents_failed_needs_force(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    with pytest.raises(WrongState):
        w.rerun(job["b"])
    w.rerun(job["b"], force=True)
    assert (w.states(job)["b"], w.task(job["b"]).forced) == ("READY", 1)


def test_a_forced_task_may_be_forced_again(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    for _ in range(2):
        w.rerun(job["b"], force=True)
        w.do_one("b1", 1)
    assert (w.states(job)["b"], w.task(job["b"]).forced) == ("FAILED", 1)


def test_a_forced_task_without_force_is_refused_the_second_time(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    w.rerun(job["b"], force=True)
    w.do_one("b1", 1)
    with pytest.raises(WrongState):
        w.rerun(job["b"])


def test_a_task_past_its_deadline_cannot_run_again(w):
    task = w.submit(deadline_s=10)
    w.do_one("b1", 1)
    w.advance(10)
    with pytest.raises(WrongState):
        w.rerun(task)


def test_a_task_at_the_run_cap_cannot_run_again(w):
    task = w.submit(retries=0)
    w.do_one("b1", 1)
    w.db.write(lambda tx: tx.run("UPDATE task_results SET run_number = 255"))
    with pytest.raises(WrongState):
        w.rerun(task)
    w.db.write(lambda tx: tx.run("UPDATE task_results SET run_number = 1"))


def test_a_task_that_does_not_exist_cannot_run_again(w):
    with pytest.raises(NotFound):
        w.rerun(17)


def test_a_rerun_that_no_bot_can_do_ends_at_once(w):
    task = w.submit(wait_for_capacity=False)
    w.do_one("b1", 1)
    w.bot("b1", quarantined="broken")
    w.rerun(task)
    assert w.story(task)[-2:] == ["WAITING", "NO_RESOURCE"]


def test_a_rerun_releases_a_held_task(w):
    job = w.job({"a": []}, nodes={"a": {"hold": True}})
    assert w.rerun(job["a"]).state == "READY"


def test_a_retention_that_had_begun_is_called_off(w):
    task = w.submit(retries=0)
    w.do_one("b1", 1)
    w.rerun(task)
    assert w.task(task).due_at == w.now + seconds(7 * 86_400)


# ---------------------------------------------------------------- in a job


def test_a_rerun_reopens_and_unblocks_its_job(w):
    job = w.job(CHAIN)
    w.do_one("b1", 1)
    assert w.job_row(job).view == "blocked"
    w.rerun(job["a"])
    row = w.job_row(job)
    assert (row.state, row.view, row.blocked_by, row.error) == ("RUNNING", "running", None, None)
    w.work("b1")
    assert w.story(job.id) == ["RUNNING", "RUNNING", "FAILED", "RUNNING", "RUNNING", "SUCCEEDED"]


def test_what_resolved_after_the_end_of_its_job_counts_when_the_job_is_reopened(w):
    nodes = {"p": {"deadline_s": 20}, "t": {"requires_policy": "all-resolved"}}
    job = w.job({"a": [], "p": ["a"], "t": ["p"]}, nodes=nodes)
    w.do_one("b1", 1)
    w.advance(20)
    w.sweep()
    assert (w.states(job), w.job_state(job)) == ({"a": "FAILED", "p": "EXPIRED", "t": "WAITING"}, "FAILED")
    w.rerun(job["a"])
    w.carry()
    assert w.states(job) == {"a": "READY", "p": "EXPIRED", "t": "READY"}


def test_a_job_stays_blocked_while_another_failure_remains_and_names_that(w):
    job = w.job({"a": [], "b": []})
    w.work("b1", 1)
    assert w.job_row(job).blocked_by == job["a"]
    w.rerun(job["a"])
    row = w.job_row(job)
    assert (row.view, row.blocked_by, row.error) == (
        "blocked", job["b"], f"task {show_task(job['b'])} ended FAILED (exit_code)",
    )  # fmt: skip
    w.do_one("b1")
    w.rerun(job["b"])
    assert w.job_row(job).view == "running"


@pytest.mark.parametrize("state", ["READY", "RUNNING"])
def test_a_rerun_with_descendants_of_a_task_that_runs_again_already_is_refused(w, state):
    job = w.job(CHAIN)
    w.work("b1")
    w.rerun(job["a"], force=True)
    if state == "RUNNING":
        w.take("b1")
    with pytest.raises(WrongState, match="keep the result of its last run"):
        w.rerun(job["a"], force=True, cascade=True)


def test_a_rerun_with_descendants_may_be_repeated(w):
    job = w.job(CHAIN)
    w.work("b1")
    assert [w.rerun(job["a"], force=True, cascade=True).changed for _ in range(2)] == [True, False]
    assert w.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}


def test_a_rerun_of_a_succeeded_parent_leaves_its_children_alone(w):
    job = w.job(CHAIN)
    w.work("b1")
    w.rerun(job["a"], force=True)
    assert w.states(job) == {"a": "READY", "b": "SUCCEEDED", "c": "SUCCEEDED"}
    w.work("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_a_succeeded_parent_that_fails_when_it_runs_again_does_not_take_its_children_back(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1")
    w.rerun(job["a"], force=True)
    runs = {run.task_id: run for run in w.claim("b1", 2)}
    w.fail(runs[job["a"]])
    assert (w.states(job)["a"], w.task(job["b"]).num_succeeded_parents) == ("FAILED", 1)


def a_value(w, task):
    """What the only output of a function holds now."""
    [(kind, value_id, shared_id, _)] = w.read(values.outputs, [task])[task]
    if kind == values.SHARED:
        return w.read(shared_value.read, [shared_id])[shared_id].payload
    return w.read(values.read, [value_id])[value_id].payload


@pytest.mark.parametrize("output", ["int64", shared_output()])
def test_a_function_that_succeeds_again_has_its_new_output(w, output):
    function = w.function([], [output])
    w.do_one("b1", outputs=returned(b"old"))
    w.rerun(function.task_id, force=True)
    assert a_value(w, function.task_id) == b"old"
    w.do_one("b1", outputs=returned(b"new"))
    assert a_value(w, function.task_id) == b"new"
    assert w.count("shared_values") == w.count("job_to_shared_value_ref") == int(output != "int64")


@pytest.mark.parametrize("output", ["int64", shared_output()])
def test_a_child_reads_the_old_output_until_there_is_a_new_one(w, output):
    nodes = {"a": {"task": a_function([], [output])}, "b": {"task": a_function([output_of("a")], priority=50)}}
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"old"))
    w.rerun(job["a"], force=True)
    first = w.take("b1")
    assert [value.payload for value in first.inputs] == [b"old"]
    w.do_one("b1", outputs=returned(b"new"))
    w.fail(first)
    w.rerun(job["b"])
    assert [value.payload for value in w.take("b1").inputs] == [b"new"]


def test_a_replaced_shared_output_stays_for_others_that_reference_it(w):
    function = w.function([], [shared_output()])
    w.do_one("b1", outputs=returned(b"old"))
    [old] = w.column("SELECT id FROM shared_values")
    w.do(shared_values.ref_value, GroupOwner(w.group.id), old)
    w.rerun(function.task_id, force=True)
    w.do_one("b1", outputs=returned(b"new"))
    assert (w.count("shared_values"), a_value(w, function.task_id)) == (2, b"new")


def test_a_rerun_that_fails_leaves_the_old_output(w):
    function = w.function([], ["int64"])
    w.do_one("b1", outputs=returned(b"old"))
    w.rerun(function.task_id, force=True)
    w.do_one("b1", 1)
    assert a_value(w, function.task_id) == b"old"


def test_a_cancelled_job_runs_nothing_again(w):
    job = w.job({"a": []})
    w.do(cancel.cancel_job, job.id)
    with pytest.raises(WrongState):
        w.rerun(job["a"])


def test_a_job_that_is_busy_with_an_earlier_decision_says_so(w, small_chunks):
    job = w.job({"a": [], **{str(i): ["a"] for i in range(7)}})
    w.carry()
    w.do_one("b1")
    with pytest.raises(WrongState):
        w.rerun(job["a"], force=True)
    w.carry()
    assert w.rerun(job["a"], force=True).changed


# ---------------------------------------------------------------- jobs


def test_what_failed_of_a_job_runs_again(w):
    job = w.job({"a": [], "b": [], "c": ["b"]}, nodes={"a": {"priority": 1}})
    w.do_one("b1")
    w.do_one("b1", 1)
    w.do(rerun.rerun_job, job.id)
    w.carry()
    assert w.states(job) == {"a": "SUCCEEDED", "b": "READY", "c": "WAITING"}
    assert len(w.work("b1")) == 2
    assert w.job_state(job) == "SUCCEEDED"


def test_a_full_rerun_runs_everything_again(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function([output_of("a")])}}
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"old"))
    w.do_one("b1")
    w.do(rerun.rerun_job, job.id, full=True)
    w.carry()
    assert w.states(job) == {"a": "READY", "b": "WAITING"}
    w.do_one("b1", outputs=returned(b"new"))
    assert [value.payload for value in w.take("b1").inputs] == [b"new"]


def test_a_running_job_is_left_as_it_is(w):
    job = w.job({"a": []})
    before = w.job_row(job)
    w.do(rerun.rerun_job, job.id)
    assert w.job_row(job) == before


@pytest.mark.parametrize("case", ["succeeded", "cancelled", "late", "deleting", "unknown"])
def test_a_job_that_cannot_run_again_says_why(w, case):
    job = w.job({"a": []}, deadline_s=100)
    if case == "cancelled":
        w.do(cancel.cancel_job, job.id)
    elif case == "late":
        w.do_one("b1", 1)
        w.advance(100)
    else:
        w.do_one("b1", 0 if case == "succeeded" else 1)
    if case == "deleting":
        w.do(retention.delete_job, job.id, group_id=w.group.id)
    with pytest.raises(NotFound if case == "unknown" else WrongState):
        w.do(rerun.rerun_job, 17 if case == "unknown" else job.id)


def test_a_large_job_is_reset_in_chunks(w, small_chunks):
    job = w.job({str(i): [] for i in range(8)})
    w.carry()
    w.work("b1", 1)
    w.do(rerun.rerun_job, job.id)
    w.carry()
    assert set(w.states(job).values()) == {"READY"}


def test_a_whole_job_is_run_again_in_chunks_although_values_go_before_their_readers(w, small_chunks):
    labels = [f"n{i}" for i in range(5)]
    nodes = {"n0": {"task": a_function(outputs=["int64"])}} | {
        label: {"task": a_function([output_of(before)], outputs=["int64"])} for before, label in pairwise(labels)
    }
    job = w.job({label: [] for label in labels}, nodes=nodes)
    w.carry()
    w.work("b1", outputs=returned(b"1"))
    w.do(rerun.rerun_job, job.id, full=True)
    invariants.check(w.db)
    w.carry()
    assert list(w.states(job).values()) == ["READY", *["WAITING"] * 4]


def test_a_success_past_its_deadline_stays_when_all_of_its_job_runs_again(w):
    nodes = {
        "a": {"task": a_function(outputs=["int64"])},
        "b": {"task": a_function([output_of("a")], deadline_s=50)},
    }
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"1"))
    w.do_one("b1")
    w.advance(60)
    w.do(rerun.rerun_job, job.id, full=True)
    w.carry()
    assert w.states(job) == {"a": "READY", "b": "SUCCEEDED"}


def test_a_task_whose_deadline_has_passed_stays_failed_when_its_job_runs_again(w):
    job = w.job({"a": [], "b": []}, nodes={"a": {"deadline_s": 50}})
    w.work("b1", 1)
    w.advance(60)
    w.do(rerun.rerun_job, job.id)
    w.carry()
    assert w.states(job) == {"a": "FAILED", "b": "READY"}
    assert (w.job_row(job).view, w.job_row(job).blocked_by) == ("blocked", job["a"])


def test_a_job_of_which_nothing_may_run_again_says_so(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"a": {"deadline_s": 50}})
    w.do_one("b1", 1)
    w.advance(60)
    with pytest.raises(WrongState, match="the deadlines of all its failed tasks have passed"):
        w.do(rerun.rerun_job, job.id)


def test_a_job_with_a_failed_task_past_its_deadline_is_not_retried(w):
    job = w.job({"a": [], "b": []}, nodes={"a": {"deadline_s": 50}}, max_num_retries=5)
    w.do_one("b1", 1)
    w.advance(60)
    w.do_one("b1", 1)
    assert (w.job_state(job), w.job_row(job).num_retries) == ("FAILED", 0)


# ---------------------------------------------------------------- job retries


def test_a_failed_job_with_a_budget_is_retried_by_the_sweep(w):
    job = w.job({"a": [], "b": ["a"]}, max_num_retries=1)
    w.do_one("b1", 1)
    assert w.job_state(job) == "PENDING_RETRY"
    w.sweep()
    assert (w.job_state(job), w.job_row(job).num_retries, w.states(job)["a"]) == ("RUNNING", 1, "READY")
    w.work("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_the_views_of_a_job_that_fails_again_after_its_retry_are_announced_once_each(w):
    job = w.job({"a": []}, max_num_retries=1)
    w.do_one("b1", 1)
    w.sweep()
    w.do_one("b1", 1)
    said = w.db.read(lambda tx: outbox.history(tx, job.id))
    views = [json.decode(event.body, type=outbox.JobBody).view for event in said]
    assert [view for view, _ in groupby(views)] == ["running", "blocked", "running", "blocked"]


def test_a_job_fails_when_its_retries_are_used_up(w):
    job = w.job({"a": []}, max_num_retries=1)
    w.do_one("b1", 1)
    w.sweep()
    w.do_one("b1", 1)
    assert (w.job_state(job), w.task(job["a"]).generation) == ("FAILED", 2)


def test_a_job_retry_keeps_what_has_succeeded(w):
    job = w.job({"a": [], "b": ["a"]}, max_num_retries=1)
    w.do_one("b1")
    w.do_one("b1", 1)
    w.sweep()
    assert (w.states(job), w.task(job["a"]).generation) == ({"a": "SUCCEEDED", "b": "READY"}, 1)


def test_a_job_retry_gives_every_budget_back(w):
    job = w.job({"a": []}, max_num_retries=1, nodes={"a": {"reruns": 1}})
    w.work("b1", 1)
    w.sweep()
    assert (w.task(job["a"]).num_reruns, w.task(job["a"]).num_retries) == (0, 0)


def test_an_all_resolved_child_that_succeeded_is_not_run_again(w):
    job = w.job({"a": [], "b": ["a"]}, max_num_retries=1, nodes={"b": {"requires_policy": "all-resolved"}})
    w.do_one("b1", 1)
    w.do_one("b1")
    w.sweep()
    assert w.states(job) == {"a": "READY", "b": "SUCCEEDED"}
    w.work("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_a_job_out_of_which_somebody_took_a_task_is_not_retried(w):
    job = w.job({"a": [], "b": ["a"]}, max_num_retries=5)
    w.cancel(job["a"])
    assert w.job_state(job) == "FAILED"


def test_a_job_past_its_deadline_is_not_retried(w):
    job = w.job({"a": []}, max_num_retries=5, deadline_s=50)
    w.take("b1")
    w.advance(60)
    w.sweep()
    assert w.job_state(job) == "FAILED"


def test_a_job_that_waits_for_its_retry_lets_nobody_run_its_tasks_by_hand(w):
    job = w.job({"a": []}, max_num_retries=1)
    w.do_one("b1", 1)
    with pytest.raises(WrongState):
        w.rerun(job["a"])


def test_a_fail_fast_job_is_retried_as_a_whole(w):
    job = w.job({"a": [], "b": []}, max_num_retries=1, failure_policy="fail-fast")
    w.do_one("b1", 1)
    assert w.job_state(job) == "PENDING_RETRY"
    w.sweep()
    assert set(w.states(job).values()) == {"READY"}


# ---------------------------------------------------------------- what cannot be run again


def test_a_function_whose_input_was_never_produced_cannot_be_forced(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function([output_of("a")])}}
    job = w.job({"a": [], "b": ["a"]}, nodes=nodes)
    w.do_one("b1", 1)
    with pytest.raises(WrongState, match="not produced"):
        w.rerun(job["b"], force=True)


@pytest.mark.parametrize("what", ["task", "job"])
def test_nothing_runs_again_in_a_group_that_is_being_deleted(w, what):
    job = w.job({"a": []})
    w.do_one("b1", 1)
    w.do(resource_groups.delete_group, w.group.id)
    with pytest.raises(WrongState, match="being deleted"):
        w.rerun(job["a"]) if what == "task" else w.do(rerun.rerun_job, job.id)


# ---------------------------------------------------------------- code


def test_functions_run_replaced_code_from_the_next_claim_on(w):
    old, new = w.store_file("ab" * 32), w.store_file("cd" * 32)
    raw = a_graph({"a": [], "b": ["a"]}, {label: {"task": a_function()} for label in "ab"})
    for label in "ab":
        raw["tasks"][label]["task"]["function"]["code"] = old
    job = w.job_raw(raw)
    assert w.take("b1").code == old
    w.do(job_codes.replace_code, w.job_row(job), {old: new})
    w.lose("b1")
    w.bot("b1")
    assert [w.do_one("b1").code for _ in range(2)] == [new, new]
    with pytest.raises(InvalidRequest, match="code that the job has"):
        w.do(job_codes.replace_code, w.job_row(job), {"ef" * 32: new})
    with pytest.raises(UnknownFile):
        w.do(job_codes.replace_code, w.job_row(job), {old: "ef" * 32})
