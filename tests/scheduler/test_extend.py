"""Extending: tasks join a job while it runs."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, WrongState
from myrmidon.scheduler import cancel, chunked_work, extend, rerun, retention
from myrmidon.store.tables import value as values
from tests.builders import a_function, a_graph, output_of, returned
from tests.model.requests import nested


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_new_task_without_parents_starts_at_once(w):
    job = w.job({"a": []})
    added = w.extend(job, {"b": []})
    assert (added.num_new, w.states(job), w.job_row(job).num_tasks) == (1, {"a": "READY", "b": "READY"}, 2)
    assert added.queues_to_wake


def test_a_new_task_waits_for_a_parent_that_still_runs(w):
    job = w.job({"a": []})
    w.extend(job, {"b": ["a"]})
    assert w.states(job)["b"] == "WAITING"
    assert [job.label(task) for task in w.work("b1")] == ["a", "b"]


def test_a_parent_that_succeeded_before_counts(w):
    job = w.job({"a": [], "z": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1")
    w.extend(job, {"b": ["a"], "c": ["a", "b"]})
    assert (w.states(job)["b"], w.task(job["c"]).num_succeeded_parents) == ("READY", 1)


def test_a_parent_that_failed_before_counts_for_all_resolved_only(w):
    job = w.job({"a": [], "z": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1", 1)
    w.extend(job, {"b": ["a"], "c": ["a"]}, nodes={"c": {"requires_policy": "all-resolved"}})
    assert (w.states(job)["b"], w.states(job)["c"]) == ("WAITING", "READY")


def test_a_running_task_may_extend_its_own_job(w):
    job = w.job({"a": []})
    run = w.take("b1")
    w.extend(job, {"b": ["a"]})
    w.finish(run)
    assert (w.states(job)["b"], w.job_state(job)) == ("READY", "RUNNING")


def test_a_blocked_job_may_grow_and_stays_blocked(w):
    job = w.job({"a": [], "z": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1", 1)
    w.extend(job, {"b": []})
    assert (w.states(job)["b"], w.job_row(job).view) == ("READY", "blocked")


def test_a_repeated_extension_changes_nothing(w):
    job = w.job({"a": []})
    first = w.extend(job, {"b": ["a"]})
    w.work("b1")
    again = w.extend(job, {"b": ["a"]})
    assert (again.num_new, again.task_ids, w.job_state(job)) == (0, first.task_ids, "SUCCEEDED")


def test_a_repeat_with_something_new_adds_only_that(w):
    job = w.job({"a": []})
    w.extend(job, {"b": ["a"]})
    added = w.extend(job, {"b": ["a"], "c": ["b"]})
    assert (added.num_new, set(added.task_ids), w.count("task_results")) == (1, {"b", "c"}, 3)


def test_an_extension_may_come_as_a_list(w):
    job = w.job({"a": []})
    raw = a_graph({"a": [], "b": ["a"]})
    tasks = [{"label": label, **node} for label, node in raw["tasks"].items()]
    added = w.extend(job, {}, raw={"tasks": tasks})
    assert (added.num_new, added.task_ids["a"]) == (1, job["a"])


def test_a_known_label_with_another_definition_is_refused(w):
    job = w.job({"a": []})
    with pytest.raises(Conflict):
        w.extend(job, {"a": []}, priority=3)
    assert w.count("task_results") == 1


@pytest.mark.parametrize("end", ["success", "failure", "cancel"])
def test_an_ended_job_takes_no_tasks(w, end):
    job = w.job({"a": []})
    if end == "cancel":
        w.do(cancel.cancel_job, job.id)
    else:
        w.do_one("b1", 0 if end == "success" else 1)
    with pytest.raises(WrongState):
        w.extend(job, {"b": []})


def test_a_job_that_is_half_deleted_says_that_it_has_ended(w, small_chunks):
    job = w.job({x: [] for x in "abcd"}, nodes={x: {"task": a_function([], ["int64"])} for x in "abcd"})
    w.carry()
    w.work("b1", outputs=returned(b"1"))
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.do(chunked_work.run_chunk, *w.read(chunked_work.pending))
    w.removed = True
    assert w.count("task_results") == 1
    with pytest.raises(WrongState):
        w.extend(job, {"e": []}, nodes={"e": {"task": a_function([output_of("a")])}})


def test_a_sealed_job_takes_no_tasks(w):
    job = w.job({"a": []})
    w.do(extend.seal, job.id, group_id=w.group.id)
    w.do(extend.seal, job.id, group_id=w.group.id)
    with pytest.raises(WrongState):
        w.extend(job, {"b": []})
    assert w.extend(job, {"a": []}).num_new == 0


@pytest.mark.parametrize("verb", [extend.extend, extend.seal])
def test_a_job_that_does_not_exist_cannot_grow(w, verb):
    more = [a_graph({"b": []})] if verb is extend.extend else []
    with pytest.raises(NotFound):
        w.do(verb, 17, *more, group_id=w.group.id)


def test_a_job_of_another_group_cannot_grow(w):
    job = w.job({"a": []})
    other = w.new_group("other")
    with pytest.raises(NotFound):
        w.do(extend.extend, job.id, a_graph({"b": []}), group_id=other.id)


def test_a_new_task_may_read_what_an_old_one_has_returned(w):
    job = w.job({"a": [], "z": []}, nodes={"a": {"task": a_function([], ["int64"], priority=1)}})
    w.do_one("b1", outputs=returned(b"\x07"))
    w.extend(job, {"b": []}, nodes={"b": {"task": a_function([output_of("a")], priority=1)}})
    assert [value.payload for value in w.take("b1").inputs] == [b"\x07"]


def test_a_new_task_may_read_a_shared_value_that_an_old_one_made(w):
    made = a_function([], [{"type": "int64", "shared": True}], priority=1)
    job = w.job({"a": [], "z": []}, nodes={"a": {"task": made}})
    w.do_one("b1", outputs=returned(b"\x07"))
    w.extend(job, {"b": []}, nodes={"b": {"task": a_function([output_of("a")], priority=1)}})
    assert [value.payload for value in w.take("b1").inputs] == [b"\x07"]


def test_a_job_ends_at_its_new_leaves(w):
    job = w.job({"a": []})
    w.extend(job, {"b": ["a"], "c": []})
    assert set(w.column("SELECT task_id FROM output_tasks")) == {job["b"], job["c"]}
    assert set(w.column("SELECT task_id FROM input_tasks")) == {job["a"], job["c"]}


def test_a_held_node_may_join(w):
    job = w.job({"a": []})
    w.extend(job, {"b": []}, nodes={"b": {"hold": True, "deadline_s": 5}})
    assert (w.states(job)["b"], w.job_row(job).num_active) == ("WAITING", 2)


def test_subs_find_old_and_new_labels(w):
    job = w.job({"a": []})
    w.extend(job, {"b": []}, command=["x", {"$subs": "taskId:a"}, {"$subs": "taskId:b"}])
    properties = w.column("SELECT properties FROM task_slices WHERE task_id = :id", id=job["b"])[0]
    assert f"{job['a']:x}00" in properties
    assert f"{job['b']:x}00" in properties


@pytest.mark.parametrize(
    "raw",
    [
        None, 5, "x", [], {}, {"tasks": {}}, {"tasks": []}, {"tasks": 5}, {"tasks": [5]},
        {"tasks": {"b": nested(50_000)}}, {"tasks": [{"label": 5}, 7]}, a_graph({"b": []}, priority=10**400),
        a_graph({"b": ["nobody"]}), a_graph({"b": ["b"]}), a_graph({"b": ["c"], "c": ["b"]}), {"tasks": [{"label": 5}]},
        a_graph({"b": []}, nodes={"b": {"task": a_function([output_of("a")])}}), {"tasks": {"b": {5: 5}}},
        a_graph({"b": []}, command=["half a letter: \ud800"]), {"tasks": [{"label": ["x"]}]}, {"tasks": {5: {}}},
    ],
)  # fmt: skip
def test_a_bad_extension_is_refused_and_nothing_is_stored(lite, raw):
    job = lite.job({"a": []})
    with pytest.raises(InvalidRequest):
        lite.do(extend.extend, job.id, raw, group_id=lite.group.id)
    assert (lite.count("task_results"), lite.job_row(job).num_tasks) == (1, 1)


def test_an_extension_that_takes_a_used_external_id_is_refused(w):
    w.submit(external_id="x")
    job = w.job({"a": []})
    with pytest.raises(Conflict):
        w.extend(job, {"b": []}, nodes={"b": {"task": {**a_function(), "external_id": "x"}}})
    assert w.job_row(job).num_tasks == 1


def test_a_job_that_is_being_reset_takes_tasks_when_that_is_done(w, small_chunks):
    """Else a new task could begin because a parent has ended that is just about to run again."""
    job = w.job({str(i): [] for i in range(8)})
    w.carry()
    w.work("b1", 1)
    w.do(rerun.rerun_job, job.id)
    late = {"x": ["7"]}
    with pytest.raises(WrongState, match="in a moment"):
        w.extend(job, late, nodes={"x": {"requires_policy": "all-resolved"}})
    w.carry()
    w.extend(job, late, nodes={"x": {"requires_policy": "all-resolved"}})
    assert w.states(job)["x"] == "WAITING"


def test_one_call_adds_at_most_a_thousand_tasks(lite):
    job = lite.job({"a": []})
    many = {f"t{i}": ["a"] for i in range(1001)}
    with pytest.raises(InvalidRequest, match="at most 1000 new tasks in one call"):
        lite.extend(job, many)
    assert lite.job_row(job).num_tasks == 1
    first = dict(list(many.items())[:1000])
    assert lite.extend(job, first).num_new == 1000
    assert lite.extend(job, many).num_new == 1


def test_an_extension_reads_only_the_outputs_that_it_uses_and_each_once(w, monkeypatch):
    nodes = {label: {"task": a_function([], ["int64"])} for label in ("a", "b", "c")}
    job = w.job({"a": [], "b": [], "c": []}, nodes=nodes)
    read = []
    real = values.outputs

    def outputs(tx, ids):
        read.append(list(ids))
        return real(tx, ids)

    monkeypatch.setattr(values, "outputs", outputs)
    w.extend(job, {"d": ["b"]}, nodes={"d": {"task": a_function([output_of("a")])}})
    assert read == [[job["a"]]]
