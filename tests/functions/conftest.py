"""One server with one bot for the tests of functions that need them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from myrmidon import Client
from tests.functions.live import a_client, function_bot
from tests.live import LiveServer, live_server


@pytest.fixture(scope="package")
def server() -> Iterator[LiveServer]:
    with live_server() as started:
        yield started


@pytest.fixture(scope="package")
def client(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("functions") / "worker"
    with function_bot(server, folder), a_client(server) as made:
        yield made
