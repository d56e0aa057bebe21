"""A bot starts commands in the same way on every Python that is here."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import SOURCE
from tests.cases import some

SCRIPT = Path(__file__).parents[1] / "startup.py"
OTHERS = {str(path): int(path.parts[-3].split(".")[1]) for path in Path.home().glob(".pyenv/versions/3.*/bin/python3")}
PYTHONS = {sys.executable: sys.version_info.minor, **{path: minor for path, minor in OTHERS.items() if minor >= 8}}


@pytest.fixture(
    params=some(sorted(PYTHONS, key=lambda path: PYTHONS[path]), short=1),
    ids=lambda path: f"3.{PYTHONS[path]}",
    scope="module",
)
def seen(request, tmp_path_factory) -> dict[str, Any]:
    """What `startup.py` prints; with a folder of its own."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "bin").mkdir()
    for name, text, mode in (("tool", "#!/bin/sh\necho tool $1\n", 0o755), ("plain", "x", 0o644), ("text", "x", 0o755)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(mode)
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "LC_ALL": "C.UTF-8"}
    told = subprocess.run([request.param, SCRIPT, folder], env=env, capture_output=True, check=True)
    return {**json.loads(told.stdout), "folder": str(folder)}


def test_a_command_finds_its_folder_variables_group_and_nothing_of_the_bot(seen: dict[str, Any]):
    code, said = seen["around"]
    folder, variable, pid, group, blocked, ignored, *handles = said.splitlines()
    assert (code, folder, variable, group) == (0, seen["folder"], "ü =", pid)
    assert blocked.split() == ["SigBlk:", "0" * 16]
    assert int(ignored.split()[1], 16) == _inherited_ignored_signals()
    assert set(handles) <= {"0", "1", "2", "10", "255"}  # the last two are a shell's own


def _inherited_ignored_signals() -> int:
    """The signals that the caller of the tests ignores, as a bit mask, without those that Python itself ignores."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn:")]
    by_python = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))
    return int(line.split()[1], 16) & ~by_python


def test_a_program_is_found_by_name_also_from_where_the_command_starts(seen: dict[str, Any]):
    assert seen["by name"] == [0, "tool x\n"]
    assert seen["beside"] == [0, "tool y\n"]


def test_what_cannot_be_started_is_told_apart(seen: dict[str, Any]):
    assert (seen["missing"], seen["missing by name"], seen["no folder"]) == (errno.ENOENT,) * 3
    assert (seen["refused"], seen["refused by name"]) == (errno.EACCES,) * 2
    assert seen["no program"] == errno.ENOEXEC


def test_an_end_like_that_of_a_child_that_never_ran_is_the_end_of_a_command(seen: dict[str, Any]):
    assert seen["255"] == [255, ""]
    assert seen["by a signal"] == [-9, ""]
