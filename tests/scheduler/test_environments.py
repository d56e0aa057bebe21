"""Environments of functions: bots get them, their documents are kept, and a failed one ends the task."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import InvalidRequest, UnknownFile
from myrmidon.model.task_request import Function, Properties, properties_hash
from myrmidon.model.task_result import Fault
from myrmidon.scheduler import job_codes
from myrmidon.store.tables import stored_file
from myrmidon.store.views import run_files
from tests.builders import a_function, a_graph

REQUIREMENTS = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def w(world):
    world.bot("b1", dimensions={"environment": ["gpu", "requirements"]})
    return world


def a_graph_in(environment, value="requirements", **given):
    task = a_function(dimensions={"pool": ["default"], "environment": [value]}, **given)
    task["function"]["environment"] = environment
    return a_graph({"a": []}, {"a": {"task": task}})


def test_a_bot_gets_the_environment_and_may_fetch_its_document(w):
    w.store_file(REQUIREMENTS)
    job = w.job_raw(a_graph_in(REQUIREMENTS))
    assert w.take("b1").environment == REQUIREMENTS
    assert w.db.read(lambda tx: run_files.needs(tx, job["a"], REQUIREMENTS))
    assert not w.db.read(lambda tx: run_files.needs(tx, job["a"], OTHER))


def test_a_document_that_nobody_has_stored_is_named(w):
    with pytest.raises(UnknownFile) as error:
        w.job_raw(a_graph_in(REQUIREMENTS))
    assert REQUIREMENTS in str(error.value)


def test_a_named_environment_needs_no_file(w):
    w.job_raw(a_graph_in("name:gpu", "gpu"))
    assert w.take("b1").environment == "name:gpu"
    assert w.count("job_codes") == 0


def test_the_document_of_a_job_is_not_removed_as_an_unused_file(w):
    w.store_file(REQUIREMENTS)
    w.store_file(OTHER)
    w.job_raw(a_graph_in(REQUIREMENTS))
    later = w.now + (1 << 60)
    assert w.db.read(lambda tx: stored_file.unused(tx, REQUIREMENTS[0], before=later, n=10)) == []
    assert w.db.read(lambda tx: stored_file.unused(tx, OTHER[0], before=later, n=10)) == [OTHER]


def test_an_environment_that_cannot_be_built_ends_the_task_without_a_retry(w):
    w.store_file(REQUIREMENTS)
    job = w.job_raw(a_graph_in(REQUIREMENTS, retries=5, reruns=5))
    run = w.take("b1")
    fault = Fault(
        task_id=run.task_id, run=run.run, token=run.token, kind="environment_failed", message="no such package"
    )
    w.report(fault)
    result = w.task(job["a"])
    assert (result.state, result.reason) == ("CLIENT_ERROR", "environment_failed")
    assert w.job_state(job) == "FAILED"


def test_a_rerun_can_replace_the_requirements(w):
    for digest in (REQUIREMENTS, OTHER):
        w.store_file(digest)
    job = w.job_raw(a_graph_in(REQUIREMENTS))
    w.do(job_codes.replace_code, w.job_row(job), {REQUIREMENTS: OTHER})
    assert w.take("b1").environment == OTHER
    assert w.db.read(lambda tx: run_files.needs(tx, job["a"], OTHER))


@pytest.mark.parametrize("environment", ["name:gpu", REQUIREMENTS])
def test_bots_without_the_environment_cannot_be_asked_for(w, environment):
    raw = a_graph_in(environment, "other")
    with pytest.raises(InvalidRequest, match="because the function needs this environment"):
        w.job_raw(raw)


def test_equal_calls_in_other_environments_are_other_work():
    properties = Properties(dimensions={"pool": ["default"]})
    keys = {
        properties_hash(properties, function=Function(package_name="a", func_name="b", environment=environment))
        for environment in ("", REQUIREMENTS, OTHER, "name:gpu")
    }
    assert len(keys) == 4
