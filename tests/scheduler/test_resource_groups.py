"""Resource groups and shared values: who owns them, who may read them, when they go."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import Conflict, Forbidden, InvalidRequest, NotFound, UnknownFile, WrongState
from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import idempotency, resource_groups, retention, shared_values
from myrmidon.store.tables import shared_value
from tests.builders import a_function, in_doubt, inline, returned, shared

DIGEST = "ab" * 32


@pytest.fixture
def w(world):
    world.mine = GroupOwner(world.group.id)
    world.other = GroupOwner(world.new_group("other").id)
    return world


def a_value(w, owner=None, content=b"1"):
    return w.do(shared_values.create_value, owner or w.mine, "int64", inline(content))


# ---------------------------------------------------------------- groups


def test_a_group_is_found_by_its_name(w):
    assert w.read(resource_groups.get_group, "default") == w.group


def test_a_group_that_does_not_exist_is_not_found(w):
    with pytest.raises(NotFound):
        w.read(resource_groups.get_group, "nobody")


def test_a_name_is_given_once(w):
    with pytest.raises(Conflict):
        w.new_group("default")


@pytest.mark.parametrize("name", ["", " x", "x ", "a\x00b", "x" * 257])
def test_a_bad_name_is_refused(w, name):
    with pytest.raises(InvalidRequest):
        w.new_group(name)


def test_groups_are_listed_by_name(w):
    w.new_group("Zed")
    listed = [group.external_id for group in w.read(resource_groups.list_groups)]
    assert listed == ["Zed", "default", "other"]
    assert [g.external_id for g in w.read(resource_groups.list_groups, after="Zed", n=1)] == ["default"]


def test_names_that_differ_in_case_are_different(w):
    assert w.new_group("Default").id != w.group.id


# ---------------------------------------------------------------- values


def test_a_value_is_read_as_it_was_written(w):
    value = w.do(shared_values.create_value, w.mine, " List< int > ", inline(b"\x00\xff"))
    found = w.read(shared_values.get_value, w.group.id, value.id)
    assert (found, found.type, found.payload) == (value, "List<int64>", b"\x00\xff")


def test_a_large_value_is_named_by_its_digest(w):
    w.store_file(DIGEST, 5000)
    value = w.do(shared_values.create_value, w.mine, "bytes", Payload(digest=DIGEST, size=5000))
    assert w.read(shared_values.get_value, w.group.id, value.id).digest == DIGEST


def test_a_file_that_the_group_has_not_stored_is_refused(w):
    w.store_file(DIGEST, 5000)
    for owner, size in ((w.other, 5000), (w.mine, 4999)):
        with pytest.raises(UnknownFile):
            w.do(shared_values.create_value, owner, "bytes", Payload(digest=DIGEST, size=size))
    assert w.count("shared_values") == 0


@pytest.mark.parametrize(
    "payload",
    [
        Payload(size=0), Payload(inline=b"x" * 1025, size=1025), Payload(inline=b"x", digest=DIGEST, size=1),
        Payload(inline=b"x", size=2), Payload(digest=DIGEST, size=(64 << 20) + 1), Payload(digest=DIGEST, size=-1),
    ],
)  # fmt: skip
def test_a_payload_that_makes_no_sense_is_refused(lite, payload):
    with pytest.raises(InvalidRequest):
        lite.do(shared_values.create_value, GroupOwner(lite.group.id), "int64", payload)
    assert lite.count("shared_values") == 0


@pytest.mark.parametrize("kind", ["", "List<", "Map<double,int>", "x" * 2000, 5])
def test_a_type_that_is_none_is_refused(lite, kind):
    with pytest.raises(InvalidRequest):
        lite.do(shared_values.create_value, GroupOwner(lite.group.id), kind, inline())


def test_a_group_cannot_read_what_it_does_not_reference(w):
    value = a_value(w)
    with pytest.raises(NotFound):
        w.do(shared_values.get_value, w.other.resource_group_id, value.id)
    with pytest.raises(NotFound):
        w.do(shared_values.ref_value, w.other, value.id)


def test_a_group_reads_what_its_jobs_reference(w):
    value = a_value(w)
    job = w.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})
    w.do(shared_values.unref_value, w.mine, value.id)
    assert w.read(shared_values.get_value, w.group.id, value.id) == value
    assert w.read(shared_values.list_values, JobOwner(w.group.id, job.id)) == [value]


def test_values_are_listed_by_owner_and_page(w):
    mine = [a_value(w) for _ in range(3)]
    a_value(w, w.other)
    assert w.read(shared_values.list_values, w.mine) == mine
    assert w.read(shared_values.list_values, w.mine, after=mine[0].id, n=1) == [mine[1]]
    assert w.read(shared_values.list_values, w.mine, after=mine[2].id) == []


def test_the_last_reference_takes_the_value_with_it(w):
    value = a_value(w)
    w.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    assert w.do(shared_values.unref_value, w.mine, value.id) is True
    assert (w.count("shared_values"), w.count("shared_value_localities")) == (0, 0)


def test_a_value_lives_while_something_references_it(w):
    value = a_value(w)
    job = w.job({"a": []})
    owner = JobOwner(w.group.id, job.id)
    w.do(shared_values.ref_value, owner, value.id)
    w.do(shared_values.ref_value, owner, value.id)
    assert w.do(shared_values.unref_value, w.mine, value.id) is False
    assert w.do(shared_values.unref_value, owner, value.id) is True


def test_a_value_lives_while_another_job_uses_it_although_the_first_one_drops_it(w):
    """Dropped by the job that has made it, and by its group, before and while the other job runs."""
    w.bot("b1")
    first = JobOwner(w.group.id, w.job({"a": []}).id)
    w.do_one("b1")
    value = a_value(w, first)
    using = {"b": {"task": a_function([shared(value.id)])}, "c": {"task": a_function([shared(value.id)])}}
    second = w.job({"b": [], "c": ["b"]}, nodes=using)
    assert w.do(shared_values.unref_value, first, value.id) is False
    run = w.take("b1")
    assert [given.id for given in run.inputs] == [value.id]
    assert w.do(shared_values.unref_value, w.mine, value.id) is False
    w.finish(run)
    later = w.take("b1")
    assert [given.id for given in later.inputs] == [value.id]
    w.finish(later)
    assert w.job_state(second) == "SUCCEEDED"
    w.removed = True
    w.do(retention.delete_job, second.id, group_id=w.group.id)
    w.carry()
    assert w.count("shared_values") == 0


def test_a_value_may_belong_to_a_job_from_the_start(w):
    job = w.job({"a": []})
    value = a_value(w, JobOwner(w.group.id, job.id))
    assert w.read(shared_value.of_job, job.id) == [value.id]


def test_dropping_a_reference_twice_is_the_same_as_once(w):
    value = a_value(w)
    w.do(shared_values.unref_value, w.mine, value.id)
    assert w.do(shared_values.unref_value, w.mine, value.id) is False


def test_a_job_keeps_the_values_that_its_tasks_read(w):
    value = a_value(w)
    job = w.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})
    with pytest.raises(Forbidden):
        w.do(shared_values.unref_value, JobOwner(w.group.id, job.id), value.id)


def test_a_job_keeps_the_values_that_its_tasks_wrote(w):
    w.bot("b1")
    job = w.job({"a": []}, nodes={"a": {"task": a_function([], [{"type": "int64", "shared": True}])}})
    w.do_one("b1", outputs=returned(b"1"))
    [value] = w.read(shared_values.list_values, JobOwner(w.group.id, job.id))
    with pytest.raises(Forbidden):
        w.do(shared_values.unref_value, JobOwner(w.group.id, job.id), value.id)


@pytest.mark.parametrize("owner", ["no group", "deleted group", "no job", "foreign job"])
def test_an_owner_must_exist(w, owner):
    job = w.job({"a": []})
    if owner == "deleted group":
        w.do(resource_groups.delete_group, w.other.resource_group_id)
    owners = {"no group": GroupOwner(17), "deleted group": w.other, "no job": JobOwner(w.group.id, 17)}
    with pytest.raises(NotFound):
        a_value(w, owners.get(owner, JobOwner(w.other.resource_group_id, job.id)))


def test_a_group_whose_creation_is_in_doubt_is_created_once(w):
    again = w.do(in_doubt(resource_groups.create_group), "other")
    assert (again.id, w.count("resource_groups")) == (w.other.resource_group_id, 2)


def test_a_value_whose_creation_is_in_doubt_is_created_once(w):
    made = w.do(shared_values.create_value, w.mine, "int64", inline(), value_id=4711)
    again = w.do(in_doubt(shared_values.create_value), w.mine, "int64", inline(), value_id=4711)
    assert (again, w.count("shared_values")) == (made, 1)


# ---------------------------------------------------------------- localities


def test_localities_are_noted_and_forgotten(w):
    value = a_value(w)
    w.do(shared_values.change_localities, value.id, add=["10.0.0.2", "10.0.0.1", "10.0.0.1"])
    assert w.read(shared_value.localities, [value.id]) == {value.id: ["10.0.0.1", "10.0.0.2"]}
    for _ in range(2):
        assert w.do(shared_values.change_localities, value.id, drop=["10.0.0.1"]) == ["10.0.0.2"]


@pytest.mark.parametrize("address", ["", "x" * 41, "a\x00b"])
def test_a_bad_address_is_refused(w, address):
    value = a_value(w)
    with pytest.raises(InvalidRequest):
        w.do(shared_values.change_localities, value.id, add=[address])


def test_a_deleted_value_gets_no_locality(w):
    value = a_value(w)
    w.do(shared_values.unref_value, w.mine, value.id)
    with pytest.raises(NotFound):
        w.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    assert w.count("shared_value_localities") == 0


def test_the_answer_of_a_call_is_kept_under_its_key(w):
    claim: dict[str, Any] = {"body": {}, "now": w.now, "subject": 7}
    assert w.do(lambda tx: idempotency.claim_request_key(tx, "drop", "k", **claim))
    assert not w.do(lambda tx: idempotency.claim_request_key(tx, "drop", "k", **claim))
    assert w.read(idempotency.subject_of_key, "drop", "k") == 7
    w.do(idempotency.set_subject_of_key, "drop", "k", -2)
    assert w.read(idempotency.subject_of_key, "drop", "k") == -2


def test_ensure_group_gives_the_same_group_again(world):
    made = world.do(resource_groups.ensure_group, "again")
    assert world.do(resource_groups.ensure_group, "again") == made


def test_a_repeated_create_group_says_the_same_id_and_gets_its_group(world):
    made = world.do(resource_groups.create_group, "mine", group_id=77)
    assert world.do(resource_groups.create_group, "mine", group_id=77) == made
    with pytest.raises(Conflict):
        world.do(resource_groups.create_group, "mine", group_id=78)


# ---------------------------------------------------------------- deletion with force


def gone(w, group_id: int) -> bool:
    """Whether nothing of a group is left, in any table that says whose a row is."""
    w.removed = True
    tables = ("task_requests", "jobs", "task_runs", "task_dimensions", "resource_group_to_shared_value_ref")
    rows = [w.column(f"SELECT COUNT(*) FROM {name} WHERE resource_group_id = :id", id=group_id) for name in tables]
    return rows == [[0]] * len(tables) and w.column("SELECT id FROM resource_groups WHERE id = :id", id=group_id) == []


def test_a_group_is_deleted_under_running_jobs(w):
    w.bots("b1", "b2")
    value = a_value(w)
    reader = {"task": a_function([shared(value.id)])}
    job = w.job({"a": [], "b": ["a"]}, nodes={"a": reader})
    lone = w.submit()
    runs = [w.take("b1"), w.take("b2")]
    waiting = w.submit()
    with pytest.raises(WrongState):
        w.do(resource_groups.delete_group, w.group.id)
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.carry()
    assert w.job_state(job) == "CANCELLED"
    assert (w.state(job["b"]), w.state(waiting)) == ("CANCELLED", "CANCELLED")
    assert {run.task_id for run in runs} == {job["a"], lone}
    assert [w.state(run.task_id) for run in runs] == ["RUNNING", "RUNNING"], "the deletion waits for them"
    with pytest.raises(WrongState):
        w.submit()
    for bot, run in zip(("b1", "b2"), runs, strict=True):
        assert w.beat(bot, run) == [(run.task_id, run.run)]
        w.finish(run)
        w.carry()
    assert gone(w, w.group.id)
    assert (w.count("shared_values"), w.count("chunked_work")) == (0, 0)


def test_a_deletion_ends_when_a_bot_is_lost(w):
    w.bot("b1")
    w.submit()
    w.take("b1")
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.carry()
    assert not gone(w, w.group.id)
    w.lose("b1")
    w.sweep()
    w.carry()
    assert gone(w, w.group.id)


def test_jobs_that_wait_for_a_retry_and_tasks_of_failed_jobs_are_cancelled_too(w):
    w.bot("b1")
    retried = w.job({"a": []}, max_num_retries=3)
    failed = w.job({"a": [], "b": ["a"]})
    for _ in range(2):
        w.do_one("b1", exit_code=1)
    assert (w.job_state(retried), w.job_state(failed)) == ("PENDING_RETRY", "FAILED")
    assert w.state(failed["b"]) == "WAITING"
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.carry()
    assert gone(w, w.group.id)


def test_the_values_of_other_groups_survive(w):
    value = a_value(w)
    w.do(shared_values.ref_value, w.other, value.id, for_any_group=True)
    w.job({"a": []}, nodes={"a": {"task": a_function([shared(value.id)])}})
    w.do(resource_groups.delete_group, w.group.id, force=True)
    w.carry()
    assert gone(w, w.group.id)
    assert w.read(shared_values.get_value, w.other.resource_group_id, value.id) == value
