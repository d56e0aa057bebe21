"""The engine of maintenance: which chunked work may run, fresh time, turns, locks, and steps that fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from myrmidon.model.errors import StoreBusy, WrongState
from myrmidon.model.states import JobState
from myrmidon.scheduler import (
    cancel,
    hold,
    maintenance,
    outages,
    priority,
    rerun,
    resource_groups,
    retention,
    submit_job,
)
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.maintenance import CHUNKED, Maintenance, run_due
from myrmidon.store.tables import chunked_work, shared_numbers
from tests.builders import Graph, World, a_graph, seconds
from tests.invariants import check, check_settled

OPEN = ("WAITING", "READY", "RUNNING")


@pytest.fixture
def w(world: World, small_chunks: int) -> World:
    world.bot("b1")
    return world


def num_open(w: World, job: Graph) -> int:
    return sum(state in OPEN for state in w.states(job).values())


def a_wide_job(w: World, n: int = 10, **given: Any) -> Graph:
    return w.job({str(i): [] for i in range(n)}, **given)


def a_failed_job(w: World, **given: Any) -> Graph:
    """All its tasks have failed."""
    job = a_wide_job(w, **given)
    w.carry()
    w.work("b1", 1)
    assert w.job_state(job) == "FAILED"
    return job


def fans_out(w: World) -> Graph:
    """The first task has ended, and its children have not been told."""
    job = w.job({"first": [], **{str(i): ["first"] for i in range(10)}})
    w.carry()
    w.finish(w.take("b1"))
    return job


def starting(w: World) -> Graph:
    return a_wide_job(w)


def reset(w: World, *, full: bool = False) -> Graph:
    job = a_failed_job(w)
    w.do(rerun.rerun_job, job.id, full=full)
    return job


def cascading(w: World) -> Graph:
    job = w.job({"first": [], **{str(i): ["first"] for i in range(10)}})
    w.carry()
    w.work("b1")
    w.rerun(job["first"], force=True, cascade=True)
    return job


def held(w: World, verb: Callable[..., Any] | None = None) -> Graph:
    job = a_wide_job(w)
    w.carry()
    w.do(hold.hold_job, job.id)
    if verb is not None:
        w.carry()
        w.do(verb, job.id)
    return job


def ranked(w: World) -> Graph:
    job = a_wide_job(w)
    w.carry()
    w.do(priority.set_job_priority, job.id, 7)
    return job


STORIES: dict[str, Callable[[World], Graph]] = {
    chunked_work.FEED: fans_out,
    chunked_work.START: starting,
    chunked_work.RESET: reset,
    "reset of everything": partial(reset, full=True),
    chunked_work.CASCADE: cascading,
    chunked_work.HOLD: held,
    chunked_work.RELEASE: partial(held, verb=hold.release_job),
    chunked_work.PRIORITY: ranked,
}
"""How each kind of chunked work that a cancellation may meet begins."""


def kinds(w: World) -> set[str]:
    return {work.kind for work in w.read(chunked_work.pending)}


@pytest.mark.parametrize("num_chunks", range(5))
@pytest.mark.parametrize("kind", STORIES)
def test_a_job_that_is_cancelled_between_two_chunks_of_anything_stays_cancelled(w, kind, num_chunks):
    job = STORIES[kind](w)
    assert kind.split()[0] in kinds(w)
    for _ in range(num_chunks):
        if w.read(chunked_work.turns) == [job.id]:
            w.do(maintenance.run_step, job.id)
    if w.job_state(job) not in ("RUNNING", "PENDING_RETRY"):
        return
    w.do(cancel.cancel_job, job.id)
    w.carry()
    assert (w.job_state(job), num_open(w, job), w.job_row(job).num_chunked_work) == ("CANCELLED", 0, 0)
    assert w.claim("b1", 10) == []
    check(w.db)


def test_a_task_that_is_released_while_its_job_is_being_cancelled_does_not_start(w):
    job = held(w)
    w.carry()
    w.do(cancel.cancel_job, job.id)
    last = max(job.ids.values())
    assert w.state(last) == "WAITING"
    assert w.do(hold.release, last).state == "CANCELLED"
    w.carry()
    assert (num_open(w, job), w.job_row(job).num_chunked_work) == (0, 0)


@pytest.mark.parametrize("end", [World.give_back, World.fault])
def test_a_run_that_is_lost_while_its_job_is_being_cancelled_is_not_repeated(w, end):
    job = a_wide_job(w)
    w.carry()
    runs = {run.task_id: run for run in w.claim("b1", 10)}
    w.do(cancel.cancel_job, job.id)
    last = max(job.ids.values())
    assert not w.task(last).killing
    end(w, runs[last])
    assert w.state(last) == "CANCELLED"


@pytest.mark.parametrize("num_chunks", range(8))
def test_a_cancellation_in_chunks_is_completed_whatever_the_job_was_doing(w, num_chunks):
    job = reset(w)
    for _ in range(num_chunks):
        w.do(maintenance.run_step, job.id)
    w.do(cancel.cancel_job, job.id)
    while kinds(w):
        w.do(maintenance.run_step, job.id)
        check(w.db)
    assert num_open(w, job) == 0


@pytest.mark.parametrize("kind", [kind for kind, how in CHUNKED.items() if how.states is not None])
@pytest.mark.parametrize("state", JobState)
def test_work_that_may_not_run_in_the_state_of_its_job_is_dropped(w, kind, state):
    """Also if the deciding transaction has not done so: a server of another release may not do it."""
    allowed = CHUNKED[kind].states or ()
    if state in allowed:
        return
    job = w.job({"a": []})
    add = "INSERT INTO chunked_work (id, kind, subject, job_id, position, args, created_at)"
    w.db.write(lambda tx: tx.run(f"{add} VALUES (1, '{kind}', :job, :job, 0, '', 0)", job=job.id))
    w.db.write(lambda tx: tx.run("UPDATE jobs SET num_chunked_work = 1, state = :s WHERE id = :j", s=state, j=job.id))
    before = w.states(job)
    w.do(maintenance.run_step, job.id)
    assert (kinds(w), w.job_row(job).num_chunked_work, w.states(job)) == (set(), 0, before)
    w.db.write(lambda tx: tx.run("UPDATE jobs SET state = 'RUNNING' WHERE id = :j", j=job.id))


@pytest.mark.parametrize("num_chunks", range(3))
def test_a_failure_that_cancels_the_rest_of_a_job_ends_its_reset(w, num_chunks):
    """A task that was released has failed again while others were still being reset."""
    job = a_failed_job(w, failure_policy="fail-fast")
    w.do(rerun.rerun_job, job.id)
    for _ in range(num_chunks):
        w.do(maintenance.run_step, job.id)
    w.do(hold.hold, job["0"])
    w.do(hold.release, job["0"])
    assert kinds(w) == {chunked_work.RESET}
    w.do_one("b1", 1)
    assert kinds(w) == {chunked_work.CANCEL}
    w.carry()
    assert (w.job_state(job), num_open(w, job)) == ("FAILED", 0)


def test_a_graph_whose_deletion_has_begun_cannot_be_completed_any_more(w):
    raw = a_graph({str(i): [] for i in range(10)})
    draft = draft_job(raw, now=w.now, ids=w.ids, rules=w.rules)
    *stages, commit = submit_job.submit_steps(w.group.id, draft, now=w.now, ids=w.ids, rules=w.rules)
    for stage in stages:
        w.db.write(stage)
    w.advance(3601)
    w.do(maintenance.run_step, "jobs")
    w.do(maintenance.run_step, draft.job_id)
    with pytest.raises(WrongState):
        w.db.write(commit)
    w.removed = True
    w.carry()
    assert (w.count("jobs"), w.count("task_results")) == (0, 0)


# ---------------------------------------------------------------- time


def test_what_is_started_late_in_a_round_has_its_whole_time(w):
    """A round that lasts longer than the tasks may wait."""
    job = a_wide_job(w, expiration_s=60)

    def clock() -> int:
        w.clock.advance(40)
        return w.now

    run_due(w.db, clock, w.ids, w.rules, timed=False)
    expiries = w.column("SELECT expires_at FROM task_to_run")
    assert (len(expiries), len(set(expiries)), max(expiries)) == (len(job.ids), 4, w.now + seconds(60))
    w.sweep()
    assert len(w.claim("b1", 10)) == 4


def test_nothing_is_due_once_the_clocks_disagree_in_the_middle_of_a_round(w):
    running = w.submit(deadline_s=1)
    w.take("b1")
    waiting = w.submit(expiration_s=1)
    w.advance(5)
    vars(w.db)["clock"] = lambda: w.now
    skew = [0]
    steps = Maintenance(w.db, lambda: w.now + skew[0], w.ids, w.rules).steps()
    assert next(steps).kind == "slices"
    skew[0] = seconds(10)
    assert [step.kind for step in steps if step.n] == []
    assert (w.state(waiting), w.state(running)) == ("EXPIRED", "RUNNING")


def test_while_the_end_of_an_outage_is_not_recorded_no_lease_ends_and_nothing_old_is_deleted(w):
    w.rules = structs.replace(w.rules, retention=seconds(3600))
    old = w.submit()
    w.do_one("b1")
    task = w.submit()
    w.take("b1")
    w.sweep()
    w.outage(2 * 3600)
    w.maintain()
    assert (w.state(task), w.exists(old)) == ("RUNNING", True)
    w.sweep()
    assert (w.state(task), w.exists(old)) == ("RUNNING", True)
    w.lose("b1")
    assert w.state(task) == "READY"


def test_rounds_far_apart_do_not_keep_a_lost_run_alive(w):
    """The heartbeat of the service does not depend on them."""
    task = w.submit()
    w.take("b1")
    w.sweep()
    for _ in range(4):
        for _ in range(10):
            w.clock.advance(9.5)
            w.db.write(lambda tx: outages.record_alive(tx, w.now, w.rules))
        w.maintain()
    assert w.state(task) == "READY"


# ---------------------------------------------------------------- turns


def test_a_lost_run_is_found_beside_the_cancellation_of_large_jobs(w):
    task = w.submit()
    w.take("b1")
    jobs = [a_wide_job(w, 40) for _ in range(3)]
    w.carry()
    for job in jobs:
        w.do(cancel.cancel_job, job.id)
    w.advance(301)
    w.db.write(lambda tx: outages.record_alive(tx, w.now, w.rules))
    done = [step.kind for step in Maintenance(w.db, lambda: w.now, w.ids, w.rules).steps()]
    assert "runs" in done[: maintenance._TURNS + len(maintenance.TIMED)]
    assert w.state(task) == "READY"


def test_a_small_job_does_not_wait_for_large_ones(w):
    large = [a_wide_job(w, 40) for _ in range(3)]
    small = a_wide_job(w, 4)
    steps = Maintenance(w.db, lambda: w.now, w.ids, w.rules).steps()
    while "READY" not in w.states(small).values() or "WAITING" in w.states(small).values():
        next(steps)
    assert all("WAITING" in w.states(job).values() for job in large)


def test_a_round_that_is_broken_off_goes_on_with_the_next_job(w, monkeypatch):
    monkeypatch.setattr(maintenance, "_TURNS", 2)
    jobs = [a_wide_job(w, 40) for _ in range(4)]
    upkeep = Maintenance(w.db, lambda: w.now, w.ids, w.rules)
    for _ in range(4):
        next(upkeep.steps(timed=False))
    started = [sum(state == "READY" for state in w.states(job).values()) for job in jobs]
    assert started == [3] * 4


# ---------------------------------------------------------------- locks and failures


def busy(w: World, monkeypatch: pytest.MonkeyPatch, kind: str, times: int) -> None:
    """Let the next steps of a kind meet a lock of another transaction."""
    real, left = maintenance.TIMED[kind], [times]

    def locked(uow: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StoreBusy("another transaction holds the lock")
        return real(uow)

    monkeypatch.setitem(maintenance.TIMED, kind, locked)


def test_a_step_that_meets_a_lock_is_skipped_and_the_others_go_on(w, monkeypatch):
    task, other = w.submit(deadline_s=60), w.submit(expiration_s=60)
    w.advance(61)
    busy(w, monkeypatch, "slices", 2)
    done = w.sweep()
    assert [step.kind for step in done if step.skipped] == ["slices", "slices"]
    assert (w.state(task), w.state(other)) == ("EXPIRED", "READY")
    w.sweep()
    assert w.state(other) == "EXPIRED"


def test_a_step_that_fails_is_told_and_the_others_go_on(w, monkeypatch):
    task, other = w.submit(deadline_s=60), w.submit(expiration_s=60)
    w.advance(61)

    def broken(uow: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setitem(maintenance.TIMED, "slices", broken)
    w.db.write(lambda tx: outages.record_alive(tx, w.now, w.rules))
    done = list(Maintenance(w.db, lambda: w.now, w.ids, w.rules).steps())
    assert [type(step.error) for step in done if step.kind == "slices"] == [ZeroDivisionError]
    assert (w.state(task), w.state(other)) == ("EXPIRED", "READY")


def test_rows_that_a_frozen_server_has_locked_are_left_out(w, dialect, open_db):
    """All others of the same kind are handled."""
    if dialect == "sqlite":
        pytest.skip("one server per SQLite file")
    stuck, free = w.job({"a": []}, expiration_s=60), w.job({"a": []}, expiration_s=60)
    w.carry()
    w.advance(61)
    frozen = open_db()

    def hold_lock(tx: Any) -> list[Any]:
        tx.all("SELECT id FROM jobs WHERE id = :id {for_update}", id=stuck.id)
        return w.sweep()

    with closing(frozen):
        done = frozen.write(hold_lock)
    assert [step.kind for step in done if step.skipped] == ["slices"]
    assert (w.states(stuck), w.states(free)) == ({"a": "READY"}, {"a": "EXPIRED"})
    w.sweep()
    assert w.states(stuck) == {"a": "EXPIRED"}


def test_a_heartbeat_of_the_service_gives_up_a_lock_soon(w, dialect, open_db):
    if dialect == "sqlite":
        pytest.skip("one server per SQLite file")
    w.sweep()
    frozen = open_db()

    def hold_lock(tx: Any) -> None:
        shared_numbers.lock(tx, "last_alive")
        with pytest.raises(StoreBusy):
            w.db.write(lambda other: outages.record_alive(other, w.now, w.rules), patient=False)

    with closing(frozen):
        frozen.write(hold_lock)


# ---------------------------------------------------------------- large deletions


def test_a_job_is_deleted_in_transactions_that_do_not_grow_with_it(w):
    job = a_failed_job(w)
    w.removed = True
    w.do(retention.delete_job, job.id, group_id=w.group.id)
    sizes = []
    while w.read(chunked_work.turns):
        before = w.count("task_results")
        w.do(maintenance.run_step, job.id)
        sizes.append(before - w.count("task_results"))
    assert max(sizes) <= 3
    assert (sum(sizes), w.count("jobs")) == (10, 0)


def test_a_group_is_deleted_although_a_job_of_it_is_reset(w):
    job = reset(w)
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.removed = True
    w.carry()
    assert (w.count("jobs"), w.count("resource_groups")) == (0, 0)
    assert not w.exists(job["0"])


def test_everything_ends_after_the_last_deadline_whatever_was_under_way(w):
    for begin in STORIES.values():
        begin(w)
    w.removed = True
    w.advance(8 * 86_400)
    w.sweep()
    check_settled(w.db, w.now)


def test_what_is_overdue_is_told_by_kind_and_what_waits_for_its_deletion_is_not(w):
    w.submit()
    w.do_one("b1")
    w.submit(retries=0)
    w.take("b1")
    began = w.now
    w.submit(expiration_s=60)
    job = a_wide_job(w)
    assert set(w.read(maintenance.overdue, w.now)) - {"events"} == {"chunks"}
    w.carry()
    w.advance(301)
    assert w.read(maintenance.overdue, w.now)["slices"] == began + seconds(60)
    assert w.read(maintenance.overdue, w.now)["runs"] == began + seconds(300)
    w.do(cancel.cancel_job, job.id)
    w.sweep()
    assert w.read(maintenance.overdue, w.now) == {}
    w.advance(40 * 86_400)
    assert "tasks" not in w.read(maintenance.overdue, w.now)
