"""Logs that are too long for a letter: how they go up from the spool, piece after piece.

The log of a command that has ended goes up before its result does. A log that the server does not take is dropped:
nobody will ever read it. When to send what of a command that still runs is decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from myrmidon.bot.link.http_client import Refused, Wire
from myrmidon.bot.run.command import Watch
from myrmidon.bot.run.run_queue import Duty
from myrmidon.bot.storage.log_spool import Spool
from myrmidon.bot.storage.result_journal import Journal
from myrmidon.bot.system import host

LOG_BYTES = 1 << 20
FEW_PIECES = 16
NOT_MINE = (403, 404, 410)


class Parcels:
    """``sent_at`` is when a log last went up; before ``again_at`` the server wants no more of one that still grows.

    ``between`` is called after each piece: a long log must not silence the bot.
    """

    def __init__(
        self, wire: Wire, duty: Duty, *, journal: Journal, spool: Spool, watch: Watch, between: Callable[[], None]
    ) -> None:
        self.wire = wire
        self.duty = duty
        self.journal = journal
        self.spool = spool
        self.watch = watch
        self.between = between
        self.sent_at = 0.0
        self.again_at = 0.0

    def send_old(self) -> None:
        """What an earlier process of this bot could not deliver any more; its results follow from the journal."""
        mine = {task["run"] for task in self.duty.held()}
        for run in self.spool.left():
            if run not in mine:
                self.send(run)
                if run not in self.journal.open_runs:
                    self.spool.remove(run)

    def send_ended(self) -> None:
        """The log of a finished run goes up before its result."""
        if self.spool.tokens:
            for run in [record["report"]["run"] for record in list(self.duty.finished)]:
                if run in self.spool.tokens:
                    self.send(run)
                    self.spool.remove(run)

    def send(self, run: str, most: int = 1 << 30) -> None:
        """Send what the spool has of a run, in order, until all is sent or ``most`` pieces of each stream are.

        A server with better things to do asks for a pause; the log of a command that has ended does not wait for it.
        """
        token = self.spool.tokens.get(run, "")
        for stream in (0, 1):
            for _ in range(most):
                at, data = self.spool.read(run, stream, LOG_BYTES)
                if not data:
                    break
                try:
                    pause = self._send_piece(f"/bot/v1/log/{run}/{stream}?offset={at}", data, token)
                except Refused as error:
                    if error.status not in NOT_MINE:
                        raise
                    self.drop(run)
                    return
                self.spool.delivered(run, stream, at + len(data))
                self.between()
                if pause and most <= FEW_PIECES:
                    self.again_at = host.awake() + pause
                    break
        self.sent_at = host.awake()

    def _send_piece(self, path: str, data: bytes, token: str) -> float:
        """How long the server asks to wait with the next one."""
        headers = f"X-Run-Token: {token}\r\n"
        answer = self.wire.call("POST", path, data, kind="application/octet-stream", headers=headers)
        return float(json.loads(answer).get("pause_s") or 0.0)

    def drop(self, run: str) -> None:
        """The server does not take this log."""
        command = self.watch.current
        if command is not None and command.run == run:
            command.unwanted = True
        self.spool.remove(run)
