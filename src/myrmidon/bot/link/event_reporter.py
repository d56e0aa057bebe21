"""What a bot tells besides its work: events for its owner. Troubles are told once, not again and again.

Any thread may tell something; it goes out when the thread that talks has the line, and waits for a server that is
away. Of many that wait only the last are kept, and the server may miss one: nothing depends on an event.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse
from myrmidon.bot.system import host

REPEAT_S = 600.0
MAX_ERRORS = 200
MAX_MESSAGE_CHARS = 4000

log = logging.getLogger("myrmidon.bot")


class EventReporter:
    def __init__(self, http: HttpClient, session: int) -> None:
        self.http = http
        self.session = session
        self.pending: deque[tuple[str, str, str]] = deque(maxlen=20)
        self.reported_at: dict[str, float] = {}

    def post(self, kind: str, message: str) -> None:
        """Tell the server something as soon as possible. Called by any thread."""
        if kind == "bot_error":
            self.report_error(message)
        else:
            self.pending.append((kind, message, ""))

    def report_error(self, message: str, bad_release: str = "") -> None:
        """Tell the server of a trouble, the same one at most every ten minutes. Called by any thread."""
        log.error("%s", message)
        now = host.awake()
        if now - self.reported_at.get(message, -REPEAT_S) < REPEAT_S:
            return
        if len(self.reported_at) >= MAX_ERRORS:
            self.reported_at = {text: at for text, at in self.reported_at.items() if now - at < REPEAT_S}
        if len(self.reported_at) < MAX_ERRORS:
            self.reported_at[message] = now
            self.pending.append(("bot_error", message, bad_release))

    def send_pending(self) -> None:
        """Say all that waits, until the server does not answer."""
        while self.pending:
            event = self.pending.popleft()
            if not self.send(*event):
                self.pending.appendleft(event)
                return

    def send(self, kind: str, message: str, bad_release: str = "", *, ended: bool = False) -> bool:
        """Say it now; False when there was no answer. ``bad_release``: a zip that this bot could not work with."""
        log.info("%s: %s", kind, message)
        body: dict[str, Any] = {"session": self.session, "kind": kind, "message": message[:MAX_MESSAGE_CHARS]}
        if bad_release:
            body["bad_release"] = bad_release
        if ended:
            body["ended"] = True
        try:
            self.http.post("/bot/v1/event", body)
        except HttpError:
            return True  # the server has its reasons, and they will not change
        except (NoResponse, Interrupted):
            return False
        return True
