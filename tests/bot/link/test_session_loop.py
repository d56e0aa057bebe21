"""The loop of a bot's session when its own steps fail."""

from __future__ import annotations

import shutil
from pathlib import Path

from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.link.session_loop import SessionLoop
from myrmidon.bot.run.run_queue import RunQueue


class WithoutFolder(SessionLoop):
    """A loop whose every step needs a folder that is gone; counts its steps and those that waited afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = 0
        self.link = LinkState(0.0)
        self.run_queue = self.status = self.reporter = self.watch = Surroundings(self)  # type: ignore[assignment]

    def _step(self) -> None:
        self.steps += 1
        shutil.disk_usage(self.folder)


class Surroundings(RunQueue):
    """What the loop asks for beside its steps; ends it after five pauses."""

    def __init__(self, loop: WithoutFolder) -> None:
        super().__init__([])
        self.loop = loop
        self.pauses: list[tuple[int, float]] = []
        self.server_unreachable = False

    def start(self) -> None:
        """The start of the bot's status succeeds: the folder is lost later."""

    def report_error(self, text: str) -> None:
        assert "No such file" in text

    def pause(self, seconds: float) -> None:
        self.pauses.append((self.loop.steps, seconds))
        if len(self.pauses) == 5:
            self.end(0)


def test_a_session_whose_steps_fail_before_they_wait_pauses_after_each(tmp_path: Path):
    loop = WithoutFolder(tmp_path / "gone")
    loop.run()
    assert [step for step, _ in loop.run_queue.pauses] == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    assert loop.link.failures == 5
