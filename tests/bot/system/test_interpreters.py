"""Which interpreters a bot finds, and which one a task gets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from myrmidon.bot.system import interpreters
from myrmidon.bot.system.interpreters import Interpreter, Interpreters


def test_programs_on_the_path_are_found_by_name_and_scripts_are_not(tmp_path: Path):
    for name, content in {"python3.12": b"\x7fELF", "python3.7": b"\x7fELF", "python3.13": b"#!/bin/sh\n"}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3.10").write_bytes(b"\x7fELF")  # may not be executed
    (tmp_path / "python3.10").chmod(0o644)
    (tmp_path / "python3-config").write_bytes(b"\x7fELF")
    found = interpreters.on_path(f"{tmp_path / 'missing'}:{tmp_path}")
    assert found == [Interpreter(str(tmp_path / "python3.12"), "3.12")]


def test_the_own_interpreter_comes_first_and_another_one_only_if_it_is_required():
    offered = Interpreters()
    offered.found = [Interpreter("/own", "3.11.2"), Interpreter("/other", "3.12")]
    offered.configured = [Interpreter("/configured", "3.12.1")]
    assert offered.choose([]) == "/own"
    assert offered.choose(["3"]) == "/own"
    assert offered.choose(["3.12"]) == "/configured"
    assert offered.choose(["3.12", "3.12.1"]) == "/configured"
    assert offered.choose(["3.12|3.11"]) == "/own"
    assert offered.choose(["3.99"]) == "/own"
    assert offered.dimension(16) == ["3", "3.11", "3.11.2", "3.12", "3.12.1"]
    assert offered.dimension(2) == ["3", "3.11"]


def test_settings_that_cannot_be_used_are_named(tmp_path: Path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    offered = Interpreters()
    problems = offered.configure([sys.executable, str(broken)], {"good": sys.executable, "bad": str(tmp_path / "venv")})
    assert [one.path for one in offered.configured] == [sys.executable]
    assert offered.named == {"good": sys.executable}
    assert len(problems) == 2
    assert str(broken) in problems[0]
    assert "environments.bad" in problems[1]


def test_a_version_is_asked_for_once(tmp_path: Path):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho x >> {tmp_path}/count\necho 3.10.4\n")
    script.chmod(0o755)
    offered = Interpreters()
    assert [offered.version_of(str(script)) for _ in range(3)] == [Interpreter(str(script), "3.10.4")] * 3
    assert (tmp_path / "count").read_text() == "x\n"


@pytest.mark.parametrize("version", ["2.7.18", "3.7.1", "nonsense", ""])
def test_an_interpreter_that_is_too_old_or_says_nothing_is_not_used(tmp_path: Path, version: str):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho {version}\n")
    script.chmod(0o755)
    assert Interpreters().version_of(str(script)) is None
