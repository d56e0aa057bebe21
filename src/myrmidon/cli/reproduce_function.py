"""`task reproduce` of a function: its code and its inputs are fetched, and it runs here in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, output, reproduce_native
from myrmidon.cli.code_archive import fetch_code
from myrmidon.cli.reproduce_environment import interpreter_for, variables_of
from myrmidon.cli.reproduce_native import PROGRAM
from myrmidon.executor.code_archive import unpack
from myrmidon.executor.process_end import death_message, native_name
from myrmidon.executor.reproduce import ENDED
from myrmidon.executor.runner import PYTHON

if TYPE_CHECKING:
    from myrmidon.cli.context import CliContext
    from myrmidon.wire.function_calls import CallInput, CallValue, FunctionCall
    from myrmidon.wire.tasks import TaskInfo

_BUILTINS = "myrmidon.executor.builtins"


def run_function(cli: CliContext, task: TaskInfo, folder: str | None, *, debug: bool, to_stderr: bool) -> int:
    """Call the function of a task here; the exit code. Without ``folder`` a temporary one is used and removed."""
    call = cli.client.function_call(task.task_id)
    if call.package_name == _BUILTINS:
        raise click.UsageError(f"{call.func_name} is a part of Myrmidon that needs its job; it cannot run here.")
    if call.language != PYTHON:
        reproduce_native.require_library(call)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return _run(cli, task, call, Path(folder).resolve(), debug=debug, to_stderr=to_stderr)
    with tempfile.TemporaryDirectory(prefix="myrmidon-") as temporary:
        return _run(cli, task, call, Path(temporary), debug=debug, to_stderr=to_stderr)


def _run(cli: CliContext, task: TaskInfo, call: FunctionCall, root: Path, *, debug: bool, to_stderr: bool) -> int:
    gdb = reproduce_native.require_gdb(task.task_id) if debug and call.language != PYTHON else ""
    described = {
        "package": call.package_name,
        "function": call.func_name,
        "language": call.language,
        "signature": call.signature,
        "code": _fetch_code(cli, task, call, root),
        "env": call.env,
        "inputs": [_fetch_input(cli, one, root) for one in call.inputs],
    }
    (root / "call.json").write_text(json.dumps(described))
    (root / ENDED).unlink(missing_ok=True)
    work = root / "work"
    work.mkdir(exist_ok=True)
    output.note(f"{call.package_name}:{call.func_name}, {output.plural(len(call.inputs), 'input')}")
    words = [interpreter_for(cli, task, call, root), *PROGRAM, str(root)]
    stdout = sys.stderr if to_stderr else None
    if gdb:
        return reproduce_native.debug(
            [gdb, *reproduce_native.gdb_options(call), *words], work, _environment(root), stdout
        )
    if debug:
        words.append("--pdb")
    done = subprocess.run(words, cwd=work, env=_environment(root), stdout=stdout, check=False)  # noqa: S603 - the task's
    if not (root / ENDED).exists():
        native = native_name(call.func_name, call.package_name, call.language)
        output.echo(death_message(done.returncode, by_kernel=False, native=native), err=True)
        return exit_codes.of_task("FAILED", done.returncode)
    return exit_codes.of_task("FAILED" if done.returncode else "SUCCEEDED", done.returncode)


def _environment(root: Path) -> dict[str, str]:
    env = {**os.environ, "MYRMIDON_BOT_ID": "reproduce", **variables_of(root)}
    env.pop("MYRMIDON_TASK_ID", None)
    return env


def _fetch_code(cli: CliContext, task: TaskInfo, call: FunctionCall, root: Path) -> str:
    """Unpack the code; the folder, named by its digest as on bots, or empty if the code is installed."""
    if not call.code:
        return ""
    folder = root / call.code
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier call with --folder
    with fetch_code(cli, call.code, task.group) as archive:
        unpack(archive, str(folder))
    return str(folder)


def _fetch_input(cli: CliContext, given: CallInput, root: Path) -> dict[str, Any]:
    fetched: dict[str, Any] = {"type": given.type}
    if given.parts is None or given.size:
        fetched["path"] = _fetch(cli, given, root)
    if given.parts is not None:
        fetched["parts"] = [{"type": part.type, "path": _fetch(cli, part, root)} for part in given.parts]
    return fetched


def _fetch(cli: CliContext, value: CallValue, root: Path) -> str:
    if value.size is None:
        raise click.UsageError(f"The value {value.value_id} does not exist: a task that produces it has not succeeded.")
    path = root / f"value-{value.value_id}"
    if not path.exists():
        path.write_bytes(cli.client.value(value.value_id).data)
    return str(path)
