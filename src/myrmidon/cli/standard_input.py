"""Standard input of `run` and `trigger`: passed on to the command on request, and otherwise not silently ignored."""

from __future__ import annotations

import base64
import fcntl
import os
import stat
import sys
import termios
from pathlib import Path
from typing import Final

import click

from myrmidon.cli import output

MAX_BYTES: Final = 1 << 20


def read_stdin() -> str:
    """All of standard input in base64; the task has it from the start, so it is read to its end first."""
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise click.UsageError("Standard input has more than 1 MiB; let the command read it from elsewhere.")
    return base64.b64encode(data).decode()


def read_file(file: str, parameter: str) -> bytes:
    """The content of a file, or of standard input for ``-``; an error names the parameter of the command."""
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}.", param_hint=parameter) from None


def read_text(file: str, parameter: str) -> str:
    """The same as text; a byte order mark is left out."""
    try:
        return read_file(file, parameter).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise click.BadParameter(f"{shown(file)} is not UTF-8.", param_hint=parameter) from None


def shown(file: str) -> str:
    """The name of a file in messages."""
    return "stdin" if file == "-" else file


def warn_if_ignored() -> None:
    """Say that standard input is not passed on, if there is any."""
    if has_data(0):
        output.echo("Standard input is not passed on to the command; use -i (--stdin) to pass it on.", err=True)


def has_data(handle: int) -> bool:
    """Whether a file, pipe or socket has data that can be read at once. Terminals and /dev/null have none."""
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISREG(kind):
            return os.fstat(handle).st_size > os.lseek(handle, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            return any(fcntl.ioctl(handle, termios.FIONREAD, bytes(4)))
    except OSError:  # closed, or of a kind that does not tell
        return False
    return False
