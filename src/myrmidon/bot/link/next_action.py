"""Decides what the session thread does next. A pure function of the link's state, the bot's work and the time.

Short tasks are claimed in batches: their results are reported together, and more are claimed before the queue is empty.
Of commands that take long, the bot holds only one, and of functions one per slot. While they write nothing, a request
waits at the server, so that a stop, or work for a free slot, arrives at once. All other requests than this one and the
poll for work are answered at once.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from myrmidon.bot.link.link_state import ANY, COMMANDS, FUNCTIONS, LinkState, Work
from myrmidon.bot.run.run import LONG_S, MAX_INLINE_BYTES

REPORT_AFTER_S = 0.15  # how long results may wait for others to share a request
LAST_REPORT_AFTER_S = 0.05  # the same when the server has no more tasks
GIVE_BACK_AFTER_S = 0.5  # queued tasks behind a command that runs longer go to other bots
LOG_INTERVAL_S = 0.5  # between two uploads of the output of a running command
SHUTDOWN_S = 10.0  # how long a stopped bot tries to deliver results
SHUTDOWN_RETRY_S = 0.5  # pause between calls during shutdown
SHUTDOWN_FAILURES = 2  # after so many failed calls, a stopped bot without results ends
PROBE_AFTER_S = 2.0  # a connection that was silent for longer may be dead
QUIET_AFTER_S = 2.0  # without output for longer, a command's bot waits at the server for a stop
HOLD_AFTER_S = 1.0  # beside a command that runs longer, claims wait at the server; its end interrupts them
QUARANTINED_POLL_S = 5.0  # length of a poll while quarantined, so that the bot soon checks itself again


class Pause(NamedTuple):
    """Wait after a failed call."""

    seconds: float


class Wait(NamedTuple):
    """Wait until the work changes, or for so long."""

    seconds: float


class Handshake(NamedTuple):
    """Begin or renew the session."""


class Resend(NamedTuple):
    """Repeat the pending exchange."""


class Exchange(NamedTuple):
    """Send a new exchange: results and returned tasks, and a claim of up to ``n`` tasks.

    ``wait_s``: how long the server may wait for tasks, or for a stop if ``n`` is 0. ``accepts``: which kinds of tasks
    are claimed. ``start``: report the starts of the running tasks. ``log``: include their output. ``holds``: list the
    claimed runs, so that the server can answer which of them must stop; not needed for short tasks, which end before a
    stop could arrive.
    """

    n: int = 0
    wait_s: float = 0.0
    accepts: str = ANY
    start: bool = False
    log: bool = False
    holds: bool = True


class Heartbeat(NamedTuple):
    """Renew the leases of the claimed runs."""


class UploadLog(NamedTuple):
    """Upload the next piece of the output of a run."""

    run: str


class SendEvents(NamedTuple):
    """Send the events that were posted."""


class GiveBack(NamedTuple):
    """Return the queued tasks of a kind, because the running ones take long."""


class ExecuteDirective(NamedTuple):
    """Execute the pending directive."""


class ShutDown(NamedTuple):
    """Report the end of the bot, and end."""


class GiveUp(NamedTuple):
    """End although the server does not answer. The journal keeps results that were not delivered."""


Action = Union[
    Pause, Wait, Handshake, Resend, Exchange, Heartbeat, UploadLog, SendEvents, GiveBack, ExecuteDirective, ShutDown,
    GiveUp,
]  # fmt: skip


def next_action(link: LinkState, work: Work, now: float) -> Action:
    """The one thing to do now."""
    if link.failures and _is_hopeless(link, work, now):
        return GiveUp()
    pause_s = _remaining_pause(link, work, now)
    if pause_s > 0:
        return Pause(pause_s)
    if not link.has_session or work.health_changed:
        return Handshake()
    if work.unsent_log and work.unreported:  # it may take long until the result tells that it has begun
        return Exchange(start=True) if link.pending is None else Resend()
    if work.unsent_log:
        return Heartbeat() if _heartbeat_due(link, now) else UploadLog(work.unsent_log)
    if work.has_events and now >= link.events_after:
        return SendEvents()
    if link.pending is not None:
        return Resend()
    if work.is_idle:
        return _when_idle(link, work, now)
    if work.long_functions or _command_is_long(work, now):
        return _during_long_runs(link, work, now)
    return _during_short_tasks(link, work, now)


def _is_hopeless(link: LinkState, work: Work, now: float) -> bool:
    """Whether a stopped bot ends without the server's answer.

    With results to deliver it tries for SHUTDOWN_S, else only SHUTDOWN_FAILURES times.
    """
    if not work.signals or work.run or work.functions:
        return False
    return now - work.signal_at > SHUTDOWN_S or (link.failures >= SHUTDOWN_FAILURES and not work.finished)


def _remaining_pause(link: LinkState, work: Work, now: float) -> float:
    if not link.failures:
        return 0.0
    retry_s = min(link.retry_s, SHUTDOWN_RETRY_S) if work.signals else link.retry_s
    return link.failed_at + retry_s - now


def _heartbeat_due(link: LinkState, now: float) -> bool:
    return now - link.contact_at >= link.heartbeat_s


def _when_idle(link: LinkState, work: Work, now: float) -> Action:
    """No tasks: report results, then execute a pending directive or poll for work.

    Results are sent with the poll. But if the connection was silent and may be dead, they are sent in a request that is
    answered at once: else their loss would be noticed only after a whole poll.
    """
    has_news = bool(work.finished or work.returned)
    if has_news and (not work.may_claim or now - link.contact_at > PROBE_AFTER_S):
        return Exchange()
    if work.signals:
        return ShutDown()
    if work.directive:
        return ExecuteDirective()
    wait_s = min(link.poll_s, QUARANTINED_POLL_S) if work.quarantined else link.poll_s
    return Exchange(n=work.claim_size, wait_s=wait_s, accepts=ANY if work.has_slots else COMMANDS)


def _command_is_long(work: Work, now: float) -> bool:
    return bool(work.run) and now - work.begun > LONG_S


def _has_stuck_commands(work: Work, now: float) -> bool:
    return bool(work.run and work.queued) and now - work.begun > GIVE_BACK_AFTER_S


def _claim(work: Work, now: float) -> Exchange | None:
    """A claim of what the bot can take now; None if that is nothing.

    Beside a command that takes long it takes functions, and while all slots are busy it takes commands.
    """
    if not work.may_claim:
        return None
    takes_commands = work.queued <= work.refill_threshold and not _command_is_long(work, now)
    if takes_commands and work.wanted:
        return Exchange(n=work.claim_size)
    if work.wanted:
        return Exchange(n=work.wanted, accepts=FUNCTIONS)
    return Exchange(n=work.command_size, accepts=COMMANDS) if takes_commands else None


def _results_due(link: LinkState, work: Work, now: float) -> bool:
    """Whether results have waited long enough for others to share their request."""
    return bool(work.finished) and now - work.finished_at > (
        LAST_REPORT_AFTER_S if ANY in link.drained else REPORT_AFTER_S
    )


def _during_short_tasks(link: LinkState, work: Work, now: float) -> Action:
    claim = _claim(work, now)
    takes_all = claim is not None and (claim.accepts == ANY or not work.has_slots)
    if claim is not None and takes_all and claim.accepts not in link.drained:
        return claim._replace(holds=False)
    if _results_due(link, work, now):
        return Exchange(holds=False)
    return Wait(LAST_REPORT_AFTER_S)


def _during_long_runs(link: LinkState, work: Work, now: float) -> Action:
    """A command or functions run long: report their start, deliver their output, claim beside them, send heartbeats."""
    if work.stuck_functions or _has_stuck_commands(work, now):
        return GiveBack()
    claim = _claim(work, now)
    if work.unreported:
        return _replace_claim(Exchange(start=True), claim)
    if claim is not None and claim.accepts not in link.drained:
        return claim
    poll = _poll_for_more(link, work, now, claim)
    if work.returned or _results_due(link, work, now) or (work.finished and not work.has_short_functions):
        return poll if poll is not None and now - link.contact_at <= PROBE_AFTER_S else Exchange()
    if work.progress_due:
        return Exchange()
    output = _output_action(link, work, now)
    if isinstance(output, Exchange):
        return _replace_claim(output, poll)._replace(wait_s=LOG_INTERVAL_S if poll is not None else 0.0)
    if _heartbeat_due(link, now):
        return Heartbeat()
    if output is not None:
        return output
    if poll is not None and now >= link.poll_after:
        return poll
    if claim is None and _may_wait_for_stop(link, work, now):
        return Exchange(wait_s=link.heartbeat_s)
    until = link.contact_at + link.heartbeat_s
    if work.log_bytes > MAX_INLINE_BYTES:
        until = min(until, link.log_resume_at)
    return Wait(min(LOG_INTERVAL_S / 2, max(0.01, until - now)))


def _replace_claim(exchange: Exchange, claim: Exchange | None) -> Exchange:
    """The exchange with a claim, so that the claim needs no request of its own."""
    return exchange._replace(n=claim.n, accepts=claim.accepts) if claim is not None else exchange


def _poll_for_more(link: LinkState, work: Work, now: float, claim: Exchange | None) -> Exchange | None:
    """The claim, waiting at the server, but not for long if output is to be sent, or soon will be.

    None while the bot had better not wait: the end of a run interrupts the request, which costs a connection. That is
    too much for a command that may end in a moment.
    """
    if claim is None or (work.run and now - work.begun < HOLD_AFTER_S):
        return None
    wait_s = link.heartbeat_s
    if work.log_bytes:
        wait_s = min(wait_s, max(0.01, link.log_sent_at + LOG_INTERVAL_S - now))
    elif now - link.log_sent_at < QUIET_AFTER_S:
        wait_s = min(wait_s, LOG_INTERVAL_S)
    return claim._replace(wait_s=wait_s)


def _output_action(link: LinkState, work: Work, now: float) -> Exchange | UploadLog | None:
    """How to deliver output of running tasks, if it is time: much of it by uploads, a little by an exchange."""
    may_upload = now >= link.log_resume_at
    if work.log_bytes > MAX_INLINE_BYTES and may_upload:
        return UploadLog(work.log_run)
    if not work.log_bytes or now - link.log_sent_at < LOG_INTERVAL_S:
        return None
    if link.inline_logs:
        return Exchange(log=True)
    return UploadLog(work.log_run) if may_upload else None


def _may_wait_for_stop(link: LinkState, work: Work, now: float) -> bool:
    """Whether the next request may wait at the server. Not while there is something to do here, or soon will be."""
    if work.log_bytes or now < link.poll_after:
        return False
    return now - max(link.log_sent_at, work.begun) > QUIET_AFTER_S
