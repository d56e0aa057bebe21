"""The environment of a function that `task reproduce` calls: its requirements, installed in a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from myrmidon.cli import output
from myrmidon.functions.requirements import NAMED, BadRequirements, Lines, has_hashes, parse_document

if TYPE_CHECKING:
    from myrmidon.cli.context import CliContext
    from myrmidon.wire.function_calls import FunctionCall
    from myrmidon.wire.tasks import TaskInfo

_VENV, _PACKAGE = "environment", "package"
_PARTS = ("functions", "executor", "bot")
"""What a bot has of this program: the packages that need nothing but Python."""


def interpreter_for(cli: CliContext, task: TaskInfo, call: FunctionCall, root: Path) -> str:
    """The interpreter of the environment of a function, which is built if need be; else the one of this program."""
    if call.environment.startswith(NAMED):
        name = call.environment.removeprefix(NAMED)
        output.note(f"The environment {name} is one of the bots; the function runs with the packages of this program.")
        return sys.executable
    if not call.environment:
        return sys.executable
    python = root / _VENV / "bin" / "python"
    if not python.exists():
        try:
            lines = parse_document(cli.client.file(call.environment, group=task.group))
        except BadRequirements as error:
            raise click.ClickException(str(error)) from None
        _build(root, lines, call.python)
    return str(python)


def variables_of(root: Path) -> dict[str, str]:
    """The variables that let the interpreter of an environment find what runs functions, as on a bot."""
    if not (root / _VENV).exists():
        return {}
    programs = os.pathsep.join([str(root / _VENV / "bin"), os.environ.get("PATH", os.defpath)])
    return {"PYTHONPATH": str(_library(root)), "VIRTUAL_ENV": str(root / _VENV), "PATH": programs}


def _library(root: Path) -> Path:
    """A folder with the packages that a bot has, and nothing else of this Python's packages."""
    target = root / _PACKAGE / "myrmidon"
    if not target.exists():
        source = Path(__file__).parents[1]
        target.mkdir(parents=True)
        shutil.copy(source / "__init__.py", target)
        for name in _PARTS:
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target.parent


def _build(root: Path, lines: Lines, required: list[str]) -> None:
    """Install requirements as a bot does: with uv, which may find another interpreter, else with venv and pip."""
    listed = root / "requirements.txt"
    listed.write_text("".join(f"{line}\n" for line in lines))
    venv, python = str(root / _VENV), str(root / _VENV / "bin" / "python")
    options = [*(["--require-hashes"] if has_hashes(lines) else []), "-r", str(listed)]
    output.note(f"Installing {output.plural(len(lines), 'requirement')} ...")
    uv = shutil.which("uv")
    if uv is not None:
        _require([uv, "venv", "--no-project", "--python", max(required, key=len, default=sys.executable), venv])
        _require([uv, "pip", "install", "--python", python, *options])
    else:
        _require([sys.executable, "-m", "venv", venv])
        _require([python, "-m", "pip", "install", "--disable-pip-version-check", *options])


def _require(words: list[str]) -> None:
    if subprocess.run(words, stdout=sys.stderr, check=False).returncode != 0:  # noqa: S603 - the installer
        raise click.ClickException(f"The environment of the function cannot be built: {words[0]} has failed.")
