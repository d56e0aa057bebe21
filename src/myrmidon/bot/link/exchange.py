"""Sends exchanges and heartbeats, and applies the answers to the run queue, the journal and the running command.

A request that is not answered is kept and sent again unchanged. Once a report is answered it is done, whatever the
outcome. When to send a request, and how many tasks to claim, is decided by the session loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from myrmidon.bot.link import exchange_request
from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.exchange_request import ExchangeRequest
from myrmidon.bot.link.http_client import HttpClient
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock

log = logging.getLogger("myrmidon.bot")


class Exchange:
    """``pending`` is the request that is not answered yet; ``answer_count`` counts answered ones.

    ``contact_at``: time of the server's last answer; ``silent_s``: time between the last two answers.
    ``queue_drained``: the last claim has found no more tasks. ``polling``: the present request waits for work;
    ``active_at``: when the bot last received tasks.
    """

    def __init__(
        self,
        session: int,
        http: HttpClient,
        run_queue: RunQueue,
        status: BotStatus,
        directives: Directives,
        *,
        journal: ResultJournal,
        spool: LogSpool,
        watcher: CommandWatcher,
        discard_log: Callable[[str], None],
    ) -> None:
        self.session = session
        self.http = http
        self.run_queue = run_queue
        self.status = status
        self.directives = directives
        self.journal = journal
        self.spool = spool
        self.watcher = watcher
        self.discard_log = discard_log
        self.nonce = 0
        self.answer_count = 0
        self.pending: ExchangeRequest | None = None
        self.contact_at = self.active_at = clock.boottime()
        self.silent_s = 0.0
        self.queue_drained = False
        self.polling = False

    # ---------------------------------------------------------------- requests

    def send_new(
        self,
        n: int,
        wait_s: float = 0.0,
        *,
        start: dict[str, Any] | None = None,
        log_run: str | None = None,
        changes: dict[str, Any] | None = None,
        include_held: bool = True,
    ) -> None:
        """Build a request that claims up to n tasks, and send it."""
        self.nonce += 1
        head: dict[str, Any] = {"session": self.session, "nonce": self.nonce, "n": n, "wait_s": wait_s}
        if self.status.config is not None:
            head["config"] = self.status.config
        if changes:
            head.update(changes)
        self.pending = exchange_request.build(
            self.run_queue, self.spool, head, start=start, log_run=log_run, include_held=include_held
        )
        self.send(self.pending)

    def send(self, request: ExchangeRequest) -> None:
        """Send a request and apply its answer; on failure it stays pending.

        If the answer is delayed, the journal is synced to the disk meanwhile, so that the results survive a power loss.
        """
        if not self.directives.may_claim():
            request.drop_claim()
        request.attempts += 1
        wait_s = request.body["wait_s"]
        answer = self.http.post("/bot/v1/exchange", request.body, wait_s=wait_s, meanwhile=self.journal.sync)
        self.pending = None
        self.answer_count += 1
        self.record_contact()
        self._apply_replies(request, answer)
        if self.polling and self.status.hooks.has("on_after_poll"):
            self._after_poll(answer)
        self._queue_claimed(request, answer.get("tasks") or [], more=bool(answer.get("more", True)))
        self._apply_directives(answer)

    def heartbeat(self) -> None:
        """Extend the leases of all claimed runs; the answer may contain directives."""
        body: dict[str, Any] = {"session": self.session}
        body["holds"] = [[task["run"], task["token"]] for task in self.run_queue.held()]
        if self.status.config is not None:
            body["config"] = self.status.config
        answer = self.http.post("/bot/v1/heartbeat", body)
        self.record_contact()
        self._apply_directives(answer)

    def record_contact(self) -> None:
        """Note that the server has answered now."""
        now = clock.boottime()
        self.silent_s = now - self.contact_at
        self.contact_at = now

    def discard_pending(self) -> None:
        """Drop a request that the server keeps rejecting, so that the bot can go on. Its runs end by their leases."""
        request, self.pending = self.pending, None
        if request is not None:
            self._acknowledge(request)

    # ---------------------------------------------------------------- answers

    def _apply_replies(self, request: ExchangeRequest, answer: dict[str, Any]) -> None:
        """Forget what was delivered; stop a run that was canceled or is no longer this bot's."""
        for report, reply in zip(request.body["reports"], answer.get("replies") or []):
            if report["type"] == "start" and reply.get("stop"):
                self._stop_run(report["run"], "killed" if reply.get("outcome") in ("accepted", "repeated") else "lost")
        for run in self._acknowledge(request):
            self.spool.remove(run)
        for run, stream, end in request.spooled:
            self.spool.remove_delivered(run, stream, end)
        for chunk, length in zip(request.body["logs"], answer.get("log_lengths") or []):
            if length < 0:
                self.discard_log(chunk["run"])

    def _acknowledge(self, request: ExchangeRequest) -> list[str]:
        """Remove the results of a request from the queue and the journal; their runs."""
        runs = [record["report"]["run"] for record in request.records]
        if runs:
            self.run_queue.remove_reported(len(runs))
            self.journal.acknowledge(runs)
        return runs

    def _after_poll(self, answer: dict[str, Any]) -> None:
        """Call on_after_poll before a task of this answer starts: the processes of a hook must not meet a command."""
        directive = answer.get("order") or ("run" if answer.get("tasks") else "sleep")
        self.status.hooks.call("on_after_poll", self.status.bot, directive)

    def _queue_claimed(self, request: ExchangeRequest, tasks: list[dict[str, Any]], *, more: bool = True) -> None:
        """Queue claimed tasks, each with the earliest time at which the server can have assigned it.

        When the server reports that no more tasks wait, the bot claims none until it is idle.
        """
        known_runs = {task["run"] for task in self.run_queue.held()} | set(self.journal.open_runs)
        new_tasks = [task for task in tasks if task["run"] not in known_runs]
        for task in new_tasks:
            task["claimed_at"] = request.created_at if request.attempts > 1 else self.http.response_after
        if request.body["n"]:
            self.queue_drained = not (new_tasks and more)
        if any("terminate" in task and task["terminate"] for task in new_tasks):
            self._accept_terminate(new_tasks)
        elif new_tasks:
            self.active_at = clock.boottime()
            self.run_queue.add(new_tasks)

    def _accept_terminate(self, new_tasks: list[dict[str, Any]]) -> None:
        """Accept a terminate task, and give back tasks that came with it."""
        for task in new_tasks:
            if task.get("terminate"):
                self.directives.accept_terminate_task(task)
        self.run_queue.return_tasks([task for task in new_tasks if not task.get("terminate")])

    def _apply_directives(self, answer: dict[str, Any]) -> None:
        for run in answer.get("stop") or []:
            self._stop_run(run, "killed")
        if answer.get("order"):
            self.directives.accept(answer)

    def _stop_run(self, run: str, reason: str) -> None:
        """Give back a queued run, or end the running command.

        Without a grace period if the run is lost, or if its lease must have expired because the server was unreachable.
        """
        if self.run_queue.withdraw(run):
            running = self.run_queue.running or {}
            expired = self.silent_s > float(running.get("lease_s") or 300)
            self.kill_current(reason, 0.0 if reason == "lost" or expired else None)

    def kill_current(self, reason: str, grace_s: float | None) -> None:
        """End the running command, if there is one."""
        command = self.watcher.current
        if command is not None:
            log.info("ending %s: %s", command.run, reason)
            command.request_end(reason, grace_s)
