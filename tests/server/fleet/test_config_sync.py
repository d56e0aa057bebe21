"""The settings folder of a real server, edited while it runs; and the commands that look at it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.deadline import HANG_S
from tests.live import LiveServer, live_server
from tests.server.test_fleet import GROUPS, SCRIPT, write

pytestmark = pytest.mark.untraced


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    write(folder / "config", bots_toml=GROUPS, scripts__lab_py=SCRIPT, pools_toml='[pool.ci]\ntask_order = "lifo"\n')
    with live_server(folder=folder) as started:
        yield started


def myrmidon(*words: str, server: LiveServer | None = None) -> subprocess.CompletedProcess[str]:
    where = ["--server", server.url, "--token", server.token] if server is not None else []
    command = [sys.executable, "-m", "myrmidon", *words, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def wait_for(true: Callable[[], Any]) -> None:
    end = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)  # nothing tells of it


def handshake(server: LiveServer, name: str) -> tuple[int, Any]:
    body = {"bot_id": name, "session": 1, "dimensions": {"id": [name], "pool": ["default"]}}
    return server.post("/bot/v1/handshake", body)


def test_the_zip_can_be_had_as_soon_as_the_server_is_ready(server):
    assert server.call("GET", "/bot/v1/zip").status == 200
    server.stop()
    server.start()
    assert server.call("GET", "/bot/v1/zip").status == 200


def test_an_edit_counts_without_a_restart_and_a_wrong_one_not_at_all(server):
    config = server.folder / "config"
    status, welcome = handshake(server, "b1")
    assert (status, welcome["dimensions"], welcome["settings"]) == (200, {"pool": ["lab"]}, {"caches": {"items": 5}})
    write(config, bots_toml=GROUPS + "[[group]]\nname = 'twice'\ndefault = true\n")
    wait_for(lambda: "configuration folder is invalid" in server.log)
    (told,) = [line for line in map(json.loads, server.log.splitlines()) if "folder is invalid" in line["event"]]
    assert told["level"] == "error"
    assert "bots.toml: group[2].default" in told["problems"][0]
    assert b"myrmidon_config_rejected_total 1.0" in server.call("GET", "/metrics").data
    assert handshake(server, "b1")[1]["settings"] == {"caches": {"items": 5}}
    write(config, bots_toml=GROUPS.replace("5", "6").replace("default = true", 'bots = ["b2"]'))
    wait_for(lambda: handshake(server, "b1")[1]["settings"] == {"caches": {"items": 6}})
    status, refused = handshake(server, "stranger")
    assert (status, refused["error"]["code"]) == (403, "forbidden")
    server.kill()
    server.start()
    assert handshake(server, "b1")[1]["settings"] == {"caches": {"items": 6}}


def test_releases_are_listed_and_the_last_one_is_not_taken_back(server):
    listed = json.loads(myrmidon("releases", "--json", server=server).stdout)["releases"]
    assert [one["state"] for one in listed] == ["active"]
    shown = myrmidon("releases", server=server)
    assert (shown.returncode, listed[0]["digest"][:12] in shown.stdout) == (0, True)
    refused = myrmidon("releases", "revert", listed[0]["digest"][:8], "--reason", "no", server=server)
    assert refused.returncode != 0
    assert "no other release" in refused.stderr
    unknown = myrmidon("releases", "revert", "f" * 64, server=server)
    assert "There is no release" in unknown.stderr


def test_the_folder_is_checked_by_a_command(tmp_path):
    folder = write(tmp_path / "config", bots_toml="[[group]]\n", pools_toml="[pool.a]\nroles = 1\n", bot_config_py="(")
    told = myrmidon("config", "check", "--data-dir", str(tmp_path))
    assert told.returncode != 0
    for place in ("bot_config.py: line 1", "bots.toml: group[0].name", "pools.toml: pool.a.roles"):
        assert place in told.stderr
    elsewhere = myrmidon("config", "check", "--data-dir", str(tmp_path), "--config-dir", str(tmp_path / "none"))
    assert elsewhere.returncode == 0, elsewhere.stderr
    refused = subprocess.run(
        [sys.executable, "-m", "myrmidon.server.process", "--data-dir", str(tmp_path), "--config-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert refused.returncode == 2
    assert "bots.toml: group[0].name" in refused.stderr, "a first start has nothing good to fall back on"
