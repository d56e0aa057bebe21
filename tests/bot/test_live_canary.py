"""A real server and two real bots: an edit of the hooks reaches one of them first, and both only when it is good."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import a_bot, wait_for
from tests.bot.test_live import ended, submit
from tests.live import LiveServer, live_server
from tests.server.fleet.test_rollout import FEW, REST
from tests.server.test_fleet import write

pytestmark = [pytest.mark.full, pytest.mark.untraced]


def versions(server: LiveServer) -> dict[str, str]:
    return {bot["bot_id"]: bot["version"] for bot in server.get("/api/v1/bots")[1]["bots"]}


def releases(server: LiveServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/api/v1/releases")[1]["releases"]
    return found


def states(server: LiveServer) -> list[str]:
    return [one["state"] for one in releases(server)]


def test_a_bad_edit_reaches_one_bot_and_a_good_one_all(tmp_path: Path):
    folder = write(tmp_path / "server" / "config", bot_config_py="x = 1\n")
    with ExitStack() as stack:
        quick: dict[str, Any] = {"poll_s": 0.3, "heartbeat_s": 0.3, "canary_percent": 10}
        server = stack.enter_context(live_server(folder=tmp_path / "server", **quick))
        token = server.new_token("bot-bootstrap")
        for name in (FEW, REST):
            place = tmp_path / name
            place.mkdir()
            (place / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip", token=token).data)
            stack.enter_context(a_bot(server.url, place, "--pool", "ants", token=token))
        first = releases(server)[0]["digest"]
        wait_for(lambda: versions(server) == {FEW: first, REST: first}, "both bots")

        write(folder, bot_config_py="import no_such_module\n")
        wait_for(lambda: states(server) == ["bad", "active"], "the end of the bad release")
        assert releases(server)[0]["num_failures"] == 1, "only one bot has tried it"
        assert versions(server) == {FEW: first, REST: first}
        wait_for(lambda: "release reverted" in server.log, "the server's word of it")

        write(folder, bot_config_py="x = 2\n")
        wait_for(lambda: states(server)[0] == "canary", "the next release")
        good = releases(server)[0]["digest"]
        wait_for(lambda: versions(server) == {FEW: good, REST: first}, "the update of the first bot")
        told = ended(server, submit(server, "ants", "/bin/true", dimensions={"pool": ["ants"], "id": [FEW]}))
        assert told["result"]["state"] == "SUCCEEDED"
        wait_for(lambda: versions(server) == {FEW: good, REST: good}, "the update of all")
        assert states(server) == ["active", "bad", "old"]
