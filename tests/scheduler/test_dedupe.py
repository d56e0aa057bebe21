"""Dedupe: an equal earlier result answers a task that says it may be answered."""

from __future__ import annotations

from base64 import b64encode

import pytest

from myrmidon.scheduler import retention
from tests.builders import a_function, a_task, constant, output_of, returned


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def donor(w, **given):
    task = w.submit(idempotent=True, **given)
    w.do_one("b1", cost_usd=0.25)
    return task


def test_an_equal_task_is_answered_at_once(w):
    first = donor(w)
    task = w.submit(idempotent=True, priority=3, tags=["other:tag"], user="eve")
    result = w.task(task)
    assert (result.state, result.deduped_from, result.deduped_run, result.run_number) == ("SUCCEEDED", first, 1, 0)
    assert (result.cost_saved_usd, result.instance_id, w.story(task)) == (0.25, None, ["SUCCEEDED"])


def test_the_answer_of_a_submit_tells_what_was_saved(w):
    first = donor(w)
    answer = w.submit_raw(a_task(idempotent=True))
    assert (answer.state, answer.deduped_from, answer.cost_saved_usd) == ("SUCCEEDED", first, 0.25)


@pytest.mark.parametrize(
    "different",
    [
        {"command": ["other"]}, {"service_account": "bot"}, {"env": {"A": "1"}}, {"execution_timeout_s": 7},
        {"secret_bytes": "aHVzaA=="}, {"os": "Linux"}, {"idempotent": False}, {"caches": [{"name": "a", "path": "b"}]},
        {"files": {"digest": "ab" * 32, "size": 1}}, {"paths": ["out"]}, {"pool": "other"},
    ],
)  # fmt: skip
def test_different_work_is_not_answered(lite, different):
    lite.bot("b1")
    donor(lite)
    assert lite.state(lite.submit(**{"idempotent": True, **different})) == "READY"


def test_another_group_is_not_answered(w):
    donor(w)
    assert w.state(w.submit(idempotent=True, group=w.new_group("other"))) == "READY"


@pytest.mark.parametrize("stdin", ["in", "out", None])
def test_equal_stdin_is_equal_work(w, stdin):
    donor(w, stdin=b64encode(b"in").decode())
    given = {} if stdin is None else {"stdin": b64encode(stdin.encode()).decode()}
    task = w.submit(idempotent=True, **given)
    assert w.state(task) == ("SUCCEEDED" if stdin == "in" else "READY")


def test_stdin_is_not_taken_for_a_secret(w):
    donor(w, secret_bytes=b64encode(b"in").decode())
    assert w.state(w.submit(idempotent=True, stdin=b64encode(b"in").decode())) == "READY"


@pytest.mark.parametrize("secret", ["hush", "hush!"])
def test_equal_secrets_are_equal_work(w, secret):
    donor(w, secret_bytes=b64encode(b"hush").decode())
    task = w.submit(idempotent=True, secret_bytes=b64encode(secret.encode()).decode())
    assert w.state(task) == ("SUCCEEDED" if secret == "hush" else "READY")


def test_a_failed_task_answers_nobody(w):
    w.submit(idempotent=True)
    w.do_one("b1", 1)
    assert w.state(w.submit(idempotent=True)) == "READY"


def test_a_task_that_was_itself_answered_answers_nobody(w):
    first = donor(w)
    w.submit(idempotent=True)
    assert w.task(w.submit(idempotent=True)).deduped_from == first


def test_the_newest_donor_answers(w):
    """Two equal tasks were submitted before either had a result, and the older one ended last."""
    older, newer = w.submit(idempotent=True), w.submit(idempotent=True)
    runs = {run.task_id: run for run in w.claim("b1", 2)}
    w.finish(runs[newer])
    w.finish(runs[older])
    assert w.task(w.submit(idempotent=True)).deduped_from == newer


def test_an_old_result_answers_nobody(w):
    donor(w)
    w.advance(7 * 86_400)
    assert w.state(w.submit(idempotent=True)) == "READY"


def test_any_slice_may_be_answered(w):
    first = donor(w, command=["same"])
    task = w.submit(slices=[{"os": "Mac"}, {"idempotent": True, "command": ["same"]}])
    assert (w.task(task).deduped_from, w.task(task).current_task_slice) == (first, 1)


def test_only_the_slice_that_ran_becomes_a_donor(w):
    w.submit(slices=[{"command": ["first"]}, {"command": ["second"], "idempotent": True}])
    w.do_one("b1")
    assert w.state(w.submit(idempotent=True, command=["second"])) == "READY"


def test_a_rerun_by_hand_wants_a_run(w):
    donor(w)
    task = w.submit(idempotent=True)
    w.rerun(task, force=True)
    assert (w.state(task), w.task(task).deduped_from) == ("READY", None)


def test_a_donor_that_is_gone_answers_nobody(w):
    w.removed = True
    job = w.job({"a": []}, idempotent=True)
    w.work("b1")
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.sweep()
    assert w.state(w.submit(idempotent=True)) == "READY"


def test_a_donor_that_runs_again_answers_nobody_meanwhile(w):
    first = donor(w)
    w.rerun(first, force=True)
    assert w.state(w.submit(idempotent=True)) == "READY"
    w.work("b1", 1)
    assert w.state(w.submit(idempotent=True)) == "READY"


def test_a_donor_that_ran_again_answers_with_its_new_run(w):
    first = donor(w)
    w.rerun(first, force=True)
    w.do_one("b1")
    assert w.task(w.submit(idempotent=True)).deduped_run == 2


# ---------------------------------------------------------------- in graphs, and of functions


def test_a_task_inside_a_graph_is_answered_and_feeds_its_children(w):
    first = donor(w)
    job = w.job({"a": [], "b": ["a"], "c": ["b"]}, nodes={"a": {"idempotent": True}, "b": {"idempotent": True}})
    assert w.states(job) == {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "READY"}
    assert w.task(job["b"]).deduped_from == first


def test_a_job_that_is_answered_whole_has_succeeded_at_once(w):
    donor(w)
    job = w.job({"a": [], "b": ["a"]}, idempotent=True)
    assert (job.answer.state, w.story(job.id)) == ("SUCCEEDED", ["RUNNING", "SUCCEEDED"])


def test_a_function_with_equal_inputs_is_answered_with_its_outputs(w):
    w.function([constant(b"1")], ["int64"], idempotent=True)
    w.do_one("b1", outputs=returned(b"42"))
    again = w.function([constant(b"1")], ["int64"], idempotent=True)
    assert (again.state, w.job_state(again.job_id)) == ("SUCCEEDED", "SUCCEEDED")
    [value] = w.column("SELECT value_id FROM task_outputs WHERE task_id = :id", id=again.task_id)
    assert bytes(w.column('SELECT payload FROM "values" WHERE id = :id', id=value)[0]) == b"42"


def test_a_function_with_other_inputs_is_not_answered(w):
    w.function([constant(b"1")], ["int64"], idempotent=True)
    w.do_one("b1", outputs=returned(b"42"))
    assert w.function([constant(b"2")], ["int64"], idempotent=True).state == "READY"


def test_a_function_that_promises_something_else_is_not_answered(w):
    w.function([constant(b"1")], ["int64"], idempotent=True)
    w.do_one("b1", outputs=returned(b"42"))
    assert w.function([constant(b"1")], ["int64", "int64"], idempotent=True).state == "READY"
    assert w.function([constant(b"1")], ["string"], idempotent=True).state == "READY"


def test_a_function_is_answered_when_its_parents_have_given_the_same(w):
    nodes = {
        "a": {"task": a_function([], ["int64"])},
        "b": {"task": a_function([output_of("a")], idempotent=True, name="g")},
    }
    for content, state in ((b"1", "READY"), (b"1", "SUCCEEDED"), (b"2", "READY")):
        job = w.job({"a": [], "b": []}, nodes=nodes)
        w.do_one("b1", outputs=returned(content))
        assert w.states(job)["b"] == state
        w.work("b1")


def test_a_shared_output_is_shared_with_the_task_that_was_answered(w):
    made = a_function([], [{"type": "int64", "shared": True}], idempotent=True)
    first = w.job({"a": []}, nodes={"a": {"task": made}})
    w.do_one("b1", outputs=returned(b"42"))
    second = w.job({"a": [], "b": []}, nodes={"a": {"task": made}, "b": {"task": a_function([output_of("a")])}})
    assert w.count("shared_values") == 1
    assert set(w.column("SELECT job_id FROM job_to_shared_value_ref")) == {first.id, second.id}
    assert [value.payload for value in w.take("b1").inputs] == [b"42"]


def test_a_donor_whose_outputs_were_taken_back_answers_nobody(w):
    first = w.function([], ["int64"], idempotent=True)
    w.do_one("b1", outputs=returned(b"42"))
    w.rerun(first.task_id, force=True, cascade=True)
    assert w.function([], ["int64"], idempotent=True).state == "READY"


@pytest.fixture
def chain(w):
    """A function and an idempotent one that reads its output; both have run."""
    nodes = {
        "a": {"task": a_function([], ["int64"])},
        "b": {"task": a_function([output_of("a")], ["int64"], idempotent=True, name="g")},
    }
    job = w.job({"a": [], "b": []}, nodes=nodes)
    w.do_one("b1", outputs=returned(b"1"))
    return job


def an_equal(w, content):
    """A function that is equal to the second one of the chain if that one has read ``content``."""
    return w.function([constant(content)], ["int64"], idempotent=True, name="g").state


def test_a_result_of_an_input_that_was_replaced_meanwhile_answers_nobody(w, chain):
    run = w.take("b1")
    w.rerun(chain["a"], force=True)
    w.do_one("b1", outputs=returned(b"2"))
    w.finish(run, outputs=returned(b"of 1"))
    assert an_equal(w, b"2") == "READY"


def test_a_donor_that_ran_again_with_another_input_no_longer_answers_for_the_first(w, chain):
    w.do_one("b1", outputs=returned(b"of 1"))
    w.rerun(chain["a"], force=True, cascade=True)
    w.do_one("b1", outputs=returned(b"2"))
    w.do_one("b1", outputs=returned(b"of 2"))
    assert (an_equal(w, b"1"), an_equal(w, b"2")) == ("READY", "SUCCEEDED")
