"""Makes the records of ended runs: the report for the server, and the log chunks that go with it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from myrmidon.bot.run.command import Command
from myrmidon.bot.system import clock, filesystem


def finish_record(command: Command, code: int, duration: float) -> dict[str, Any]:
    """The record of a command that has ended, by itself or because it was stopped."""
    report: dict[str, Any] = {
        "type": "finish",
        "run": command.run,
        "token": command.token,
        "exit_code": code,
        "duration": round(duration, 6),
        "stdout_size": command.sizes[0],
        "stderr_size": command.sizes[1],
    }
    if command.end_reason:
        report[command.end_reason] = True
    return {"report": report, "logs": command.log_chunks()}


def failed_record(command: Command, message: str, code: int = 1) -> dict[str, Any]:
    """The record of a command that could not run because of the task; its stderr is the message."""
    text = f"myrmidon: {message}\n".encode(errors="replace")
    stream = 0 if command.task.get("merge_output") else 1
    command.sizes[stream] = len(text)
    record = finish_record(command, code, clock.boottime() - command.begun)
    record["report"].update(message=message, start_failed=True)
    record["logs"] = [[stream, 0, b64encode(text).decode()]]
    return record


def os_error_record(command: Command, error: OSError) -> dict[str, Any]:
    """The record of a run that failed by an error of the bot's system."""
    kind = "disk_full" if filesystem.disk_is_full(error) else "bot_error"
    return fault_record(command, kind, f"the bot could not run the command: {error}")


def fault_record(command: Command, kind: str, message: str) -> dict[str, Any]:
    """The record of a run that the bot could not do; the server decides by its kind what follows."""
    report = {"type": "fault", "run": command.run, "token": command.token, "kind": kind, "message": message}
    return {"report": report, "logs": command.log_chunks()}
