"""A task's command, run on this machine as a bot would run it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from myrmidon.cli import exit_codes, output


def run_locally(task: dict[str, Any], extra: list[str], folder: str | None, *, to_stderr: bool) -> int:
    """Its exit code. A fresh folder is removed afterwards; one that was named stays."""
    properties = task["request"]["slices"][task["result"]["slice"]]["properties"]
    command = [*properties.get("command", []), *extra]
    if not command:
        raise click.UsageError("This task runs a function; only commands can be run here.")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _run(properties, command, Path(folder).resolve(), to_stderr=to_stderr)
    with tempfile.TemporaryDirectory(prefix="myrmidon-") as fresh:
        return _run(properties, command, Path(fresh), to_stderr=to_stderr)


def _run(properties: dict[str, Any], command: list[str], root: Path, *, to_stderr: bool) -> int:
    for cache in properties.get("caches", []):
        (root / cache["path"]).mkdir(parents=True, exist_ok=True)
    here = root / properties.get("relative_cwd", "")
    here.mkdir(parents=True, exist_ok=True)
    output.note(f"{here}$ {output.command_line(command)}")
    try:
        done = subprocess.run(  # noqa: S603 - running it is what was asked for
            command,
            cwd=here,
            env=_environment(properties, root),
            stdout=sys.stderr if to_stderr else None,
            check=False,
        )
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from None
    return exit_codes.of_task("FAILED" if done.returncode else "SUCCEEDED", done.returncode)


def _environment(properties: dict[str, Any], root: Path) -> dict[str, str]:
    """This shell's variables, changed as the task asks: an empty value removes, a prefix comes before what is there."""
    env = {**os.environ, "MYRMIDON_BOT_ID": "reproduce"}
    env.pop("MYRMIDON_TASK_ID", None)  # it is no run: what it submits has no parent
    for key, value in properties.get("env", {}).items():
        if value:
            env[key] = value
        else:
            env.pop(key, None)
    for key, paths in properties.get("env_prefixes", {}).items():
        whole = [str(root / path) for path in paths]
        env[key] = os.pathsep.join([*whole, *([env[key]] if env.get(key) else [])])
    return env
