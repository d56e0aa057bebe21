"""Builds one virtual environment: with uv if the bot finds it, else with venv and pip.

The packages of strangers run code while they are built. So the installer is started as functions are: kept away from
the files of the bot and from other environments. Its home is an empty folder of this environment. It uses no cache of
downloads: what one build leaves there, others would trust.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.system import filesystem, processes
from myrmidon.functions.requirements import Lines, has_hashes

PYTHON = os.path.join("venv", "bin", "python")
"""The interpreter in the folder of an environment."""
_LAST_LINES = 20
_LAST_CHARS = 2500
_REASON = re.compile(r"\s*(?:error|cause|caused by|hint)\b|\s*(?:\xd7|╰)", re.IGNORECASE)
_REASON_CHARS = 1000
_MAX_LINE_BYTES = 8192
_TICK_S = 0.1
_MARKER = "MYRMIDON_BUILD"
_NOT_PASSED = frozenset(
    {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_CACHE_DIR", "PIP_LOG", "PIP_REQUIREMENT", "PIP_SRC",
     "UV_CACHE_DIR", "UV_PROJECT_ENVIRONMENT", "UV_SYSTEM_PYTHON", "UV_PYTHON"}
)  # fmt: skip
"""Variables that would let an installer write to another place than the environment."""
_CREDENTIALS = re.compile(r"://([^/@\s]+)@")
_SECRET_NAME = re.compile(r"PASSWORD|TOKEN|SECRET")


class BuildFailed(Exception):
    """The requirements cannot be installed; the message has the last lines of the installer."""


class BuildCancelled(Exception):
    """No run needs the environment any more."""


class Build(NamedTuple):
    """What to build, and within which time. ``write`` is called with output, from the thread of the build."""

    folder: str
    python: str
    lines: Lines
    limit_s: float
    write: Callable[[bytes], None]
    is_cancelled: Callable[[], bool]


class Builder:
    """``isolate`` makes what starts commands that may write to one folder only."""

    def __init__(self, env: dict[bytes, bytes], isolate: Callable[[str], Isolation]) -> None:
        self.env = env
        self.isolate = isolate
        self.devnull = os.open(os.devnull, os.O_RDONLY)

    def build(self, build: Build) -> None:
        """Build an environment in its folder. Raises BuildFailed, BuildCancelled or OSError."""
        isolation = self.isolate(build.folder)
        try:
            self._prepare(build, isolation)
            installer = _Installer(build, isolation, self._environment(build.folder), self.devnull)
            installer.install()
        finally:
            processes.kill_by_marker(_marker(build.folder))
            isolation.close()
        for name in ("tmp", "home"):
            filesystem.remove_tree(os.path.join(build.folder, name))
        _make_readable(build.folder)

    def _prepare(self, build: Build, isolation: Isolation) -> None:
        path = os.path.join(build.folder, "requirements.txt")
        filesystem.write_file(path, "".join(f"{line}\n" for line in build.lines).encode())
        for name in ("tmp", "home"):
            os.mkdir(os.path.join(build.folder, name), 0o700)
        for name in ("", "requirements.txt", "tmp", "home"):
            isolation.give(os.path.join(build.folder, name) if name else build.folder)

    def _environment(self, folder: str) -> dict[bytes, bytes]:
        """The variables of functions, the bot's own ones for installers, and an empty home."""
        installers = {name: value for name, value in os.environ.items() if is_for_installers(name)}
        tmp, home = os.path.join(folder, "tmp"), os.path.join(folder, "home")
        added = {
            **installers,
            **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), tmp),
            "HOME": home,
            "GIT_TERMINAL_PROMPT": "0",
            "NO_COLOR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INPUT": "1",
            "PYTHONNOUSERSITE": "1",
            "UV_NO_CACHE": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        name, _, value = _marker(folder).partition(b"=")
        return {**self.env, **{os.fsencode(key): os.fsencode(text) for key, text in added.items()}, name: value}


class _Installer:
    """Runs the commands of one build."""

    def __init__(self, build: Build, isolation: Isolation, env: dict[bytes, bytes], devnull: int) -> None:
        self.build = build
        self.isolation = isolation
        self.env = env
        self.devnull = devnull
        self.until = time.monotonic() + build.limit_s
        self.masks = secrets_of(os.environ.items())
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self.unfinished = b""

    def install(self) -> None:
        venv, python = os.path.join(self.build.folder, "venv"), os.path.join(self.build.folder, PYTHON)
        requirements = ["-r", os.path.join(self.build.folder, "requirements.txt")]
        if has_hashes(self.build.lines):
            requirements.insert(0, "--require-hashes")
        if self._has_made_venv_by_uv(venv):
            self._require([self.uv, "pip", "install", "--compile-bytecode", "--python", python, *requirements])
            return
        if self._run([self.build.python, "-m", "venv", venv]) != 0:
            raise OSError(f"this bot cannot make virtual environments with {self.build.python}:\n{self._last_lines()}")
        self._require([python, "-m", "pip", "install", *requirements])

    @property
    def uv(self) -> str:
        return shutil.which("uv", path=os.fsdecode(self.env.get(b"PATH", b""))) or ""

    def _has_made_venv_by_uv(self, venv: str) -> bool:
        """Whether this bot has a uv that its functions may run too."""
        if not self.uv:
            return False
        try:
            return self._run([self.uv, "venv", "--no-project", "--python", self.build.python, venv]) == 0
        except processes.NotStarted:
            return False
        finally:
            if not os.path.exists(os.path.join(self.build.folder, PYTHON)):
                filesystem.remove_tree(venv)

    def _require(self, argv: list[str]) -> None:
        status = self._run(argv)
        if status != 0:
            if filesystem.is_nearly_full(self.build.folder):
                raise OSError(errno.ENOSPC, f"the disk is full after a build with exit code {status}")
            raise BuildFailed(
                f"the requirements cannot be installed: {self._reason() or f'exit code {status}'}\n{self._last_lines()}"
            )

    def _reason(self) -> str:
        """What the installer says of its failure, on one line: lists of tasks show the first line of a message."""
        return " ".join(line.strip() for line in self.last if _REASON.match(line))[:_REASON_CHARS]

    def _last_lines(self) -> str:
        return "\n".join(self.last)[-_LAST_CHARS:] or "the installer has written nothing"

    # ---------------------------------------------------------------- one command

    def _run(self, argv: list[str]) -> int:
        """Run a command to its end, and pass its output on; its exit status. Raises BuildFailed or BuildCancelled."""
        self.build.write(f"[myrmidon: {' '.join(map(os.path.basename, argv[:3]))} ...]\n".encode())
        reader, writer = processes.make_pipe()
        try:
            with processes.kept_lock:
                streams = (self.devnull, writer, writer)
                process = self.isolation.start(argv, self.env, self.build.folder, streams)
                processes.kept.add(process.pid)
        except BaseException:
            os.close(reader)
            os.close(writer)
            raise
        os.close(writer)
        processes.prefer_for_oom_kill(process.pid)
        try:
            self._follow(reader, process.poll)
        finally:
            processes.kill_tree(process.pid)
            status = process.wait()
            with processes.kept_lock:
                processes.kept.discard(process.pid)
            os.close(reader)
        return status

    def _follow(self, reader: int, poll: Callable[[], int | None]) -> None:
        """Read output until the process has ended. Others that it has left behind may keep the pipe open."""
        waiting = select.poll()
        waiting.register(reader, select.POLLIN)
        while True:
            has_ended = poll() is not None
            waiting.poll(0 if has_ended else _TICK_S * 1000)
            data = processes.read_pipe(reader, 1 << 16)
            if data:
                self._take(data)
            elif has_ended:
                self._take(b"")
                return
            elif data == b"":
                time.sleep(_TICK_S)  # it has closed its output and goes on
            if self.build.is_cancelled():
                raise BuildCancelled
            if time.monotonic() > self.until:
                self._take(b"")
                limit = f"the environment was not built within {self.build.limit_s:g} s"
                raise BuildFailed(f"{limit}; the last lines:\n{self._last_lines()}")

    def _take(self, data: bytes) -> None:
        """Pass complete lines on without credentials; an empty ``data`` is the end."""
        text = self.unfinished + data
        end = len(text) if not data or len(text) > _MAX_LINE_BYTES else text.rfind(b"\n") + 1
        text, self.unfinished = text[:end], text[end:]
        if text:
            shown = mask(text.decode(errors="replace"), self.masks)
            self.last.extend(line.rstrip() for line in shown.splitlines() if line.strip())
            self.build.write(shown.encode())


def is_for_installers(name: str) -> bool:
    """Whether a variable of the bot is passed to builds, and to nothing else."""
    return name.startswith(("PIP_", "UV_")) and name not in _NOT_PASSED


def secrets_of(variables: Iterable[tuple[str, str]]) -> list[str]:
    """What must not be in a log: credentials in addresses of indexes, and passwords and tokens."""
    found: set[str] = set()
    for name, value in variables:
        if not is_for_installers(name):
            continue
        for credentials in _CREDENTIALS.findall(value):
            found.update((credentials, credentials.partition(":")[2]))
        if _SECRET_NAME.search(name):
            found.add(value)
    return sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)


def mask(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "****")
    return text


def _marker(folder: str) -> bytes:
    """A line in the environment of an installer and of all that it starts."""
    return os.fsencode(f"{_MARKER}={folder}")


def _make_readable(folder: str) -> None:
    """Make the bot the owner of everything, and let all users read it and only the bot write it. Follows no link."""
    uid, gid = os.geteuid(), os.getegid()
    pending = [folder]
    while pending:
        path = pending.pop()
        found = os.lstat(path)
        if (found.st_uid, found.st_gid) != (uid, gid):
            os.chown(path, uid, gid, follow_symlinks=False)
        if os.path.islink(path):
            continue
        is_folder = os.path.isdir(path)
        wanted = 0o755 if is_folder or found.st_mode & 0o100 else 0o644
        if found.st_mode & 0o7777 != wanted:
            os.chmod(path, wanted)
        if is_folder:
            pending += [os.path.join(path, name) for name in os.listdir(path)]
