"""Summaries of tasks, and the texts that the tasks of a job share."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.scheduler import annotate, maintenance, retention
from myrmidon.store.tables import chunked_work, notes


def test_a_summary_replaces_the_last_one_and_an_empty_one_removes_it(world):
    job = world.job({"a": []})
    for run, content in ((1, "first"), (2, "# zweite Zeile \N{SNOWMAN}")):
        world.do(annotate.annotate, job["a"], content, run=run)
    found = world.read(notes.read, job["a"])
    assert (found.run, found.content) == (2, "# zweite Zeile \N{SNOWMAN}")
    world.do(annotate.annotate, job["a"], "", run=2)
    assert world.read(notes.read, job["a"]) is None


def test_texts_of_a_job_are_set_replaced_and_deleted_and_names_keep_their_case(world):
    job, other = world.job({"a": []}), world.job({"a": []})
    for name, value in (("version", "1"), ("Version", "2"), ("version", "3")):
        world.do(annotate.set_meta, job.id, name, value)
    assert world.read(notes.meta, job.id) == {"version": "3", "Version": "2"}
    world.do(annotate.set_meta, job.id, "version", None)
    assert (world.read(notes.meta, job.id), world.read(notes.meta, other.id)) == ({"Version": "2"}, {})


def test_a_job_has_at_most_a_hundred_texts(world):
    job = world.job({"a": []})
    for number in range(100):
        world.do(annotate.set_meta, job.id, f"n{number}", "x" * 4096)
    with pytest.raises(InvalidRequest):
        world.do(annotate.set_meta, job.id, "one more", "")
    world.do(annotate.set_meta, job.id, "n7", "replaced")
    assert world.read(notes.meta, job.id)["n7"] == "replaced"


def test_both_are_deleted_with_the_job(world):
    world.bot("b1")
    job = world.job({"a": []})
    world.do(annotate.annotate, job["a"], "done", run=1)
    world.do(annotate.set_meta, job.id, "name", "value")
    world.work("b1")
    world.do(retention.delete_job, job.id, group_id=world.group.id)
    world.do(maintenance.run_step, world.read(chunked_work.pending)[0].turn)
    world.removed = True
    assert (world.count("task_annotations"), world.count("job_meta")) == (0, 0)
