"""Messages: which events become one, on which exchange, and what it contains."""

from __future__ import annotations

import pytest
from msgspec import json, structs

from myrmidon.model.ids import show_run, show_task
from myrmidon.relays import messages
from myrmidon.scheduler import cancel
from myrmidon.store.tables import outbox


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def told(w, after=0):
    """All messages so far."""
    w.do(outbox.assign_positions, 1000)
    return w.read(lambda tx: messages.build(tx, outbox.after(tx, after, 1000)))


def kinds(w, subject):
    return [message.kind for message in told(w) if message.message_id.startswith(f"{show_task(subject)}.")]


def body_of(message):
    return json.decode(message.body)


def test_a_task_is_announced_pending_running_and_completed(w):
    task = w.submit()
    w.do_one("b1")
    assert kinds(w, task) == ["task-pending", "task-running", "task-completed"]
    last = told(w)[-1]
    assert last.message_id == f"{show_task(task)}.3"
    assert last.key == f"{show_task(task)}.1._.b1.default._.myrmidon._.."
    assert body_of(last) | {"at": 0} == {
        "version": 1, "kind": "task-completed", "message_id": last.message_id, "at": 0, "task": show_task(task),
        "seq": 3, "state": "SUCCEEDED", "generation": 1, "reason": "", "resource_group": "default",
        "name": "a task", "tags": body_of(last)["tags"], "pool": "default", "run": show_run(task, 1), "bot": "b1",
    }  # fmt: skip


def test_a_failed_task_and_one_that_was_cancelled_are_told_apart(w):
    failed, cancelled = w.submit(), w.submit()
    w.cancel(cancelled)
    w.do_one("b1", 1)
    assert kinds(w, failed)[-1] == "task-failed"
    assert kinds(w, cancelled)[-1] == "task-exception"


def test_a_flag_that_changes_is_not_announced(w):
    task = w.submit()
    w.take("b1")
    w.cancel(task)
    assert len(w.story(task)) == 3
    assert kinds(w, task) == ["task-pending", "task-running"]


def test_a_rerun_is_announced_again(w):
    task = w.submit(reruns=1)
    w.do_one("b1", 1)
    w.do_one("b1")
    assert kinds(w, task) == ["task-pending", "task-running", "task-pending", "task-running", "task-completed"]


def test_a_task_of_a_job_names_its_graph_label_and_routing(w):
    job = w.job({"a": []}, external_id="push-1", routing="nightly", nodes={"a": {"routing": "x.y"}})
    graph, task = told(w)
    if graph.kind.startswith("task-pending"):
        graph, task = task, graph
    assert graph.key == "_._._._._._.myrmidon.push-1.nightly"
    assert task.key == f"{show_task(job.ids['a'])}._._._.default._.myrmidon.push-1.nightly.x.y"
    body = body_of(task)
    assert (body["label"], body["job"], body["job_external_id"]) == ("a", show_task(job.id), "push-1")
    assert body_of(graph)["status"] == {"taskGraphId": "push-1", "schedulerId": "myrmidon", "state": "running"}


def test_the_dimension_worker_type_is_a_word_of_the_key(w):
    task = w.submit(worker_type="large")
    assert told(w)[0].key == f"{show_task(task)}._._._.default.large.myrmidon._.."


def test_tags_name_further_routes(w):
    w.submit(tags=["route:index.latest", "other:1", "route:" + "x" * 260])
    w.job({"a": []}, tags=["route:graphs"])
    routes = {message.kind: message.routes for message in told(w)[:2]}
    assert routes == {"task-pending": ["route.index.latest"], "task-graph-running": ["route.graphs"]}


def test_a_graph_is_announced_running_and_finished_once(w):
    job = w.job({"a": [], "b": ["a"]})
    w.work("b1")
    assert kinds(w, job.id) == ["task-graph-running", "task-graph-finished"]


def test_a_graph_is_announced_blocked_once_with_the_task_that_blocks_it_and_running_when_that_is_repaired(w):
    job = w.job({"a": [], "b": [], "c": ["a"]})
    w.work("b1", 1)
    assert kinds(w, job.id) == ["task-graph-running", "task-graph-blocked"]
    blocked = [body_of(message) for message in told(w) if message.kind == "task-graph-blocked"]
    assert blocked[0]["blocked_by"] in {show_task(job.ids["a"]), show_task(job.ids["b"])}
    w.rerun(job.ids["a"])
    w.rerun(job.ids["b"])
    w.work("b1")
    assert kinds(w, job.id)[2:] == ["task-graph-running", "task-graph-finished"]


def test_a_cancelled_graph_is_announced_blocked_once(w):
    job = w.job({"a": [], "b": ["a"]})
    w.do(cancel.cancel_job, job.id)
    w.carry()
    assert kinds(w, job.id) == ["task-graph-running", "task-graph-blocked"]
    assert body_of(next(m for m in told(w) if m.kind == "task-graph-blocked"))["state"] == "CANCELLED"


def test_every_extension_of_a_graph_is_announced(w):
    job = w.job({"a": []})
    w.extend(job, {"b": ["a"]})
    w.extend(job, {"c": ["a"]})
    assert kinds(w, job.id) == ["task-graph-running", "task-graph-extended", "task-graph-extended"]


def test_a_message_is_the_same_in_every_batch_that_contains_its_event(w):
    job = w.job({"a": [], "b": ["a"]})
    w.work("b1")
    whole = {message.message_id: message for message in told(w)}
    alone = [m for event in w.read(outbox.after, 0, 1000) for m in w.read(messages.build, [event])]
    assert {message.message_id: message for message in alone} == whole
    assert len(alone) == len(whole) == 8
    assert job.id


def test_a_task_that_was_deleted_meanwhile_gets_no_message(w):
    w.submit()
    w.sweep()
    events = w.read(outbox.after, 0, 10)
    gone = [structs.replace(event, subject=event.subject + 16) for event in events]
    assert w.read(messages.build, gone) == []
