"""A real server with a settings folder and a real bot with its hooks: what each says, the other one hears."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.system import landlock
from tests.bot.bots import BotProcess, a_bot, wait_for
from tests.bot.test_live import ended, has_started, log, submit
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server

pytestmark = pytest.mark.full

BOTS = """
[[group]]
name = "lab"
bots = ["lab1"]
dimensions = { pool = ["lab"], rack = ["r1"] }
script = "lab.py"
settings = { cost_usd_hour = 3600.0, caches = { named = { items = 3 } } }

[[group]]
name = "others"
default = true
"""
HOOKS = """
import os

def get_dimensions(bot):
    if os.path.exists(os.path.join(os.path.dirname(bot.base_dir), "confused")):
        return ["rubbish"]
    return {**bot.dimensions, "floor": ["general"]}

def get_state(bot):
    path = os.path.join(os.path.dirname(bot.base_dir), "maintenance")
    return {**bot.state, "maintenance": open(path).read()} if os.path.exists(path) else None

def on_bot_startup(bot):
    bot.post_event("bot_log", "hello from the hook")
    bot.post_event("bot_rebooting", "in words only")
    bot.post_error("nothing is really wrong")

def on_before_task(bot, bot_file, runner_cmd, runner_env):
    runner_env["HOOKED"] = "yes"
"""
SCRIPT = 'def on_handshake(bot): bot.post_event("bot_log", "script NUMBER in " + bot.dimensions["rack"][0])\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "config" / "scripts").mkdir(parents=True)
    (folder / "config" / "bots.toml").write_text(BOTS)
    (folder / "config" / "bot_config.py").write_text(HOOKS)
    (folder / "config" / "pools.toml").write_text("[pool.walled]\nrequire_isolation = true\n")
    (folder / "config" / "scripts" / "lab.py").write_text(SCRIPT.replace("NUMBER", "one"))
    with live_server(folder=folder, poll_s=0.5, heartbeat_s=0.5) as started:
        yield started


@pytest.fixture(scope="module")
def bot(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BotProcess]:
    folder = tmp_path_factory.mktemp("bots") / "lab1"
    folder.mkdir()
    token = server.new_token("bot-bootstrap")
    wait_for(lambda: server.call("GET", "/bot/v1/zip", token=token).status == 200, "the zip")
    (folder / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip", token=token).data)
    env = {"MYRMIDON_BOT_REFRESH_S": "0.2"}
    with a_bot(server.url, folder, "--pool", "wrong", python=sys.executable, token=token, env=env) as started:
        wait_for(lambda: server.get("/api/v1/bots/lab1")[0] == 200, "the handshake")
        yield started


def _seen(server: LiveServer) -> dict[str, Any]:
    return dict(server.get("/api/v1/bots/lab1")[1])


def _kinds(server: LiveServer, bot_id: str = "lab1") -> set[str]:
    return {event["kind"] for event in server.get(f"/api/v1/bots/{bot_id}/events")[1]["events"]}


def _events(server: LiveServer, kind: str, bot_id: str = "lab1") -> list[str]:
    events = server.get(f"/api/v1/bots/{bot_id}/events")[1]["events"]
    return [event["message"] for event in events if event["kind"] == kind]


@pytest.mark.short
def test_the_group_gives_dimensions_a_script_and_settings(server: LiveServer, bot: BotProcess):
    wait_for(lambda: "script one in r1" in _events(server, "bot_log"), "the script's word")
    assert "hello from the hook" in _events(server, "bot_log")
    found = _seen(server)["dimensions"]
    assert (found["pool"], found["rack"], found["floor"]) == (["lab"], ["r1"], ["general"])
    task_id = submit(server, "lab", "/bin/sh", "-c", "echo $HOOKED; sleep 0.05")
    assert ended(server, task_id)["result"]["state"] == "SUCCEEDED"
    assert log(server, task_id) == b"yes\n"


def test_an_edit_of_the_script_restarts_the_bot_and_counts(server: LiveServer, bot: BotProcess):
    (server.folder / "config" / "scripts" / "lab.py").write_text(SCRIPT.replace("NUMBER", "two"))
    wait_for(lambda: "script two in r1" in _events(server, "bot_log"), "the new script's word")
    assert [m for m in _events(server, "bot_shutdown") if "restarting" in m]
    assert "request_restart" in _kinds(server)


def test_a_cache_becomes_a_dimension_that_tasks_can_ask_for(server: LiveServer, bot: BotProcess):
    caches = [{"name": "ccache", "path": "c"}]
    ended(server, submit(server, "lab", "/bin/sh", "-c", "echo kept > c/x", caches=caches))
    wait_for(lambda: "ccache" in _seen(server)["dimensions"].get("caches", []), "the cache among the dimensions")
    wanted = {"pool": ["lab"], "caches": ["ccache"]}
    task_id = submit(server, "lab", "/bin/cat", "c/x", caches=caches, dimensions=wanted)
    ended(server, task_id)
    assert log(server, task_id) == b"kept\n"


def test_rubbish_of_a_hook_quarantines_and_sense_releases(server: LiveServer, bot: BotProcess):
    confused = bot.folder.parent / "confused"
    confused.touch()
    wait_for(lambda: "get_dimensions" in (_seen(server).get("quarantined") or ""), "quarantine")
    confused.unlink()
    wait_for(lambda: not _seen(server).get("quarantined"), "the end of it")
    ended(server, submit(server, "lab", "/bin/true"))


def test_maintenance_keeps_tasks_away_while_it_lasts(server: LiveServer, bot: BotProcess):
    paper = bot.folder.parent / "maintenance"
    paper.write_text("a new disk")
    wait_for(lambda: _seen(server).get("maintenance") == "a new disk", "maintenance")
    task_id = submit(server, "lab", "/bin/true")
    paper.unlink()
    wait_for(lambda: not _seen(server).get("maintenance"), "the end of it")
    assert ended(server, task_id)["result"]["state"] == "SUCCEEDED"


def test_whatever_a_bot_does_and_is_told_is_in_its_story(server: LiveServer, bot: BotProcess):
    task_id = submit(server, "lab", "/bin/sleep", "600")
    wait_for(lambda: has_started(server, task_id), "the command's start")
    assert server.post(f"/api/v1/tasks/{task_id}/cancel", {"kill_running": True})[0] == 200
    assert ended(server, task_id)["result"]["state"] == "KILLED"
    task_id = submit(server, "lab", "/bin/sleep", "600", retries=0)
    wait_for(lambda: has_started(server, task_id), "the command's start")
    os.kill(bot.worker(), signal.SIGKILL)
    assert ended(server, task_id)["result"]["state"] == "BOT_DIED"
    ended(server, submit(server, "lab", "/bin/sh", "-c", "echo > c/x", caches=[{"name": "story", "path": "c"}]))
    wait_for(lambda: "dimensions changed" in _events(server, "request_sleep"), "dimensions changed")
    of_bots = {"bot_connected", "bot_log", "bot_error", "bot_rebooting"}
    assert {*of_bots, "request_task", "task_completed", "task_killed", "task_error"} <= _kinds(server)


@pytest.mark.skipif(landlock.abi() < landlock.MINIMUM_ABI, reason="this kernel has no Landlock")
def test_a_pool_that_requires_isolation_gives_no_task_to_a_bot_without_it(server: LiveServer, tmp_path: Path):
    token = server.new_token("bot-bootstrap")
    where = {"MYRMIDON_BOT_HOST_DIR": str(tmp_path / "host")}
    with a_bot(server.url, tmp_path / "open", "--pool", "walled", "--isolation", "off", token=token, env=where):
        wait_for(lambda: server.get("/api/v1/bots/open")[0] == 200, "the open bot")
        walled = submit(server, "walled", "/bin/true")
        why = server.get(f"/api/v1/tasks/{walled}/why")[1]
        assert "isolation" in str(why), why
        with a_bot(server.url, tmp_path / "closed", "--pool", "walled", token=token, env=where):
            assert [run["bot_id"] for run in ended(server, walled)["runs"]] == ["closed"]


def test_a_bot_that_is_terminated_takes_that_as_a_task_and_ends(server: LiveServer, tmp_path: Path):
    token = server.new_token("bot-bootstrap")
    with a_bot(server.url, tmp_path / "leaving", "--pool", "leaving", token=token) as bot:
        wait_for(lambda: server.get("/api/v1/bots/leaving")[0] == 200, "the handshake")
        status, answer = server.post("/api/v1/bots/leaving/terminate", {})
        assert status == 200, answer
        assert bot.process.wait(HANG_S) == 0
    assert ended(server, answer["task_id"])["result"]["state"] == "SUCCEEDED"
    goodbye = "ended: requested by the server"
    wait_for(lambda: goodbye in _events(server, "bot_shutdown", "leaving"), "its goodbye")
    assert server.get("/api/v1/bots/leaving")[1]["status"] == "dead"
    assert "bot_terminate" in _kinds(server, "leaving")
