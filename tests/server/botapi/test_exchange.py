"""The bot API: a whole life, repeated calls, held polls, and what a bot may not do. Without HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound, TooLarge, Unauthorized, WrongState
from myrmidon.model.ids import parse_id
from myrmidon.scheduler import bot_end, cancel
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.submit_job import submit_steps
from myrmidon.scheduler.terminate import terminate_bot
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.server.api.submit_tasks import FIRST_PART, submit_tasks
from myrmidon.server.botapi import heartbeat
from myrmidon.server.calls import Call
from myrmidon.server.dispatch import claims
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, task_queues
from myrmidon.store.tables import log as logs
from myrmidon.wire.tasks import Submit
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import (
    ADMIN,
    BOOTSTRAP,
    BotClient,
    a_server_context,
    a_task,
    begun,
    finish,
    serving,
    start,
    state_of,
    submit,
    until,
)

SECOND = 1_000_000


@pytest.fixture
def context(sqlite_url, tmp_path):
    with a_server_context(sqlite_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def any_context(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def run(story, context, *, around=begun):
    """Without the service, unless it is what the test is about: it would find what a lost wake has left."""

    async def whole():
        async with around(context):
            return await asyncio.wait_for(story(), HANG_S)

    return asyncio.run(whole())


def piece(task, stream, offset, data):
    said = base64.b64encode(data).decode()
    return {"run": task["run"], "token": task["token"], "stream": stream, "offset": offset, "data": said}


def test_a_whole_life(any_context):
    """Handshake, submit, claim, start, output, finish: on every database."""
    context = any_context

    async def story():
        bot = BotClient(context)
        welcome = await bot.shake(version="")
        assert (welcome.bot_id, welcome.session, welcome.keep, welcome.quarantined) == ("b1", 1, [], None)
        (task_id,) = await submit(context, a_task("echo", properties={"env": {"A": "b"}}))
        task = (await bot.exchange())["tasks"][0]
        assert (task["command"], task["env"], task["lease_s"]) == (["echo"], {"A": "b"}, 300.0)
        assert parse_id(task["run"]) == (parse_id(task_id)[0], 1)
        answer = await bot.exchange(n=0, reports=[start(task)], logs=[piece(task, 0, 0, b"hello ")])
        assert answer["replies"] == [{"outcome": "accepted", "stop": False}]
        assert answer["log_lengths"] == [6]
        stored = await bot.log(task, 0, 6, b"world")
        assert stored.length == 11
        assert await state_of(context, task_id) == "RUNNING"
        assert (await bot.heartbeat(task)).stop == []
        await bot.exchange(n=0, reports=[finish(task, duration=0.5, stdout_size=11)])
        assert await state_of(context, task_id) == "SUCCEEDED"
        kept = await context.logs.read(lambda tx: logs.read(tx, *parse_id(task["run"]), stream=0, start=0, length=99))
        assert b"".join(part.content for part in kept) == b"hello world"

    run(story, context)


def test_every_call_repeated_gives_the_same_answer(any_context):
    context = any_context

    async def story():
        bot = BotClient(context)
        first, again = await bot.shake(), await bot.shake()
        assert [first.credential, first.keep, first.session] == [again.credential, again.keep, again.session]
        await submit(context, a_task(), a_task())
        claimed = await bot.exchange(n=2)
        assert claimed == await bot.exchange(n=2, nonce=bot.nonce)
        assert len(claimed["tasks"]) == 1, "one at a time while the bot's pace is not known"
        task = claimed["tasks"][0]
        ask: dict[str, Any] = {"n": 1, "reports": [finish(task, duration=0.1)], "logs": [piece(task, 1, 0, b"err")]}
        answer = await bot.exchange(**ask)
        assert answer == await bot.exchange(**ask, nonce=bot.nonce)
        assert answer["replies"] == [{"outcome": "accepted", "stop": False}]
        assert len(answer["tasks"]) == 1
        second = answer["tasks"][0]
        assert await bot.log(second, 0, 0, b"abc") == await bot.log(second, 0, 0, b"abc")
        assert await bot.heartbeat(second) == await bot.heartbeat(second)
        for _ in range(2):
            await bot.event("bot_error", "disk is slow")
        told = await context.db.read(lambda tx: bot_event.read(tx, "b1", before=(1 << 63) - 1, n=10))
        assert Counter(kind for _, _, kind, _ in told)["bot_error"] == 1

    run(story, context)


def test_an_idle_bot_costs_no_statement_at_all(sqlite_url, tmp_path, monkeypatch):
    with a_server_context(sqlite_url, tmp_path, sweep_s=1000) as context:

        async def story():
            bot = BotClient(context)
            await bot.shake()
            await bot.exchange()
            statements = []
            monkeypatch.setattr(context.db.engine, "_probe", lambda event, sql: statements.append((event, sql)))
            for _ in range(20):
                answer = await bot.exchange(wait_s=0.002)
                assert answer["tasks"] == []
            return [said for said in statements if "bots" in said[1] or "task_" in said[1] or said[0] == "commit"]

        async def alone():
            context.hub.on_new_queue = None
            return await story()

        assert asyncio.run(alone()) == []


def test_a_held_poll_is_answered_by_a_submit_with_one_commit_between(context, monkeypatch):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())  # the queue is known from now on
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        poll = asyncio.ensure_future(bot.exchange(reports=[finish(task)], wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        commits = []
        monkeypatch.setattr(
            context.db.engine, "_probe", lambda event, sql: commits.append(event) if event == "commit" else None
        )
        (task_id,) = await submit(context, a_task())
        seen = len(commits)
        answer = await poll
        assert [parse_id(one["run"])[0] for one in answer["tasks"]] == [parse_id(task_id)[0]]
        assert seen == len(commits) == 1
        assert await state_of(context, task_id) == "RUNNING"

    run(story, context)


def test_a_step_of_a_chain_that_its_bot_goes_on_with_wakes_no_other_bot(context, monkeypatch):
    async def story():
        army = [BotClient(context, name) for name in ("b1", "b2")]
        for bot in army:
            await bot.shake()
        nodes = {"a": [], "b": ["a"], "c": ["b"]}
        document = {
            "name": "chain",
            "tasks": {label: {"task": a_task(), "requires": parents} for label, parents in nodes.items()},
        }
        draft = draft_job(document, now=context.now(), ids=context.ids)
        group = await context.groups.id_of("default", context.now())
        (step,) = submit_steps(group, draft, now=context.now(), ids=context.ids)
        await claims.write_and_assign(context, step)
        (task,) = (await army[0].exchange(wait_s=POLL_S))["tasks"]
        other = asyncio.ensure_future(army[1].exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        transactions = []
        monkeypatch.setattr(
            context.db.engine, "_probe", lambda event, sql: transactions.append(event) if event == "commit" else None
        )
        for _ in range(2):
            (task,) = (await army[0].exchange(reports=[finish(task)], wait_s=POLL_S))["tasks"]
        assert (len(transactions), context.hub.num_waiting, context.hub.num_waiting_for(queue_of(context))) == (2, 1, 1)
        await submit(context, a_task())
        assert len((await other)["tasks"]) == 1

    run(story, context)


def queue_of(context):
    """The only queue."""
    (queue,) = context.hub.bots["b1"].peers.queues
    return queue


def test_a_claim_that_finds_nothing_writes_nothing(any_context):
    context = any_context

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        (task,) = (await bot.exchange())["tasks"]
        await bot.exchange(n=0, reports=[finish(task)])
        before = await context.db.read(lambda tx: bots.read(tx, "b1"))
        assert (await bot.exchange(wait_s=0))["tasks"] == []
        assert await context.db.read(lambda tx: bots.read(tx, "b1")) == before

    run(story, context)


def test_claims_that_find_nothing_still_write_the_heartbeat_when_it_is_due(context, monkeypatch):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await bot.exchange(wait_s=0)
        later = context.now() + 2 * context.rules.silent_after
        monkeypatch.setattr(context, "now", lambda: later)
        await bot.exchange(wait_s=0)
        assert (await context.db.read(lambda tx: bots.read(tx, "b1"))).heartbeat == later

    run(story, context)


def test_a_handed_over_reply_that_was_lost_is_given_again(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        poll = asyncio.ensure_future(bot.exchange(reports=[finish(task)], wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        await submit(context, a_task())
        lost = await poll
        assert lost["tasks"] == (await bot.exchange(nonce=bot.nonce, wait_s=POLL_S))["tasks"]
        assert (await bot.exchange(wait_s=0))["tasks"] == []

    run(story, context)


def test_a_poll_that_looks_several_times_keeps_its_nonce(any_context, monkeypatch):
    """Its first look finds nothing, a later one does; asked again, it gets what it got."""
    context = any_context

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        poll = asyncio.ensure_future(bot.exchange(reports=[finish(task)], wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        monkeypatch.setattr(context.hub, "reserve", lambda queue, n, addresses: [])
        (task_id,) = await submit(context, a_task())
        got = (await poll)["tasks"]
        assert [parse_id(one["run"])[0] for one in got] == [parse_id(task_id)[0]]
        assert (await bot.exchange(nonce=bot.nonce, wait_s=POLL_S))["tasks"] == got
        assert (await bot.exchange(nonce=bot.nonce - 1, wait_s=0))["tasks"] == [], "that poll is long answered"

    run(story, context)


def test_a_bot_that_vanishes_while_a_submit_claims_for_it_gets_the_same_runs_later(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        poll = asyncio.ensure_future(bot.exchange(reports=[finish(task)], wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        submitting = asyncio.ensure_future(submit(context, a_task()))
        await until(lambda: context.hub.bots["b1"].reserved or submitting.done())
        poll.cancel()
        (task_id,) = await submitting
        again = await bot.exchange(nonce=bot.nonce, wait_s=POLL_S)
        assert [parse_id(one["run"])[0] for one in again["tasks"]] == [parse_id(task_id)[0]]

    run(story, context)


def test_a_submit_that_fails_leaves_the_waiting_bot_waiting(context, monkeypatch):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        poll = asyncio.ensure_future(bot.exchange(reports=[finish(task)], wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        with monkeypatch.context() as patch:
            patch.setattr(claims.DirectAssignment, "_claim", lambda self, tx, bot, share: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await submit(context, a_task())
        (task_id,) = await submit(context, a_task())
        answer = await poll
        assert [parse_id(one["run"])[0] for one in answer["tasks"]] == [parse_id(task_id)[0]]

    run(story, context)


def test_a_queue_that_is_new_reaches_bots_that_wait_already(any_context):
    context = any_context

    async def story():
        bot = BotClient(context, gpu=["yes"])
        await bot.shake()
        poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        await submit(context, a_task(dimensions={"pool": ["default"], "gpu": ["yes"]}))
        assert len((await poll)["tasks"]) == 1

    run(story, context)


def test_a_submit_wakes_as_many_bots_as_it_has_tasks(any_context):
    context = any_context

    async def story():
        army = [BotClient(context, f"b{i}") for i in range(12)]
        for bot in army:
            await bot.shake()
        polls = [asyncio.ensure_future(bot.exchange(wait_s=POLL_S, n=10)) for bot in army]
        await until(lambda: context.hub.num_waiting == 12)
        await submit(context, *[a_task() for _ in range(10)])
        await until(lambda: sum(poll.done() for poll in polls) == 10)
        context.hub.stop()
        answers = await asyncio.gather(*polls)
        assert sorted(len(answer["tasks"]) for answer in answers) == [0, 0] + [1] * 10

    run(story, context)


def test_the_size_of_a_claim_follows_the_pace_of_the_bot_and_the_crowd(context):
    async def story():
        quick = BotClient(context)
        await quick.shake()
        await submit(context, *[a_task() for _ in range(200)])
        first = (await quick.exchange(n=256))["tasks"]
        assert len(first) == 1
        many = (await quick.exchange(n=256, reports=[finish(first[0], duration=0.001)]))["tasks"]
        assert len(many) == 100, "about 100 ms of work"
        few = (await quick.exchange(n=5, reports=[finish(task, duration=0.001) for task in many]))["tasks"]
        assert len(few) == 5, "never more than the bot asks for"
        slow = (await quick.exchange(n=256, reports=[finish(task, duration=2.0) for task in few]))["tasks"]
        assert len(slow) == 1

    run(story, context)


def test_a_bot_takes_only_its_share_while_others_wait(context):
    async def story():
        army = [BotClient(context, f"b{i}") for i in range(4)]
        for bot in army:
            await bot.shake()
            context.hub.bots[bot.name].mean_run_s = 0.001
        await submit(context, a_task())
        (task,) = (await army[0].exchange(n=50))["tasks"]
        polls = [asyncio.ensure_future(bot.exchange(n=50, wait_s=POLL_S)) for bot in army[1:]]
        await until(lambda: context.hub.num_waiting == 3)
        await submit(context, *[a_task() for _ in range(30)])
        sizes = [len((await poll)["tasks"]) for poll in polls]
        assert sizes == [10, 10, 10]
        assert task

    run(story, context)


def test_the_last_of_a_queue_goes_by_halves_to_the_bots_that_work_on_it(context):
    """Else one of them would have a tenth of a second left to do when the others are done."""

    async def story():
        army = [BotClient(context, f"b{i}") for i in range(3)]
        sizes = []
        for working in (1, 2):
            for bot in army[:working]:
                await bot.shake()
            await submit(context, *[a_task() for _ in range(61)])
            for bot in army[:working]:
                assert len((await bot.exchange(n=1))["tasks"]) == 1
                context.hub.bots[bot.name].mean_run_s = 0.001
            answers = [await army[turn % working].exchange(n=256) for turn in range(5)]
            sizes.append([(len(answer["tasks"]), answer["more"]) for answer in answers])
        alone, shared = sizes
        assert alone == [(60, False), *4 * [(0, False)]]
        assert shared == [(30, True), (15, True), (8, True), (6, False), (0, False)]

    run(story, context)


def test_a_bot_that_gets_the_first_part_of_a_long_submit_is_told_that_more_comes(context):
    """Else it would not ask again before it has done all of what it got."""

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        (task,) = (await bot.exchange())["tasks"]
        context.hub.bots[bot.name].mean_run_s = 0.001
        told = []
        for n in (FIRST_PART, FIRST_PART + 1):
            poll = asyncio.ensure_future(bot.exchange(n=FIRST_PART, wait_s=POLL_S))
            await until(lambda: context.hub.num_waiting == 1)
            body = Submit(tasks=[msgspec.Raw(msgspec.json.encode(a_task())) for _ in range(n)])
            answer = await submit_tasks(context, Call(now=context.now(), who=ADMIN, body=body, request_key=f"key-{n}"))
            assert [one.error for one in answer.tasks] == [None] * n
            told.append((len((await poll)["tasks"]), (await poll)["more"]))
        assert told == [(FIRST_PART, False), (FIRST_PART, True)]
        assert context.hub.num_partial_submits == 0
        assert task

    run(story, context)


@pytest.mark.parametrize("bad", [b'"\xff"', b"1e999"])
def test_a_task_that_cannot_be_read_harms_no_other_of_its_submit(context, bad):
    async def story():
        good = msgspec.Raw(msgspec.json.encode(a_task()))
        body = Submit(tasks=[good, msgspec.Raw(bad), good])
        answer = await submit_tasks(context, Call(now=context.now(), who=ADMIN, body=body, request_key="key"))
        assert [one.error and one.error.code for one in answer.tasks] == [None, "request.invalid", None]

    run(story, context)


def test_a_cancelled_run_is_told_to_a_held_poll_at_once(any_context):
    context = any_context

    async def story():
        bot = BotClient(context)
        await bot.shake()
        (task_id,) = await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        await bot.exchange(n=0, reports=[start(task)])
        poll = asyncio.ensure_future(bot.exchange(holds=[[task["run"], task["token"]]], n=0, wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        now = context.now()
        await context.db.write(
            lambda tx: cancel.cancel(tx, [parse_id(task_id)[0]], kill_running=True, now=now, ids=context.ids)
        )
        assert (await poll)["stop"] == [task["run"]]
        assert (await bot.heartbeat(task)).stop == [task["run"]]

    run(story, context)


def test_a_stop_that_the_bot_carries_out_ends_no_poll_and_is_not_forgotten(any_context):
    """A command in its grace period: the bot says so, and waits like any other."""
    context = any_context

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        held = [[task["run"], task["token"]]]
        await bot.exchange(n=0, reports=[start(task)])
        now, task_id = context.now(), parse_id(task["run"])[0]
        await context.db.write(lambda tx: cancel.cancel(tx, [task_id], kill_running=True, now=now, ids=context.ids))
        told = await bot.exchange(holds=held, n=0, wait_s=POLL_S)
        assert told["stop"] == [task["run"]]
        poll = asyncio.ensure_future(bot.exchange(holds=held, stopping=[task["run"]], n=0, wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        context.hub.recheck("b1")
        await asyncio.sleep(0)
        assert context.hub.num_waiting == 0, "it looks at the database again"
        await until(lambda: context.hub.num_waiting == 1 or poll.done())
        assert not poll.done(), "and waits on"
        context.hub.stop()
        assert (await poll)["stop"] == [task["run"]], "for a bot that has not heard of it after all"
        assert (await bot.heartbeat(task)).stop == [task["run"]]

    run(story, context)


def test_orders_reach_a_held_poll(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        group, made = await context.groups.id_of("default", context.now()), context.ids.next(context.now())
        order = partial(
            terminate_bot, bot_id="b1", group_id=group, task_id=made, reason="", authenticated="another server"
        )
        await asyncio.to_thread(context.db.engine.write, partial(order, now=context.now(), ids=context.ids))
        [task] = (await poll)["tasks"]  # found by the background work: nothing here has notified the hub
        assert task["terminate"]
        bot.session = 2
        await bot.shake()
        assert (await bot.exchange())["order"] is None, "started again it may stay"

    run(story, context, around=serving)


def test_a_bot_with_another_zip_is_told_to_update_and_works_on_if_it_cannot(context):
    async def story():
        bot = BotClient(context)
        welcome = await bot.shake(version="0" * 64)
        assert welcome.version == context.hub.active_release
        answer = await bot.exchange(wait_s=POLL_S)
        proof = hmac.new(bot.credential.encode(), context.hub.active_release.encode(), hashlib.sha256).hexdigest()
        assert (answer["order"], answer["version"], answer["zip_hmac"]) == ("update", context.hub.active_release, proof)
        await submit(context, a_task())
        answer = await bot.exchange(wait_s=POLL_S)
        assert (answer["order"], len(answer["tasks"])) == (None, 1)
        first, told = context.now(), []
        for seconds in range(0, 1200, 5):
            context.now = lambda at=first + seconds * 1_000_000: at
            if (await bot.exchange(n=0))["order"]:
                told.append(seconds)
        assert told == [10, 70, 430, 1030], "what was lost on its way is said again soon, what is in vain rarely"

    run(story, context)


def test_a_drained_or_quarantined_bot_gets_nothing_and_others_get_its_work(any_context):
    context = any_context

    async def story():
        aside, works = BotClient(context, "aside"), BotClient(context, "works")
        await aside.shake()
        await works.shake()
        first = asyncio.ensure_future(aside.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        second = asyncio.ensure_future(works.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 2)
        await context.db.write(lambda tx: fleet.drain_bot(tx, "aside", True, now=context.now(), ids=context.ids))
        await submit(context, a_task())
        assert len((await second)["tasks"]) == 1
        context.hub.stop()
        assert (await first)["tasks"] == []

    run(story, context)


# ---------------------------------------------------------------- what a bot may not do


def test_a_bot_cannot_act_for_another_bot(context):
    async def story():
        mine, theirs = BotClient(context, "mine"), BotClient(context, "theirs")
        await mine.shake()
        await theirs.shake()
        with pytest.raises(Forbidden):
            await theirs.shake(who=mine.who)
        (task_id,) = await submit(context, a_task())
        task = (await mine.exchange(wait_s=POLL_S))["tasks"][0]
        stolen = await theirs.exchange(n=0, reports=[finish(task)], holds=[[task["run"], task["token"]]])
        assert stolen["replies"] == [{"outcome": "unknown", "stop": True}]
        assert stolen["stop"] == [task["run"]]
        assert await state_of(context, task_id) == "RUNNING"
        with pytest.raises(NotFound):
            await theirs.log(task, 0, 0, b"lies")
        answer = await theirs.exchange(n=0, logs=[piece(task, 0, 0, b"lies"), piece(task, 7, 0, b"x")])
        assert answer["log_lengths"] == [-1, -1]

    run(story, context)


def test_a_bot_cannot_act_on_a_run_without_its_token(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        forged = {**task, "token": "0" * 64}
        nonsense = {**task, "run": "nonsense"}
        answer = await bot.exchange(n=0, reports=[finish(forged), finish(nonsense)])
        assert [reply["outcome"] for reply in answer["replies"]] == ["unknown", "unknown"]
        with pytest.raises(NotFound):
            await bot.log(forged, 0, 0, b"lies")
        assert (await bot.heartbeat(forged)).stop == [task["run"]]

    run(story, context)


def test_a_process_whose_session_was_taken_over_gets_nothing_more(any_context):
    context = any_context

    async def story():
        old, new = BotClient(context, session=1), BotClient(context, session=2)
        await old.shake()
        held = asyncio.ensure_future(old.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        await new.shake(who=old.who)
        assert (await held)["tasks"] == []
        with pytest.raises(WrongState):
            await old.exchange(wait_s=POLL_S)
        with pytest.raises(WrongState):
            await old.heartbeat()
        with pytest.raises(WrongState):
            await old.event("bot_log")
        with pytest.raises(WrongState):
            await old.shake()

    run(story, context)


def test_deleting_a_bot_takes_its_credential_away(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await bot.shake(who=bot.who)
        await context.db.write(lambda tx: bot_end.delete_bot(tx, "b1", now=context.now(), ids=context.ids))
        context.hub.recheck("b1")
        with pytest.raises(WrongState):
            await bot.exchange()
        with pytest.raises(Unauthorized):
            await bot.shake()
        await bot.shake(who=BOOTSTRAP)

    run(story, context)


def test_a_bootstrap_token_does_not_take_the_place_of_a_bot_that_lives(any_context):
    context = any_context

    async def story():
        bot, stranger = BotClient(context, session=1), BotClient(context, session=2)
        await bot.shake()
        await bot.shake(who=BOOTSTRAP)  # its reply was lost
        with pytest.raises(Forbidden, match="choose another id"):
            await stranger.shake()
        await bot.exchange(n=0)
        await stranger.shake(who=ADMIN)
        bot.session = 3
        with pytest.raises(Unauthorized, match="revoked"):
            await bot.shake()  # an administrator has given its id to another

    run(story, context)


@pytest.mark.parametrize("end", ["bot_shutdown", "bot_rebooting", "silence", "death", "deletion"])
def test_a_bot_without_its_folder_comes_back_once_the_old_one_is_gone(any_context, end):
    context = any_context

    async def story():
        bot, again = BotClient(context, session=1), BotClient(context, session=2)
        await bot.shake()
        await bot.event("bot_log", "all is well")
        if end.startswith("bot_"):
            await bot.event(end)
        elif end == "deletion":
            await context.db.write(lambda tx: bot_end.delete_bot(tx, "b1", now=context.now(), ids=context.ids))
        else:
            later = context.now() + context.rules.dead_after
            context.now = lambda: later
        if end == "death":
            await context.db.write(
                lambda tx: bot_end.mark_bot_dead(UnitOfWork(tx, later, context.ids, context.rules), "b1")
            )
        await again.shake()
        await again.exchange(n=0)
        with pytest.raises(Forbidden):
            await BotClient(context, session=3).shake()

    run(story, context)


def test_nobody_is_introduced_with_a_session_far_ahead(context):
    async def story():
        day = 86_400 * 1_000_000
        for who in (ADMIN, BOOTSTRAP):
            with pytest.raises(InvalidRequest, match="set the clock"):
                await BotClient(context, session=1 << 62).shake(who=who)
        bot = BotClient(context, session=context.now() + day - 60_000_000)
        await bot.shake()
        bot.session += day
        await bot.shake()
        assert (await bot.exchange(n=0))["order"] is None

    run(story, context)


YEAR = 365 * 86_400 * 1_000_000


@pytest.mark.parametrize("wrong_by", [YEAR, -YEAR, 0], ids=["ahead", "behind", "right"])
def test_a_new_process_gets_a_session_near_the_servers_time_whatever_its_clock_says(context, wrong_by):
    async def story():
        bot = BotClient(context, session=context.now() + wrong_by)
        welcome = await bot.shake(new_process=True)
        assert abs(welcome.session - context.now()) <= YEAR // 365
        bot.credential = ""
        assert (await bot.shake(new_process=True)).session == welcome.session, "its first response was lost"
        bot.session = welcome.session
        assert (await bot.exchange(n=0))["order"] is None

    run(story, context)


@pytest.mark.parametrize("clocks", [(YEAR, 0), (0, -YEAR), (-YEAR, -2 * YEAR)])
def test_each_new_process_gets_a_later_session_although_the_clock_was_set_back(context, clocks):
    async def story():
        sessions: list[int] = []
        bot = BotClient(context)
        for wrong_by in clocks:
            bot.session = context.now() + wrong_by
            sessions.append((await bot.shake(who=ADMIN if not sessions else None, new_process=True)).session)
        assert sessions == sorted(set(sessions))
        bot.session = sessions[0]
        with pytest.raises(WrongState, match="newer process"):
            await bot.shake(who=bot.who)

    run(story, context)


def test_a_session_that_is_years_ahead_is_continued(context):
    """It was accepted by an earlier release."""

    async def story():
        bot = BotClient(context)
        await bot.shake()
        bot.session = context.now() + YEAR
        await bot.shake()
        again = BotClient(context, session=context.now())
        again.credential, again.who = bot.credential, bot.who
        assert (await again.shake(new_process=True)).session == bot.session + 1

    run(story, context)


def test_strange_calls_are_refused_with_a_reason(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        with pytest.raises(InvalidRequest, match="kind"):
            await bot.event("bot_deleted")
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        with pytest.raises(TooLarge):
            await bot.exchange(n=0, logs=[piece(task, 0, i << 16, b"x" * 65536) for i in range(5)])
        with pytest.raises(WrongState):
            await bot.log(task, 9, 0, b"x")
        with pytest.raises(Forbidden):
            await heartbeat.heartbeat(context, Call(now=context.now(), who=ADMIN))

    run(story, context)


# ---------------------------------------------------------------- many


def test_two_thousand_held_polls_in_one_process(context):
    async def story():
        army = [BotClient(context, f"b{i:04}") for i in range(2000)]
        for chunk in range(0, 2000, 200):
            await asyncio.gather(*[bot.shake() for bot in army[chunk : chunk + 200]])
        polls = [asyncio.ensure_future(bot.exchange(wait_s=POLL_S)) for bot in army]
        await until(lambda: context.hub.num_waiting == 2000)
        await submit(context, *[a_task() for _ in range(100)])
        await until(lambda: sum(poll.done() for poll in polls) == 100)
        got = [poll.result()["tasks"] for poll in polls if poll.done()]
        assert len({task["run"] for tasks in got for task in tasks}) == 100
        served = await context.db.read(lambda tx: task_queues.bots_of_queue(tx, min(context.hub.queues_waited_for())))
        assert len(served) == 2000
        context.hub.stop()
        assert all(answer["tasks"] == [] for answer in await asyncio.gather(*[p for p in polls if not p.done()]))

    run(story, context)
