"""Applies the server's answers to exchanges and heartbeats: to the run queue, the journal and the running command.

Once a report is answered it is done, whatever the outcome.
"""

from __future__ import annotations

import logging
from typing import Any

from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.exchange_request import ExchangeRequest
from myrmidon.bot.link.link_state import ANY, LinkState, Stop
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal

log = logging.getLogger("myrmidon.bot")


class Answers:
    """Used by the session thread. Changes ``link`` by what the server has answered."""

    def __init__(
        self,
        link: LinkState,
        run_queue: RunQueue,
        directives: Directives,
        *,
        journal: ResultJournal,
        spool: LogSpool,
        watcher: CommandWatcher,
    ) -> None:
        self.link = link
        self.run_queue = run_queue
        self.directives = directives
        self.journal = journal
        self.spool = spool
        self.watcher = watcher

    def apply_exchange(self, request: ExchangeRequest, answer: dict[str, Any], now: float, claimed_at: float) -> None:
        """Forget what was delivered, queue claimed tasks, accept stops and directives.

        ``claimed_at``: the earliest time at which the server can have assigned the tasks.
        """
        self.link.pending = None
        self._apply_replies(request, answer)
        self._queue_claimed(request, answer, now, claimed_at)
        has_news = self.apply_orders(answer)
        if request.body["wait_s"] and not (request.is_poll or answer.get("tasks") or has_news):
            # The server had no news. If it answered early, asking again at once would be an endless loop.
            self.link.poll_after = request.sent_at + request.body["wait_s"]

    def apply_orders(self, answer: dict[str, Any]) -> bool:
        """Accept stops and a directive; whether one of them is new."""
        has_news = False
        for run in answer.get("stop") or []:
            has_news = self._accept_stop(run, "killed") or has_news
        return self.directives.accept(answer) or has_news if answer.get("order") else has_news

    # ---------------------------------------------------------------- reports

    def _apply_replies(self, request: ExchangeRequest, answer: dict[str, Any]) -> None:
        """Forget what was delivered; stop a run that was cancelled or is no longer this bot's."""
        for report, reply in zip(request.body["reports"], answer.get("replies") or []):
            if report["type"] == "start" and reply.get("stop"):
                is_ours = reply.get("outcome") in ("accepted", "repeated")
                self._accept_stop(report["run"], "killed" if is_ours else "lost")
        for run in self.acknowledge(request):
            self.spool.remove(run)
        for run, stream, end in request.spooled:
            self.spool.remove_delivered(run, stream, end)
        for chunk, length in zip(request.body["logs"], answer.get("log_lengths") or []):
            if length < 0:
                self.discard_log(chunk["run"])

    def acknowledge(self, request: ExchangeRequest) -> list[str]:
        """Remove the results of a request from the queue and the journal; their runs."""
        runs = [record["report"]["run"] for record in request.records]
        if runs:
            self.run_queue.remove_reported(len(runs))
            self.journal.acknowledge(runs)
        return runs

    def discard_log(self, run: str) -> None:
        """Stop keeping the log of a run, because the server does not accept it."""
        command = self.watcher.current
        if command is not None and command.run == run:
            command.discard_output = True
        function = self.run_queue.lane.taken.get(run)
        if function is not None:
            function["discard_output"] = True
        self.spool.remove(run)

    # ---------------------------------------------------------------- tasks

    def _queue_claimed(self, request: ExchangeRequest, answer: dict[str, Any], now: float, claimed_at: float) -> None:
        """Queue claimed tasks. When the server says that no more tasks wait, none is claimed until the bot is idle."""
        tasks = answer.get("tasks") or []
        known_runs = {task["run"] for task in self.run_queue.held()} | set(self.journal.open_runs) if tasks else set()
        new_tasks = [task for task in tasks if task["run"] not in known_runs]
        for task in new_tasks:
            task["claimed_at"] = claimed_at
        if tasks:
            self.link.received = request.body["nonce"]
        accepts = request.body.get("accepts", ANY)
        if request.body["n"]:
            self.link.claim_answered(accepts, has_more=bool(new_tasks and answer.get("more", True)))
        if any("terminate" in task and task["terminate"] for task in new_tasks):
            self._accept_terminate(new_tasks)
        elif new_tasks:
            self.link.active_at = now
            self.run_queue.add(new_tasks)

    def _accept_terminate(self, new_tasks: list[dict[str, Any]]) -> None:
        """Accept a terminate task, and give back tasks that came with it."""
        for task in new_tasks:
            if task.get("terminate"):
                self.directives.accept_terminate_task(task)
        self.run_queue.return_tasks([task for task in new_tasks if not task.get("terminate")])

    # ---------------------------------------------------------------- stops

    def _accept_stop(self, run: str, reason: str) -> bool:
        """Give back a queued run, or end the running command; whether the order is new.

        Without a grace period if the run is lost, or if its lease must have expired because the server was unreachable.
        """
        if run in self.run_queue.lane.taken:
            return self._stop_function(run, reason)
        if not self.run_queue.withdraw(run):
            return False
        running = self.run_queue.running or {}
        expired = self.link.silent_s > float(running.get("lease_s") or 300)
        is_new = not self.link.stopping(run)
        if is_new:
            log.info("ending %s: %s", run, reason)
        self.link.stop = Stop(run, reason, 0.0 if reason == "lost" or expired else None)
        self.carry_out_stop()
        return is_new

    def _stop_function(self, run: str, reason: str) -> bool:
        """Request the end of a function that has begun or is about to; whether the order is new."""
        lane = self.run_queue.lane
        task = lane.taken.get(run) or {}
        expired = self.link.silent_s > float(task.get("lease_s") or 300)
        is_new = "stopping" not in task
        if is_new:
            log.info("ending %s: %s", run, reason)
            lane.request_end(run, reason, 0.0 if reason == "lost" or expired else None)
        return is_new

    def carry_out_stop(self) -> bool:
        """Request the end of the command that the server has told to stop; False if its process does not exist yet."""
        stop = self.link.stop
        if stop is None:
            return True
        running = self.run_queue.running
        if running is None or running["run"] != stop.run:
            self.link.stop = None
            return True
        command = self.watcher.current
        if command is None or command.run != stop.run:
            return False
        command.request_end(stop.reason, stop.grace_s)
        return True

    def kill_current(self, reason: str) -> None:
        """Kill the running command and the functions, without a grace period."""
        self.run_queue.lane.end_all(reason)
        command = self.watcher.current
        if command is not None:
            if command.end_request is None:
                log.info("ending %s: %s", command.run, reason)
            command.request_end(reason, 0.0)
