"""`myrmidon` as a user starts it: real processes, with a home of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import tracing
from tests.deadline import HANG_S

BYTECODE = tempfile.TemporaryDirectory(prefix="myrmidon-bytecode-")
"""Shared by all commands of a run: half of the time of a short command is compiling what it imports."""


NOT_OURS = ("MYRMIDON_", "XDG_", "COVERAGE_")


class Terminal:
    """A shell's environment: a home, and perhaps a server and a token."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        ours = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        self.env = {
            **ours,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": BYTECODE.name,
            "COLUMNS": "200",
            **variables,
        }

    def run(self, *words: str, given: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "myrmidon", *words],
            env={**self.env, **tracing.variables(), **variables},
            input=given or "",
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def ok(self, *words: str, given: str | None = None, **variables: str) -> str:
        """One command that must succeed; what it wrote to stdout."""
        done = self.run(*words, given=given, **variables)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str, given: str | None = None) -> Any:
        return json.loads(self.ok(*words, "--json", given=given))

    @contextmanager
    def start(self, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on; killed, with its group, when the test leaves it behind."""
        child = subprocess.Popen(
            [sys.executable, "-m", "myrmidon", *words],
            env={**self.env, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()
            child.communicate()
