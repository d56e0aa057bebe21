"""A wall clock for processes under test that can be set to any time while they run.

    clock = WrongClock(folder)
    with live_server(source=clock.folder) as server:
        clock.set(ahead_s=31 * 86_400)

Python imports `sitecustomize` at start from the first folder of its path that has one. Ours replaces what reads the
wall clock; all other clocks go on. libfaketime cannot do this: its `clock_nanosleep` fails with EINVAL under it.
"""

from __future__ import annotations

from pathlib import Path

_CUSTOMIZE = """
import os, time

_file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ahead_s")
_time_ns = time.time_ns


def time_ns():
    with open(_file) as file:
        return _time_ns() + int(file.read()) * 1_000_000_000


time.time_ns = time_ns
time.time = lambda: time_ns() / 1e9
"""


class WrongClock:
    """The wall clock of the processes that have ``folder`` in their PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sitecustomize.py").write_text(_CUSTOMIZE)
        self.set(ahead_s=0)

    def set(self, *, ahead_s: int) -> None:
        new = self.folder / "ahead_s.new"
        new.write_text(str(ahead_s))
        new.rename(self.folder / "ahead_s")
