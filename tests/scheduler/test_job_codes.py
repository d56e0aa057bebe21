"""Tasks that functions add to their job: with code that the job has, and after a rerun has replaced it."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, UnknownFile
from myrmidon.scheduler import job_codes, rerun
from myrmidon.store.tables import job_code, stored_file
from tests.builders import a_function, a_graph

OLD, NEW, NEWEST = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture
def w(world):
    world.bot("b1")
    for digest in (OLD, NEW, NEWEST):
        world.store_file(digest)
    return world


def with_code(code: str, *labels: str) -> dict[str, Any]:
    raw = a_graph({label: [] for label in labels}, {label: {"task": a_function()} for label in labels})
    for node in raw["tasks"].values():
        node["task"]["function"]["code"] = code
    return raw


@pytest.mark.parametrize("as_list", [False, True])
def test_a_task_that_runs_new_code_adds_what_it_has_added_with_the_old_one(w, as_list):
    job = w.job_raw(with_code(OLD, "a"))

    def added(code: str) -> dict[str, Any]:
        tasks = with_code(code, "x")["tasks"]
        return {"tasks": [{"label": label, **node} for label, node in tasks.items()] if as_list else tasks}

    run = w.take("b1")
    assert w.extend(job, {}, raw=added(OLD), by=run.task_id).num_new == 1
    w.finish(run)
    w.do_one("b1")
    for old, new in ((OLD, NEW), (OLD, NEWEST)):
        w.do(job_codes.replace_code, w.job_row(job), {old: new})
        w.do(rerun.rerun_job, job.id, full=True)
        w.carry()
        runs = {claimed.label: claimed for claimed in (w.take("b1"), w.take("b1"))}
        assert {claimed.code for claimed in runs.values()} == {new}
        again = w.extend(job, {}, raw=added(new), by=runs["a"].task_id)
        assert (again.num_new, again.task_ids) == (0, {"x": job.ids["x"]})
        for claimed in runs.values():
            w.finish(claimed)
    assert w.job_state(job) == "SUCCEEDED"


def test_tasks_that_are_added_by_new_code_belong_to_the_code_of_the_job(w):
    job = w.job_raw(with_code(OLD, "a"))
    w.do(job_codes.replace_code, w.job_row(job), {OLD: NEW})
    run = w.take("b1")
    assert run.code == NEW
    assert w.extend(job, {}, raw=with_code(NEW, "x"), by=run.task_id).num_new == 1
    w.finish(run)
    assert w.read(job_code.of_job, job.id) == {OLD: NEW}
    w.do(job_codes.replace_code, w.job_row(job), {OLD: NEWEST})
    assert w.take("b1").code == NEWEST


def test_a_caller_that_is_no_task_names_the_code_that_it_means(w):
    job = w.job_raw(with_code(OLD, "a"))
    w.do(job_codes.replace_code, w.job_row(job), {OLD: NEW})
    w.extend(job, {}, raw=with_code(NEW, "x"))
    assert w.read(job_code.of_job, job.id) == {OLD: NEW, NEW: None}


def test_a_task_that_adds_other_tasks_than_before_is_told_what_to_do(w):
    job = w.job_raw(with_code(OLD, "a"))
    run = w.take("b1")
    w.extend(job, {"x": []}, by=run.task_id)
    with pytest.raises(Conflict, match=r"an earlier run has added other tasks .*: x; .* submit a new job"):
        w.extend(job, {"x": []}, by=run.task_id, priority=3)


@pytest.mark.parametrize(
    "document", [None, [], {"tasks": 1}, {"tasks": {"x": 1}}, {"tasks": [{"task": {"function": 1}}]}]
)
def test_what_is_no_document_stays_as_it_is(w, document):
    job = w.job_raw(with_code(OLD, "a"))
    w.do(job_codes.replace_code, w.job_row(job), {OLD: NEW})
    assert w.read(job_codes.with_submitted_code, job.id, document, None) == [document, None]


def test_tasks_with_the_code_of_the_submission_or_with_none_are_added_as_they_are(w):
    """As the task that expands a map adds them."""
    job = w.job_raw(with_code(OLD, "a"))
    w.do(job_codes.replace_code, w.job_row(job), {OLD: NEW})
    run = w.take("b1")
    assert w.extend(job, {}, raw=with_code(OLD, "x"), by=run.task_id).num_new == 1
    assert w.extend(job, {"command": []}, by=run.task_id).num_new == 1
    assert w.read(job_code.of_job, job.id) == {OLD: NEW}


# ------------------------------------------------------------------------------------- code for what nodes will add


@pytest.mark.parametrize("num_nodes", [1, 7], ids=["in one transaction", "staged"])
def test_code_that_no_node_has_is_kept_for_what_the_nodes_add(w, small_chunks, num_nodes):
    job = w.job_raw({**with_code(OLD, "a", *(f"b{n}" for n in range(1, num_nodes))), "code": [NEW]})
    assert w.read(job_code.of_job, job.id) == {OLD: None, NEW: None}
    later = w.now + (1 << 60)
    assert w.read(lambda tx: stored_file.unused(tx, NEW[0], before=later, n=10)) == []
    assert w.read(lambda tx: stored_file.unused(tx, NEWEST[0], before=later, n=10)) == [NEWEST]
    w.carry()
    runs = [w.take("b1") for _ in range(num_nodes)]
    by = next(run for run in runs if run.label == "a")
    assert w.extend(job, {}, raw=with_code(NEW, "x"), by=by.task_id).num_new == 1
    for run in runs:
        w.finish(run)
    assert w.take("b1").code == NEW


def test_code_that_no_node_has_is_replaced_by_a_rerun_too(w):
    job = w.job_raw({**with_code(OLD, "a"), "code": [NEW]})
    w.do(job_codes.replace_code, w.job_row(job), {NEW: NEWEST})
    run = w.take("b1")
    assert w.extend(job, {}, raw=with_code(NEWEST, "x"), by=run.task_id).num_new == 1
    w.finish(run)
    assert w.take("b1").code == NEWEST
    assert w.read(job_code.of_job, job.id) == {OLD: None, NEW: NEWEST}


@pytest.mark.parametrize("num_nodes", [1, 7], ids=["in one transaction", "staged"])
def test_code_that_nobody_has_stored_is_refused_with_the_job(w, small_chunks, num_nodes):
    with pytest.raises(UnknownFile, match="1212"):
        w.job_raw({**with_code(OLD, *(f"a{n}" for n in range(num_nodes))), "code": [NEW, "12" * 32]})
    assert (w.count("jobs"), w.count("job_codes")) == (0, 0)


def test_code_is_a_list_of_digests(w):
    with pytest.raises(InvalidRequest) as error:
        w.job_raw({**with_code(OLD, "a"), "code": ["x", 1, "AB" * 32]})
    assert [problem.path for problem in error.value.problems] == ["code[0]", "code[1]", "code[2]"]
