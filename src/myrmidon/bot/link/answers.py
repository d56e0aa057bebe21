"""Applies the server's answers to exchanges and heartbeats: to the run queue, the journal and the runs.

Once a report is answered it is done, whatever the outcome.
"""

from __future__ import annotations

import logging

from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.exchange import ExchangeRequest
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.protocol import Answer, StartReport, Task
from myrmidon.bot.run import reports
from myrmidon.bot.run.run import Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal

log = logging.getLogger("myrmidon.bot")


class Answers:
    """Used by the session thread. Changes ``link`` by what the server has answered."""

    def __init__(
        self, link: LinkState, run_queue: RunQueue, directives: Directives, *, journal: ResultJournal, spool: LogSpool
    ) -> None:
        self.link = link
        self.run_queue = run_queue
        self.directives = directives
        self.journal = journal
        self.spool = spool

    def apply_exchange(self, request: ExchangeRequest, answer: Answer, now: float, claimed_at: float) -> None:
        """Forget what was delivered, queue claimed tasks, accept stops and directives.

        ``claimed_at``: the earliest time at which the server can have assigned the tasks.
        """
        self.link.pending = None
        self._apply_replies(request, answer)
        self._queue_claimed(request, answer, now, claimed_at)
        has_news = self.apply_orders(answer)
        wait_s = request.message.wait_s
        if wait_s and not (request.is_poll or answer.tasks or has_news):
            # The server had no news. If it answered early, asking again at once would be an endless loop.
            self.link.poll_after = request.sent_at + wait_s

    def apply_orders(self, answer: Answer) -> bool:
        """Accept stops and a directive; whether one of them is new."""
        has_news = False
        for run in answer.stop:
            has_news = self._accept_stop(run, "killed") or has_news
        return self.directives.accept(answer) or has_news

    # ---------------------------------------------------------------- reports

    def _apply_replies(self, request: ExchangeRequest, answer: Answer) -> None:
        """Forget what was delivered; stop a run that was cancelled or is no longer this bot's."""
        for report, reply in zip(request.message.reports, answer.replies):
            if isinstance(report, StartReport) and reply.stop:
                is_ours = reply.outcome in ("accepted", "repeated")
                self._accept_stop(report.run, "killed" if is_ours else "lost")
        for run in self.acknowledge(request):
            self.spool.remove(run)
        for run, stream, end in request.spooled:
            self.spool.remove_delivered(run, stream, end)
        for piece, length in zip(request.message.logs, answer.log_lengths):
            if length < 0:
                self.discard_log(piece.run)

    def acknowledge(self, request: ExchangeRequest) -> list[str]:
        """Remove the results of a request from the queue and the journal; their runs."""
        runs = [record.report.run for record in request.records]
        if runs:
            self.run_queue.remove_reported(len(runs))
            self.journal.acknowledge(runs)
        return runs

    def discard_log(self, run_id: str) -> None:
        """Stop keeping the log of a run, because the server does not accept it."""
        run = self.run_queue.runs.get(run_id)
        if run is not None:
            run.discard_output = True
        self.spool.remove(run_id)

    # ---------------------------------------------------------------- tasks

    def _queue_claimed(self, request: ExchangeRequest, answer: Answer, now: float, claimed_at: float) -> None:
        """Queue claimed tasks. When the server says that no more tasks wait, none is claimed until the bot is idle."""
        queue = self.run_queue
        new = [task for task in answer.tasks if task.run not in queue.runs and task.run not in self.journal.open_runs]
        if answer.tasks:
            self.link.received = request.message.nonce
        if request.message.n:
            self.link.claim_answered(request.message.accepts, has_more=bool(new) and answer.more)
        runs = [Run(task, claimed_at) for task in new if isinstance(task, Task) and not task.problem]
        for record in [reports.refusal(task) for task in new if task.problem]:
            self.journal.add(record)
            queue.add_result(record)
        last = next((run for run in runs if run.task.terminate), None)
        if last is not None:
            self.directives.accept_terminate_task(last)
            queue.return_runs([run for run in runs if run is not last])
        elif runs:
            self.link.active_at = now
            queue.add(runs)

    # ---------------------------------------------------------------- stops

    def _accept_stop(self, run_id: str, reason: str) -> bool:
        """Give back a queued run, or end one that has begun; whether the order is new.

        Without a grace period if the run is lost, or if its lease must have expired because the server was unreachable.
        """
        run = self.run_queue.runs.get(run_id)
        if run is None:
            return False
        has_expired = self.link.silent_s > run.task.lease_s
        if self.run_queue.request_end(run_id, reason, 0.0 if reason == "lost" or has_expired else None) is None:
            return False
        is_new = not run.is_stopping
        if is_new:
            log.info("ending %s: %s", run_id, reason)
        run.is_stopping = True
        return is_new
