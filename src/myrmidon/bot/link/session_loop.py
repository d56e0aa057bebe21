"""The session loop: decides what the bot sends to the server next, in one thread and over one connection.

Short tasks are claimed in batches: their results are reported together, and more are claimed before the queue is empty.
Of tasks that take long, the bot holds only one. No other thread waits for the network. The loop survives every
exception, because only a bot that talks to the server can be updated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from typing import Any

from myrmidon.bot.install import exit_codes, updater
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.exchange import Exchange
from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse, retry_delay
from myrmidon.bot.link.log_uploader import MAX_LIVE_CHUNKS, LogUploader
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.command import MAX_INLINE_BYTES
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, host

REPORT_START_AFTER_S = 0.2  # a command that runs longer is reported as started
REPORT_AFTER_S = 0.15  # how long results may wait for others to share a request
LAST_REPORT_AFTER_S = 0.05  # the same when the server has no more tasks
GIVE_BACK_AFTER_S = 0.5  # queued tasks behind a command that runs longer go to other bots
LOG_INTERVAL_S = 0.5  # between two uploads of the output of a running command
SHUTDOWN_S = 10.0  # how long a stopped bot tries to deliver results
SHUTDOWN_MARGIN_S = 3.0  # time limit of a call during shutdown
SHUTDOWN_RETRY_S = 0.5  # pause between calls during shutdown
SHUTDOWN_FAILURES = 2  # after so many failed calls, a stopped bot without results ends
PROBE_AFTER_S = 2.0  # a connection that was silent for longer may be dead
QUIET_AFTER_S = 2.0  # without output for longer, a command's bot waits at the server for a stop
QUARANTINED_POLL_S = 5.0  # length of a poll while quarantined, so that the bot soon checks itself again
MAX_REJECTIONS = 5  # then a request that the server rejects is dropped
REJECTED = (400, 413, 422)

log = logging.getLogger("myrmidon.bot")


class SessionLoop:
    """``has_session``: the handshake was accepted. ``start_reported``: the last run reported as started.

    ``zip_is_good``: the running zip is the known good one. ``task_succeeded``: this process has run a task that ended
    with exit code 0. ``suspect_tasks``: tasks that ran when an earlier process died, and may have killed it.
    """

    def __init__(
        self,
        startup: StartupConfig,
        run_queue: RunQueue,
        *,
        journal: ResultJournal,
        spool: LogSpool,
        caches: NamedCaches,
        watcher: CommandWatcher,
    ) -> None:
        self.startup = startup
        self.run_queue = run_queue
        self.journal = journal
        self.spool = spool
        self.watcher = watcher
        self.started = clock.boottime()
        self.session = startup.next_session()
        self.version = updater.own_version()
        self.boot_id = host.boot_id()
        wake_fd, self.wake_writer = os.pipe()
        os.set_blocking(wake_fd, False)
        os.set_blocking(self.wake_writer, False)
        self.http = HttpClient(startup.server, startup.credential or startup.token, wake_fd=wake_fd)
        self.has_session = False
        self.zip_is_good = updater.runs_good_zip(startup.folder)
        self.task_succeeded = False
        self.suspect_tasks: list[str] = []
        self.start_reported = ""
        self.poll_s = 30.0
        self.heartbeat_s = 10.0
        self.reported_health: tuple[str | None, str | None] = (None, None)
        self.waiting_for_stop = False
        self.reporter = EventReporter(self.http, self.session)
        self.status = BotStatus(
            startup, caches, session=self.session, version=self.version, post_event=self.reporter.post, wake=self.wake
        )
        self.directives = Directives(startup, run_queue, self.status, self.http, self.reporter)
        self.uploader = LogUploader(
            self.http, run_queue, journal=journal, spool=spool, watcher=watcher, after_chunk=self._heartbeat_if_due
        )
        self.exchange = Exchange(
            self.session,
            self.http,
            run_queue,
            self.status,
            self.directives,
            journal=journal,
            spool=spool,
            watcher=watcher,
            discard_log=self.uploader.discard,
        )

    def wake(self) -> None:
        """Interrupt a long poll. Takes no lock, because signal handlers call it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_writer, b".")

    # ---------------------------------------------------------------- the loop and its errors

    def run(self) -> None:
        failures = 0
        try:
            self.status.start()
        except Exception as error:
            log.exception("initialisation failed")
            self.reporter.report_error(f"{error!r}\n{traceback.format_exc()[-1500:]}")
        while not self.run_queue.stopped:
            pause, answers = 0.0, self.exchange.answer_count
            try:
                if not self.has_session:
                    self._handshake()
                self._step()
                failures = 0
                self.watcher.server_unreachable = False
                if not self.zip_is_good and self.exchange.answer_count > answers:
                    self._promote_zip()
            except Interrupted:
                pass
            except HttpError as error:
                failures += 1
                pause = self._on_http_error(error, failures)
            except NoResponse as error:
                failures += 1
                self.watcher.server_unreachable = failures > 1
                log.info("no response: %s", error)
                pause = retry_delay(failures)
            except Exception as error:
                failures += 1
                log.exception("session step failed")
                self.reporter.report_error(f"{error!r}\n{traceback.format_exc()[-1500:]}")
                pause = retry_delay(failures + 2)
            if failures:
                self._after_failure(pause, failures)

    def _after_failure(self, pause: float, failures: int) -> None:
        with contextlib.suppress(OSError):  # a full disk is reported by the health check
            self.journal.sync()
        if self._should_give_up(failures):
            self.run_queue.end(self.run_queue.exit_code)
        if pause:
            self.run_queue.pause(min(pause, SHUTDOWN_RETRY_S) if self.run_queue.signals else pause)

    def _on_http_error(self, error: HttpError, failures: int) -> float:
        """React to an error status; the pause before the next call.

        401: try the other of token and credential. 409 ends the session, or the bot if the handshake itself conflicts.
        """
        log.info("the server answered: %s", error)
        if error.status == 401:
            self.has_session = False
            known = [text for text in (self.startup.token, self.startup.credential) if text]
            self.http.bearer = known[0] if self.http.bearer != known[0] else known[-1]
            return retry_delay(failures)
        if error.status == 409 and self.has_session:
            self.has_session = False
            return 0.0 if failures < 3 else retry_delay(failures)
        if error.status == 409:
            log.error("superseded by a newer session: %s", error)
            self.exchange.kill_current("lost", 0.0)
            self.run_queue.end(exit_codes.SUPERSEDED)
            return 0.0
        if error.is_transient:
            self.watcher.server_unreachable = error.status >= 500
            return retry_delay(failures, error.retry_after)
        self.reporter.report_error(f"the server rejected a call: {error}")
        if error.status in REJECTED and failures >= MAX_REJECTIONS:
            self.exchange.discard_pending()
        return retry_delay(failures + 2)

    def _should_give_up(self, failures: int) -> bool:
        """Whether to end although the server does not respond. The journal keeps results that were not delivered.

        With results to deliver the bot tries for SHUTDOWN_S, else only SHUTDOWN_FAILURES times.
        """
        run_queue = self.run_queue
        if not run_queue.signals or run_queue.running is not None:
            return False
        return run_queue.since_signal() > SHUTDOWN_S or (failures >= SHUTDOWN_FAILURES and not run_queue.finished)

    # ---------------------------------------------------------------- the handshake

    def _handshake(self) -> None:
        startup, status = self.startup, self.status
        self.http.set_extra_headers(status.headers)
        health = status.health_reasons()
        body: dict[str, Any] = {
            "bot_id": startup.bot_id,
            "session": self.session,
            **status.handshake_fields(),
            "version": self.version,
            "boot_id": self.boot_id,
            "holds": [task["run"] for task in self.run_queue.held()] + list(self.journal.open_runs),
            "begun": self.suspect_tasks,
        }
        answer = self.http.post("/bot/v1/handshake", body)
        self.reported_health = health
        startup.save_credential(answer["credential"])
        self.http.bearer = answer["credential"]
        self.poll_s = float(answer.get("poll_s", self.poll_s))
        self.heartbeat_s = float(answer.get("heartbeat_s", self.heartbeat_s))
        status.apply_handshake(answer)
        self.has_session = True
        self.exchange.record_contact()
        log.info("handshake done: bot %s, session %d", startup.bot_id, self.session)
        if self.run_queue.keep_only(set(answer.get("keep", []))):
            self.exchange.kill_current("lost", 0.0)
        failed = updater.take_failure(startup.folder)
        if failed:
            self.reporter.report_error(f"update to {failed[0]} failed: {failed[1]}", failed[0])
        self.uploader.upload_leftovers()

    # ---------------------------------------------------------------- what to send next

    def _step(self) -> None:
        """Make the next call to the server, or wait until one is due.

        For short tasks the request does not list the held runs: they end before a stop could arrive.
        """
        run_queue, exchange = self.run_queue, self.exchange
        self._check_machine()
        # Read before logs are uploaded: then the log of every run that is found ended here precedes its result.
        running, waiting = run_queue.snapshot()
        self.uploader.upload_finished()
        self.reporter.send_pending()
        self.directives.accept_hook_request()
        if run_queue.signals:
            self._shut_down()
        now = clock.boottime()
        if run_queue.stopped or (running is not None and run_queue.running is not running):
            return
        if exchange.pending is not None:
            exchange.send(exchange.pending)
        elif running is None and not waiting:
            self._step_idle()
        elif running is not None and now - running["begun"] > REPORT_START_AFTER_S:
            self._step_busy(running, now)
        elif self.directives.may_claim() and not exchange.queue_drained and waiting <= run_queue.refill_threshold():
            exchange.send_new(run_queue.claim_size(), include_held=False)
        elif run_queue.finished and now - run_queue.finished_at > (
            LAST_REPORT_AFTER_S if exchange.queue_drained else REPORT_AFTER_S
        ):
            exchange.send_new(0, include_held=False)
        else:
            run_queue.wait(LAST_REPORT_AFTER_S)

    def _step_idle(self) -> None:
        """No tasks: report results, then execute a pending directive or poll for work.

        Results are sent with the poll. But if the connection was silent and may be dead, they are sent in a request
        that is answered at once: else their loss would be noticed only after a whole poll.
        """
        exchange = self.exchange
        exchange.queue_drained = False
        has_news = bool(self.run_queue.finished or self.run_queue.returned)
        if not self.directives.may_claim():
            if has_news:
                exchange.send_new(0)
            else:
                self._execute_directive()
        elif has_news and clock.boottime() - exchange.contact_at > PROBE_AFTER_S:
            exchange.send_new(0)
        else:
            self._poll()

    def _poll(self) -> None:
        """Long-poll the server for work, with the hooks around it."""
        status, exchange = self.status, self.exchange
        hooks, bot = status.hooks, status.bot
        if hooks.has("on_before_poll"):
            hooks.call("on_before_poll", bot)
        exchange.polling = True
        try:
            wait_s = min(self.poll_s, QUARANTINED_POLL_S) if status.quarantine_reason else self.poll_s
            exchange.send_new(self.run_queue.claim_size(), wait_s, changes=status.changes())
        finally:
            exchange.polling = False
        if (
            hooks.has("on_bot_idle")
            and not self.run_queue.queue
            and self.run_queue.running is None
            and not self.directives.pending
        ):
            hooks.call("on_bot_idle", bot, round(clock.boottime() - exchange.active_at, 3))

    def _step_busy(self, running: dict[str, Any], now: float) -> None:
        """A command runs long: report its start, upload its log, send heartbeats."""
        run, exchange, uploader = running["run"], self.exchange, self.uploader
        if self.run_queue.queue and now - running["begun"] > GIVE_BACK_AFTER_S:
            self.run_queue.return_queued()
        size = self.spool.pending_bytes(run)
        if self.start_reported != run:
            self.start_reported = run
            exchange.send_new(0, start=running)
        elif self.run_queue.returned or self.run_queue.finished:
            exchange.send_new(0)
        elif size > MAX_INLINE_BYTES and now >= uploader.resume_at:
            uploader.upload(run, max_chunks=MAX_LIVE_CHUNKS)
        elif size and now - uploader.sent_at >= LOG_INTERVAL_S:
            uploader.sent_at = now
            exchange.send_new(0, log_run=run)
        elif now - exchange.contact_at >= self.heartbeat_s:
            exchange.heartbeat()
        elif not size and now - max(uploader.sent_at, running["begun"]) > QUIET_AFTER_S:
            self._wait_for_stop(run)
        else:
            until = exchange.contact_at + self.heartbeat_s
            if size > MAX_INLINE_BYTES:
                until = min(until, uploader.resume_at)
            self.run_queue.wait(min(LOG_INTERVAL_S / 2, max(0.01, until - now)))

    def _wait_for_stop(self, run: str) -> None:
        """Long-poll while a command runs without output, so that a stop arrives at once.

        Output or the end of the command interrupts the poll. A request without reports need not be repeated then.
        """
        exchange = self.exchange
        self.waiting_for_stop = True
        try:
            if self.run_queue.running is not None and not self.spool.pending_bytes(run):
                exchange.send_new(0, self.heartbeat_s)
        except Interrupted:
            if exchange.pending is not None and not exchange.pending.body["reports"]:
                exchange.pending = None
        finally:
            self.waiting_for_stop = False

    def notify(self) -> None:
        """Interrupt `_wait_for_stop`, because there is something to send. Called by other threads."""
        if self.waiting_for_stop:
            self.wake()

    def _heartbeat_if_due(self) -> None:
        """Send a heartbeat if one is due while a command runs."""
        exchange = self.exchange
        if self.run_queue.running is not None and clock.boottime() - exchange.contact_at >= self.heartbeat_s:
            exchange.heartbeat()

    # ---------------------------------------------------------------- health, directives, shutdown

    def _check_machine(self) -> None:
        """Refresh the bot's status while nothing runs; repeat the handshake if its health has changed.

        Other changes are sent with the next poll, except to servers that do not know the config version.
        """
        if self.run_queue.running is not None or self.run_queue.queue:
            return
        status = self.status
        status.check(clock.boottime())
        self.http.set_extra_headers(status.headers)
        old_server = status.config is None and status.has_changes()
        if status.health_reasons() != self.reported_health or old_server:
            self._handshake()

    def _promote_zip(self) -> None:
        """Make the running zip the known good one once it has proved itself. Retried later if the disk is full."""
        folder, alive_s = self.startup.folder, clock.boottime() - self.started
        if updater.is_proved(folder, alive_s, succeeded=self.task_succeeded):
            with contextlib.suppress(OSError):
                updater.promote_own_zip(folder)
                self.zip_is_good = True

    def _execute_directive(self) -> None:
        """Execute the pending directive; before that, queue the result of a terminate task for delivery."""
        record = self.directives.terminate_report()
        if record is None:
            self.directives.execute()
            return
        self.journal.add(record)
        self.run_queue.add_result(record)

    def _shut_down(self) -> None:
        """After a stop signal: give back queued tasks, let the command finish, deliver, end."""
        run_queue = self.run_queue
        run_queue.return_queued()
        self.http.margin_s = min(self.http.margin_s, SHUTDOWN_MARGIN_S)
        if run_queue.signals > 1:
            self.exchange.kill_current("shutdown", 0.0)
        if run_queue.running is None and not (run_queue.finished or run_queue.returned or self.exchange.pending):
            self.directives.report_shutdown("stopped by a signal", ended=True)
            run_queue.end(0)
