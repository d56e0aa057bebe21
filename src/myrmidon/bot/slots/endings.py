"""How runs of functions end: the record of an answer or of the death of a process, with reasons that a person reads."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from myrmidon.bot.protocol import Record
from myrmidon.bot.run import reports
from myrmidon.bot.run.run import Run
from myrmidon.bot.slots.executor_process import ExecutorProcess
from myrmidon.bot.system import filesystem
from myrmidon.bot.system.filesystem import read_file
from myrmidon.executor import process_end

_MEGABYTE = 1 << 20


def of_end(run: Run, now: float, exit_code: int = 1) -> Record | None:
    """The record of a run that was told to end, and has."""
    where = _native_name(run)
    message = f"timed out after {run.task.execution_timeout_s} s{f', in {where}' if where else ''}"
    return reports.of_end(run, now - run.begun, exit_code, message)


def of_error(run: Run, seconds: float, answer: dict[str, Any], folder: str) -> Record:
    """The record of a run whose function has raised an exception. Raises KeyError or ValueError."""
    error = dict(answer["error"])
    name = str(error.get("type", "")).rpartition(".")[2]
    message = str(answer.get("message") or f"{name}: {error.get('message', '')}")
    if filesystem.is_nearly_full(folder):
        return reports.fault(run, "disk_full", f"the function failed while the disk was full: {message}")
    return reports.finish(run, seconds, 1, message=message, error=error)


def of_death(
    executor: ExecutorProcess, run: Run, status: int | None, now: float, *, by_kernel: bool, stopping: bool
) -> Record | None:
    """The record of a run whose process has ended; ``status`` is None if it could not be killed.

    ``by_kernel``: the kernel has killed some process for lack of memory; ``stopping``: the bot was told to stop.
    """
    duration = now - run.begun
    if status is None:
        return reports.fault(run, "bot_error", "the process of the function could not be killed")
    if run.end_reason:
        return of_end(run, now, status)
    if executor.ending == "memory":
        return _out_of_memory(run, duration)
    if executor.ending == "protocol" or (executor.ending == "closed" and executor.was_killed):
        message = "the function has damaged the pipe between its process and the bot"
        return reports.finish(run, duration, 1, message=message)
    if not executor.is_ready:
        return reports.fault(run, "bot_error", f"no process for functions starts: {executor.last_words()}")
    if status == -signal.SIGTERM and stopping:
        return reports.fault(run, "shutdown", "the machine was shut down: the function received SIGTERM")
    message = process_end.death_message(status, by_kernel=by_kernel, native=_native_name(run))
    return reports.finish(run, duration, status or 1, message=message)


def _out_of_memory(run: Run, duration: float) -> Record:
    """With the error that the function would have raised if it had been told in time."""
    message = f"more than {run.memory_bytes // _MEGABYTE} MB"
    bases = ["builtins.MemoryError", "builtins.Exception"]
    error = {"type": "builtins.MemoryError", "message": message, "traceback": "", "bases": bases}
    return reports.finish(run, duration, 1, message=f"out of memory: {message}", error=error)


def _native_name(run: Run) -> str:
    """The function and its library, if it is in one."""
    function = run.task.function
    if function is None:
        return ""
    return process_end.native_name(function.func_name, function.package_name, function.language)


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed for lack of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_file("/proc/vmstat").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
    return 0
