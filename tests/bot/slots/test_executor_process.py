"""The channel between a bot and a real process for functions."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.slots.environments import Runtime
from myrmidon.bot.slots.executor_process import ExecutorProcess, frame_of
from myrmidon.bot.slots.function_run import ProcessKey
from myrmidon.bot.slots.launcher import Launcher
from tests.deadline import HANG_S

MODULE = "def double(n: int) -> int:\n    return 2 * n\n"


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ExecutorProcess]:
    """A process that was started for a code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sample.py").write_text(MODULE)
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    launcher = Launcher(str(tmp_path), Isolation(), env, lambda _: None)
    started = launcher.start(ProcessKey("digest", "default"), str(tmp_path / "code"), Runtime(sys.executable))
    try:
        yield started
    finally:
        started.kill("the test has ended", 0.0)
        assert started.process is not None
        started.process.wait(HANG_S)
        launcher.clean_up(started)


def a_run(executor: ExecutorProcess, number: int) -> bytes:
    return frame_of({
        "op": "run", "id": number, "package": "sample", "function": "double", "signature": "",
        "inputs": [{"data": b"\x07"}], "output_folder": executor.folder,
    })  # fmt: skip


def answer(executor: ExecutorProcess) -> dict[str, Any]:
    """The next answer to a run."""
    while True:
        assert select.select([executor.channel.reader], [], [], HANG_S)[0], "no answer"
        messages, is_open = executor.receive()
        for message in messages:
            if message["op"] in ("done", "error"):
                return message
        assert is_open, executor.last_words()


def test_a_run_that_is_read_while_others_are_taken_back_has_its_code(executor: ExecutorProcess):
    executor.stop()
    for number in (1, 2):
        assert executor.send(a_run(executor, number))
    executor.channel.theirs.recv(1 << 18, socket.MSG_DONTWAIT)  # take_back has received one frame when ...
    executor.resume()  # ... the process reads the next
    found = answer(executor)
    assert found["op"] == "done", found
