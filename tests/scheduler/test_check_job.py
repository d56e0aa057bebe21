"""What would happen to a graph, and to a rerun, without changing anything."""

from __future__ import annotations

from functools import partial

import pytest

from myrmidon.model.dag import Dag
from myrmidon.scheduler.bots import drain_bot
from myrmidon.scheduler.check_job import check_job, critical_path, depths
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.rerun import preview_job, preview_task
from tests.builders import a_graph


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def checked(w, tasks, **given):
    draft = draft_job(a_graph(tasks, **given), now=w.now, ids=w.ids, rules=w.rules)
    return w.db.read(partial(check_job, group_id=w.group.id, draft=draft, now=w.now, rules=w.rules))


def test_nodes_are_matched_with_bots_that_work_and_with_others(w):
    w.bot("b2")
    w.do(drain_bot, "b2", True)
    found = checked(w, {"a": [], "b": ["a"]}, nodes={"b": {"dimensions": {"pool": ["default"], "os": ["Plan9"]}}})
    assert [(node.label, node.live, node.other) for node in found.nodes] == [("a", 1, 1), ("b", 0, 0)]
    assert found.depth == 2


def test_a_node_can_run_if_a_bot_matches_any_of_its_slices(w):
    plan9 = {"dimensions": {"pool": ["default"], "os": ["Plan9"]}}
    found = checked(w, {"a": []}, nodes={"a": {"slices": [plan9, {"dimensions": {"pool": ["default"]}}]}})
    assert [(node.live, node.other) for node in found.nodes] == [(1, 0)]


def test_earlier_results_and_durations_are_found_by_content_and_by_name(w):
    w.submit(name="slow", command=["x"])
    run = w.take("b1")
    w.advance(8)
    w.finish(run)
    done = w.submit(name="done", command=["y"], idempotent=True)
    w.work("b1")
    nodes = {"a": {"name": "slow", "command": ["x"]}, "b": {"name": "done", "command": ["y"], "idempotent": True}}
    found = checked(w, {"a": [], "b": ["a"], "c": ["b"]}, nodes=nodes)
    assert [(node.deduped_from, node.expected_s) for node in found.nodes] == [(None, 8.0), (done, 0.0), (None, None)]
    assert (found.expected_s, found.critical_path) == (8.0, ["a", "b", "c"])


def test_the_longest_path_is_the_one_that_takes_most_time():
    dag = Dag(parents=[[], [0], [0], [1, 2]], order=[0, 1, 2, 3], existing_parents=[[], [], [], []])
    assert critical_path(dag, [1.0, 5.0, 2.0, None]) == ([0, 1, 3], 6.0)
    assert depths(dag.parents, dag.order) == [0, 1, 1, 2]


def test_a_preview_names_what_a_rerun_would_run(w):
    job = w.job({"a": [], "b": ["a"], "c": []})
    w.work("b1")
    assert w.db.read(lambda tx: list(preview_job(tx, job.id, full=True))) == ["a", "b", "c"]
    assert w.db.read(lambda tx: list(preview_job(tx, job.id, full=False))) == []
    assert w.db.read(partial(preview_task, task_id=job["a"], cascade=True)) == sorted([job["a"], job["b"]])
    assert w.db.read(partial(preview_task, task_id=job["a"], cascade=False)) == [job["a"]]
