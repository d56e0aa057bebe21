"""Extending: tasks join a job while it runs."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, WrongState
from myrmidon.scheduler import cancel, extend, maintenance, rerun, retention
from myrmidon.store.tables import chunked_work
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
    w.do(maintenance.run_step, w.read(chunked_work.pending)[0].turn)
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
    properties = w.column("SELECT properties FROM task_requests WHERE id = :id", id=job["b"])[0]
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


# ---------------------------------------------------------------- parents of waiting tasks


@pytest.fixture
def fan(w):
    """A job whose first task runs, with another that waits for it."""
    w.bot("b2")
    job = w.job({"plan": [], "join": ["plan"]})
    w.runs = {"plan": w.take("b1")}
    return job


def requires(edges, tasks=None, **given):
    """An extension that adds these tasks, and these parents of existing ones."""
    return {**(a_graph(tasks, **given) if tasks else {}), "requires": edges}


def test_a_running_task_adds_the_parents_of_a_task_that_waits_for_it(w, fan):
    added = w.extend(fan, {}, raw=requires({"join": ["p1", "p2"]}, {"p1": [], "p2": ["plan"]}))
    assert (added.num_new, w.task(fan["join"]).num_parents, w.states(fan)["join"]) == (2, 3, "WAITING")
    assert w.column("SELECT task_id FROM output_tasks") == [fan["join"]]
    w.finish(w.runs["plan"])
    assert (w.states(fan)["join"], w.states(fan)["p2"]) == ("WAITING", "READY")
    assert sorted(fan.label(task) for task in w.work("b1")) == ["join", "p1", "p2"]
    assert (w.job_state(fan), w.task(fan["join"]).num_succeeded_parents) == ("SUCCEEDED", 3)


def test_parents_may_be_added_in_several_calls_and_each_may_be_repeated(w, fan):
    first, second = (requires({"join": [x]}, {x: ["plan"]}) for x in ("p1", "p2"))
    assert [w.extend(fan, {}, raw=raw).num_new for raw in (first, second, first, second)] == [1, 1, 0, 0]
    w.extend(fan, {}, raw=requires({"join": ["p1", "p2", "plan"]}))
    assert w.task(fan["join"]).num_parents == 3
    w.finish(w.runs["plan"])
    w.work("b1")
    assert w.extend(fan, {}, raw=first).num_new == 0, "the repetition of what is there asks for no state"


def test_a_parent_that_has_ended_counts_by_the_policy_of_the_child(w):
    w.bot("b2")
    strict, tolerant = "all-succeeded", "all-resolved"
    nodes = {"strict": {"requires_policy": strict}, "tolerant": {"requires_policy": tolerant}}
    edges = {"ok": [], "bad": [], "plan": ["ok"], "strict": ["plan"], "tolerant": ["plan"]}
    job = w.job(edges, nodes={**nodes, "ok": {"priority": 1}, "bad": {"priority": 2}, "plan": {"priority": 3}})
    w.do_one("b1")
    w.do_one("b1", 1)
    run = w.take("b1")
    w.extend(job, {}, raw=requires({"strict": ["ok", "bad"], "tolerant": ["ok", "bad"]}))
    assert [w.task(job[x]).num_succeeded_parents for x in ("strict", "tolerant")] == [1, 2]
    w.finish(run)
    assert (w.states(job)["strict"], w.states(job)["tolerant"]) == ("WAITING", "READY")


def test_a_parent_that_is_answered_at_once_counts(w):
    task = {"command": ["x"], "idempotent": True}
    w.job({"source": []}, **task)
    w.do_one("b1")
    job = w.job({"plan": [], "join": ["plan"]})
    run = w.take("b1")
    w.extend(job, {}, raw=requires({"join": ["answered"]}, {"answered": []}, **task))
    assert (w.states(job)["answered"], w.states(job)["join"]) == ("SUCCEEDED", "WAITING")
    w.finish(run)
    assert w.states(job)["join"] == "READY"


def test_a_task_that_waits_for_no_running_one_gets_no_parents(w):
    job = w.job({"first": [], "plan": ["first"], "join": ["plan"]})
    w.take("b1")
    with pytest.raises(WrongState, match="does not wait for a running task"):
        w.extend(job, {}, raw=requires({"join": ["new"]}, {"new": []}))
    assert set(w.states(job)) == {"first", "plan", "join"}


@pytest.mark.parametrize("state", ["READY", "RUNNING", "SUCCEEDED"])
def test_a_task_that_no_longer_waits_gets_no_parents(w, fan, state):
    w.extend(fan, {"late": ["plan"]}, priority=200)
    w.finish(w.runs["plan"])
    if state != "READY":
        run = w.take("b1")
        if state == "SUCCEEDED":
            w.finish(run)
    with pytest.raises(WrongState, match=f"join is {state}"):
        w.extend(fan, {}, raw=requires({"join": ["new"]}, {"new": []}))
    assert "new" not in w.states(fan)


def test_a_task_that_asks_must_be_one_that_the_child_waits_for(w):
    w.bot("b2")
    job = w.job({"plan": [], "other": [], "join": ["plan"]}, nodes={"plan": {"priority": 1}})
    w.take("b1"), w.take("b2")
    raw = requires({"join": ["new"]}, {"new": []})
    with pytest.raises(WrongState, match="does not wait for this task"):
        w.do(extend.extend, job.id, raw, group_id=w.group.id, by=job["other"])
    assert w.do(extend.extend, job.id, raw, group_id=w.group.id, by=job["plan"]).num_new == 1


@pytest.mark.parametrize(
    ("edges", "tasks", "path"),
    [
        ({"join": ["after"]}, None, "join -> after -> join"),
        ({"join": ["new"]}, {"new": ["join"]}, "join -> new -> join"),
        ({"join": ["new"]}, {"new": ["after"]}, "join -> new -> after -> join"),
        ({"join": ["twin"], "twin": ["join"]}, None, "join -> twin -> join"),
    ],
)
def test_a_cycle_is_refused_and_shown(w, edges, tasks, path):
    job = w.job({"plan": [], "join": ["plan"], "twin": ["plan"], "after": ["join"]})
    w.take("b1")
    with pytest.raises(InvalidRequest, match=path):
        w.extend(job, {}, raw=requires(edges, tasks))
    assert (w.job_row(job).num_tasks, w.count("task_edges")) == (4, 3)


def test_ten_thousand_parents_are_the_limit(lite):
    lite.bot("b1")
    job = lite.job({"plan": [], "join": ["plan"]})
    lite.take("b1")
    for i in range(0, 9_000, 1_000):
        many: dict[str, list[str]] = {f"p{i + n}": [] for n in range(1_000)}
        lite.extend(job, {}, raw=requires({"join": list(many)}, many))
    many = {f"q{n}": [] for n in range(1_000)}
    with pytest.raises(InvalidRequest, match="10001 parents"):
        lite.extend(job, {}, raw=requires({"join": list(many)}, many))
    many.popitem()
    lite.extend(job, {}, raw=requires({"join": list(many)}, many))
    assert (lite.task(job["join"]).num_parents, lite.job_row(job).num_tasks) == (10_000, 10_001)


@pytest.mark.parametrize(
    "edges",
    [
        5, [], {"nobody": ["plan"]}, {"join": ["nobody"]}, {"join": "plan"}, {"join": [5]}, {"join": ["join"]},
        {"new": ["plan"]}, {5: ["plan"]}, {"join": [["plan"]]}, {"join": None, "nobody": None},
    ],
)  # fmt: skip
def test_bad_parents_are_refused_and_nothing_is_stored(lite, edges):
    lite.bot("b1")
    job = lite.job({"plan": [], "join": ["plan"]})
    lite.take("b1")
    with pytest.raises(InvalidRequest):
        lite.extend(job, {}, raw=requires(edges, {"new": []}))
    assert (lite.job_row(job).num_tasks, lite.count("task_edges")) == (2, 1)


def test_problems_of_tasks_and_of_parents_come_together(lite):
    job = lite.job({"plan": [], "join": ["plan"]})
    with pytest.raises(InvalidRequest) as refused:
        lite.extend(job, {}, raw=requires({"join": ["nobody"]}, {"new": []}, priority=999))
    assert sorted(problem.path for problem in refused.value.problems) == ["requires.join[0]", "tasks.new.task.priority"]


def test_an_extended_fan_in_waits_again_when_the_job_runs_again(w, fan):
    w.extend(fan, {}, raw=requires({"join": ["p1"]}, {"p1": ["plan"]}))
    w.finish(w.runs["plan"])
    w.work("b1")
    w.rerun(fan["plan"], force=True, cascade=True)
    assert (w.states(fan)["join"], w.task(fan["join"]).num_succeeded_parents) == ("WAITING", 0)
    run = w.take("b1")
    assert w.extend(fan, {}, raw=requires({"join": ["p1"]}, {"p1": ["plan"]})).num_new == 0
    w.finish(run)
    assert [fan.label(task) for task in w.work("b1")] == ["p1", "join"]
