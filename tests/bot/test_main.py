"""The zip's command line, on this interpreter and on Python 3.8."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bot.bots import pack, source_of, zip_files


def _zip(tmp_path: Path, **changed: str) -> tuple[Path, str]:
    zipped, version = pack(zip_files("http://127.0.0.1:1", **changed))
    path = tmp_path / "bot.zip"
    path.write_bytes(zipped)
    return path, version


def _call(python: str, *argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *map(str, argv)], capture_output=True, text=True, check=False)


def test_a_zip_tells_its_version(interpreter: str, tmp_path: Path):
    path, version = _zip(tmp_path)
    assert _call(interpreter, path, "version").stdout.strip() == version


def test_a_zip_is_fine_or_says_why_not(interpreter: str, tmp_path: Path):
    assert _call(interpreter, _zip(tmp_path)[0], "is_fine").returncode == 0
    broken = _call(interpreter, _zip(tmp_path, spool="import nothing_like_this\n")[0], "is_fine")
    assert broken.returncode != 0
    assert "nothing_like_this" in broken.stderr


def test_one_bad_file_does_not_take_away_the_other_commands(interpreter: str, tmp_path: Path):
    path, version = _zip(tmp_path, soldier="def broken(:\n")
    assert _call(interpreter, path, "version").stdout.strip() == version


def test_a_zip_tells_the_dimensions_of_the_machine(interpreter: str, tmp_path: Path):
    told = _call(
        interpreter, _zip(tmp_path)[0], "attributes", "--bot-id", "me", "--dimension", "a=1", "--dimension", "a=2"
    )
    found = json.loads(told.stdout)
    assert (found["id"], found["a"], found["pool"]) == (["me"], ["1", "2"], ["default"])


@pytest.mark.parametrize("argv", [["nonsense"], ["start", "--nonsense"]])
def test_a_wrong_command_line_is_answered_with_help(interpreter: str, tmp_path: Path, argv: list[str]):
    told = _call(interpreter, _zip(tmp_path)[0], *argv)
    assert told.returncode == 2
    assert told.stderr


def test_no_file_needs_a_newer_python(interpreter: str, tmp_path: Path):
    names = [name for name in zip_files("x") if name.endswith(".py")]
    for name in names:
        (tmp_path / Path(name).name).write_text(source_of(Path(name).stem) if "/bot/" in name else "")
    told = _call(interpreter, "-W", "error", "-m", "compileall", "-q", tmp_path)
    assert (told.returncode, told.stdout) == (0, "")
