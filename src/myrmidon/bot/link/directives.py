"""Directives from the server or a hook: update, restart, terminate, reboot. Executed while no command runs.

The running command finishes and its result is delivered first, so no directive costs a task. A bot that fails to update
keeps its version. A reboot is requested up to three times; then the bot quarantines itself until it is restarted.
"""

from __future__ import annotations

import logging
import os
import subprocess

from myrmidon.bot.install import exit_codes, updater
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link import http_client
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.protocol import Answer
from myrmidon.bot.run import reports
from myrmidon.bot.run.run import Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import host

DIRECTIVES = ("update", "restart", "terminate")
REBOOT_S = float(os.environ.get("MYRMIDON_BOT_REBOOT_S") or 300.0)
REBOOT_ATTEMPTS = 3

log = logging.getLogger("myrmidon.bot")


class Directives:
    """``pending`` is the directive to execute next, ``reason`` why.

    ``target_version``: digest and signature of an update. ``terminate_run``: of the task that requests the bot's end.
    """

    def __init__(
        self,
        startup: StartupConfig,
        run_queue: RunQueue,
        status: BotStatus,
        http: HttpClient,
        reporter: EventReporter,
        journal: ResultJournal,
    ) -> None:
        self.startup = startup
        self.run_queue = run_queue
        self.status = status
        self.http = http
        self.reporter = reporter
        self.journal = journal
        self.pending: str | None = None
        self.reason = ""
        self.target_version = ("", "")
        self.terminate_run: Run | None = None

    def accept(self, answer: Answer) -> bool:
        """Accept a directive in an answer of the server; whether it is another one than the pending one."""
        directive = answer.order
        if directive is None or directive not in DIRECTIVES:
            return False
        is_new = directive != self.pending
        if is_new:
            log.info("the server requests: %s", directive)
        self._set(directive, "requested by the server")
        self.target_version = (answer.version or "", answer.zip_hmac or "")
        return is_new

    def accept_hook_request(self) -> None:
        """Accept a reboot or restart that a hook has requested."""
        if self.status.requested_action is not None:
            (action, reason), self.status.requested_action = self.status.requested_action, None
            log.info("a hook requests %s: %s", action, reason)
            self._set(action, reason)

    def accept_terminate_task(self, run: Run) -> None:
        """Accept a task that has no command and terminates the bot."""
        log.info("terminated by task %s", run.id)
        self.terminate_run = run
        self._set("terminate", "requested by the server")

    def _set(self, directive: str, reason: str) -> None:
        self.pending, self.reason = directive, reason
        self.run_queue.return_queued()

    def _finish_terminate_task(self, run: Run) -> None:
        """Queue the result of the terminate task; it is delivered before the bot ends."""
        self.terminate_run = None
        record = reports.finish(run, 0.0, 0)
        self.journal.add(record)
        self.run_queue.add_result(record)

    # ---------------------------------------------------------------- execution

    def execute(self) -> None:
        """Execute the pending directive. Called when no command runs and all results are delivered."""
        if self.pending == "terminate" and self.terminate_run is not None:
            self._finish_terminate_task(self.terminate_run)
            return
        directive, self.pending = self.pending, None
        if directive == "update":
            try:
                self._update(*self.target_version)
            except (NoResponse, Interrupted, HttpError) as error:
                if not isinstance(error, HttpError) or error.is_transient:
                    self.pending = directive  # the server repeats it only after minutes
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
        """Send bot_shutdown as the last event. ``ended``: the bot will not return by itself."""
        self._report_final("bot_shutdown", message, ended=ended)

    def _report_final(self, kind: str, message: str, *, ended: bool = False) -> None:
        """Call on_bot_shutdown, send what it has reported, then the event."""
        self.status.hooks.call("on_bot_shutdown", self.status.bot)
        self.reporter.send_pending()
        self.reporter.send(kind, message, ended=ended)

    def _update(self, version: str, signature: str) -> None:
        """Download, verify, test and install a zip, and restart. On any failure, report it and go on with this zip."""
        if version == self.status.bot.bot_version:
            return
        folder = self.startup.folder
        if updater.is_bad(folder, version):
            # Not reported as bad once more: that would ban a release that an administrator has allowed meanwhile.
            self.reporter.report_error(f"update to {version} postponed: it failed less than an hour ago")
            return
        try:
            zipped = self.http.call("GET", f"/bot/v1/zip/{version}", wait_s=60.0)
            updater.check(zipped, version, signature, self.startup.credential)
            self._install(zipped, version)
        except updater.BadZip as error:
            is_bad = isinstance(error, updater.SelfTestFailed)
            if is_bad:
                updater.record_bad(folder, version)
            self.reporter.report_error(f"update to {version} failed: {error}", version if is_bad else "")
        except OSError as error:
            self.reporter.report_error(f"update to {version} failed: {error}")
        else:
            self.report_shutdown(f"updating to {version}")
            self.run_queue.end(exit_codes.RESTART)

    def _install(self, zipped: bytes, version: str) -> None:
        """Install a zip. Raises SelfTestFailed if it fails twice to reach the server although the running zip can.

        Twice, because a server that was away for a moment, for example without its database, fails the first test.
        """
        if self._try_install(zipped, version):
            failure = self._try_install(zipped, version)
            if failure:
                raise updater.SelfTestFailed(str(failure)) from failure

    def _try_install(self, zipped: bytes, version: str) -> updater.ServerUnreachable | None:
        """Install a zip; the error if it cannot reach the server and the running zip can."""
        try:
            updater.install(self.startup.folder, zipped, version, self.startup.server)
        except updater.ServerUnreachable as error:
            try:
                http_client.check_reachable(self.startup.server)
            except NoResponse:
                raise error from None  # the server is at fault
            return error
        return None

    def _reboot(self) -> None:
        """Request a reboot until the machine goes down; after the last attempt, quarantine the bot.

        While ``rebooting`` is set, a stop signal ends the bot at once: it means that the machine goes down.
        """
        reason = self.reason
        self._report_final("bot_rebooting", reason)
        self.run_queue.rebooting = True
        for _ in range(REBOOT_ATTEMPTS):
            try:
                host.reboot()
            except (OSError, subprocess.SubprocessError) as error:
                self.reporter.report_error(f"cannot reboot the machine: {error}")
            self.run_queue.pause(REBOOT_S)
            if self.run_queue.stopped or self.run_queue.signals:
                return
        self.run_queue.rebooting = False
        self.status.quarantine_reasons["reboot"] = f"the machine did not reboot when requested: {reason}"[:300]
        self.reporter.report_error(self.status.quarantine_reasons["reboot"])
