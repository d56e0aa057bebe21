"""The Python interpreters of this machine: which ones there are, and which one satisfies the dimensions of a task."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from myrmidon.bot.system.dimensions import versions

OLDEST = (3, 8)
"""Functions run on the same versions of Python as the bot."""
_NAME = re.compile(r"python(3\.[0-9]+)")
_PROBE_S = 30.0
_ATTEMPTS = 2
"""The end of a command kills what the bot has started beside it."""
_PROBE = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_VERSION = re.compile(r"3\.[0-9]+\.[0-9]+")


class Interpreter(NamedTuple):
    """``version`` has two numbers if only the name of the file is known, else three."""

    path: str
    version: str


def own() -> Interpreter:
    return Interpreter(sys.executable, platform.python_version())


def on_path(path: str) -> list[Interpreter]:
    """The interpreters in the folders of PATH, by their names: running each would delay the start of every bot.

    Scripts are left out: those of version managers start an interpreter only in some folders.
    """
    found: dict[str, Interpreter] = {}
    for folder in path.split(os.pathsep):
        with contextlib.suppress(OSError), os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and match[1] not in found and _is_program(entry.path):
                    found[match[1]] = Interpreter(os.path.abspath(entry.path), match[1])
    return [one for one in found.values() if tuple(map(int, one.version.split("."))) >= OLDEST]


def _is_program(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return os.access(path, os.X_OK) and file.read(2) not in (b"#!", b"")
    return False


def probe(path: str, **arguments: Any) -> Interpreter | None:
    """Run an interpreter to learn its version; None if it cannot be used. ``arguments`` are those of Popen."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        command = [path, "-I", "-c", _PROBE]
        answer = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, **arguments
        )
        version = answer.stdout.decode().strip()
        if _VERSION.fullmatch(version) and tuple(map(int, version.split(".")[:2])) >= OLDEST:
            return Interpreter(path, version)
    return None


def executable_in(path: str) -> str:
    """The interpreter of a virtual environment, or the path itself if it is no folder."""
    if not os.path.isdir(path):
        return path
    return os.path.join(path, *(("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")))


def satisfies(version: str, required: Iterable[str]) -> bool:
    """Whether an interpreter has all required values of the dimension `python`; a value may have alternatives."""
    offered = versions(version)
    return all(any(one in offered for one in value.split("|")) for value in required)


class Interpreters:
    """The interpreters and environments that this bot offers. Set by the session thread, read by all.

    ``named``: interpreters of the environments in the bot's settings.
    """

    def __init__(self, popen_arguments: dict[str, Any] | None = None) -> None:
        self.popen_arguments = popen_arguments or {}
        self.found: list[Interpreter] = [own(), *on_path(os.environ.get("PATH", ""))]
        self.configured: list[Interpreter] = []
        self.named: dict[str, str] = {}
        self.probed: dict[tuple[str, int], Interpreter] = {}

    def configure(self, pythons: Sequence[str], environments: dict[str, str]) -> list[str]:
        """Use the interpreters and environments of the settings; problems with those that cannot be used.

        Starts them, so it is called while no command runs.
        """
        problems = []
        configured, named = [], {}
        for path in pythons:
            one = self.version_of(executable_in(path))
            if one is None:
                problems.append(f"settings.pythons: {path} is not a Python 3.8 or newer that starts")
            else:
                configured.append(one)
        for name, path in environments.items():
            if self.version_of(executable_in(path)) is None:
                problems.append(f"settings.environments.{name}: {path} has no Python 3.8 or newer that starts")
            else:
                named[name] = executable_in(path)
        self.configured, self.named = configured, named
        return problems

    def version_of(self, path: str) -> Interpreter | None:
        """An interpreter with its whole version; it is started once. Raises nothing."""
        try:
            key = (path, os.stat(path).st_mtime_ns)
        except OSError:
            return None
        for _ in range(_ATTEMPTS):
            found = self.probed.get(key) or probe(path, **self.popen_arguments)
            if found is not None:
                self.probed[key] = found
                return found
        return None

    def all(self) -> list[Interpreter]:
        return [self.found[0], *self.configured, *self.found[1:]]

    def dimension(self, limit: int) -> list[str]:
        """The values of the dimension `python`."""
        values = [value for one in self.all() for value in versions(one.version)]
        return list(dict.fromkeys(values))[:limit]

    def choose(self, required: Sequence[str]) -> str:
        """The interpreter for a task that requires these values: the bot's own if that has them."""
        found = [one.path for one in self.all() if satisfies(one.version, required)]
        return found[0] if found else self.found[0].path
