"""Builds the exchange of a decision, from what the running tasks have to report."""

from __future__ import annotations

from typing import Any

from myrmidon.bot.link import exchange_request
from myrmidon.bot.link import next_action as actions
from myrmidon.bot.link.exchange_request import ExchangeRequest
from myrmidon.bot.link.link_state import ANY, FUNCTIONS, LinkState
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock


class RequestBuilder:
    """Used by the session thread."""

    def __init__(self, link: LinkState, run_queue: RunQueue, spool: LogSpool) -> None:
        self.link = link
        self.run_queue = run_queue
        self.spool = spool

    def build(
        self,
        action: actions.Exchange,
        running: dict[str, Any] | None,
        *,
        session: int,
        config: str | None,
        changes: dict[str, Any] | None,
    ) -> ExchangeRequest:
        """The request of a decision, now pending. ``running`` is the running command, ``changes`` those of the bot."""
        link = self.link
        link.nonce += 1
        head: dict[str, Any] = {
            "session": session, "nonce": link.nonce, "n": action.n, "received": link.received, "wait_s": action.wait_s,
        }  # fmt: skip
        if action.accepts != ANY:
            head["accepts"] = action.accepts
        if action.n and self._expects_functions(action):
            head["slots"] = self.run_queue.lane.slots
        if config is not None:
            head["config"] = config
        if changes:
            head.update(changes)
        stopping = [running["run"]] if running is not None and link.stopping(running["run"]) else []
        stopping += self.run_queue.lane.stopping()
        if stopping:
            head["stopping"] = stopping
        self.add_progress(head)
        link.pending = exchange_request.build(
            self.run_queue,
            self.spool,
            head,
            starts=self._starts(running) if action.start else (),
            log_runs=self._running_logs(running) if action.log else (),
            include_held=action.holds,
        )
        return link.pending

    def _expects_functions(self, action: actions.Exchange) -> bool:
        if action.accepts == ANY:
            return self.run_queue.functions_last
        return action.accepts == FUNCTIONS

    def add_progress(self, body: dict[str, Any]) -> None:
        """Add the progress of functions that is due to a request."""
        progress = self.run_queue.lane.take_progress(clock.boottime())
        if progress:
            body["progress"] = progress

    def _starts(self, running: dict[str, Any] | None) -> list[dict[str, Any]]:
        """The tasks that run long and whose start was not reported, now marked as reported."""
        begun = self.run_queue.lane.unreported()
        for task in begun:
            task["start_reported"] = True
        is_long = running is not None and clock.boottime() - running["begun"] > actions.REPORT_START_AFTER_S
        if running is not None and is_long and self.link.start_reported != running["run"]:
            self.link.run_reported(running["run"])
            begun.append(running)
        return begun

    def _running_logs(self, running: dict[str, Any] | None) -> list[str]:
        """The running tasks with undelivered output."""
        tasks = ([running] if running is not None else []) + self.run_queue.lane.long_runs()
        return [task["run"] for task in tasks if self.spool.pending_bytes(task["run"])]
