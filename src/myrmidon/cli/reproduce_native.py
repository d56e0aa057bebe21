"""`task reproduce` of a function in a shared library: where the library is here, and the debugger."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from myrmidon.executor.native_functions import find_library
from myrmidon.functions.native_errors import LibraryNotFound
from myrmidon.functions.native_task import FOLDERS_VARIABLE

if TYPE_CHECKING:
    from myrmidon.wire.function_calls import FunctionCall

PROGRAM: Final = ("-m", "myrmidon.executor.reproduce")
"""What runs one call, after the interpreter and before the folder."""
_STOPS: Final = {"CPP": "catch throw", "RUST": "break rust_panic"}
"""Where gdb stops beside signals: where the function raises."""


def require_library(call: FunctionCall) -> None:
    """Refuse a function of a library that is installed on the bots, unless it is here too."""
    if call.code:
        return
    try:
        find_library(call.package_name, "")
    except LibraryNotFound:
        raise click.UsageError(
            f"{call.package_name} is installed on the bots and was not sent with the job. Copy it here, and name its "
            f"folder: {FOLDERS_VARIABLE}=DIR myrmidon task reproduce {call.task_id}"
        ) from None


def require_gdb(task_id: str) -> str:
    """The path of gdb. Raises a usage error that says what to do without it."""
    found = shutil.which("gdb")
    if found is None:
        program = shlex.join([sys.executable, *PROGRAM])
        raise click.UsageError(
            "--pdb needs gdb for a function of a shared library, and gdb is not installed here. Install it, or use "
            f"another debugger: `myrmidon task reproduce {task_id} --folder DIR` keeps the library and the inputs, "
            f"and `{program} DIR` is the program to debug."
        )
    return found


def gdb_options(call: FunctionCall) -> list[str]:
    """Options that start the program and stop it where the function crashes or raises."""
    commands = ["set breakpoint pending on", _STOPS[call.language], "run"]
    return ["-q", *[word for one in commands for word in ("-ex", one)], "--args"]


def debug(words: Sequence[str], work: Path, env: Mapping[str, str], stdout: Any) -> int:
    """Run a debugger in the foreground; its exit code. Ctrl-C is for it, not for this program."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
    try:
        return subprocess.run(words, cwd=work, env=env, stdout=stdout, check=False).returncode  # noqa: S603 - gdb
    finally:
        signal.signal(signal.SIGINT, before)
