"""The last line of defence: writes that find a row not as it was read undo everything."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import BrokenPromise
from myrmidon.model.ids import IdSource
from myrmidon.model.states import RunState, TaskState
from myrmidon.scheduler import rerun
from myrmidon.store.tables import job, task_result, task_run
from tests.world import World, a_function, a_node, constant, finish


@pytest.fixture
def world(db: Any, ids: IdSource) -> World:
    made = World(db).found()
    made.bot("b1")
    return made


@pytest.mark.parametrize("n", [1, 6])
def test_a_task_that_changed_under_its_writer_is_not_saved(world: World, n: int) -> None:
    """Whether it is written alone or together with others that become alike."""
    ids = [world.submit()[0] for _ in range(n)]

    def two_writers(tx: Any) -> None:
        mine, yours = (task_result.read(tx, ids) for _ in range(2))
        yours[ids[0]].state = TaskState.WAITING
        task_result.save(tx, [yours[ids[0]]], world.now)
        for task in mine.values():
            task.state = TaskState.CANCELLED
        task_result.save(tx, list(mine.values()), world.now)

    with pytest.raises(BrokenPromise):
        world.db.write(two_writers)
    assert {world.state(task_id) for task_id in ids} == {"READY"}


@pytest.mark.parametrize("num_events", [1, 2])
def test_a_task_whose_events_are_written_first_is_not_saved_if_it_has_changed(world: World, num_events: int) -> None:
    [task_id] = world.submit()

    def two_writers(tx: Any) -> None:
        mine, yours = (task_result.read(tx, [task_id])[task_id] for _ in range(2))
        yours.state = TaskState.WAITING
        task_result.save(tx, [yours], world.now)
        for _ in range(num_events):
            task_result.announce(tx, mine, world.now)
        task_result.save_announced(tx, mine, num_events)

    with pytest.raises(BrokenPromise):
        world.db.write(two_writers)
    assert world.state(task_id) == "READY"


@pytest.mark.parametrize("n", [3, 4])
def test_tasks_that_become_alike_are_saved_like_others(world: World, n: int) -> None:
    ids = [world.submit()[0] for _ in range(n)]

    def save(tx: Any) -> None:
        tasks = list(task_result.read(tx, ids).values())
        for task in tasks:
            task.state, task.reason, task.due_at, task.ready_at = TaskState.CANCELLED, "why", 7, None
        task_result.save(tx, tasks, world.now)

    world.db.write(save)
    for task in world.db.read(lambda tx: task_result.read(tx, ids)).values():
        assert (task.state, task.reason, task.due_at, task.ready_at) == ("CANCELLED", "why", 7, None)
        assert (task.seq, task.modified_at, task.run_number) == (2, world.now, 0)


def test_a_run_that_has_ended_never_changes_again(world: World) -> None:
    [task_id] = world.submit()
    world.report(finish(world.running("b1")[0]))

    def change(tx: Any) -> None:
        [run] = task_run.read(tx, [task_id])
        run.state, run.reason = RunState.FAILED, "late"
        task_run.save(tx, [run], world.now)

    with pytest.raises(BrokenPromise):
        world.db.write(change)
    assert world.value("SELECT state FROM task_runs") == "SUCCEEDED"


def test_a_job_that_vanished_under_its_writer_is_a_broken_promise(world: World) -> None:
    job_id = world.job({"x": a_node()}).job_id

    def change(tx: Any) -> None:
        found = job.read(tx, [job_id])[job_id]
        found.id += 16
        job.save(tx, [found])

    with pytest.raises(BrokenPromise):
        world.db.write(change)


def test_a_nonce_of_another_session_is_handed_nothing(world: World) -> None:
    world.submit()
    [run] = world.claim("b1", nonce=7)
    world.bot("b1", session=2, holds=[(run.task_id, run.run)])
    assert world.claim("b1", nonce=7, session=2) == []
    [other] = world.submit()
    for _ in range(2):  # the second time by its nonce
        assert [claimed.task_id for claimed in world.claim("b1", nonce=7, session=2)] == [other]


def test_a_full_rerun_takes_back_what_was_produced(world: World) -> None:
    made = world.job({"x": a_node(task=a_function(constant()))})
    world.report(finish(world.running("b1")[0], b"\x07"))
    assert world.job_state(made.job_id) == "SUCCEEDED"
    world.do(rerun.rerun_job, made.job_id, full=True)
    world.carry_all()
    assert world.value('SELECT COUNT(*) FROM "values" WHERE payload = :p', p=b"\x07") == 0
