"""Letters: one exchange with the server each, with reports, pieces of logs, and a wish for tasks.

A letter is written once and sent until it is answered, word for word: its number tells the server a repeat from a
new wish. Results stay in line, and in the journal, until the server has answered for them.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from myrmidon.bot.run.command import INLINE
from myrmidon.bot.run.run_queue import MOST_TASKS, Duty
from myrmidon.bot.storage.log_spool import Spool
from myrmidon.bot.system import host

LOG_CHARS = 256 << 10


class Letter:
    """``records`` are the results in it, ``spooled`` how far it carries the logs of a command that still runs."""

    __slots__ = ("body", "records", "sent", "spooled", "written_at")

    def __init__(
        self, body: dict[str, Any], records: list[dict[str, Any]], spooled: list[tuple[str, int, int]]
    ) -> None:
        self.body = body
        self.records = records
        self.spooled = spooled
        self.written_at = host.awake()
        self.sent = 0

    def only_report(self) -> None:
        """The wish for tasks is withdrawn; what the server has given out for this letter already comes all the same.

        A letter without that wish only listens for an order to stop what runs: it waits as before.
        """
        if self.body["n"]:
            self.body["n"] = 0
            self.body["wait_s"] = 0.0


def write(
    duty: Duty,
    spool: Spool,
    head: dict[str, Any],
    *,
    start: dict[str, Any] | None = None,
    logs_of: str | None = None,
    held: bool = True,
) -> Letter:
    """The next letter: the oldest results, what is given back, and what of a running command is asked for.

    ``head`` holds session, nonce, n and wait_s. ``held``: name what this bot has claimed, to hear what of it must stop.
    """
    records = _oldest(duty, spool)
    reports = [record["report"] for record in records]
    pieces = [_piece(record["report"], *log) for record in records for log in record["logs"]]
    if start is not None:
        reports.append({"type": "start", "run": start["run"], "token": start["token"]})
    given_back = [{"type": "give_back", "run": task["run"], "token": task["token"]} for task in duty.take_refused()]
    spooled: list[tuple[str, int, int]] = []
    if logs_of is not None:
        more, spooled = _from_spool(spool, logs_of)
        pieces += more
    holds = [[task["run"], task["token"]] for task in duty.held()] if held else []
    body = {**head, "reports": reports + given_back, "logs": pieces, "holds": holds}
    return Letter(body, records, spooled)


def _oldest(duty: Duty, spool: Spool) -> list[dict[str, Any]]:
    """The oldest results, as many as one letter holds; none whose log has not gone up before it."""
    records: list[dict[str, Any]] = []
    size = 0
    with duty.lock:
        for record in duty.finished:
            if record["report"]["run"] in spool.tokens:
                break
            size += sum(len(data) for _, _, data in record["logs"])
            if records and (size > LOG_CHARS or len(records) == MOST_TASKS):
                break
            records.append(record)
    return records


def _from_spool(spool: Spool, run: str) -> tuple[list[dict[str, Any]], list[tuple[str, int, int]]]:
    owner = {"run": run, "token": spool.tokens.get(run, "")}
    pieces, spooled = [], []
    for stream in (0, 1):
        at, data = spool.read(run, stream, INLINE // 2)
        if data:
            pieces.append(_piece(owner, stream, at, b64encode(data).decode()))
            spooled.append((run, stream, at + len(data)))
    return pieces, spooled


def _piece(owner: dict[str, Any], stream: int, at: int, data: str) -> dict[str, Any]:
    return {"run": owner["run"], "token": owner["token"], "stream": stream, "offset": at, "data": data}
