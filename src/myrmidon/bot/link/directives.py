"""What the server or a hook has ordered besides tasks: update, restart, reboot, end. Carried out when nothing runs.

A bot ends what it runs, and delivers it, before it obeys: no order costs a task. An update that fails leaves the bot as
it is. A reboot that does not happen is asked for three times, and then the bot is of no use until a person has come.
"""

from __future__ import annotations

import logging
import os
import subprocess
from typing import Any

from myrmidon.bot.install import exit_codes, updater
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.http_client import HEALTH_PATH, HttpClient, HttpError, Interrupted, NoResponse
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.system import host

DIRECTIVES = ("update", "restart", "terminate")
REBOOT_S = float(os.environ.get("MYRMIDON_BOT_REBOOT_S") or 300.0)
REBOOT_ATTEMPTS = 3

log = logging.getLogger("myrmidon.bot")


class Directives:
    """``order`` is what is to be done next. ``parting`` is the task by which the server has told the bot to end."""

    def __init__(
        self,
        startup: StartupConfig,
        run_queue: Duty,
        status: BotStatus,
        http: HttpClient,
        reporter: EventReporter,
    ) -> None:
        self.startup = startup
        self.run_queue = run_queue
        self.status = status
        self.http = http
        self.reporter = reporter
        self.pending: str | None = None
        self.reason = ""
        self.target_version = ("", "")
        self.terminate_task: dict[str, Any] | None = None

    def accept(self, answer: dict[str, Any]) -> None:
        """An order of the server."""
        directive = answer.get("order")
        if directive in DIRECTIVES:
            log.info("ordered to %s", directive)
            self._set(directive, "as ordered")
            self.target_version = (answer.get("version") or "", answer.get("zip_hmac") or "")

    def accept_hook_request(self) -> None:
        """A wish of a hook."""
        if self.status.requested_action is not None:
            (action, reason), self.status.requested_action = self.status.requested_action, None
            log.info("a hook asks to %s: %s", action, reason)
            self._set(action, reason)

    def accept_terminate_task(self, task: dict[str, Any]) -> None:
        """A task that only says: end."""
        log.info("told to end by the task %s", task["run"])
        self.terminate_task = task
        self._set("terminate", "as ordered")

    def _set(self, directive: str, reason: str) -> None:
        self.pending, self.reason = directive, reason
        self.run_queue.give_back()

    def may_claim(self) -> bool:
        """Whether there is nothing that more tasks would put off."""
        return not (self.run_queue.signals or self.pending)

    def terminate_report(self) -> dict[str, Any] | None:
        """The result of the task that says: end; given once, before that is done."""
        if self.pending != "terminate" or self.terminate_task is None:
            return None
        task, self.terminate_task = self.terminate_task, None
        report = {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": 0, "duration": 0.0}
        return {"report": {**report, "stdout_size": 0, "stderr_size": 0}, "logs": []}

    # ---------------------------------------------------------------- carrying out

    def execute(self) -> None:
        """Everything is delivered and nothing runs: now is the time."""
        directive, self.pending = self.pending, None
        if directive == "update":
            try:
                self._update(*self.target_version)
            except (NoResponse, Interrupted, HttpError) as error:
                if not isinstance(error, HttpError) or error.is_transient:
                    self.pending = directive  # the server would say it again in minutes only
                raise
        elif directive == "restart":
            self.report_shutdown(f"restarting: {self.reason}")
            self.run_queue.end(exit_codes.RESTART)
        elif directive == "terminate":
            self.report_shutdown(f"ended: {self.reason}", ended=True)
            self.run_queue.end(0)
        elif directive == "reboot":
            self._reboot()

    def report_shutdown(self, message: str, *, ended: bool = False) -> None:
        """``ended``: nobody needs to wait for this bot's return."""
        self._report_final("bot_shutdown", message, ended=ended)

    def _report_final(self, kind: str, message: str, *, ended: bool = False) -> None:
        """The last hook, what is to be said of it, and then what is done."""
        self.status.hooks.call("on_bot_shutdown", self.status.bot)
        self.reporter.send_pending()
        self.reporter.send(kind, message, ended=ended)

    def _update(self, version: str, signature: str) -> None:
        """Fetch, check and try the new zip; whatever is wrong with it, this one goes on."""
        if version == self.status.bot.bot_version:
            return
        folder = self.startup.folder
        if updater.is_bad(folder, version):
            self.reporter.report_error(
                f"the update to {version} is put off: it was not fine when it was tried", version
            )
            return
        try:
            zipped = self.http.call("GET", f"/bot/v1/zip/{version}", wait_s=60.0)
            updater.check(zipped, version, signature, self.startup.credential)
            updater.install(folder, zipped, version, self.startup.server)
        except updater.BadZip as error:
            is_bad = isinstance(error, updater.SelfTestFailed) or (
                isinstance(error, updater.ServerUnreachable) and self._server_answers()
            )
            if is_bad:
                updater.record_bad(folder, version)
            self.reporter.report_error(f"the update to {version} failed: {error}", version if is_bad else "")
        except OSError as error:
            self.reporter.report_error(f"the update to {version} failed: {error}")
        else:
            self.report_shutdown(f"updating to {version}")
            self.run_queue.end(exit_codes.RESTART)

    def _server_answers(self) -> bool:
        """Whether the server answers this zip, if not the other one. Any answer will do."""
        try:
            self.http.call("GET", HEALTH_PATH)
        except HttpError:
            return True
        except NoResponse:
            return False
        return True

    def _reboot(self) -> None:
        """Only the machine's end ends this well. A signal meanwhile ends the bot at once: the machine goes down."""
        reason = self.reason
        self._report_final("bot_rebooting", reason)
        self.run_queue.rebooting = True
        for _ in range(REBOOT_ATTEMPTS):
            try:
                host.reboot()
            except (OSError, subprocess.SubprocessError) as error:
                self.reporter.report_error(f"the machine cannot be rebooted: {error}")
            self.run_queue.rest(REBOOT_S)
            if self.run_queue.over or self.run_queue.signals:
                return
        self.run_queue.rebooting = False
        self.status.quarantine_reasons["reboot"] = f"the machine was asked to reboot and did not: {reason}"[:300]
        self.reporter.report_error(self.status.quarantine_reasons["reboot"])
