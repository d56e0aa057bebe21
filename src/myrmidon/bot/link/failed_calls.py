"""What a bot does after a call that failed: how long it pauses, and what it gives up."""

from __future__ import annotations

import logging

from myrmidon.bot.install import exit_codes
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.link.answers import Answers
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.exchange import ExchangeRequest
from myrmidon.bot.link.http_client import MAX_DELAY_S, HttpClient, HttpError, NoResponse, retry_delay
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.system import clock

MAX_REJECTIONS = 5  # then a request that the server rejects is dropped
REJECTED = (400, 413, 422)

log = logging.getLogger("myrmidon.bot")


class FailedCalls:
    """Used by the session thread."""

    def __init__(
        self, startup: StartupConfig, link: LinkState, http: HttpClient, answers: Answers, reporter: EventReporter
    ) -> None:
        self.startup = startup
        self.link = link
        self.http = http
        self.answers = answers
        self.reporter = reporter
        self.said = ""

    def handle(self, error: HttpError | NoResponse) -> None:
        """Decide how long to pause after a failed call, and save what must survive a crash meanwhile.

        The same error is logged once in a row.
        """
        link = self.link
        failures = link.failed(clock.boottime())
        text = f"the server answered: {error}" if isinstance(error, HttpError) else f"no response: {error}"
        if failures == 1 or text != self.said:
            log.info("%s", text)
            self.said = text
        if isinstance(error, HttpError):
            link.retry_s = self._on_http_error(error, failures)
        else:
            link.unreachable = failures > 1
            link.retry_s = retry_delay(failures)
        self.answers.journal.sync()

    def _on_http_error(self, error: HttpError, failures: int) -> float:
        """React to an error status; the pause before the next call.

        401: try the other of token and credential. 409 ends the session, or the bot if the handshake itself conflicts.
        """
        link = self.link
        if error.status == 401:
            link.has_session = False
            self.http.bearer = self.startup.other_bearer(self.http.bearer)
            return retry_delay(failures)
        if error.status == 409 and link.has_session:
            link.has_session = False
            return 0.0 if failures < 3 else retry_delay(failures)
        if error.status == 409:
            log.error("superseded by a newer session: %s", error)
            self.answers.run_queue.end_all("lost")
            self.answers.run_queue.end(exit_codes.SUPERSEDED)
            return 0.0
        if error.is_transient:
            link.unreachable = error.status >= 500
            return retry_delay(failures, error.retry_after)
        if link.has_session:
            self.reporter.report_error(f"the server rejected a call: {error}")
        elif failures == 1:
            log.error(
                "the server does not accept this bot. It tries again at least every %d s; end it with Ctrl-C or"
                " SIGTERM, and start it with another id or token if the reason above stays",
                MAX_DELAY_S,
            )
        return retry_delay(failures + 2)

    def on_rejected(self, request: ExchangeRequest) -> None:
        """Send a rejected request again without output, and then drop it. Its runs end by their leases."""
        request.rejections += 1
        if request.message.logs:
            self.link.inline_logs = False
            request.move_logs_to(self.answers.spool, self.answers.run_queue)
        elif request.rejections >= MAX_REJECTIONS:
            self.link.pending = None
            self.answers.acknowledge(request)
