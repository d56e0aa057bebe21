"""One real server with one real bot, for all tests of the API v1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bot.bots import a_bot, wait_for
from tests.live import LiveServer, live_server
from tests.server.swarming_v1.swarm import NEW, OLD, Swarm


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("v1")
    with live_server(folder=folder / "server", sweep_s=0.2, heartbeat_s=0.3) as started:
        token = started.new_token("bot-bootstrap")
        place = folder / "b1"
        place.mkdir()
        wait_for(lambda: started.call("GET", "/bot/v1/zip", token=token).status == 200, "the zip")
        (place / "bot.zip").write_bytes(started.call("GET", "/bot/v1/zip", token=token).data)
        with a_bot(started.url, place, "--pool", "default", token=token):
            wait_for(lambda: started.get("/api/v1/bots/b1")[0] == 200, "the handshake")
            yield started


@pytest.fixture(scope="session")
def swarm(server: LiveServer) -> Swarm:
    return Swarm(server)


@pytest.fixture(scope="session")
def user(server: LiveServer) -> Swarm:
    """Somebody without any special right."""
    return Swarm(server, token=server.new_token("user", "default"))


@pytest.fixture(scope="session", params=[NEW, OLD], ids=["new", "old"])
def either(request: pytest.FixtureRequest, server: LiveServer) -> Swarm:
    """A client of either prefix."""
    return Swarm(server, prefix=request.param)
