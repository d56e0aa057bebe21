"""Removing: what has ended leaves without a trace, references first."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import cancel, maintenance, resource_groups, retention, shared_values
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import log as logs
from tests.builders import a_function, inline, output_of, returned, shared

TABLES = (
    "task_requests", "further_slices", "task_tags", "secret_bytes", "task_stdin", "task_to_run", "task_results",
    "task_runs", "performance_stats", "dedupe_sources", "jobs", "task_edges", "completed_task_edges",
    '"values"', "task_inputs", "task_input_parts",
    "task_outputs", "task_delegates", "job_codes", "outbox", "request_keys", "chunked_work",
)  # fmt: skip


@pytest.fixture
def w(world):
    world.bot("b1")
    world.removed = True
    return world


def rows(w):
    return {table: n for table in TABLES if (n := w.count(table))}


def a_finished_job(w, **given):
    nodes = {"a": {"task": a_function([], ["int64"], tags=["x:y"])}, "b": {"task": a_function([output_of("a")])}}
    job = w.job({"a": [], "b": ["a"]}, nodes=nodes, key="k", **given)
    w.do_one("b1", outputs=returned(b"1"))
    w.do_one("b1")
    return job


def test_a_deleted_job_leaves_nothing_behind(w):
    job = a_finished_job(w)
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.sweep()
    assert rows(w) == {}


def test_a_large_job_is_deleted_in_chunks(w, small_chunks):
    job = w.job({str(i): [str(i - 1)] if i else [] for i in range(7)})
    w.carry()
    w.work("b1")
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.sweep()
    assert rows(w) == {}


def test_deleting_a_job_twice_is_the_same_as_once(w):
    job = a_finished_job(w)
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.carry()
    assert w.count("jobs") == 0


@pytest.mark.parametrize("case", ["running", "pending retry", "stopping", "unknown", "foreign"])
def test_a_job_that_has_not_ended_or_is_not_yours_cannot_be_deleted(w, case):
    job = w.job({"a": []}, max_num_retries=1)
    if case != "running":
        run = w.take("b1")
        w.do(cancel.cancel_job, job.id) if case == "stopping" else w.fail(run)
    with pytest.raises(NotFound if case in ("unknown", "foreign") else WrongState):
        w.do(
            retention.delete_job, 17 if case == "unknown" else job.id, group_id=17 if case == "foreign" else w.group.id
        )
    assert w.count("jobs") == 1


def test_a_deleted_job_lets_go_of_its_shared_values(w):
    value = w.do(shared_values.create_value, GroupOwner(w.group.id), "int64", inline())
    made = a_function([shared(value.id)], [{"type": "int64", "shared": True}])
    job = w.job({"a": []}, nodes={"a": {"task": made}})
    w.do_one("b1", outputs=returned(b"1"))
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.sweep()
    assert w.column("SELECT id FROM shared_values") == [value.id]


def test_a_shared_value_that_another_job_reads_stays(w):
    value = w.do(shared_values.create_value, GroupOwner(w.group.id), "int64", inline())
    first, second = (w.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}}) for _ in range(2))
    w.do(shared_values.unref_value, GroupOwner(w.group.id), value.id)
    w.work("b1")
    w.do(retention.delete_job, first.id, group_id=w.group.id)
    w.sweep()
    assert w.count("shared_values") == 1
    w.do(retention.delete_job, second.id, group_id=w.group.id)
    w.sweep()
    assert w.count("shared_values") == 0


def test_a_key_is_free_again_when_its_job_is_gone(w):
    job = a_finished_job(w)
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    w.sweep()
    assert w.job({"a": []}, key="k").id != job.id


# ---------------------------------------------------------------- retention


def test_a_job_goes_when_its_retention_is_over(w):
    a_finished_job(w)
    w.advance(30 * 86_400 - 1)
    w.sweep()
    assert w.count("jobs") == 1
    w.advance(2)
    w.sweep()
    assert rows(w) == {}


def test_a_lone_task_goes_when_its_retention_is_over(w):
    w.submit(tags=["x:y"], secret_bytes="aHVzaA==", stdin="aW4=", idempotent=True, key="k")
    w.do_one("b1")
    w.advance(30 * 86_400 + 1)
    w.sweep()
    assert rows(w) == {}


def test_a_task_that_runs_again_is_not_removed(w):
    task = w.submit(deadline_s=2_592_000)
    w.do_one("b1", 1)
    w.advance(29 * 86_400)
    w.rerun(task)
    w.bot("b1")
    w.do_one("b1", 1)
    w.advance(2 * 86_400)
    w.sweep()
    assert w.exists(task)


def test_the_logs_of_a_removed_task_go_too(w):
    task = w.submit()
    w.do_one("b1")
    w.db.write(lambda tx: logs.append(tx, task, 1, stream=0, offset=0, content=b"x", limits=(100, 100)))
    w.advance(30 * 86_400 + 1)
    w.sweep()
    assert (w.count("log_chunks"), w.count("task_logs")) == (0, 0)


def test_logs_that_were_left_behind_are_found_page_by_page(w, monkeypatch):
    monkeypatch.setattr(maintenance, "BATCH", 2)
    for task in (11, 12, 13):
        w.db.write(lambda tx, task=task: logs.append(tx, task, 1, stream=0, offset=0, content=b"x", limits=(9, 9)))
    w.sweep()
    assert w.count("task_logs") == 1
    w.sweep()
    assert w.count("task_logs") == 0


# ---------------------------------------------------------------- groups


def test_a_deleted_group_takes_jobs_tasks_and_references_with_it(w):
    a_finished_job(w)
    w.submit()
    w.do_one("b1")
    w.do(shared_values.create_value, GroupOwner(w.group.id), "int64", inline())
    w.do(resource_groups.delete_group, w.group.id)
    w.sweep()
    assert rows(w) == {}
    assert (w.count("resource_groups"), w.count("shared_values")) == (0, 0)


def test_a_large_group_is_deleted_in_chunks(w, small_chunks):
    w.job({str(i): [] for i in range(7)})
    w.carry()
    w.submit_many(4)
    w.work("b1")
    w.do(resource_groups.delete_group, w.group.id)
    w.do(resource_groups.delete_group, w.group.id)
    w.sweep()
    assert (rows(w), w.count("resource_groups")) == ({}, 0)


def test_a_group_with_unfinished_work_cannot_be_deleted(w):
    w.submit()
    with pytest.raises(WrongState):
        w.do(resource_groups.delete_group, w.group.id)


def test_a_group_that_does_not_exist_cannot_be_deleted(w):
    with pytest.raises(NotFound):
        w.do(resource_groups.delete_group, 17)


def test_the_name_of_a_deleted_group_is_free(w):
    w.do(resource_groups.delete_group, w.group.id)
    w.sweep()
    assert w.new_group("default").id != w.group.id


def test_removing_nothing_does_nothing(w):
    w.db.write(lambda tx: retention.delete_tasks(UnitOfWork(tx, w.now, w.ids), []))


def test_a_deleted_group_takes_its_queues_with_it(w):
    w.submit()
    w.do_one("b1")
    w.do(resource_groups.delete_group, w.group.id)
    w.carry()
    assert (w.count("task_dimensions"), w.count("bot_task_dimensions")) == (0, 0)


def test_the_logs_of_tasks_that_are_still_there_are_left(w):
    task = w.submit()
    for owner in (task, 17):
        w.db.write(lambda tx, owner=owner: logs.append(tx, owner, 1, stream=0, offset=0, content=b"x", limits=(9, 9)))
    w.sweep()
    assert w.column("SELECT task_id FROM task_logs") == [task]
