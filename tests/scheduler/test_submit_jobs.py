"""Several jobs in one submit: all are stored, or none."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest, MyrmidonError
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.submit_job import JobSubmitted, batch_keys, submit_jobs
from tests.builders import a_function, a_graph

KEY = "the key of the call"


def submit(w: Any, *raws: dict[str, Any], key: str | None = KEY) -> list[JobSubmitted]:
    keys = batch_keys(key, len(raws))
    drafts = [draft_job(raw, now=w.now, ids=w.ids, request_key=one) for raw, one in zip(raws, keys, strict=True)]
    return w.db.write(
        lambda tx: submit_jobs(tx, w.group.id, drafts, request_key=key, now=w.now, ids=w.ids, rules=w.rules)
    )


def test_all_jobs_are_stored_and_their_tasks_run(world):
    world.bot("b1")
    stored = submit(world, a_graph({"a": [], "b": ["a"]}), a_graph({"c": []}))
    for _ in range(3):
        world.do_one("b1")
    assert [world.job_state(job.job_id) for job in stored] == ["SUCCEEDED", "SUCCEEDED"]


def test_the_same_call_again_returns_the_same_jobs(world):
    raws = [a_graph({"a": []}), a_graph({"a": []})]
    first = submit(world, *raws)
    again = submit(world, *raws)
    assert [job.job_id for job in again] == [job.job_id for job in first]
    assert [job.repeated for job in again] == [True, True]
    assert world.count("jobs") == 2


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_the_key_of_a_call_is_refused_for_another_number_of_jobs(world, num_jobs):
    submit(world, *[a_graph({"a": []})] * 2)
    with pytest.raises(Conflict, match="request key"):
        submit(world, *[a_graph({"a": []})] * num_jobs)
    assert world.count("jobs") == 2


def without_code() -> dict[str, Any]:
    task = a_function()
    task["function"]["code"] = "ab" * 32
    return a_graph({"f": []}, {"f": {"task": task}})


@pytest.mark.parametrize(
    "refused",
    [without_code(), a_graph({"x": []}, external_id="taken"), a_graph({f"t{n}": [] for n in range(1_000)})],
    ids=["a file that is missing", "an external id that is taken", "too many tasks"],
)
def test_if_one_job_is_refused_none_is_stored_and_the_key_is_free(world, refused):
    world.job({"x": []}, external_id="taken")
    before = {table: world.count(table) for table in ("jobs", "task_requests", "task_to_run", "request_keys")}
    with pytest.raises(MyrmidonError):
        submit(world, a_graph({"a": []}), refused, a_graph({"b": []}))
    assert {table: world.count(table) for table in before} == before
    assert len(submit(world, a_graph({"a": []}), a_graph({"b": []}))) == 2


def test_two_jobs_of_one_call_cannot_have_the_same_external_id(world):
    with pytest.raises(Conflict, match="the external id mine belongs to another job"):
        submit(world, a_graph({"a": []}, external_id="mine"), a_graph({"b": []}, external_id="mine"))
    assert world.count("jobs") == 0


def test_more_tasks_than_one_transaction_may_have_are_refused_with_a_way_out(world):
    with pytest.raises(InvalidRequest) as error:
        submit(world, *[a_graph({f"t{n}": [] for n in range(600)})] * 2)
    [problem] = error.value.problems
    assert (problem.path, problem.value) == ("jobs", "1200 tasks")
    assert "submit larger jobs one by one" in problem.allowed
