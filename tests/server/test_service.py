"""What a server does by itself: sweeping, signs of life, its slot, queues it learns of, and a clean stop."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec import structs

from myrmidon.model.ids import parse_id
from myrmidon.scheduler import cancel, enroll, tally
from myrmidon.server import api_wait, rollout, service
from myrmidon.server.api_wait import WaitRequest
from myrmidon.server.door import Call
from myrmidon.server.service import Service
from myrmidon.store import bot as bots
from myrmidon.store import drain as drains
from myrmidon.store import releases, schedulers
from myrmidon.store.schedulers import Scheduler
from tests.deadline import HANG_S, POLL_S
from tests.server.doors import ADMIN, Soldier, a_door, a_task, finish, serving, start, state_of, submit, until

SECOND = 1_000_000


@pytest.fixture
def door(db_url, tmp_path):
    with a_door(db_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def small_door(sqlite_url, tmp_path):
    with a_door(sqlite_url, tmp_path, sweep_s=0.05) as opened:
        yield opened


def run(story):
    return asyncio.run(asyncio.wait_for(story(), HANG_S))


def test_waiting_bots_are_written_down_together_and_only_when_it_is_time(door):
    async def story():
        before = door.now()
        door.now = lambda: before
        army = [Soldier(door, f"b{i}") for i in range(3)]
        for bot in army:
            await bot.shake()
        polls = [asyncio.ensure_future(bot.exchange(wait_s=POLL_S)) for bot in army[:2]]
        await until(lambda: door.hub.num_waiting == 2)
        heart = Service(door)
        assert await heart.flush_beats() == 0, "they were heard of a moment ago"
        later = before + 61 * SECOND
        door.now = lambda: later
        assert await heart.flush_beats() == 2
        beats = {i: (await door.read(partial(bots.read, bot_id=f"b{i}"))).heartbeat for i in range(3)}
        assert (beats[0], beats[1]) == (later, later)
        assert beats[2] <= before, "one that is not here now may have been heard elsewhere since"
        assert await heart.flush_beats() == 0
        door.hub.stop()
        await asyncio.gather(*polls)

    run(story)


def test_bots_that_are_silent_for_long_are_forgotten(door):
    async def story():
        bot = Soldier(door)
        await bot.shake()
        later = door.now() + 2 * door.rules.dead_after + SECOND
        door.now = lambda: later
        await Service(door).flush_beats()
        assert door.hub.seats == {}

    run(story)


def test_a_lost_slot_ends_the_service(door, monkeypatch):
    async def story():
        monkeypatch.setattr(service, "SLOT_S", 0.01)
        async with serving(door) as background:
            assert door.enrolled
            await door.write(lambda tx: enroll.leave(tx, door.server))
            await asyncio.wait_for(asyncio.shield(background), HANG_S)
            assert not door.enrolled

    run(story)


def test_a_wake_that_was_lost_is_made_good_by_the_next_sweep(small_door):
    door = small_door

    async def story():
        async with serving(door):
            bot = Soldier(door)
            await bot.shake()
            await submit(door, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
            await until(lambda: door.hub.num_waiting == 1)
            door.hub.tell = lambda notes: None
            door.hub.reserve = lambda queue, n: []
            await submit(door, a_task())
            assert len((await poll)["tasks"]) == 1
            assert task

    run(story)


def test_a_run_that_never_began_goes_to_another_bot_that_waits(sqlite_url, tmp_path):
    with a_door(sqlite_url, tmp_path, sweep_s=0.05, start_within_s=1) as door:

        async def story():
            async with serving(door):
                lazy, eager = Soldier(door, "lazy"), Soldier(door, "eager")
                await lazy.shake()
                (task_id,) = await submit(door, a_task())
                (task,) = (await lazy.exchange(wait_s=POLL_S))["tasks"]
                await eager.shake()
                (again,) = (await eager.exchange(wait_s=POLL_S))["tasks"]
                assert parse_id(again["run"]) == (parse_id(task_id)[0], 2)
                assert task["run"] != again["run"]

        run(story)


def test_consequences_that_are_too_wide_for_one_transaction_are_carried_on_soon(door):
    async def story():
        async with serving(door):
            ids = await submit(door, *[a_task(tags=["k:v"]) for _ in range(5)])
            group = await door.group_id("default")
            now = door.now()
            await door.write(lambda tx: cancel.cancel_tagged(tx, ["k:v"], group_id=group, now=now, ids=door.ids))
            while await door.read(partial(drains.pending, n=1)):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            assert {await state_of(door, shown) for shown in ids} == {"CANCELED"}

    run(story)


def test_a_part_that_fails_goes_on(small_door, monkeypatch):
    door = small_door
    failures = []

    def broken(*args, **kwargs):
        failures.append(1)
        raise ZeroDivisionError

    async def story():
        monkeypatch.setattr("myrmidon.scheduler.sweep.sweep", broken)
        async with serving(door):
            await until(lambda: len(failures) >= 3)

    run(story)


def test_a_stop_answers_held_polls(door):
    async def story():
        bot = Soldier(door)
        async with serving(door):
            await bot.shake()
            await submit(door, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            await bot.exchange(n=0, reports=[start(task)])
            poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
            await until(lambda: door.hub.num_waiting == 1)
        assert (await poll)["tasks"] == []

    run(story)


def test_a_client_that_waits_on_one_server_hears_of_an_end_on_another(db_url, tmp_path, monkeypatch):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    monkeypatch.setattr(api_wait, "LOOK_AGAIN_S", POLL_S)

    async def story(one, two):
        async with serving(one), serving(two):
            bot = Soldier(two)
            await bot.shake()
            (task_id,) = await submit(two, a_task())
            (task,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
            body = WaitRequest(task_ids=[task_id], wait_s=POLL_S)
            waiting = asyncio.ensure_future(api_wait.wait(one, Call(who=ADMIN, body=body)))
            await until(lambda: one.hub._watches)
            await bot.exchange(n=0, reports=[finish(task)])
            assert (await waiting).done

    with (
        a_door(db_url, tmp_path / "one", sweep_s=3600) as one,
        a_door(db_url, tmp_path / "two", sweep_s=3600) as two,
    ):
        run(lambda: story(one, two))


def test_all_servers_on_a_database_want_the_same_zip(db_url, tmp_path, monkeypatch):
    """Also when their addresses differ, and when an older one is started again."""
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")

    async def story(one, two):
        async with serving(one):
            old = one.hub.wanted
            async with serving(two):
                new = two.hub.wanted
                assert old != new, "another address is another zip"
                await rollout.refresh(one)
                assert one.hub.wanted == new
                kept = await one.read(partial(releases.read, digest=old))
                assert kept is not None
                assert not kept.active
                assert await rollout.offer_zip(one) == new, "it was here before, so it is no news"

    with (
        a_door(db_url, tmp_path / "one", public_url="https://one") as one,
        a_door(db_url, tmp_path / "two", public_url="https://two") as two,
    ):
        run(lambda: story(one, two))


def test_tallies_are_checked_at_the_start_and_as_long_as_an_older_server_is_at_work(sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "SPAN", 4)
    older = Scheduler(77, "elsewhere", 1, 0, 99)
    with a_door(sqlite_url, tmp_path) as door:

        async def sealed_after_a_change_that_nobody_told_of() -> int:
            tally.tally(door.db, now=door.now())
            await door.write(lambda tx: tx.run("UPDATE task_results SET seq = seq + 1 WHERE id = :id", id=ids[0]))
            await heart.check_tallies()
            return (await door.read(lambda tx: tx.all("SELECT COUNT(*) FROM task_spans WHERE sealed = 1")))[0][0]

        async def begin() -> None:
            await heart.begin()
            ids.extend(parse_id(shown)[0] for shown in await submit(door, *[a_task() for _ in range(9)]))
            now, later = door.now(), door.now() + 600 * SECOND
            await door.write(lambda tx: cancel.cancel(tx, ids, now=now, ids=door.ids))
            door.now = lambda: later

        async def story():
            await begin()
            assert await sealed_after_a_change_that_nobody_told_of() == 1, "who starts was not there before"
            assert await sealed_after_a_change_that_nobody_told_of() == 2, "who is alone need not look"
            await door.write(lambda tx: schedulers.insert(tx, structs.replace(older, heartbeat=door.now())))
            assert await sealed_after_a_change_that_nobody_told_of() == 1
            await door.write(lambda tx: enroll.leave(tx, older))
            assert await sealed_after_a_change_that_nobody_told_of() == 1, "it may have had a last word"
            assert await sealed_after_a_change_that_nobody_told_of() == 2

        heart, ids = Service(door), list[int]()
        run(story)
