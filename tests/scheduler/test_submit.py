"""Submitting tasks: what is stored, what is answered, and what is refused."""

from __future__ import annotations

from base64 import b64encode

import pytest
from msgspec import json, structs

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, WrongState
from myrmidon.model.ids import show_run
from myrmidon.scheduler import bots, claim, idempotency, resource_groups, submit
from myrmidon.store.tables import request_key, task_request
from myrmidon.store.views import task_search
from myrmidon.store.views.task_search import TaskSearch
from tests.builders import a_function, a_task, blind_once, constant, in_doubt, seconds
from tests.model.requests import nested
from tests.world import fault


def stored(w, task_id):
    return w.read(task_request.read, [task_id])[task_id]


def test_a_submitted_task_is_ready_for_a_bot(world):
    answer = world.submit_raw(a_task())
    assert (answer.state, world.state(answer.task_id)) == ("READY", "READY")
    assert answer.queues_to_wake == world.column("SELECT queue FROM task_to_run")


def test_a_lone_command_has_no_job_and_a_lone_function_is_a_job_of_one(world):
    command, function = world.submit_all(a_task(), a_function([constant()], ["int64"]))
    assert (command.job_id, world.job_row(function.job_id).num_tasks) == (None, 1)


def test_a_task_expires_from_the_moment_it_is_ready(world):
    world.submit(expiration_s=90)
    assert world.column("SELECT expires_at FROM task_to_run") == [world.now + seconds(90)]


def test_an_expiry_never_outlasts_the_deadline(world):
    world.submit(expiration_s=90, deadline_s=60)
    assert world.column("SELECT expires_at FROM task_to_run") == [world.now + seconds(60)]


def test_every_field_of_a_request_is_kept(world):
    task = world.submit(
        priority=7, user="ada", service_account="bot", retries=3, reruns=2, lease_s=60, metadata={"why": "because"},
        external_id="mine", routing="r.1", deadline_s=100, tags=["a:b"],
    )  # fmt: skip
    row = stored(world, task)
    assert (row.priority, row.user_name, row.service_account, row.retries, row.max_num_retries) == (
        7,
        "ada",
        "bot",
        3,
        2,
    )
    assert (row.lease, row.external_id, row.routing) == (seconds(60), "mine", "r.1")
    assert (row.deadline_at, json.decode(row.metadata)) == (world.now + seconds(100), {"why": "because"})


def test_manual_and_automatic_tags_find_a_task(world):
    task = world.submit(tags=["build:17"], user="ada", slices=[{"os": "Linux|Mac"}, {"gpu": "none"}])
    world.submit(user="bob", priority=90, slices=[{"os": "Windows", "pool": "other"}])
    tags = json.decode(world.column("SELECT tags FROM task_requests WHERE id = :id", id=task)[0])
    expected = ["build:17", "gpu:none", "os:Linux", "os:Mac", "pool:default", "priority:100"]
    assert tags == [*expected, "service_account:none", "user:ada"]
    for tag in tags:
        search = TaskSearch(terms=[[tag]])
        found, _ = world.read(lambda tx, search=search: task_search.page(tx, search, n=9))
        assert found[-1] == task, tag
        assert len(found) == 1 or tag == "service_account:none"


def test_tags_that_most_tasks_have_by_themselves_cost_no_row(world):
    world.submit(tags=["build:17"])
    assert world.column("SELECT tag FROM task_tags") == ["build:17"]


def test_caches_environment_and_files_reach_the_bot(world):
    world.bot("b1")
    world.submit(
        env={"A": "1", "B": ""}, env_prefixes={"PATH": ["bin"]}, caches=[{"name": "git", "path": "c/git"}],
        files={"digest": "ab" * 32, "size": 5}, paths=["out"], io_timeout_s=5, grace_period_s=7, relative_cwd="src",
    )  # fmt: skip
    given = json.decode(world.take("b1").work.properties)
    assert (given["env"], given["env_prefixes"], given["caches"]) == (
        {"A": "1", "B": ""}, {"PATH": ["bin"]}, [{"name": "git", "path": "c/git"}],
    )  # fmt: skip
    assert (given["inputs"]["digest"], given["outputs"], given["relative_cwd"]) == ("ab" * 32, ["out"], "src")
    assert (given["io_timeout_s"], given["grace_period_s"]) == (5, 7)


def test_an_evaluated_request_stores_nothing(world):
    answer = world.submit_raw(a_task(evaluate_only=True), key="k")
    assert answer.task_id == 0
    assert [world.count(t) for t in ("task_requests", "task_results", "task_dimensions", "request_keys")] == [0] * 4


def test_a_batch_keeps_the_order_and_the_errors_of_its_items(world):
    world.submit(external_id="taken")
    answers = world.submit_all(a_task(), a_task(external_id="taken"), a_task(external_id="free"))
    assert [type(answer).__name__ for answer in answers] == ["Submitted", "Conflict", "Submitted"]


def test_two_tasks_of_one_batch_cannot_share_an_external_id(world):
    first, second = world.submit_all(a_task(external_id="x"), a_task(external_id="x"))
    assert (first.state, type(second)) == ("READY", Conflict)


def test_the_same_external_id_may_be_used_in_another_group(world):
    world.submit(external_id="x")
    assert world.submit(external_id="x", group=world.new_group("other"))


# ---------------------------------------------------------------- slices and capacity


def test_a_task_that_does_not_wait_for_a_bot_ends_without_one(world):
    task = world.submit(wait_for_capacity=False)
    result = world.task(task)
    assert (result.state, result.abandoned_at, result.completed_at) == ("NO_RESOURCE", world.now, world.now)


def test_a_slice_that_no_bot_can_run_is_skipped(world):
    world.bot("b1", os="Linux")
    task = world.submit(
        slices=[{"os": "Plan9", "wait_for_capacity": False}, {"os": "Linux", "wait_for_capacity": False}]
    )
    assert (world.state(task), world.task(task).current_task_slice) == ("READY", 1)


def test_a_skipped_slice_lends_its_time_to_nobody(world):
    world.bot("b1", os="Linux")
    world.submit(slices=[{"os": "Plan9", "wait_for_capacity": False, "expiration_s": 500}, {"expiration_s": 60}])
    assert world.column("SELECT expires_at FROM task_to_run") == [world.now + seconds(60)]


@pytest.mark.parametrize("trouble", ["dead", "quarantined", "draining", "maintenance"])
def test_only_live_and_healthy_bots_count_as_capacity(lite, trouble):
    w = lite
    w.bot("b1", maintenance="new disk" if trouble == "maintenance" else None)
    if trouble == "dead":
        w.advance(601)
        w.sweep()
    elif trouble == "quarantined":
        w.do(bots.quarantine, "b1", "smells")
    elif trouble == "draining":
        w.do(bots.drain_bot, "b1", True)
    assert w.state(w.submit(wait_for_capacity=False)) == "NO_RESOURCE"


# ---------------------------------------------------------------- request keys


def test_the_same_key_gives_the_same_task(world):
    first = world.submit_raw(a_task(), key="k")
    again = world.submit_raw(a_task(), key="k")
    assert (again.task_id, again.repeated, world.count("task_results")) == (first.task_id, True, 1)


def test_the_same_key_with_another_body_is_refused(world):
    world.submit(key="k")
    with pytest.raises(Conflict):
        world.submit(key="k", priority=3)


def test_a_repeat_tells_how_far_the_task_has_come(world):
    world.bot("b1")
    task = world.submit(key="k")
    world.do_one("b1")
    again = world.submit_raw(a_task(), key="k")
    assert (again.task_id, again.state, again.repeated) == (task, "SUCCEEDED", True)


def test_a_key_belongs_to_its_group(world):
    first = world.submit(key="k")
    assert world.submit(key="k", group=world.new_group("other")) != first


def test_one_key_twice_in_a_batch_makes_one_task(world):
    first, second = world.submit_all(a_task(), a_task(), key="k")
    assert (second.task_id, second.repeated, world.count("task_results")) == (first.task_id, True, 1)


def test_one_key_for_two_bodies_in_a_batch_is_refused_once(world):
    answers = world.submit_all(a_task(), a_task(priority=3), key="k")
    assert [type(answer) for answer in answers] == [submit.Submitted, Conflict]


def test_one_key_twice_in_a_batch_is_refused_twice(world):
    answers = world.submit_all(*[a_task(parent="5cee4880088101")] * 2, key="k")
    assert [type(answer) for answer in answers] == [NotFound, NotFound]
    assert world.count("request_keys") == 0


def test_a_refused_task_leaves_its_key_free(world):
    world.submit_all(a_task(parent="5cee4880088101"), key="k")
    assert world.submit(key="k")


def test_a_key_is_claimed_by_one_verb_for_one_body(world):
    def claimed(verb, key, body):
        return world.db.write(lambda tx: idempotency.claim_request_key(tx, verb, key, body, now=world.now))

    assert [claimed(verb, "k", 1) for verb in ("drain", "drain", "cancel", "cancel")] == [True, False, True, False]
    assert claimed("drain", "another", 2)
    with pytest.raises(Conflict, match="another drain"):
        claimed("drain", "k", 2)


def test_a_submit_whose_commit_is_in_doubt_is_not_done_twice(world):
    drafts = [world.draft(a_task(external_id="x"), request_key="k"), world.draft(a_task())]
    first = world.do(submit.submit, world.group.id, drafts)
    again = world.do(in_doubt(submit.submit), world.group.id, drafts)
    assert ([a.task_id for a in again], world.count("task_results")) == ([a.task_id for a in first], 2)


def test_a_submit_in_doubt_that_did_not_happen_is_done(world):
    [answer] = world.do(in_doubt(submit.submit), world.group.id, [world.draft(a_task(), request_key="k")])
    assert (answer.state, answer.repeated) == ("READY", False)


def test_another_server_that_was_faster_with_the_key_is_believed(world, monkeypatch):
    first = world.submit_raw(a_task(), key="k")
    blind_once(monkeypatch, request_key, "read", {})
    again = world.submit_raw(a_task(), key="k")
    assert (again.task_id, again.repeated) == (first.task_id, True)


# ---------------------------------------------------------------- parents and children


def test_a_child_inherits_user_and_root(world):
    world.bot("b1")
    parent = world.submit(user="ada")
    run = world.take("b1")
    child = stored(world, world.submit(parent=show_run(parent, run.run), user="eve"))
    assert (child.user_name, child.root_task_id, child.parent_task_id, child.parent_run) == ("ada", parent, parent, 1)
    assert "user:ada" in json.decode(child.tags)


def test_a_grandchild_has_the_root_of_its_parent(world):
    world.bot("b1")
    root = world.submit()
    child = world.submit(parent=show_run(root, world.take("b1").run), priority=1)
    grandchild = world.submit(parent=show_run(child, world.take("b1").run))
    assert stored(world, grandchild).root_task_id == root


def test_a_parent_lists_its_children(world):
    world.bot("b1")
    parent = world.submit()
    run = world.take("b1")
    children = [world.submit(parent=show_run(parent, run.run)) for _ in range(2)]
    assert world.read(task_request.children, parent) == children
    assert world.task(parent).num_children == 2


def test_a_child_that_was_refused_or_only_evaluated_is_not_counted(world):
    world.bot("b1")
    parent = world.submit(external_id="x")
    by = {"parent": show_run(parent, world.take("b1").run)}
    world.submit_all(a_task(**by, evaluate_only=True), a_task(**by, external_id="x"))
    assert world.task(parent).num_children == 0


def test_only_a_running_task_can_have_children(world):
    parent = world.submit()
    with pytest.raises(WrongState):
        world.submit(parent=show_run(parent, 1))


def test_a_parent_that_does_not_exist_is_refused(world):
    with pytest.raises(NotFound):
        world.submit(parent="5cee4880088101")


def test_a_task_of_another_resource_group_cannot_be_a_parent(world):
    world.bot("b1")
    parent = world.submit(user="ada")
    run = world.take("b1")
    another = world.do(resource_groups.create_group, "another")
    with pytest.raises(NotFound):
        world.submit(parent=show_run(parent, run.run), group=another)


def test_a_run_that_has_not_been_cannot_be_a_parent(world):
    world.bot("b1")
    parent = world.submit()
    world.take("b1")
    with pytest.raises(WrongState):
        world.submit(parent=show_run(parent, 2))


# ---------------------------------------------------------------- secrets


def test_a_secret_reaches_the_claiming_run_and_nobody_else(world):
    world.bot("b1")
    task = world.submit(secret_bytes=b64encode(b"hush").decode())
    run = world.take("b1")
    assert (run.secret_bytes, "hush" in repr(run)) == (b"hush", False)
    told = json.encode([structs.asdict(stored(world, task)), structs.asdict(world.task(task)), world.story(task)])
    slices = world.column("SELECT properties FROM task_requests")
    events = world.column("SELECT body FROM outbox")
    assert not any(
        secret in text.encode() for text in [told.decode(), *slices, *events] for secret in (b"hush", b"aHVzaA")
    )


def test_a_task_without_a_secret_has_none(world):
    world.bot("b1")
    world.submit()
    assert (world.take("b1").secret_bytes, world.count("secret_bytes")) == (None, 0)


def test_stdin_reaches_every_run_of_its_task(world):
    world.bots("b1", "b2")
    task = world.submit(stdin=b64encode(b"\x00in\xff").decode())
    plain = world.submit()
    runs = {run.task_id: run for run in world.claim("b1", 5)}
    assert (runs[task].stdin, runs[plain].stdin) == (b"\x00in\xff", None)
    world.report(fault(runs[task], "shutdown"))
    assert [run.stdin for run in world.claim("b2", 5)] == [b"\x00in\xff"]


def test_runs_with_much_stdin_are_claimed_a_few_at_a_time(world, monkeypatch):
    monkeypatch.setattr(claim, "MAX_BYTES", 10)
    world.bot("b1")
    tasks = [world.submit(stdin=b64encode(b"x" * n).decode()) for n in (11, 4, 5, 2)] + [world.submit()]
    taken = [[run.task_id for run in world.claim("b1", 10)] for _ in range(3)]
    assert taken == [tasks[:1], tasks[1:3], tasks[3:]]


def test_a_draft_never_shows_its_secret(lite):
    draft = lite.draft(a_task(secret_bytes=b64encode(b"hush").decode()), request_key="k")
    assert "hush" not in repr(draft)
    assert "aHVzaA" not in repr(draft)


# ---------------------------------------------------------------- bad input


def test_all_problems_of_a_request_come_back_at_once(lite):
    raw = a_task(priority=256, tags=["nocolon"], retries=-1, command=[])
    with pytest.raises(InvalidRequest) as refused:
        lite.submit_raw(raw)
    paths = {problem.path for problem in refused.value.problems}
    assert paths == {"priority", "tags[0]", "retries", "slices[0].properties.command"}
    assert lite.count("task_requests") == 0


@pytest.mark.parametrize(
    "raw",
    [
        None, [], "x", 5, {}, {"name": "x"}, a_task(name="a\x00b"), a_task(dimensions={"pool": []}),
        a_task(command="x"),
        a_task(dimensions={"os": ["|".join(f"v{i}" for i in range(10_000))]}), a_task(metadata=nested(100_000)),
        a_task(dimensions={str(i): ["x"] for i in range(10_000)}), a_task(priority=10**400), a_task(priority=1.5),
        a_task(secret_bytes="?"), a_task(outputs=[{"type": "int"}]), {**a_task(), "surprise": 1},
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_a_stable_code(lite, raw):
    with pytest.raises(InvalidRequest) as refused:
        lite.submit_raw(raw)
    assert (refused.value.code, lite.count("task_results")) == ("request.invalid", 0)


@pytest.mark.parametrize("key", ["", "x" * 257, "a\x00b"])
def test_a_bad_request_key_is_refused(world, key):
    with pytest.raises(InvalidRequest):
        world.submit(key=key)
    assert world.count("task_requests") == 0


def test_a_group_that_does_not_exist_takes_no_tasks(world):
    with pytest.raises(NotFound):
        world.do(submit.submit, 12345, [world.draft(a_task())])


def test_a_group_that_is_being_deleted_takes_no_tasks(world):
    world.do(resource_groups.delete_group, world.group.id)
    with pytest.raises(WrongState):
        world.submit()
