"""Sentences about a process of functions that ended unexpectedly."""

from __future__ import annotations

import contextlib
import signal

_SIGNAL_MEANINGS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGBUS: "bus error",
    signal.SIGTERM: "terminated",
}


def death_message(status: int, *, by_kernel: bool, native: str = "") -> str:
    """One sentence for an exit status as ``subprocess`` has it; ``native`` is what ``native_name`` says."""
    where = f", in {native}" if native else ""
    if status == -signal.SIGKILL:
        if by_kernel:
            return f"out of memory: the kernel has killed the process of the function{where}"
        return f"killed by signal 9: by a person, or by the kernel because memory ran out{where}"
    if status < 0:
        meaning = _SIGNAL_MEANINGS.get(-status)  # type: ignore[call-overload]
        if native:
            meaning = ", ".join(filter(None, (_signal_name(-status), meaning)))
        return f"killed by signal {-status}{f' ({meaning})' if meaning else ''}{where}"
    return f"the function has ended its process with exit code {status}{where}"


def native_name(function: str, library: str, language: str) -> str:
    """The function and its library, if it is in one: a crash has no traceback that would name them."""
    return "" if (language or "PYTHON") == "PYTHON" else f"{function} of {library}"


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return ""
