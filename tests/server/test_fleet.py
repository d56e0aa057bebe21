"""What administrators decide for their bots: groups, forced dimensions, scripts, changes, the end of a bot."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from myrmidon.model import dimensions
from myrmidon.model.errors import Forbidden, InvalidRequest, NotFound
from myrmidon.model.ids import parse_id
from myrmidon.scheduler import bot_end, rerun
from myrmidon.scheduler import bots as fleet
from myrmidon.server.api import task_actions
from myrmidon.server.background.loop import BackgroundWork
from myrmidon.server.calls import Call
from myrmidon.server.fleet import cache_hints, config_sync
from myrmidon.server.fleet.config_sync import ConfigFolderWatcher
from myrmidon.server.usecases.bots import terminate_bot
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import settings_version, task_queues, task_run
from myrmidon.store.views import bot_history
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import (
    ADMIN,
    BotClient,
    a_server_context,
    a_task,
    finish,
    start,
    state_of,
    submit,
    sweep,
    until,
)

SECOND = 1_000_000
GROUPS = """
trusted = ["rack"]
[[group]]
name = "lab"
bots = ["b1"]
dimensions = { pool = ["lab"] }
script = "lab.py"
settings = { caches = { items = 5 } }
[[group]]
name = "others"
default = true
"""
SCRIPT = "def on_handshake(bot):\n    pass\n"


def write(folder: Path, **files: str) -> Path:
    """Files of a settings folder, `scripts__lab_py` being scripts/lab.py; each edit has a time of its own."""
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_toml", ".toml").replace("_py", ".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        last = place.stat().st_mtime_ns if place.exists() else 0
        place.write_text(text)
        if place.stat().st_mtime_ns <= last:
            os.utime(place, ns=(last + 1, last + 1))
    return folder


def run(story):
    return asyncio.run(asyncio.wait_for(story(), HANG_S))


@pytest.fixture
def settings(tmp_path):
    return write(tmp_path / "settings", bots_toml=GROUPS, scripts__lab_py=SCRIPT)


@pytest.fixture
def context(sqlite_url, tmp_path, settings):
    with a_server_context(sqlite_url, tmp_path, config_dir=str(settings), sweep_s=1000) as opened:
        yield opened


@pytest.fixture
def any_door(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def gives(context, bot_id):
    """What a server would give a bot."""
    return context.state.config.group_config(bot_id)


async def begin(context):
    heart = BackgroundWork(context)
    await heart.start()
    return heart


async def events_of(context, name="b1"):
    until_then = context.now() + SECOND
    found = await context.db.read(lambda tx: bot_history.history(tx, name, until=until_then, n=100))
    return [one.kind for one in reversed(found)]


async def pools_of(context, name="b1"):
    found = await context.db.read(partial(bots.read, bot_id=name))
    return dimensions.bot_sets(found.dimensions)["pool"]


# ---------------------------------------------------------------- groups


def test_a_handshake_brings_what_the_group_gives(context):
    async def story():
        await begin(context)
        welcome = await BotClient(context, "b1", rack=["7"]).shake()
        assert (welcome.dimensions, welcome.script, welcome.script_name) == ({"pool": ["lab"]}, SCRIPT, "lab.py")
        assert welcome.settings == {"caches": {"items": 5}}
        assert welcome.config == context.state.config.config_version_of("b1") != ""
        assert welcome.server_version
        assert await pools_of(context) == {"lab"}
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        assert "rack" not in found.dimensions
        other = await BotClient(context, "b2").shake()
        assert (other.dimensions, other.script, other.settings) == ({}, None, {})
        assert await pools_of(context, "b2") == {"default"}

    run(story)


def test_a_bot_that_no_group_has_is_refused_with_a_word_on_what_to_do(sqlite_url, tmp_path):
    folder = write(tmp_path / "settings", bots_toml='[[group]]\nname = "a"\nbots = ["b1"]\n')
    with a_server_context(sqlite_url, tmp_path, config_dir=str(folder)) as context:

        async def story():
            await begin(context)
            await BotClient(context, "b1--2").shake(who=ADMIN)
            with pytest.raises(Forbidden, match=r"No group of bots.toml has the bot 'b2'"):
                await BotClient(context, "b2").shake()

        run(story)


def test_forced_dimensions_stay_on_top_when_a_bot_changes(context):
    async def story():
        await begin(context)
        bot = BotClient(context, "b1")
        await bot.shake()
        own = {**bot.dimensions, "pool": ["mine"], "gpu": ["yes"]}
        await bot.exchange(n=0, dimensions=own)
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        has: Any = dimensions.bot_sets(found.dimensions)
        assert (has["pool"], has["gpu"]) == ({"lab"}, {"yes"})

    run(story)


def test_a_bot_whose_group_has_changed_is_told_to_restart_between_its_tasks(context, settings):
    async def story():
        heart = await begin(context)
        bot, other = BotClient(context, "b1"), BotClient(context, "b2")
        first = await bot.shake()
        second = await other.shake()
        poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S, config=first.config))
        theirs = asyncio.ensure_future(other.exchange(wait_s=POLL_S, config=second.config))
        await until(lambda: context.hub.num_waiting == 2)
        write(settings, scripts__lab_py=SCRIPT + "# edited\n")
        await heart._folder.poll()
        assert (await poll)["order"] == "restart"
        await submit(context, a_task())
        told = await theirs
        assert (told["order"], len(told["tasks"])) == (None, 1), "its group gives it what it had"
        bot.session = 2
        again = await bot.shake()
        assert again.script.endswith("# edited\n")
        assert (await bot.exchange(config=again.config, n=0))["order"] is None
        assert "request_restart" in await events_of(context)

    run(story)


def test_a_bot_of_before_that_knows_no_groups_is_never_told_to_restart(context, settings):
    async def story():
        heart = await begin(context)
        bot = BotClient(context, "b1")
        await bot.shake()
        write(settings, scripts__lab_py=SCRIPT + "# edited\n")
        await heart._folder.poll()
        assert (await bot.exchange())["order"] is None
        assert (await bot.heartbeat()).order is None

    run(story)


def test_a_bot_that_is_in_no_group_any_more_finishes_what_it_has_and_gets_nothing_new(context, settings):
    async def story():
        heart = await begin(context)
        bot = BotClient(context, "b2")
        config = (await bot.shake()).config
        (mine, _) = await submit(context, a_task(), a_task())
        (task,) = (await bot.exchange(config=config))["tasks"]
        write(settings, bots_toml='[[group]]\nname = "a"\nbots = ["b1"]\n')
        await heart._folder.poll()
        elsewhere = {**bot.dimensions, "pool": ["lab"]}
        told = await bot.exchange(config=config, dimensions=elsewhere, reports=[finish(task)])
        assert (told["order"], told["tasks"]) == ("restart", [])
        assert await state_of(context, mine) == "SUCCEEDED"
        for known in (config, None):
            assert (await bot.exchange(config=known))["tasks"] == [], "whether it obeys or not"
        assert await pools_of(context, "b2") == {"default"}
        with pytest.raises(Forbidden):
            await bot.shake()

    run(story)


def test_a_fleet_that_is_asleep_finishes_what_it_has_and_begins_nothing_until_it_is_woken(context, settings, capsys):
    async def story():
        heart = await begin(context)
        bot = BotClient(context, "b2")
        config = (await bot.shake()).config
        (mine, _) = await submit(context, a_task(), a_task())
        (task,) = (await bot.exchange(config=config))["tasks"]
        write(settings, bots_toml="asleep = true\n" + GROUPS)
        await heart._folder.poll()
        assert "fleet is asleep" in capsys.readouterr().out
        told = await bot.exchange(config=config, reports=[finish(task)])
        assert (told["order"], told["tasks"], await state_of(context, mine)) == (None, [], "SUCCEEDED")
        poll = asyncio.ensure_future(bot.exchange(config=config, wait_s=POLL_S))
        await until(lambda: context.hub.num_waiting == 1)
        (late,) = await submit(context, a_task())
        told = await task_actions.explain_task(context, Call(now=context.now(), who=ADMIN, params={"id": late}))
        assert "asleep" in told.summary
        other = BotClient(context, "b3")
        other_config = (await other.shake()).config
        assert (await other.exchange(config=other_config, wait_s=0))["tasks"] == [], "it would claim at once"
        woken_at = context.now()
        write(settings, bots_toml=GROUPS)
        await heart._folder.poll()
        (task,) = (await poll)["tasks"]
        task_id = parse_id(task["run"])[0]
        (begun,) = await context.db.read(lambda tx: task_run.read(tx, [task_id]))
        assert begun.claimed_at >= woken_at

    run(story)


# ---------------------------------------------------------------- the folder


def test_a_bad_edit_is_refused_loudly_and_what_was_in_force_stays(context, settings, capsys):
    async def story():
        heart = await begin(context)
        good = context.state.config.version
        write(settings, bots_toml=GROUPS + "[[group]]\nname = 7\n", bot_config_py="def broken(:\n")
        await heart._folder.poll()
        assert context.state.config.version == good
        said = capsys.readouterr().out
        assert "configuration folder is invalid" in said
        assert "group[2].name" in said
        assert "bot_config.py: line 1" in said
        assert b"myrmidon_config_rejected_total 1.0" in context.metrics.render(await numbers(context), now=0, skew=0)
        write(settings, bots_toml=GROUPS.replace("5", "6"), bot_config_py="x = 1\n")
        await heart._folder.poll()
        assert gives(context, "b1").settings == {"caches": {"items": 6}}

    run(story)


async def numbers(context):
    from myrmidon.store.views import metrics

    return await context.db.read(metrics.gauges)


def test_half_an_edit_is_not_taken_for_a_whole_one_and_a_folder_that_is_gone_changes_nothing(
    context, settings, monkeypatch
):
    waits = []

    async def go_on_editing(seconds):
        waits.append(seconds)
        write(settings, bots_toml=GROUPS.replace("5", "8"))

    async def story():
        heart = await begin(context)
        good = context.state.config.version
        write(settings, bots_toml="")
        with monkeypatch.context() as patch:  # while the server waits for the editor to be done
            patch.setattr(config_sync, "asyncio", SimpleNamespace(sleep=go_on_editing))
            await heart._folder.poll()
        assert (waits, context.state.config.version) == ([config_sync.SETTLE_S], good)
        await heart._folder.poll()
        assert gives(context, "b1").settings == {"caches": {"items": 8}}
        settings.rename(settings.with_name("unmounted"))
        await heart._folder.poll()
        assert gives(context, "b1").settings == {"caches": {"items": 8}}
        settings.mkdir()
        await heart._folder.poll()
        assert context.state.config.files == {}, "an empty folder is a decision"

    run(story)


def test_a_first_start_with_a_wrong_folder_is_refused(sqlite_url, tmp_path):
    folder = write(tmp_path / "settings", pools_toml="[pool.a]\nroles = 7\n")
    with (
        pytest.raises(InvalidRequest, match=r"pools.toml: pool.a.roles"),
        a_server_context(sqlite_url, tmp_path, config_dir=str(folder)),
    ):
        pass


def test_all_servers_follow_the_newest_edit_and_a_restart_with_an_old_folder_changes_nothing(db_url, tmp_path):
    if db_url.startswith("sqlite"):
        pytest.skip("one server per SQLite file")
    mine = write(tmp_path / "a", bots_toml=GROUPS, scripts__lab_py=SCRIPT)
    theirs = write(tmp_path / "b", bots_toml=GROUPS, scripts__lab_py=SCRIPT)
    with (
        a_server_context(db_url, tmp_path / "one", config_dir=str(mine)) as one,
        a_server_context(db_url, tmp_path / "two", config_dir=str(theirs)) as two,
    ):

        async def story():
            first, second = await begin(one), await begin(two)
            assert one.state.config.version == two.state.config.version
            assert await one.db.read(settings_version.position) == 1, "the same folder twice is one version"
            write(mine, bots_toml=GROUPS.replace("5", "9"))
            await first._folder.poll()
            await second._folder.poll()
            assert gives(two, "b1").settings == {"caches": {"items": 9}}
            assert one.state.config.who == two.state.config.who != ""
            again = ConfigFolderWatcher(two)
            await again.start()
            assert gives(two, "b1").settings == {"caches": {"items": 9}}, "its folder is the old one, and no news"
            write(theirs, bots_toml=GROUPS.replace("5", "9"), pools_toml="[pool.lab]\n")
            await second._folder.poll()
            assert await config_sync.refresh(one)
            assert set(one.state.config.pools.policies) == {"lab"}
            write(theirs, bots_toml=GROUPS)
            (theirs / "pools.toml").unlink()
            await second._folder.poll()
            await config_sync.refresh(one)
            assert gives(one, "b1").settings == {"caches": {"items": 5}}, "an edit that goes back is an edit"

        run(story)


def test_a_settings_folder_that_this_server_cannot_read_leaves_it_with_what_it_has_until_the_next_edit(
    context, settings
):
    text = '[[group]]\nname = "a"\ndefault = true\nfrom_the_future = 1\n'
    newer = partial(settings_version.put, files={"bots.toml": ("d", text)}, who="newer", now=context.now())

    async def story():
        heart = await begin(context)
        before = context.state.config
        await context.db.write(partial(newer, version="new", expected_position=before.position))
        assert not await config_sync.refresh(context)
        assert context.state.config is before
        assert not await config_sync.refresh(context), "and it is told once"
        for edit in (GROUPS.replace("5", "7"), GROUPS.replace("5", "7")):
            write(settings, bots_toml=edit)
            await heart._folder.poll()
            assert gives(context, "b1").settings == {"caches": {"items": 7}}
            assert await context.db.read(settings_version.position) == context.state.config.position, (
                "and it counts for all servers"
            )
            await context.db.write(partial(newer, version="newer", expected_position=context.state.config.position))
            await config_sync.refresh(context)

    run(story)


# ---------------------------------------------------------------- changes


def test_what_a_bot_says_of_itself_counts_at_once(any_door):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await bot.exchange(n=0, state={"quarantined": "the disk is full"})
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        assert (found.quarantined, found.serving) == ("the disk is full", 0)
        (task_id,) = await submit(context, a_task())
        assert (await bot.exchange(state={"quarantined": "the disk is full"}))["tasks"] == []
        await bot.exchange(n=0, state={"maintenance": "cleaning"})
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        assert (found.quarantined, found.maintenance, found.serving) == (None, "cleaning", 0)
        (task,) = (await bot.exchange(state={}))["tasks"]
        assert parse_id(task["run"])[0] == parse_id(task_id)[0]
        assert (await events_of(context))[:4] == ["bot_connected", *["request_sleep"] * 3]

    run(story)


def test_dimensions_that_change_lead_to_other_queues(any_door):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        (task_id,) = await submit(context, a_task(dimensions={"pool": ["default"], "gpu": ["yes"]}))
        assert (await bot.exchange())["tasks"] == []
        answer = await bot.exchange(dimensions={**bot.dimensions, "gpu": ["yes"]})
        assert [one["task_id"] for one in answer["tasks"]] == [task_id]
        await bot.exchange(n=0, reports=[finish(answer["tasks"][0])], dimensions={"id": ["other"], "pool": ["default"]})
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        assert "exactly the bot's id" in found.quarantined
        assert await context.db.read(partial(task_queues.queues_of_bot, bot_id="b1")) == []

    run(story)


def test_a_bot_cannot_lift_what_an_administrator_has_decided(any_door):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        await context.db.write(
            partial(fleet.quarantine, bot_id="b1", why="under repair", now=context.now(), ids=context.ids)
        )
        await bot.exchange(n=0, state={"maintenance": "me too"})
        await bot.exchange(n=0, state={})
        found = await context.db.read(partial(bots.read, bot_id="b1"))
        assert (found.quarantined, found.maintenance) == ("under repair", None)

    run(story)


# ---------------------------------------------------------------- the end of a bot


def test_terminate_is_a_task_that_only_this_bot_takes_before_all_others(any_door):
    context = any_door

    async def story():
        bot, other = BotClient(context), BotClient(context, "b2")
        await bot.shake()
        await other.shake()
        await submit(context, a_task("now", priority=1))
        (busy,) = (await bot.exchange(config=""))["tasks"]
        await bot.exchange(n=0, reports=[start(busy)], config="")
        await submit(context, a_task("later", priority=1))
        task_id = await terminate_bot(context, "b1", "new rack", who="ann")
        assert await terminate_bot(context, "b1", "again") == task_id, "one that waits is enough"
        assert [one["name"] for one in (await other.exchange(config=""))["tasks"]] == ["later"]
        (end,) = (await bot.exchange(config="", reports=[finish(busy)]))["tasks"]
        assert (end["name"], end["terminate"], end["command"], end["priority"]) == (
            "Terminate b1: new rack", True, [], 0,
        )  # fmt: skip
        assert await terminate_bot(context, "b1") == task_id, "it is being carried out"
        await bot.exchange(n=0, config="", reports=[finish(end, duration=0.0)])
        assert await state_of(context, task_id) == "SUCCEEDED"
        ended = await context.db.read(lambda tx: task_run.read(tx, [parse_id(task_id)[0]]))
        assert [(one.exit_code, one.duration) for one in ended] == [(0, 0.0)]
        await bot.event("bot_shutdown")
        told = await events_of(context)
        assert [one for one in told if one.startswith("bot_")] == [
            "bot_connected", "bot_terminating", "bot_terminate", "bot_shutdown",
        ]  # fmt: skip
        assert told.count("request_task") == told.count("task_completed") == 2

    run(story)


@pytest.mark.parametrize("aside", ["quarantine", "drain_bot"])
def test_a_bot_that_gets_no_work_can_still_be_ended(any_door, aside):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        how = {"why": "broken"} if aside == "quarantine" else {"draining": True}
        await context.db.write(partial(getattr(fleet, aside), bot_id="b1", now=context.now(), ids=context.ids, **how))
        context.hub.recheck("b1")
        await submit(context, a_task())
        poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S, config=""))
        await until(lambda: context.hub.num_waiting == 1)
        task_id = await terminate_bot(context, "b1")
        (end,) = (await poll)["tasks"]
        assert (end["task_id"], end["terminate"]) == (task_id, True)

    run(story)


def test_a_bot_that_was_away_is_told_to_end_when_it_comes_back(any_door):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        task_id = await terminate_bot(context, "b1")
        bot.session, bot.dimensions["pool"] = 2, ["elsewhere"]
        await bot.shake()
        (end,) = (await bot.exchange(config=""))["tasks"]
        assert end["task_id"] == task_id
        with pytest.raises(NotFound):
            await terminate_bot(context, "nobody")

    run(story)


# ---------------------------------------------------------------- what is told of tasks


def test_a_task_comes_with_its_id_its_group_and_its_account(any_door):
    context = any_door

    async def story():
        bot = BotClient(context)
        await bot.shake()
        (task_id,) = await submit(context, a_task(service_account="bot"))
        (task,) = (await bot.exchange())["tasks"]
        assert (task["task_id"], task["resource_group"], task["service_account"]) == (task_id, "default", "bot")
        assert "terminate" not in task
        assert "cache_hints" not in task

    run(story)


def test_the_size_of_caches_is_learned_from_bots_and_told_to_the_next(any_door):
    context = any_door

    def wants(*names, os="Linux"):
        caches = [{"name": name, "path": f"c/{name}"} for name in names]
        return a_task(properties={"caches": caches}, dimensions={"pool": ["default"], "os": [os]})

    async def story():
        army = [BotClient(context, f"b{i}") for i in range(4)]
        for number, bot in enumerate(army):
            state = {"named_caches": {"git": 1000 + number, "odd": "huge", "nested": {"size": 7}, "no\0name": 9}}
            await bot.shake(state=state)
        await submit(context, wants("git"))
        (task,) = (await army[0].exchange())["tasks"]
        assert task["cache_hints"] == {}, "nothing is known yet"
        await army[0].exchange(n=0, reports=[finish(task, caches={"git": 5000})])
        assert await cache_hints.update(context) == 2
        assert context.caches.cache_sizes["default", "Linux"] == {"git": 5000, "nested": 7}
        await submit(context, wants("git", "new"))
        (task,) = (await army[1].exchange())["tasks"]
        assert task["cache_hints"] == {"git": 5000}
        assert await cache_hints.update(context) == 0, "the same is no news"
        mac = BotClient(context, "mac", os=["Mac"])
        await mac.shake()
        await submit(context, wants("git", os="Mac"))
        (task,) = (await mac.exchange())["tasks"]
        assert task["cache_hints"] == {"git": 5000}, "better another system's size than none"
        later = context.now() + 9 * 86_400 * SECOND
        context.now = lambda: later
        await context.db.write(lambda tx: tx.run("DELETE FROM bots"))
        context.hub.bots.clear()
        await cache_hints.update(context)
        assert context.caches.cache_sizes == {}

    run(story)


@pytest.mark.parametrize(("bots_of_a_pool", "place"), [(1, 1), (4, 4), (20, 19), (100, 95)])
def test_95_of_100_bots_need_no_more_than_the_size_that_is_told(bots_of_a_pool, place):
    assert cache_hints.percentile_95(range(bots_of_a_pool, 0, -1)) == place


# ---------------------------------------------------------------- numbers


async def shown(context):
    text = context.metrics.render(await numbers(context), now=0, skew=0).decode()
    wanted = ("expiry_detection_lag_seconds_count", "run_lost_seconds_count", "no_resource_total")
    lines = [line.removeprefix("myrmidon_") for line in text.splitlines() if line.startswith("myrmidon_")]
    lines = [line for line in lines if line.startswith(wanted)]
    return {name: float(count) for name, count in (line.rsplit(" ", 1) for line in lines) if float(count)}


def test_what_waited_in_vain_and_what_was_lost_is_counted_with_how_late_it_was_noticed(any_door, monkeypatch):
    context = any_door
    for module in ("scheduler.maintenance", "server.background.maintenance"):
        monkeypatch.setattr(f"myrmidon.{module}.may_sweep", lambda now, clock, rules: True)

    async def story():
        now = context.now()
        monkeypatch.setattr(context, "now", lambda: now)
        bot = BotClient(context)
        await bot.shake()
        nowhere = {"pool": ["nowhere"]}
        one = {"properties": {"dimensions": nowhere, "command": ["x"]}, "expiration_s": 10}
        other = {"properties": {"dimensions": nowhere, "command": ["y"]}, "expiration_s": 1000}
        await submit(context, {"name": "falls back", "slices": [one, other]}, {"name": "expires", "slices": [one]})
        slow = BotClient(context, "b2", pool="slow")
        await slow.shake()
        await submit(context, a_task("too late", dimensions={"pool": ["slow"]}, deadline_s=20))
        (late,) = (await slow.exchange())["tasks"]
        await slow.exchange(n=0, reports=[start(late)])
        await submit(context, {"name": "hopeless", "slices": [{**one, "wait_for_capacity": False}]})
        await submit(context, a_task())
        (task,) = (await bot.exchange())["tasks"]
        await bot.exchange(n=0, reports=[start(task)])
        await submit(context, a_task("never begun"))
        await bot.exchange()
        heart = BackgroundWork(context)
        for seconds in (0, 30, 60, 90):
            monkeypatch.setattr(context, "now", lambda at=seconds: now + at * SECOND)
            await sweep(heart)
        for seconds in range(120, 600, 60):
            monkeypatch.setattr(context, "now", lambda at=seconds: now + at * SECOND)
            await sweep(heart)
        counted = await shown(context)
        assert counted == {
            'expiry_detection_lag_seconds_count{outcome="next_slice"}': 1.0,
            'expiry_detection_lag_seconds_count{outcome="expired"}': 1.0,
            'expiry_detection_lag_seconds_count{outcome="deadline"}': 1.0,
            'run_lost_seconds_count{reason="bot_lost"}': 1.0,
            'run_lost_seconds_count{reason="not_started"}': 1.0,
            "no_resource_total": 1.0,
        }

    run(story)


def test_a_task_that_runs_again_when_no_bot_is_left_counts_as_one_that_none_could_run(context):
    async def story():
        bot = BotClient(context, "b2")
        await bot.shake()
        piece = {"properties": {"dimensions": {"pool": ["default"]}, "command": ["x"]}, "wait_for_capacity": False}
        (task_id,) = await submit(context, {"name": "impatient", "slices": [piece]})
        (task,) = (await bot.exchange())["tasks"]
        await bot.exchange(n=0, reports=[finish(task, exit_code=1)])
        now = context.now()
        await context.db.write(partial(bot_end.delete_bot, bot_id="b2", now=now, ids=context.ids))
        await context.db.write(partial(rerun.rerun, task_id=parse_id(task_id)[0], now=now, ids=context.ids))
        assert await state_of(context, task_id) == "NO_RESOURCE"
        assert await shown(context) == {"no_resource_total": 1.0}

    run(story)
