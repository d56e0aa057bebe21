"""What the tests of the command line may ask for.

up        a running `myrmidon up` with two bots, one for all tests of a worker
terminal  a terminal of the user who started it
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.deadline import HANG_S


@dataclass(frozen=True)
class Up:
    """A running `myrmidon up`, what it has said so far, and its address and data."""

    process: subprocess.Popen[str]
    said: str
    url: str
    data: Path
    terminal: Terminal


def start_up(home: Path, *words: str, settings: str = "") -> Up:
    """Start one, and wait for its word that it is up."""
    terminal = Terminal(home)
    data = home / "legion"
    file = home / "settings.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"heartbeat_s = 0.5\nsweep_s = 0.2\n{settings}")  # so that cancels and expiries come soon
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "myrmidon",
            "up",
            "--port",
            "0",
            "--data-dir",
            str(data),
            "--config",
            str(file),
            *words,
        ],
        env=terminal.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    said: list[str] = []
    for line in child.stdout:
        said.append(line)
        if "Ctrl-C to stop" in line:
            break
    text = "".join(said)
    assert "Myrmidon is up at " in text, text
    return Up(child, text, text.split("is up at ")[1].split()[0], data, terminal)


def stop_up(up: Up) -> tuple[int, str]:
    """Ctrl-C; the exit code, and what it said after that."""
    up.process.send_signal(signal.SIGINT)
    rest, _ = up.process.communicate(timeout=HANG_S)
    return up.process.returncode, rest


def processes_of(folder: Path) -> list[str]:
    """The command lines of every process that works on a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            if str(folder) in line:
                found.append(line)
    return found


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start_up(tmp_path_factory.mktemp("up"), "--bots", "2")
    try:
        yield running
    finally:
        stop_up(running)


@pytest.fixture
def terminal(up: Up) -> Terminal:
    return up.terminal
