"""Releases of the bot: a share of the fleet first, then all, and back for ever when one is bad."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.server import api_releases, rollout
from myrmidon.server.bot_zip import bot_files, build_zip, public_url
from myrmidon.server.door import Call
from myrmidon.server.rollout import bucket, share_of, too_many, wanted_by
from myrmidon.server.service import Service
from myrmidon.store import releases, schedulers
from myrmidon.store.schedulers import Scheduler
from tests.deadline import HANG_S
from tests.server.doors import ADMIN, Soldier, a_door, a_task, finish, submit
from tests.server.test_fleet import events_of, write

SECOND = 1_000_000
FEW = next(f"bot{n}" for n in range(1000) if bucket(f"bot{n}") < 10)
REST = next(f"bot{n}" for n in range(1000) if bucket(f"bot{n}") >= 50)


def run(story):
    return asyncio.run(asyncio.wait_for(story(), HANG_S))


@pytest.fixture
def settings(tmp_path):
    return write(tmp_path / "settings", bot_config_py="x = 1\n")


@pytest.fixture
def door(sqlite_url, tmp_path, settings):
    """A server that tries every release with a tenth of its bots."""
    with a_door(sqlite_url, tmp_path, config_dir=str(settings), canary_percent=10, canary_s=60) as opened:
        yield opened


@pytest.fixture
def plain_door(sqlite_url, tmp_path, settings):
    with a_door(sqlite_url, tmp_path, config_dir=str(settings)) as opened:
        yield opened


async def begin(door):
    heart = Service(door)
    await heart.begin()
    return heart


async def fleet_of(door, *names):
    army = [Soldier(door, name) for name in names]
    for bot in army:
        await bot.shake(version=door.hub.wanted)
    return army


async def edit(door, heart, settings, text):
    """The administrator edits bot_config.py; the digest of the release that makes."""
    write(settings, bot_config_py=text)
    await heart._folder.look()
    return build_zip(bot_files(public_url(door), {"bot_config.py": text})).digest


def test_an_edit_of_the_hooks_is_a_new_release_that_goes_to_a_few_bots_first(door, settings):
    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        few, rest = await fleet_of(door, FEW, REST)
        new = await edit(door, heart, settings, "x = 2\n")
        assert (door.hub.wanted, door.hub.canary) == (old, new)
        assert (wanted_by(door, FEW), wanted_by(door, REST)) == (new, old)
        told = await few.exchange(n=0)
        assert (told["order"], told["version"]) == ("update", new)
        assert (await rest.exchange(n=0))["order"] is None
        assert "request_update" in await events_of(door, FEW)
        few.session = 2
        assert (await few.shake(version=new)).version == new
        assert not await rollout.refresh(door), "nobody has shown anything yet"
        stale = {"type": "finish", "run": "0" * 16, "token": "t", "exit_code": 0}
        await few.exchange(n=0, reports=[stale])
        await rest.event("bot_error", "not for me to say", bad_release=new)
        assert not await rollout.refresh(door), "nor have the results of its predecessor, or who runs another release"
        await submit(door, a_task())
        (task,) = (await few.exchange())["tasks"]
        await few.exchange(n=0, reports=[finish(task)])
        assert await rollout.refresh(door)
        assert (door.hub.wanted, door.hub.canary) == (new, "")
        assert (await rest.exchange(n=0))["version"] == new

    run(story)


def test_a_bot_that_has_lived_with_a_release_for_a_while_shows_that_it_is_good(door, settings):
    async def story():
        heart = await begin(door)
        (few,) = await fleet_of(door, FEW)
        new = await edit(door, heart, settings, "x = 2\n")
        few.session = 2
        await few.shake(version=new)
        await few.exchange(n=0)
        await rollout.refresh(door)
        assert door.hub.canary == new
        later = door.now() + 61 * SECOND
        door.now = lambda: later
        await few.exchange(n=0)
        await rollout.refresh(door)
        assert door.hub.wanted == new

    run(story)


def test_one_bot_that_cannot_live_with_a_canary_is_enough_to_take_it_back(door, settings, capsys):
    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        few, rest = await fleet_of(door, FEW, REST)
        bad = await edit(door, heart, settings, "x = 2\n")
        assert (await few.exchange(n=0))["version"] == bad
        await few.event("bot_error", "it hangs", bad_release=bad)
        assert (door.hub.wanted, door.hub.canary) == (old, "")
        assert "a release was taken back" in capsys.readouterr().out
        await rollout.offer_zip(door)
        assert door.hub.canary == "", "never again"
        listed = await api_releases.list_releases(door, Call(who=ADMIN))
        assert [(one.digest, one.state, one.num_failures) for one in listed.releases] == [
            (bad, "bad", 1),
            (old, "active", 0),
        ]
        assert (await rest.exchange(n=0))["order"] is None
        mended = await edit(door, heart, settings, "x = 3\n")
        assert door.hub.canary == mended
        assert (await few.exchange(n=0))["version"] == mended, "at once, although it was told of another a moment ago"
        assert (await few.exchange(n=0))["order"] is None

    run(story)


def test_a_release_that_all_run_is_taken_back_when_enough_bots_fail(plain_door, settings):
    door = plain_door

    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        army = await fleet_of(door, "b1", "b2", "b3")
        bad = await edit(door, heart, settings, "x = 2\n")
        assert door.hub.wanted == bad, "without a share for canaries it is for all at once"
        for _ in range(2):
            await army[0].event("bot_error", "crashed", bad_release=bad)
        assert door.hub.wanted == bad, "one machine says nothing of a release"
        await army[1].event("bot_error", "crashed", bad_release=bad)
        assert door.hub.wanted == old
        army[2].session = 2
        await army[2].shake(version=bad)
        assert (await army[2].exchange(n=0))["version"] == old

    run(story)


@pytest.mark.parametrize(
    ("failures", "living", "enough"),
    [(1, 1, True), (1, 2, False), (2, 2, True), (2, 20, True), (2, 21, False), (3, 21, True), (2000, 20_000, True)],
)
def test_two_bots_and_a_tenth_of_the_fleet_are_too_many(failures, living, enough):
    assert too_many(failures, living) is enough


def test_some_living_bot_is_always_among_the_first():
    assert share_of([FEW, REST], 50) == 50
    assert share_of([REST], 1) == bucket(REST) + 1
    assert share_of([], 5) == 5


def test_a_fleet_without_bots_has_nobody_to_try_a_release(door, settings):
    async def story():
        heart = await begin(door)
        new = await edit(door, heart, settings, "x = 2\n")
        await rollout.refresh(door)
        assert door.hub.wanted == new

    run(story)


def test_beside_a_server_of_before_a_new_release_waits_and_nobody_gets_it_untried(door, settings):
    """It knows of the active release only: bots would be told to go to and fro."""

    async def story():
        heart = await begin(door)
        await fleet_of(door, FEW, REST)
        old = door.hub.wanted
        first = await edit(door, heart, settings, "x = 2\n")
        assert door.hub.canary == first
        older = Scheduler(77, "elsewhere", 1, door.now(), 99)
        await door.write(lambda tx: schedulers.insert(tx, older))
        await rollout.refresh(door)
        assert (door.hub.wanted, door.hub.canary) == (old, ""), "a trial is no reason to give it to all"
        second = await edit(door, heart, settings, "x = 3\n")
        assert (door.hub.wanted, door.hub.canary) == (old, "")
        await door.write(lambda tx: schedulers.delete(tx, older))
        await rollout.refresh(door)
        assert (door.hub.wanted, door.hub.canary) == (old, second)
        listed = await api_releases.list_releases(door, Call(who=ADMIN))
        assert {one.digest: one.state for one in listed.releases} == {old: "active", first: "old", second: "canary"}

    run(story)


def test_undoing_an_edit_brings_the_release_of_before_back_at_once(door, settings):
    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        await fleet_of(door, FEW)
        await edit(door, heart, settings, "x = 2\n")
        door.hub.proven = door.hub.canary
        await rollout.refresh(door)
        assert door.hub.wanted != old
        assert await edit(door, heart, settings, "x = 1\n") == old
        assert (door.hub.wanted, door.hub.canary) == (old, "")

    run(story)


def test_a_release_is_taken_back_by_hand_once(plain_door, settings):
    door = plain_door

    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        with pytest.raises(WrongState):
            await rollout.revert(door, old, who="ann", why="")
        new = await edit(door, heart, settings, "x = 2\n")
        body = api_releases.RevertBody("it leaks")
        for _ in range(2):
            done = await api_releases.revert_release(door, Call(who=ADMIN, body=body, params={"digest": new}))
            assert (done.state, done.who, done.why) == ("bad", "admin", "it leaks")
        assert door.hub.wanted == old
        with pytest.raises(NotFound):
            await rollout.revert(door, "0" * 64, who="ann", why="")

    run(story)


def test_an_own_bootstrap_script_gets_the_same_names_and_is_a_new_release_too(plain_door, settings):
    door = plain_door

    async def story():
        heart = await begin(door)
        old = door.hub.wanted
        write(settings, bootstrap_py="print(SERVER, POOL)\n")
        await heart._folder.look()
        assert door.hub.wanted != old
        query = api_releases.BootstrapQuery(pool="lab")
        answer = await api_releases.bootstrap(door, Call(who=ADMIN, query=query))
        assert b"POOL = 'lab'\n" in answer.body
        assert answer.body.endswith(b"print(SERVER, POOL)\n")
        kept = await door.read(partial(releases.read, digest=door.hub.wanted))
        assert b"config/bootstrap.py" in kept.content

    run(story)


def test_the_zip_holds_the_hooks_of_the_settings_folder_or_those_that_do_nothing():
    usual, own = bot_files("https://m"), bot_files("https://m", {"bot_config.py": "x = 1\n"})
    assert own["config/bot_config.py"] == b"x = 1\n"
    assert usual["config/bot_config.py"] == usual["myrmidon/bot/default_bot_config.py"]


def test_a_report_on_a_zip_that_nobody_knows_is_passed_over(plain_door):
    async def story():
        await begin(plain_door)
        (bot,) = await fleet_of(plain_door, "b1")
        for nonsense in ("x", "0" * 64):
            await bot.event("bot_error", nonsense, bad_release=nonsense)
        assert await plain_door.read(lambda tx: tx.all("SELECT * FROM release_failures")) == []

    run(story)


def test_all_servers_try_the_same_release_with_the_same_bots_and_go_back_together(db_url, tmp_path, monkeypatch):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    folder = write(tmp_path / "settings", bot_config_py="x = 1\n")
    given = {"public_url": "https://all", "canary_percent": 10, "config_dir": str(folder)}
    with a_door(db_url, tmp_path / "a", **given) as one, a_door(db_url, tmp_path / "b", **given) as two:

        async def story():
            first, second = await begin(one), await begin(two)
            old = one.hub.wanted
            await fleet_of(one, FEW, REST)
            new = await edit(one, first, folder, "x = 2\n")
            await second._folder.look()
            await rollout.refresh(two)
            for door in (one, two):
                assert (door.hub.wanted, door.hub.canary, door.hub.canary_share) == (old, new, 10)
            bot = Soldier(two, FEW, session=2)
            await bot.shake(who=bot.who, version=new)
            await bot.event("bot_error", "hangs", bad_release=new)
            await rollout.refresh(one)
            for door in (one, two):
                assert (door.hub.wanted, door.hub.canary) == (old, "")

        run(story)


def test_when_the_newer_servers_are_gone_the_bots_return_to_the_release_of_the_older_one(db_url, tmp_path):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    with a_door(db_url, tmp_path / "a", public_url="https://older", release_grace_s=5) as older:

        async def upgrade():
            await begin(older)
            with a_door(db_url, tmp_path / "b", public_url="https://newer", release_grace_s=5) as newer:
                await begin(newer)
                await rollout.refresh(older)
                assert older.hub.wanted == newer.hub.wanted == newer.memory.offers
            return newer.memory.offers

        async def story():
            new = await upgrade()
            await rollout.refresh(older)
            assert older.hub.wanted == new, "it may only be starting again"
            later = older.now() + 6 * SECOND
            older.now = lambda: later
            older.memory.offered_at = 0
            await rollout.refresh(older)
            assert older.hub.wanted == older.memory.offers != new

        run(story)
