"""mypy and pyright check the wiring of graphs: calls are typed as what the functions return."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadline import HANG_S

SAMPLES = Path(__file__).parent / "typing_samples"
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for sample in SAMPLES.glob("*.txt"):
        shutil.copy(sample, tmp_path / f"{sample.stem}.py")
    return tmp_path


def marked_lines() -> set[int]:
    """The lines of the bad sample on which a checker must find an error."""
    lines = (SAMPLES / "bad.txt").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def checked(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(Path.home())}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_mypy_accepts_right_wiring_and_finds_every_wrong_one(folder: Path):
    options = ["--strict", "--disable-error-code=empty-body", "--config-file=", f"--cache-dir={folder}/cache"]
    done = checked([sys.executable, "-m", "mypy", *options, "good.py", "bad.py"], folder)
    found = re.findall(r"^(\w+)\.py:(\d+): error", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert [number for name, number in found if name == "good"] == [], done.stdout
    assert {int(number) for name, number in found if name == "bad"} == marked_lines(), done.stdout


@pytest.mark.full
def test_pyright_accepts_right_wiring_and_finds_every_wrong_one(folder: Path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"pythonVersion": "3.11", "extraPaths": [str(SOURCE)], "pythonPath": sys.executable})
    )
    words = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "good.py", "bad.py"]
    done = checked(words, folder)
    try:
        report = json.loads(done.stdout)["generalDiagnostics"]
    except (ValueError, KeyError):
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout)[-200:]}")  # it downloads its program
    errors = [
        (Path(one["file"]).stem, one["range"]["start"]["line"] + 1) for one in report if one["severity"] == "error"
    ]
    assert [line for name, line in errors if name == "good"] == [], report
    assert {line for name, line in errors if name == "bad"} == marked_lines(), report
