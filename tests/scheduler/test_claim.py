"""Claiming: who gets what, and what a lost reply costs."""

from __future__ import annotations

from hashlib import blake2s

import pytest
from msgspec import structs

from myrmidon.model import dimensions
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.task_to_run import LIFO, OF_FUNCTIONS, READS_SHARED, USES_CACHES, Accepts, Order
from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import bots, claim, shared_values
from myrmidon.store.tables import pool_order, task_queues, task_result, task_to_run
from tests.builders import a_function, blind_once, inline, shared


def test_a_claimed_task_runs(world):
    world.bot("b1", os="Linux")
    task = world.submit(os="Linux")
    [run] = world.claim("b1")
    assert (run.task_id, run.run, world.state(task)) == (task, 1, "RUNNING")
    assert (world.task(task).bot_id, world.last_run(task).bot_id) == ("b1", "b1")


def test_a_run_remembers_what_its_bot_was(world):
    world.bot("b1", os="Linux", version="v7")
    world.submit()
    world.claim("b1")
    assert world.column("SELECT bot_version FROM task_runs") == ["v7"]
    assert '"os":["Linux"]' in world.column("SELECT bot_dimensions FROM task_runs")[0]


def test_a_bot_gets_nothing_that_it_cannot_run(world):
    world.bot("b1", os="Linux")
    world.submit(os="Mac")
    world.submit(pool="other")
    assert world.claim("b1", 10) == []


def test_a_bot_needs_every_value_and_any_alternative(world):
    world.bot("b1", dimensions={"os": ["Linux", "Debian"], "gpu": ["none"]})
    yes = world.submit(dimensions={"os": ["Linux", "Debian|Ubuntu"]})
    world.submit(dimensions={"os": ["Linux", "Ubuntu"]})
    assert [run.task_id for run in world.claim("b1", 10)] == [yes]


def test_a_task_for_one_bot_goes_to_that_bot(world):
    world.bots("b1", "b2")
    task = world.submit(id="b2")
    assert (world.claim("b1"), [run.task_id for run in world.claim("b2")]) == ([], [task])


def test_a_claim_takes_up_to_n(world):
    world.bot("b1")
    world.submit_many(5)
    assert [len(world.claim("b1", n)) for n in (3, 3, 3)] == [3, 2, 0]


def test_a_claim_takes_no_more_than_the_rules_allow(lite):
    lite.bot("b1")
    lite.submit_many(300)
    assert len(lite.claim("b1", 1000)) == 256


@pytest.mark.parametrize("n", [0, -1])
def test_a_bot_that_wants_nothing_gets_nothing(world, n):
    world.bot("b1")
    world.submit()
    assert world.claim("b1", n) == []


def test_two_bots_never_get_the_same_task(world):
    world.bots("b1", "b2")
    world.submit_many(4)
    first, second = world.claim("b1", 2), world.claim("b2", 2)
    assert len({run.task_id for run in [*first, *second]}) == 4


# ---------------------------------------------------------------- nonces and sessions


def test_a_repeated_nonce_gets_its_runs_again(world):
    world.bot("b1")
    world.submit_many(3)
    first = world.claim("b1", 2, nonce=7)
    assert world.claim("b1", 2, nonce=7) == first
    assert world.count("task_to_run") == 1


def test_a_repeated_nonce_does_not_get_runs_that_are_over(world):
    world.bot("b1")
    world.submit_many(2)
    first, second = world.claim("b1", 2, nonce=7)
    world.finish(first)
    assert world.claim("b1", 2, nonce=7) == [second]


def test_an_older_nonce_gets_nothing(world):
    world.bot("b1")
    world.submit_many(2)
    world.claim("b1", nonce=7)
    assert world.claim("b1", nonce=6) == []


def test_a_new_session_starts_its_nonces_anew(world):
    world.bot("b1")
    world.claim("b1", nonce=7)
    world.bot("b1")
    task = world.submit()
    assert [run.task_id for run in world.claim("b1", nonce=1)] == [task]


def test_a_token_is_not_stored_and_proves_the_claim(world):
    world.bot("b1")
    task = world.submit()
    [run] = world.claim("b1")
    assert world.last_run(task).token_hash == blake2s(run.token.encode()).hexdigest() != run.token
    assert run.token not in repr(run)


def test_a_bot_that_never_shook_hands_gets_an_error(world):
    with pytest.raises(NotFound):
        world.do(claim.claim, claim.Poll(bot_id="nobody", session=1, nonce=1))


def test_a_bot_of_an_old_session_must_shake_hands_again(world):
    world.bot("b1", session=2)
    with pytest.raises(WrongState):
        world.do(claim.claim, claim.Poll(bot_id="b1", session=1, nonce=1))


def test_a_bot_that_counts_as_dead_must_shake_hands_again(world):
    world.bot("b1")
    world.advance(601)
    world.sweep()
    with pytest.raises(WrongState):
        world.claim("b1")


@pytest.mark.parametrize("verb", [bots.quarantine, bots.drain_bot])
def test_a_bot_that_was_put_aside_gets_nothing(world, verb):
    world.bot("b1")
    world.submit()
    world.do(verb, "b1", "smells" if verb is bots.quarantine else True)
    assert world.claim("b1") == []


# ---------------------------------------------------------------- order


def order(w, n=20):
    return [run.task_id for run in w.claim("b1", n)]


def test_priorities_9_8_6_7_8_run_as_6_7_8_8_9(world):
    world.bot("b1")
    tasks = []
    for priority in (9, 8, 6, 7, 8):
        tasks.append(world.submit(priority=priority))
        world.advance(1)
    assert order(world) == [tasks[i] for i in (2, 3, 1, 4, 0)]


def test_equal_tasks_run_in_the_order_of_their_creation(world):
    world.bot("b1")
    tasks = []
    for _ in range(3):
        tasks.append(world.submit())
        world.advance(0.001)
    assert order(world) == tasks


def test_a_lifo_pool_runs_the_newest_first(world):
    world.bot("b1")
    world.do(pool_order.set_order, "default", Order(LIFO, 0))
    tasks = []
    for _ in range(3):
        tasks.append(world.submit())
        world.advance(1)
    assert order(world) == tasks[::-1]


def test_ageing_lets_an_old_task_overtake_a_better_one(world):
    world.bot("b1")
    world.do(pool_order.set_order, "default", Order("fifo", 10_000_000))
    old = world.submit(priority=101)
    world.advance(11)
    new = world.submit(priority=100)
    assert order(world) == [old, new]


def test_without_ageing_it_does_not(world):
    world.bot("b1")
    old = world.submit(priority=101)
    world.advance(86_000)
    new = world.submit(priority=100)
    assert order(world) == [new, old]


def test_the_new_year_does_not_turn_the_order_around(world):
    world.bot("b1")
    world.clock.now = 1_798_761_599_000_000  # a second before 2027
    old = world.submit()
    world.advance(2)
    new = world.submit()
    assert order(world) == [old, new]


def test_the_best_priority_of_all_queues_runs_first(world):
    world.bot("b1", dimensions={"os": ["Linux"], "gpu": ["none"]})
    b, a, c = world.submit(priority=20, os="Linux"), world.submit(priority=10), world.submit(priority=30, gpu="none")
    assert [world.claim("b1")[0].task_id for _ in range(3)] == [a, b, c]


def test_one_deep_queue_among_many_gives_all_that_is_asked_for(lite):
    lite.bot("b1", dimensions={f"d{i}": ["x"] for i in range(25)})
    for i in range(25):
        lite.submit(priority=50, **{f"d{i}": "x"})
    deep = lite.submit_many(120, priority=10)
    assert [run.task_id for run in lite.claim("b1", 100)] == deep[:100]


def test_groups_take_turns_at_equal_priority(world):
    world.bot("b1")
    other = world.new_group("other")
    mine = world.submit_many(4)
    theirs = [world.submit(group=other) for _ in range(2)]
    assert set(order(world, 4)) == {*mine[:2], *theirs}


def test_the_group_that_runs_less_is_served_first(world):
    world.bots("b1", "b2")
    other = world.new_group("other")
    world.submit_many(3)
    world.claim("b2", 2)
    world.advance(1)
    late = world.submit(group=other)
    assert [run.task_id for run in world.claim("b1")] == [late]


def test_a_better_priority_beats_a_fair_share(world):
    world.bots("b1", "b2")
    other = world.new_group("other")
    world.submit_many(2)
    world.claim("b2", 2)
    urgent = world.submit(priority=1)
    world.submit(group=other)
    assert [run.task_id for run in world.claim("b1")] == [urgent]


def test_a_task_whose_shared_value_is_near_goes_first(world):
    world.bot("b1", address="10.0.0.1")
    far, near = (world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline()) for _ in range(2))
    world.do(shared_values.change_localities, near.id, add=["10.0.0.1"])
    tasks = [world.submit_raw(a_function([shared(v.id)])).task_id for v in (far, near)]
    assert order(world, 1) == [tasks[1]]
    assert order(world, 1) == [tasks[0]]


def test_a_near_value_does_not_beat_a_better_priority(world):
    world.bot("b1", address="10.0.0.1")
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    world.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    near = world.submit_raw(a_function([shared(value.id)], priority=50)).task_id
    better = world.submit_raw(a_function(priority=40)).task_id
    assert [order(world, 1), order(world, 1)] == [[better], [near]]


def test_near_tasks_and_others_fill_one_claim(world):
    world.bot("b1", address="10.0.0.1")
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    world.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    others = [world.submit_raw(a_function()).task_id for _ in range(2)]
    near = world.submit_raw(a_function([shared(value.id)])).task_id
    assert order(world, 2) == [near, others[0]]


def test_a_bot_without_an_address_is_near_to_nothing(world):
    world.bot("b1")
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    world.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    tasks = [world.submit_raw(a_function([shared(value.id)])).task_id for _ in range(2)]
    assert order(world, 1) == tasks[:1]


def cached(world, *names, **given):
    caches = [{"name": name, "path": f"cache/{name}"} for name in names]
    return world.submit(caches=caches, **given)


def test_a_task_whose_named_cache_the_bot_has_goes_first(world):
    world.bot("b1", dimensions={"caches": ["git", "npm"]})
    plain, other, near = world.submit(), cached(world, "pip"), cached(world, "pip", "npm")
    assert order(world, 1) == [near]
    assert order(world) == [plain, other]


def test_a_cache_counts_across_several_queues_of_a_bot_too(world):
    world.bot("b1", dimensions={"caches": ["git"], "os": ["Linux"]})
    world.submit(priority=200, os="Linux")
    far, near = cached(world, "pip"), cached(world, "git")
    assert order(world, 2) == [near, far]


def test_a_cache_does_not_beat_a_better_priority(world):
    world.bot("b1", dimensions={"caches": ["git"]})
    near, better = cached(world, "git", priority=50), cached(world, "pip", priority=40)
    assert order(world) == [better, near]


def test_a_bot_without_caches_takes_tasks_in_their_order(world):
    world.bot("b1")
    tasks = [cached(world, "git"), cached(world, "npm")]
    assert order(world) == tasks


def test_queues_have_tasks_with_caches_and_tasks_with_shared_values(world):
    world.bot("b1", address="10.0.0.1", dimensions={"caches": ["git"]})
    value = world.do(shared_values.create_value, GroupOwner(world.group.id), "int64", inline())
    world.do(shared_values.change_localities, value.id, add=["10.0.0.1"])
    plain, cache = world.submit(), cached(world, "git")
    world.advance(1)
    function, reader = world.function().task_id, world.submit_raw(a_function([shared(value.id)])).task_id
    marks = world.column("SELECT shared FROM task_dimensions")
    assert sorted(marks) == [USES_CACHES, READS_SHARED | OF_FUNCTIONS]
    assert order(world) == [cache, plain, reader, function]


def test_a_text_that_looks_like_caches_is_none(world):
    world.submit(command=["echo", '"caches":[{'], env={"caches": "[{"})
    assert world.column("SELECT shared FROM task_to_run") == [0]


# ---------------------------------------------------------------- queues


def test_tasks_that_want_the_same_share_a_queue(world):
    world.submit(dimensions={"os": ["Debian|Ubuntu", "Linux"]})
    world.submit(dimensions={"os": ["Linux", "Ubuntu|Debian"]})
    assert len(set(world.column("SELECT queue FROM task_to_run"))) == 1


def test_a_forged_hash_collision_mixes_no_queues(world, monkeypatch):
    monkeypatch.setattr(dimensions, "digest", lambda text: "0" * 32)
    world.bot("b1", os="Linux")
    world.submit(os="Mac")
    linux = world.submit(os="Linux")
    assert world.column("SELECT probe FROM task_dimensions ORDER BY probe") == [0, 1]
    assert [run.task_id for run in world.claim("b1", 5)] == [linux]


def test_a_wrong_match_gives_a_bot_nothing(world):
    """The match is only an index; the full sets are compared before a claim."""
    task = world.submit(os="Mac")
    [queue] = world.column("SELECT queue FROM task_to_run")
    world.bot("b1", os="Linux")
    world.db.write(lambda tx: tx.run("INSERT INTO bot_task_dimensions (bot_id, queue) VALUES ('b1', :q)", q=queue))
    assert (world.claim("b1"), world.state(task)) == ([], "READY")
    world.bot("b1", os="Linux")


def test_a_bot_that_comes_later_finds_the_queues(world):
    task = world.submit(os="Linux")
    world.bot("b1", os="Linux")
    assert [run.task_id for run in world.claim("b1")] == [task]


def test_a_bot_that_changes_finds_other_queues(world):
    world.bot("b1", os="Linux")
    linux, mac = world.submit(os="Linux"), world.submit(os="Mac")
    world.bot("b1", os="Mac")
    assert [run.task_id for run in world.claim("b1", 5)] == [mac]
    assert world.state(linux) == "READY"


def test_a_queue_in_use_is_not_forgotten(world):
    world.submit()
    world.advance(3601)
    world.submit()
    assert world.column("SELECT used_at FROM task_dimensions") == [world.now]


def test_a_queue_that_was_just_forgotten_is_made_again(world, monkeypatch):
    world.bot("b1")
    world.submit()
    world.work("b1")
    world.advance(3601)
    real = task_queues.touch

    def vanish(tx, ids, now):
        tx.run("DELETE FROM bot_task_dimensions")
        tx.run("DELETE FROM task_dimensions")
        return real(tx, ids, now)

    monkeypatch.setattr(task_queues, "touch", vanish)
    task = world.submit()
    assert [run.task_id for run in world.claim("b1")] == [task]


def test_a_queue_that_another_server_has_just_made_is_used(world, monkeypatch):
    world.submit()
    blind_once(monkeypatch, task_queues, "find", [])
    world.submit()
    assert world.count("task_dimensions") == 1


def test_an_expired_right_is_not_given_out(world):
    world.bot("b1")
    world.submit(expiration_s=10)
    world.advance(10)
    assert world.claim("b1") == []


def test_a_task_that_somebody_else_holds_is_left_alone(world, monkeypatch):
    """As when a cancel has locked the task but not yet taken its right to run."""
    world.bot("b1")
    task = world.submit()
    monkeypatch.setattr(task_result, "lock_unlocked", lambda *args: {})
    assert (world.claim("b1"), world.state(task)) == ([], "READY")


def test_the_position_in_the_queue_counts_those_before(world):
    world.submit_many(2)
    last = world.submit(priority=255)
    [row] = world.read(task_to_run.of_tasks, [last])
    assert world.read(task_to_run.position, row) == 2


def test_a_bot_that_may_take_nothing_of_the_best_queues_looks_into_the_next(world):
    kinds = [f"k{n}" for n in range(6)]
    world.bot("b1", dimensions={"kind": kinds})
    for kind in kinds[:5]:
        world.submit(dimensions={"kind": [kind]}, priority=10, expiration_s=10)
    late = world.submit(dimensions={"kind": [kinds[5]]}, priority=200)
    world.clock.advance(20)
    assert [run.task_id for run in world.claim("b1")] == [late]


def test_a_bot_that_should_avoid_all_of_the_best_queues_looks_into_the_next(world):
    kinds = [f"k{n}" for n in range(6)]
    world.bots("b1", "b2", dimensions={"kind": kinds})
    for kind in kinds[:5]:
        world.submit(dimensions={"kind": [kind]}, priority=10)
    for run in world.claim("b1", 5):
        world.start(run)
        world.fault(run, "reboot")
    late = world.submit(dimensions={"kind": [kinds[5]]}, priority=200)
    assert [run.task_id for run in world.claim("b1")] == [late]
    assert len(world.claim("b2", 6)) == 5


@pytest.mark.parametrize("n", [1, 3])
def test_a_better_task_is_not_hidden_by_queues_whose_first_task_this_bot_may_not_take(world, n):
    kinds = [f"k{i}" for i in range(9)]
    world.bot("b1", dimensions={"kind": kinds})
    for kind in kinds[:8]:
        world.submit(dimensions={"kind": [kind]}, priority=10, expiration_s=10)
        world.submit(dimensions={"kind": [kind]}, priority=200)
    better = world.submit(dimensions={"kind": [kinds[8]]}, priority=100)
    world.clock.advance(20)
    assert next(run.task_id for run in world.claim("b1", n)) == better


# ---------------------------------------------------------------- claims of one kind


def claim_only(w, accepts, n=1):
    poll = structs.replace(w.poll("b1", n), accepts=accepts)
    got = w.do(claim.claim, poll)
    w.bot_of.update({(run.task_id, run.run): "b1" for run in got})
    return got


@pytest.mark.parametrize("accepts", [Accepts.FUNCTIONS, Accepts.COMMANDS])
def test_a_bot_that_is_busy_with_one_kind_may_claim_the_other_one_only(world, accepts):
    world.bot("b1")
    tasks = {Accepts.COMMANDS: world.submit_many(3), Accepts.FUNCTIONS: [world.function().task_id for _ in range(2)]}
    (other,) = tasks.keys() - {accepts}
    assert [run.task_id for run in claim_only(world, accepts, 9)] == tasks[accepts]
    assert claim_only(world, accepts, 9) == []
    assert [run.task_id for run in world.claim("b1", 9)] == tasks[other]


def test_functions_and_commands_with_the_same_dimensions_run_in_the_order_of_their_submission(world):
    world.bot("b1")
    tasks = []
    for number in range(6):
        tasks.append(world.submit() if number % 2 else world.function().task_id)
        world.advance(1)
    assert [run.task_id for run in world.claim("b1", 9)] == tasks


def test_functions_of_several_queues_are_claimed_without_their_commands(world):
    world.bot("b1", os="Linux")
    for wanted in ({}, {"os": "Linux"}):
        world.submit(**wanted)
        world.function(**wanted)
    assert [run.work.func_name is not None for run in claim_only(world, Accepts.FUNCTIONS, 9)] == [True, True]
    assert [run.work.func_name is not None for run in world.claim("b1", 9)] == [False, False]


def test_a_bot_in_quarantine_gets_no_functions_either(world):
    world.bot("b1", quarantined="broken")
    world.function()
    assert claim_only(world, Accepts.FUNCTIONS) == []
