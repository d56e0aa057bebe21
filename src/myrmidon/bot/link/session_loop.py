"""The session loop: one thread that makes all calls to the server, over one connection.

Each step reads what the bot has to do, lets `next_action` decide, performs that one action, and applies the answer. The
loop survives every exception, because only a connected bot can be updated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any

from myrmidon.bot.install import updater
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link import next_action as actions
from myrmidon.bot.link.answers import Answers
from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.exchange import ExchangeRequest, RequestBuilder
from myrmidon.bot.link.failed_calls import REJECTED, FailedCalls
from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse, retry_delay
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.link.log_uploader import LogNotWanted, LogUploader
from myrmidon.bot.link.work_reader import WorkReader
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.protocol import (
    Answer,
    ExchangeMessage,
    HandshakeMessage,
    HeartbeatMessage,
    StartReport,
    Welcome,
    decode,
    encode,
)
from myrmidon.bot.run.run import ENDED, Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.run.watch import Watch
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock, host

SHUTDOWN_MARGIN_S = 3.0  # time limit of a call during shutdown
EVENT_RETRY_S = 5.0  # pause before events that could not be sent are sent again

log = logging.getLogger("myrmidon.bot")


class SessionLoop:
    """``link`` is the state of the link to the server, which only this thread changes.

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
        watch: Watch,
    ) -> None:
        self.startup = startup
        self.run_queue = run_queue
        self.journal = journal
        self.spool = spool
        self.watch = watch
        self.started = clock.boottime()
        self.session = startup.next_session()
        self.version = updater.own_version()
        self.boot_id = host.boot_id()
        wake_fd, self.wake_writer = os.pipe()
        os.set_blocking(wake_fd, False)
        os.set_blocking(self.wake_writer, False)
        self.http = HttpClient(startup.server, startup.credential or startup.token, wake_fd=wake_fd)
        self.link = LinkState(self.started)
        self.is_new_process = True
        self.zip_is_good = updater.runs_good_zip(startup.folder)
        self.task_succeeded = False
        self.suspect_tasks: list[str] = []
        self.waiting_for_stop = False
        self.output_can_wait = False
        self.reporter = EventReporter(self.http, self.session)
        self.status = BotStatus(
            startup, caches, session=self.session, version=self.version, post_event=self.reporter.post, wake=self.wake
        )
        self.directives = Directives(startup, run_queue, self.status, self.http, self.reporter, journal)
        self.uploader = LogUploader(self.http, spool, self.reporter.report_error)
        self.answers = Answers(self.link, run_queue, self.directives, journal=journal, spool=spool)
        self.failed_calls = FailedCalls(startup, self.link, self.http, self.answers, self.reporter)
        for record in journal.recovered:
            if record.report.run in spool.tokens:
                run_queue.late_starts.append(StartReport(record.report.run, record.report.token))
        leftovers = [run for run in spool.runs() if run not in journal.open_runs]
        self.work_reader = WorkReader(
            self.link, run_queue, self.status, self.directives, self.reporter, spool=spool, leftovers=leftovers
        )
        self.requests = RequestBuilder(self.link, run_queue, spool)
        self.simple_actions = self._simple_actions()

    def _simple_actions(self) -> dict[type, Callable[[], None]]:
        """How to perform the actions that have no fields."""
        run_queue = self.run_queue
        return {
            actions.Handshake: self._handshake,
            actions.Resend: self._resend,
            actions.Heartbeat: self._heartbeat,
            actions.SendEvents: self._send_events,
            actions.GiveBack: self._give_back,
            actions.ExecuteDirective: self.directives.execute,
            actions.ShutDown: self._shut_down,
            actions.GiveUp: lambda: run_queue.end(run_queue.exit_code),
        }

    def wake(self) -> None:
        """Interrupt a long poll. Takes no lock, because signal handlers call it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_writer, b".")

    def notify(self) -> None:
        """Interrupt a request that waits for a stop, because there is something to send. Called by other threads."""
        if self.waiting_for_stop:
            self.wake()

    def notify_output(self) -> None:
        """The same for output, which can wait for a request that ends soon by itself."""
        if not self.output_can_wait:
            self.notify()

    def note_success(self) -> None:
        """A task of this process has succeeded. Called by other threads."""
        self.task_succeeded = True

    # ---------------------------------------------------------------- the loop and its errors

    def run(self) -> None:
        run_queue = self.run_queue
        try:
            self.status.start()
        except Exception as error:
            log.exception("initialisation failed")
            self._report_exception(error)
        while not run_queue.stopped:
            try:
                self._step()
            except Interrupted:
                self.link.interrupted()
            except (HttpError, NoResponse) as error:
                self.failed_calls.handle(error)
            except Exception as error:
                log.exception("session step failed")
                self._report_exception(error)
                self.link.retry_s = retry_delay(self.link.failed(clock.boottime()) + 2)
                run_queue.pause(self.link.retry_s)  # the step may fail before it waits, as without the bot's folder
            self.watch.server_unreachable = self.link.unreachable

    def _report_exception(self, error: Exception) -> None:
        self.reporter.report_error(f"{error!r}\n{traceback.format_exc()[-1500:]}")

    # ---------------------------------------------------------------- one step

    def _step(self) -> None:
        """Read the facts, decide, act. What other threads have told before is in the facts and interrupts nothing."""
        self.http.forget_interrupts()
        self._prepare()
        running, work = self.work_reader.read()
        action = actions.next_action(self.link, work, clock.boottime())
        if running is not None and running.state == ENDED:
            return  # it has ended meanwhile, and the action was decided for it
        self._perform(action, running)

    def _prepare(self) -> None:
        """Do what needs no call: check the machine, carry out requests of hooks and signals."""
        run_queue = self.run_queue
        if run_queue.is_idle():
            self.status.check(clock.boottime())
            self.http.set_extra_headers(self.status.headers)
        self.directives.accept_hook_request()
        if run_queue.signals:
            run_queue.return_queued()
            self.http.margin_s = min(self.http.margin_s, SHUTDOWN_MARGIN_S)
            if run_queue.signals > 1:
                run_queue.end_all("shutdown")

    def _perform(self, action: actions.Action, running: Run | None) -> None:
        if isinstance(action, actions.Exchange):
            self._exchange(action, running)
        elif isinstance(action, actions.Wait):
            self.run_queue.wait(action.seconds)
        elif isinstance(action, actions.Pause):
            self.run_queue.pause(action.seconds)
        elif isinstance(action, actions.UploadLog):
            self._upload_log(action.run)
        else:
            self.simple_actions[type(action)]()

    def _resend(self) -> None:
        if self.link.pending is not None:
            self._send(self.link.pending)

    def _give_back(self) -> None:
        """Return what waits behind something that takes long."""
        run_queue = self.run_queue
        running, now = run_queue.first_command(), clock.boottime()
        if running is not None and now - running.taken_at > actions.GIVE_BACK_AFTER_S:
            run_queue.return_queued(run_queue.commands)
        if run_queue.functions.blocked:
            run_queue.return_queued(run_queue.functions)

    def _send_events(self) -> None:
        if not self.reporter.send_pending():
            self.link.events_after = clock.boottime() + EVENT_RETRY_S

    def _shut_down(self) -> None:
        self.directives.report_shutdown("stopped by a signal", ended=True)
        self.run_queue.end(0)

    # ---------------------------------------------------------------- calls

    def _handshake(self) -> None:
        startup, status = self.startup, self.status
        self.http.set_extra_headers(status.headers)
        health = status.health_reasons()
        message = HandshakeMessage(
            bot_id=startup.bot_id,
            session=self.session,
            new_process=self.is_new_process,
            **status.handshake_fields(),
            version=self.version,
            boot_id=self.boot_id,
            holds=[run for run, _ in self.run_queue.held()] + list(self.journal.open_runs),
            begun=self.suspect_tasks,
        )
        answer: Welcome = decode(Welcome, self.http.post("/bot/v1/handshake", encode(message)))
        startup.save_credential(answer.credential)
        self._use_session(answer.session)
        clock.set_server_time(answer.server_time)
        self.http.bearer = answer.credential
        startup.forget_token()
        self.link.session_begun(clock.boottime(), answer.poll_s, answer.heartbeat_s, health)
        self.run_queue.start_within_s = answer.start_within_s
        status.apply_handshake(answer)
        log.info("handshake done: bot %s, session %d", startup.bot_id, self.session)
        self.run_queue.keep_only(set(answer.keep))
        failed = updater.take_failure(startup.folder)
        if failed:
            version, why, blamed = failed
            self.reporter.report_error(f"update to {version} failed: {why}", version if blamed else "")

    def _use_session(self, session: int) -> None:
        """Continue with the session that the server has chosen; it chooses another one if this clock is wrong."""
        self.is_new_process = False
        if session != self.session:
            self.startup.save_session(session)
            self.session = self.reporter.session = session
            self.status.bot.set_session(session)

    def _exchange(self, action: actions.Exchange, running: Run | None) -> None:
        """Build the request of a decision and send it. Around a poll for work, hooks are called."""
        if action.n and action.wait_s and self.run_queue.is_idle():
            self._poll(action)
        elif action.wait_s:
            self._wait_at_server(running)
        else:
            self._send(self._new_request(action))

    def _new_request(self, action: actions.Exchange, **changes: Any) -> ExchangeRequest:
        """The request of a decision; ``changes``: of the bot's state and dimensions."""
        if action.log:
            self.link.log_sent(clock.boottime())
        return self.requests.build(action, ExchangeMessage(self.session, config=self.status.config, **changes))

    def _send(self, request: ExchangeRequest) -> None:
        """Send a request and apply its answer; on failure it stays pending if it must be repeated.

        If the answer is delayed, the journal is synced to the disk meanwhile, so that the results survive a power loss.
        """
        if self.run_queue.signals or self.directives.pending:
            request.drop_claim()
        request.attempts += 1
        request.sent_at = clock.boottime()
        wait_s, body = request.message.wait_s, request.body(self.journal.encoded)
        try:
            found = self.http.post("/bot/v1/exchange", body, wait_s=wait_s, meanwhile=self.journal.sync)
        except HttpError as error:
            if error.status in REJECTED:
                self.failed_calls.on_rejected(request)
            raise
        answer: Answer = decode(Answer, found)
        now = clock.boottime()
        self.link.answered(now)
        if request.is_poll and self.status.hooks.has("on_after_poll"):
            # Before a task of this answer starts: processes of a hook must not run at the same time as a command.
            directive = answer.order or ("run" if answer.tasks else "sleep")
            self.status.hooks.call("on_after_poll", self.status.bot, directive)
        claimed_at = request.created_at if request.attempts > 1 else self.http.response_after
        self.answers.apply_exchange(request, answer, now, claimed_at)
        if not self.zip_is_good:
            self._promote_zip()

    def _poll(self, action: actions.Exchange) -> None:
        """Long-poll the server for work, with the hooks around it."""
        status = self.status
        hooks, bot = status.hooks, status.bot
        if hooks.has("on_before_poll"):
            hooks.call("on_before_poll", bot)
        self._send(self._new_request(action, **status.changes()))
        is_idle = self.run_queue.is_idle() and not self.directives.pending
        if is_idle and hooks.has("on_bot_idle"):
            hooks.call("on_bot_idle", bot, round(clock.boottime() - self.link.active_at, 3))

    def _wait_at_server(self, running: Run | None) -> None:
        """Wait at the server while tasks run without output. Output or the end of one of them interrupts that."""
        self.waiting_for_stop = True
        try:
            # Decided again: what came before the flag was set has not interrupted anything.
            still_running, work = self.work_reader.read()
            again = actions.next_action(self.link, work, clock.boottime())
            if still_running is running and isinstance(again, actions.Exchange) and again.wait_s:
                self.output_can_wait = again.wait_s <= actions.LOG_INTERVAL_S
                request = self._new_request(again)
                request.is_poll = False  # hooks are called around the polls of an idle bot only
                self._send(request)
        finally:
            self.waiting_for_stop = False

    def _heartbeat(self) -> None:
        """Extend the leases of all claimed runs; the answer may contain stops and a directive."""
        queue = self.run_queue
        message = HeartbeatMessage(
            self.session, queue.held(), queue.take_progress(clock.boottime()), self.status.config
        )
        answer = decode(Answer, self.http.post("/bot/v1/heartbeat", encode(message)))
        self.link.answered(clock.boottime())
        self.answers.apply_orders(answer)

    def _upload_log(self, run: str) -> None:
        try:
            stream, pause_s = self.uploader.upload_piece(run, self.link.log_stream)
        except LogNotWanted as error:
            log.info("the log of %s is not wanted: %s", run, error)
            self.link.succeeded()
            self.answers.discard_log(run)
            return
        self.link.piece_sent(clock.boottime(), stream, pause_s)

    def _promote_zip(self) -> None:
        """Make the running zip the known good one once it has proved itself. Retried later if the disk is full."""
        folder, alive_s = self.startup.folder, clock.boottime() - self.started
        if updater.is_proved(folder, alive_s, succeeded=self.task_succeeded):
            with contextlib.suppress(OSError):
                updater.promote_own_zip(folder)
                self.zip_is_good = True
