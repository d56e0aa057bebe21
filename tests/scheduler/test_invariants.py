"""The checker itself: each way to break a database is seen and named."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import cancel, shared_values
from myrmidon.scheduler.idempotency import claim_request_key
from tests.builders import World, a_function, constant, inline, output_of, returned
from tests.invariants import Checker, check, check_settled


@pytest.fixture
def w(sqlite_db, clock, ids):
    """A bit of everything: ended, running, ready and waiting tasks, values, keys and numbered events."""
    world: Any = World(sqlite_db, clock, ids)
    world.bot("b1")
    nodes = {"a": {"task": a_function([constant()], ["int64"])}, "b": {"task": a_function([output_of("a")], ["int64"])}}
    world.first = world.job({"a": [], "b": ["a"]}, nodes=nodes, key="first")
    world.work("b1", outputs=returned(b"1"))
    world.done = world.submit(key="done")
    world.do_one("b1")
    world.running = world.submit(priority=1, secret_bytes="aHVzaA==", stdin="aW4=")
    world.take("b1")
    world.ready = world.submit()
    world.open = world.job({"x": [], "y": ["x"]})
    world.cancelled = world.job({"z": []})
    world.do(cancel.cancel_job, world.cancelled.id)
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    world.db.write(lambda tx: claim_request_key(tx, "create", "value", "", now=world.now, subject=value.id))
    world.sweep()
    check(world.db, nothing_removed=True)
    return world


BREAKS = [
    ("DELETE FROM task_to_run WHERE task_id = :ready", "1 task"),
    ("UPDATE task_to_run SET queue = 17 WHERE task_id = :ready", "not in that of its slice"),
    ("UPDATE task_to_run SET instance = 1 WHERE task_id = :ready", "not exactly that of instance 0"),
    ("UPDATE task_results SET state = 'READY' WHERE id = :running", "has the live run 1"),
    ("UPDATE task_runs SET ended_at = 5 WHERE task_id = :running", "neither live nor ended"),
    ("UPDATE task_runs SET due_at = 5 WHERE task_id = :done", "a run has ended and still has an alarm"),
    ("UPDATE task_runs SET generation = 2 WHERE task_id = :running", "live run 1 of generation 2"),
    ("UPDATE task_runs SET state = 'FAILED' WHERE task_id = :done", "2 task"),
    ("UPDATE task_runs SET idle_since = claimed_at + 1 WHERE task_id = :done", "began before its bot was idle"),
    ("UPDATE task_results SET instance_id = NULL WHERE id = :done", "names neither a winning run"),
    ("UPDATE task_results SET instance_id = 1 WHERE id = :running", "names the winner 1"),
    ("UPDATE task_results SET bot_id = 'b9' WHERE id = :done", "not those of its winner"),
    ("UPDATE task_results SET started_at = 5 WHERE id = :running", "not those of its live run"),
    ("UPDATE task_requests SET timeout = 1, max_num_instances = 2 WHERE id = :running", "granted no further one"),
    ("UPDATE task_results SET deduped_from = 17 WHERE id = :done", "is answered in its slice 0, which must run"),
    ("UPDATE task_results SET run_number = 2 WHERE id = :done", "but its run number is 2"),
    ("UPDATE task_results SET num_retries = 2 WHERE id = :ready", "has used 2 of 1 retries"),
    ("UPDATE task_results SET killing = 1 WHERE id = :ready", "is being killed"),
    ("UPDATE task_results SET held = 1 WHERE id = :ready", "is held"),
    ("UPDATE task_results SET num_succeeded_parents = 1 WHERE id = :y", "counts 1 satisfied parents"),
    ("DELETE FROM task_edges WHERE child = :y", "counts 1 parents and has 0 edges"),
    ("DELETE FROM completed_task_edges WHERE child = :b", "3 task"),
    ("INSERT INTO completed_task_edges (parent, child) VALUES (:a, :y)", "there is no such edge"),
    ("UPDATE task_edges SET parent = :a WHERE child = :y", "leaves its job"),
    ("DELETE FROM outbox WHERE subject = :done AND seq = 2", "tells its event 3 (task) after 1"),
    ("DELETE FROM outbox WHERE subject = :done AND seq = 3", "is told to be RUNNING"),
    ("UPDATE outbox SET state = 'FAILED' WHERE subject = :done AND seq = 2", "went from READY/1 to FAILED/1"),
    ("UPDATE outbox SET state = 'WAITING' WHERE subject = :done AND seq = 3", "went from RUNNING/1 to WAITING/1"),
    ("UPDATE outbox SET state = 'CANCELLED' WHERE subject = :job AND seq = 1", "went from nothing to CANCELLED"),
    ("UPDATE outbox SET body = REPLACE(body, 'running', 'blocked') WHERE subject = :job", "is told to be ('blocked'"),
    ("UPDATE outbox SET position = position + 1000", "only"),
    ("UPDATE outbox SET position = 1 WHERE subject = :done", "share"),
    ("UPDATE outbox SET position = NULL WHERE subject = :done AND seq = 1", "not behind the earlier one"),
    ("UPDATE sinks SET position = 9999", None),
    ("UPDATE request_keys SET subject = 17", "stands for 17, which does not exist"),
    ("UPDATE jobs SET num_active = 7 WHERE id = :job", "counts (tasks, succeeded, failed, active)"),
    ("UPDATE jobs SET num_chunked_work = 1 WHERE id = :job", "counts 1 drains and has 0"),
    ("UPDATE jobs SET state = 'FAILED' WHERE id = :first", "has not succeeded although all its tasks have"),
    ("UPDATE jobs SET state = 'SUCCEEDED', ended_at = 5 WHERE id = :job", "has succeeded with 0 of 2 tasks"),
    ("UPDATE jobs SET state = 'FAILED', ended_at = 5 WHERE id = :job", "has ended with 1 tasks that are ready"),
    ("UPDATE jobs SET state = 'CANCELLED', ended_at = 5 WHERE id = :job", "a task of it may still start"),
    ("UPDATE task_results SET job_id = :cancelled WHERE id = :running", "a task of it may still start"),
    ("UPDATE jobs SET blocked_by = :x, error = 'x' WHERE id = :job", "names a task that has not failed"),
    ("UPDATE jobs SET error = 'x' WHERE id = :job", "names a task that has not failed"),
    ("UPDATE jobs SET ended_at = 5 WHERE id = :job", "has ended at 5"),
    ("UPDATE jobs SET staged = 1 WHERE id = :job", "is staged, but"),
    ('UPDATE "values" SET size = NULL', "has no output 0"),
    ("DELETE FROM resource_group_to_shared_value_ref", "nothing references a shared value"),
    ("DELETE FROM shared_values", "resource_group_to_shared_value_ref.id -> shared_values"),
    ("DELETE FROM bot_task_dimensions", "is not matched with queue"),
    ('UPDATE bots SET dimensions = \'{"id":["b1"],"pool":["other"]}\'', "is wrongly matched with queue"),
    ("DELETE FROM task_requests WHERE id = :done", "has no request"),
    ("DELETE FROM task_results WHERE id = :done", "task_requests.id -> task_results"),
    ("UPDATE secret_bytes SET task_id = 17", "secret_bytes.task_id -> task_results"),
    ("UPDATE task_stdin SET task_id = 17", "task_stdin.task_id -> task_results"),
    ("DELETE FROM jobs WHERE id = :job", "task_results.job_id -> jobs"),
    ("UPDATE task_results SET due_at = NULL WHERE id = :ready", "has no alarm for its deadline"),
    ("UPDATE task_results SET completed_at = NULL WHERE id = :done", "has ended at no time"),
    ("UPDATE task_results SET state = 'WAITING', held = 0 WHERE id = :ready", "waits for nothing"),
    ("UPDATE task_results SET forced = 1 WHERE id = :y", "nobody will start it"),
]


@pytest.mark.parametrize(("sql", "named"), BREAKS, ids=[sql[:60] for sql, _ in BREAKS])
def test_every_break_is_named(w, sql, named):
    ids = {"ready": w.ready, "running": w.running, "done": w.done, "job": w.open.id, "first": w.first.id}
    ids |= {"cancelled": w.cancelled.id, "x": w.open["x"], "y": w.open["y"], "a": w.first["a"], "b": w.first["b"]}
    if named is None:
        w.db.write(lambda tx: tx.run("INSERT INTO sinks (name, position) VALUES ('s', 0)"))
        named = "a sink is ahead of the events"
    used = {name: value for name, value in ids.items() if f":{name}" in sql}
    break_it(w, sql, used)
    with pytest.raises(AssertionError) as seen:
        check(w.db)
    assert named in str(seen.value)


def break_it(w, sql, used):
    link = w.db._writers.borrow()
    link.all("PRAGMA foreign_keys = off")
    link.begin()
    link.run(sql, **used)
    link.commit()
    w.db._writers.give_back(link)


def test_everything_that_is_broken_is_named_at_once(w):
    break_it(w, "DELETE FROM outbox", {})
    break_it(w, "DELETE FROM task_to_run", {})
    with pytest.raises(AssertionError) as seen:
        check(w.db)
    assert "1 task" in str(seen.value)
    assert "4 job" in str(seen.value)


def test_a_lost_number_is_seen_when_nothing_was_removed(w):
    break_it(w, "UPDATE shared_numbers SET value = value + 1 WHERE name = 'outbox_position'", {})
    check(w.db)
    with pytest.raises(AssertionError):
        check(w.db, nothing_removed=True)


def test_a_settled_database_has_nothing_overdue(w):
    check_settled(w.db, w.now)
    w.advance(8 * 86_400)
    with pytest.raises(AssertionError) as seen:
        check_settled(w.db, w.now)
    assert "8 a task is not final past its deadline" in str(seen.value)
    assert "8 a run is lost and nobody noticed" in str(seen.value)
    assert "8 a live run is past the deadline of its task" in str(seen.value)


def test_a_settled_database_has_no_open_task_of_a_job_that_has_ended(w):
    break_it(w, "UPDATE jobs SET state = 'FAILED', ended_at = 5 WHERE id = :job", {"job": w.open.id})
    with pytest.raises(AssertionError) as seen:
        check_settled(w.db, w.now)
    assert "8 a job has ended, and a task of it has not" in str(seen.value)


def test_a_second_check_costs_only_what_has_changed(w):
    checker = Checker()
    checker.check(w.db)
    checker.check(w.db)
    assert checker.checked == 0
    w.submit()
    checker.check(w.db)
    assert checker.checked == 1


def test_a_second_check_sees_a_new_break(w):
    checker = Checker()
    checker.check(w.db)
    w.work("b1")
    break_it(w, "DELETE FROM outbox WHERE subject = :ready AND seq = 2", {"ready": w.ready})
    with pytest.raises(AssertionError):
        checker.check(w.db)
