"""Exchange requests: reports, log chunks, and how many tasks the bot wants to claim.

A request is built once and sent unchanged until it is answered: the server recognises a repeat by its nonce. Results
stay queued, and in the journal, until the server has acknowledged them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from myrmidon.bot.link import next_action as actions
from myrmidon.bot.link.link_state import ANY, FUNCTIONS, LinkState
from myrmidon.bot.protocol import ExchangeMessage, GiveBackReport, LogPiece, Record, encode
from myrmidon.bot.run.run import MAX_INLINE_BYTES, Run
from myrmidon.bot.run.run_queue import MAX_TASKS, RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock

MAX_LOG_BYTES = 192 << 10


class ExchangeRequest:
    """One request. ``records`` are the results in it; ``spooled`` is (run, stream, end) of its live log chunks.

    ``must_repeat``: it reports or claims something, so it is sent until it is answered. ``is_poll``: it is the poll of
    an idle bot. ``rejections``: how often the server has rejected it.
    """

    __slots__ = (
        "attempts", "created_at", "is_poll", "message", "must_repeat", "records", "rejections", "sent_at", "spooled",
    )  # fmt: skip

    def __init__(
        self, message: ExchangeMessage, records: Sequence[Record] = (), spooled: Sequence[tuple[str, int, int]] = ()
    ) -> None:
        self.message = message
        self.records = records
        self.spooled = spooled
        self.created_at = self.sent_at = clock.boottime()
        self.attempts = 0
        self.rejections = 0
        self.must_repeat = bool(message.n or message.reports)
        self.is_poll = bool(message.n and message.wait_s)

    def body(self, known: Mapping[str, bytes]) -> bytes:
        """The JSON of the request. ``known``: the JSON of reports that are in the journal, by run."""
        message, count = self.message, len(self.records)
        results = [known.get(report.run) or encode(report) for report in message.reports[:count]]
        reports = b",".join([*results, *map(encode, message.reports[count:])])
        return b'{"reports":[%s],%s' % (reports, encode(message._replace(reports=()))[1:])

    def drop_claim(self) -> None:
        """Claim no tasks. If the server has assigned tasks to an earlier attempt, its answer still contains them.

        A request that claims nothing waits only for a stop of what runs, so its wait stays.
        """
        if self.message.n:
            self.message = self.message._replace(n=0, wait_s=0.0)

    def stop_waiting(self) -> None:
        """Have the server answer at once when the request is repeated: there is something else to send."""
        self.message = self.message._replace(wait_s=0.0)

    def move_logs_to(self, spool: LogSpool, run_queue: RunQueue) -> None:
        """Take all output out of a request that the server rejects, so that it is uploaded in pieces of its own.

        A result follows its log, so results from the first one with output on are left to a later request. Output that
        does not fit on the disk is dropped. The results that are left out must not wait for the end of a poll.
        """
        kept = next((at for at, record in enumerate(self.records) if record.logs), len(self.records))
        run_queue.drop_output([record.report.run for record in self.records])
        for record in self.records:
            with contextlib.suppress(OSError):
                for stream, offset, data in record.logs:
                    spool.append(record.report.run, record.report.token, stream, data, offset)
        others = self.message.reports[len(self.records) :]
        self.records = self.records[:kept]
        reports = [*(record.report for record in self.records), *others]
        self.message = self.message._replace(reports=reports, logs=(), wait_s=0.0)
        self.spooled = ()


class RequestBuilder:
    """Builds the exchange of a decision, from what the runs have to report. Used by the session thread."""

    def __init__(self, link: LinkState, run_queue: RunQueue, spool: LogSpool) -> None:
        self.link = link
        self.run_queue = run_queue
        self.spool = spool

    def build(self, action: actions.Exchange, head: ExchangeMessage) -> ExchangeRequest:
        """The request of a decision, now pending. ``head`` has what is not about runs."""
        link, queue = self.link, self.run_queue
        long_runs = queue.long_runs()
        records, has_all = self._oldest_results()
        starts = queue.take_starts() if action.start else []
        if starts:
            link.poll_after = 0.0  # what the server has said about earlier runs no longer counts
        live, spooled = self._live_output(long_runs if action.log else ())
        link.nonce += 1
        message = head._replace(
            nonce=link.nonce,
            n=action.n,
            received=link.received,
            wait_s=action.wait_s if has_all else 0.0,  # the others must not wait for the end of a poll
            accepts=action.accepts,
            slots=queue.functions.seats if action.n and self._expects_functions(action) else 1,
            stopping=[run.id for run in long_runs if run.is_stopping],
            progress=queue.take_progress(clock.boottime()),
            reports=[
                *(record.report for record in records),
                *starts,
                *(GiveBackReport(run.id, run.token) for run in queue.take_returned()),
            ],
            logs=[*(_piece(record, *chunk) for record in records for chunk in record.logs), *live],
            holds=queue.held() if action.holds else (),
        )
        link.pending = ExchangeRequest(message, records, spooled)
        return link.pending

    def _expects_functions(self, action: actions.Exchange) -> bool:
        if action.accepts == ANY:
            return self.run_queue.functions_last
        return action.accepts == FUNCTIONS

    def _oldest_results(self) -> tuple[list[Record], bool]:
        """(the oldest results that fit into a request, up to the first one whose log is in the spool, are all)."""
        records: list[Record] = []
        size = 0
        with self.run_queue.lock:
            for record in self.run_queue.finished:
                if record.report.run in self.spool.tokens:
                    break
                size += sum(len(chunk.data) for chunk in record.logs)
                if records and (size > MAX_LOG_BYTES or len(records) == MAX_TASKS):
                    break
                records.append(record)
            return records, len(records) == len(self.run_queue.finished)

    def _live_output(self, runs: Sequence[Run]) -> tuple[list[LogPiece], list[tuple[str, int, int]]]:
        """(the next output of runs that go on, up to where it is)."""
        spool = self.spool
        pieces, spooled = [], []
        for run in runs:
            for stream in (0, 1):
                offset, data = spool.read(run.id, stream, MAX_INLINE_BYTES // 2)
                if data:
                    end = offset + len(data)
                    pieces.append(LogPiece(run.id, run.token, stream, offset, data, spool.marks(run.id, stream, end)))
                    spooled.append((run.id, stream, end))
        return pieces, spooled


def _piece(record: Record, stream: int, offset: int, data: bytes) -> LogPiece:
    return LogPiece(record.report.run, record.report.token, stream, offset, data)
