"""What goes along with every command: the hooks before and after it, its price, and how its end is to be read.

For a bot without such hooks this is a few comparisons per command. A hook before a command may change it; when it fails
or leaves something that cannot be started, the command runs as it was sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from myrmidon.bot.machine.status import Standing
from myrmidon.bot.run.command import QUICK_S
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.run.task_runner import Runner
from myrmidon.bot.system import host

LEAST_USD = 1e-6
"""What costs less is not worth a word."""


class Escort:
    """Used by the thread that runs. ``succeeded`` tells whether this process has run a command well."""

    def __init__(self, standing: Standing, runner: Runner, duty: Duty) -> None:
        self.standing = standing
        self.runner = runner
        self.duty = duty
        self.succeeded = False

    def before(self) -> None:
        """The hooks may have changed since the last command."""
        self.runner.before_task = self._ask_before if self.standing.hooks.has("on_before_task") else None

    def _ask_before(
        self, need_file: Callable[[], str], argv: list[str], env: dict[bytes, bytes]
    ) -> tuple[list[str], dict[bytes, bytes]]:
        standing = self.standing
        words, texts = list(argv), {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        if not standing.hooks.call("on_before_task", standing.bot, need_file(), words, texts):
            return argv, env
        if not words or not all(isinstance(word, str) for word in words) or not _are_texts(texts):
            standing.complain("on_before_task has left a command or an environment that cannot be started")
            return argv, env
        return words, {os.fsencode(name): os.fsencode(value) for name, value in texts.items()}

    def complete(self, task: dict[str, Any], record: dict[str, Any]) -> None:
        """Add to a result what only the bot knows."""
        report = record["report"]
        if report["type"] != "finish":
            return
        duration, code = report["duration"], report["exit_code"]
        if code == 0:
            self.succeeded = True
        elif code == -signal.SIGTERM and self.duty.signals and not (report.get("killed") or _timed_out(report)):
            self._blame_shutdown(record)
            return
        if duration > QUICK_S or "stats" in report:
            overhead = max(host.awake() - task["begun"] - duration, 0.0)
            report["stats"] = {"bot_overhead": round(overhead, 6), **report.get("stats", {})}
        cost = duration * self.standing.usd_per_s
        if cost >= LEAST_USD:
            report["cost_usd"] = round(cost, 9)

    def _blame_shutdown(self, record: dict[str, Any]) -> None:
        """A machine that goes down asks everybody to end, the command and the bot: that is no fault of the command."""
        report = record["report"]
        record["report"] = {
            "type": "fault",
            "run": report["run"],
            "token": report["token"],
            "kind": "shutdown",
            "message": "the machine went down: the command was asked to end, and so was the bot",
        }

    def after(self, task: dict[str, Any], record: dict[str, Any] | None) -> None:
        """The result is on its way already: a slow hook delays the next command, and no report."""
        standing = self.standing
        if not standing.hooks.has("on_after_task"):
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
        standing.hooks.call("on_after_task", standing.bot, failed, internal, dimensions, summary)


def _timed_out(report: dict[str, Any]) -> bool:
    return bool(report.get("hard_timeout") or report.get("io_timeout"))


def _are_texts(texts: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) and isinstance(value, str) for name, value in texts.items())
