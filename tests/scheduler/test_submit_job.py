"""Submitting graphs: checks, staging, keys and the first tasks."""

from __future__ import annotations

import pytest
from msgspec import json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable, UnknownValue, WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import cancel, hold, rerun, shared_values, submit_job
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.tables import request_key, shared_value, task_request
from tests.builders import RULES, a_function, a_graph, a_task, blind_once, constant, inline, output_of, returned, shared
from tests.invariants import check, check_settled
from tests.model.requests import nested


def problems(w, raw):
    with pytest.raises(InvalidRequest) as refused:
        w.job_raw(raw)
    assert (w.count("jobs"), w.count("task_results")) == (0, 0)
    return {(problem.path, problem.code) for problem in refused.value.problems}


def test_only_tasks_without_parents_start(world):
    job = world.job({"a": [], "b": ["a"], "c": ["b"]})
    assert world.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}


def test_a_job_knows_where_it_begins_and_ends(world):
    job = world.job({"a": [], "b": ["a"], "c": ["a"], "d": []})
    assert set(world.column("SELECT task_id FROM input_tasks")) == {job["a"], job["d"]}
    assert set(world.column("SELECT task_id FROM output_tasks")) == {job["b"], job["c"], job["d"]}


@pytest.mark.parametrize(("num_tasks", "num_transactions"), [(1, 1), (1_000, 1), (1_001, 12), (2_000, 21)])
def test_a_graph_of_up_to_1000_tasks_is_one_transaction_and_a_larger_one_many_short_ones(
    lite, num_tasks: int, num_transactions: int
):
    raw = a_graph({f"t{number}": [] for number in range(num_tasks)})
    draft = draft_job(raw, now=lite.now, ids=lite.ids)
    assert len(list(submit_job.submit_steps(lite.group.id, draft, now=lite.now, ids=lite.ids))) == num_transactions


def test_a_held_node_waits(world):
    job = world.job({"a": [], "b": []}, nodes={"a": {"hold": True}})
    assert world.states(job) == {"a": "WAITING", "b": "READY"}
    assert world.job_row(job).num_active == 2


def test_two_data_edges_between_the_same_tasks_are_one_edge(world):
    raw = a_graph({}, nodes={})
    raw["tasks"] = {
        "a": {"task": a_function(outputs=["int64", "int64"])},
        "b": {"requires": ["a"], "task": a_function([output_of("a", 0), output_of("a", 1)])},
    }
    job = world.job_raw(raw)
    assert (world.task(job["b"]).num_parents, world.count("task_edges")) == (1, 1)


def test_constants_and_outputs_may_be_mixed(world):
    world.bot("b1")
    nodes = {"a": {"task": a_function(outputs=["int64"])}}
    nodes["b"] = {"task": a_function([constant(b"\x07"), output_of("a")])}
    world.job({"a": [], "b": []}, nodes=nodes)
    world.do_one("b1", outputs=returned(b"\x09"))
    assert [value.payload for value in world.take("b1").inputs] == [b"\x07", b"\x09"]


def test_subs_become_the_ids_of_tasks_and_no_edges(world):
    command = ["fetch", {"$subs": "taskId:a"}]
    job = world.job({"a": [], "b": []}, nodes={"b": {"command": command}})
    given = json.decode(world.read(task_request.slices, [job["b"]])[job["b"]][0].properties)
    assert given["command"] == ["fetch", show_task(job["a"])]
    assert world.state(job["b"]) == "READY"


def test_a_graph_with_every_kind_of_mistake_shows_all_of_them(lite):
    raw = a_graph({"a": ["nobody"], "b": ["b"], "c": ["d"], "d": ["c"], "e": ["a", "a"]}, nodes={"a": {"reruns": -1}})
    codes = {code for _, code in problems(lite, raw)}
    assert {"unknown_label", "self_dependency", "cycle", "duplicate"} <= codes
    assert len(codes) >= 5


@pytest.mark.parametrize("tasks", [{}, [], None, 5, "x", {"a": None}, {"a": 5}, {"x" * 256: {"task": a_task()}}])
def test_a_document_without_a_graph_is_refused(lite, tasks):
    assert problems(lite, {"name": "x", "tasks": tasks})


def test_the_types_of_an_edge_must_be_equal(lite):
    raw = a_graph({"a": [], "b": []}, nodes={"a": {"task": a_function(outputs=["int64"])}})
    raw["tasks"]["b"]["task"] = a_function([output_of("a", of="string"), output_of("a", 1)])
    assert {code for _, code in problems(lite, raw)} == {"type_mismatch", "position"}


def test_an_unknown_label_in_subs_is_refused(lite):
    raw = a_graph({"a": []}, command=["x", {"$subs": "taskId:nobody"}])
    assert {code for _, code in problems(lite, raw)} == {"unknown_label"}


def test_deep_json_in_a_graph_is_refused(lite):
    assert problems(lite, a_graph({"a": []}, nodes={"a": {"task": {"slices": nested(50_000)}}}))


def test_a_deadline_of_a_node_cannot_outlast_its_job(world):
    job = world.job({"a": [], "b": []}, deadline_s=100, nodes={"a": {"deadline_s": 500}, "b": {"deadline_s": 50}})
    rows = world.read(task_request.read, sorted(job.ids.values()))
    assert [(rows[job[x]].deadline_at - world.now) // 1_000_000 for x in "ab"] == [100, 50]


def test_a_shared_input_is_referenced_by_the_job(world):
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    job = world.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})
    assert world.read(shared_value.of_job, job.id) == [value.id]


def test_a_shared_value_of_another_group_is_refused(world):
    other = world.new_group("other")
    value = world.do(shared_values.create_value, GroupOwner(other.id), "int64", inline())
    with pytest.raises(UnknownValue):
        world.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})
    assert world.count("jobs") == 0


def test_a_shared_value_of_another_type_is_refused(world):
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "string", inline())
    with pytest.raises(InvalidRequest):
        world.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})


# ---------------------------------------------------------------- keys and names


def test_the_same_key_gives_the_same_job(world):
    first = world.job({"a": []}, key="k")
    again = world.job({"a": []}, key="k")
    assert (again.answer.repeated, again.id, again.ids) == (True, first.id, first.ids)


def test_the_same_key_with_another_graph_is_refused(world):
    world.job({"a": []}, key="k")
    with pytest.raises(Conflict):
        world.job({"b": []}, key="k")


def test_a_changed_graph_under_an_external_id_is_told_how_to_go_on(world):
    world.job({"a": []}, key="PUT job nightly", external_id="nightly")
    with pytest.raises(Conflict, match=r"the job nightly has another document; .* --resume"):
        world.job({"b": []}, key="PUT job nightly", external_id="nightly")


def test_an_external_id_names_one_job(world):
    world.job({"a": []}, external_id="nightly")
    with pytest.raises(Conflict):
        world.job({"a": []}, external_id="nightly")


def test_a_task_of_a_job_cannot_take_an_external_id_that_is_used(world):
    world.submit(external_id="x")
    with pytest.raises(Conflict):
        world.job({"a": []}, nodes={"a": {"external_id": "x"}})
    assert world.count("jobs") == 0


def draft(w, edges, **given):
    return draft_job(a_graph(edges, **given), now=w.now, ids=w.ids, rules=RULES)


def write_twice(w):
    """Every write is done, then done again as if nobody knew."""

    def write(fn):
        w.db.write(fn)

        def again(tx):
            tx.attempt = 2
            return fn(tx)

        return w.db.write(again)

    return write


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_whose_commits_are_in_doubt_is_stored_once(world, small_chunks, n, key):
    edges = {str(i): [str(i - 1)] if i else [] for i in range(n)}
    made = draft_job(a_graph(edges), now=world.now, ids=world.ids, request_key=key)
    answer = submit_job.submit_job(write_twice(world), world.group.id, made, now=world.now, ids=world.ids)
    world.carry()
    assert (answer.job_id, answer.task_ids, world.count("task_results")) == (made.job_id, made.task_ids, n)


# ---------------------------------------------------------------- staging


def test_a_large_graph_is_staged_and_flipped_in(world, small_chunks):
    edges = {str(i): [str(i - 1)] if i % 4 else [] for i in range(10)}
    job = world.job(edges, nodes={"7": {"hold": True}})
    assert world.job_row(job).num_tasks == 10
    world.carry()
    assert [x for x, state in world.states(job).items() if state == "READY"] == ["0", "4", "8"]


def test_a_large_graph_of_functions_hands_values_over_between_its_chunks(world, small_chunks):
    world.bot("b1")
    edges: dict[str, list[str]] = {str(i): [] for i in range(7)}
    nodes = {str(i): {"task": a_function([output_of(str(i - 1))] if i else [], ["int64"])} for i in range(7)}
    job = world.job(edges, nodes=nodes)
    world.carry()
    world.work("b1", outputs=returned(b"\x2a"))
    assert world.job_state(job) == "SUCCEEDED"


def half_submitted(w, n=7, **given):
    """A large graph whose submitter dies after the second chunk."""
    made = draft(w, {str(i): [] for i in range(n)}, **given)
    left = iter([1, 1])

    def write(fn):
        if next(left, None) is None:
            raise StoreUnavailable("gone")
        return w.db.write(fn)

    with pytest.raises(StoreUnavailable):
        submit_job.submit_job(write, w.group.id, made, now=w.now, ids=w.ids, rules=w.rules)
    return made


def test_a_graph_that_is_only_half_there_is_seen_by_nobody(world, small_chunks):
    world.bot("b1")
    half_submitted(world)
    check(world.db)
    assert (world.claim("b1"), world.count("outbox")) == ([], 0)


def test_a_graph_that_never_came_whole_is_removed(world, small_chunks):
    half_submitted(world)
    world.removed = True
    world.advance(3601)
    world.sweep()
    assert [world.count(t) for t in ("jobs", "task_results", "task_requests", "task_edges", "chunked_work")] == [0] * 5


def test_a_staged_task_past_its_deadline_stays_unseen(world, small_chunks):
    half_submitted(world, deadline_s=5)
    world.advance(10)
    world.sweep()
    check_settled_but_staged(world)


def check_settled_but_staged(w):
    check(w.db)
    assert w.count("outbox") == 0


def test_a_staged_task_past_its_deadline_expires_once_its_job_is_there(world, small_chunks):
    edges = {"0": [], **{str(i): ["0"] for i in range(1, 7)}}
    made = draft(world, edges, nodes={"1": {"deadline_s": 5}})
    writes = iter(range(4))

    def write(fn):
        if next(writes) == 2:
            world.advance(10)
            world.sweep()
        return world.db.write(fn)

    submit_job.submit_job(write, world.group.id, made, now=world.now, ids=world.ids, rules=world.rules)
    world.carry()
    world.sweep()
    assert [world.state(made.task_ids[label]) for label in "012"] == ["READY", "EXPIRED", "WAITING"]


def test_a_mass_cancel_does_not_see_a_graph_that_is_only_half_there(world, small_chunks):
    half_submitted(world)
    world.do(cancel.cancel_tagged, ["pool:default"], group_id=world.group.id)
    world.carry()
    check_settled_but_staged(world)


@pytest.mark.parametrize("verb", [rerun.rerun, hold.hold, hold.release])
def test_the_tasks_of_a_graph_that_is_only_half_there_do_not_exist_for_users(world, small_chunks, verb):
    made = half_submitted(world)
    assert not world.cancel(made.task_ids["0"])[0].found
    with pytest.raises(NotFound):
        world.do(verb, made.task_ids["0"])
    check_settled_but_staged(world)


def test_a_large_graph_that_comes_after_its_removal_is_refused(world, small_chunks):
    world.removed = True
    made = draft(world, {str(i): [] for i in range(7)})
    writes = iter(range(3))

    def write(fn):
        if next(writes) == 2:
            world.advance(3601)
            world.sweep()
        return world.db.write(fn)

    with pytest.raises(WrongState):
        submit_job.submit_job(write, world.group.id, made, now=world.now, ids=world.ids, rules=world.rules)
    assert world.count("task_results") == 0


def test_a_large_graph_removed_before_its_flip_is_refused(world, small_chunks):
    world.removed = True
    made = draft(world, {str(i): [] for i in range(4)})
    writes = iter(range(3))

    def write(fn):
        if next(writes) == 2:
            world.advance(3601)
            world.sweep()
        return world.db.write(fn)

    with pytest.raises(WrongState):
        submit_job.submit_job(write, world.group.id, made, now=world.now, ids=world.ids, rules=world.rules)


def test_a_large_graph_repeated_by_its_key_is_not_staged_again(world, small_chunks):
    edges: dict[str, list[str]] = {str(i): [] for i in range(7)}
    first = world.job(edges, key="k")
    again = world.job(edges, key="k")
    assert (again.id, again.answer.repeated, world.count("jobs")) == (first.id, True, 1)


def test_another_server_that_was_faster_with_the_key_of_a_job_is_believed(world, monkeypatch):
    first = world.job({"a": []}, key="k")
    blind_once(monkeypatch, request_key, "read", {})
    again = world.job({"a": []}, key="k")
    assert (again.id, again.answer.repeated) == (first.id, True)


def test_a_graph_for_a_group_that_does_not_exist_is_refused(world):
    made = draft(world, {"a": []})
    with pytest.raises(NotFound):
        submit_job.submit_job(world.db.write, 12345, made, now=world.now, ids=world.ids)


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_bad_key_of_a_job_is_refused(lite, key):
    with pytest.raises(InvalidRequest):
        lite.job({"a": []}, key=key)


def test_a_chain_of_three_thousand_tasks_is_settled(lite):
    edges = {str(i): [str(i - 1)] if i else [] for i in range(3000)}
    job = lite.job(edges)
    lite.sweep()
    check_settled(lite.db, lite.now)
    assert lite.job_row(job).num_tasks == 3000
