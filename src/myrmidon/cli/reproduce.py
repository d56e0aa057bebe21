"""`task reproduce`: run a task's command on this machine as a bot would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, output

if TYPE_CHECKING:
    from myrmidon.wire.tasks import TaskInfo


def run_locally(task: TaskInfo, extra: list[str], folder: str | None, *, to_stderr: bool) -> int:
    """Run the command and return its exit code. Without ``folder``, a temporary one is used and removed."""
    properties = task.request.slices[task.result.slice].properties
    command = [*properties.get("command", []), *extra]
    if not command:
        raise click.UsageError("This task runs a function; only commands can be reproduced.")
    if task.request.stdin_size is not None:
        output.note("The server does not return the task's stdin; the command reads that of this shell.")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _run(properties, command, Path(folder).resolve(), to_stderr=to_stderr)
    with tempfile.TemporaryDirectory(prefix="myrmidon-") as temporary:
        return _run(properties, command, Path(temporary), to_stderr=to_stderr)


def _run(properties: dict[str, Any], command: list[str], root: Path, *, to_stderr: bool) -> int:
    for cache in properties.get("caches", []):
        (root / cache["path"]).mkdir(parents=True, exist_ok=True)
    cwd = root / properties.get("relative_cwd", "")
    cwd.mkdir(parents=True, exist_ok=True)
    output.note(f"{cwd}$ {output.command_line(command)}")
    try:
        done = subprocess.run(  # noqa: S603 - running the command is the purpose
            command,
            cwd=cwd,
            env=_environment(properties, root),
            stdout=sys.stderr if to_stderr else None,
            check=False,
        )
    except OSError as error:
        output.echo(f"{command[0]} could not be started: {error.strerror}", err=True)
        return exit_codes.of_start_failure(error)
    return exit_codes.of_task("FAILED" if done.returncode else "SUCCEEDED", done.returncode)


def _environment(properties: dict[str, Any], root: Path) -> dict[str, str]:
    """This shell's environment with the task's changes: an empty value unsets, prefixes are prepended."""
    env = {**os.environ, "MYRMIDON_BOT_ID": "reproduce"}
    env.pop("MYRMIDON_TASK_ID", None)  # not a run on a bot: what the command submits must not get a parent
    for key, value in properties.get("env", {}).items():
        if value:
            env[key] = value
        else:
            env.pop(key, None)
    for key, paths in properties.get("env_prefixes", {}).items():
        absolute = [str(root / path) for path in paths]
        env[key] = os.pathsep.join([*absolute, *([env[key]] if env.get(key) else [])])
    return env
