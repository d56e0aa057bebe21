"""Reads what the bot has to do, for the decision about the next action."""

from __future__ import annotations

from typing import Any

from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.link_state import LinkState, Work
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock


class WorkReader:
    """Used by the session thread.

    ``leftovers``: runs of an earlier process that have no result, but output that was not delivered.
    """

    def __init__(
        self,
        link: LinkState,
        run_queue: RunQueue,
        status: BotStatus,
        directives: Directives,
        reporter: EventReporter,
        *,
        spool: LogSpool,
        leftovers: list[str],
    ) -> None:
        self.link = link
        self.run_queue = run_queue
        self.status = status
        self.directives = directives
        self.reporter = reporter
        self.spool = spool
        self.leftovers = leftovers

    def read(self, *, stop_waits: bool) -> tuple[dict[str, Any] | None, Work]:
        """The running task, and the facts for the decision.

        The running task is read first: whatever ends later is found by the next decision.
        """
        run_queue, lane = self.run_queue, self.run_queue.lane
        running, queued = run_queue.snapshot()
        functions, long_runs = len(lane.queue) + len(lane.taken), lane.long_runs()
        is_idle = running is None and not queued and not functions
        run = running["run"] if running is not None else ""
        log_run, log_bytes = self._running_log(run, long_runs)
        return running, Work(
            run=run,
            begun=running["begun"] if running is not None else 0.0,
            queued=queued,
            finished=len(run_queue.finished),
            finished_at=run_queue.finished_at,
            returned=len(run_queue.returned),
            log_bytes=log_bytes,
            unsent_log=self._unsent_log() if self.spool.tokens else "",
            stop_waits=stop_waits,
            has_events=bool(self.reporter.pending),
            directive=self.directives.pending is not None,
            signals=run_queue.signals,
            signal_at=run_queue.signal_at,
            claim_size=run_queue.next_claim(),
            command_size=run_queue.claim_size(),
            refill_threshold=run_queue.refill_threshold(),
            health_changed=is_idle and self._health_changed(),
            quarantined=is_idle and self.status.quarantine_reason is not None,
            has_slots=lane.slots > 0,
            functions=functions,
            long_functions=len(long_runs),
            wanted=lane.wanted(),
            stuck_functions=lane.blocked and lane.waiting() > 0,
            unreported=any("start_reported" not in task for task in long_runs),
            log_run=log_run,
            progress_due=lane.progress_due(clock.boottime()),
        )

    def _running_log(self, run: str, long_runs: list[dict[str, Any]]) -> tuple[str, int]:
        """(a running function with undelivered output or empty, bytes of it or of the running command)."""
        waiting = self.spool.pending_bytes(run) if run else 0
        if waiting or not self.spool.tokens:
            return "", waiting
        for task in long_runs:
            waiting = self.spool.pending_bytes(task["run"])
            if waiting:
                return task["run"], waiting
        return "", 0

    def _unsent_log(self) -> str:
        """A run that has ended and whose log is not delivered; empty if there is none. Removes delivered logs."""
        ended: list[str] = [record["report"]["run"] for record in list(self.run_queue.finished)]
        for run in ended + self.leftovers:
            if run in self.spool.tokens:
                if self.spool.pending_bytes(run):
                    return run
                self.spool.remove(run)
        return ""

    def _health_changed(self) -> bool:
        """Whether a handshake is needed to report changes of the bot's health; others are sent with the next poll."""
        return self.status.health_reasons() != self.link.reported_health
