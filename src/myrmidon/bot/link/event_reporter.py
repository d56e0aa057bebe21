"""Sends events of the bot to the server: errors, log lines, shutdown, reboot.

Any thread may post an event; the session thread sends it when it is not busy with another call, and keeps it while the
server is unreachable. Delivery is best effort: only the last 20 pending events are kept, and nothing depends on them.
The same error is sent at most once in ten minutes.
"""

from __future__ import annotations

import logging
from collections import deque

from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse
from myrmidon.bot.protocol import EventMessage, encode
from myrmidon.bot.system import clock

REPEAT_S = 600.0
MAX_ERRORS = 200
MAX_MESSAGE_CHARS = 4000

log = logging.getLogger("myrmidon.bot")


class EventReporter:
    """``pending`` holds (kind, message, bad release); ``reported_at`` when each error was last posted."""

    def __init__(self, http: HttpClient, session: int) -> None:
        self.http = http
        self.session = session
        self.pending: deque[tuple[str, str, str]] = deque(maxlen=20)
        self.reported_at: dict[str, float] = {}

    def post(self, kind: str, message: str) -> None:
        """Queue an event. Safe to call from any thread."""
        if kind == "bot_error":
            self.report_error(message)
        else:
            self.pending.append((kind, message, ""))

    def report_error(self, message: str, bad_release: str = "") -> None:
        """Log an error and queue it as a bot_error event. Safe to call from any thread.

        ``bad_release`` is the version of a zip that does not work on this bot.
        """
        log.error("%s", message)
        now = clock.boottime()
        if now - self.reported_at.get(message, -REPEAT_S) < REPEAT_S:
            return
        if len(self.reported_at) >= MAX_ERRORS:
            self.reported_at = {text: at for text, at in self.reported_at.items() if now - at < REPEAT_S}
        if len(self.reported_at) < MAX_ERRORS:
            self.reported_at[message] = now
            self.pending.append(("bot_error", message, bad_release))

    def send_pending(self) -> bool:
        """Send queued events in order; False when the server does not respond, then the rest is kept."""
        while self.pending:
            event = self.pending.popleft()
            if not self.send(*event):
                self.pending.appendleft(event)
                return False
        return True

    def send(self, kind: str, message: str, bad_release: str = "", *, ended: bool = False) -> bool:
        """Send an event now; False when it must be sent again. ``ended``: the bot will not return by itself."""
        log.info("%s: %s", kind, message)
        event = EventMessage(self.session, kind, message[:MAX_MESSAGE_CHARS], bad_release or None, ended)
        try:
            self.http.post("/bot/v1/event", encode(event))
        except HttpError as error:
            return not error.is_transient  # if the server has rejected it, a retry would be rejected too
        except (NoResponse, Interrupted):
            return False
        return True
