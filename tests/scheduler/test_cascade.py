"""Running a task again with all that lies behind it."""

from __future__ import annotations

from random import Random

import pytest

from myrmidon.model.errors import WrongState
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import cancel, cascade, hold, maintenance, rerun, shared_values
from myrmidon.store.tables import chunked_work, edge
from tests.builders import a_function, output_of, returned

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_cascade_puts_everything_behind_back_to_waiting(w):
    job = w.job(CHAIN)
    w.work("b1")
    w.rerun(job["a"], force=True, cascade=True)
    assert w.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}
    assert [job.label(task) for task in w.work("b1")] == ["a", "b", "c"]
    assert w.job_state(job) == "SUCCEEDED"


def test_a_cascade_counts_exactly_in_a_diamond(w):
    job = w.job({"a": [], "b": ["a"], "c": [], "d": ["b", "c"]})
    w.work("b1")
    w.rerun(job["b"], force=True, cascade=True)
    assert (w.states(job)["d"], w.task(job["d"]).num_succeeded_parents) == ("WAITING", 1)
    w.work("b1")
    assert w.job_state(job) == "SUCCEEDED"


def test_a_cascade_takes_a_ready_child_back(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1")
    w.rerun(job["a"], force=True, cascade=True)
    assert (w.states(job)["b"], w.count("task_to_run")) == ("WAITING", 1)


def test_a_cascade_over_a_forced_child_makes_it_wait_again(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do_one("b1", 1)
    w.rerun(job["b"], force=True)
    w.do_one("b1")
    w.rerun(job["a"], cascade=True)
    assert w.states(job) == {"a": "READY", "b": "WAITING"}


def test_what_a_cascade_puts_back_waits_for_a_parent_that_was_already_running_again(w):
    job = w.job(CHAIN)
    w.work("b1")
    w.rerun(job["b"], force=True)
    run = w.take("b1")
    w.rerun(job["a"], force=True, cascade=True)
    assert (w.states(job)["c"], w.task(job["c"]).num_succeeded_parents) == ("WAITING", 0)
    w.finish(run)
    w.work("b1")
    assert (set(w.states(job).values()), w.job_state(job)) == ({"SUCCEEDED"}, "SUCCEEDED")


def test_what_a_cascade_puts_back_waits_for_a_parent_that_is_held(w):
    job = w.job(CHAIN)
    w.work("b1")
    w.rerun(job["b"], force=True)
    w.do(hold.hold, job["b"])
    w.rerun(job["a"], force=True, cascade=True)
    assert (w.states(job)["c"], w.task(job["c"]).num_succeeded_parents) == ("WAITING", 0)
    w.do(hold.release, job["b"])
    assert [job.label(task) for task in w.work("b1")] == ["a", "b", "c"]
    assert w.job_state(job) == "SUCCEEDED"


def test_a_cascade_takes_values_back(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function([output_of("a")], ["int64"])}}
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.work("b1", outputs=returned(b"old"))
    w.rerun(job["a"], force=True, cascade=True)
    w.do_one("b1", outputs=returned(b"new"))
    assert [value.payload for value in w.take("b1").inputs] == [b"new"]


def test_a_cascade_drops_the_shared_values_that_were_made(w):
    made = a_function([], [{"type": "int64", "shared": True}])
    job = w.job({"a": [], "b": []}, nodes={"a": {"task": made}, "b": {"task": a_function([output_of("a")])}})
    w.do_one("b1", outputs=returned(b"old"))
    w.rerun(job["a"], force=True, cascade=True)
    assert w.count("shared_values") == 0
    w.do_one("b1", outputs=returned(b"new"))
    assert [value.payload for value in w.take("b1").inputs] == [b"new"]


def test_a_shared_value_that_others_reference_outlives_a_cascade(w):
    job = w.job({"a": []}, nodes={"a": {"task": a_function([], [{"type": "int64", "shared": True}])}})
    w.do_one("b1", outputs=returned(b"old"))
    [value] = w.do(shared_values.list_values, JobOwner(w.group.id, job.id))
    w.do(shared_values.ref_value, GroupOwner(w.group.id), value.id)
    w.rerun(job["a"], force=True, cascade=True)
    assert w.column("SELECT id FROM shared_values") == [value.id]


# ---------------------------------------------------------------- beside running tasks


@pytest.fixture
def beside(w):
    """A chain whose second task runs; the first one runs again."""
    w.bot("b2")
    w.chain = w.job(CHAIN, retries=1)
    w.do_one("b1")
    w.old = w.take("b2")
    return w


def end(w, run, how):
    if how == "lost":
        w.lose("b2")
    elif how == "fault":
        w.fault(run, "reboot")
    else:
        w.finish(run, {"success": 0, "failure": 1, "killed": -9}[how])


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("how", ["success", "failure", "killed", "fault", "lost"])
def test_a_running_child_waits_again_when_its_run_has_ended(beside, how, kill):
    w, job = beside, beside.chain
    w.rerun(job["a"], force=True, cascade=True, kill=kill)
    assert w.states(job) == {"a": "READY", "b": "RUNNING", "c": "WAITING"}
    assert w.beat("b2", w.old) == ([(job["b"], 1)] if kill else [])
    end(w, w.old, how)
    assert w.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}
    assert [job.label(task) for task in w.work("b1")] == ["a", "b", "c"]
    assert (w.job_state(job), w.task(job["b"]).instance_id, w.task(job["b"]).num_retries) == ("SUCCEEDED", 2, 0)


def test_the_run_of_an_earlier_generation_neither_wins_nor_writes_outputs(w):
    nodes = {"a": {"task": a_function([], ["int64"])}, "b": {"task": a_function([output_of("a")], ["int64"])}}
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"1"))
    old = w.take("b1")
    w.rerun(job["a"], force=True, cascade=True)
    w.finish(old, outputs=returned(b"of 1"))
    [run] = w.runs(job["b"])
    assert (run.state, run.reason, run.exit_code, w.task(job["b"]).instance_id) == ("CANCELLED", "superseded", 0, None)
    assert w.column('SELECT COUNT(*) FROM "values" WHERE size IS NOT NULL') == [0]


def test_a_running_child_starts_at_once_if_the_new_result_is_there_before_its_run_has_ended(beside):
    w, job = beside, beside.chain
    w.rerun(job["a"], force=True, cascade=True)
    w.do_one("b1")
    assert w.states(job) == {"a": "SUCCEEDED", "b": "RUNNING", "c": "WAITING"}
    w.finish(w.old)
    assert w.states(job) == {"a": "SUCCEEDED", "b": "READY", "c": "WAITING"}


@pytest.mark.parametrize("kill", [False, True])
def test_a_task_that_is_cancelled_after_the_cascade_does_not_wait_again(beside, kill):
    w, job = beside, beside.chain
    w.rerun(job["a"], force=True, cascade=True, kill=kill)
    w.cancel(job["b"])
    assert w.beat("b2", w.old) == [(job["b"], 1)]
    w.finish(w.old, -9)
    assert (w.states(job)["b"], w.task(job["b"]).reason) == ("CANCELLED", "cancelled")


def test_a_task_that_was_being_killed_before_the_cascade_waits_again(beside):
    w, job = beside, beside.chain
    w.cancel(job["b"])
    w.rerun(job["a"], force=True, cascade=True)
    w.finish(w.old, -9)
    assert w.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}


def test_every_instance_of_an_earlier_generation_ends_without_a_verdict(w):
    w.bot("b2")
    job = w.job(CHAIN, nodes={"b": {"max_instances": 2, "soft_timeout_s": 60}})
    w.do_one("b1")
    first = w.take("b1")
    w.advance(60)
    w.beat("b1")
    w.sweep()
    second = w.take("b2")
    w.rerun(job["a"], force=True, cascade=True)
    w.finish(second)
    assert (w.states(job)["b"], w.task(job["b"]).bot_id) == ("RUNNING", "b1")
    w.finish(first)
    assert (w.states(job)["b"], w.task(job["b"]).bot_id) == ("WAITING", None)


def test_a_right_that_was_granted_to_a_running_child_is_taken_back(w):
    w.bot("b2")
    job = w.job(CHAIN, nodes={"b": {"max_instances": 2, "soft_timeout_s": 60}})
    w.do_one("b1")
    w.take("b1")
    w.advance(60)
    w.beat("b1")
    w.sweep()
    w.rerun(job["a"], force=True, cascade=True)
    assert [run.task_id for run in w.claim("b2", 5)] == [job["a"]]


def test_a_running_child_gets_no_further_instance_after_a_cascade(w):
    w.bot("b2")
    job = w.job(CHAIN, nodes={"b": {"max_instances": 2, "soft_timeout_s": 60}})
    w.do_one("b1")
    w.take("b1")
    w.rerun(job["a"], force=True, cascade=True)
    w.take("b2")
    w.advance(60)
    w.beat("b1")
    w.beat("b2")
    w.sweep()
    assert w.count("task_to_run") == 0


def test_a_forced_child_that_is_held_waits_for_its_parents_after_a_cascade(w):
    job = w.job(CHAIN)
    w.do_one("b1", 1)
    w.rerun(job["b"], force=True)
    w.do(hold.hold, job["b"])
    w.rerun(job["a"], cascade=True)
    w.do(hold.release, job["b"])
    assert w.states(job) == {"a": "READY", "b": "WAITING", "c": "WAITING"}


# ---------------------------------------------------------------- large ones


WIDE = {"a": [], **{f"m{i}": ["a"] for i in range(4)}, **{f"z{i}": [f"m{i}"] for i in range(4)}}


@pytest.fixture
def large(w, small_chunks):
    """A job that has succeeded, and whose first task runs again; nothing of the cascade is done yet."""
    w.bot("b2")
    w.wide = w.job(WIDE)
    w.carry()
    w.work("b1")
    w.rerun(w.wide["a"], force=True, cascade=True)
    return w


def step(w):
    """Carry out one chunk of the oldest decision."""
    [first, *_] = w.read(chunked_work.pending)
    w.do(maintenance.run_step, first.turn)


def test_a_large_cascade_is_carried_out_in_chunks_while_the_job_waits(large):
    w, job = large, large.wide
    assert (w.job_state(job), w.states(job)["a"]) == ("PENDING_RETRY", "WAITING")
    while w.job_state(job) == "PENDING_RETRY":
        w.advance(1)
        step(w)
        assert len(w.column("SELECT id FROM task_results WHERE modified_at = :now", now=w.now)) <= 3
    w.carry()
    assert w.states(job) == {"a": "READY", **{label: "WAITING" for label in WIDE if label != "a"}}
    done = [job.label(task) for task in w.work("b1")]
    assert (len(done), done[0], w.job_state(job)) == (9, "a", "SUCCEEDED")


def test_a_sweep_leaves_a_job_alone_that_waits_for_a_cascade(large):
    assert large.job_row(large.wide).due_at is None
    large.sweep()
    row = large.job_row(large.wide)
    assert (row.state, row.num_retries, large.states(large.wide)["a"]) == ("RUNNING", 0, "READY")


def test_nothing_becomes_ready_by_a_result_that_is_to_be_replaced(w, small_chunks):
    """The middle of a chain runs and ends while the cascade is under way, after its child was reset."""
    w.bot("b2")
    job = w.job({"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "e": ["d"], "f": ["e"]})
    w.carry()
    w.work("b1")
    w.rerun(job["b"], force=True)
    run = w.take("b2")
    w.rerun(job["a"], force=True, cascade=True)
    step(w)
    w.finish(run)
    assert (w.states(job)["b"], w.states(job)["c"]) == ("SUCCEEDED", "SUCCEEDED")
    w.carry()
    assert w.states(job) == {"a": "READY", **dict.fromkeys("bcdef", "WAITING")}
    assert [job.label(task) for task in w.work("b1")] == list("abcdef")


def test_a_child_that_a_bot_claims_while_the_cascade_is_under_way_waits_again(w, small_chunks):
    job = w.job(WIDE)
    w.carry()
    w.do_one("b1")
    w.carry()
    w.rerun(job["a"], force=True, cascade=True)
    runs = w.claim("b1", 4)
    assert runs
    w.carry()
    for run in runs:
        w.finish(run)
    assert w.states(job) == {"a": "READY", **{label: "WAITING" for label in WIDE if label != "a"}}


OTHER_CHANGES = {
    "extend": lambda w, job: w.extend(job, {"new": ["a"]}),
    "rerun": lambda w, job: w.rerun(job["z1"], force=True),
    "rerun_job": lambda w, job: w.do(rerun.rerun_job, job.id, full=True),
}


@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_a_job_in_a_cascade_accepts_no_other_change(large, change):
    with pytest.raises(WrongState, match="try again in a moment"):
        OTHER_CHANGES[change](large, large.wide)
    large.carry()
    assert large.job_state(large.wide) == "RUNNING"


def test_a_job_that_is_cancelled_in_a_cascade_stays_cancelled(large):
    w, job = large, large.wide
    step(w)
    w.do(cancel.cancel_job, job.id)
    w.carry()
    assert (w.job_state(job), w.states(job)["a"], w.job_row(job).num_chunked_work) == ("CANCELLED", "CANCELLED", 0)


def test_a_held_task_that_is_released_in_a_cascade_waits_for_its_end(w, small_chunks):
    job = w.job({**WIDE, "h": []}, nodes={"h": {"hold": True}})
    w.carry()
    w.work("b1")
    w.rerun(job["a"], force=True, cascade=True)
    w.do(hold.release, job["h"])
    assert w.states(job)["h"] == "WAITING"
    w.carry()
    assert w.states(job)["h"] == "READY"


def test_a_failure_beside_a_cascade_blocks_the_job_when_it_goes_on(w, small_chunks):
    job = w.job({**WIDE, "other": []}, nodes={"other": {"priority": 200}})
    w.carry()
    w.do_one("b1")
    w.carry()
    while (run := w.take("b1")).task_id != job["other"]:
        w.finish(run)
        w.carry()
    w.rerun(job["a"], force=True, cascade=True)
    w.fail(run)
    assert w.job_row(job).blocked_by is None
    w.carry()
    assert (w.job_row(job).blocked_by, w.job_row(job).view) == (job["other"], "blocked")


def test_the_edges_below_a_task_are_found_at_any_depth_and_no_others_are_read(db):
    chain = [(number, number + 1) for number in range(1, 2_000)]
    diamond = [(5_000, 5_001), (5_000, 5_002), (5_001, 5_003), (5_002, 5_003)]
    db.write(lambda tx: edge.insert(tx, [*chain, *diamond]))
    found = db.read(lambda tx: [sorted(edge.below(tx, task)) for task in (1, 1_998, 2_000, 5_000, 5_001)])
    assert found == [chain, chain[-2:], [], diamond, [(5_001, 5_003)]]


@pytest.mark.parametrize("seed", range(20))
def test_a_cascade_is_planned_children_first_in_pages_of_limited_size(seed):
    rng = Random(seed)
    n, size = rng.randrange(2, 40), rng.randrange(1, 8)
    reached = {0}
    edges = []
    for parent, child in sorted(
        {(rng.randrange(child), child) for child in range(1, n) for _ in range(rng.randrange(4))}, key=lambda e: e[1]
    ):
        if parent in reached:
            reached.add(child)
            edges.append((parent, child))
    pages = cascade.plan_pages(edges, 0, size)
    order = [task for page in pages for task in page.tasks]
    assert sorted(order) == sorted(reached - {0})
    number = {task: i for i, page in enumerate(pages) for task in page.tasks}
    for parent, child in edges:
        assert parent in pages[number[child]].parents
        assert not parent or number[parent] >= number[child]
    for page in pages:
        inside = [edge for edge in edges if edge[1] in page.tasks]
        assert len(page.tasks) <= size
        assert len(inside) <= size or len(page.tasks) == 1
