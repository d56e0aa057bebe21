"""A stub of the server and a bot on each interpreter, shared by the tests of a file that leave no trace in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bot.bots import BotProcess, a_bot, python38
from tests.bot.stub import Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        yield server


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder that tasks can write to: they create nothing in those above their bot's folder, such as tmp_path."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def old_python() -> str:
    found = python38()
    if found is None:
        pytest.skip("there is no Python 3.8 on this machine")
    return found


@pytest.fixture(scope="module", params=["this", pytest.param("3.8", marks=pytest.mark.full)])
def interpreter(request: pytest.FixtureRequest) -> str:
    return sys.executable if request.param == "this" else str(request.getfixturevalue("old_python"))


@pytest.fixture(scope="module")
def shared(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    """A stub and a bot that a whole file of tests uses."""
    with Stub() as server, a_bot(server.url, tmp_path_factory.mktemp("shared") / "b1", python=interpreter) as bot:
        yield server, bot


@pytest.fixture(scope="module")
def exposed(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    """The same with a bot that is open to its commands, as where the kernel has no Landlock."""
    folder = tmp_path_factory.mktemp("exposed") / "b1"
    with Stub() as server, a_bot(server.url, folder, "--isolation", "off", python=interpreter) as bot:
        yield server, bot


@pytest.fixture
def fleet(shared: tuple[Stub, BotProcess]) -> Stub:
    return shared[0]


@pytest.fixture
def folder(shared: tuple[Stub, BotProcess]) -> Path:
    return shared[1].folder
