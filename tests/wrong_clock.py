"""A wall clock for processes under test that can be set to any time while they run.

    clock = WrongClock(folder)
    with live_server(source=clock.folder) as server:           # a server with this clock
        clock.set(ahead_s=31 * 86_400)
    with live_server(source=clock.bot_source()) as server:     # a server whose bots have it

What reads the wall clock is replaced in Python; all other clocks go on. libfaketime cannot do this: `time.sleep` fails
with EINVAL under it.
"""

from __future__ import annotations

from pathlib import Path

from tests.live import a_source

_CODE = """
import time as _time

_time_ns = _time.time_ns


def _wrong_time_ns():
    with open({path!r}) as file:
        return _time_ns() + int(file.read()) * 1_000_000_000


_time.time_ns = _wrong_time_ns
_time.time = lambda: _wrong_time_ns() / 1e9
"""


class WrongClock:
    """The wall clock of the processes that have ``folder`` in their PYTHONPATH, or of bots (``bot_source``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._code = _CODE.format(path=str(folder / "ahead_s"))
        # Python imports this module at start from the first folder of its path that has one.
        (folder / "sitecustomize.py").write_text(self._code)
        self.set(ahead_s=0)

    def bot_source(self) -> Path:
        """Sources whose bots have this clock. A worker ignores PYTHONPATH, so it is part of their zip."""
        source = a_source(self.folder / "source")
        with (source / "myrmidon" / "bot" / "__init__.py").open("a") as file:
            file.write(self._code)
        return source

    def set(self, *, ahead_s: int) -> None:
        new = self.folder / "ahead_s.new"
        new.write_text(str(ahead_s))
        new.rename(self.folder / "ahead_s")
