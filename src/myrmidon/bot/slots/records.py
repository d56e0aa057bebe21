"""The records of function runs that have ended, with reasons that a person understands."""

from __future__ import annotations

import contextlib
from typing import Any

from myrmidon.bot.slots.function_run import FunctionRun
from myrmidon.bot.slots.problems import Problem
from myrmidon.bot.system.filesystem import read_file
from myrmidon.executor import process_end

_MEGABYTE = 1 << 20


def finish(run: FunctionRun, duration: float, exit_code: int) -> dict[str, Any]:
    """The record of a run that was carried out, with or without success."""
    report: dict[str, Any] = {
        "type": "finish",
        "run": run.run,
        "token": run.token,
        "exit_code": exit_code,
        "duration": duration,
        "stdout_size": run.sizes[0],
        "stderr_size": run.sizes[1],
    }
    if run.end_reason in ("killed", "hard_timeout"):
        report[run.end_reason] = True
    return {"report": report, "logs": run.log_chunks() if run.sizes != [0, 0] else []}


def failure(run: FunctionRun, duration: float, message: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
    """The record of a run that has failed with this sentence."""
    record = finish(run, duration, 1)
    record["report"]["message"] = message
    if error is not None:
        record["report"]["error"] = error
    return record


def fault(run: FunctionRun, kind: str, message: str) -> dict[str, Any]:
    """The record of a run that the bot could not carry out; the server may retry it elsewhere."""
    return {"report": fault_report(run.task, kind, message), "logs": run.log_chunks()}


def fault_report(task: dict[str, Any], kind: str, message: str) -> dict[str, Any]:
    return {"type": "fault", "run": task["run"], "token": task["token"], "kind": kind, "message": message}


def problem(run: FunctionRun, duration: float, found: Problem) -> dict[str, Any]:
    """The record of a run whose files could not be fetched or stored."""
    return fault(run, *found) if found.kind else failure(run, duration, found.message)


# ---------------------------------------------------------------- reasons


def error_message(answer: dict[str, Any]) -> str:
    """One sentence for an error that a process has reported."""
    error = answer["error"]
    name = str(error.get("type", "")).rpartition(".")[2]
    return str(answer.get("message") or f"{name}: {error.get('message', '')}")


def native_name(run: FunctionRun) -> str:
    """The function and its library, if it is in one."""
    function = run.task["function"]
    return process_end.native_name(function["func_name"], function["package_name"], function.get("language") or "")


def memory_message(limit_bytes: int) -> str:
    return f"out of memory: more than {limit_bytes // _MEGABYTE} MB"


def memory_error(limit_bytes: int) -> dict[str, Any]:
    """What the function would have raised if it had been told in time."""
    bases = ["builtins.MemoryError", "builtins.Exception"]
    message = f"more than {limit_bytes // _MEGABYTE} MB"
    return {"type": "builtins.MemoryError", "message": message, "traceback": "", "bases": bases}


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed for lack of memory; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_file("/proc/vmstat").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
    return 0
