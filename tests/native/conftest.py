"""One server with one bot for the tests of native functions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from myrmidon import Client
from myrmidon.server.fleet.bot_zip import bot_files, build_zip
from tests.bot.bots import python38
from tests.bot.test_live import live_bot
from tests.executor.processes import Executor
from tests.functions.live import POOL, a_client
from tests.live import LiveServer, live_server
from tests.native import building


@pytest.fixture(scope="package")
def server() -> Iterator[LiveServer]:
    with live_server(sweep_s=0.2) as started:
        yield started


@pytest.fixture(scope="session")
def built() -> None:
    """The libraries of declared.py exist."""
    building.build_declared()


@pytest.fixture(scope="package")
def client(built: None, server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("native")
    (folder / "installed").mkdir()
    shutil.copy(building.cpp(building.SOURCES / "sums.cpp"), folder / "installed")
    flags = ("--slots", "2", "--library-dir", str(folder / "installed"))
    with live_bot(server, folder / "worker", POOL, *flags), a_client(server) as made:
        yield made


@pytest.fixture(scope="session")
def bot_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "bot.zip"
    path.write_bytes(build_zip(bot_files("http://127.0.0.1:1")).content)
    return path


@pytest.fixture(params=["this", pytest.param("3.8", marks=pytest.mark.full)])
def load(request: pytest.FixtureRequest, bot_zip: Path, tmp_path: Path) -> Iterator[Callable[[Path], Executor]]:
    """Start an executor whose code is a library; on this interpreter and on the oldest that bots may have."""
    python = sys.executable if request.param == "this" else python38()
    if python is None:
        pytest.skip("there is no Python 3.8 here")
    with ExitStack() as stack:

        def start(library: Path) -> Executor:
            executor = stack.enter_context(Executor(python, bot_zip, tmp_path / f"executor-{library.stem}", ""))
            shutil.copy(library, executor.code)
            executor.defaults = {"package": library.name, "language": "CPP", "output_types": []}
            return executor

        yield start
