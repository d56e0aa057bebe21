"""Real bots for tests: the real zip, in real processes, on the interpreters that a bot must work on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which

from myrmidon.bot.install import updater
from tests.deadline import HANG_S
from tests.live import replace_once

SOURCE = Path(__file__).parents[2] / "src" / "myrmidon"


def zip_files(server: str, **changed: str | None) -> dict[str, bytes]:
    """The files of a bot's zip; a changed one replaces its own or, with None, leaves it out."""
    files = {
        f"myrmidon/{path.relative_to(SOURCE)}": path.read_bytes()
        for package in ("bot", "executor", "functions")
        for path in sorted((SOURCE / package).rglob("*.py"))
    }
    files["__main__.py"] = files["myrmidon/bot/__main__.py"]
    files["myrmidon/__init__.py"] = (SOURCE / "__init__.py").read_bytes()
    files["config.json"] = json.dumps({"server": server}).encode()
    replaced = {f"myrmidon/{_path_of(name).relative_to(SOURCE)}": text for name, text in changed.items()}
    return {**files, **{name: text.encode() for name, text in replaced.items() if text is not None}}


def source_of(name: str) -> str:
    """The text of one of the bot's files."""
    return _path_of(name).read_text()


def _path_of(name: str) -> Path:
    """The one file of the bot with this name, in whichever of its packages it is."""
    if name == "__init__":
        return SOURCE / "bot" / "__init__.py"
    [path] = (SOURCE / "bot").rglob(f"{name}.py")
    return path


def source_with(name: str, old: str, new: str) -> str:
    """The same with a change; what is replaced must be there exactly once."""
    return replace_once(source_of(name), old, new)


def pack(files: dict[str, bytes]) -> tuple[bytes, str]:
    """(zip, version)"""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue(), updater.digest_of(files)


def python38() -> str | None:
    """The oldest interpreter that a bot must work on, if this machine has it."""
    found = which("python3.8")
    for candidate in [found, *sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python3.8")))]:
        if candidate and subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


class BotProcess:
    """A bot that was started: the supervisor's process, and through it the worker's."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process

    def worker(self) -> int:
        """The pid of the process that does the work."""
        path = self.folder / "bot.pid"
        return int(wait_for(lambda: path.exists() and path.read_text().strip(), "the bot's pid"))

    def end(self) -> int:
        """As a person would: ask, and wait."""
        self.process.terminate()
        return self.process.wait(HANG_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(HANG_S)


@contextlib.contextmanager
def a_bot(
    server: str,
    folder: Path,
    *flags: str,
    python: str = sys.executable,
    around: Sequence[str] = (),
    files: dict[str, bytes] | None = None,
    token: str = "bootstrap-token",
    env: dict[str, str] | None = None,
) -> Iterator[BotProcess]:
    """A bot from a zip in its own folder, ended when the test is. It trusts a new zip after its first good task."""
    folder.mkdir(parents=True, exist_ok=True)
    zipped = folder / "bot.zip"
    if not zipped.exists():
        zipped.write_bytes(pack(files or zip_files(server))[0])
    if token and not (folder / "credential").exists():
        (folder / "token").write_text(token)
        os.chown(folder / "token", folder.stat().st_uid, -1)
    with open(folder.parent / f"{folder.name}.out", "ab") as out:
        process = subprocess.Popen(
            [*around, python, str(zipped), "start", "--dir", str(folder), "--bot-id", folder.name, *flags],
            env={
                **os.environ,
                "MYRMIDON_BOT_PROVE_S": "0.001",
                "MYRMIDON_BOT_HOST_DIR": str(folder.parent / "host"),
                **(env or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    bot = BotProcess(folder, process)
    try:
        yield bot
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                bot.kill()


def wait_for(true: object, what: str) -> str:
    """Look again and again until something is so, for what tells nobody when it happens."""
    end = time.monotonic() + HANG_S
    while not (found := true()):  # type: ignore[operator]
        assert time.monotonic() < end, f"did not happen in time: {what}"
        time.sleep(0.01)
    return str(found)


def alive(pid: int) -> bool:
    """Running, and not just waiting to be buried."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def cpu_seconds(pid: int) -> float:
    """What a process itself has used so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
