"""Executors for tests: on this interpreter and on the oldest that bots may have."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from myrmidon.server.fleet.bot_zip import bot_files, build_zip
from tests.bot.bots import python38
from tests.executor.job_server import JobServer
from tests.executor.processes import Executor

Start = Callable[[str], Executor]


@pytest.fixture(scope="session")
def bot_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "bot.zip"
    path.write_bytes(build_zip(bot_files("http://127.0.0.1:1")).content)
    return path


@pytest.fixture(params=["this", pytest.param("3.8", marks=pytest.mark.full)])
def python(request: pytest.FixtureRequest) -> str:
    if request.param == "this":
        return sys.executable
    found = python38()
    if found is None:
        pytest.skip("there is no Python 3.8 here")
    return found


@pytest.fixture
def start(bot_zip: Path, tmp_path: Path) -> Iterator[Start]:
    """Start an executor for the source of a module."""
    numbers = itertools.count()
    with ExitStack() as stack:
        yield lambda source: stack.enter_context(
            Executor(sys.executable, bot_zip, tmp_path / f"executor-{next(numbers)}", source)
        )


@pytest.fixture
def start_on(bot_zip: Path, tmp_path: Path, python: str) -> Iterator[Start]:
    """Start an executor on each interpreter."""
    with ExitStack() as stack:
        yield lambda source: stack.enter_context(Executor(python, bot_zip, tmp_path / "executor", source))


@pytest.fixture
def job_server() -> Iterator[JobServer]:
    with JobServer() as server:
        yield server
