"""Explaining: why a task does not run."""

from __future__ import annotations

import pytest

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_task
from myrmidon.scheduler import bot_end, bots
from myrmidon.scheduler.explain import Removed


@pytest.fixture
def w(world):
    world.bot("b1", os="Linux", gpu="none")
    return world


def test_a_dimension_that_removes_all_bots_is_named(w):
    w.bot("b2", os="Mac", gpu="none")
    answer = w.why(w.submit(os="Linux", gpu="nvidia"))
    assert answer.dimensions == [
        Removed("pool:default", 0, 2),
        Removed("gpu:nvidia", 2, 0, ("none",)),
        Removed("os:Linux", 0, 0),
    ]
    assert (answer.num_bots, "gpu:nvidia" in answer.summary) == (0, True)


def test_a_typing_error_in_a_dimension_shows_what_the_bots_have(w):
    w.bot("b2", os="Mac", gpu="none")
    assert w.why(w.submit(os="Linx")).summary == (
        "No bot matches: none of the remaining bots has os:Linx; their os is Linux, Mac."
        " Start such a bot, or change the dimensions."
    )
    assert "has oss:Linux; they have no dimension oss." in w.why(w.submit(oss="Linux")).summary


def test_of_many_values_the_first_are_named(w):
    for number in range(20):
        w.bot(f"c{number}")
    assert "; their id is b1, c0, c1, c10, c11, c12, c13, c14 and 13 more." in w.why(w.submit(id="x")).summary


def test_an_empty_pool_is_named(w):
    answer = w.why(w.submit(pool="nowhere"))
    assert answer.summary.startswith("No bot matches: there is no bot in the pool nowhere.")


def test_a_task_that_only_has_to_wait_knows_its_place(w):
    w.submit_many(2)
    answer = w.why(w.submit(priority=200))
    assert (answer.position, answer.num_serving, "2 tasks are before it" in answer.summary) == (2, 1, True)


def test_one_task_before_it_is_told_in_the_singular(w):
    w.submit()
    assert w.why(w.submit(priority=200)).summary == "1 bot can run it. 1 task is before it in its queue."


def test_a_bot_that_fits_but_gets_no_tasks_is_named_with_the_reason(w):
    task = w.submit()
    w.do(bots.quarantine, "b1", "smells")
    answer = w.why(task)
    assert (answer.num_bots, answer.num_serving) == (1, 0)
    assert answer.summary == "1 bot matches, but it is not available: b1 (quarantined: smells)."
    assert [(bot.bot_id, bot.state, bot.reason) for bot in answer.unavailable] == [("b1", "quarantined", "smells")]


def test_drained_quarantined_and_dead_bots_are_named_also_while_another_can_run_it(w):
    for bot_id in ("b2", "b3", "b4", "b5"):
        w.bot(bot_id, os="Linux", gpu="none")
    w.bot("mac", os="Mac", gpu="none")
    w.do(bots.drain_bot, "b2", True)
    w.do(bots.quarantine, "b3", "bad disk")
    for bot_id in ("b4", "mac"):
        w.do(bot_end.mark_bot_stopped, bot_id, session=w.bot_row(bot_id).session)
    task = w.submit(os="Linux")
    unavailable = [(bot.bot_id, bot.state, bot.reason) for bot in w.why(task).unavailable]
    assert unavailable == [("b2", "draining", None), ("b3", "quarantined", "bad disk"), ("b4", "dead", None)]
    assert w.why(task).summary.startswith("2 bots can run it.")
    for bot_id in ("b1", "b5"):
        w.do(bots.drain_bot, bot_id, True)
    assert w.why(task).summary == (
        "5 bots match, but none of them is available: b1 (draining), b2 (draining), b3 (quarantined: bad disk)"
        " and 2 more."
    )


def test_a_task_that_expired_says_what_was_missing(w):
    task = w.submit(gpu="nvidia")
    w.advance(2 * 86_400)
    w.sweep()
    answer = w.why(task)
    assert answer.summary.startswith("The task has ended: EXPIRED")
    assert "none of the remaining bots has gpu:nvidia" in answer.summary
    assert answer.capacity == (
        "No bot matches: none of the remaining bots has gpu:nvidia; their gpu is none."
        " Start such a bot, or change the dimensions."
    )


def test_a_task_that_must_not_wait_for_a_bot_says_what_was_missing(w):
    task = w.submit(gpu="nvidia", wait_for_capacity=False)
    answer = w.why(task)
    assert answer.summary.startswith("The task has ended: NO_RESOURCE")
    assert "none of the remaining bots has gpu:nvidia" in answer.summary


def test_a_waiting_task_names_its_parents(w):
    job = w.job({"a": [], "b": [], "c": ["a", "b"]})
    answer = w.why(job["c"])
    assert (answer.waiting_on, answer.unreachable) == ([job["a"], job["b"]], False)
    assert show_task(job["a"]) in answer.summary


@pytest.mark.parametrize("label", ["b", "c"])
def test_a_task_behind_a_failure_is_unreachable(w, label):
    job = w.job({"a": [], "b": ["a"], "c": ["b"], "z": []}, nodes={"a": {"priority": 1}})
    w.do_one("b1", 1)
    answer = w.why(job[label])
    assert answer.unreachable
    assert answer.summary.startswith(f"The task cannot run: a ({show_task(job['a'])}) ended FAILED. ")


def test_a_clean_up_behind_a_failure_is_reachable(w):
    nodes = {"a": {"priority": 1}, "d": {"requires_policy": "all-resolved"}}
    job = w.job({"a": [], "b": ["a"], "z": [], "d": ["a", "z"], "e": ["d"]}, nodes=nodes)
    w.do_one("b1", 1)
    assert [w.why(job[label]).unreachable for label in "bde"] == [True, False, False]


def test_a_held_task_says_so(w):
    job = w.job({"a": [], "b": ["a"]}, hold=True)
    assert (w.why(job["a"]).held, "held" in w.why(job["a"]).summary) == (True, True)
    assert (w.why(job["b"]).held, w.why(job["b"]).waiting_on) == (True, [job["a"]])


def test_a_running_task_says_where(w):
    task = w.submit()
    w.take("b1")
    assert "is running on bot b1" in w.why(task).summary
    w.cancel(task)
    assert "is being stopped on bot b1" in w.why(task).summary


def test_an_ended_task_says_how(w):
    task, other = w.submit(), w.submit(priority=200)
    w.do_one("b1", 1)
    w.do_one("b1")
    assert w.why(task).summary == "The task has ended: FAILED."
    assert w.why(other).summary == "The task has ended: SUCCEEDED."


def test_a_task_that_does_not_exist_cannot_be_explained(w):
    with pytest.raises(NotFound):
        w.why(17)


def test_a_wide_graph_is_explained_briefly(w):
    job = w.job({**{str(i): [] for i in range(30)}, "end": [str(i) for i in range(30)]})
    assert len(w.why(job["end"]).waiting_on) == 20
