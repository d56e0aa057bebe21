"""Reads what the bot has to do, for the decision about the next action."""

from __future__ import annotations

from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.event_reporter import EventReporter
from myrmidon.bot.link.link_state import LinkState, Work
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.run.run import Run
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

    def read(self) -> tuple[Run | None, Work]:
        """The running command, and the facts for the decision.

        The running command is read first: whatever ends later is found by the next decision.
        """
        queue, commands, functions = self.run_queue, self.run_queue.commands, self.run_queue.functions
        running, long_runs = queue.first_command(), queue.long_runs()
        is_idle = queue.is_idle()
        log_run, log_bytes = self._running_log(running, long_runs)
        return running, Work(
            run=running.id if running is not None else "",
            begun=running.taken_at if running is not None else 0.0,
            queued=len(commands.queue),
            finished=len(queue.finished),
            finished_at=queue.finished_at,
            returned=len(queue.returned),
            log_bytes=log_bytes,
            unsent_log=self._unsent_log() if self.spool.tokens else "",
            has_events=bool(self.reporter.pending),
            directive=self.directives.pending is not None,
            signals=queue.signals,
            signal_at=queue.signal_at,
            claim_size=queue.next_claim(),
            command_size=commands.claim_size(),
            refill_threshold=commands.refill_threshold(),
            health_changed=is_idle and self._health_changed(),
            quarantined=is_idle and self.status.quarantine_reason is not None,
            has_slots=functions.seats > 0,
            functions=len(functions.queue) + len(functions.live),
            long_functions=sum(run.task.function is not None for run in long_runs),
            wanted=functions.wanted(),
            stuck_functions=functions.blocked and functions.waiting() > 0,
            unreported=bool(queue.late_starts) or any(not run.start_reported for run in long_runs),
            log_run=log_run,
            progress_due=queue.progress_due(clock.boottime()),
        )

    def _running_log(self, running: Run | None, long_runs: list[Run]) -> tuple[str, int]:
        """(a run that goes on and has undelivered output or empty, bytes of it)."""
        if self.spool.tokens:
            for run in ([running] if running is not None else []) + long_runs:
                waiting = self.spool.pending_bytes(run.id)
                if waiting:
                    return run.id, waiting
        return "", 0

    def _unsent_log(self) -> str:
        """A run that has ended and whose log is not delivered; empty if there is none. Removes delivered logs."""
        ended = [record.report.run for record in list(self.run_queue.finished)]
        for run in ended + self.leftovers:
            if run in self.spool.tokens:
                if self.spool.pending_bytes(run):
                    return run
                self.spool.remove(run)
        return ""

    def _health_changed(self) -> bool:
        """Whether a handshake is needed to report changes of the bot's health; others are sent with the next poll."""
        return self.status.health_reasons() != self.link.reported_health
