"""Lists of jobs and of their tasks."""

from __future__ import annotations

import pytest

from myrmidon.model.ids import show_task
from myrmidon.scheduler import submit_job
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.views import job_details
from myrmidon.store.views.job_details import JobFilter
from tests.world import SECOND, World, a_node, finish

LAST = (1 << 63) - 1


@pytest.fixture
def world(db):
    return World(db).found()


def submit_as(world: World, name: str) -> int:
    draft = draft_job(
        {"name": "job", "tasks": {"a": a_node(), "b": a_node("a")}}, now=world.now, ids=world.ids, request_key=None,
        authenticated=name, rules=world.rules,
    )  # fmt: skip
    stored = submit_job.submit_job(world.db.write, world.group, draft, now=world.now, ids=world.ids, rules=world.rules)
    return stored.job_id


def test_jobs_are_listed_by_who_has_submitted_them(world: World):
    of_ada, of_bob, last_of_ada = (show_task(submit_as(world, name)) for name in ("ada", "bob", "ada"))

    def listed(name: str | None, n: int = 10) -> list[str]:
        found, _ = world.db.read(lambda tx: job_details.jobs(tx, JobFilter(submitter=name), before=LAST, n=n))
        return [job.job_id for job in found]

    assert listed("ada") == [last_of_ada, of_ada]
    assert listed("ada", 1) == [last_of_ada]
    assert listed("bob") == [of_bob]
    assert listed("nobody") == []
    assert listed(None) == [last_of_ada, of_bob, of_ada]


def test_tasks_are_listed_by_the_time_of_their_change_and_by_state(world: World):
    world.bot("b1")
    job = submit_as(world, "ada")
    submitted = world.now
    world.now += 60 * SECOND
    world.report(finish(world.running("b1")[0]))

    def labels(**given: object) -> list[tuple[str, str]]:
        found = world.db.read(lambda tx: job_details.tasks(tx, job, n=10, **given))  # type: ignore[arg-type]
        return [(task.shown.label, task.shown.state) for task in found]

    assert labels() == [("a", "SUCCEEDED"), ("b", "READY")]
    assert labels(since=submitted) == labels()
    assert labels(since=submitted + 1, states=["SUCCEEDED"]) == [("a", "SUCCEEDED")]
    assert labels(since=world.now + 1) == []
