"""Child processes that do not outlive this one and do not receive the terminal's Ctrl-C."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def start(command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a child in its own session, with its output appended to a private file. The caller must stop it.

    On Linux it also gets SIGTERM when this process dies, whatever the cause.
    """
    with open(log, "ab", opener=partial(os.open, mode=0o600)) as out:
        return subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            preexec_fn=_request_parent_death_signal(),  # noqa: PLW1509 - called before any thread is started
        )


def _request_parent_death_signal() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return in_child


def stop(children: Sequence[subprocess.Popen[bytes]], *, within_s: float, repeat_after_s: float = 0.0) -> None:
    """Stop all children: SIGTERM, a second SIGTERM after repeat_after_s if set, SIGKILL after within_s."""
    until = time.monotonic() + within_s
    running = _terminate(children, repeat_after_s or within_s)
    if repeat_after_s:
        running = _terminate(running, until - time.monotonic())
    for child in running:
        child.kill()
        child.wait()


def _terminate(children: Sequence[subprocess.Popen[bytes]], wait_s: float) -> list[subprocess.Popen[bytes]]:
    """Send SIGTERM to all; returns those that are still running after wait_s."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + wait_s
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
    return [child for child in children if child.poll() is None]


def log_tail(log: Path, start: int = 0, count: int = 15) -> str:
    """The last lines of a log, for an error message. JSON records are left out if there are other lines."""
    try:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    plain = [line for line in lines if not line.startswith("{")]
    return "\n".join((plain or lines)[-count:])


def log_size(log: Path) -> int:
    """The size of a log; what is written later begins at this offset."""
    return log.stat().st_size if log.exists() else 0
