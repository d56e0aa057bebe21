"""Gathered inputs: one input of a function that is composed of outputs of many tasks."""

from __future__ import annotations

from hashlib import sha256

import pytest

from myrmidon.model.errors import InvalidRequest, WrongState
from myrmidon.scheduler import claim, rerun, retention
from tests.builders import (
    a_function,
    a_graph,
    a_part,
    constant,
    finished,
    gathered,
    output_of,
    returned,
    shared_output,
)


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def producer(*outputs):
    return {"task": a_function(outputs=outputs or ["int64"])}


def consumer(*inputs, **given):
    return {"task": a_function(inputs=inputs, outputs=["int64"], **given)}


def fan_in(*labels, **given):
    nodes = {label: producer() for label in labels}
    return a_graph(dict.fromkeys([*labels, "join"], ()), {**nodes, "join": consumer(gathered(*labels, **given))})


def contents(run, position=0):
    return [part.payload for part in run.inputs[position].parts]


def test_a_function_gets_the_parts_in_the_order_of_the_request(w):
    job = w.job_raw(fan_in("c", "a", "b"))
    assert w.states(job)["join"] == "WAITING"
    runs = w.claim("b1", 3)
    w.report(*(finished(run, outputs=returned(job.label(run.task_id).encode())) for run in runs))
    run = w.take("b1")
    [given] = run.inputs
    assert (run.task_id, given.type, given.payload, contents(run)) == (
        job["join"],
        "List<int64>",
        b"",
        [b"c", b"a", b"b"],
    )
    w.finish(run, outputs=returned(b"\x06"))
    assert w.job_state(job) == "SUCCEEDED"


def test_a_shape_says_where_the_parts_go(w):
    shape = b"\x92\xd6\x01\x00\x00\x00\x01\xd6\x01\x00\x00\x00\x00"
    w.job_raw(fan_in("a", shape=shape))
    w.do_one("b1", outputs=returned(b"\x07"))
    run = w.take("b1")
    assert (run.inputs[0].payload, contents(run)) == (shape, [b"\x07"])


def test_one_task_may_give_several_parts_and_the_same_part_twice(w):
    nodes = {"a": producer("int64", "int64"), "join": consumer(gathered("a:1", "a:0", "a:1"))}
    job = w.job_raw(a_graph({"a": [], "join": []}, nodes))
    assert w.task(job["join"]).num_parents == 1
    w.do_one("b1", outputs=returned(b"\x00", b"\x01"))
    assert contents(w.take("b1")) == [b"\x01", b"\x00", b"\x01"]


def test_shared_outputs_are_parts_too_and_stay_while_their_job_names_them(w):
    nodes = {"a": producer(shared_output()), "b": producer(), "join": consumer(gathered("a", "b"))}
    job = w.job_raw(a_graph({"a": [], "b": [], "join": []}, nodes))
    for _ in range(2):
        w.do_one("b1", outputs=returned(b"\x05"))
    assert contents(w.take("b1")) == [b"\x05", b"\x05"]
    assert w.count("task_input_parts") == 2
    assert w.column("SELECT shared_value_id FROM task_input_parts WHERE part = 0") != [None]
    assert w.state(job["join"]) == "RUNNING"


def test_an_input_without_parts_is_an_empty_list(w):
    w.job_raw(a_graph({"join": []}, {"join": consumer(gathered())}))
    [given] = w.take("b1").inputs
    assert (given.parts, given.payload) == ([], b"")


def test_gathered_inputs_and_constants_keep_their_positions(w):
    nodes = {"a": producer(), "join": consumer(constant(b"\x01"), gathered("a"), output_of("a"), constant(b"\x02"))}
    w.job_raw(a_graph({"a": [], "join": []}, nodes))
    w.do_one("b1", outputs=returned(b"\x09"))
    run = w.take("b1")
    assert [given.payload for given in run.inputs] == [b"\x01", b"", b"\x09", b"\x02"]
    assert [given.parts is not None for given in run.inputs] == [False, True, False, False]


@pytest.mark.parametrize(
    ("given", "path", "code"),
    [
        (gathered("a:1"), "tasks.join.task.inputs[0].parts[0].position", "position"),
        (gathered("a", of="string"), "tasks.join.task.inputs[0].parts[0].type", "type_mismatch"),
        (gathered("x"), "tasks.join.task.inputs[0].parts[0].label", "unknown_label"),
        (gathered("join"), "tasks.join.task.inputs[0].parts[0].label", "self_dependency"),
        ({**gathered("a"), "shape": {}}, "tasks.join.task.inputs[0].shape", "contradiction"),
        ({**gathered("a"), "parts": [7]}, "tasks.join.task.inputs[0].parts[0]", "type"),
    ],
)
def test_wrong_parts_are_refused(lite, given, path, code):
    with pytest.raises(InvalidRequest) as refused:
        lite.job_raw(a_graph({"a": [], "join": []}, {"a": producer(), "join": consumer(given)}))
    assert (path, code) in [(problem.path, problem.code) for problem in refused.value.problems]


@pytest.mark.parametrize("of", ["double", "Optional<int64>", "Optional<double>"])
def test_an_output_feeds_an_input_of_a_type_that_it_fits(lite, of):
    nodes = {"a": producer(), "b": consumer(output_of("a", of=of)), "c": consumer(gathered("a", of=of))}
    job = lite.job_raw(a_graph({"a": [], "b": [], "c": []}, nodes))
    assert lite.task(job["b"]).num_parents == lite.task(job["c"]).num_parents == 1


@pytest.mark.one_database
def test_a_large_fan_in_is_read_with_few_statements(w):
    labels = [f"part-{number}" for number in range(1200)]
    job = w.job_raw(fan_in(*labels))
    w.carry()
    w.work("b1", outputs=returned(b"\x01"))
    assert w.job_state(job) == "SUCCEEDED"
    assert (w.count("task_input_parts"), w.task(job["join"]).num_parents) == (1200, 1200)


def test_a_claim_takes_no_more_parts_than_fit_into_one_response(w, monkeypatch):
    monkeypatch.setattr(claim, "MAX_BYTES", 4096)
    nodes = {"a": producer(), **{f"j{n}": consumer(gathered("a", "a")) for n in range(3)}}
    w.job_raw(a_graph(dict.fromkeys(nodes, ()), nodes))
    w.do_one("b1", outputs=returned(b"\x01"))
    assert [len(w.claim("b1", 9)) for _ in range(3)] == [1, 1, 1]


# ---------------------------------------------------------------- dedupe, reruns, deletion


def gather_twice(w, first, second, *, shapes=(None, None)):
    """Two jobs whose joins gather these bytes; the second job."""
    for number, (content, shape) in enumerate(zip((first, second), shapes, strict=True)):
        labels = [f"p{n}" for n in range(len(content))]
        nodes = {label: producer() for label in labels}
        nodes["join"] = consumer(gathered(*labels, shape=shape), idempotent=True)
        job = w.job_raw(a_graph(dict.fromkeys(nodes, ()), nodes))
        runs = w.claim("b1", len(content))
        w.report(
            *(finished(r, outputs=returned(content[labels.index(job.label(r.task_id))])) for r in runs),
        )
        if number == 0:
            w.do_one("b1", outputs=returned(b"\x2a"))
    return job


def test_equal_parts_are_answered_by_the_earlier_result(w):
    job = gather_twice(w, [b"\x01", b"\x02"], [b"\x01", b"\x02"])
    assert (w.state(job["join"]), w.task(job["join"]).reason) == ("SUCCEEDED", "deduped")
    assert w.column('SELECT v.payload FROM task_outputs o JOIN "values" v ON v.id = o.value_id WHERE o.task_id = :id',
                    id=job["join"]) == [b"\x2a"]  # fmt: skip


@pytest.mark.parametrize(
    ("second", "shapes"),
    [
        ([b"\x02", b"\x01"], (None, None)),
        ([b"\x01"], (None, None)),
        ([b"\x01", b"\x02", b"\x02"], (None, None)),
        ([b"\x01", b"\x02"], (None, b"\x90")),
    ],
)
def test_other_parts_another_order_or_another_shape_run(w, second, shapes):
    job = gather_twice(w, [b"\x01", b"\x02"], second, shapes=shapes)
    assert w.state(job["join"]) == "READY"


def test_a_function_cannot_be_rerun_while_one_of_its_parts_is_missing(w):
    job = w.job_raw({**fan_in("a", "b"), "failure_policy": "continue"})
    first, second = w.claim("b1", 2)
    w.finish(first, outputs=returned(b"\x01"))
    w.fail(second)
    w.cancel(job["join"])
    with pytest.raises(WrongState, match="not produced"):
        w.rerun(job["join"], force=True)


def test_a_rerun_with_its_descendants_erases_the_parts_and_gathers_them_anew(w):
    job = w.job_raw(fan_in("a", "b"))
    w.work("b1", outputs=returned(b"\x01"))
    w.rerun(job["a"], force=True, cascade=True)
    assert w.state(job["join"]) == "WAITING"
    w.do_one("b1", outputs=returned(b"\x03"))
    run = w.take("b1")
    assert sorted(contents(run)) == [b"\x01", b"\x03"]


def test_a_full_rerun_of_a_job_gathers_everything_anew(w):
    job = w.job_raw(fan_in("a", "b"))
    w.work("b1", outputs=returned(b"\x01"))
    w.do(rerun.rerun_job, job.id, full=True)
    w.carry()
    assert w.column('SELECT COUNT(*) FROM "values" WHERE size IS NULL') == [3]
    w.work("b1", outputs=returned(b"\x02"))
    assert w.job_state(job) == "SUCCEEDED"


def test_deleting_the_job_deletes_its_parts_and_its_codes(w):
    raw = fan_in("a", "b")
    raw["tasks"]["join"]["task"]["function"]["code"] = w.store_file(sha256(b"zip").hexdigest())
    job = w.job_raw(raw)
    assert (w.count("task_input_parts"), w.count("job_codes")) == (2, 1)
    w.work("b1", outputs=returned(b"\x01"))
    w.removed = True
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.carry()
    assert (w.count("task_input_parts"), w.count("job_codes"), w.count("task_inputs")) == (0, 0, 0)


# ---------------------------------------------------------------- parts that are added


def mapped(w):
    """A running task, and a join that waits for it with an input to which parts can be added."""
    nodes = {"expand": {"task": a_function()}, "join": consumer(gathered())}
    job = w.job_raw(a_graph({"expand": [], "join": ["expand"]}, nodes))
    return job, w.take("b1")


def grow(w, job, run, labels, *, parts=None):
    given = {"join": {"0": [a_part(label) for label in labels] if parts is None else parts}}
    return w.extend(
        job,
        dict.fromkeys(labels, ()),
        nodes={label: producer() for label in labels},
        parts=given,
        by=run.task_id,
    )


def test_a_running_task_adds_the_parts_of_a_task_that_waits_for_it(w):
    job, run = mapped(w)
    assert grow(w, job, run, ["m0", "m1"]).num_new == 2
    grow(w, job, run, ["m2"])
    assert (w.task(job["join"]).num_parents, w.count("task_input_parts")) == (4, 3)
    w.finish(run)
    assert w.state(job["join"]) == "WAITING"
    runs = w.claim("b1", 3)
    w.report(*(finished(one, outputs=returned(job.label(one.task_id).encode())) for one in runs))
    assert contents(w.take("b1")) == [b"m0", b"m1", b"m2"]


def test_adding_the_same_parts_again_changes_nothing(w):
    job, run = mapped(w)
    grow(w, job, run, ["m0", "m1"])
    assert grow(w, job, run, ["m0", "m1"]).num_new == 0
    assert grow(w, job, run, ["m1", "m2"]).num_new == 1
    assert w.column("SELECT part FROM task_input_parts ORDER BY part") == [0, 1, 2]


def test_adding_the_same_parts_after_the_task_has_run_is_harmless(w):
    job, run = mapped(w)
    grow(w, job, run, ["m0"])
    w.finish(run)
    w.work("b1", outputs=returned(b"\x01"))
    assert grow(w, job, run, ["m0"]).num_new == 0


def test_parts_of_a_task_that_does_not_wait_for_the_caller_are_refused(w):
    nodes = {"expand": {"task": a_function()}, "other": {"task": a_function()}, "join": consumer(gathered())}
    job = w.job_raw(a_graph({"expand": [], "other": [], "join": ["other"]}, nodes))
    run = next(run for run in w.claim("b1", 2) if run.task_id == job["expand"])
    w.start(run)
    with pytest.raises(WrongState, match="does not wait for this task"):
        grow(w, job, run, ["m0"])
    assert w.count("task_input_parts") == 0


def test_parts_of_a_task_that_has_started_are_refused(w):
    job, run = mapped(w)
    w.finish(run)
    with pytest.raises(WrongState, match="READY"):
        grow(w, job, run, ["m0"])


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"join": {"1": [a_part("m0")]}}, "parts.join.1"),
        ({"join": {"x": [a_part("m0")]}}, "parts.join.x"),
        ({"join": {"0": [a_part("m0", of="string")]}}, "parts.join.0[0].type"),
        ({"join": {"0": [a_part("m0", 1)]}}, "parts.join.0[0].position"),
        ({"join": {"0": [a_part("m9")]}}, "parts.join.0[0].label"),
        ({"join": {"0": [a_part("join")]}}, "parts.join.0[0].label"),
        ({"m0": {"0": [a_part("join")]}}, "parts.m0"),
        ({"join": [a_part("m0")]}, "parts.join"),
        ([], "parts"),
    ],
)
def test_wrong_added_parts_are_refused_and_nothing_is_stored(lite, parts, path):
    lite.bot("b1")
    job, run = mapped(lite)
    with pytest.raises(InvalidRequest) as refused:
        lite.extend(job, {"m0": []}, nodes={"m0": producer()}, parts=parts, by=run.task_id)
    assert path in [problem.path for problem in refused.value.problems]
    assert set(lite.states(job)) == {"expand", "join"}


def test_an_input_with_a_shape_takes_no_further_parts(lite):
    lite.bot("b1")
    nodes = {"expand": {"task": a_function()}, "join": consumer(gathered(shape=b"\x90"))}
    job = lite.job_raw(a_graph({"expand": [], "join": ["expand"]}, nodes))
    run = lite.take("b1")
    with pytest.raises(InvalidRequest, match="without a shape"):
        grow(lite, job, run, ["m0"])
