"""The doctor finds what is wrong with an installation, and says what to do."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.live import live_server
from tests.server.wire import WireBot, a_task, wait_for


def test_the_doctor_finds_what_is_wrong(up: Up, tmp_path: Path):
    assert all(finding["how"] == "ok" for finding in up.terminal.json("doctor")["findings"])
    lost = Terminal(tmp_path, MYRMIDON_SERVER="http://127.0.0.1:9").run("doctor")
    assert lost.returncode == 1
    assert "start one with `myrmidon up`" in lost.stdout
    stranger = Terminal(tmp_path, MYRMIDON_SERVER=up.url, MYRMIDON_TOKEN="myr_wrong").run("doctor")
    assert stranger.returncode == 1
    assert "is refused" in stranger.stdout


def test_the_doctor_reports_lost_runs_reverted_releases_and_the_servers_disk(tmp_path: Path):
    with live_server(f"sqlite:///{tmp_path}/m.db") as server:
        terminal = Terminal(tmp_path, MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        bot = WireBot(server, "b1")
        bot.shake()
        server.post("/api/v1/tasks", {"tasks": [a_task()]})
        [task] = bot.work()
        with sqlite3.connect(tmp_path / "m.db") as store:
            store.execute("UPDATE bots SET alive = 0")
            columns = "digest, created_at, active, canary_percent, content"
            store.execute(f"INSERT INTO releases ({columns}) VALUES (?, ?, 0, 0, '')", ("f" * 64, 1 << 60))
        terminal.ok("releases", "revert", "f" * 64, "--reason", "crashes")
        findings = {one["what"]: one for one in json.loads(terminal.run("doctor", "--json").stdout)["findings"]}
    assert findings["runs"]["how"] == "warning"
    assert f"1 run on dead or silent bots: b1 (dead: {task['run']})." in findings["runs"]["told"]
    assert findings["releases"]["how"] == "warning"
    assert findings["releases"]["told"] == "1 release of the bot reverted: ffffffffffff (crashes)."
    assert "free for the server's data folder" in findings["disk"]["told"]


def test_the_doctor_and_readyz_show_a_receiver_of_messages_that_is_behind(tmp_path: Path):
    away = {"url": "amqp://guest:guest@127.0.0.1:9"}
    with live_server(f"sqlite:///{tmp_path}/m.db", amqp=away) as server:
        terminal = Terminal(tmp_path, MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        wait_for(lambda: b"sink_lag_events{" in server.get("/metrics")[1])
        server.post("/api/v1/tasks", {"tasks": [a_task()]})
        with sqlite3.connect(tmp_path / "m.db") as store:
            store.execute("UPDATE outbox SET at = at - 100000000")
        status, ready = server.get("/readyz")
        findings = {one["what"]: one for one in json.loads(terminal.run("doctor", "--json").stdout)["findings"]}
    assert (status, ready["ok"]) == (200, True)
    assert "1 events behind" in ready["notes"][0]
    assert findings["messages"]["how"] == "warning"
    assert findings["messages"]["told"].startswith("amqp is 1")


def test_the_doctor_and_readyz_show_maintenance_that_is_behind(tmp_path: Path):
    """After its first round this server looks only hourly for what is due."""
    with live_server(f"sqlite:///{tmp_path}/m.db", sweep_s=3600) as server:
        terminal = Terminal(tmp_path, MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        wait_for(lambda: b'maintenance_seconds_total{kind="logs"}' in server.get("/metrics")[1])
        server.post("/api/v1/tasks", {"tasks": [a_task()]})
        assert server.post("/api/v1/jobs", {"job": {"name": "j", "tasks": {"a": {"task": a_task()}}}})[0] == 200
        with sqlite3.connect(tmp_path / "m.db") as store:
            store.execute("UPDATE jobs SET due_at = 1")
        status, ready = server.get("/readyz")
        assert (status, ready["problems"]) == (200, [])
        assert ready["notes"][0].startswith("maintenance is behind: retries and deletions of jobs by 1")
        findings = {one["what"]: one for one in json.loads(terminal.run("doctor", "--json").stdout)["findings"]}
        assert findings["upkeep"]["how"] == "warning"
        assert findings["messages"]["how"] == "ok"
        with sqlite3.connect(tmp_path / "m.db") as store:
            store.execute("UPDATE task_to_run SET expires_at = 1")
        status, ready = server.get("/readyz")
        assert (status, ready["ok"]) == (503, False)
        assert ready["problems"][0].startswith("maintenance is behind: expiries of slices by 1")
        overdue = server.get("/metrics")[1].decode().split('maintenance_overdue_seconds{kind="slices"} ')[1].split()[0]
        assert float(overdue) > 1e9
        told = terminal.run("doctor")
        assert told.returncode == 1
        assert "expiries of slices by 1" in told.stdout
