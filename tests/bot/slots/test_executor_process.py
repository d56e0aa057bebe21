"""The channel between a bot and a real process for functions."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.run.run import ProcessKey, Run
from myrmidon.bot.slots.environments import Runtime
from myrmidon.bot.slots.executor_process import BrokenProtocol, ExecutorProcess, frame_of
from myrmidon.bot.slots.launcher import Launcher
from tests.bot.runs import a_function
from tests.deadline import HANG_S

MODULE = """
import os, time
def hold(n: int) -> int:
    while not os.path.exists(os.environ["TMPDIR"] + "/go"):
        time.sleep(0.005)
    return n
"""


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ExecutorProcess]:
    """A process that was started for a code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sample.py").write_text(MODULE)
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    launcher = Launcher(str(tmp_path), None, env, lambda _folder, _readable: Isolation())
    key = ProcessKey("digest", "default")
    started = launcher.start(key, str(tmp_path / "code"), str(tmp_path), Runtime(sys.executable))
    try:
        yield started
    finally:
        started.kill("the test has ended", 0.0)
        assert started.process is not None
        started.process.wait(HANG_S)
        launcher.clean_up(started)


def a_frame(executor: ExecutorProcess, number: int) -> bytes:
    return frame_of({
        "op": "run", "id": number, "package": "sample", "function": "hold", "signature": "",
        "inputs": [{"data": b"\x07"}], "output_folder": executor.folder,
    })  # fmt: skip


def given(executor: ExecutorProcess, count: int, now: float) -> list[Run]:
    """Runs that the process was given and cannot read yet, because it stands still."""
    executor.stop()
    runs = []
    for number in range(1, count + 1):
        run = a_function(f"{number}", execution_timeout_s=3600)
        run.number = number
        assert executor.give(run, a_frame(executor, number), now)
        runs.append(run)
    return runs


def messages_until(executor: ExecutorProcess, operation: str) -> list[dict[str, Any]]:
    """What the process sends until it has sent this."""
    found: list[dict[str, Any]] = []
    while not any(message["op"] == operation for message in found):
        assert select.select([executor.channel.reader], [], [], HANG_S)[0], f"no message {operation}"
        messages, is_open = executor.receive()
        found += messages
        assert is_open, executor.last_words()
    return found


class ReadingBetween:
    """The process's end of the channel: after the bot has received one message, the process receives the next."""

    def __init__(self, executor: ExecutorProcess) -> None:
        self.executor = executor
        self.theirs = executor.channel.theirs
        self.announced: list[int] = []
        self.count = 0

    def recv(self, size: int, flags: int) -> bytes:
        self.count += 1
        if self.count == 2:
            self.executor.resume()
            messages = messages_until(self.executor, "begin")
            self.announced = [message["id"] for message in messages if message["op"] == "begin"]
        return self.theirs.recv(size, flags)

    def close(self) -> None:
        self.theirs.close()


def test_a_run_that_the_process_reads_while_others_are_taken_back_has_its_code_and_its_whole_time(
    executor: ExecutorProcess, monkeypatch: pytest.MonkeyPatch
):
    first, second, third = given(executor, 3, now=1000.0)
    process = ReadingBetween(executor)
    monkeypatch.setattr(executor.channel, "theirs", process)
    assert executor.take_back(now=2000.0) == [first, third]
    assert (list(executor.pending), process.announced) == ([second], [second.number])
    assert second.deadline == 5600.0
    executor.begin(second.number, now=3000.0)
    assert (executor.current, second.begun, second.deadline) == (second, 3000.0, 6600.0)
    Path(executor.folder, "tmp", "go").touch()
    assert messages_until(executor, "done")[-1]["id"] == second.number


def test_a_run_gets_its_whole_time_from_its_announcement_on(executor: ExecutorProcess):
    first, second = given(executor, 2, now=1000.0)
    assert (first.deadline, second.begun) == (4600.0, 0.0)
    executor.begin(first.number, now=2000.0)
    assert (executor.current, first.deadline) == (first, 5600.0)
    with pytest.raises(BrokenProtocol):
        executor.begin(second.number, now=2000.0)
    executor.end_current(now=3000.0)
    assert (executor.current, second.deadline) == (None, 6600.0)
    with pytest.raises(BrokenProtocol):
        executor.begin(first.number, now=3000.0)
