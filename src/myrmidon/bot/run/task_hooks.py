"""Calls the hooks around a command, and adds cost and overhead to its result.

on_before_task may change the command; if it fails or leaves something that cannot be started, the command runs
unchanged. Without hooks this costs a few comparisons per command.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.run.task_runner import TaskRunner
from myrmidon.bot.system import clock


class TaskHooks:
    """Used by the thread that runs commands. ``succeeded``: a command has ended with exit code 0 in this process."""

    def __init__(self, status: BotStatus, runner: TaskRunner, run_queue: RunQueue) -> None:
        self.status = status
        self.runner = runner
        self.run_queue = run_queue
        self.succeeded = False

    def prepare(self) -> None:
        """Set or clear the runner's hook before each command, because hooks may have changed since the last one."""
        self.runner.before_task = self._run_before_task if self.status.hooks.has("on_before_task") else None

    def _run_before_task(
        self, need_file: Callable[[], str], argv: list[str], env: dict[bytes, bytes]
    ) -> tuple[list[str], dict[bytes, bytes]]:
        status = self.status
        new_argv, variables = list(argv), {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        if not status.hooks.call("on_before_task", status.bot, need_file(), new_argv, variables):
            return argv, env
        if not new_argv or not all(isinstance(argument, str) for argument in new_argv) or not _is_str_dict(variables):
            status.report_error("on_before_task left an invalid command or environment; the command runs unchanged")
            return argv, env
        return new_argv, {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}

    def complete_record(self, task: dict[str, Any], record: dict[str, Any]) -> None:
        """Add the bot's overhead and the cost to a result; turn one caused by a shutdown into a fault."""
        report = record["report"]
        if report["type"] != "finish":
            return
        duration, code = report["duration"], report["exit_code"]
        if code == 0:
            self.succeeded = True
        elif code == -signal.SIGTERM and self.run_queue.signals and not (report.get("killed") or _timed_out(report)):
            self._as_shutdown_fault(record)
            return
        overhead = max(clock.boottime() - task["begun"] - duration, 0.0)
        report["stats"] = {"bot_overhead": round(overhead, 6), **report["stats"]}
        report["cost_usd"] = duration * self.status.usd_per_s

    def _as_shutdown_fault(self, record: dict[str, Any]) -> None:
        """Replace the report: a machine that shuts down sends SIGTERM to the command and to the bot alike."""
        report = record["report"]
        record["report"] = {
            "type": "fault",
            "run": report["run"],
            "token": report["token"],
            "kind": "shutdown",
            "message": "the machine was shut down: the command and the bot received SIGTERM",
        }

    def after_task(self, task: dict[str, Any], record: dict[str, Any] | None) -> None:
        """Call on_after_task. The result is queued already, so a slow hook delays the next command but no report."""
        status = self.status
        if not status.hooks.has("on_after_task"):
            return
        report = record["report"] if record is not None else {"type": "lost"}
        internal = report["type"] != "finish"
        failed = internal or report.get("exit_code") != 0 or _timed_out(report)
        summary = {
            "task_id": task["run"],
            "exit_code": report.get("exit_code"),
            "duration": report.get("duration"),
            "hard_timeout": bool(report.get("hard_timeout")),
            "io_timeout": bool(report.get("io_timeout")),
            "killed": bool(report.get("killed")),
            "message": report.get("message", ""),
        }
        dimensions = task.get("dimensions") or {}
        status.hooks.call("on_after_task", status.bot, failed, internal, dimensions, summary)


def _timed_out(report: dict[str, Any]) -> bool:
    return bool(report.get("hard_timeout") or report.get("io_timeout"))


def _is_str_dict(variables: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) and isinstance(value, str) for name, value in variables.items())
