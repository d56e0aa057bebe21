"""Child processes that end with this one: started apart from the terminal, stopped in order, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def start(command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A child whose output goes to a file. Ctrl-C does not reach it: whoever started it stops it.

    Where the system can, it is told to stop when its parent dies, however that happens.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            preexec_fn=_end_with_parent(),  # noqa: PLW1509 - called before any thread is started
        )


def _end_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return ask


def stop(children: Sequence[subprocess.Popen[bytes]], *, within_s: float, again_s: float = 0.0) -> None:
    """SIGTERM to all, once more after a while to those that want to be asked twice, and SIGKILL when time is up."""
    until = time.monotonic() + within_s
    left = _ask(children, again_s or within_s)
    if again_s:
        left = _ask(left, until - time.monotonic())
    for child in left:
        child.kill()
        child.wait()


def _ask(children: Sequence[subprocess.Popen[bytes]], wait_s: float) -> list[subprocess.Popen[bytes]]:
    """SIGTERM to all; those that have not ended after a while."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + wait_s
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
    return [child for child in children if child.poll() is None]


def log_tail(log: Path, start: int = 0, count: int = 15) -> str:
    """How a log ends, for a person who wants to know why a child did: its own sentences before its records."""
    try:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    plain = [line for line in lines if not line.startswith("{")]
    return "\n".join((plain or lines)[-count:])


def log_size(log: Path) -> int:
    """Where the next words of a log will begin."""
    return log.stat().st_size if log.exists() else 0
