"""What commands and functions have in common while they run: limits, requests to end, output, and room for it."""

from __future__ import annotations

from collections.abc import Callable

from myrmidon.bot.run.run import Run
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock, filesystem

UNKILLABLE_AFTER_S = 60.0
"""After the first SIGKILL."""
MAX_BACKLOG_BYTES = 4 << 20
"""Of output that is not uploaded yet; then the run has to wait."""
NO_LIMIT = 1 << 60

NOTHING, TERMINATE, KILL, UNKILLABLE = "nothing", "terminate", "kill", "unkillable"


class Watch:
    """Used by the threads that watch runs. ``server_unreachable``: the server takes no output now.

    ``on_output``: called when a run that goes on has written something.
    """

    def __init__(self, spool: LogSpool) -> None:
        self.spool = spool
        self.server_unreachable = False
        self.on_output: Callable[[], None] = lambda: None

    def check_limits(self, run: Run, now: float) -> None:
        """Request the end of a run that exceeds its limits. A function may be silent: it returns its results."""
        silence_s = run.task.io_timeout_s if run.task.function is None else None
        if now >= run.deadline:
            run.request_end("hard_timeout")
        elif silence_s and now >= run.last_output_at + silence_s:
            run.request_end("io_timeout")

    def next_step(self, run: Run, now: float) -> str:
        """What to do with the process of a run: SIGTERM when it is to end, and SIGKILL after the grace period."""
        is_first = run.accept_end(now)
        if not run.end_reason or now < run.kill_at:
            return TERMINATE if is_first else NOTHING
        return UNKILLABLE if now >= run.kill_at + UNKILLABLE_AFTER_S else KILL

    def room(self, run: Run, now: float) -> int:
        """How much output of a run may be stored now: the server must be able to take it in time.

        Without room the run has to wait, which is no silence of its own.
        """
        if self.server_unreachable or not run.spooled:
            return NO_LIMIT
        room = MAX_BACKLOG_BYTES - self.spool.pending_bytes(run.id)
        if room <= 0:
            run.last_output_at = now
        return room

    def store_output(self, run: Run, stream: int, data: bytes, *, to_spool: bool) -> None:
        """Add output to the log of a run. An error of the disk ends the run."""
        run.last_output_at = clock.boottime()
        try:
            run.store_output(stream, data, self.spool, to_spool=to_spool)
        except OSError as error:
            self.end_without_output(run, error)

    def end_without_output(self, run: Run, error: OSError) -> None:
        """End a run whose output cannot be read or stored."""
        run.discard_output = True
        run.request_end("disk_full" if filesystem.disk_is_full(error) else "bot_error", 0.0)
        run.accept_end(clock.boottime())
