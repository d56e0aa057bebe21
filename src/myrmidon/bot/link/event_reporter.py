"""What a bot tells besides its work: events for its owner. Troubles are told once, not again and again.

Any thread may tell something; it goes out when the thread that talks has the line, and waits for a server that is
away. Of many that wait only the last are kept, and the server may miss one: nothing depends on an event.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from myrmidon.bot.link.http_client import Broken, Interrupted, Refused, Wire
from myrmidon.bot.system import host

AGAIN_S = 600.0
MOST_TROUBLES = 200
MOST_CHARS = 4000

log = logging.getLogger("myrmidon.bot")


class Voice:
    def __init__(self, wire: Wire, session: int) -> None:
        self.wire = wire
        self.session = session
        self.waiting: deque[tuple[str, str, str]] = deque(maxlen=20)
        self.told_at: dict[str, float] = {}

    def tell(self, kind: str, message: str) -> None:
        """Tell the server something as soon as possible. Called by any thread."""
        if kind == "bot_error":
            self.complain(message)
        else:
            self.waiting.append((kind, message, ""))

    def complain(self, message: str, bad_release: str = "") -> None:
        """Tell the server of a trouble, the same one at most every ten minutes. Called by any thread."""
        log.error("%s", message)
        now = host.awake()
        if now - self.told_at.get(message, -AGAIN_S) < AGAIN_S:
            return
        if len(self.told_at) >= MOST_TROUBLES:
            self.told_at = {said: at for said, at in self.told_at.items() if now - at < AGAIN_S}
        if len(self.told_at) < MOST_TROUBLES:
            self.told_at[message] = now
            self.waiting.append(("bot_error", message, bad_release))

    def say_waiting(self) -> None:
        """Say all that waits, until the server does not answer."""
        while self.waiting:
            words = self.waiting.popleft()
            if not self.say(*words):
                self.waiting.appendleft(words)
                return

    def say(self, kind: str, message: str, bad_release: str = "", *, ended: bool = False) -> bool:
        """Say it now; False when there was no answer. ``bad_release``: a zip that this bot could not work with."""
        log.info("%s: %s", kind, message)
        body: dict[str, Any] = {"session": self.session, "kind": kind, "message": message[:MOST_CHARS]}
        if bad_release:
            body["bad_release"] = bad_release
        if ended:
            body["ended"] = True
        try:
            self.wire.post("/bot/v1/event", body)
        except Refused:
            return True  # the server has its reasons, and they will not change
        except (Broken, Interrupted):
            return False
        return True
