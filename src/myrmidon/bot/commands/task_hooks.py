"""Calls the hooks around commands.

on_before_task may change the command; if it fails or leaves something that cannot be started, the command runs
unchanged. Without hooks this costs a few comparisons per command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.protocol import FinishReport, Record
from myrmidon.bot.run.run import Run


class TaskHooks:
    """Used by the thread that runs commands. Hooks may change between two of them."""

    def __init__(self, status: BotStatus) -> None:
        self.status = status

    def has_before_task(self) -> bool:
        hooks = self.status.hooks
        return bool(hooks.functions) and hooks.has("on_before_task")

    def before_task(
        self, need_file: Callable[[], str], argv: list[str], env: dict[bytes, bytes]
    ) -> tuple[list[str], dict[bytes, bytes]]:
        """Argv and environment as changed by the hook. ``need_file`` creates the file that describes the bot."""
        status = self.status
        new_argv, variables = list(argv), {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        if not status.hooks.call("on_before_task", status.bot, need_file(), new_argv, variables):
            return argv, env
        if not new_argv or not all(isinstance(argument, str) for argument in new_argv) or not _is_str_dict(variables):
            status.report_error("on_before_task left an invalid command or environment; the command runs unchanged")
            return argv, env
        return new_argv, {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}

    def after_task(self, run: Run, record: Record | None) -> None:
        """Call on_after_task. The result is queued already, so a slow hook delays the next command but no report."""
        hooks = self.status.hooks
        if not hooks.functions or not hooks.has("on_after_task"):
            return
        report = record.report if record is not None else None
        is_internal = not isinstance(report, FinishReport)
        finish = report if isinstance(report, FinishReport) else FinishReport(run.id, run.token)
        summary = {
            "task_id": run.id,
            "exit_code": finish.exit_code,
            "duration": None if is_internal else finish.duration,
            "hard_timeout": finish.hard_timeout,
            "io_timeout": finish.io_timeout,
            "killed": finish.killed,
            "message": report.message if report is not None else "",
        }
        has_failed = finish.exit_code != 0 or finish.hard_timeout or finish.io_timeout
        hooks.call("on_after_task", self.status.bot, has_failed, is_internal, run.task.dimensions, summary)


def _is_str_dict(variables: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) and isinstance(value, str) for name, value in variables.items())
