"""Pools: how each orders its tasks, also across the queues that a bot serves."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.task_to_run import LIFO, Order
from myrmidon.scheduler import maintenance
from myrmidon.scheduler.priority import set_pool_order
from myrmidon.store.tables import chunked_work, pool_order
from tests.builders import World, seconds

AGEING = Order("fifo", seconds(10))


def set_order(world: World, pool: str, order: Order) -> None:
    world.do(set_pool_order, pool, order)


def order_of_claims(world: World, n: int = 20) -> list[int]:
    return [run.task_id for run in world.claim("b1", n)]


def test_a_pool_remembers_its_order(world: World) -> None:
    set_order(world, "lab", Order(LIFO))
    assert world.read(pool_order.of_pool, "lab") == Order(LIFO)
    assert world.read(pool_order.of_pool, "other") == Order()


@pytest.mark.parametrize(
    ("order", "paths"),
    [
        (Order("random"), ["task_order"]),
        (Order(LIFO, 60), ["ageing"]),
        (Order("none", -1), ["task_order", "ageing"]),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_with_all_its_problems(
    lite: World, order: Order, paths: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        set_order(lite, "lab", order)
    assert [problem.path for problem in refused.value.problems] == paths


# ---------------------------------------------------------------- ageing across queues


@pytest.fixture
def w(world: World) -> World:
    """One bot that serves several queues of an ageing pool."""
    world.bot("b1", dimensions={"os": ["Linux"], "gpu": ["none"]})
    set_order(world, "default", AGEING)
    return world


def test_an_old_task_of_another_queue_overtakes_a_better_one(w: World) -> None:
    old = w.submit(priority=101, os="Linux")
    w.advance(11)
    new = w.submit(priority=100)
    assert [order_of_claims(w, 1), order_of_claims(w, 1)] == [[old], [new]]


def test_a_task_that_has_not_waited_long_enough_does_not(w: World) -> None:
    old = w.submit(priority=102, os="Linux")
    w.advance(11)
    new = w.submit(priority=100)
    assert order_of_claims(w) == [new, old]


@pytest.mark.one_database
def test_no_task_starves_however_many_better_ones_arrive(w: World) -> None:
    worst = w.submit(priority=255, os="Linux", deadline_s=86_400)
    claimed: list[int] = []
    for _ in range(300):
        w.submit(priority=0)
        w.advance(10)
        claimed += order_of_claims(w, 1)
        if worst in claimed:
            break
    assert len(claimed) == 256


def test_among_tasks_that_have_all_waited_long_the_longest_goes_first(w: World) -> None:
    first = w.submit(priority=1, os="Linux")
    w.advance(100)
    second = w.submit(priority=0)
    w.advance(1000)
    assert order_of_claims(w) == [first, second]


def test_groups_take_turns_while_their_tasks_have_equal_effective_priority(w: World) -> None:
    other = w.new_group("other")
    mine = w.submit_many(2, priority=101)
    w.advance(15)
    theirs = [w.submit(priority=100, group=other) for _ in range(2)]
    assert order_of_claims(w) == [mine[0], theirs[0], mine[1], theirs[1]]


def test_a_pool_without_ageing_does_not_starve_beside_one_with_it(w: World) -> None:
    w.bot("b1", dimensions={"pool": ["default", "plain"], "os": ["Linux"], "gpu": ["none"]})
    plain = w.submit(priority=100, pool="plain")
    w.advance(1)
    aged = w.submit(priority=100)
    assert order_of_claims(w) == [plain, aged]


# ---------------------------------------------------------------- a change of the order


def test_a_change_of_the_order_ranks_waiting_tasks_again_in_chunks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "CHUNK", 3)
    world.bot("b1", os="Linux")
    elsewhere = world.submit(pool="other")
    tasks = []
    for priority in (107, 106, 105, 104, 103, 102, 101):
        tasks.append(world.submit(priority=priority, os="Linux"))
        world.advance(11)
    before = world.column("SELECT task_rank FROM task_to_run WHERE task_id = :id", id=elsewhere)
    set_order(world, "default", AGEING)
    assert world.carry() == 3
    assert world.column("SELECT task_rank FROM task_to_run WHERE task_id = :id", id=elsewhere) == before
    assert order_of_claims(world) == tasks


@pytest.mark.parametrize(("order", "first"), [(Order(), 1), (Order(LIFO), 2)])
def test_tasks_are_ranked_again_when_ageing_ends(w: World, order: Order, first: int) -> None:
    tasks = [w.submit(priority=101)]
    w.advance(100)
    tasks.append(w.submit(priority=100))
    w.advance(100)
    tasks.append(w.submit(priority=100))
    set_order(w, "default", order)
    w.carry()
    assert order_of_claims(w, 1) == [tasks[first]]


def test_the_same_order_again_is_no_work(w: World) -> None:
    w.carry()
    set_order(w, "default", AGEING)
    assert w.read(chunked_work.pending) == []


def test_a_task_that_is_claimed_while_it_is_ranked_again_stays_claimed(w: World) -> None:
    w.submit_many(2)
    set_order(w, "default", Order(LIFO))
    _, work = w.read(chunked_work.pending)
    w.claim("b1")
    w.do(maintenance.run_step, work.turn)
    assert w.count("task_to_run") == 1
