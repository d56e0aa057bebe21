"""A fleet of three bots and the releases of a real server: a good one, two bad ones, and the way back.

The server is stopped and started from other sources, as an upgrade does it; the fleet follows by itself, and works
all the while.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import wait_for
from tests.bot.test_chaos import QUICK, bot_of
from tests.bot.test_live import ended, submit
from tests.live import LiveServer, a_source, live_server

NAMES = ("ant1", "ant2", "ant3")
EAGER = ("bot/link/http_client.py", "MAX_DELAY_S = 30.0", "MAX_DELAY_S = 0.3")
"""All of these bots look again soon for a server that is being upgraded."""
GOOD = ("bot/__init__.py", "Standard library only", "Newer. Standard library only")
NOT_FINE = ("bot/commands/command_runner.py", "class CommandRunner", "class CommandRunner(")
CRASHES = ("bot/worker.py", "    worker = Worker(", '    raise SystemExit("crash")\n    worker = Worker(')

pytestmark = [pytest.mark.full, pytest.mark.untraced]


def upgrade(server: LiveServer, source: Path) -> str:
    """The version of the bots that the newer server brings along."""
    server.stop()
    server.source = source
    server.start()
    return wait_for(lambda: _offered(server), "the server's zip")


def _offered(server: LiveServer) -> str:
    """The newest release, once the server has decided about one."""
    ready = server.get("/api/v1/server")[1]["bot_version"]
    return str(server.get("/api/v1/releases")[1]["releases"][0]["digest"]) if ready else ""


def fate(server: LiveServer, version: str) -> str:
    told = {one["digest"]: one for one in server.get("/api/v1/releases")[1]["releases"]}
    return str(told[version]["state"])


def versions(server: LiveServer) -> set[str]:
    told = server.get("/api/v1/bots")[1]["bots"]
    return {bot["version"] for bot in told if bot["bot_id"] in NAMES}


def complaints(server: LiveServer, name: str) -> list[str]:
    events: list[Any] = server.get(f"/api/v1/bots/{name}/events")[1]["events"]
    return [event["message"] for event in events if event["kind"] == "bot_error"]


def all_work(server: LiveServer) -> None:
    """Each of them, and nothing is lost."""
    made = [
        submit(server, "ants", "/bin/true", dimensions={"pool": ["ants"], "id": [name]}) for name in NAMES for _ in "ab"
    ]
    told = [ended(server, task_id) for task_id in made]
    assert {(one["result"]["state"], len(one["runs"])) for one in told} == {("SUCCEEDED", 1)}


def test_a_fleet_follows_a_good_release_keeps_off_bad_ones_and_goes_back(tmp_path: Path):
    with ExitStack() as stack:
        old = a_source(tmp_path / "old", EAGER)
        server = stack.enter_context(live_server(folder=tmp_path / "server", source=old, release_grace_s=1, **QUICK))
        for name in NAMES:
            stack.enter_context(bot_of(server, tmp_path / name, "ants"))
        first = wait_for(lambda: _offered(server), "the server's zip")
        assert versions(server) == {first}

        good = upgrade(server, a_source(tmp_path / "good", EAGER, GOOD))
        all_work(server)  # on the way, too
        wait_for(lambda: versions(server) == {good}, "the update of all three")
        all_work(server)

        for what, change in (("not-fine", NOT_FINE), ("crashes", CRASHES)):
            bad = upgrade(server, a_source(tmp_path / what, EAGER, change))
            wait_for(lambda bad=bad: fate(server, bad) == "bad", f"the end of what {what}")
            wait_for(lambda: versions(server) == {good}, "the return of all who have tried it")
            blamed = [name for name in NAMES if any(bad in said for said in complaints(server, name))]
            assert 2 <= len(blamed) <= 3, "and those who have tried it say so"
            all_work(server)

        upgrade(server, old)
        wait_for(lambda: versions(server) == {first}, "the way back to the older release")
        all_work(server)
