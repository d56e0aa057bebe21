"""Settling: what the end of a task means for its children and its job."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import IllegalMove
from myrmidon.model.ids import show_run
from myrmidon.model.states import TaskState
from myrmidon.scheduler import bot_end
from myrmidon.scheduler.unit_of_work import UnitOfWork
from tests.builders import a_function, finished, output_of, returned

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def done(w, job, *labels, exit_code=0, bot="b1"):
    """Finish exactly these tasks, which are ready."""
    for label in labels:
        runs = {run.task_id: run for run in w.claim(bot, 256)}
        w.finish(runs.pop(job[label]), exit_code)
        for run in runs.values():
            w.give_back(run)


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_child_is_ready_when_all_its_parents_have_succeeded(w):
    job = w.job(DIAMOND)
    done(w, job, "a", "b")
    assert w.states(job)["d"] == "WAITING"
    done(w, job, "c")
    assert w.states(job)["d"] == "READY"


def test_all_parents_may_end_in_one_report(w):
    job = w.job({"a": [], "b": [], "c": ["a", "b"]})
    w.report(*(finished(run) for run in w.claim("b1", 2)))
    assert (w.states(job)["c"], w.story(job["c"])) == ("READY", ["WAITING", "READY"])


def test_a_job_succeeds_when_all_its_tasks_have(w):
    job = w.job(DIAMOND)
    w.work("b1")
    row = w.job_row(job)
    assert (row.state, row.view, row.num_succeeded, row.ended_at) == ("SUCCEEDED", "finished", 4, w.now)
    assert w.story(job.id) == ["RUNNING", "SUCCEEDED"]


def test_values_flow_along_the_edges(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function([output_of("a")], ["int64"])}}
    w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"\x07"))
    assert [value.payload for value in w.take("b1").inputs] == [b"\x07"]


def test_a_shared_output_reaches_its_consumers_as_a_shared_value(w):
    nodes = {"a": {"task": a_function([], [{"type": "int64", "shared": True}])}}
    nodes["b"] = {"task": a_function([output_of("a")])}
    w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"\x07"))
    [value] = w.take("b1").inputs
    assert [(value.id, value.payload)] == [(w.column("SELECT id FROM shared_values")[0], b"\x07")]


def test_a_shared_output_carries_the_id_that_its_value_has_in_the_job(w):
    outputs = [{"type": "int64", "shared": True}]
    nodes = {"a": {"task": a_function([], ["int64", "int64"])}, "b": {"task": a_function([output_of("a")], outputs)}}
    w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"\x01", b"\x02"))
    w.do_one("b1", outputs=returned(b"\x03"))
    of_value = w.column("SELECT value_id FROM task_outputs WHERE type = 'SHARED_VALUE'")
    assert w.column("SELECT task_graph_data_id FROM shared_values") == of_value


# ---------------------------------------------------------------- failure


def test_a_failed_task_blocks_its_job_but_not_other_branches(w):
    job = w.job({"a": [], "b": [], "c": ["a"], "d": ["b"]})
    done(w, job, "a", exit_code=1)
    row = w.job_row(job)
    assert (row.state, row.view, row.blocked_by) == ("RUNNING", "blocked", job["a"])
    done(w, job, "b")
    assert w.states(job) == {"a": "FAILED", "b": "SUCCEEDED", "c": "WAITING", "d": "READY"}


def test_a_job_fails_when_nothing_can_run_any_more(w):
    job = w.job({"a": [], "b": [], "c": ["a"]})
    done(w, job, "a", exit_code=1)
    done(w, job, "b")
    row = w.job_row(job)
    assert (row.state, "exit_code" in (row.error or "")) == ("FAILED", True)
    assert w.story(job.id) == ["RUNNING", "RUNNING", "FAILED"]


def test_a_job_is_announced_blocked_once(w):
    job = w.job({"a": [], "b": [], "c": []})
    done(w, job, "a", "b", exit_code=1)
    bodies = w.column("SELECT body FROM outbox WHERE subject = :id", id=job.id)
    assert sum('"what":"blocked"' in body for body in bodies) == 1


def test_fail_fast_calls_off_the_rest(w):
    job = w.job({"a": [], "b": [], "c": ["a"], "d": []}, failure_policy="fail-fast", nodes={"a": {"priority": 1}})
    [a] = w.claim("b1")
    [running] = w.claim("b1")
    w.start(running)
    w.fail(a)
    assert sorted(w.states(job).values()) == ["CANCELLED", "CANCELLED", "FAILED", "RUNNING"]
    assert (w.task(running.task_id).killing, w.job_state(job)) == (1, "RUNNING")
    w.finish(running, -15)
    assert (w.states(job)[job.label(running.task_id)], w.job_state(job)) == ("KILLED", "FAILED")


def test_fail_fast_reaches_beyond_one_chunk(w, small_chunks):
    job = w.job({str(i): [] for i in range(8)}, failure_policy="fail-fast")
    w.carry()
    w.fail(w.take("b1"))
    w.carry()
    assert sorted(w.states(job).values()) == ["CANCELLED"] * 7 + ["FAILED"]
    assert w.job_state(job) == "FAILED"


def test_all_resolved_runs_after_any_end(w):
    job = w.job({"a": [], "b": [], "c": ["a", "b"]}, nodes={"c": {"requires_policy": "all-resolved"}})
    done(w, job, "a", exit_code=1)
    assert w.states(job)["c"] == "WAITING"
    done(w, job, "b")
    assert w.states(job)["c"] == "READY"


def test_all_resolved_waits_for_reruns(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"requires_policy": "all-resolved"}, "a": {"reruns": 1}})
    done(w, job, "a", exit_code=1)
    assert w.states(job) == {"a": "READY", "b": "WAITING"}
    done(w, job, "a", exit_code=1)
    assert w.states(job) == {"a": "FAILED", "b": "READY"}


def test_all_resolved_and_all_succeeded_children_of_one_failed_parent(w):
    job = w.job({"a": [], "b": ["a"], "c": ["a"]}, nodes={"b": {"requires_policy": "all-resolved"}})
    done(w, job, "a", exit_code=1)
    assert w.states(job) == {"a": "FAILED", "b": "READY", "c": "WAITING"}


def test_a_job_with_a_failed_task_and_a_clean_up_has_failed(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"requires_policy": "all-resolved"}})
    done(w, job, "a", exit_code=1)
    done(w, job, "b")
    assert w.job_state(job) == "FAILED"


def test_a_child_that_no_bot_can_run_ends_and_blocks(w):
    job = w.job({"a": [], "b": ["a"]}, nodes={"b": {"os": "Plan9", "wait_for_capacity": False}})
    done(w, job, "a")
    assert (w.states(job)["b"], w.job_state(job)) == ("NO_RESOURCE", "FAILED")


# ---------------------------------------------------------------- wide graphs


def test_a_wide_fan_out_is_fed_in_chunks(w, small_chunks):
    job = w.job({"a": [], **{str(i): ["a"] for i in range(10)}})
    w.carry()
    w.do_one("b1")
    assert 0 < w.column("SELECT COUNT(*) FROM completed_task_edges")[0] < 10
    w.carry()
    assert sorted(w.states(job).values()) == ["READY"] * 10 + ["SUCCEEDED"]


def test_two_wide_parents_that_end_together_feed_all(w, small_chunks):
    edges = {"a": [], "b": [], **{f"a{i}": ["a"] for i in range(2)}, **{f"b{i}": ["b"] for i in range(4)}}
    job = w.job(edges, nodes={"a": {"priority": 1}, "b": {"priority": 1}})
    w.carry()
    w.report(*(finished(run) for run in w.claim("b1", 2)))
    w.carry()
    assert list(w.states(job).values()).count("READY") == 6


def test_ends_that_feed_one_after_the_other_stay_within_one_budget(w, small_chunks):
    """Deduped children end at once and feed children of their own; what is too much goes into drains."""
    edges = {"a": [], **{f"b{i}": ["a"] for i in range(3)}, **{f"c{i}": [f"b{i}"] for i in range(3)}}
    w.submit(idempotent=True, command=["same"])
    w.do_one("b1")
    nodes = {f"b{i}": {"idempotent": True, "command": ["same"]} for i in range(3)}
    job = w.job(edges, nodes=nodes)
    w.carry()
    done(w, job, "a")
    w.carry()
    assert [w.states(job)[f"c{i}"] for i in range(3)] == ["READY"] * 3


# ---------------------------------------------------------------- triggered tasks


def test_the_children_of_an_ended_task_are_cancelled(w):
    w.bot("b2")
    parent = w.submit()
    run = w.take("b1")
    by = show_run(parent, run.run)
    ready, running, free = w.submit(parent=by), w.submit(parent=by, priority=1), w.submit(parent=by, detached=True)
    w.take("b2")
    w.finish(run)
    w.carry()
    assert [w.state(task) for task in (ready, running, free)] == ["CANCELLED", "RUNNING", "READY"]
    assert (w.task(running).killing, w.task(ready).reason) == (1, "parent_ended")


def test_many_children_are_cancelled_in_chunks(w, small_chunks):
    parent = w.submit()
    run = w.take("b1")
    children = [w.submit(parent=show_run(parent, run.run)) for _ in range(7)]
    w.finish(run)
    w.carry()
    assert {w.state(task) for task in children} == {"CANCELLED"}


def test_the_children_of_a_task_that_is_retried_go_on(w):
    parent = w.submit()
    run = w.take("b1")
    child = w.submit(parent=show_run(parent, run.run))
    w.fault(run, "reboot")
    w.carry()
    assert w.state(child) == "READY"


# ---------------------------------------------------------------- promises


def test_a_move_that_is_not_in_the_table_tells_the_whole_story(w):
    task = w.submit()
    w.do_one("b1")

    def wrong(tx):
        uow = UnitOfWork(tx, w.now, w.ids, w.rules)
        uow.move(uow.lock([task])[task], TaskState.READY, "oops")

    with pytest.raises(IllegalMove) as refused:
        w.db.write(wrong)
    assert all(word in str(refused.value) for word in ("1 READY", "2 RUNNING", "3 SUCCEEDED"))
    assert w.state(task) == "SUCCEEDED"


def test_a_bot_that_leaves_while_a_job_runs_stops_it_for_a_lease_only(w):
    job = w.job({"a": [], "b": ["a"]})
    w.take("b1")
    w.lose("b1")
    w.do(bot_end.delete_bot, "b1")
    w.bot("b2")
    assert len(w.work("b2")) == 2
    assert w.job_state(job) == "SUCCEEDED"
