"""Resume: a job that is submitted again under its external id runs only what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest

from myrmidon.model.errors import Conflict, InvalidRequest
from myrmidon.scheduler import cancel, retention, submit_job
from myrmidon.scheduler.check_job import CheckedJob, check_job
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.predict import predict
from myrmidon.scheduler.resume import attached
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import stored_file
from tests.builders import (
    Graph,
    World,
    a_function,
    a_graph,
    a_part,
    blind_once,
    constant,
    finished,
    gathered,
    output_of,
    returned,
    shared,
    shared_output,
)

ID = "wc-1"


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def call(*inputs: Any, name: str = "f", code: str = "zip", identity: str = "f1", **given: Any) -> dict[str, Any]:
    """A node that calls a function with one output."""
    raw = a_function(inputs, given.pop("outputs", ["int64"]), name=name, **given)
    raw["function"] |= {"code": digest(code), "identity": digest(identity) if identity else ""}
    return {"task": raw}


def submit(w: World, nodes: Mapping[str, Any], *, external_id: str = ID, **given: Any) -> Graph:
    for name in ("zip", "zip 2", "zip 3"):
        w.store_file(digest(name))
    group = given.pop("group", None)
    raw = {"name": "a job", "external_id": external_id, "tasks": dict(nodes), **given}
    return w.job_raw(raw, key=f"PUT job {external_id}", resume=True, group=group)


def run_all(w: World, content: bytes = b"\x2a") -> list[int]:
    return w.work("b1", outputs=returned(content))


def answered(w: World, job: Graph) -> set[str]:
    return {label for label, task_id in job.ids.items() if w.task(task_id).deduped_from is not None}


def chain(second: str = "f2", code: str = "zip") -> dict[str, Any]:
    """Three calls, each of the result of the last one; ``second`` is the identity of the second."""
    return {
        "a": call(constant(), identity="f1", code=code),
        "b": call(output_of("a"), identity=second, code=code),
        "c": call(output_of("b"), identity="f3", code=code),
    }


# ---------------------------------------------------------------- the same document


def test_the_same_document_again_is_the_same_job(w):
    first = submit(w, chain())
    again = submit(w, chain())
    assert (again.id, again.ids, again.answer.repeated) == (first.id, first.ids, True)
    run_all(w)
    assert submit(w, chain()).answer.state == "SUCCEEDED"


def test_a_resumed_job_needs_an_external_id(lite):
    with pytest.raises(InvalidRequest) as refused:
        lite.job_raw(a_graph({"a": []}), resume=True)
    assert refused.value.problems[0].path == "external_id"


def test_a_cancelled_job_is_followed_by_a_new_one_that_answers_what_had_succeeded(w):
    first = submit(w, chain())
    w.finish(w.take("b1"), outputs=returned(b"\x2a"))
    w.do(cancel.cancel_job, first.id)
    again = submit(w, chain())
    assert (again.id != first.id, again.answer.revision, answered(w, again)) == (True, 2, {"a"})


def test_a_failed_job_past_its_deadline_is_followed_by_a_new_one(w):
    first = submit(w, chain(), deadline_s=60)
    w.finish(w.take("b1"), outputs=returned(b"\x2a"))
    w.do_one("b1", 1)
    assert (w.job_state(first), submit(w, chain(), deadline_s=60).id) == ("FAILED", first.id)
    w.advance(61)
    assert answered(w, submit(w, chain(), deadline_s=60)) == {"a"}


# ---------------------------------------------------------------- a changed document


def test_only_what_changed_runs(w):
    first = submit(w, chain())
    run_all(w)
    again = submit(w, chain(second="edited", code="zip 2"))
    assert (answered(w, again), w.states(again)) == ({"a"}, {"a": "SUCCEEDED", "b": "READY", "c": "WAITING"})
    assert w.task(again["a"]).deduped_from == first["a"]
    assert run_all(w, b"\x07") == [again["b"], again["c"]]
    assert w.job_state(again) == "SUCCEEDED"


def test_a_child_whose_inputs_stay_equal_does_not_run_again(w):
    submit(w, chain())
    run_all(w)
    again = submit(w, chain(second="edited", code="zip 2"))
    assert run_all(w) == [again["b"]]
    assert (answered(w, again), w.job_state(again)) == ({"a", "c"}, "SUCCEEDED")


def test_an_edit_of_other_code_runs_nothing(w):
    submit(w, chain())
    run_all(w)
    again = submit(w, chain(code="zip 2"))
    assert (answered(w, again), w.job_state(again)) == ({"a", "b", "c"}, "SUCCEEDED")


def test_without_an_identity_the_whole_code_counts(w):
    submit(w, {"a": call(identity="")})
    run_all(w)
    assert answered(w, submit(w, {"a": call(identity=""), "b": call(identity="g")})) == {"a"}
    assert answered(w, submit(w, {"a": call(identity="", code="zip 2")})) == set()


def test_a_function_that_is_installed_on_bots_runs_again(w):
    """Nobody knows whether its code has changed."""
    node = call()
    node["task"]["function"] |= {"code": "", "identity": ""}
    submit(w, {"a": node})
    run_all(w)
    assert answered(w, submit(w, {"a": node, "b": call()})) == set()


def test_a_failed_job_goes_on_from_the_failure(w):
    submit(w, chain())
    w.finish(w.take("b1"), outputs=returned(b"\x2a"))
    w.do_one("b1", 1)
    again = submit(w, chain(second="fixed", code="zip 2"))
    assert answered(w, again) == {"a"}
    assert run_all(w) == [again["b"], again["c"]]


def test_the_results_of_all_earlier_revisions_answer(w):
    first = submit(w, chain())
    run_all(w)
    submit(w, chain(second="edited", code="zip 2"))
    run_all(w, b"\x07")
    back = submit(w, chain(code="zip 3"))
    assert answered(w, back) == {"a", "b", "c"}
    assert w.task(back["b"]).deduped_from == first["b"]


@pytest.mark.parametrize("different", [{"timeout": 7}, {"env": {"A": "1"}}, {"service_account": "bot"}, {"pool": "p"}])
def test_another_environment_is_other_work(lite, different):
    lite.bot("b1")
    if "timeout" in different:
        different = {"execution_timeout_s": 7}
    submit(lite, {"a": call()})
    run_all(lite)
    assert answered(lite, submit(lite, {"a": call(**different)})) == set()


def test_a_command_is_answered_only_if_it_is_idempotent(w):
    nodes = {"a": {"task": a_graph({"a": []})["tasks"]["a"]["task"]}}
    nodes["b"] = {"task": a_graph({"b": []}, command=["b"], idempotent=True)["tasks"]["b"]["task"]}
    submit(w, nodes)
    w.work("b1")
    assert answered(w, submit(w, {**nodes, "c": call()})) == {"b"}


def test_an_inserted_item_does_not_run_those_after_it_again(w):
    submit(w, {f"count[{i}]": call(constant(bytes([i]))) for i in range(3)})
    run_all(w)
    again = submit(w, {f"count[{i}]": call(constant(bytes([item]))) for i, item in enumerate([9, 0, 1, 2])})
    assert answered(w, again) == {"count[1]", "count[2]", "count[3]"}


def test_equal_calls_are_answered_by_as_many_results(w):
    """A function that is not idempotent may be a random one: ten calls of it are ten samples."""
    first = submit(w, {f"sample[{i}]": call() for i in range(3)})
    for i, run in enumerate(w.claim("b1", 3)):
        w.report(finished(run, outputs=returned(bytes([i]))))
    again = submit(w, {f"sample[{i}]": call() for i in range(5)})
    sources = [w.task(again[f"sample[{i}]"]).deduped_from for i in range(5)]
    assert sources == [first["sample[0]"], first["sample[1]"], first["sample[2]"], None, None]


def test_equal_calls_of_results_are_told_apart_by_the_calls_that_made_them(w):
    def graph(n):
        samples = {f"sample[{i}]": call() for i in range(n)}
        return {**samples, **{f"g[{i}]": call(output_of(f"sample[{i}]"), identity="g") for i in range(n)}}

    first = submit(w, graph(2))
    run_all(w)
    again = submit(w, graph(3))
    assert [w.task(again[f"g[{i}]"]).deduped_from for i in range(2)] == [first["g[0]"], first["g[1]"]]
    run_all(w)
    assert w.task(again["g[2]"]).deduped_from is None


def test_equal_calls_of_one_job_do_not_answer_each_other(w):
    submit(w, {"x": call(identity="x"), "a": call(output_of("x"))})
    run_all(w)
    again = submit(w, {"x": call(identity="x2"), "y": call(identity="y"), "a": call(output_of("x"), identity="new"),
                       "b": call(output_of("y"), identity="new")})  # fmt: skip
    for _ in range(4):
        w.do_one("b1", outputs=returned(b"\x2a"))
    assert (answered(w, again), w.job_state(again)) == (set(), "SUCCEEDED")


def test_of_several_equal_results_that_of_the_same_label_answers(w):
    def graph(code):
        return {label: call(output_of(label.upper()), code=code) for label in "ab"} | {
            label: call(identity=label, code=code) for label in "AB"
        }

    first = submit(w, graph("zip"))
    run_all(w)
    again = submit(w, graph("zip 2"))
    assert [w.task(again[label]).deduped_from for label in "ab"] == [first["a"], first["b"]]


def test_gathered_inputs_and_shared_outputs_are_taken_over(w):
    def graph(code):
        made = {label: call(identity=label, outputs=[shared_output()], code=code) for label in "ab"}
        return {**made, "sum": call(gathered("a", "b"), identity="sum", code=code)}

    submit(w, graph("zip"))
    run_all(w)
    again = submit(w, graph("zip 2"))
    assert (answered(w, again), w.job_state(again)) == ({"a", "b", "sum"}, "SUCCEEDED")


# ---------------------------------------------------------------- what must not answer


def test_another_external_id_is_not_answered(w):
    submit(w, {"a": call()})
    run_all(w)
    submit(w, {"b": call(identity="other")}, external_id="wc-2")
    assert answered(w, submit(w, {"a": call()}, external_id="wc-2")) == set()


def test_another_group_is_not_answered(w):
    submit(w, {"a": call()})
    run_all(w)
    other = w.new_group("other")
    w.db.write(lambda tx: stored_file.insert(tx, digest("zip"), other.id, size=7, now=w.now))
    submit(w, {"b": call(identity="other")}, group=other)
    assert answered(w, submit(w, {"a": call()}, group=other)) == set()


@pytest.mark.parametrize(("secret", "expected"), [("aHVzaA==", {"a"}), ("b3RoZXI=", set())])
def test_another_secret_is_other_work(w, secret, expected):
    submit(w, {"a": call(secret_bytes="aHVzaA==")})
    run_all(w)
    assert answered(w, submit(w, {"a": call(secret_bytes=secret, code="zip 2")})) == expected


def test_an_old_result_does_not_answer(w):
    submit(w, {"a": call()})
    run_all(w)
    w.advance(7 * 86_400)
    assert answered(w, submit(w, {"a": call(code="zip 2")})) == set()


def test_a_deleted_revision_does_not_answer(w):
    w.removed = True
    first = submit(w, {"a": call()})
    run_all(w)
    second = submit(w, {"a": call(code="zip 2")})
    assert answered(w, second) == {"a"}
    w.do(retention.delete_job, first.id, group_id=w.group.id)
    w.sweep()
    assert answered(w, submit(w, {"a": call(code="zip 3")})) == set()


def test_a_task_that_runs_again_does_not_answer_meanwhile(w):
    first = submit(w, {"a": call()})
    run_all(w)
    w.rerun(first["a"], force=True)
    assert answered(w, submit(w, {"a": call(code="zip 2")})) == set()


def test_the_result_of_a_rerun_answers(w):
    first = submit(w, {"a": call()})
    run_all(w)
    w.rerun(first["a"], force=True)
    run_all(w, b"\x07")
    again = submit(w, {"a": call(code="zip 2")})
    assert (w.task(again["a"]).deduped_from, w.task(again["a"]).deduped_run) == (first["a"], 2)


def test_a_task_that_has_added_tasks_runs_again_and_those_are_answered(w):
    def grow(job, by):
        more = {"more[0]": call(constant(b"\x05"), identity="more")["task"]}
        w.extend(job, {}, raw={"tasks": {k: {"task": v} for k, v in more.items()}, "parts": {"join": {"0": [
            a_part("more[0]")]}}}, by=by)  # fmt: skip

    def graph(code):
        return {"expand": call(identity="expand", code=code),
                "join": {"requires": ["expand"], **call(gathered(), identity="join", code=code)}}  # fmt: skip

    first = submit(w, graph("zip"))
    run = w.take("b1")
    grow(first, run.task_id)
    w.finish(run, outputs=returned(b"\x2a"))
    run_all(w)
    again = submit(w, graph("zip 2"))
    assert answered(w, again) == set()
    run = w.take("b1")
    assert run.task_id == again["expand"]
    grow(again, run.task_id)
    w.finish(run, outputs=returned(b"\x2a"))
    assert answered(w, again) == {"more[0]", "join"}
    assert w.job_state(again) == "SUCCEEDED"


# ---------------------------------------------------------------- names and revisions


def test_the_new_revision_has_the_external_id_and_the_old_one_its_number(w):
    first = submit(w, {"a": call()})
    run_all(w)
    second = submit(w, {"a": call(identity="g")})
    third = submit(w, {"a": call(identity="h")})
    rows = [w.job_row(job) for job in (first, second, third)]
    assert [(row.external_id, row.revision) for row in rows] == [("wc-1~1", 1), ("wc-1~2", 2), ("wc-1", 3)]
    assert [job.answer.superseded for job in (first, second, third)] == [None, first.id, second.id]
    assert w.read(jobs.by_external, w.group.id, "wc-1~2") == second.id


def test_a_revision_that_still_runs_is_cancelled(w):
    first = submit(w, chain())
    run = w.take("b1")
    second = submit(w, chain(second="edited"))
    assert (w.job_state(first), w.task(first["a"]).killing) == ("CANCELLED", 1)
    assert w.task(first["b"]).reason == "superseded"
    w.finish(run, outputs=returned(b"\x2a"))
    assert w.states(second) == {"a": "READY", "b": "WAITING", "c": "WAITING"}


def test_a_document_without_resume_is_still_a_conflict(w):
    submit(w, {"a": call()})
    with pytest.raises(Conflict):
        w.job_raw({"name": "a job", "external_id": ID, "tasks": {"a": call(identity="g")}}, key=f"PUT job {ID}")


def test_a_large_graph_is_resumed_chunk_by_chunk(w, small_chunks):
    nodes = {f"n{i}": call(constant(bytes([i]))) for i in range(10)}
    nodes |= {f"m{i}": call(output_of(f"n{i}"), identity="m") for i in range(10)}
    first = submit(w, nodes)
    w.sweep()
    run_all(w)
    nodes["n4"] = call(constant(b"\x04"), identity="edited", code="zip 2")
    again = submit(w, nodes)
    w.sweep()
    ran = run_all(w, b"\x07")
    assert {again.label(task_id) for task_id in ran} == {"n4", "m4"}
    assert (w.job_state(again), w.job_row(first).external_id) == ("SUCCEEDED", "wc-1~1")
    assert w.job_row(again).external_id == ID


def test_a_staged_revision_leaves_the_id_to_the_earlier_one(w, small_chunks):
    """A server that dies while it stores the chunks of a new revision leaves everything as it was."""
    first = submit(w, {"a": call()})
    run_all(w)
    nodes = {f"n{i}": call() for i in range(8)}
    raw = {"name": "a job", "external_id": ID, "tasks": nodes}
    draft = draft_job(raw, now=w.now, ids=w.ids, rules=w.rules, resume=True, request_key=f"PUT job {ID}")
    *stages, _commit = submit_job.submit_steps(w.group.id, draft, now=w.now, ids=w.ids, rules=w.rules)
    for stage in stages:
        w.db.write(stage)
    assert (w.job_row(first).external_id, w.job_state(first)) == (ID, "SUCCEEDED")
    w.removed = True
    w.advance(3_600)
    w.sweep()
    again = submit(w, nodes)
    w.sweep()
    assert (again.answer.revision, len(answered(w, again))) == (2, 1)


def test_two_resumed_submits_at_once_give_one_job_or_two_revisions(w, monkeypatch):
    """The first look of the second one finds no job, as when both look at the same time."""
    first = submit(w, {"a": call()})
    blind_once(monkeypatch, jobs, "by_external", None)
    assert submit(w, {"a": call()}).id == first.id
    blind_once(monkeypatch, jobs, "by_external", None)
    other = submit(w, {"a": call(identity="g")})
    assert (w.job_row(first).external_id, w.job_row(other).external_id) == ("wc-1~1", ID)


# ---------------------------------------------------------------- the plan


def plan(w: World, nodes: Mapping[str, Any], *, external_id: str = ID, resume: bool = True) -> CheckedJob:
    raw = {"name": "a job", "external_id": external_id, "tasks": dict(nodes)}
    draft = draft_job(raw, now=w.now, ids=w.ids, rules=w.rules, resume=resume)
    found: CheckedJob = w.read(check_job, w.group.id, draft, now=w.now, rules=w.rules)
    return found


def reasons(checked: CheckedJob) -> dict[str, str]:
    return {node.label: node.predicted.why.value for node in checked.nodes}


def test_the_plan_says_what_will_be_answered_through_all_layers(w):
    first = submit(w, chain())
    run_all(w)
    nodes = {**chain(code="zip 2"), "d": call(output_of("c"), identity="f4")}
    planned = plan(w, nodes)
    assert reasons(planned) == {"a": "answered", "b": "answered", "c": "answered", "d": "new"}
    assert [node.deduped_from for node in planned.nodes[:3]] == [first["a"], first["b"], first["c"]]
    assert (planned.plan.earlier, planned.plan.attached) == (first.id, None)
    assert plan(w, chain()).plan.attached == first.id
    again = submit(w, nodes)
    assert answered(w, again) == {"a", "b", "c"}


def test_the_plan_stores_nothing(w):
    submit(w, chain())
    run_all(w)
    before = [w.count(table) for table in ("jobs", "task_requests", "dedupe_sources", "request_keys")]
    raw = {"name": "a job", "external_id": ID, "tasks": chain(second="edited", code="zip 2")}
    draft = draft_job(raw, now=w.now, ids=w.ids, rules=w.rules, resume=True)
    found = w.db.read(lambda tx: predict(tx, w.group.id, draft, now=w.now, rules=w.rules))
    assert [one.why for one in found.nodes] == ["answered", "code", "input_unknown"]
    assert w.db.read(lambda tx: attached(tx, w.group.id, ID, draft.body_hash, now=w.now)) is None
    assert [w.count(table) for table in ("jobs", "task_requests", "dedupe_sources", "request_keys")] == before


def test_the_plan_says_why_a_node_runs(w):
    command = {"task": a_graph({"x": []})["tasks"]["x"]["task"]}
    installed = call()
    installed["task"]["function"] |= {"code": "", "identity": ""}
    nodes = {
        "code": call(constant(b"1")),
        "definition": call(constant(b"2")),
        "inputs": call(constant(b"3")),
        "failed": call(constant(b"4")),
        "below": call(output_of("code"), identity="below"),
        "command": command,
        "installed": installed,
        "same": call(constant(b"5")),
    }
    first = submit(w, nodes)
    for run in w.claim("b1", 20):
        outputs = [] if run.task_id == first["command"] else returned(b"\x2a")
        w.report(finished(run, int(run.task_id == first["failed"]), outputs=outputs))
    run_all(w)
    changed = {
        **nodes,
        "code": call(constant(b"1"), identity="edited"),
        "definition": call(constant(b"2"), execution_timeout_s=7),
        "inputs": call(constant(b"9")),
        "added": call(constant(b"7")),
    }
    assert reasons(plan(w, changed)) == {
        "code": "code", "definition": "definition", "inputs": "inputs", "failed": "not_succeeded", "added": "new",
        "below": "input_unknown", "command": "not_idempotent", "installed": "installed_code", "same": "answered",
    }  # fmt: skip
    assert {n.label: n.predicted.parent for n in plan(w, changed).nodes}["below"] == "code"
    assert set(reasons(plan(w, nodes, resume=False)).values()) == {"not_idempotent"}


def test_the_plan_of_the_first_job_with_an_id_says_that_there_is_no_earlier_result(w):
    assert set(reasons(plan(w, chain())).values()) == {"no_result"}


def test_the_plan_of_the_same_document_is_what_its_job_does(w):
    nodes = {"a": call(constant(b"1")), "b": call(constant(b"2")), "c": call(output_of("b"), identity="g")}
    first = submit(w, nodes)
    for run in w.claim("b1", 9):
        w.report(finished(run, int(run.task_id == first["b"]), outputs=returned(b"\x2a")))
    planned = plan(w, nodes)
    assert planned.plan.attached == first.id
    assert reasons(planned) == {"a": "answered", "b": "not_succeeded", "c": "in_progress"}
    assert planned.nodes[0].deduped_from == first["a"]


def test_the_plan_of_cached_functions_and_idempotent_commands_needs_no_resume(w):
    command = a_graph({"x": []}, idempotent=True)["tasks"]["x"]["task"]
    nodes = {
        "a": call(constant(), idempotent=True),
        "b": call(gathered("a"), idempotent=True, identity="g"),
        "c": {"task": {**command, "outputs": []}, "requires": ["b"]},
    }
    submit(w, nodes)
    for _ in range(3):
        for run in w.claim("b1", 9):
            w.report(finished(run, outputs=[] if run.work.func_name is None else returned(b"\x2a")))
    assert set(reasons(plan(w, nodes, external_id="other", resume=False)).values()) == {"answered"}


def test_the_plan_does_not_tell_what_shared_values_of_other_groups_contain(w):
    other = w.new_group("other")
    w.do(stored_file.insert, digest("zip"), other.id, size=7)
    owner = submit(w, {"a": call(outputs=[shared_output()])}, external_id="owner", group=other)
    run_all(w, b"\x05")
    [value] = w.column("SELECT shared_value_id FROM task_outputs WHERE task_id = :id", id=owner["a"])
    submit(w, {"a": call(constant(b"\x05"), idempotent=True)})
    run_all(w)
    assert reasons(plan(w, {"a": call(constant(b"\x05"), idempotent=True)}, resume=False)) == {"a": "answered"}
    assert reasons(plan(w, {"a": call(shared(value), idempotent=True)}, resume=False)) == {"a": "no_result"}


# ---------------------------------------------------------------- a graph of three hundred nodes


def layered(changed: str = "") -> dict[str, Any]:
    """Ten layers of thirty calls, each of the results of two calls of the layer above; one may have other code."""
    nodes: dict[str, Any] = {}
    for layer in range(10):
        for place in range(30):
            label = f"n-{layer}-{place}"
            above = [output_of(f"n-{layer - 1}-{(place + step) % 30}") for step in (0, 1)] if layer else [
                constant(bytes([place]))
            ]  # fmt: skip
            edited = label == changed
            nodes[label] = call(*above, identity=f"{label} edited" if edited else label, code="zip")
    return nodes


def below(label: str) -> set[str]:
    """A node and everything that depends on it."""
    found = {label}
    for later, node in layered().items():
        if any(given.get("label") in found for given in node["task"]["inputs"]):
            found.add(later)
    return found


def run_layers(w: World, job: Graph, numbers: Mapping[str, bytes]) -> set[str]:
    """Let the bot do what is ready until nothing is; the labels that ran."""
    ran: set[str] = set()
    while runs := w.claim("b1", 100):
        labels = [job.label(run.task_id) for run in runs]
        ran.update(labels)
        made = [numbers.get(label, sha256(label.encode()).digest()[:4]) for label in labels]
        w.report(*(finished(run, outputs=returned(one)) for run, one in zip(runs, made, strict=True)))
        w.carry()
    return ran


def test_of_three_hundred_nodes_one_that_changed_runs_and_what_its_new_result_changes(w):
    assert len(run_layers(w, submit(w, layered()), {})) == 300
    changed = "n-6-4"
    again = submit(w, layered(changed))
    w.carry()
    assert run_layers(w, again, {changed: b"\x01", **dict.fromkeys(below(changed), b"\x01")}) == below(changed)
    assert (w.job_state(again), len(answered(w, again))) == ("SUCCEEDED", 300 - len(below(changed)))


def test_of_three_hundred_nodes_one_that_changed_runs_alone_if_its_result_is_the_same(w):
    run_layers(w, submit(w, layered()), {})
    again = submit(w, layered("n-3-7"))
    w.carry()
    assert run_layers(w, again, {}) == {"n-3-7"}
    assert (w.job_state(again), len(answered(w, again))) == ("SUCCEEDED", 299)
