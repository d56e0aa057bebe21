"""Builds exchange requests: reports, log chunks, and how many tasks the bot wants to claim.

A request is built once and sent unchanged until it is answered: the server recognises a repeat by its nonce. Results
stay queued, and in the journal, until the server has acknowledged them.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from myrmidon.bot.run.run_log import MAX_INLINE_BYTES
from myrmidon.bot.run.run_queue import MAX_TASKS, RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock

MAX_LOG_CHARS = 256 << 10


class ExchangeRequest:
    """One request. ``records`` are the results in it; ``spooled`` is (run, stream, end) of its live log chunks.

    ``must_repeat``: it reports or claims something, so it is sent until it is answered. ``is_poll``: it is the poll of
    an idle bot. ``rejections``: how often the server has rejected it.
    """

    __slots__ = (
        "attempts", "body", "created_at", "is_poll", "must_repeat", "records", "rejections", "sent_at", "spooled",
    )  # fmt: skip

    def __init__(
        self, body: dict[str, Any], records: list[dict[str, Any]], spooled: list[tuple[str, int, int]]
    ) -> None:
        self.body = body
        self.records = records
        self.spooled = spooled
        self.created_at = self.sent_at = clock.boottime()
        self.attempts = 0
        self.rejections = 0
        self.must_repeat = bool(body["n"] or body["reports"])
        self.is_poll = bool(body["n"] and body["wait_s"])

    def drop_claim(self) -> None:
        """Claim no tasks. If the server has assigned tasks to an earlier attempt, its answer still contains them.

        A request that claims nothing waits only for a stop of the running command, so its wait stays.
        """
        if self.body["n"]:
            self.body["n"] = 0
            self.body["wait_s"] = 0.0

    def stop_waiting(self) -> None:
        """Have the server answer at once when the request is repeated: there is something else to send."""
        self.body["wait_s"] = 0.0

    def move_logs_to(self, spool: LogSpool) -> None:
        """Take all output out of a request that the server rejects, so that it is uploaded in pieces of its own.

        A result follows its log, so results from the first one with output on are left to a later request. Output that
        does not fit on the disk is dropped.
        """
        kept = next((at for at, record in enumerate(self.records) if record["logs"]), len(self.records))
        for record in self.records[kept:]:
            report = record["report"]
            with contextlib.suppress(OSError):
                for stream, offset, data in record["logs"]:
                    spool.append(report["run"], report["token"], stream, b64decode(data), offset)
            record["logs"] = []
        others = self.body["reports"][len(self.records) :]
        self.records = self.records[:kept]
        self.body["reports"] = [record["report"] for record in self.records] + others
        self.body["logs"] = []
        self.body["wait_s"] = 0.0  # the results that were left out must not wait for the end of a poll
        self.spooled = []


def build(
    run_queue: RunQueue,
    spool: LogSpool,
    head: dict[str, Any],
    *,
    starts: Sequence[dict[str, Any]] = (),
    log_runs: Sequence[str] = (),
    include_held: bool = True,
) -> ExchangeRequest:
    """The next request: the oldest results, returned tasks, and starts and logs of running tasks.

    ``head`` has session, nonce, n and wait_s. ``include_held``: list the claimed runs, so that the server can answer
    which of them must stop.
    """
    records, has_all = _oldest_results(run_queue, spool)
    reports = [record["report"] for record in records]
    chunks = [_log_chunk(record["report"], *log) for record in records for log in record["logs"]]
    reports += [{"type": "start", "run": task["run"], "token": task["token"]} for task in starts]
    returned = [{"type": "give_back", "run": task["run"], "token": task["token"]} for task in run_queue.take_returned()]
    spooled: list[tuple[str, int, int]] = []
    for log_run in log_runs:
        live_chunks, live_spooled = _spooled_chunks(spool, log_run)
        chunks += live_chunks
        spooled += live_spooled
    holds = [[task["run"], task["token"]] for task in run_queue.held()] if include_held else []
    body = {**head, "reports": reports + returned, "logs": chunks, "holds": holds}
    if not has_all:
        body["wait_s"] = 0.0  # the others must not wait for the end of a poll
    return ExchangeRequest(body, records, spooled)


def _oldest_results(run_queue: RunQueue, spool: LogSpool) -> tuple[list[dict[str, Any]], bool]:
    """(the oldest results that fit into one request, up to the first one whose log is still in the spool, are all)."""
    records: list[dict[str, Any]] = []
    size = 0
    with run_queue.lock:
        for record in run_queue.finished:
            if record["report"]["run"] in spool.tokens:
                break
            size += sum(len(data) for _, _, data in record["logs"])
            if records and (size > MAX_LOG_CHARS or len(records) == MAX_TASKS):
                break
            records.append(record)
        return records, len(records) == len(run_queue.finished)


def _spooled_chunks(spool: LogSpool, run: str) -> tuple[list[dict[str, Any]], list[tuple[str, int, int]]]:
    owner = {"run": run, "token": spool.tokens.get(run, "")}
    chunks: list[dict[str, Any]] = []
    spooled: list[tuple[str, int, int]] = []
    for stream in (0, 1):
        offset, data = spool.read(run, stream, MAX_INLINE_BYTES // 2)
        if data:
            chunk = _log_chunk(owner, stream, offset, b64encode(data).decode())
            chunks.append({**chunk, "marks": spool.marks(run, stream, offset + len(data))})
            spooled.append((run, stream, offset + len(data)))
    return chunks, spooled


def _log_chunk(owner: dict[str, Any], stream: int, offset: int, data: str) -> dict[str, Any]:
    return {"run": owner["run"], "token": owner["token"], "stream": stream, "offset": offset, "data": data}
