"""Servers with bots for the tests of functions that need them, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from myrmidon import Client
from tests import databases, servers
from tests.functions.live import a_client, function_bot
from tests.functions.site import Site, a_site
from tests.live import LiveServer, live_server


@pytest.fixture(scope="package")
def server() -> Iterator[LiveServer]:
    with live_server(sweep_s=0.2) as started:
        yield started


@pytest.fixture(scope="package")
def client(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("functions") / "worker"
    with function_bot(server, folder), a_client(server) as made:
        yield made


@pytest.fixture(scope="package")
def sites() -> Iterator[tuple[ExitStack, dict[str, Site]]]:
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture
def site(
    dialect: str, sites: tuple[ExitStack, dict[str, Site]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Two servers of one database with a bot on each; all invariants hold after the test."""
    stack, made = sites
    if dialect not in made:
        url = servers.new_database(databases.server_url(dialect))
        made[dialect] = stack.enter_context(a_site(url, tmp_path_factory.mktemp(f"functions-{dialect}")))
    yield made[dialect]
    made[dialect].start_servers()
    made[dialect].check()
