"""The priority of a task or of a whole job can be changed while it waits."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler import maintenance, priority


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def order(w, job):
    return [job.label(task) for task in w.work("b1")]


def test_a_task_that_waits_for_a_bot_is_ranked_again(w):
    job = w.job({"a": [], "b": [], "c": []})
    w.do(priority.set_priority, job["c"], 50)
    w.do(priority.set_priority, job["a"], 200)
    assert order(w, job) == ["c", "b", "a"]


def test_a_task_that_waits_for_parents_has_the_new_priority_when_it_is_ready(w):
    job = w.job({"first": [], "a": ["first"], "b": ["first"]})
    w.do(priority.set_priority, job["b"], 50)
    assert order(w, job) == ["first", "b", "a"]


def test_a_rerun_has_the_new_priority(w):
    job = w.job({"a": [], "b": []})
    run = w.take("b1")
    w.do(priority.set_priority, run.task_id, 200)
    w.finish(run)
    w.rerun(run.task_id, force=True)
    assert order(w, job) == ["b", "a"]


def test_all_tasks_of_a_job_are_changed_chunk_by_chunk(w, monkeypatch):
    monkeypatch.setattr(maintenance, "CHUNK", 3)
    other = w.job({"other": []})
    job = w.job({x: [] for x in "abcdefg"})
    w.do(priority.set_job_priority, job.id, 50)
    assert w.job_row(job).num_chunked_work == 1
    w.carry()
    assert w.job_row(job).num_chunked_work == 0
    job.ids.update(other.ids)
    assert order(w, job) == [*"abcdefg", "other"]


def test_what_has_ended_is_refused_and_left_alone(w):
    job = w.job({"a": [], "b": []})
    w.do_one("b1")
    with pytest.raises(WrongState):
        w.do(priority.set_priority, job["a"], 50)
    w.do(priority.set_job_priority, job.id, 50)
    w.carry()
    assert w.column("SELECT priority FROM task_requests ORDER BY id") == [100, 50]
    w.do_one("b1")
    with pytest.raises(WrongState):
        w.do(priority.set_job_priority, job.id, 60)


def test_what_does_not_exist_is_not_found(w):
    for verb in (priority.set_priority, priority.set_job_priority):
        with pytest.raises(NotFound):
            w.do(verb, 12345, 50)
