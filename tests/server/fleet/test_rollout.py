"""Releases of the bot: a share of the fleet first, then all, and back for ever when one is bad."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.server.api import releases
from myrmidon.server.background.loop import BackgroundWork
from myrmidon.server.calls import Call
from myrmidon.server.fleet import rollout
from myrmidon.server.fleet.bot_zip import bot_files, build_zip, public_url
from myrmidon.server.fleet.rollout import bucket, canary_share, exceeds_failure_limit, release_for
from myrmidon.store.tables import release
from myrmidon.wire.releases import AllowBody, BootstrapQuery, RevertBody
from tests.deadline import HANG_S
from tests.server.contexts import ADMIN, BotClient, a_server_context, a_task, finish, submit
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
def context(sqlite_url, tmp_path, settings):
    """A server that tries every release with a tenth of its bots."""
    with a_server_context(sqlite_url, tmp_path, config_dir=str(settings), canary_percent=10, canary_s=60) as opened:
        yield opened


@pytest.fixture
def plain_context(sqlite_url, tmp_path, settings):
    with a_server_context(sqlite_url, tmp_path, config_dir=str(settings)) as opened:
        yield opened


async def begin(context):
    heart = BackgroundWork(context)
    await heart.start()
    return heart


async def fleet_of(context, *names):
    army = [BotClient(context, name) for name in names]
    for bot in army:
        await bot.shake(version=context.hub.active_release)
    return army


async def edit(context, heart, settings, text):
    """The administrator edits bot_config.py; the digest of the release that makes."""
    write(settings, bot_config_py=text)
    await heart._folder.poll()
    return build_zip(bot_files(public_url(context), {"bot_config.py": text})).digest


def test_an_edit_of_the_hooks_is_a_new_release_that_goes_to_a_few_bots_first(context, settings):
    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        few, rest = await fleet_of(context, FEW, REST)
        new = await edit(context, heart, settings, "x = 2\n")
        assert (context.hub.active_release, context.hub.canary_release) == (old, new)
        assert (release_for(context, FEW), release_for(context, REST)) == (new, old)
        told = await few.exchange(n=0)
        assert (told["order"], told["version"]) == ("update", new)
        assert (await rest.exchange(n=0))["order"] is None
        assert "request_update" in await events_of(context, FEW)
        few.session = 2
        assert (await few.shake(version=new)).version == new
        assert not await rollout.refresh(context), "nobody has shown anything yet"
        stale = {"type": "finish", "run": "0" * 16, "token": "t", "exit_code": 0}
        await few.exchange(n=0, reports=[stale])
        await rest.event("bot_error", "not for me to say", bad_release=new)
        assert not await rollout.refresh(context), (
            "nor have the results of its predecessor, or who runs another release"
        )
        await submit(context, a_task())
        (task,) = (await few.exchange())["tasks"]
        await few.exchange(n=0, reports=[finish(task)])
        assert await rollout.refresh(context)
        assert (context.hub.active_release, context.hub.canary_release) == (new, "")
        assert (await rest.exchange(n=0))["version"] == new

    run(story)


def test_a_bot_that_has_lived_with_a_release_for_a_while_shows_that_it_is_good(context, settings):
    async def story():
        heart = await begin(context)
        (few,) = await fleet_of(context, FEW)
        new = await edit(context, heart, settings, "x = 2\n")
        few.session = 2
        await few.shake(version=new)
        await few.exchange(n=0)
        await rollout.refresh(context)
        assert context.hub.canary_release == new
        later = context.now() + 61 * SECOND
        context.now = lambda: later
        await few.exchange(n=0)
        await rollout.refresh(context)
        assert context.hub.active_release == new

    run(story)


def test_one_bot_that_cannot_live_with_a_canary_is_enough_to_take_it_back(context, settings, capsys):
    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        few, rest = await fleet_of(context, FEW, REST)
        bad = await edit(context, heart, settings, "x = 2\n")
        assert (await few.exchange(n=0))["version"] == bad
        await few.event("bot_error", "it hangs", bad_release=bad)
        assert (context.hub.active_release, context.hub.canary_release) == (old, "")
        assert "release reverted" in capsys.readouterr().out
        await rollout.offer_zip(context)
        assert context.hub.canary_release == "", "never again"
        listed = await releases.list_releases(context, Call(now=context.now(), who=ADMIN))
        assert [(one.digest, one.state, one.num_failures) for one in listed.releases] == [
            (bad, "bad", 1),
            (old, "active", 0),
        ]
        assert (await rest.exchange(n=0))["order"] is None
        mended = await edit(context, heart, settings, "x = 3\n")
        assert context.hub.canary_release == mended
        assert (await few.exchange(n=0))["version"] == mended, "at once, although it was told of another a moment ago"
        assert (await few.exchange(n=0))["order"] is None

    run(story)


def test_a_release_that_all_run_is_taken_back_when_enough_bots_fail(plain_context, settings):
    context = plain_context

    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        army = await fleet_of(context, "b1", "b2", "b3")
        bad = await edit(context, heart, settings, "x = 2\n")
        assert context.hub.active_release == bad, "without a share for canaries it is for all at once"
        for _ in range(2):
            await army[0].event("bot_error", "crashed", bad_release=bad)
        assert context.hub.active_release == bad, "one machine says nothing of a release"
        await army[1].event("bot_error", "crashed", bad_release=bad)
        assert context.hub.active_release == old
        army[2].session = 2
        await army[2].shake(version=bad)
        assert (await army[2].exchange(n=0))["version"] == old

    run(story)


@pytest.mark.parametrize(
    ("failures", "living", "enough"),
    [(0, 0, False), (1, 1, True), (1, 2, False), (2, 2, True), (2, 6, True), (2, 7, False), (7000, 20_000, True)],
)
def test_two_bots_and_a_third_of_the_fleet_are_too_many(failures, living, enough):
    assert exceeds_failure_limit(failures, living) is enough


def test_bots_that_came_after_a_release_or_never_got_it_cannot_ban_it(plain_context, settings):
    context = plain_context

    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        army = await fleet_of(context, *[f"b{n}" for n in range(7)])
        new = await edit(context, heart, settings, "x = 2\n")
        for bot in await fleet_of(context, *[f"stranger{n}" for n in range(9)]):
            await bot.event("bot_error", "crashed", bad_release=new)
            await bot.event("bot_error", "crashed", bad_release=old)
        assert context.hub.active_release == new
        for bot in army:
            await bot.event("bot_error", "crashed", bad_release=old)
        for bot in army[:2]:
            await bot.event("bot_error", "crashed", bad_release=new)
        assert context.hub.active_release == new, "two of seven are no third"
        listed = await releases.list_releases(context, Call(now=context.now(), who=ADMIN))
        assert {one.digest: one.num_failures for one in listed.releases} == {new: 2, old: 0}
        await army[2].event("bot_error", "crashed", bad_release=new)
        assert context.hub.active_release == old

    run(story)


def test_an_administrator_lifts_a_ban_and_what_was_said_before_counts_no_more(context, settings):
    async def story():
        heart = await begin(context)
        few, _ = await fleet_of(context, FEW, REST)
        bad = await edit(context, heart, settings, "x = 2\n")
        await few.event("bot_error", "no memory", bad_release=bad)
        assert context.hub.canary_release == ""
        call = Call(now=context.now(), who=ADMIN, body=AllowBody("it was the machine"), params={"digest": bad})
        for _ in range(2):
            allowed = await releases.allow_release(context, call)
            assert (allowed.state, allowed.num_failures) == ("canary", 0)
            assert (allowed.who, allowed.why) == ("admin", "it was the machine")
        assert context.hub.canary_release == bad
        await few.event("bot_error", "no memory again", bad_release=bad)
        assert context.hub.canary_release == "", "a ban that is lifted may be needed again"
        with pytest.raises(NotFound):
            await releases.allow_release(
                context, Call(now=context.now(), who=ADMIN, body=AllowBody(), params={"digest": "0" * 64})
            )

    run(story)


def test_some_living_bot_is_always_among_the_first():
    assert canary_share([FEW, REST], 50) == 50
    assert canary_share([REST], 1) == bucket(REST) + 1
    assert canary_share([], 5) == 5


def test_a_fleet_without_bots_has_nobody_to_try_a_release(context, settings):
    async def story():
        heart = await begin(context)
        new = await edit(context, heart, settings, "x = 2\n")
        await rollout.refresh(context)
        assert context.hub.active_release == new

    run(story)


def test_undoing_an_edit_brings_the_release_of_before_back_at_once(context, settings):
    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        await fleet_of(context, FEW)
        await edit(context, heart, settings, "x = 2\n")
        context.hub.proven_release = context.hub.canary_release
        await rollout.refresh(context)
        assert context.hub.active_release != old
        assert await edit(context, heart, settings, "x = 1\n") == old
        assert (context.hub.active_release, context.hub.canary_release) == (old, "")

    run(story)


def test_a_release_is_taken_back_by_hand_once(plain_context, settings):
    context = plain_context

    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        with pytest.raises(WrongState):
            await rollout.revert(context, old, who="ann", why="")
        new = await edit(context, heart, settings, "x = 2\n")
        body = RevertBody("it leaks")
        for _ in range(2):
            done = await releases.revert_release(
                context, Call(now=context.now(), who=ADMIN, body=body, params={"digest": new})
            )
            assert (done.state, done.who, done.why) == ("bad", "admin", "it leaks")
        assert context.hub.active_release == old
        with pytest.raises(NotFound):
            await rollout.revert(context, "0" * 64, who="ann", why="")

    run(story)


def test_an_own_bootstrap_script_gets_the_same_names_and_is_a_new_release_too(plain_context, settings):
    context = plain_context

    async def story():
        heart = await begin(context)
        old = context.hub.active_release
        write(settings, bootstrap_py="print(SERVER, POOL)\n")
        await heart._folder.poll()
        assert context.hub.active_release != old
        query = BootstrapQuery(pool="lab")
        answer = await releases.bootstrap(context, Call(now=context.now(), who=ADMIN, query=query))
        assert b"POOL = 'lab'\n" in answer.body
        assert answer.body.endswith(b"print(SERVER, POOL)\n")
        kept = await context.db.read(partial(release.read, digest=context.hub.active_release))
        assert b"config/bootstrap.py" in kept.content

    run(story)


def test_the_zip_holds_the_hooks_of_the_settings_folder_or_those_that_do_nothing():
    usual, own = bot_files("https://m"), bot_files("https://m", {"bot_config.py": "x = 1\n"})
    assert own["config/bot_config.py"] == b"x = 1\n"
    assert usual["config/bot_config.py"] == usual["myrmidon/bot/hooks/default_bot_config.py"]


def test_a_report_on_a_zip_that_nobody_knows_is_passed_over(plain_context):
    async def story():
        await begin(plain_context)
        (bot,) = await fleet_of(plain_context, "b1")
        for nonsense in ("x", "0" * 64):
            await bot.event("bot_error", nonsense, bad_release=nonsense)
        assert await plain_context.db.read(lambda tx: tx.all("SELECT * FROM release_failures")) == []

    run(story)


def test_all_servers_try_the_same_release_with_the_same_bots_and_go_back_together(db_url, tmp_path, monkeypatch):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    folder = write(tmp_path / "settings", bot_config_py="x = 1\n")
    given = {"public_url": "https://all", "canary_percent": 10, "config_dir": str(folder)}
    with (
        a_server_context(db_url, tmp_path / "a", **given) as one,
        a_server_context(db_url, tmp_path / "b", **given) as two,
    ):

        async def story():
            first, second = await begin(one), await begin(two)
            old = one.hub.active_release
            few, _ = await fleet_of(one, FEW, REST)
            new = await edit(one, first, folder, "x = 2\n")
            await second._folder.poll()
            await rollout.refresh(two)
            for context in (one, two):
                assert (context.hub.active_release, context.hub.canary_release, context.hub.canary_share) == (
                    old,
                    new,
                    10,
                )
            bot = BotClient(two, FEW, session=2)
            await bot.shake(who=few.who, version=new)
            await bot.event("bot_error", "hangs", bad_release=new)
            await rollout.refresh(one)
            for context in (one, two):
                assert (context.hub.active_release, context.hub.canary_release) == (old, "")

        run(story)


def test_when_the_newer_servers_are_gone_the_bots_return_to_the_release_of_the_older_one(db_url, tmp_path):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    with a_server_context(db_url, tmp_path / "a", public_url="https://older", release_grace_s=5) as older:

        async def upgrade():
            await begin(older)
            with a_server_context(db_url, tmp_path / "b", public_url="https://newer", release_grace_s=5) as newer:
                await begin(newer)
                await rollout.refresh(older)
                assert older.hub.active_release == newer.hub.active_release == newer.state.offered_release
            return newer.state.offered_release

        async def story():
            new = await upgrade()
            await rollout.refresh(older)
            assert older.hub.active_release == new, "it may only be starting again"
            later = older.now() + 6 * SECOND
            older.now = lambda: later
            older.state.offered_at = 0
            await rollout.refresh(older)
            assert older.hub.active_release == older.state.offered_release != new

        run(story)
