"""The files that functions need: code and large values, which their resource group has to store first."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import UnknownFile
from myrmidon.store.tables import stored_file
from tests.builders import a_function, a_graph, gathered


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task["function"].update(code="ab" * 32),
        lambda task: task["inputs"].append(
            {"kind": "constant", "type": "bytes", "payload": {"digest": "ab" * 32, "size": 7}}
        ),
        lambda task: task["inputs"].append({**gathered(), "shape": {"digest": "ab" * 32, "size": 7}}),
    ],
)
def test_a_function_needs_files_that_its_group_has_stored(lite, change):
    lite.bot("b1")
    task = a_function()
    change(task)
    other = lite.new_group("other")
    lite.db.write(lambda tx: stored_file.insert(tx, "ab" * 32, other.id, size=7, now=lite.now))
    job = lite.job({"a": []})
    for attempt in (
        lambda: lite.job_raw(a_graph({"f": []}, {"f": {"task": task}})),
        lambda: lite.extend(job, {"f": []}, nodes={"f": {"task": task}}),
    ):
        with pytest.raises(UnknownFile, match="abab"):
            attempt()
    assert lite.count("task_requests") == 1
    lite.store_file("ab" * 32, 7)
    assert lite.state(lite.job_raw(a_graph({"f": []}, {"f": {"task": task}}))["f"]) == "READY"


def test_a_lone_function_needs_its_files_too_and_harms_no_other_task(lite):
    task = a_function()
    task["function"]["code"] = "ab" * 32
    refused, stored = lite.submit_all(task, a_function())
    assert (type(refused), stored.state) == (UnknownFile, "READY")


def test_a_file_of_another_size_is_another_file(lite):
    lite.store_file("ab" * 32, 8)
    task = a_function([{"kind": "constant", "type": "bytes", "payload": {"digest": "ab" * 32, "size": 7}}])
    with pytest.raises(UnknownFile):
        lite.job_raw(a_graph({"f": []}, {"f": {"task": task}}))


def test_a_large_graph_with_a_file_that_is_missing_leaves_nothing_behind(lite, small_chunks):
    nodes = {f"f{n}": {"task": a_function()} for n in range(7)}
    nodes["f6"]["task"]["function"]["code"] = "ab" * 32
    raw = {**a_graph(dict.fromkeys(nodes, ()), nodes), "external_id": "mine"}
    with pytest.raises(UnknownFile):
        lite.job_raw(raw)
    assert (lite.count("jobs"), lite.count("task_requests")) == (0, 0)
    lite.store_file("ab" * 32)
    assert len(lite.states(lite.job_raw(raw))) == 7
