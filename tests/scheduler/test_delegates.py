"""Delegates: a task that a running function adds to its job writes the function's outputs."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import InvalidRequest, WrongState
from tests.builders import a_function, a_graph, gathered, output_of, returned, shared_output


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def function(*inputs, outputs=("int64",)):
    return {"task": a_function(inputs=inputs, outputs=outputs)}


def started(w):
    """A running function whose output two tasks read."""
    nodes = {"f": function(), "g": function(output_of("f")), "h": function(gathered("f"))}
    job = w.job_raw(a_graph({"f": [], "g": [], "h": []}, nodes))
    return job, w.take("b1")


def delegate(w, job, run, label="d", own="f", **given):
    edges, nodes = given.pop("edges", {label: []}), given.pop("nodes", {label: function()})
    return w.extend(job, edges, nodes=nodes, delegates={label: own}, by=run.task_id, **given)


def test_readers_wait_for_the_delegate_and_get_its_output(w):
    job, run = started(w)
    delegate(w, job, run)
    assert w.states(job)["d"] == "WAITING"
    w.finish(run, delegated=True)
    assert w.states(job) == {"f": "SUCCEEDED", "g": "WAITING", "h": "WAITING", "d": "READY"}
    w.do_one("b1", outputs=returned(b"\x11"))
    runs = w.claim("b1", 2)
    assert sorted(run.inputs[0].parts[0].payload if run.inputs[0].parts else run.inputs[0].payload for run in runs) == [
        b"\x11",
        b"\x11",
    ]


def test_a_delegate_may_delegate_again(w):
    job, run = started(w)
    delegate(w, job, run)
    w.finish(run, delegated=True)
    second = w.take("b1")
    delegate(w, job, second, label="e", own="d")
    w.finish(second, delegated=True)
    w.do_one("b1", outputs=returned(b"\x12"))
    assert (w.states(job)["g"], w.states(job)["h"]) == ("READY", "READY")
    w.extend(job, {"late": []}, nodes={"late": function(output_of("f"))})
    assert (w.task(job["late"]).num_parents, w.state(job["late"])) == (3, "READY")


def test_a_task_that_is_added_later_waits_for_the_delegate_too(w):
    job, run = started(w)
    delegate(w, job, run)
    w.finish(run, delegated=True)
    w.extend(job, {"late": [], "order": ["f"]}, nodes={"late": function(output_of("f")), "order": function()})
    assert (w.state(job["late"]), w.state(job["order"])) == ("WAITING", "READY")


def test_a_reader_in_the_same_extension_waits_for_the_delegate(w):
    job, run = started(w)
    nodes = {"d": function(), "r": function(output_of("f"))}
    delegate(w, job, run, edges={"d": [], "r": []}, nodes=nodes)
    assert w.task(job["r"]).num_parents == 2


def test_a_delegate_that_fails_leaves_its_readers_waiting_until_it_is_rerun(w):
    job, run = started(w)
    delegate(w, job, run)
    w.finish(run, delegated=True)
    w.do_one("b1", 1)
    assert (w.states(job)["g"], w.job_state(job)) == ("WAITING", "FAILED")
    w.rerun(job["d"])
    w.do_one("b1", outputs=returned(b"\x13"))
    assert w.states(job)["g"] == "READY"


def test_a_function_that_fails_after_it_has_delegated_does_not_start_the_delegate(w):
    job, run = started(w)
    delegate(w, job, run)
    w.fail(run)
    assert (w.states(job)["d"], w.job_state(job)) == ("WAITING", "FAILED")


def test_a_function_that_runs_again_finds_its_delegate(w):
    job, run = started(w)
    delegate(w, job, run)
    w.fault(run)
    again = w.take("b1")
    assert (again.task_id, delegate(w, job, again).num_new) == (job["f"], 0)
    w.finish(again, delegated=True)
    assert w.states(job)["d"] == "READY"


def test_a_rerun_with_descendants_resets_the_delegate_and_its_output(w):
    job, run = started(w)
    delegate(w, job, run)
    w.finish(run, delegated=True)
    w.work("b1", outputs=returned(b"\x14"))
    w.rerun(job["f"], force=True, cascade=True)
    assert w.states(job) == {"f": "READY", "g": "WAITING", "h": "WAITING", "d": "WAITING"}
    w.finish(w.take("b1"), delegated=True)
    w.work("b1", outputs=returned(b"\x15"))
    assert w.job_state(job) == "SUCCEEDED"


def test_a_function_that_says_delegated_without_a_delegate_fails(w):
    job, run = started(w)
    w.finish(run, delegated=True)
    assert (w.state(job["f"]), w.task(job["f"]).reason) == ("FAILED", "bad_outputs")
    assert "delegated" in (w.last_run(job["f"]).evidence or "")


@pytest.mark.parametrize(
    ("delegates", "node", "message"),
    [
        ({"d": "f"}, function(outputs=["string"]), "int64"),
        ({"d": "f"}, function(outputs=[]), "int64"),
        ({"d": "g"}, function(), "the task that calls"),
        ({"d": 7}, function(), "the task that calls"),
        ({"x": "f"}, function(), "this call adds"),
        ({"g": "f"}, function(), "this call adds"),
        (["d"], function(), "an object"),
    ],
)
def test_wrong_delegates_are_refused_and_nothing_is_stored(lite, delegates, node, message):
    lite.bot("b1")
    job, run = started(lite)
    with pytest.raises(InvalidRequest, match=message):
        lite.extend(job, {"d": []}, nodes={"d": node}, delegates=delegates, by=run.task_id)
    assert set(lite.states(job)) == {"f", "g", "h"}


def test_shared_outputs_cannot_be_delegated(lite):
    lite.bot("b1")
    job = lite.job_raw(a_graph({"f": []}, {"f": function(outputs=[shared_output()])}))
    run = lite.take("b1")
    with pytest.raises(InvalidRequest, match="not shared"):
        lite.extend(
            job, {"d": []}, nodes={"d": function(outputs=[shared_output()])}, delegates={"d": "f"}, by=run.task_id
        )


def test_only_a_running_task_delegates(lite):
    lite.bot("b1")
    job, run = started(lite)
    with pytest.raises(InvalidRequest, match="running task"):
        lite.extend(job, {"d": []}, nodes={"d": function()}, delegates={"d": "f"})
    lite.finish(run, outputs=returned(b"\x01"))
    with pytest.raises(WrongState):
        delegate(lite, job, run)
