"""What a server does by itself: sweeping, signs of life, its slot, queues it learns of, and a clean stop."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from myrmidon.model.errors import WrongState
from myrmidon.model.ids import parse_id
from myrmidon.scheduler import cancel, servers
from myrmidon.server.api import tasks
from myrmidon.server.background import loop
from myrmidon.server.background.loop import BackgroundWork
from myrmidon.server.calls import Call
from myrmidon.server.fleet import rollout
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import chunked_work as drains
from myrmidon.store.tables import release
from myrmidon.wire.tasks import WaitRequest
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import (
    ADMIN,
    BotClient,
    a_server_context,
    a_task,
    finish,
    serving,
    start,
    state_of,
    submit,
    until,
)

SECOND = 1_000_000


@pytest.fixture
def context(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def small_door(sqlite_url, tmp_path):
    with a_server_context(sqlite_url, tmp_path, sweep_s=0.05) as opened:
        yield opened


def run(story):
    return asyncio.run(asyncio.wait_for(story(), HANG_S))


def test_waiting_bots_are_written_down_together_and_only_when_it_is_time(context):
    async def story():
        before = context.now()
        context.now = lambda: before
        army = [BotClient(context, f"b{i}") for i in range(3)]
        for bot in army:
            await bot.shake()
        polls = [asyncio.ensure_future(bot.exchange(wait_s=POLL_S)) for bot in army[:2]]
        await until(lambda: context.hub.num_waiting == 2)
        heart = BackgroundWork(context)
        assert await heart.write_heartbeats() == 0, "they were heard of a moment ago"
        later = before + 61 * SECOND
        context.now = lambda: later
        assert await heart.write_heartbeats() == 2
        beats = {i: (await context.db.read(partial(bots.read, bot_id=f"b{i}"))).heartbeat for i in range(3)}
        assert (beats[0], beats[1]) == (later, later)
        assert beats[2] <= before, "one that is not here now may have been heard elsewhere since"
        assert await heart.write_heartbeats() == 0
        context.hub.stop()
        await asyncio.gather(*polls)

    run(story)


def test_a_bot_that_waits_here_and_was_taken_for_dead_elsewhere_shakes_hands_again(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        await context.db.write(lambda tx: tx.run("UPDATE bots SET alive = 0, serving = 0"))
        later = context.now() + 61 * SECOND
        context.now = lambda: later
        assert await BackgroundWork(context).write_heartbeats() == 1
        with pytest.raises(WrongState):
            await asyncio.wait_for(poll, HANG_S)

    run(story)


def test_bots_that_are_silent_for_long_are_forgotten(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        later = context.now() + 2 * context.rules.dead_after + SECOND
        context.now = lambda: later
        await BackgroundWork(context).write_heartbeats()
        assert context.hub.bots == {}

    run(story)


def test_a_lost_slot_ends_the_service(context, monkeypatch):
    async def story():
        monkeypatch.setattr(loop, "SLOT_S", 0.01)
        async with serving(context) as background:
            assert context.state.enrolled
            await context.db.write(lambda tx: servers.unregister(tx, context.server))
            await asyncio.wait_for(asyncio.shield(background), HANG_S)
            assert not context.state.enrolled

    run(story)


def test_a_wake_that_was_lost_is_made_good_by_the_next_sweep(small_door):
    context = small_door

    async def story():
        async with serving(context):
            bot = BotClient(context)
            await bot.shake()
            await submit(context, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
            await until(lambda: context.hub.num_waiting == 1)
            context.hub.notify_commit = lambda notes: None
            context.hub.reserve = lambda queue, n, addresses: []
            await submit(context, a_task())
            assert len((await poll)["tasks"]) == 1
            assert task

    run(story)


def test_a_run_that_never_began_goes_to_another_bot_that_waits(sqlite_url, tmp_path):
    with a_server_context(sqlite_url, tmp_path, sweep_s=0.05, start_within_s=1) as context:

        async def story():
            async with serving(context):
                lazy, eager = BotClient(context, "lazy"), BotClient(context, "eager")
                await lazy.shake()
                (task_id,) = await submit(context, a_task())
                (task,) = (await lazy.exchange(wait_s=POLL_S))["tasks"]
                await eager.shake()
                (again,) = (await eager.exchange(wait_s=POLL_S))["tasks"]
                assert parse_id(again["run"]) == (parse_id(task_id)[0], 2)
                assert task["run"] != again["run"]

        run(story)


def test_consequences_that_are_too_wide_for_one_transaction_are_carried_on_soon(context):
    async def story():
        async with serving(context):
            ids = await submit(context, *[a_task(tags=["k:v"]) for _ in range(5)])
            group = await context.groups.id_of("default", context.now())
            now = context.now()
            await context.db.write(
                lambda tx: cancel.cancel_tagged(tx, ["k:v"], group_id=group, now=now, ids=context.ids)
            )
            while await context.db.read(partial(drains.pending, n=1)):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            assert {await state_of(context, shown) for shown in ids} == {"CANCELLED"}

    run(story)


def test_a_part_that_fails_goes_on(small_door, monkeypatch):
    context = small_door
    failures = []

    def broken(*args, **kwargs):
        failures.append(1)
        raise ZeroDivisionError

    async def story():
        monkeypatch.setattr("myrmidon.scheduler.maintenance.Maintenance.steps", broken)
        async with serving(context):
            await until(lambda: len(failures) >= 3)

    run(story)


def test_a_stop_answers_held_polls(context):
    async def story():
        bot = BotClient(context)
        async with serving(context):
            await bot.shake()
            await submit(context, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            await bot.exchange(n=0, reports=[start(task)])
            poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
            await until(lambda: context.hub.num_waiting == 1)
        assert (await poll)["tasks"] == []

    run(story)


def test_a_client_that_waits_on_one_server_hears_of_an_end_on_another(db_url, tmp_path, monkeypatch):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    monkeypatch.setattr(tasks, "RECHECK_S", POLL_S)

    async def story(one, two):
        async with serving(one), serving(two):
            bot = BotClient(two)
            await bot.shake()
            (task_id,) = await submit(two, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            body = WaitRequest(task_ids=[task_id], wait_s=POLL_S)
            waiting = asyncio.ensure_future(tasks.wait(one, Call(now=one.now(), who=ADMIN, body=body)))
            await until(lambda: one.hub._task_ends.waiters)
            await bot.exchange(n=0, reports=[finish(task)])
            assert (await waiting).done

    with (
        a_server_context(db_url, tmp_path / "one", sweep_s=3600) as one,
        a_server_context(db_url, tmp_path / "two", sweep_s=3600) as two,
    ):
        run(lambda: story(one, two))


def test_events_of_other_servers_are_looked_for_more_often_while_a_client_waits_for_results(context, monkeypatch):
    monkeypatch.setattr(loop, "EVENTS_S", HANG_S)

    async def story():
        work, looks = BackgroundWork(context), []

        async def look():
            looks.append(1)
            return False

        monkeypatch.setattr(work, "follow_events", look)
        for _ in range(3):
            await work.look_for_events()
        assert len(looks) == 1
        with context.hub.open_result_stream("s", "c") as stream:
            await work.look_for_events()
            assert len(looks) == 1, "the stream has no tasks"
            stream.add([1])
            for _ in range(3):
                await work.look_for_events()
        assert len(looks) == 4
        await work.look_for_events()
        assert len(looks) == 4

    run(story)


def test_all_servers_on_a_database_want_the_same_zip(db_url, tmp_path, monkeypatch):
    """Also when their addresses differ, and when an older one is started again."""
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")

    async def story(one, two):
        async with serving(one):
            old = one.hub.active_release
            async with serving(two):
                new = two.hub.active_release
                assert old != new, "another address is another zip"
                await rollout.refresh(one)
                assert one.hub.active_release == new
                kept = await one.db.read(partial(release.read, digest=old))
                assert kept is not None
                assert not kept.active
                assert await rollout.offer_zip(one) == new, "it was here before, so it is no news"

    with (
        a_server_context(db_url, tmp_path / "one", public_url="https://one") as one,
        a_server_context(db_url, tmp_path / "two", public_url="https://two") as two,
    ):
        run(lambda: story(one, two))
