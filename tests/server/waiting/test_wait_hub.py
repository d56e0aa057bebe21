"""Held polls of bots, reservations, waiting clients. No database and no HTTP."""

from __future__ import annotations

import asyncio
import sys
from threading import Thread
from typing import Any

import pytest

from myrmidon.model.task_to_run import Accepts
from myrmidon.server.waiting.connected_bots import RECHECK, TIMED_OUT, WakeReason, Wakeup
from myrmidon.server.waiting.wait_hub import WaitHub
from myrmidon.store.engine.effects import CommitEffects
from tests.deadline import HANG_S, POLL_S

LONG = POLL_S
WORK: Any = ["work"]


def in_loop(story):
    return asyncio.run(asyncio.wait_for(story(), HANG_S))


def hold(
    hub: WaitHub, bot_id: str, queues=(1,), *, n=1, nonce=1, accepts=Accepts.ANY, seconds=LONG, holds=(), functions=()
):
    """A bot whose poll is held; the task ends with why it was woken."""
    bot = hub.bots.get(bot_id) or hub.register(bot_id, 1, queues, function_queues=functions)
    return bot, asyncio.ensure_future(hub.wait(bot, seconds, nonce=nonce, n=n, accepts=accepts, holds=holds))


async def ends(hub: WaitHub, task_ids, seconds: float = LONG):
    with hub.watch_ends(task_ids) as watch:
        return await watch.wait(seconds)


async def growth(hub: WaitHub, things, seconds: float = LONG):
    with hub.watch_updates(things) as watch:
        return await watch.wait(seconds)


async def settled():
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_bot_that_waits_longest_is_woken_first():
    async def story():
        hub = WaitHub()
        polls = {name: hold(hub, name)[1] for name in ("a", "b", "c")}
        await settled()
        order = []
        for _ in range(3):
            assert hub.wake(1) == 1
            await settled()
            order += [name for name, poll in polls.items() if poll.done() and name not in order]
        assert order == ["a", "b", "c"]
        assert polls["a"].result() == Wakeup(WakeReason.WORK, queue=1)

    in_loop(story)


COMMANDS, FUNCTIONS = 1, 2
"""Queues of a bot that takes both."""


def hold_both(hub: WaitHub, bot_id: str, accepts: Accepts):
    return hold(hub, bot_id, (COMMANDS, FUNCTIONS), accepts=accepts, functions=[FUNCTIONS])


def test_a_poll_is_only_woken_for_tasks_that_it_accepts():
    async def story():
        hub = WaitHub()
        bot, for_functions = hold_both(hub, "runs a command", Accepts.FUNCTIONS)
        _, for_commands = hold_both(hub, "all slots busy", Accepts.COMMANDS)
        await settled()
        assert [hub.num_waiting_for(queue) for queue in (COMMANDS, FUNCTIONS)] == [1, 1]
        assert hub.wake(COMMANDS, 5) == 1
        await settled()
        assert for_commands.done()
        assert not for_functions.done()
        assert hub.queues_waited_for() == [FUNCTIONS]
        assert hub.may_have_work(bot)
        assert not hub.may_have_work(bot, Accepts.FUNCTIONS), "the commands that nobody took are none of its business"
        assert hub.reserve(COMMANDS, 5) == []
        assert hub.reserve(FUNCTIONS, 5) == [bot]
        hub.cancel_reservation(bot)
        assert await for_functions == RECHECK

    in_loop(story)


@pytest.mark.parametrize("queue", [COMMANDS, FUNCTIONS])
def test_a_task_goes_to_a_bot_that_is_not_busy_even_if_a_busy_one_has_waited_longer(queue):
    async def story():
        hub = WaitHub()
        limited = Accepts.COMMANDS if queue == COMMANDS else Accepts.FUNCTIONS
        _, busy = hold_both(hub, "busy", limited)
        _, idle = hold_both(hub, "idle", Accepts.ANY)
        await settled()
        hub.wake(queue)
        await settled()
        assert (busy.done(), idle.done()) == (False, True)
        hub.wake(queue)
        await busy

    in_loop(story)


def test_a_claim_of_one_kind_that_finds_nothing_says_nothing_about_the_other_kind():
    async def story():
        hub = WaitHub()
        bot, poll = hold_both(hub, "b", Accepts.COMMANDS)
        await settled()
        hub.wake(FUNCTIONS)
        hub.mark_empty(bot, hub.work_seq, Accepts.COMMANDS)
        assert hub.may_have_work(bot, Accepts.FUNCTIONS)
        assert not hub.may_have_work(bot, Accepts.COMMANDS)
        hub.mark_empty(bot, hub.work_seq, Accepts.FUNCTIONS)
        assert not hub.may_have_work(bot)
        hub.stop()
        await poll

    in_loop(story)


def test_bots_of_several_lines_are_woken_in_the_order_in_which_they_came():
    async def story():
        hub = WaitHub()
        _, second_line = hold(hub, "a", {1, 2})
        await settled()
        _, first_line = hold(hub, "b", {1})
        await settled()
        hub.wake(1)
        await settled()
        assert second_line.done()
        assert not first_line.done()
        hub.stop()
        await first_line

    in_loop(story)


def test_a_wake_reaches_only_bots_that_serve_the_queue():
    async def story():
        hub = WaitHub()
        _, poll = hold(hub, "a", {1})
        await settled()
        assert hub.wake(2) == 0
        await settled()
        assert not poll.done()
        hub.stop()
        assert await poll is TIMED_OUT

    in_loop(story)


def test_a_poll_ends_when_its_time_is_up_and_leaves_nothing_behind():
    async def story():
        hub = WaitHub()
        bot, poll = hold(hub, "a", seconds=0.001)
        assert await poll is TIMED_OUT
        assert (hub.num_waiting_for(1), hub.num_waiting, bot.future) == (0, 0, None)

    in_loop(story)


def test_a_lost_connection_leaves_nothing_behind():
    async def story():
        hub = WaitHub()
        bot, poll = hold(hub, "a", holds=(7,))
        await settled()
        assert hub.num_waiting_for(1) == 1
        poll.cancel()
        await settled()
        assert (hub.num_waiting_for(1), hub.num_waiting, bot.future, hub._polls_by_held_task) == (0, 0, None, {})

    in_loop(story)


def test_a_second_poll_of_a_bot_lets_the_first_one_go():
    async def story():
        hub = WaitHub()
        _, first = hold(hub, "a")
        await settled()
        _, second = hold(hub, "a", nonce=2)
        assert await first is TIMED_OUT
        assert hub.num_waiting_for(1) == 1
        hub.wake(1)
        assert (await second).queue == 1

    in_loop(story)


def test_work_that_nobody_waited_for_is_remembered_until_a_bot_finds_its_queues_empty():
    async def story():
        hub = WaitHub()
        bot = hub.register("a", 1, {1, 2})
        assert not hub.may_have_work(bot)
        before = hub.work_seq
        hub.wake(2)
        assert hub.may_have_work(bot)
        hub.mark_empty(bot, before)  # it looked before the work came
        assert hub.may_have_work(bot)
        hub.mark_empty(bot, hub.work_seq)
        assert not hub.may_have_work(bot)

    in_loop(story)


def test_a_poll_of_a_bot_that_is_to_be_read_again_is_not_held():
    async def story():
        hub = WaitHub()
        hub.register("a", 1, {1})
        hub.recheck("a")
        _, poll = hold(hub, "a")
        assert await poll is RECHECK
        assert (hub.num_waiting, hub.num_waiting_for(1)) == (0, 0)

    in_loop(story)


def test_a_new_queue_is_learned_for_bots_that_wait_already():
    async def story():
        hub = WaitHub()
        asked = []
        hub.on_new_queue = lambda queue, n: asked.append((queue, n))
        _, poll = hold(hub, "a", {1})
        _, other = hold(hub, "b", {1})
        await settled()
        hub.notify_commit(CommitEffects({9: 2}))
        assert asked == [(9, 2)]
        hub.add_queue(9, ["b", "never seen"])
        assert hub.wake(9, 2) == 1
        assert (await other).queue == 9
        hub.notify_commit(CommitEffects({9: 1}))
        assert asked == [(9, 2)]
        hub.stop()
        await poll

    in_loop(story)


def test_a_reserved_bot_is_woken_by_nothing_but_the_hand_over():
    async def story():
        hub = WaitHub()
        bot, poll = hold(hub, "a", nonce=7, n=3)
        await settled()
        taken = []
        thread = Thread(target=lambda: taken.extend(hub.reserve(1, 5)))
        thread.start()
        thread.join()
        assert taken == [bot]
        assert bot.claim_request == (7, 3, Accepts.ANY)
        assert hub.wake(1) == 0
        hub.recheck("a")
        hub._on_timeout(bot, bot.future)  # as the poll's timer says it: it must not end in the middle of a claim
        await settled()
        assert not poll.done()
        hub.deliver_claim(bot, WORK, more=True)
        assert (await poll).claim == (WORK, True)

    in_loop(story)


def test_a_bot_can_be_reserved_while_it_moves_to_other_peers(monkeypatch):
    """A submit reserves on another thread, also between the steps of a move."""

    async def story():
        hub = WaitHub()
        bot, poll = hold(hub, "a", {1})
        await settled()
        leave, taken = hub.queues.leave, []

        def reserve_and_leave(peers):
            taken.extend(hub.reserve(1, 1))
            leave(peers)

        monkeypatch.setattr(hub.queues, "leave", reserve_and_leave)
        hub.add_queue(2, ["a"])
        assert taken == [bot]
        hub.deliver_claim(bot, [], more=False)
        assert (await poll).reason is WakeReason.CLAIMED

    in_loop(story)


def test_a_bot_whose_reservation_came_to_nothing_looks_for_itself():
    async def story():
        hub = WaitHub()
        bot, poll = hold(hub, "a")
        await settled()
        hub.reserve(1, 1)
        hub.cancel_reservation(bot)
        assert await poll is RECHECK

    in_loop(story)


def test_a_bot_that_asks_again_while_it_is_reserved_gets_the_handed_over_work():
    async def story():
        hub = WaitHub()
        bot, first = hold(hub, "a", nonce=7)
        await settled()
        hub.reserve(1, 1)
        _, second = hold(hub, "a", nonce=7)
        assert await first is TIMED_OUT
        assert hub.num_waiting_for(1) == 0, "a reserved bot must not be reserved once more"
        hub.deliver_claim(bot, WORK, more=True)
        assert (await second).claim == (WORK, True)

    in_loop(story)


def test_the_end_of_a_held_run_reaches_the_bot_that_holds_it():
    async def story():
        hub = WaitHub()
        for told in [
            (7, 3, 0, "task", "RUNNING", '{"generation":1,"killing":1}'),
            (7, 4, 0, "task", "KILLED", '{"generation":1}'),
            (7, 4, 0, "task", "READY", '{"generation":1}'),
        ]:
            _, poll = hold(hub, "a", holds=(7,))
            await settled()
            hub.notify_commit(CommitEffects({}, [(8, 1, 0, "task", "KILLED", "{}")]))
            await settled()
            assert not poll.done()
            hub.notify_commit(CommitEffects({}, [told]))
            assert await poll is RECHECK

    in_loop(story)


def test_a_poll_that_was_replaced_takes_nothing_from_its_successor():
    async def story():
        hub = WaitHub()
        _, first = hold(hub, "a", holds=(7,))
        await settled()
        _, second = hold(hub, "a", holds=(7,))
        assert await first is TIMED_OUT
        await settled()
        hub.notify_commit(CommitEffects({}, [(7, 3, 0, "task", "RUNNING", '{"generation":1,"killing":1}')]))
        assert await second is RECHECK
        assert not hub._polls_by_held_task

    in_loop(story)


def test_clients_are_told_when_a_task_ends_and_not_before():
    async def story():
        hub = WaitHub()
        waiting = asyncio.ensure_future(ends(hub, {5, 6}))
        await settled()
        hub.notify_commit(CommitEffects({}, [(5, 2, 0, "task", "RUNNING", "{}")]))
        await settled()
        assert not waiting.done()
        hub.notify_commit(CommitEffects({}, [(6, 2, 0, "task", "FAILED", "{}")]))
        assert await waiting is True
        assert hub._task_ends.waiters == {}
        assert await ends(hub, {5}, 0.001) is False

    in_loop(story)


def test_what_happens_between_a_look_and_the_wait_is_not_missed():
    async def story():
        hub = WaitHub()
        with hub.watch_ends({5}) as watch:
            hub.notify_commit(CommitEffects({}, [(5, 2, 0, "task", "SUCCEEDED", "{}")]))
            assert await watch.wait(LONG) is True
        with hub.watch_updates([(5, 1)]) as watch:
            hub.notify((5, 1))
            assert await watch.wait(LONG) is True

    in_loop(story)


def test_growth_of_a_log_is_told_to_all_who_follow_it():
    async def story():
        hub = WaitHub()
        followers = [asyncio.ensure_future(growth(hub, [(5, 1), ("task", 5)])) for _ in range(3)]
        await settled()
        hub.notify((5, 2))
        await settled()
        assert not any(one.done() for one in followers)
        hub.notify((5, 1))
        assert await asyncio.gather(*followers) == [True] * 3
        assert hub._updates.waiters == {}

    in_loop(story)


def test_a_stop_answers_everybody_at_once():
    async def story():
        hub = WaitHub()
        everybody = [hold(hub, f"b{i}")[1] for i in range(10)]
        everybody += [asyncio.ensure_future(ends(hub, {1}))]
        everybody += [asyncio.ensure_future(growth(hub, ["events"]))]
        await settled()
        hub.stop()
        answers = await asyncio.gather(*everybody)
        assert answers == [TIMED_OUT] * 10 + [False, False]
        _, late = hold(hub, "late")
        assert await late is TIMED_OUT

    in_loop(story)


def test_a_bot_that_was_killed_and_comes_again_is_woken_though_it_stood_alone_in_its_line():
    async def story():
        hub = WaitHub()
        _, lost = hold(hub, "a")
        await settled()
        bot = hub.register("a", 2, (1,))
        again = asyncio.ensure_future(hub.wait(bot, LONG, nonce=2, n=1))
        await settled()
        assert lost.result() is RECHECK
        assert hub.wake(1) == 1
        assert await again == Wakeup(WakeReason.WORK, queue=1)

    in_loop(story)


def test_a_line_that_nobody_stands_in_is_forgotten():
    async def story():
        hub = WaitHub()
        for i in range(100):
            hub.register(f"b{i}", 1, {1, 1000 + i})
        for i in range(100):
            hub.forget(f"b{i}")
        assert (hub.queues._peer_sets, dict(hub.queues._peers_by_queue)) == ({}, {})

    in_loop(story)


def test_two_thousand_held_polls_cost_little_memory_and_answer_at_once():
    async def story():
        hub = WaitHub()
        polls = [hold(hub, f"bot-{i}", {1})[1] for i in range(2000)]
        await settled()
        assert hub.num_waiting_for(1) == hub.num_waiting == 2000
        bot = next(iter(hub.bots.values()))
        assert sys.getsizeof(bot) <= 264
        assert len(hub.queues._peer_sets) == 1
        assert hub.wake(1, 2000) == 2000
        wakeups = await asyncio.gather(*polls)
        assert all(one.queue == 1 for one in wakeups)
        assert hub.num_waiting == 0

    in_loop(story)
